"""The kernels that the laboratory page begins with: small, and by hand.

The model. Each has a block of 2 to 8 steps, in tiles of 64 x 64, so that a reader sees all of its
operations. What synchronises stands on lines of its own: there it can be taken away. A page shows
their programs; nobody runs them. The first five are as they should be. Later ones are right but
slower than need be, or more careful: challenges ask for what is left to gain. Two have faults of
other people's code, to be mended.
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
from pipelib_book.wild import WILD

STEPS, SLOTS, SIZE = 6, 2, 64
LAYOUT = plgpu.Layout.WG_STRIDED((SIZE, SIZE), vec_size=2)
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


class Subject(NamedTuple):
    """A kernel of the page.

    Attributes:
      name: as links have it.
      title, summary: what it is called, and what it is about.
      trace: traces it; where there are `slots`, with another number of slots, too.
      slots: the numbers of slots that the page offers; it begins with the first.
      is_right: whether it has no fault to begin with.
    """

    name: str
    title: str
    summary: str
    trace: Callable[..., Program]
    slots: tuple[int, ...] = ()
    is_right: bool = True


def subjects() -> list[Subject]:
    """The kernels of the page, in its order."""
    return [*_first(), *_with_room(), *_of_attention(), *_of_the_end(), *_of_others()]


def _first() -> list[Subject]:
    """Kernels with one thing each to look at."""
    tiles = _array(STEPS, dtype=jnp.float32)
    a, b = _operands(STEPS)
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
            lambda slots=SLOTS: pipelib.trace(lambda x: ring(x, slots=slots), tiles),
            slots=(2, 1, 3, 4),
        ),
        Subject(
            "two-readers", "Two compute threads",
            "The same ring, with two threads that both read each tile: a slot is free when both"
            " have said so.",
            lambda slots=SLOTS: pipelib.trace(lambda x: two_readers(x, slots), tiles),
            slots=(2, 1, 3, 4),
        ),
        Subject(
            "product", "A product in flight",
            "One thread multiplies tile by tile on the tensor core. While a product runs, the next"
            " tile is loaded, into a slot whose product is over.",
            lambda slots=3: pipelib.trace(lambda a, b: product(a, b, slots), a, b),
            slots=(3, 2, 4),
        ),
        Subject(
            "stores", "Tiles on their way out",
            "One thread writes tiles into two slots, and TMA stores them. A slot is written again"
            " once its store has read it.",
            lambda slots=SLOTS: pipelib.trace(lambda x: stores(x, slots), tiles),
            slots=(2, 1, 3),
        ),
    ]  # fmt: skip


def _with_room() -> list[Subject]:
    """Kernels that can be faster, or wait less."""
    tiles = _array(STEPS, dtype=jnp.float32)
    return [
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


def _of_attention() -> list[Subject]:
    """Kernels of attention, forward and backward."""
    one, two, three = _array(), _array(2), _array(3)
    return [
        Subject(
            "turns", "Two threads that take turns",
            "Attention without the softmax's sums. A memory thread loads keys and values. Two"
            " compute threads, each with queries of its own, take turns at the product with the"
            " keys.",
            lambda: pipelib.trace(turns, two, two, two),
        ),
        Subject(
            "queries", "From queries to queries",
            "Attention in a persistent block: it has two tiles of queries, one after the other. A"
            " memory thread loads queries, keys and values.",
            lambda: pipelib.trace(queries, two, two, two),
        ),
        Subject(
            "gradients", "Gradients of keys and values",
            "A step loads queries and the result's gradient, makes the probabilities and their"
            " gradient anew, and adds to the gradients of a tile of values (`dv`) and of keys"
            " (`dk`).",
            lambda: pipelib.trace(gradients, three, three, one, one),
        ),
    ]  # fmt: skip


def _of_the_end() -> list[Subject]:
    """Kernels about how a tile, or a launch, ends."""
    tile, tiles = _array(dtype=jnp.float32), _array(STEPS, dtype=jnp.float32)
    return [
        Subject(
            "gated", "A product and its gate",
            "A product is multiplied by a gate, element by element. The gate comes early, in"
            " halves, and the result leaves in halves, from the same memory.",
            lambda: pipelib.trace(gated, *_operands(4), tile),
        ),
        Subject(
            "link", "One launch after another",
            "A kernel of a chain: it waits for the kernel before it (`grid_wait`), lets the next"
            " one start (`grid_signal`), and doubles tiles.",
            lambda: pipelib.trace(link, tiles),
        ),
        Subject(
            "stored-apart", "A thread that stores",
            "One thread loads, one multiplies, one stores, as on Blackwell. But this is a kernel"
            " for Hopper, since others cannot be traced yet. `finished` and `drained` are barriers"
            " between the last two.",
            lambda: pipelib.trace(stored_apart, *_operands(2, rows=3)),
        ),
    ]  # fmt: skip


def _of_others() -> list[Subject]:
    """Small kernels with faults of public ones."""
    return [
        Subject(
            "second-wave", "With a fault: the second wave",
            "After a pass of the tilelang compiler. A persistent block adds up two rows of tiles,"
            " one after the other, in a ring of two slots.",
            lambda: pipelib.trace(second_wave, _array(STEPS, dtype=jnp.float32)), is_right=False,
        ),
        Subject(
            "last-slot", "With a fault: a tile's last slot",
            "By JAX's warp-specialized emitter, two tiles through the same slots. A step releases"
            " the slot of the step before.",
            lambda: WILD["next-tile"].program(fixed=False), is_right=False,
        ),
    ]  # fmt: skip


def _operands(steps: int, rows: int = 1) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The two matrices of a product of so many steps, and of so many tiles below each other."""
    return _array(rows, steps), _array(steps)


def _array(rows: int = 1, columns: int = 1, dtype: Any = jnp.float16) -> jax.ShapeDtypeStruct:
    """An array of so many tiles below and beside each other."""
    return jax.ShapeDtypeStruct((rows * SIZE, columns * SIZE), dtype)


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


def ring(x: jax.Array, readers: int = 1, slots: int = SLOTS) -> jax.Array:
    """A memory thread that loads, and compute threads that read each tile."""

    def read(o_gmem, tiles, full, free, reader):
        def step(k, total):
            slot = lax.rem(k, slots)
            plgpu.barrier_wait(full.at[slot])
            total += tiles[slot]
            plgpu.commit_smem()
            plgpu.barrier_arrive(free.at[slot])
            return total

        o_gmem[_rows(reader)] = lax.fori_loop(0, STEPS, step, _zeros())

    def load(x_gmem, tiles, full, free):
        def step(k, _):
            slot = lax.rem(k, slots)

            @pl.when(k >= slots)
            def wait_until_free():
                plgpu.barrier_wait(free.at[slot])

            plgpu.copy_gmem_to_smem(x_gmem.at[_rows(k)], tiles.at[slot], full.at[slot])

        def wait_for_the_last(k, _):
            plgpu.barrier_wait(free.at[lax.rem(k, slots)])

        lax.fori_loop(0, STEPS, step, None)
        lax.fori_loop(STEPS, STEPS + slots, wait_for_the_last, None)

    def kernel(x_gmem, o_gmem, tiles, full, free):
        thread = lax.axis_index("thread")
        for reader in range(readers):
            pl.when(thread == reader)(lambda r=reader: read(o_gmem, tiles, full, free, r))
        pl.when(thread == readers)(lambda: load(x_gmem, tiles, full, free))

    return _launch(
        kernel, (readers * SIZE, SIZE), x, num_threads=readers + 1, thread_name="thread",
        scratch_types=[
            _tiles(slots),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_arrivals=readers, num_barriers=slots),
        ],
    )  # fmt: skip


def two_readers(x: jax.Array, slots: int = SLOTS) -> jax.Array:
    """The ring with two compute threads."""
    return ring(x, 2, slots)


def product(a: jax.Array, b: jax.Array, slots: int = 3) -> jax.Array:
    """Two slots or more, and a product in flight while the next tiles are loaded."""

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


def stores(x: jax.Array, slots: int = SLOTS) -> jax.Array:
    """Slots on their way out: read a tile, write it doubled, store it."""

    def kernel(x_gmem, o_gmem, tiles):
        def step(k, _):
            slot = lax.rem(k, slots)
            plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
            tiles[slot] = 2.0 * plgpu.load(x_gmem.at[_rows(k)], optimized=False)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tiles.at[slot], o_gmem.at[_rows(k)])

        lax.fori_loop(0, STEPS, step, None)
        plgpu.wait_smem_to_gmem(0)

    return _launch(kernel, x.shape, x, scratch_types=[_tiles(slots)])


def _slots(number: int) -> Any:
    """Slots of tiles that the tensor core reads."""
    return plgpu.SMEM((number, SIZE, SIZE), jnp.float16, transforms=TILED)


def _operand() -> Any:
    """One tile that the tensor core reads."""
    return plgpu.SMEM((SIZE, SIZE), jnp.float16, transforms=TILED)


def _result() -> Any:
    """A tile as it is stored."""
    return plgpu.SMEM((SIZE, SIZE), jnp.float32)


def _of_products(slots: int) -> list[Any]:
    """Scratch memory: slots of both operands, a tile beside them, and the slots' barriers."""
    return [
        _slots(slots), _slots(slots), _result(),
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


def turns(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Two threads, a tile of queries each, that take turns on the tensor core."""
    steps = k.shape[0] // SIZE

    def kernel(
        q_gmem, k_gmem, v_gmem, o_gmem, q_smem, p_smem, k_smem, v_smem,
        q_in, k_in, v_in, k_out, v_out, turn,
    ):  # fmt: skip
        def scores_of(me):
            def multiply(scores):
                plgpu.barrier_wait(turn.at[me])
                plgpu.wgmma(scores, q_smem.at[me], k_smem.transpose((1, 0)))
                plgpu.barrier_arrive(turn.at[1 - me])
                return scores[...]

            return pl.run_scoped(multiply, _accumulator())

        def attend(me):
            def step(sums):
                plgpu.barrier_wait(k_in)
                p_smem[me] = jnp.exp(scores_of(me)).astype(jnp.float16)
                plgpu.commit_smem()
                plgpu.barrier_wait(v_in)
                plgpu.wgmma(sums, p_smem.at[me], v_smem)
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(k_out)
                plgpu.barrier_arrive(v_out)

            def all_steps(sums):
                lax.fori_loop(0, steps, lambda _, __: step(sums), None)
                return sums[...]

            plgpu.copy_gmem_to_smem(q_gmem.at[_rows(me)], q_smem.at[me], q_in.at[me])
            plgpu.barrier_wait(q_in.at[me])
            if me == 1:  # the first turn is the other's
                plgpu.barrier_arrive(turn.at[0])
            o_gmem[_rows(me)] = pl.run_scoped(all_steps, _accumulator())
            if me == 0:  # and the last, too
                plgpu.barrier_wait(turn.at[0])

        def load():
            def step(s, _):
                pl.when(s > 0)(lambda: plgpu.barrier_wait(k_out))
                plgpu.copy_gmem_to_smem(k_gmem.at[_rows(s)], k_smem, k_in)
                pl.when(s > 0)(lambda: plgpu.barrier_wait(v_out))
                plgpu.copy_gmem_to_smem(v_gmem.at[_rows(s)], v_smem, v_in)

            lax.fori_loop(0, steps, step, None)
            plgpu.barrier_wait(k_out)
            plgpu.barrier_wait(v_out)

        thread = lax.axis_index("thread")
        for me in range(2):
            pl.when(thread == me)(lambda me=me: attend(me))
        pl.when(thread == 2)(load)

    by_both = plgpu.Barrier(num_arrivals=2)
    return _launch(
        kernel, q.shape, q, k, v, num_threads=3, thread_name="thread",
        scratch_types=[
            _slots(2), _slots(2), _operand(), _operand(), plgpu.Barrier(num_barriers=2),
            plgpu.Barrier(), plgpu.Barrier(), by_both, by_both, plgpu.Barrier(num_barriers=2),
        ],
    )  # fmt: skip


def queries(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """A block that goes on to the next queries, whose load waits until the last are done."""
    steps, tiles = k.shape[0] // SIZE, q.shape[0] // SIZE

    def kernel(
        q_gmem, k_gmem, v_gmem, o_gmem, q_smem, p_smem, k_smem, v_smem, out,
        q_in, k_in, v_in, q_out, k_out, v_out,
    ):  # fmt: skip
        def multiply(scores):
            plgpu.wgmma(scores, q_smem, k_smem.transpose((1, 0)))
            return scores[...]

        def step(sums):
            plgpu.barrier_wait(k_in)
            scores = pl.run_scoped(multiply, _accumulator())
            plgpu.barrier_arrive(k_out)
            p_smem[...] = jnp.exp(scores).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.barrier_wait(v_in)
            plgpu.wgmma(sums, p_smem, v_smem)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(v_out)

        def tile(i, sums):
            plgpu.barrier_wait(q_in)
            lax.fori_loop(0, steps, lambda _, __: step(sums), None)
            out[...] = sums[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem.at[_rows(i)])
            plgpu.wait_smem_to_gmem(0)
            plgpu.barrier_arrive(q_out)

        def compute():
            def one(i, _):
                pl.run_scoped(lambda sums: tile(i, sums), _accumulator())

            lax.fori_loop(0, tiles, one, None)

        def load():
            def step(s, i):
                pl.when((i > 0) | (s > 0))(lambda: plgpu.barrier_wait(k_out))
                plgpu.copy_gmem_to_smem(k_gmem.at[_rows(s)], k_smem, k_in)
                pl.when((i > 0) | (s > 0))(lambda: plgpu.barrier_wait(v_out))
                plgpu.copy_gmem_to_smem(v_gmem.at[_rows(s)], v_smem, v_in)
                return i

            def tile(i, _):
                pl.when(i > 0)(lambda: plgpu.barrier_wait(q_out))
                plgpu.copy_gmem_to_smem(q_gmem.at[_rows(i)], q_smem, q_in)
                lax.fori_loop(0, steps, step, i)

            lax.fori_loop(0, tiles, tile, None)
            for last in (q_out, k_out, v_out):
                plgpu.barrier_wait(last)

        _both(compute, load)

    return _launch(
        kernel, q.shape, q, k, v, num_threads=2, thread_name="thread",
        scratch_types=[*[_operand()] * 4, _result(), *[plgpu.Barrier()] * 6],
    )  # fmt: skip


def gradients(
    q: jax.Array, g: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The gradients of a tile of keys and of values, without the softmax's sums."""
    steps = q.shape[0] // SIZE

    def kernel(
        q_gmem, g_gmem, k_gmem, v_gmem, dk_gmem, dv_gmem,
        q_smem, g_smem, k_smem, v_smem, p_smem, ds_smem, keys, full, free,
    ):  # fmt: skip
        def step(s, dk, dv):
            def multiply(scores, dp):
                plgpu.wgmma(scores, q_smem, k_smem.transpose((1, 0)))
                plgpu.wgmma(dp, g_smem, v_smem.transpose((1, 0)))
                return scores[...], dp[...]

            plgpu.barrier_wait(full)
            scores, dp = pl.run_scoped(multiply, _accumulator(), _accumulator())
            p = jnp.exp(scores)
            p_smem[...] = p.astype(jnp.float16)
            plgpu.commit_smem()
            ds_smem[...] = (p * dp).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.wgmma(dv, p_smem.transpose((1, 0)), g_smem)
            plgpu.wgmma(dk, ds_smem.transpose((1, 0)), q_smem)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(free)

        def all_steps(dk, dv):
            lax.fori_loop(0, steps, lambda s, _: step(s, dk, dv), None)
            dk_gmem[...] = dk[...]
            dv_gmem[...] = dv[...]

        def compute():
            plgpu.barrier_wait(keys)
            pl.run_scoped(all_steps, _accumulator(), _accumulator())

        def load():
            def step(s, _):
                pl.when(s > 0)(lambda: plgpu.barrier_wait(free))
                plgpu.copy_gmem_to_smem(q_gmem.at[_rows(s)], q_smem, full)
                plgpu.copy_gmem_to_smem(g_gmem.at[_rows(s)], g_smem, full)

            plgpu.copy_gmem_to_smem(k_gmem, k_smem, keys)
            plgpu.copy_gmem_to_smem(v_gmem, v_smem, keys)
            lax.fori_loop(0, steps, step, None)
            plgpu.barrier_wait(free)

        _both(compute, load)

    out = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)
    by_two = plgpu.Barrier(num_arrivals=2)
    return plgpu.kernel(
        kernel, out_type=(out, out), num_threads=2, thread_name="thread",
        scratch_types=[*[_operand()] * 6, by_two, by_two, plgpu.Barrier()],
    )(q, g, k, v)  # fmt: skip


def gated(a: jax.Array, b: jax.Array, gate: jax.Array) -> jax.Array:
    """A product times a gate, which comes in halves, as the result leaves."""
    steps, half = a.shape[1] // SIZE, SIZE // 2

    def kernel(a_gmem, b_gmem, gate_gmem, o_gmem, a_smem, b_smem, tile, full, free, here):
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
            for first in (0, half):
                rows = pl.ds(first, half)
                plgpu.copy_gmem_to_smem(gate_gmem.at[rows], tile.at[rows], here)
            result = pl.run_scoped(multiply, _accumulator())
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
                slot = lax.rem(k, SLOTS)
                pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(a_gmem.at[:, _rows(k)], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, steps, step, None)
            _drain(free, steps)

        _both(compute, load)

    return _launch(
        kernel, (SIZE, SIZE), a, b, gate, num_threads=2, thread_name="thread",
        scratch_types=[*_of_products(SLOTS), plgpu.Barrier(num_arrivals=2)],
    )  # fmt: skip


def link(x: jax.Array) -> jax.Array:
    """One kernel of a chain: it waits for the one before, and lets the next begin."""

    def kernel(x_gmem, o_gmem, tiles, out, full):
        def load(k, _=None):
            slot = lax.rem(k, SLOTS)
            plgpu.copy_gmem_to_smem(x_gmem.at[_rows(k)], tiles.at[slot], full.at[slot])

        def step(k, _):
            slot = lax.rem(k, SLOTS)
            plgpu.barrier_wait(full.at[slot])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            out[...] = 2.0 * tiles[slot]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem.at[_rows(k)])
            pl.when(k + SLOTS < STEPS)(lambda: load(k + SLOTS))

        plgpu.griddepcontrol_wait()
        plgpu.griddepcontrol_launch_dependents()
        lax.fori_loop(0, SLOTS, load, None)
        lax.fori_loop(0, STEPS, step, None)
        plgpu.wait_smem_to_gmem(0)

    return _launch(
        kernel, x.shape, x,
        scratch_types=[_tiles(), _result(), plgpu.Barrier(num_barriers=SLOTS)],
    )  # fmt: skip


def stored_apart(a: jax.Array, b: jax.Array) -> jax.Array:
    """A thread that loads, one that multiplies, and one that stores."""
    steps, rows = a.shape[1] // SIZE, a.shape[0] // SIZE

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, out, full, free, finished, drained):
        def multiply(sums):
            def step(k, _):
                slot = lax.rem(k, SLOTS)
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
                    multiply(sums)

                pl.run_scoped(with_room, _accumulator())

            lax.fori_loop(0, rows, tile, None)
            plgpu.barrier_wait(drained)

        def store():
            def tile(i, _):
                plgpu.barrier_wait(finished)
                plgpu.copy_smem_to_gmem(out, o_gmem.at[_rows(i)])
                plgpu.wait_smem_to_gmem(0)
                plgpu.barrier_arrive(drained)

            lax.fori_loop(0, rows, tile, None)

        def load():
            def step(s, _):
                k, slot = lax.rem(s, steps), lax.rem(s, SLOTS)
                pl.when(s >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                a_tile = a_gmem.at[_rows(lax.div(s, steps)), _rows(k)]
                plgpu.copy_gmem_to_smem(a_tile, a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[_rows(k)], b_smem.at[slot], full.at[slot])

            lax.fori_loop(0, rows * steps, step, None)
            _drain(free, rows * steps)

        thread = lax.axis_index("thread")
        for number, role in enumerate((compute, load, store)):
            pl.when(thread == number)(role)

    return _launch(
        kernel, (rows * SIZE, SIZE), a, b, num_threads=3, thread_name="thread",
        scratch_types=[*_of_products(SLOTS), plgpu.Barrier(), plgpu.Barrier()],
    )  # fmt: skip


def second_wave(x: jax.Array) -> jax.Array:
    """Two rows of three tiles. The second row's first loads ask nobody: its fault."""
    rows = 2
    steps = STEPS // rows

    def kernel(x_gmem, o_gmem, tiles, full, free):
        def compute():
            def row(i, _):
                def step(k, total):
                    slot = lax.rem(k, SLOTS)
                    plgpu.barrier_wait(full.at[slot])
                    total += tiles[slot]
                    plgpu.commit_smem()
                    plgpu.barrier_arrive(free.at[slot])
                    return total

                o_gmem[_rows(i)] = lax.fori_loop(0, steps, step, _zeros())

            lax.fori_loop(0, rows, row, None)

        def load():
            def row(i, _):
                def step(k, _):
                    slot = lax.rem(k, SLOTS)
                    pl.when(k >= SLOTS)(lambda: plgpu.barrier_wait(free.at[slot]))
                    tile = x_gmem.at[_rows(i * steps + k)]
                    plgpu.copy_gmem_to_smem(tile, tiles.at[slot], full.at[slot])

                lax.fori_loop(0, steps, step, None)

            lax.fori_loop(0, rows, row, None)
            for slot in range(SLOTS):
                plgpu.barrier_wait(free.at[slot])

        _both(compute, load)

    return _launch(
        kernel, (rows * SIZE, SIZE), x, num_threads=2, thread_name="thread",
        scratch_types=[
            _tiles(), plgpu.Barrier(num_barriers=SLOTS), plgpu.Barrier(num_barriers=SLOTS),
        ],
    )  # fmt: skip
