"""The marker `pallascope_check` and the option of its name, in pytest runs of their own."""

import pathlib
import subprocess
import sys
import tomllib

import pytest

# Whatever a run in this process imports first is imported anew by the next run, and JAX's
# compiled parts do not survive that: so what the runs need is imported here.
from jax.experimental.pallas import mosaic_gpu as _mosaic_gpu  # noqa: F401

import pallascope.testing  # noqa: F401

pytest_plugins = "pytester"
ROOT = pathlib.Path(__file__).parents[2]

KERNELS = """
import jax, jax.numpy as jnp, numpy as np, pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROW = jax.ShapeDtypeStruct((128,), jnp.float32)
X = np.ones(128, np.float32)

def kernel(commits):
    def copy(x, o, o_smem):
        o_smem[...] = x[...]
        if commits:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o)
        plgpu.wait_smem_to_gmem(0)
    return plgpu.kernel(copy, out_type=ROW, scratch_types=[plgpu.SMEM((128,), jnp.float32)])

def undecided(x, o):
    @pl.when(x[0] > 0)
    def _():
        o[...] = x[...]

RIGHT, WRONG, REFUSED = kernel(True), kernel(False), plgpu.kernel(undecided, out_type=ROW)

def run(kernel):
    jax.eval_shape(kernel, X)

def interpret(kernel):
    with plgpu.force_gpu_interpret_mode():
        assert kernel(X).sum() == 128
"""


@pytest.fixture
def outcome(pytester):
    """Runs tests with the plugin, in this process; counts of outcomes, and what was printed."""

    def run(tests, *options):
        pytester.makepyfile(KERNELS + tests)
        # Without the short summary (-rN), which says a report again where CI is set.
        result = pytester.runpytest_inprocess(
            "-p", "pallascope.pytest_plugin", "-W", "default", "-rN", *options
        )
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_a_marked_test_fails_with_the_report_of_a_kernel_that_it_only_traced_or_interpreted(
    outcome,
):
    counts, text = outcome("""
@pytest.mark.pallascope_check
@pytest.mark.parametrize("call", [run, interpret])
def test_right(call): call(RIGHT)

@pytest.mark.pallascope_check
@pytest.mark.parametrize("call", [run, interpret])
def test_wrong(call): call(WRONG)

def test_wrong_but_not_marked(): interpret(WRONG)
""")
    assert counts == {"passed": 3, "failed": 2}
    assert text.count("missing-commit: the store of thread 0 reads `o_smem`") == 2
    assert "remedy: Call commit_smem" in text and "copy: 1 finding" in text


def test_a_marked_test_fails_if_nothing_was_checked(outcome):
    counts, text = outcome("""
@pytest.mark.pallascope_check
def test_no_kernel(): pass

@pytest.mark.pallascope_check
def test_refused(): run(REFUSED)

@pytest.mark.pallascope_check(allow_refusals=True)
def test_allowed(): run(REFUSED)
""")
    assert counts == {"passed": 1, "failed": 2, "warnings": 1}
    assert "it called no kernel of plgpu.kernel, so nothing was checked" in text
    assert "undecided: not checked:" in text and "NotChecked" in text


def test_the_marker_s_arguments(outcome):
    _, text = outcome(
        """
def twice(x, o, x_smem, barrier):
    for _ in range(2):
        plgpu.copy_gmem_to_smem(x, x_smem, barrier)
        plgpu.barrier_wait(barrier)
        o[...] = x_smem[...]

def at_the_end(x, o, o_smem):
    block = jax.lax.axis_index("i")
    o_smem[...] = x[...]
    pl.when(block < 3)(plgpu.commit_smem)
    plgpu.copy_smem_to_gmem(o_smem, o.at[pl.ds(block * 128, 128)])
    plgpu.wait_smem_to_gmem(0)

LAST = plgpu.kernel(at_the_end, out_type=jax.ShapeDtypeStruct((512,), jnp.float32), grid=(4,),
                    grid_names=("i",), scratch_types=[plgpu.SMEM((128,), jnp.float32)])
TWICE = plgpu.kernel(twice, out_type=ROW,
                     scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()])

@pytest.mark.pallascope_check
def test_plain(): run(TWICE)

@pytest.mark.pallascope_check(strict=True)
def test_strict(): run(TWICE)

@pytest.mark.pallascope_check(blocks="first")
def test_first(): run(LAST)

@pytest.mark.pallascope_check
def test_diagonal(): run(LAST)

@pytest.mark.pallascope_check(stric=True)
def test_misspelt(): run(RIGHT)
""",
        "-rA",
    )
    said = {
        name: f"PASSED test_the_marker_s_arguments.py::test_{name}" in text
        for name in ("plain", "strict", "first", "diagonal", "misspelt")
    }
    assert said == {
        "plain": True,
        "strict": False,
        "first": True,
        "diagonal": False,
        "misspelt": False,
    }
    assert "the marker pallascope_check takes strict=, blocks= and allow_refusals=" in text


@pytest.mark.parametrize("how", ["option", "configuration"])
def test_all_tests_can_be_checked(outcome, pytester, how):
    tests = """
def test_no_kernel(): pass

def test_right(): interpret(RIGHT)

def test_wrong(): interpret(WRONG)

def test_refused(): run(REFUSED)
"""
    if how == "configuration":
        pytester.makeini("[pytest]\npallascope_check = true\n")
        counts, text = outcome(tests)
    else:
        counts, text = outcome(tests, "--pallascope-check")
    assert counts == {"passed": 3, "failed": 1, "warnings": 1}
    assert "missing-commit" in text and "undecided: not checked:" in text


def test_a_test_that_fails_by_itself_shows_what_was_found(outcome):
    counts, text = outcome("""
@pytest.mark.pallascope_check
def test_numbers():
    run(WRONG)
    assert 1 == 2
""")
    assert counts == {"failed": 1}
    assert "assert 1 == 2" in text and "missing-commit" in text


def test_an_earlier_test_that_compiled_a_kernel_does_not_hide_it(outcome):
    counts, _ = outcome("""
CALL = jax.jit(WRONG)

def test_first(): interpret(CALL)

@pytest.mark.pallascope_check
def test_then(): interpret(CALL)
""")
    assert counts == {"passed": 1, "failed": 1}


def test_the_marker_is_known_to_strict_markers(outcome, pytester):
    counts, _ = outcome(
        """
@pytest.mark.pallascope_check
def test_right(): run(RIGHT)
""",
        "--strict-markers",
    )
    assert counts == {"passed": 1}
    assert (
        "pallascope_check(strict=False"
        in pytester.runpytest_inprocess("-p", "pallascope.pytest_plugin", "--markers").stdout.str()
    )


def test_the_plugin_is_an_entry_point_and_does_not_import_jax():
    project = tomllib.loads((ROOT / "pallascope" / "pyproject.toml").read_text("utf-8"))["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    program = f"import sys, {module}; print([m for m in ('jax', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
