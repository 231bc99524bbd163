"""`benchmarks.nvlink`: its kernels are right for every schedule and lower for a GPU; its record."""

import jax.numpy as jnp
import pytest

import pallascope
from benchmarks import nvlink, suite
from benchmarks.nvlink import PROBLEMS
from pallascope.bench import timing
from pallascope.compiling.kernels import launched
from pallascope.compiling.lowering import lowered
from pallascope.tracing.trace import tracers
from pipelib_book import across
from pipelib_book.measured.nvlink import RING, STREAM, TILE, WITHOUT_TILES, Problem

#: One of each kind, with steps that a check follows in a moment; streams of few blocks and many.
KINDS = (*map(Problem, WITHOUT_TILES), Problem(TILE), Problem(STREAM, 3), Problem(RING))
SMALL = [problem._replace(steps=3) for problem in KINDS]


def traced(problem, number=1):
    contender = [*nvlink.contenders(problem).values()][number]
    return pallascope.trace(contender, nvlink.like(problem), whole_grid=True)


def test_the_problems():
    assert len(set(PROBLEMS)) == len(PROBLEMS)
    assert {each.kernel for each in PROBLEMS} == {each.kernel for each in KINDS}
    blocks = [each.blocks for each in PROBLEMS if each.kernel == STREAM]
    assert blocks == [1, 2, 4, 8, 16, 32, 66, 132]  # all run at once on an H200
    assert [each.tile_bytes for each in PROBLEMS if each.kernel == TILE] == [1024, 32768]
    for problem in PROBLEMS:
        few, many = (int(name.split()[0]) for name in nvlink.contenders(problem))
        assert (few, many) == (problem.steps, 3 * problem.steps)


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_no_schedule_hangs_or_races(problem):
    program = traced(problem)
    assert not pallascope.check(program, strict=True)
    assert across.unheard(program) == {}


@pytest.mark.parametrize("problem", [*SMALL, Problem(STREAM, 132, steps=16)], ids=str)
def test_it_lowers_for_a_gpu(problem):
    for contender in nvlink.contenders(problem).values():
        (tracer,) = tracers(contender, (nvlink.like(problem),), "test")
        lowered(launched(tracer.called), tracer.called.devices)


def test_the_ring_is_the_chapters():
    program = traced(SMALL[-1])
    assert program.devices == (2,) and program.per_block == 2
    shapes = [buffer.shape for buffer in program.buffers if buffer.space == "gmem"]
    assert shapes.count((2, *nvlink.like(SMALL[-1]).shape[1:])) == 2  # an inbox on each GPU


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_a_tile_that_did_not_come_is_an_error(problem):
    shape = nvlink.like(problem).shape
    x = jnp.broadcast_to(jnp.arange(shape[0], dtype="f4")[:, None, None], shape)
    there = x.reshape(2, -1, *x.shape[1:])
    sent = there if problem.kernel in WITHOUT_TILES else there[::-1]
    name = f"{problem.steps} steps"
    if problem.kernel == RING:
        out = sent[:, : problem.steps].reshape(-1, *x.shape[1:])
        right, wrong = lambda x: (out, None), lambda x: (-out, None)
    else:
        slots = nvlink.IN_FLIGHT if problem.kernel == STREAM else 1
        out = jnp.repeat(sent.reshape(-1, 1, *x.shape[1:]), slots, axis=1)
        right, wrong = lambda x: out, lambda x: out.at[0, 0, 0, 0].add(1)
    assert nvlink.error(problem, (x,), name, right) == 0.0
    assert nvlink.error(problem, (x,), name, wrong) == 1.0


def test_a_step_is_what_more_steps_add():
    problem = Problem(STREAM, 2, steps=100)
    of = lambda *us: timing.Samples(us)
    times = {"100 steps": of(150.0, 160.0), "300 steps": of(500.0, 350.0)}
    found = suite.Measured(problem, times["100 steps"], times)
    said = [column(found) for column in nvlink.SUITE.columns]
    assert said == ["  1.0000 us a step", "  65.54 GB/s of a GPU"]
    alone = found._replace(times={"100 steps": of(1.0)})
    assert [column(alone) for column in nvlink.SUITE.columns] == [None, None]


@pytest.mark.parametrize("problem, measured", nvlink.recorded.steps().items(), ids=str)
def test_simulated_beside_measured(problem, measured):
    """The ring gives no constant; some blocks together get less of the link than simulated.

    The bounds were set by what was found: they keep it from getting worse.
    """
    problem = problem._replace(steps=4 if problem.blocks > 16 else 12)
    programs = (traced(problem, number) for number in (0, 1))
    few, many = (pallascope.simulate(program).microseconds for program in programs)
    simulated = (many - few) / (2 * problem.steps)
    some = problem.kernel == STREAM and 4 < problem.blocks < 32
    assert simulated == pytest.approx(measured, rel=0.2 if some else 0.1)


def test_too_few_devices():
    with pytest.raises(SystemExit, match="needs 2 GPUs of one host, and JAX has 1: there is"):
        nvlink.operands(PROBLEMS[0])
