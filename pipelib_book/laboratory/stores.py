"""Kernels of the laboratory that store each tile, doubled.

The model. A store goes on reading shared memory after a thread has started it. So a thread waits
for the store before it writes there again. `stores` has slots for tiles on their way out, `through`
and `link` for tiles on their way in.
"""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.laboratory.parts import (
    STEPS,
    drain,
    launch,
    one_tile,
    span,
    tile_slots,
    two_threads,
)


def stores(x: jax.Array, slots: int) -> jax.Array:
    """Slots on their way out: read a tile, write it doubled, store it."""

    def kernel(x_gmem, o_gmem, tiles):
        def step(k, _):
            slot = lax.rem(k, slots)
            plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
            tiles[slot] = 2.0 * plgpu.load(x_gmem.at[span(k)], optimized=False)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tiles.at[slot], o_gmem.at[span(k)])

        lax.fori_loop(0, STEPS, step, None)
        plgpu.wait_smem_to_gmem(0)

    return launch(kernel, x.shape, x, scratch_types=[tile_slots(slots)])


def through(x: jax.Array, slots: int) -> jax.Array:
    """Tiles come in, and leave doubled; each store is waited for before the slot is released."""

    def kernel(x_gmem, o_gmem, tiles, out, full, free):
        def compute():
            def step(k, _):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                out[0] = 2.0 * tiles[slot]
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out.at[0], o_gmem.at[span(k)])
                plgpu.wait_smem_to_gmem(0)
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, STEPS, step, None)

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(x_gmem.at[span(k)], tiles.at[slot], full.at[slot])

            lax.fori_loop(0, STEPS, step, None)
            drain(free, STEPS, slots)

        two_threads(compute, load)

    return launch(
        kernel,
        x.shape,
        x,
        num_threads=2,
        thread_name="thread",
        scratch_types=[
            tile_slots(slots),
            tile_slots(1),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_barriers=slots),
        ],
    )


def link(x: jax.Array, slots: int) -> jax.Array:
    """One kernel of a chain: it waits for the one before, and lets the next begin."""

    def kernel(x_gmem, o_gmem, tiles, out, full):
        def load(k, _=None):
            slot = lax.rem(k, slots)
            plgpu.copy_gmem_to_smem(x_gmem.at[span(k)], tiles.at[slot], full.at[slot])

        def step(k, _):
            slot = lax.rem(k, slots)
            plgpu.barrier_wait(full.at[slot])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            out[...] = 2.0 * tiles[slot]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem.at[span(k)])
            pl.when(k + slots < STEPS)(lambda: load(k + slots))

        plgpu.griddepcontrol_wait()
        plgpu.griddepcontrol_launch_dependents()
        lax.fori_loop(0, slots, load, None)
        lax.fori_loop(0, STEPS, step, None)
        plgpu.wait_smem_to_gmem(0)

    return launch(
        kernel,
        x.shape,
        x,
        scratch_types=[tile_slots(slots), one_tile(), plgpu.Barrier(num_barriers=slots)],
    )
