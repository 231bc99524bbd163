"""`pipelib_book.across`: kernels on several GPUs, graded by the checker and by what they do."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pipelib_book import across

TILE = jax.ShapeDtypeStruct((64, 128), jnp.float32)
ROWS = {gpus: jax.ShapeDtypeStruct((gpus * 64, 128), jnp.float32) for gpus in (2, 3)}


def shared(gpus, sends=1.0, extra=0, takes=True, reads=True, all_first=False, stored=(0, 1)):
    """Each device sends its tile to part d of the others' inboxes, and reads what it was sent."""

    def kernel(x, o, inbox, mine, theirs, loaded):
        me = lax.axis_index("gpu")
        arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((gpus,)))
        others = [lax.rem(me + k, gpus) for k in range(1, gpus)]
        plgpu.copy_gmem_to_smem(x, mine, loaded)
        plgpu.barrier_wait(loaded)
        rows = pl.ds(0, int(64 * sends))
        for other in others:
            there = plgpu.remote_ref(inbox.at[me, rows], other)
            plgpu.copy_smem_to_gmem(mine.at[rows], there)
        plgpu.wait_smem_to_gmem(0)
        for other in others:
            pl.semaphore_signal(arrived.at[me], 1 + extra, device_id=other)
        if all_first:
            for other in others:
                pl.semaphore_wait(arrived.at[other])
        for other in others:
            if not all_first:
                pl.semaphore_wait(arrived.at[other], decrement=takes)
            if reads:
                plgpu.copy_gmem_to_smem(inbox.at[other], theirs, loaded)
                plgpu.barrier_wait(loaded)
        for half in stored:
            there = o.at[pl.ds(half * 32 + 0 * me, 32)]
            plgpu.copy_smem_to_gmem(mine.at[pl.ds(0, 32)], there)
        plgpu.wait_smem_to_gmem(0)

    inboxes = jax.ShapeDtypeStruct((gpus, *TILE.shape), TILE.dtype)
    smem = plgpu.SMEM(TILE.shape, TILE.dtype)
    call = plgpu.kernel(
        kernel, out_type=(TILE, inboxes), scratch_types=[smem, smem, plgpu.Barrier()]
    )
    return across.on_gpus(call, gpus)


def graded(*asks, gpus=3, **options):
    return across.grade(shared(gpus, **options), ROWS[gpus], asks=asks).lines[-1]


def traced(gpus=2, **options):
    return pallascope.trace(shared(gpus, **options), ROWS[gpus], whole_grid=True)


ALL = across.sent_by_each("inbox"), across.reads_what_it_gets("inbox", 2)


def test_a_right_kernel_passes():
    grade = across.grade(
        shared(3),
        ROWS[3],
        asks=[*ALL, across.fills("o"), across.begins_after("inbox", 1), across.signals(2)],
    )
    assert grade.passed and grade.lines == (
        "The checker finds nothing on 3 devices.",
        "All signals are waited for.",
        "Each device writes its part of `inbox` on all others.",
        "Each device gets 2 parts of `inbox`, and reads each.",
        "Each device fills its `o`.",
        "A device waits for 1 before it first reads `inbox`, of 1 at most.",
        "Each device signals 2 times.",
        "JAX lowers it for a GPU.",
    )


def test_what_an_ask_refuses():
    said = "Device 0 does not fill part 0 of `inbox@1`."
    assert graded(ALL[0], sends=0.5, reads=False) == said
    said = "Device 0 gets 2 parts of `inbox` and reads 0, of 2."
    assert graded(*ALL, reads=False) == said
    said = "A device waits for 2 before it first reads `inbox`, of 1 at most."
    assert graded(across.begins_after("inbox", 1), all_first=True) == said
    for number in (1, 3):
        said = f"Device 0 signals 2 times, and {number} are asked for."
        assert graded(across.signals(number)) == said
    said = "Device 0 fills 32 parts of `o`, of 64."
    assert graded(across.fills("o"), stored=(0,)) == said
    assert graded(across.fills("o_gmem")) == "Device 0 fills 0 parts of `o_gmem`, of 0."
    assert graded(across.sent_by_each("o")) == "Device 0 writes part 0 of `o@0`."


def test_signals_that_nobody_waits_for():
    assert not across.unheard(traced())
    assert not across.unheard(traced(takes=False))
    assert across.unheard(traced(extra=2)) == {"semaphore.0@0[1]": 2, "semaphore.0@1[0]": 2}
    assert graded(extra=1, gpus=2) == (
        "Of the signals to `semaphore.0@0[1]`, 1 are not waited for, so they may come when the"
        " kernel has ended there."
    )


def test_a_copy_behind_the_end_of_an_array():
    assert graded(stored=(0, 1, 2), gpus=2).startswith(
        "Its result is not compared, and the checker notes: tests/"
    )


def test_a_fault_and_what_is_no_kernel():
    program = across.without(traced(), lambda op: op.kind == "await")
    assert {str(finding.kind) for finding in pallascope.check(program)} == {"race"}
    assert graded(reads=True, sends=0.5).startswith("The checker found a fault. uninitialized-read")
    grade = across.grade(lambda x: x + 1.0, ROWS[2])
    assert not grade.passed and grade.lines[0].startswith("It cannot be traced")
