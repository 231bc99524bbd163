"""Kernels of the laboratory that load tiles and add them up.

The model. A slot's `full` barrier says that its tile has landed. Its `free` barrier says that all
readers are done with it. `one_buffer` needs no `free`, since one thread does everything. In `pair`,
`free` takes arrivals of two blocks.
"""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.laboratory.parts import (
    SIZE,
    STEPS,
    drain,
    launch,
    span,
    tile_slots,
    two_threads,
    zeros,
)


def one_buffer(x: jax.Array) -> jax.Array:
    """Load, wait, add, each after the other."""

    def kernel(x_gmem, o_gmem, tile, full):
        def step(k, total):
            plgpu.copy_gmem_to_smem(x_gmem.at[span(k)], tile.at[0], full)
            plgpu.barrier_wait(full)
            total += tile[0]
            plgpu.commit_smem()
            return total

        o_gmem[...] = lax.fori_loop(0, STEPS, step, zeros())

    return launch(kernel, (SIZE, SIZE), x, scratch_types=[tile_slots(1), plgpu.Barrier()])


def ring(x: jax.Array, slots: int, readers: int = 1) -> jax.Array:
    """A memory thread that loads, and compute threads that read each tile."""

    def read(o_gmem, tiles, full, free, reader):
        def step(k, total):
            slot = lax.rem(k, slots)
            plgpu.barrier_wait(full.at[slot])
            total += tiles[slot]
            plgpu.commit_smem()
            plgpu.barrier_arrive(free.at[slot])
            return total

        o_gmem[span(reader)] = lax.fori_loop(0, STEPS, step, zeros())

    def load(x_gmem, tiles, full, free):
        def step(k, _):
            slot = lax.rem(k, slots)

            @pl.when(k >= slots)
            def wait_until_free():
                plgpu.barrier_wait(free.at[slot])

            plgpu.copy_gmem_to_smem(x_gmem.at[span(k)], tiles.at[slot], full.at[slot])

        def wait_for_the_last(k, _):
            plgpu.barrier_wait(free.at[lax.rem(k, slots)])

        lax.fori_loop(0, STEPS, step, None)
        lax.fori_loop(STEPS, STEPS + slots, wait_for_the_last, None)

    def kernel(x_gmem, o_gmem, tiles, full, free):
        thread = lax.axis_index("thread")
        for reader in range(readers):
            pl.when(thread == reader)(lambda r=reader: read(o_gmem, tiles, full, free, r))
        pl.when(thread == readers)(lambda: load(x_gmem, tiles, full, free))

    return launch(
        kernel,
        (readers * SIZE, SIZE),
        x,
        num_threads=readers + 1,
        thread_name="thread",
        scratch_types=[
            tile_slots(slots),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_arrivals=readers, num_barriers=slots),
        ],
    )


def two_readers(x: jax.Array, slots: int) -> jax.Array:
    """The ring with two compute threads."""
    return ring(x, slots, readers=2)


def pair(x: jax.Array, slots: int) -> jax.Array:
    """Two blocks that load for each other, and add up the same tiles."""
    steps = 4

    def kernel(x_gmem, o_gmem, tiles, full, free):
        def compute():
            def step(k, total):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                total += tiles[slot]
                plgpu.commit_smem()
                plgpu.barrier_arrive(free.at[slot])
                return total

            o_gmem[span(lax.axis_index("pair"))] = lax.fori_loop(0, steps, step, zeros())

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(
                    x_gmem.at[span(k)], tiles.at[slot], full.at[slot], collective_axes="pair"
                )

            lax.fori_loop(0, steps, step, None)
            drain(free, steps, slots)

        two_threads(compute, load)

    return launch(
        kernel, (2 * SIZE, SIZE), x, num_threads=2, thread_name="thread",
        grid=(1,), grid_names=("i",), cluster=(2,), cluster_names=("pair",),
        scratch_types=[
            tile_slots(slots),
            plgpu.Barrier(num_barriers=slots),
            plgpu.ClusterBarrier(collective_axes=("pair",), num_barriers=slots),
        ],
    )  # fmt: skip
