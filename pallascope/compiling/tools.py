"""Where JAX's CUDA plugin, `ptxas` and `nvdisasm` are.

They are looked for in this order: the folder that the environment variable `PALLASCOPE_CUDA` names,
which `pip install --target` filled or which is a CUDA toolkit's; the packages that are installed
beside JAX; and, for the two programs, PATH and /usr/local/cuda.

The folder lets a machine without a GPU keep its environment as it is. JAX loads every plugin that
is installed, and on a machine without CUDA's libraries it prints an error each time.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import sys

import jax

#: The environment variable that names a folder to look in first.
PLACE = "PALLASCOPE_CUDA"
_TOOLKIT = "/usr/local/cuda/bin"
_PLUGINS = "jax-cuda13-pjrt", "jax-cuda12-pjrt"
# What brings each, as pip knows it.
_PACKAGES = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}


def lacking() -> str | None:
    """Why nothing can be compiled here, in a sentence that says what to install; None if it can.

    Example:
      >>> lacking() is None
      True
    """
    try:
        check_plugin()
        program("ptxas")
        program("nvdisasm")
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return None


def folders() -> list[str]:
    """The folders of Python packages, those of PALLASCOPE_CUDA first."""
    place = os.environ.get(PLACE)
    if place and not pathlib.Path(place).is_dir():
        raise FileNotFoundError(
            f"{PLACE} is {place!r}, which is not a folder, so nothing is found there: name the"
            " folder that pip install --target filled, or unset it."
        )
    return [place, *sys.path] if place else [*sys.path]


def check_plugin() -> None:
    """Raises an ImportError if JAX's CUDA plugin of its version, or flatbuffers, is missing."""
    found = [
        plugin.version
        for name in _PLUGINS
        for plugin in importlib.metadata.distributions(name=name, path=folders())
    ]
    version = jax.__version__
    remedy = (
        f"pip install --no-deps jax-cuda13-pjrt=={version} jax-cuda13-plugin=={version}, into this"
        f" environment, or with --target into a folder that {PLACE} names"
    )
    if not found:
        raise ImportError(
            "JAX's CUDA plugin, which compiles kernels to PTX, is not installed, so none can be"
            f" compiled: {remedy}."
        )
    if found[0] != version:
        raise ImportError(
            f"JAX's CUDA plugin is of version {found[0]}, and JAX of {version}, so it may compile"
            f" other code than this JAX runs: {remedy}."
        )
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(
            "flatbuffers, with which JAX writes a kernel down for its compiler, is not installed,"
            " so none can be compiled: pip install flatbuffers."
        )


def program(name: str) -> pathlib.Path:
    """The path of `ptxas` or `nvdisasm`; a FileNotFoundError if there is none."""
    place = os.environ.get(PLACE)
    roots = [pathlib.Path(place)] if place else []
    for folder in folders():
        roots += sorted(pathlib.Path(folder, "nvidia").glob("*"))  # cu13 before cuda_nvcc
    for root in roots:
        if (root / "bin" / name).is_file():
            return (root / "bin" / name).absolute()
    paths = os.pathsep.join([os.environ.get("PATH", ""), _TOOLKIT])
    if found := shutil.which(name, path=paths):
        return pathlib.Path(found)
    raise FileNotFoundError(
        f"NVIDIA's {name} is not in {PLACE}, the installed packages, PATH or /usr/local/cuda, so no"
        f" machine code can be made or read: pip install {_PACKAGES[name]}."
    )
