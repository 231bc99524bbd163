"""`benchmarks.collective`: its contenders, its errors and times, its record."""

import time

import jax
import jax.numpy as jnp
import pytest

from benchmarks import collective, suite
from benchmarks.collective import OURS, PROBLEMS, PRODUCT, SEQUENCE, TRANSFER, UPSTREAM, Problem
from pallascope.bench import jaxprs, timing
from tests.emitters.contract import interpreted

#: On one device nothing is sent, and the kernel is `matmul`.
ALONE = Problem(128, 128, 64, devices=1)


def test_what_a_device_does():
    problem = Problem(4096, 14336, 8192)
    assert problem.flops == 2 * 4096 * 7168 * 8192
    assert problem.sent == 2048 * 8192 * 2
    assert str(problem) == "4096 x 14336 x 8192 on 2 GPUs, bfloat16"
    assert len(set(PROBLEMS)) == len(PROBLEMS) and {each.devices for each in PROBLEMS} == {2, 4}


def test_every_problem_has_its_contenders():
    for problem in PROBLEMS:
        kinds = {name.partition(",")[0] for name in collective.contenders(problem)}
        assert kinds == {OURS, UPSTREAM, SEQUENCE, PRODUCT, TRANSFER}


def test_results_of_one_device():
    args, made = collective.operands(ALONE), collective.contenders(ALONE)
    with interpreted(detect_races=False):
        for name in (f"{SEQUENCE}, XLA's", f"{PRODUCT}, XLA's", f"{PRODUCT}, matmul"):
            assert collective.error(ALONE, args, name, made[name]) < 1e-2
    assert collective.error(ALONE, args, TRANSFER, made[TRANSFER]) is None


def test_what_is_wrong_has_an_error():
    args = collective.operands(ALONE)
    wrong = lambda a, b, whole: jnp.matmul(whole, b[:, ::-1])
    assert collective.error(ALONE, args, OURS, wrong) > collective.TOLERANCE
    assert collective.error(ALONE, args, TRANSFER, lambda a, b, whole: whole + 1) == 1.0


def test_a_digest_does_not_depend_on_the_devices():
    there = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    found = set()
    for mesh in (there, there.abstract_mesh):
        call = lambda x, mesh=mesh: jax.shard_map(
            jnp.sin, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")
        )(x)
        found.add(jaxprs.digest(call, jax.ShapeDtypeStruct((8,), jnp.float32)))
    assert len(found) == 1


def test_a_sample_is_the_time_of_a_burst_over_its_calls(monkeypatch):
    """A clock that goes on by a second whenever it is asked."""
    seconds = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    found = collective.bursts({"sin": jnp.sin, "cos": jnp.cos}, (jnp.ones(8),), rounds=3, burst=4)
    assert {name: each.microseconds for name, each in found.items()} == dict.fromkeys(
        ("sin", "cos"), (250000.0,) * 3
    )


def test_the_share_of_the_longer():
    problem, of = PROBLEMS[0], lambda us: timing.Samples((us, us))
    times = {OURS: of(100.0), f"{PRODUCT}, matmul": of(96.0), TRANSFER: of(30.0)}
    found = suite.Measured(problem, times[OURS], times)
    *_, share = (column(found) for column in collective.SUITE.columns)
    assert share.split() == ["0.960", "of", "the", "longer", "alone"]
    alone = found._replace(times={OURS: times[OURS]})
    assert [column(alone) is None for column in collective.SUITE.columns] == [False, False, True]


def test_too_few_devices():
    with pytest.raises(SystemExit, match="needs 2 GPUs of one host, and JAX has 1: there is"):
        collective.operands(PROBLEMS[0])
