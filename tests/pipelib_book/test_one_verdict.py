"""What the checker or JAX's lowering refuses is refused wherever a kernel is judged.

The command, pytest's plugin, a search and a grade ask one verdict, in one wording.
"""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib_book as book
from pallascope import __main__ as command
from pallascope import compiling
from tests.pallascope import copying

pytest_plugins = "pytester"

SOURCE = f"""
{pathlib.Path(copying.__file__).read_text("utf-8")}
import jax, jax.numpy as jnp, pytest

right = copies()
races_between_blocks = copies(step=8)
races_in_the_third_block = copies(reads=2)
not_lowered = copies(rows=384)
TILES = jax.ShapeDtypeStruct((64, 128), jnp.float32)
TALL = jax.ShapeDtypeStruct((384, 128), jnp.float32)
"""
FAULTY = {
    "races_between_blocks": ("TILES", "race"),
    "races_in_the_third_block": ("TILES", "race"),
    "not_lowered": ("TALL", "not-lowered"),
}
NAMES = ["right", *FAULTY]


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The module of the kernels; ptxas, which takes seconds, is not asked."""
    monkeypatch.setattr(compiling, "lacking", lambda: "not asked")
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "kernels_of_one_verdict.py"
    path.write_text(SOURCE, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def case(kernels, name):
    """A kernel, its argument, and the kind of its fault."""
    argument, kind = FAULTY.get(name, ("TILES", ""))
    return getattr(kernels, name), getattr(kernels, argument), kind


@pytest.mark.parametrize("name", NAMES)
def test_the_command(kernels, capsys, name):
    _, x, kind = case(kernels, name)
    shape = ",".join(map(str, x.shape))
    status = command.main(["check", f"{kernels.__file__}:{name}", f"f32[{shape}]"])
    said = capsys.readouterr().out
    assert status == bool(kind)
    assert (f"\n{kind}: " in f"\n{said}") if kind else ("no finding in all 4 blocks" in said)


@pytest.mark.parametrize("name", NAMES)
def test_a_search(kernels, name):
    kernel, x, kind = case(kernels, name)
    results = pallascope.tuning.search(lambda which: kernel, dict(which=[0]), x, progress=False)
    (trial,) = results.trials
    assert str(trial.outcome) == {"": "predicted", "not-lowered": "does not lower"}.get(
        kind, "finding"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_grade(kernels, name):
    kernel, x, kind = case(kernels, name)
    values = np.arange(np.prod(x.shape), dtype=np.float32).reshape(x.shape)
    with plgpu.force_gpu_interpret_mode():
        grade = book.grade(kernel, values, expected=values)
    assert grade.passed == (not kind)
    assert not kind or f"so it was not run. {kind}: " in grade.lines[-1]


def test_the_plugin(kernels, pytester):
    tests = SOURCE + "".join(
        f"""
@pytest.mark.pallascope_check
def test_{name}():
    jax.eval_shape({name}, {FAULTY.get(name, ["TILES"])[0]})
"""
        for name in NAMES
    )
    pytester.makepyfile(tests)
    result = pytester.runpytest_inprocess("-p", "pallascope.pytest_plugin", "-rN")
    assert result.parseoutcomes() == {"passed": 1, "failed": 3}
    text = result.stdout.str()
    assert all(f"{kind}: " in text for _, kind in FAULTY.values())
