"""The kernels that the laboratory page begins with: small, by hand, and without a fault.

The model. Each has a block of 4 to 8 steps, in tiles of 64 x 64, so that a reader sees all of its
operations. What synchronises stands on lines of its own: there it can be taken away. A page shows
their programs; nobody runs them. The last five are right but slower than need be, or more careful:
challenges ask for what is left to gain.
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
        Subject(
            "squares", "A carry beside a product",
            "A compute thread multiplies each tile on the tensor core, and adds up the squares of"
            " the tile's rows in registers. At the end it divides by them, and stores the result.",
            lambda: pipelib.trace(squares, *_operands(4)),
        ),
        Subject(
            "two-tiles", "Two tiles in one block",
            "A block makes one tile of the output after the other. Slots and barriers outlive the"
            " first, but the memory thread waits for its last releases before it loads for the"
            " second.",
            lambda: pipelib.trace(two_tiles, *_operands(4, rows=2)),
        ),
        Subject(
            "pair", "A cluster of two blocks",
            "Two blocks load each tile together, half of it each, into the memory of both. A slot"
            " is free when both blocks have said so.",
            lambda: pipelib.trace(pair, tiles),
        ),
        Subject(
            "through", "In and out",
            "A memory thread loads tiles, a compute thread doubles them, and TMA stores them. The"
            " compute thread waits for each store at once.",
            lambda: pipelib.trace(through, tiles),
        ),
        Subject(
            "sum", "A product and what is added to it",
            "A memory thread loads, a compute thread multiplies. At the end it adds a tile that is"
            " loaded last.",
            lambda: pipelib.trace(product_and_sum, *_operands(5), tiles),
        ),
    ]  # fmt: skip


def _operands(steps: int, rows: int = 1) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The two matrices of a product of so many steps, and of so many tiles below each other."""
    return (
        jax.ShapeDtypeStruct((rows * SIZE, steps * SIZE), jnp.float16),
        jax.ShapeDtypeStruct((steps * SIZE, SIZE), jnp.float16),
    )


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


def _slots(number: int) -> Any:
    """Slots of tiles that the tensor core reads."""
    return plgpu.SMEM((number, SIZE, SIZE), jnp.float16, transforms=TILED)


def _of_products(slots: int) -> list[Any]:
    """Scratch memory: slots of both operands, a tile beside them, and the slots' barriers."""
    return [
        _slots(slots), _slots(slots), plgpu.SMEM((SIZE, SIZE), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots), plgpu.Barrier(num_barriers=slots),
    ]  # fmt: skip


def _accumulator() -> Any:
    return plgpu.ACC((SIZE, SIZE), jnp.float32)


def _both(compute: Callable[[], None], load: Callable[[], None]) -> None:
    """Gives the compute thread and the memory thread their parts."""
    thread = lax.axis_index("thread")
    pl.when(thread == 0)(compute)
    pl.when(thread == 1)(load)


def squares(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product, and the sums of squares of its rows as a carry in registers."""
    steps = a.shape[1] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free):
        def multiply(sums):
            def step(k, total):
                slot = lax.rem(k, SLOTS)
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
            out[...] = pl.run_scoped(multiply, _accumulator())
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem)
            plgpu.wait_smem_to_gmem(0)

        def load():
            def step(k, _):
                slot = lax.rem(k, SLOTS)
                pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, _rows(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, steps, step, None)
            _drain(free, steps)

        _both(compute, load)

    return _launch(
        kernel, (SIZE, SIZE), a, b, num_threads=2, thread_name="thread",
        scratch_types=_of_products(SLOTS),
    )  # fmt: skip


def _drain(free: Any, steps: int) -> None:
    """The memory thread's waits for the last releases."""

    def wait(k, _):
        plgpu.barrier_wait(free.at[lax.rem(k, SLOTS)])

    lax.fori_loop(steps - SLOTS, steps, wait, None)


def two_tiles(a: jax.Array, b: jax.Array) -> jax.Array:
    """Two tiles of the output, one after the other, through the same slots."""
    steps, rows = a.shape[1] // SIZE, a.shape[0] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free):
        def multiply(sums):
            def step(k, _):
                slot = lax.rem(k, SLOTS)
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, steps, step, None)
            return sums[...]

        def compute():
            def tile(i, _):
                result = pl.run_scoped(multiply, _accumulator())
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                out[...] = result
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out, o_gmem.at[_rows(i)])
                plgpu.wait_smem_to_gmem(0)

            lax.fori_loop(0, rows, tile, None)

        def load():
            def tile(i, _):
                def step(k, _):
                    slot = lax.rem(k, SLOTS)
                    pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                    a_tile = a_gmem.at[_rows(i), _rows(k)]
                    plgpu.copy_gmem_to_smem(a_tile, a_smem.at[slot], full.at[slot])
                    plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

                lax.fori_loop(0, steps, step, None)
                _drain(free, steps)

            lax.fori_loop(0, rows, tile, None)

        _both(compute, load)

    return _launch(
        kernel, (rows * SIZE, SIZE), a, b, num_threads=2, thread_name="thread",
        scratch_types=_of_products(SLOTS),
    )  # fmt: skip


def pair(x: jax.Array) -> jax.Array:
    """Two blocks that load for each other, and add up the same tiles."""
    steps = 4

    def kernel(x_gmem, o_gmem, tiles, full, free):
        def compute():
            def step(k, total):
                slot = lax.rem(k, SLOTS)
                plgpu.barrier_wait(full.at[slot])
                total += tiles[slot]
                plgpu.commit_smem()
                plgpu.barrier_arrive(free.at[slot])
                return total

            o_gmem[_rows(lax.axis_index("pair"))] = lax.fori_loop(0, steps, step, _zeros())

        def load():
            def step(k, _):
                slot = lax.rem(k, SLOTS)
                pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(
                    x_gmem.at[_rows(k)], tiles.at[slot], full.at[slot], collective_axes="pair"
                )

            lax.fori_loop(0, steps, step, None)
            _drain(free, steps)

        _both(compute, load)

    return _launch(
        kernel, (2 * SIZE, SIZE), x, num_threads=2, thread_name="thread",
        grid=(1,), grid_names=("i",), cluster=(2,), cluster_names=("pair",),
        scratch_types=[
            _tiles(),
            plgpu.Barrier(num_barriers=SLOTS),
            plgpu.ClusterBarrier(collective_axes=("pair",), num_barriers=SLOTS),
        ],
    )  # fmt: skip


def through(x: jax.Array) -> jax.Array:
    """Tiles come in, and leave doubled; each store is waited for before the slot is released."""

    def kernel(x_gmem, o_gmem, tiles, out, full, free):
        def compute():
            def step(k, _):
                slot = lax.rem(k, SLOTS)
                plgpu.barrier_wait(full.at[slot])
                out[0] = 2.0 * tiles[slot]
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out.at[0], o_gmem.at[_rows(k)])
                plgpu.wait_smem_to_gmem(0)
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, STEPS, step, None)

        def load():
            def step(k, _):
                slot = lax.rem(k, SLOTS)
                pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(x_gmem.at[_rows(k)], tiles.at[slot], full.at[slot])

            lax.fori_loop(0, STEPS, step, None)
            _drain(free, STEPS)

        _both(compute, load)

    return _launch(
        kernel, x.shape, x, num_threads=2, thread_name="thread",
        scratch_types=[
            _tiles(), _tiles(1), plgpu.Barrier(num_barriers=SLOTS),
            plgpu.Barrier(num_barriers=SLOTS),
        ],
    )  # fmt: skip


def product_and_sum(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """A product with a wait too many in each step, and a tile that is added, loaded last."""
    slots, steps = 3, a.shape[1] // SIZE

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
            result = pl.run_scoped(multiply, _accumulator())
            plgpu.barrier_wait(here)
            added = plgpu.load(c_smem, layout=plgpu.Layout.WGMMA)
            o_gmem[...] = result + added

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, _rows(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

            def wait_for_the_last(k, _):
                plgpu.barrier_wait(free.at[lax.rem(k, slots)])

            lax.fori_loop(0, steps, step, None)
            lax.fori_loop(steps - slots, steps - 1, wait_for_the_last, None)
            plgpu.copy_gmem_to_smem(c_gmem.at[_rows(0)], c_smem, here)

        _both(compute, load)

    return _launch(
        kernel, (SIZE, SIZE), a, b, c, num_threads=2, thread_name="thread",
        scratch_types=[*_of_products(slots), plgpu.Barrier()],
    )  # fmt: skip
