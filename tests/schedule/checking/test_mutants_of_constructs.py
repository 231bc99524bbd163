"""Broken kernels with a construct beyond rings and pipelines: every fault is found, and no other.

Each kernel is clean, and so small that the explorer visits all states of each of its mutants. The
explorer is the judge: it agrees with the checker as `test_check_properties` says, so a mutant that
does no harm has no finding. A mutant that does harm has a finding of a kind that `expectations`
foresees. A table of what was found is printed at the end of the run.

Of a kernel without automatic barriers, the explorer judges a program in which each of a thread's
lanes is a thread (`lanes_apart`).
"""

import collections

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.schedule import check
from tests.emitters import before_hopper
from tests.schedule import blackwell, kernels
from tests.schedule.checking import expectations, test_lanes, test_launch, test_reductions
from tests.schedule.checking.explorer import explore
from tests.schedule.checking.lanes_apart import apart
from tests.schedule.checking.mutations import mutants
from tests.schedule.checking.test_check_properties import BARRIERS, agree
from tests.schedule.checking.test_mutations import HEADER, TITLE, row
from tests.schedule.kernels import like
from tests.schedule.tracing import (
    test_device_code,
    test_devices,
    test_trace_cluster,
    test_warps,
)

pytestmark = pytest.mark.one_jax

X = like(256, 64)


def entered_again(threads):
    """A loop enters a scope with a tile and a barrier; the last of its threads reads the tile."""

    def kernel(x, o):
        wg = lax.axis_index("wg") if threads > 1 else 0

        @pl.loop(0, 2)
        def _(step):
            rows = pl.ds(step * 64, 64)

            def use(tile, loaded):
                @pl.when(wg == 0)
                def _():
                    plgpu.copy_gmem_to_smem(x.at[rows], tile, loaded)

                @pl.when(wg == threads - 1)
                def _():
                    plgpu.barrier_wait(loaded)
                    o[rows] = tile[...]

            shared = dict(collective_axes="wg") if threads > 1 else {}
            tile = plgpu.SMEM((64, 64), jnp.float16)
            pl.run_scoped(use, tile, plgpu.Barrier(), **shared)

    mesh = dict(num_threads=threads, thread_name="wg") if threads > 1 else {}
    return pipelib.trace(kernels.of(kernel, **mesh), X)


def added():
    """Two threads add to one row of the result, and one of the two reads the sum."""

    def kernel(x, o, done):
        wg = lax.axis_index("wg")
        plgpu.atomic_add(o.at[0], x[wg])
        plgpu.barrier_arrive(done)

        @pl.when(wg == 0)
        def _():
            plgpu.barrier_wait(done)
            o[1] = o[0]

    def summed(x):
        o = jax.new_ref(jnp.zeros((2, 128), jnp.float16))
        barrier, mesh = plgpu.Barrier(num_arrivals=2), dict(num_threads=2, thread_name="wg")
        plgpu.kernel(kernel, out_type=(), scratch_types=[barrier], **mesh)(x, o)
        return o[...]

    return pipelib.trace(summed, like(2, 128))


def handed_on():
    """Before Hopper: one thread copies two rows, one after the other; another reads them."""

    def kernel(x, o, row, landed, free):
        wg = lax.axis_index("wg")
        for step in range(2):

            @pl.when(wg == 0)
            def _(step=step):
                if step:
                    plgpu.barrier_wait(free)
                in_bounds = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
                plgpu.copy_gmem_to_smem(x.at[step], row, oob_mode=in_bounds)
                plgpu.wait_gmem_to_smem(0)
                plgpu.barrier_arrive(landed)

            @pl.when(wg == 1)
            def _(step=step):
                plgpu.barrier_wait(landed)
                o[step] = row[...]
                if not step:
                    plgpu.barrier_arrive(free)

    scratch = [plgpu.SMEM((256,), jnp.float16), plgpu.Barrier(), plgpu.Barrier()]
    mesh = dict(num_threads=2, thread_name="wg")
    return plgpu.kernel(kernel, out_type=like(2, 256), scratch_types=scratch, **mesh)


def earlier(kernel, *args):
    """The program of a kernel on a GPU before Hopper."""
    with pipelib.target("8.0"):
        return pipelib.trace(kernel, *args)


def pipelined(case):
    """The program of a pipeline there."""
    return earlier(case.kernel(), *(like(*x.shape, dtype=x.dtype) for x in case.arguments))


KERNELS = {
    "cp.async": lambda: pipelined(before_hopper.with_delays((0,), 2, steps=4)),
    "cp.async, delays": lambda: pipelined(before_hopper.with_delays((0, 1), 3, steps=5)),
    "cp.async, an output that steps build up": lambda: pipelined(before_hopper.built_up(rows=2)),
    "cp.async, two threads": lambda: earlier(handed_on(), like(2, 256)),
    "warps": lambda: pipelib.trace(test_warps.loader(), test_warps.X),
    "warps, whose thread waits for their stores": lambda: pipelib.trace(
        test_warps.loader("the thread waits for the store"), test_warps.X
    ),
    "named barrier": lambda: pipelib.trace(test_device_code.handed_over()),
    "named barrier of a thread and a warp": lambda: pipelib.trace(
        test_device_code.given_back(160), test_device_code.ROW
    ),
    "named barrier of all threads": lambda: pipelib.trace(test_device_code.met_by_all()),
    "registers": lambda: pipelib.trace(lambda x: kernels.specialized(x, 1, 0, 2), like(128, 64)),
    "scope that a loop enters again": lambda: entered_again(1),
    "shared scope that a loop enters again": lambda: entered_again(2),
    "semaphores of devices": test_devices.exchanged,
    "semaphores of devices, kept": lambda: test_devices.exchanged(keeps=True),
    "semaphores of devices, of all at once": test_devices.summed_up,
    "semaphores of blocks": lambda: test_devices.in_turns(3),
    "semaphores that one block takes off": test_devices.taken_off,
    "dependent launch": lambda: pipelib.trace(
        test_launch.copied([test_launch.WAIT], [], [test_launch.SIGNAL]), test_launch.X
    ),
    "dependent launch, all threads wait": lambda: test_launch.early(test_launch.specialized()),
    "dependent launch, one thread waits": lambda: test_launch.early(test_launch.specialized([0])),
    "scratch of reductions": lambda: pipelib.trace(
        test_reductions.reduced(test_reductions.to_a_number, in_turn=True), test_reductions.X
    ),
    "additions in a cluster": lambda: test_trace_cluster.of_two("add"),
    "additions of threads": added,
}
KERNELS |= {f"blackwell: {name}": kernel for name, kernel in blackwell.PROGRAMS.items()}
# What has to be found of each construct: some mutants of these ops do harm.
OPS = {
    "cp.async": {"wait_cp_async"},
    "cp.async, delays": {"wait_cp_async"},
    "cp.async, an output that steps build up": {"wait_cp_async"},
    "cp.async, two threads": {"wait_cp_async", "arrive", "wait"},
    "warps": {"meet"},
    "warps, whose thread waits for their stores": {"wait_store"},
    "named barrier": {"arrive", "wait", "barrier"},
    "named barrier of a thread and a warp": {"arrive", "wait", "barrier"},
    "named barrier of all threads": {"meet"},
    "registers": {"registers"},
    "scope that a loop enters again": {"wait", "load"},
    "shared scope that a loop enters again": {"scope_begin", "wait"},
    "semaphores of devices": {"signal", "await"},
    "semaphores of devices, kept": {"signal", "await"},
    "semaphores of devices, of all at once": {"signal", "await"},
    "semaphores of blocks": {"signal", "await"},
    "semaphores that one block takes off": {"signal", "await"},
    "dependent launch": {"grid_wait"},
    "dependent launch, all threads wait": {"grid_wait"},
    "dependent launch, one thread waits": {"grid_wait"},
    "scratch of reductions": {"arrive", "wait"},
    "additions in a cluster": {"load", "arrive"},
    "additions of threads": {"write", "arrive", "wait"},
    "blackwell: one slot": {"tcgen05_commit", "wait"},
    "blackwell: a ring": {"tcgen05_commit", "wait", "load"},
    "blackwell: three threads": {"tcgen05_commit", "wait", "load", "wait_load_tmem", "arrive"},
    "blackwell: three threads, one step": {"tcgen05_commit", "wait_load_tmem"},
    "blackwell: a pair of blocks": {"tcgen05_commit", "wait", "load"},
    "blackwell: two products in a row": {"wait_load_tmem", "wait_store_tmem", "tcgen05_commit"},
    "blackwell: two products in a row, apart": {"wait_store_tmem", "tcgen05_commit"},
    "blackwell: tiles taken over": {"load", "arrive", "wait"},
    "blackwell: tiles taken over by a pair": {"load", "arrive", "wait"},
    "blackwell: scales": {"tcgen05_commit", "wait"},
}
# The explorer lets an answer land in all blocks of a cluster at once, but each has its own copy.
AT_ONCE = "blackwell: tiles taken over by a pair", "wait try_cancel_barrier@"


def judged(kernel, mutant):
    """Whether it does harm and is found, or does none and is not; raises if neither is so."""
    if any("semaphores order nothing here" in note for note in check(mutant.program).notes):
        assert check(mutant.program) or not explore(mutant.program).bad, mutant.name
        return "not followed"
    if kernel == AT_ONCE[0] and AT_ONCE[1] in mutant.name and mutant.mutation != "twice":
        found = frozenset(str(finding.kind) for finding in check(mutant.program))
        assert not explore(mutant.program).kinds - found - {"uninitialized-read"}, mutant.name
    else:
        found = agree(mutant.program)
    if not found:
        return "harmless"
    right, why = expectations.EXPECTED[mutant.mutation, mutant.kind]
    right = right | expectations.STUCK if right == expectations.REFUSED else right
    assert found & right, f"{mutant.name}: found {sorted(found)}, not {sorted(right)}, as {why}"
    return "caught"


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_mutant_that_does_harm_is_found_and_no_other(kernel, record_property):
    program = KERNELS[kernel]()
    assert not agree(program)
    table, harmful = collections.Counter(), set()
    for mutant in mutants(program):
        assert mutant.program != program, mutant.name
        verdict = judged(kernel, mutant)
        table[mutant.mutation, verdict] += 1
        harmful |= {mutant.kind} if verdict == "caught" else set()
    assert OPS[kernel] <= harmful, harmful
    explored = sum(table.values()) - sum(n for (_, v), n in table.items() if v == "not followed")
    record_property(f"table: {TITLE}", [HEADER, row(kernel, table, explored)])


def test_few_mutants_have_semaphores_that_are_not_followed():
    """Those of which a waiter now takes off what another may need: not judged by the checker."""
    name = "semaphores of blocks"
    found = ((mutant, judged(name, mutant)) for mutant in mutants(KERNELS[name]()))
    assert [mutant.mutation for mutant, verdict in found if verdict == "not followed"] == ["kept"]


# Lanes of one thread, in kernels without automatic barriers.

LANES = {
    "write and read, commit": test_lanes.passed(test_lanes.commit),
    "write and read, barrier": test_lanes.passed(test_lanes.arrive_and_wait),
    "read and load, commit": test_lanes.refilled(test_lanes.commit),
    "read and load, barrier": test_lanes.refilled(test_lanes.arrive_and_wait),
}


@pytest.mark.parametrize("kernel", LANES)
def test_every_mutant_whose_lanes_race_is_found_and_no_other(kernel):
    program = pipelib.trace(LANES[kernel], test_lanes.X)
    assert check(program).ok and not explore(apart(program).program).bad
    races = 0
    for mutant in mutants(program):
        kinds = explore(apart(mutant.program).program).kinds
        found = {str(finding.kind) for finding in check(mutant.program)}
        assert found <= kinds and bool(found) == bool(kinds), (mutant.name, found, kinds)
        if not found & BARRIERS:
            assert ("race" in found) == ("race" in kinds), mutant.name
        races += found == {"race"}
    assert races
