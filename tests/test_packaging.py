"""The package: a wheel of pipelib alone, a light import."""

import ast
import json
import pathlib
import pydoc
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def python(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(out))
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_pipelib_and_nothing_else(wheel):
    assert wheel.name == "pallas_pipelib-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"pipelib", "pallas_pipelib-0.1.0.dist-info"}
    assert "pipelib/py.typed" in names
    tracked = subprocess.run(
        ["git", "ls-files", "pipelib"], cwd=ROOT, capture_output=True, text=True
    )
    # The records that a chapter quotes.
    results = ROOT / "benchmarks" / "results"
    records = {
        f"pipelib/results/{path.relative_to(results).as_posix()}"
        for folder in ("nvidia-h200", "interpreter")
        for path in (results / folder).iterdir()
    }
    for name in ("hazards", "memory_bound"):
        assert f"pipelib/results/nvidia-h200/{name}.json" in records
    inside = {name for name in names if name.startswith("pipelib/")}
    assert inside == set(tracked.stdout.split()) | records


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
    metadata = archive.read(name).decode()
    for line in (
        "Name: pallas-pipelib",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.12",
        "Requires-Dist: jax<0.13,>=0.11.2",
        "Requires-Dist: numpy",
        *(
            f"Provides-Extra: {extra}"
            for extra in ("cuda12", "cuda13", "book", "dev")
        ),
    ):
        assert f"\n{line}\n" in metadata


# JAX and NumPy, and the parts of JAX that any Pallas kernel for GPUs needs.
BASE = (
    "import jax, numpy, jax.extend, jax.experimental.pallas,"
    " jax.experimental.pallas.mosaic_gpu"
)


LAZY = "trace", "check", "simulate", "explore", "player", "sweep", "H100", "H200"


def test_the_names_that_are_loaded_late_are_listed():
    """Before they are asked for, as a shell completes them, and in `help`."""
    program = "import pipelib, pydoc; print(dir(pipelib)); print(pydoc.render_doc(pipelib))"
    listed, text = python("-c", program).stdout.split("\n", 1)
    listed, text = ast.literal_eval(listed), pydoc.plain(text)
    assert {*LAZY, "emit_pipeline", "__all__"} <= {*listed} and listed == sorted({*listed})
    for name in LAZY:
        assert re.search(rf"^    {name}(\(| = )", text, re.MULTILINE), name


def test_importing_pipelib_loads_jax_and_numpy_only():
    program = (
        f"{BASE}; import sys, json; before = set(sys.modules); import pipelib;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    added = json.loads(python("-c", program).stdout)
    foreign = {name.partition(".")[0] for name in added}
    foreign -= {"pipelib", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
    assert foreign == set()
    assert "pipelib.book" not in added


def test_importing_pipelib_loads_the_emitters_only():
    """The import is light: the checker, the figures and the kernels are loaded when asked for."""
    program = (
        "import sys, json, pipelib; modules = lambda: sorted(sys.modules);"
        "before = modules(); pipelib.check; print(json.dumps([before, modules()]))"
    )
    before, after = map(set, json.loads(python("-c", program).stdout))
    mine = {name for name in before if name.partition(".")[0] == "pipelib"}
    modules = "pipeline", "ring", "specs", "warp_specialized"
    assert mine == {"pipelib", *(f"pipelib.{module}" for module in modules)}
    # What Pallas has for other devices, and what draws.
    heavy = {
        "jax.experimental.pallas.tpu", "jax.experimental.pallas.triton",
        "jax.experimental.pallas.ops", "matplotlib", "IPython", "ipywidgets",
    }  # fmt: skip
    assert not heavy & before
    assert "pipelib.schedule.check" in after and not heavy & after
