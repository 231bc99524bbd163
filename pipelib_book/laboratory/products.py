"""Kernels of the laboratory that multiply on the tensor core, for one tile of the output.

The model. A step's product reads a slot of each operand, and adds to an accumulator. It goes on
running after a thread has started it, and its slots are free once it is over. The kernels differ in
what else they do, beside the products or at the end.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.laboratory.parts import (
    SIZE,
    STEPS,
    accumulator,
    drain,
    launch,
    operand_slots,
    product_scratch,
    span,
    two_threads,
)


def product(a: jax.Array, b: jax.Array, slots: int) -> jax.Array:
    """Two slots or more, and a product in flight while the next tiles are loaded."""

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, full):
        def load(k, _=None):
            slot = lax.rem(k, slots)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, span(k)], a_smem.at[slot], full.at[slot])
            plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

        def multiply(sums):
            def step(k, _):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(1)
                ahead = k + slots - 1  # its slot is that of the product before
                pl.when((k > 0) & (ahead < STEPS))(lambda: load(ahead))

            lax.fori_loop(0, STEPS, step, None)
            return sums[...]

        lax.fori_loop(0, slots, load, None)
        o_gmem[...] = pl.run_scoped(multiply, accumulator())

    tiles = operand_slots(slots)
    barrier = plgpu.Barrier(num_arrivals=2, num_barriers=slots)
    return launch(kernel, (SIZE, SIZE), a, b, scratch_types=[tiles, tiles, barrier])


def squares(a: jax.Array, b: jax.Array, slots: int) -> jax.Array:
    """A product, and the sums of squares of its rows as a carry in registers."""
    steps = a.shape[1] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free):
        def multiply(sums):
            def step(k, total):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(0)
                tile = plgpu.load(a_smem.at[slot], layout=plgpu.Layout.WGMMA)
                total += (tile.astype(jnp.float32) ** 2).sum(axis=1)
                plgpu.commit_smem()
                plgpu.barrier_arrive(free.at[slot])
                return total

            total = lax.fori_loop(0, steps, step, jnp.zeros((SIZE,), jnp.float32))
            return sums[...] * lax.broadcast_in_dim(lax.rsqrt(total), (SIZE, SIZE), (0,))

        def compute():
            out[...] = pl.run_scoped(multiply, accumulator())
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem)
            plgpu.wait_smem_to_gmem(0)

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, span(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, steps, step, None)
            drain(free, steps, slots)

        two_threads(compute, load)

    return launch(
        kernel,
        (SIZE, SIZE),
        a,
        b,
        num_threads=2,
        thread_name="thread",
        scratch_types=product_scratch(slots),
    )


def product_and_sum(a: jax.Array, b: jax.Array, c: jax.Array, slots: int) -> jax.Array:
    """A product with a wait too many in each step, and a tile that is added, loaded last.

    A step releases the slot of the step before, so there are two slots or more.
    """
    steps = a.shape[1] // SIZE

    def kernel(a_gmem, b_gmem, c_gmem, o_gmem, a_smem, b_smem, c_smem, full, free, here):
        def multiply(sums):
            def step(k, _):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(1)
                before = lax.rem(k + slots - 1, slots)
                pl.when(k > 0)(lambda: plgpu.barrier_arrive(free.at[before]))
                plgpu.wgmma_wait(0)

            lax.fori_loop(0, steps, step, None)
            return sums[...]

        def compute():
            result = pl.run_scoped(multiply, accumulator())
            plgpu.barrier_wait(here)
            added = plgpu.load(c_smem, layout=plgpu.Layout.WGMMA)
            o_gmem[...] = result + added

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, span(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

            def wait_for_the_last(k, _):
                plgpu.barrier_wait(free.at[lax.rem(k, slots)])

            lax.fori_loop(0, steps, step, None)
            lax.fori_loop(steps - slots, steps - 1, wait_for_the_last, None)
            plgpu.copy_gmem_to_smem(c_gmem.at[span(0)], c_smem, here)

        two_threads(compute, load)

    return launch(
        kernel,
        (SIZE, SIZE),
        a,
        b,
        c,
        num_threads=2,
        thread_name="thread",
        scratch_types=[*product_scratch(slots), plgpu.Barrier()],
    )


def gated(a: jax.Array, b: jax.Array, gate: jax.Array, slots: int) -> jax.Array:
    """A product times a gate, which comes in halves, as the result leaves."""
    steps, half = a.shape[1] // SIZE, SIZE // 2

    def kernel(a_gmem, b_gmem, gate_gmem, o_gmem, a_smem, b_smem, tile, full, free, here):
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
            for first in (0, half):
                rows = pl.ds(first, half)
                plgpu.copy_gmem_to_smem(gate_gmem.at[rows], tile.at[rows], here)
            result = pl.run_scoped(multiply, accumulator())
            plgpu.barrier_wait(here)
            for first in (0, half):
                rows = pl.ds(first, half)
                part = plgpu.load(tile.at[rows], layout=plgpu.Layout.WGMMA)
                tile[rows] = result[first : first + half] * part
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(tile.at[rows], o_gmem.at[rows])
                plgpu.wait_smem_to_gmem(0)

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, span(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[span(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, steps, step, None)
            drain(free, steps, slots)

        two_threads(compute, load)

    return launch(
        kernel,
        (SIZE, SIZE),
        a,
        b,
        gate,
        num_threads=2,
        thread_name="thread",
        scratch_types=[*product_scratch(slots), plgpu.Barrier(num_arrivals=2)],
    )
