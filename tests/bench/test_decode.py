"""`benchmarks.decode`: its contenders, its errors, its record."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compiled, decode, matmul, noting, turns
from benchmarks.decode import COPY, CUDNN, OURS, PROBLEMS, XLA, Problem, contenders, operands
from pipelib.bench import timing
from pipelib.kernels.hopper import Gpu, assumed
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


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[-1]], ids=str)
def test_ours_lower(problem):
    """Also as they are divided otherwise."""
    with assumed(Gpu("NVIDIA H200", "9.0")):
        for name, contender in contenders(problem).items():
            if name.startswith(OURS):
                traced = jax.jit(contender).trace(*problem.args)
                assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


# Measuring, with a fake timer.


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A record of two small problems."""
    monkeypatch.setattr(decode, "PROBLEMS", (SMALL, PAGED, PROBLEMS[0]))
    monkeypatch.setenv("XLA_FLAGS", "")
    facts = dict(gpu="NVIDIA H200", jax=jax.__version__)
    monkeypatch.setattr(turns, "provenance", lambda: facts)
    us = {COPY: 2.0, XLA: 40.0, OURS: 4.0}
    times = lambda functions, args, rounds, burst: {
        name: timing.Samples((us.get(name, 8.0),) * (rounds * burst)) for name in functions
    }
    monkeypatch.setattr(timing, "measure", times)
    noted = []
    monkeypatch.setattr(noting, "note", noted.append)
    options = ["measure", "--rounds", "2", "--launches", "3", "--only", ":2"]
    monkeypatch.setattr("sys.argv", ["decode.py", *options, "--results", str(tmp_path)])
    with interpreted(detect_races=False):
        decode.benchmark().main(decode.__doc__)
    (path,) = noted
    compiled.note(path)
    return path


def test_a_dry_run_writes_a_record(measured, capsys, monkeypatch):
    groups = matmul.read(measured)
    assert [Problem(**group["problem"]) for group in groups] == [SMALL, PAGED]
    for group in groups:
        found = group["contenders"]
        assert found.keys() == contenders(Problem(**group["problem"])).keys()
        assert len(found[OURS]["burst_microseconds"]) == 6
        assert found[OURS]["relative_error"] < 1e-2 and "relative_error" not in found[COPY]
        assert found[OURS]["compiled"] and {"command", "provenance"} <= group["run"].keys()
    assert "reason" in groups[0]["contenders"][CUDNN]  # there is no GPU
    assert compiled.stale(measured) == []
    root = measured.parents[1]
    monkeypatch.setattr("sys.argv", ["decode.py", "table", "--results", str(root)])
    decode.benchmark().main(decode.__doc__)
    lines = capsys.readouterr().out.splitlines()
    assert "nvidia-h200" in lines
    for line in (line for line in lines if line.startswith(f"  {OURS} ")):
        assert f"{SMALL.bytes / 4.0 / 1e6:.2f} TB/s  0.500 of copy" in line


def test_what_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        timing,
        "measure",
        lambda functions, *_, **__: dict.fromkeys(functions, timing.Samples((1.0, 1.0))),
    )
    wrong = lambda q, *_: q + jnp.ones((), q.dtype)
    monkeypatch.setattr(decode, "contenders", lambda _: {OURS: wrong, COPY: decode.copy})
    found = decode.benchmark().measure(SMALL, 1, 2)
    assert "wrong by more than" in found[OURS]["reason"]
    assert "burst_microseconds" not in found[OURS] and found[COPY]["burst_microseconds"]


def test_no_gpu(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("sys.argv", ["decode.py", "measure"])
    with pytest.raises(SystemExit, match="there is nothing to time"):
        decode.benchmark().main(decode.__doc__)
