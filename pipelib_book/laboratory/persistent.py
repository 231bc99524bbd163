"""Kernels of the laboratory whose block makes one tile of the output after the other.

The model. Slots and barriers outlive a tile, so a tile's first loads need the releases of the tile
before. `two_tiles` waits for all of them between the tiles. `stored_apart` counts its steps through
all tiles. `second_wave` does neither, which is its fault.
"""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.laboratory.parts import (
    SIZE,
    STEPS,
    accumulator,
    drain,
    launch,
    product_scratch,
    span,
    tile_slots,
    two_threads,
    zeros,
)


def two_tiles(a: jax.Array, b: jax.Array, slots: int) -> jax.Array:
    """Two tiles of the output, one after the other, through the same slots."""
    steps, rows = a.shape[1] // SIZE, a.shape[0] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free):
        def multiply(sums):
            def step(k, _):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, steps, step, None)
            return sums[...]

        def compute():
            def tile(i, _):
                result = pl.run_scoped(multiply, accumulator())
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                out[...] = result
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out, o_gmem.at[span(i)])
                plgpu.wait_smem_to_gmem(0)

            lax.fori_loop(0, rows, tile, None)

        def load():
            def tile(i, _):
                def step(k, _):
                    slot = lax.rem(k, slots)
                    pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                    a_tile = a_gmem.at[span(i), span(k)]
                    plgpu.copy_gmem_to_smem(a_tile, a_smem.at[slot], full.at[slot])
                    plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

                lax.fori_loop(0, steps, step, None)
                drain(free, steps, slots)

            lax.fori_loop(0, rows, tile, None)

        two_threads(compute, load)

    return launch(
        kernel,
        (rows * SIZE, SIZE),
        a,
        b,
        num_threads=2,
        thread_name="thread",
        scratch_types=product_scratch(slots),
    )


def stored_apart(a: jax.Array, b: jax.Array, slots: int) -> jax.Array:
    """A thread that loads, one that multiplies, and one that stores."""
    steps, rows = a.shape[1] // SIZE, a.shape[0] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free, finished, drained):
        def multiply(i, sums):
            def step(k, _):
                slot = lax.rem(i * steps + k, slots)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, steps, step, None)
            out[...] = sums[...]
            plgpu.commit_smem()
            plgpu.barrier_arrive(finished)

        def compute():
            def tile(i, _):
                def with_room(sums):
                    pl.when(i > 0)(lambda: plgpu.barrier_wait(drained))
                    multiply(i, sums)

                pl.run_scoped(with_room, accumulator())

            lax.fori_loop(0, rows, tile, None)
            plgpu.barrier_wait(drained)

        def store():
            def tile(i, _):
                plgpu.barrier_wait(finished)
                plgpu.copy_smem_to_gmem(out, o_gmem.at[span(i)])
                plgpu.wait_smem_to_gmem(0)
                plgpu.barrier_arrive(drained)

            lax.fori_loop(0, rows, tile, None)

        def load():
            def step(s, _):
                k, slot = lax.rem(s, steps), lax.rem(s, slots)
                pl.when(s >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                a_tile = a_gmem.at[span(lax.div(s, steps)), span(k)]
                plgpu.copy_gmem_to_smem(a_tile, a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, rows * steps, step, None)
            drain(free, rows * steps, slots)

        thread = lax.axis_index("thread")
        for number, role in enumerate((compute, load, store)):
            pl.when(thread == number)(role)

    return launch(
        kernel,
        (rows * SIZE, SIZE),
        a,
        b,
        num_threads=3,
        thread_name="thread",
        scratch_types=[*product_scratch(slots), plgpu.Barrier(), plgpu.Barrier()],
    )


def second_wave(x: jax.Array, slots: int) -> jax.Array:
    """Two rows of three tiles. The second row's first loads ask nobody: its fault."""
    rows = 2
    steps = STEPS // rows

    def kernel(x_gmem, o_gmem, tiles, full, free):
        def compute():
            def row(i, _):
                def step(k, total):
                    slot = lax.rem(k, slots)
                    plgpu.barrier_wait(full.at[slot])
                    total += tiles[slot]
                    plgpu.commit_smem()
                    plgpu.barrier_arrive(free.at[slot])
                    return total

                o_gmem[span(i)] = lax.fori_loop(0, steps, step, zeros())

            lax.fori_loop(0, rows, row, None)

        def load():
            def row(i, _):
                def step(k, _):
                    slot = lax.rem(k, slots)
                    pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                    tile = x_gmem.at[span(i * steps + k)]
                    plgpu.copy_gmem_to_smem(tile, tiles.at[slot], full.at[slot])

                lax.fori_loop(0, steps, step, None)

            lax.fori_loop(0, rows, row, None)
            for slot in range(slots):
                plgpu.barrier_wait(free.at[slot])

        two_threads(compute, load)

    return launch(
        kernel,
        (rows * SIZE, SIZE),
        x,
        num_threads=2,
        thread_name="thread",
        scratch_types=[
            tile_slots(slots),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_barriers=slots),
        ],
    )
