"""The kernels that the laboratory page begins with: small, by hand, and without a fault.

The model. Each has a block of 6 steps, in tiles of 64 x 64, so that a reader sees all of its
operations. What synchronises stands on lines of its own: there it can be taken away. A page shows
their programs; nobody runs them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.schedule import Program

STEPS, SLOTS, SIZE = 6, 2, 64
LAYOUT = plgpu.Layout.WG_STRIDED((SIZE, SIZE), vec_size=2)
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


class Subject(NamedTuple):
    """A kernel of the page: what it is called there, what it is about, and how it is traced."""

    name: str
    title: str
    summary: str
    trace: Callable[[], Program]


def subjects() -> list[Subject]:
    """The kernels of the page, in its order."""
    tiles = jax.ShapeDtypeStruct((STEPS * SIZE, SIZE), jnp.float32)
    a = jax.ShapeDtypeStruct((SIZE, STEPS * SIZE), jnp.float16)
    b = jax.ShapeDtypeStruct((STEPS * SIZE, SIZE), jnp.float16)
    return [
        Subject(
            "one-buffer", "One buffer",
            "One thread loads a tile, waits for it and adds it up, six times, through one slot.",
            lambda: pipelib.trace(one_buffer, tiles),
        ),
        Subject(
            "ring", "A ring of two slots",
            "A memory thread loads tiles into two slots, a compute thread adds them up. Two"
            " barriers for each slot say when it is full and when it is free.",
            lambda: pipelib.trace(ring, tiles),
        ),
        Subject(
            "two-readers", "Two compute threads",
            "The same ring, with two threads that both read each tile: a slot is free when both"
            " have said so.",
            lambda: pipelib.trace(two_readers, tiles),
        ),
        Subject(
            "product", "A product in flight",
            "One thread multiplies tile by tile on the tensor core. While a product runs, the next"
            " tile is loaded, into a slot whose product is over.",
            lambda: pipelib.trace(product, a, b),
        ),
        Subject(
            "stores", "Tiles on their way out",
            "One thread writes tiles into two slots, and TMA stores them. A slot is written again"
            " once its store has read it.",
            lambda: pipelib.trace(stores, tiles),
        ),
    ]  # fmt: skip


def _tiles(slots: int = SLOTS) -> Any:
    return plgpu.SMEM((slots, SIZE, SIZE), jnp.float32)


def _rows(step: Any) -> pl.Slice:
    return pl.ds(step * SIZE, SIZE)


def _zeros() -> jax.Array:
    return plgpu.layout_cast(jnp.zeros((SIZE, SIZE), jnp.float32), LAYOUT)


def _launch(kernel: Callable, out: tuple[int, ...], *args: jax.Array, **options: Any) -> jax.Array:
    """One block of the kernel."""
    return plgpu.kernel(kernel, out_type=jax.ShapeDtypeStruct(out, jnp.float32), **options)(*args)


def one_buffer(x: jax.Array) -> jax.Array:
    """Load, wait, add, each after the other."""

    def kernel(x_gmem, o_gmem, tile, full):
        def step(k, total):
            plgpu.copy_gmem_to_smem(x_gmem.at[_rows(k)], tile.at[0], full)
            plgpu.barrier_wait(full)
            total += tile[0]
            plgpu.commit_smem()
            return total

        o_gmem[...] = lax.fori_loop(0, STEPS, step, _zeros())

    return _launch(kernel, (SIZE, SIZE), x, scratch_types=[_tiles(1), plgpu.Barrier()])


def ring(x: jax.Array, readers: int = 1) -> jax.Array:
    """A memory thread that loads, and compute threads that read each tile."""

    def read(o_gmem, tiles, full, free, reader):
        def step(k, total):
            slot = lax.rem(k, SLOTS)
            plgpu.barrier_wait(full.at[slot])
            total += tiles[slot]
            plgpu.commit_smem()
            plgpu.barrier_arrive(free.at[slot])
            return total

        o_gmem[_rows(reader)] = lax.fori_loop(0, STEPS, step, _zeros())

    def load(x_gmem, tiles, full, free):
        def step(k, _):
            slot = lax.rem(k, SLOTS)

            @pl.when(k >= SLOTS)
            def wait_until_free():
                plgpu.barrier_wait(free.at[slot])

            plgpu.copy_gmem_to_smem(x_gmem.at[_rows(k)], tiles.at[slot], full.at[slot])

        def wait_for_the_last(k, _):
            plgpu.barrier_wait(free.at[lax.rem(k, SLOTS)])

        lax.fori_loop(0, STEPS, step, None)
        lax.fori_loop(STEPS, STEPS + SLOTS, wait_for_the_last, None)

    def kernel(x_gmem, o_gmem, tiles, full, free):
        thread = lax.axis_index("thread")
        for reader in range(readers):
            pl.when(thread == reader)(lambda r=reader: read(o_gmem, tiles, full, free, r))
        pl.when(thread == readers)(lambda: load(x_gmem, tiles, full, free))

    return _launch(
        kernel, (readers * SIZE, SIZE), x, num_threads=readers + 1, thread_name="thread",
        scratch_types=[
            _tiles(),
            plgpu.Barrier(num_barriers=SLOTS),
            plgpu.Barrier(num_arrivals=readers, num_barriers=SLOTS),
        ],
    )  # fmt: skip


def two_readers(x: jax.Array) -> jax.Array:
    """The ring with two compute threads."""
    return ring(x, readers=2)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Three slots, and a product in flight while the next tiles are loaded."""
    slots = 3

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, full):
        def load(k, _=None):
            slot = lax.rem(k, slots)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, _rows(k)], a_smem.at[slot], full.at[slot])
            plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

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
        o_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((SIZE, SIZE), jnp.float32))

    tiles = plgpu.SMEM((slots, SIZE, SIZE), jnp.float16, transforms=TILED)
    barrier = plgpu.Barrier(num_arrivals=2, num_barriers=slots)
    return _launch(kernel, (SIZE, SIZE), a, b, scratch_types=[tiles, tiles, barrier])


def stores(x: jax.Array) -> jax.Array:
    """Two slots on their way out: read a tile, write it doubled, store it."""

    def kernel(x_gmem, o_gmem, tiles):
        def step(k, _):
            slot = lax.rem(k, SLOTS)
            plgpu.wait_smem_to_gmem(SLOTS - 1, wait_read_only=True)
            tiles[slot] = 2.0 * plgpu.load(x_gmem.at[_rows(k)], optimized=False)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tiles.at[slot], o_gmem.at[_rows(k)])

        lax.fori_loop(0, STEPS, step, None)
        plgpu.wait_smem_to_gmem(0)

    return _launch(kernel, x.shape, x, scratch_types=[_tiles()])
