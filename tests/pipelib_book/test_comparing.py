"""`pipelib_book.comparing`: a result beside its reference, functions beside each other."""

import jax.numpy as jnp
import numpy as np
import pytest

import pipelib_book as book
from pallascope.bench import timing
from pipelib_book import notebook


def native(monkeypatch, is_native):
    device = book.Device("made up", "9.0", native=is_native)
    monkeypatch.setattr(notebook, "_device", device)


def test_check_says_the_error(capsys):
    book.check("x", [3.0, 4.0], [3.0, 4.005], tolerance=2e-3)
    assert capsys.readouterr().out == "x: relative error 1.0e-03, within 2e-03.\n"


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        ([3.0, 4.1], "relative error 2.0e-02, over 2e-03."),
        ([3.0, float("nan")], "relative error nan, over 2e-03. `[1:2]` is NaN."),
    ],
)
def test_check_stops_at_a_wrong_result(actual, said):
    with pytest.raises(AssertionError) as error:
        book.check("x", actual, [3.0, 4.0], tolerance=2e-3)
    assert str(error.value) == f"x is wrong: {said}"


@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (  # broadcast, these would be equal
            jnp.ones((4, 1)),
            jnp.ones(4),
            "it is float32[4,1] where float32[4] is expected, and nothing is broadcast",
        ),
        (
            jnp.ones((), jnp.float16),
            jnp.ones(2),
            "it is float16[] where float32[2] is expected, and nothing is broadcast",
        ),
        (
            jnp.ones(2, jnp.bfloat16),
            jnp.ones(2, jnp.float16),
            "it is bfloat16[2] where float16[2] is expected, and not every bfloat16 is a float16",
        ),
        (
            jnp.ones(2),
            jnp.ones(2, jnp.float16),
            "it is float32[2] where float16[2] is expected, and not every float32 is a float16",
        ),
        (
            jnp.ones(2, jnp.int32),
            jnp.ones(2),
            "it is int32[2] where float32[2] is expected, and not every int32 is a float32",
        ),
        (
            (jnp.ones((2, 2)), jnp.ones(2)),
            jnp.ones(2),
            "a tuple of 2 whose parts differ in shape is no array",
        ),
    ],
    ids=["broadcast", "one number", "other floats", "coarser reference", "integers", "two arrays"],
)
def test_check_needs_the_reference_s_shape_and_dtype(actual, expected, said):
    with pytest.raises(AssertionError) as error:
        book.check("x", actual, expected, tolerance=1.0)
    assert str(error.value) == f"x is wrong: {said}, so no error is measured."


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_check_takes_a_more_precise_reference(dtype, capsys):
    book.check("x", jnp.ones(2, dtype), jnp.ones(2), tolerance=0)
    assert capsys.readouterr().out == "x: relative error 0.0e+00, within 0e+00.\n"


def test_check_compares_with_zeros_absolutely(capsys):
    book.check("x", jnp.zeros(3), np.zeros(3), tolerance=0)
    with pytest.raises(AssertionError):
        book.check("x", jnp.ones(3), np.zeros(3), tolerance=0.5)


def test_compare_times_nothing_in_the_interpreter(monkeypatch, capsys):
    native(monkeypatch, False)
    assert book.compare({"f": jnp.sin}, 1.0, flops=1) is None
    assert "Not timed here" in capsys.readouterr().out


def test_compare_shows_a_table(monkeypatch, capsys):
    native(monkeypatch, True)
    samples = {"cuBLAS": (10.0, 10.0, 10.0), "mine": (20.0, 20.0, 20.0)}
    samples = {n: timing.Samples(us) for n, us in samples.items()}
    monkeypatch.setattr(timing, "measure", lambda functions, args, **_: samples)
    assert book.compare(dict.fromkeys(samples), flops=4e9) is samples
    *_, cublas, mine = capsys.readouterr().out.splitlines()
    assert cublas == "| cuBLAS | 10.0 | 0.0 | 400 | 1.00x |"
    assert mine == "| mine | 20.0 | 0.0 | 200 | 0.50x |"


def timed(**microseconds):
    return {name: timing.Samples(us) for name, us in microseconds.items()}


NOT_APART = "**{}** is the fastest by its median, but it cannot be told apart from {}: the middle"
OVERLAP = {name: (low, low + 1, low + 2) for name, low in dict(a=10.0, b=11.0, c=90.0).items()}


@pytest.mark.parametrize(
    ("times", "name", "said"),
    [
        (dict(only=(3.0, 4.0)), "only", "**only** is the fastest."),
        # The mean and the least time would name `a`.
        (dict(a=(1.0, 20.0, 20.0, 20.0), b=(10.0, 10.0, 10.0, 99.0), c=(30.0,) * 4), "b", ""),
        # Quartiles 10 and 12, and 12.5 and 14.5: the ranges are apart, though some times are not.
        (dict(b=(12.5, 13.5, 14.5), a=(10.0, 11.0, 12.0)), "a", "**a** is the fastest."),
        (
            dict(b=(1.0, 12.5, 13.5, 14.5, 99.0), a=(10.0, 10.5, 11.0, 11.5, 12.0)),
            "a",
            "cannot be told apart from **b**",
        ),
        # Middle halves that overlap, or touch.
        (OVERLAP, "a", NOT_APART.format("a", "**b**") + " halves of their times overlap."),
        (OVERLAP | dict(b=(12.0, 13.0, 14.0)), "a", NOT_APART.format("a", "**b**")),
        # A tie goes to the first.
        (dict.fromkeys("zabc", (10.0, 10.0)), "z", NOT_APART.format("z", "**a**, **b** and **c**")),
        (
            dict.fromkeys("zabc", (10.0, 10.0)),
            "z",
            " halves of their times overlap with its own.",
        ),
    ],
)
def test_the_fastest_has_the_least_median_and_is_told_apart_or_not(times, name, said):
    fastest, words = book.fastest(timed(**times))
    assert fastest == name and said in words


def test_of_none_there_is_no_fastest():
    with pytest.raises(ValueError) as error:
        book.fastest({})
    said = "No function was timed, so none is the fastest: give one or more."
    assert str(error.value) == said
