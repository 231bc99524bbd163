"""The sum of each row by a memory thread and a ring of two slots, in Pallas for Mosaic GPU."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS, COLUMNS, SLOTS = 64, 64, 2
COMPUTE, MEMORY = range(2)
TILED = plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)


def kernel(x_gmem, sums_gmem, ring_smem, full, empty):
    """One block: the sums of `ROWS` rows."""
    rows = pl.ds(lax.axis_index("block") * ROWS, ROWS)
    steps = x_gmem.shape[1] // COLUMNS

    # The role: the last Pallas thread loads, the first one adds.
    @pl.when(lax.axis_index("thread") == MEMORY)
    def memory_thread():
        def load(step, _):
            slot = lax.rem(step, SLOTS)

            @pl.when(step >= SLOTS)  # at first all slots are free
            def wait_until_free():
                plgpu.barrier_wait(empty.at[slot])

            # The copy: its barrier is an argument, and Pallas knows its bytes.
            tile = x_gmem.at[rows, pl.ds(step * COLUMNS, COLUMNS)]
            plgpu.copy_gmem_to_smem(tile, ring_smem.at[slot], full.at[slot])

        lax.fori_loop(0, steps, load, None)

        def drain(step, _):  # who waits for a barrier waits for each of its phases
            plgpu.barrier_wait(empty.at[lax.rem(step, SLOTS)])

        lax.fori_loop(steps - SLOTS, steps, drain, None)

    @pl.when(lax.axis_index("thread") == COMPUTE)
    def compute_thread():
        def add(step, acc):
            slot = lax.rem(step, SLOTS)
            # The barrier that says it has landed: Pallas counts the phases.
            plgpu.barrier_wait(full.at[slot])
            tile = plgpu.load(ring_smem.at[slot], layout=plgpu.Layout.WGMMA)
            # The release: a fence after the reads, then one arrival of the thread.
            plgpu.commit_smem()
            plgpu.barrier_arrive(empty.at[slot])
            return acc + tile

        zeros = jnp.zeros((ROWS, COLUMNS), jnp.float32)
        acc = plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)
        sums_gmem[rows] = lax.fori_loop(0, steps, add, acc).sum(axis=1)


def row_sums(x: jax.Array) -> jax.Array:
    """The sum of each row of x, float32, whose shape is of whole tiles, two or more a row."""
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape[:1], jnp.float32),
        grid=(x.shape[0] // ROWS,),
        grid_names=("block",),
        num_threads=2,
        thread_name="thread",
        scratch_types=[
            # The slot: one of the ring's first axis.
            plgpu.SMEM((SLOTS, ROWS, COLUMNS), jnp.float32, transforms=TILED),
            plgpu.Barrier(num_barriers=SLOTS),  # full
            plgpu.Barrier(num_barriers=SLOTS),  # empty
        ],
    )(x)
