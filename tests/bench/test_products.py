"""`benchmarks.products`: operands, what counts as wrong, errors against float64, rotation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import products
from benchmarks.products import Measured, Problem, dot
from pallascope.tuning import measuring
from pallascope.tuning.measuring import rotation, tolerance

SMALL = Problem(192, 64, 128)
TURNED = Problem(192, 64, 128, "float16", True, True, "float32")


def contender(problem, spoil=lambda out: out):
    return lambda a, b: spoil(dot(a, b, problem))


@pytest.mark.parametrize("problem", [SMALL, TURNED], ids=str)
def test_what_xla_makes_is_right(problem, monkeypatch):
    monkeypatch.setattr(products, "_COMPARED_ROWS", 80)  # the last part overlaps
    products._compare.cache_clear()
    measured = Measured(contender(problem), problem, sets=2)
    assert measured.check() <= tolerance(problem.out.dtype)
    found = measured.float64_error()
    assert found["rows"] == 32
    assert found["relative"] < {"bfloat16": 3e-3, "float32": 1e-6}[problem.out.dtype.name]
    products._compare.cache_clear()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda out: out.at[190, 63].add(1.0), id="one element"),
        pytest.param(lambda out: out.at[:, 5].set(jnp.nan), id="not finite"),
        pytest.param(lambda out: 1.01 * out.astype(jnp.float32), id="one in a hundred"),
    ],
)
def test_what_is_wrong_is_found(spoil):
    problem = SMALL._replace(out_dtype="float32")
    assert Measured(contender(problem, spoil), problem, sets=1).check() > tolerance("float32")


def test_one_lost_step_is_found():
    """The last 64 of a large K are not multiplied."""
    problem = Problem(64, 128, 4096)
    lost = lambda a, b: dot(a[:, :-64], b[:-64], problem)
    measured = Measured(lost, problem, sets=1)
    assert measured.check() > 3 * tolerance("bfloat16")
    assert tolerance("bfloat16", "float8_e4m3fn") == 0.1 > tolerance("bfloat16")
    assert measured.float64_error()["relative"] > 0.05


def test_the_float64_error_is_what_numpy_says():
    problem = SMALL._replace(out_dtype="float32")
    measured = Measured(contender(problem, lambda out: out * 1.5), problem, sets=1)
    assert measured.float64_error()["relative"] == pytest.approx(0.5, rel=1e-5)


def test_factors_are_normal_and_differ_between_sets():
    measured = Measured(contender(TURNED), TURNED, sets=2)
    (a, b), (other, _) = measured._sets
    assert a.shape == (128, 192) and b.shape == (64, 128) and a.dtype == jnp.float16
    assert abs(np.std(np.asarray(a, np.float32)) - 1) < 0.02
    assert abs(np.mean(np.asarray(b, np.float32))) < 0.05
    assert not np.array_equal(a, other)
    again = Measured(contender(TURNED), TURNED, sets=1)._sets[0][0]
    assert np.array_equal(a, again)


def test_rotations_exceed_the_l2():
    for problem in (Problem(4096, 4096, 4096), Problem(512, 4096, 4096), Problem(8192, 8192, 64)):
        size = sum(x.size * x.dtype.itemsize for x in problem.factors)
        sets = rotation(problem.factors)
        assert sets * size >= 3 * measuring.L2_BYTES or sets == measuring.MOST_SETS
    assert rotation(Problem(8192, 8192, 8192).factors) == 1
    assert rotation(SMALL.factors) == measuring.MOST_SETS


def test_a_sustained_run_lasts_and_counts_its_products():
    found = Measured(contender(SMALL), SMALL, sets=3).sustained(0.2)
    assert found["products"] % 3 == 0
    total = sum(found["us"]) * found["products"]
    assert total > 0.1e6 and min(found["us"]) > 0


def test_kernels_are_divided_among_the_products():
    runs = [[("split", 1.0), ("add", 0.5)] * 3, [("split", 2.0), ("add", 0.5)] * 3]
    assert measuring._per_call(runs, 3) == [1500.0] * 3 + [2500.0] * 3
    with pytest.raises(RuntimeError, match="3 kernels ran for 2 calls"):
        measuring._per_call([[("a", 1.0)] * 3], 2)


def test_without_cupti_there_are_no_times():
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU here, so kernels are timed")
    with pytest.raises(RuntimeError, match="CUPTI"):
        Measured(contender(SMALL), SMALL, sets=1).burst()


@pytest.mark.gpu
def test_bursts_have_times_and_names():
    problem = Problem(1024, 1024, 1024)
    found = Measured(functools.partial(dot, problem=problem), problem).burst(5)
    assert len(found["us"]) >= 5 and min(found["us"]) > 0
    assert found["kernels"]
