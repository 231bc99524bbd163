"""`benchmarks.decode`: its contenders, its errors, its record."""

import jax
import numpy as np
import pytest

from benchmarks import decode
from benchmarks.decode import COPY, CUDNN, OURS, PROBLEMS, XLA, Problem, contenders, operands
from tests.emitters.contract import interpreted

SMALL = Problem(2, 2, keys=192, heads=4, kv_heads=2, head_dim=64)
PAGED = SMALL._replace(page=64)


@pytest.fixture(autouse=True)
def jax_s_own_rules_of_promotion():
    """As where this is measured: JAX's attention needs them."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("problem", [SMALL, PAGED], ids=str)
def test_contenders_give_what_is_asked(problem):
    args = operands(problem)
    assert [(x.shape, x.dtype) for x in args] == [(x.shape, x.dtype) for x in problem.args]
    with interpreted(detect_races=False):
        for contender in (decode.ours, decode.xla):
            assert decode.error(problem, args, OURS, contender) < 1e-2
    heads = range(problem.heads)
    every = [[decode.exact(problem, args, i, head) for head in heads] for i in range(problem.batch)]
    np.testing.assert_allclose(decode.xla(*args), np.moveaxis(np.array(every), 1, 2), 0, 1e-2)


def test_a_wrong_table_is_an_error():
    *arrays, table = operands(PAGED)
    wrong = lambda *args: decode.xla(*args[:4], args[4][:, ::-1].at[0, 0].set(table[1, 0]))
    assert decode.error(PAGED, (*arrays, table), OURS, wrong) > decode.TOLERANCE


def test_the_copy_moves_as_many_bytes_as_are_read():
    q, k, *rest = operands(SMALL)
    assert 2 * decode.copy(q, k, *rest).nbytes == 2 * k.nbytes == SMALL.bytes


def test_every_problem_has_its_contenders():
    assert len(PROBLEMS) == len(set(PROBLEMS)) == 4 * 3 * 3
    for problem in PROBLEMS:
        found = contenders(problem)
        assert {OURS, XLA, COPY} <= found.keys() and (CUDNN in found) == (problem.page is None)
        assert problem.bytes >= 128 << 20
