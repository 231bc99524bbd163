"""Programmatic dependent launch: what may meet the kernel before or after, and in which words."""

from dataclasses import replace

import jax
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import H200, check, simulate
from pallascope.program import Program, Warp
from tests.pallascope import build, kernels
from tests.pallascope.checking.explorer import explore
from tests.pallascope.constructs.launches import SIGNAL, TILE, WAIT, X, copied, early, specialized
from tests.pallascope.strategies import Writer, with_thread


def kinds(program):
    return [op.kind for op in program.ops if op.kind.startswith("grid_")]


# What is traced.


@pytest.mark.parametrize(
    ("calls", "ops", "early"),
    [
        (dict(first=[WAIT], last=[SIGNAL]), ["grid_wait", "grid_signal"], True),
        (dict(first=[SIGNAL, WAIT]), ["grid_signal", "grid_wait"], True),
        (dict(last=[SIGNAL]), ["grid_signal"], False),
        ({}, [], False),
    ],
    ids=["both", "signal first", "signal", "none"],
)
def test_a_kernel_that_waits_is_launched_early(calls, ops, early):
    """And no other is: as what Mosaic GPU makes of it says."""
    kernel = copied(**calls)
    program = pallascope.trace(kernel, X)
    assert (kinds(program), program.starts_early) == (ops, early)
    text = jax.jit(kernel).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert ("mosaic_gpu.uses_pdl" in text) == early
    assert Program.from_json(program.to_json()) == program


def test_a_wait_that_no_thread_reaches_also_launches_the_kernel_early():
    def kernel(x, o):
        pl.when(lax.axis_index("i") > 0)(WAIT)
        o[...] = x[...]

    made = kernels.of(kernel, X, grid=(2,), grid_names=("i",))
    program = pallascope.trace(made, X)
    assert program.starts_early and not kinds(program)
    assert {finding.where for finding in check(program)} == {"x", "o"}
    assert "no thread of it comes to call that." in check(program)[0].cause
    assert not check(pallascope.trace(made, X, block=1))


def test_a_wait_of_warps_alone_does_not():
    """`warp_map` hides it from Mosaic GPU, which launches such a kernel as any other."""

    def kernel(x, o):
        plgpu.warp_map(lambda _: WAIT())
        o[...] = x[...]

    made = kernels.of(kernel, X)
    program = pallascope.trace(made, X)
    assert not program.starts_early and kinds(program) == ["grid_wait"] * 4
    text = jax.jit(made).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu.uses_pdl" not in text


def test_neither_takes_time():
    plain, both = (
        pallascope.trace(copied(**c), X) for c in ({}, dict(first=[WAIT], last=[SIGNAL]))
    )
    assert simulate(plain, H200).cycles == simulate(both, H200).cycles
    assert "opaque" not in str(check(both))


# What is found.


def test_a_kernel_that_waits_first_and_signals_last_is_right():
    report = check(pallascope.trace(copied([WAIT], [], [SIGNAL]), X))
    assert report.ok and not report.notes


def test_a_load_before_the_wait():
    report = check(pallascope.trace(copied([], [WAIT], [SIGNAL]), X))
    (finding,) = report
    program = report.program
    wait = next(op for op in program.threads[0] if op.kind == "grid_wait")
    assert (finding.kind, finding.where) == ("race", "x")
    assert [op.kind for op in finding.ops] == ["load"]
    assert finding.cause == (
        "`x` is read by the load of thread 0 while the kernel before may still write it: this"
        " kernel uses griddepcontrol_wait, so it may start before that one has ended, and thread 0"
        f" calls that only later ({wait.line})."
    )
    assert finding.remedy == (
        "Call griddepcontrol_wait in thread 0 before the access. It is right as it is only if no"
        " kernel before writes `x`."
    )
    assert not report.notes


def test_a_write_before_the_wait():
    load, write = check(pallascope.trace(copied([], [], [WAIT]), X))
    assert (load.where, write.where) == ("x", "o")
    assert write.cause.startswith(
        "`o` is written by the store of thread 0 while the kernel before may still use its memory:"
    )
    assert write.remedy == "Call griddepcontrol_wait in thread 0 before the access."


def test_a_signal_before_the_last_write_is_a_note():
    report = check(pallascope.trace(copied([WAIT, SIGNAL]), X))
    (note,) = report.notes
    ops = report.program.threads[0]
    signal, store = (next(op for op in ops if op.kind == kind) for kind in ("grid_signal", "store"))
    assert report.ok and note == (
        f"{signal.line}: the next kernel may start from here on, and `o` may be written later"
        f" ({store.line}): right if that kernel calls griddepcontrol_wait before it reads `o`,"
        " since this wait ends when the kernel here has ended."
    )


def test_a_signal_of_a_kernel_that_starts_in_its_turn():
    assert check(pallascope.trace(copied([SIGNAL]), X)).notes
    report = check(pallascope.trace(copied([], [], [SIGNAL]), X))
    assert report.ok and not report.notes


def test_a_signal_while_the_store_is_on_its_way():
    """`read_only` waits for SMEM alone: the write of GMEM may come after."""

    def kernel(x, o, x_smem, barrier):
        WAIT()
        plgpu.copy_gmem_to_smem(x, x_smem, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(x_smem, o)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        SIGNAL()

    made = kernels.of(kernel, X, scratch_types=[TILE, plgpu.Barrier()])
    assert len(check(pallascope.trace(made, X)).notes) == 1


# Threads. The explorer, for which the kernel before is one more thread, is the judge of each.


def judged(program):
    """The report, if the explorer finds the same kinds."""
    report = check(program)
    assert {finding.kind for finding in report} == set(explore(program).kinds), str(report)
    return report


def test_each_thread_that_accesses_waits_or_hears_of_a_wait():
    assert judged(early(specialized())).ok
    # What the load brings comes after the wait, and so does the write of who waits for the load.
    assert judged(early(specialized([0]))).ok
    finding, other = judged(early(specialized([1])))
    assert (finding.where, finding.ops[0].thread) == (other.where, other.ops[0].thread) == ("x", 0)
    assert finding.cause.endswith(
        "nothing that thread 1 does after its call is waited for by thread 0 before."
    )
    assert finding.remedy.startswith(
        "Call griddepcontrol_wait in thread 0 before the access, or let thread 1 arrive after it on"
        " a barrier on which thread 0 waits before. It is right"
    )
    assert {finding.where for finding in judged(early(specialized([])))} == {"x", "o"}
    assert judged(specialized([]).program()).ok


@pytest.mark.parametrize("thread", [0, 1])
def test_a_wait_anywhere_else(thread):
    """Each place of a thread's only wait: right where it is first, and a race from the load on."""
    program = early(specialized([thread]))
    wait, *others = program.threads[thread]
    verdicts = []
    for at in range(len(others) + 1):
        ops = [*others[:at], wait, *others[at:]]
        verdicts.append(judged(with_thread(program, thread, ops)).ok)
    assert verdicts == ([True] + [False] * len(others) if thread == 0 else [False] * len(verdicts))


def test_another_threads_wait_and_then_a_barrier():
    for arrives_after in (True, False):
        writer = Writer(2)
        x, b = writer.buffer("x", "gmem", role="in"), writer.barrier()
        if arrives_after:
            writer.op("grid_wait").arrive(b)
        else:
            writer.arrive(b).op("grid_wait")
        writer.wait(b, thread=1).read(x, 1)
        assert judged(early(writer)).ok == arrives_after


def test_warps_hear_of_their_threads_wait():
    for kind, ok in (("grid_wait", True), ("fence", False)):
        writer = Writer(2)
        x = writer.buffer("x", "gmem", role="in")
        writer.op(kind).op("meet", members=(0, 1)).op("meet", 1, members=(0, 1)).read(x, 1)
        assert judged(early(writer, warps=(Warp(0, 0),))).ok == ok


def test_what_is_no_access_of_an_array():
    """A prefetch, a copy that is left out, a tile behind the end, opaque code."""
    row, beyond = build.at(build.GMEM, 0), build.at(build.GMEM, 64)
    load = replace(build.load(0, 0), reads=(beyond,))
    ops = [
        build.just("prefetch", reads=(row,)),
        build.just("skip", reads=(row,)),
        build.just("opaque", reads=(row,), writes=(row,), function="f"),
        load,
        build.wait(build.PRODUCED),
    ]
    found = check(replace(build.program(ops), starts_early=True))
    assert {finding.kind for finding in found} <= {"out-of-bounds"}
    assert [
        f.where
        for f in check(replace(build.program([build.load(1, 0)]), starts_early=True))
        if f.kind == "race"
    ] == ["x"]


def test_a_signal_after_the_other_threads_writes():
    """The note is of writes that the signal does not come after, in its own block."""
    notes = []
    for is_waited_for in (True, False):
        writer = Writer(2)
        o, b = writer.buffer("o", "gmem", role="out"), writer.barrier()
        writer.write(o, 1).arrive(b, thread=1)
        if is_waited_for:
            writer.wait(b).op("grid_signal")
        else:
            writer.op("grid_signal").wait(b)
        notes.append([note for note in check(writer.program()).notes if "next kernel" in note])
    assert notes[0] == [] and len(notes[1]) == 1
    writer = Writer(2)
    o = writer.buffer("o", "gmem", 2, role="out")
    writer.write((o, 0, 1)).op("grid_signal").write((o, 1, 1), 1).op("grid_signal", 1)
    assert not [n for n in check(replace(writer.program(), blocks=2)).notes if "next kernel" in n]
