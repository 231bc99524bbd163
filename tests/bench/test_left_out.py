"""`benchmarks.left_out`: constants chosen by all families but one."""

import math

import pytest

from benchmarks import left_out
from benchmarks.left_out import CONSTANTS, Slopes
from pallascope.machine import H200

GROWTH = CONSTANTS.index("code_growth")


def slopes(family, error, of=GROWTH):
    """A pair that is predicted too long by a factor, and depends on one constant."""
    return Slopes(family, math.log(error), tuple(float(at == of) for at in range(len(CONSTANTS))))


def test_a_constant_moves_until_the_errors_are_least():
    found = left_out.fitted([slopes("a", 1.2)] * 3, None)
    assert found["code_growth"] == pytest.approx(H200.code_growth / 1.2, rel=1e-3)
    still = {name: value for name, value in found.items() if name != "code_growth"}
    assert all(
        value == pytest.approx(getattr(H200, name), rel=2e-3) for name, value in still.items()
    )


def test_the_family_that_is_left_out_has_no_say():
    found = [slopes("a", 1.1), *[slopes("b", 0.9)] * 9]
    by_a, by_b = (left_out.fitted(found, name)["code_growth"] for name in ("b", "a"))
    assert by_a == pytest.approx(H200.code_growth / 1.1, rel=1e-3)
    assert by_b == pytest.approx(H200.code_growth / 0.9, rel=1e-3)
    assert by_a < left_out.fitted(found, None)["code_growth"] < by_b


def test_a_fraction_of_a_rate_stays_one():
    reach = CONSTANTS.index("wgmma_reach")
    assert left_out.fitted([slopes("a", 0.5, reach)] * 3, None)["wgmma_reach"] <= 1


def test_a_slope_is_that_of_two_predictions():
    name = next(
        name
        for name in left_out.pairs()
        if name.startswith("the ladder of matmul") and "rung 2" in name
    )
    found = left_out.slopes(name, 1700.0, 100.0)
    by_name = dict(zip(CONSTANTS, found.by_constant))
    assert by_name["wgmma_reach"] < 0 <= by_name["wgmma_restart_cycles"]
    assert by_name["cold_seconds"] > 0
