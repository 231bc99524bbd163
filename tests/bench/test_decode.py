"""`benchmarks.decode`: its contenders, its errors, its record."""

import jax
import numpy as np
import pytest

from benchmarks import compiled, decode, records
from benchmarks.decode import COPY, CUDNN, OURS, PROBLEMS, XLA, Problem, contenders, operands
from tests.bench.stand_ins import dry_run, with_parts
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


# Measuring, with a fake timer.


@pytest.mark.slow
def test_a_dry_run_writes_a_record(monkeypatch, tmp_path, capsys):
    suite = with_parts(decode.SUITE, decode=dict(problems=(SMALL, PAGED, PROBLEMS[0])))
    us = {COPY: 2.0, XLA: 40.0, OURS: 4.0}
    with interpreted(detect_races=False):
        path = dry_run(monkeypatch, tmp_path, suite, "decode", "--only", ":2", us=us)
    compiled.note(path)
    groups = records.read(path)
    assert [Problem(**group["problem"]) for group in groups] == [SMALL, PAGED]
    for group in groups:
        found = group["contenders"]
        assert found.keys() == contenders(Problem(**group["problem"])).keys()
        assert len(found[OURS]["burst_microseconds"]) == 6
        assert found[OURS]["relative_error"] < 1e-2 and "relative_error" not in found[COPY]
        assert found[OURS]["compiled"] and {"command", "provenance"} <= group["run"].keys()
    assert "reason" in groups[0]["contenders"][CUDNN]  # there is no GPU
    assert compiled.stale(path) == []
    capsys.readouterr()
    suite.main(["table", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert "nvidia-h200" in lines
    for line in (line for line in lines if line.startswith(f"  {OURS} ")):
        assert f"{SMALL.bytes / 4.0 / 1e6:.2f} TB/s  0.500 of copy" in line
