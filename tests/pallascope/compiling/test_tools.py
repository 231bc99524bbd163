"""Where the tools are looked for, and what is said of one that is missing."""

import sys

import jax
import pytest

from pallascope.compiling import lacking, tools

VERSION = jax.__version__
REMEDY = (
    f"pip install --no-deps jax-cuda13-pjrt=={VERSION} jax-cuda13-plugin=={VERSION}, into this"
    " environment, or with --target into a folder that PALLASCOPE_CUDA names."
)


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """An environment without any of the tools, and an empty folder that PALLASCOPE_CUDA names."""
    place = tmp_path / "cuda"
    place.mkdir()
    monkeypatch.setenv("PALLASCOPE_CUDA", str(place))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "_TOOLKIT", str(tmp_path))
    paths = [path for path in sys.path if not path.endswith("site-packages")]
    monkeypatch.setattr(sys, "path", paths)
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: name)
    return place


def plugin(folder, version=VERSION):
    info = folder / f"jax_cuda13_pjrt-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: jax-cuda13-pjrt\nVersion: {version}\n")


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_each_tool_that_is_missing_is_told_in_turn(nothing, monkeypatch):
    assert lacking() == (
        "JAX's CUDA plugin, which compiles kernels to PTX, is not installed, so none can be"
        f" compiled: {REMEDY}"
    )
    plugin(nothing)
    told = (
        "NVIDIA's {} is not in PALLASCOPE_CUDA, the installed packages, PATH or /usr/local/cuda, so"
        " no machine code can be made or read: pip install {}."
    )
    assert lacking() == told.format("ptxas", "nvidia-cuda-nvcc")
    program(nothing / "nvidia" / "cu13" / "bin", "ptxas")
    assert lacking() == told.format("nvdisasm", "nvidia-cuda-nvdisasm")
    program(nothing / "nvidia" / "cu13" / "bin", "nvdisasm")
    assert lacking() is None
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    assert lacking() == (
        "flatbuffers, with which JAX writes a kernel down for its compiler, is not installed, so"
        " none can be compiled: pip install flatbuffers."
    )


def test_the_plugin_of_another_jax_is_refused(nothing):
    plugin(nothing, "0.1.2")
    assert lacking() == (
        f"JAX's CUDA plugin is of version 0.1.2, and JAX of {VERSION}, so it may compile other code"
        f" than this JAX runs: {REMEDY}"
    )


def test_a_place_that_is_no_folder_is_refused(nothing, monkeypatch):
    monkeypatch.setenv("PALLASCOPE_CUDA", "nowhere")
    assert lacking() == (
        "PALLASCOPE_CUDA is 'nowhere', which is not a folder, so nothing is found there: name the"
        " folder that pip install --target filled, or unset it."
    )


def test_the_order_of_places(nothing, monkeypatch, tmp_path):
    last = program(tmp_path, "ptxas")  # on PATH
    assert tools.program("ptxas") == last
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    cuda12 = program(tmp_path / "packages" / "nvidia" / "cuda_nvcc" / "bin", "ptxas")
    assert tools.program("ptxas") == cuda12
    cuda13 = program(tmp_path / "packages" / "nvidia" / "cu13" / "bin", "ptxas")
    assert tools.program("ptxas") == cuda13
    first = program(nothing / "bin", "ptxas")
    assert tools.program("ptxas") == first
