"""`benchmarks.grouped`: its distributions, its contenders, its errors, its record."""

import pytest

from benchmarks import grouped
from benchmarks.grouped import DISTRIBUTIONS, OURS, PROBLEMS, UPSTREAM, XLA, Problem
from tests.emitters.contract import interpreted

SMALL = Problem(160, 64, 256, 4, "cut at random")
MATRICES = SMALL._replace(weights=True)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_all_rows_are_in_groups(name):
    for rows, groups in ((8192, 8), (16384, 128), (160, 4)):
        sizes = Problem(rows, 64, 64, groups, name).sizes
        assert len(sizes) == groups and sizes.sum() == rows and (sizes >= 0).all()


def test_ten_distributions_differ():
    assert len({tuple(problem.sizes) for problem in PROBLEMS[:10]}) == len(DISTRIBUTIONS) == 10


@pytest.mark.slow
@pytest.mark.parametrize("problem", [SMALL, MATRICES], ids=str)
def test_ours_and_xla_s_give_what_is_asked(problem):
    args = grouped.operands(problem)
    assert [(x.shape, x.dtype) for x in args] == [(x.shape, x.dtype) for x in problem.args]
    made = grouped.contenders(problem)
    with interpreted(detect_races=False):
        for name in (OURS, XLA):
            assert grouped.error(problem, args, name, made[name]) < 1e-2


@pytest.mark.parametrize("problem", [SMALL, MATRICES], ids=str)
def test_what_is_wrong_has_an_error(problem):
    wrong = lambda lhs, rhs, sizes: grouped.contenders(problem)[XLA](lhs, rhs, sizes[::-1])
    args = grouped.operands(problem)
    assert grouped.error(problem, args, OURS, wrong) > grouped.TOLERANCE


def test_every_layer_has_its_contenders():
    for problem in PROBLEMS:
        found = grouped.contenders(problem)
        kinds = {name.partition(",")[0] for name in found}
        assert kinds == {OURS, XLA, UPSTREAM}
        tried = any(name.startswith(f"{OURS},") for name in found)
        assert tried == (problem.distribution == "even" and not problem.weights)
