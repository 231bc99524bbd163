"""`RUNGS`: whole matrix products for Blackwell, each with one idea more than the one before.

The model. A rung is a function `rung(a, b, tile)` that calls one kernel: `a @ b` in 16 bits, summed
in 32. It shows who does what and when; what rungs share is the ring of slots (`Ring`), and from
rung 2 on how sums leave (`store`). From rung 3 on a pair of blocks makes a tile of twice the rows:
each block holds `tile.m` rows of `a` and half the columns of `b`, and the first block, the leader,
starts the products of both.

==========  =========================================================================
barrier     completes when
==========  =========================================================================
produced    both loads of a slot have landed, in a pair those of both blocks
consumed    the product that read the slot has ended: the tensor core arrives
finished    all products of a tile have ended
drained     the sums of a tile are in registers, in a pair in those of both blocks
==========  =========================================================================

`Rung.published` is what JAX's authors measured for their own kernel of a rung, `predicted` what
`pallascope.B200` says of ours. No GPU of this project can run these kernels.

Not covered: sizes that are no multiple of a tile, an inner dimension shorter than the ring, types
of other sizes than 16 bits. Source of what was published: the JAX authors, "Writing
high-performance matrix multiplication kernels for Blackwell" (JAX's documentation), first table:
one B200, float16, 4096 x 4096 times 4096 x 8192, normally distributed numbers, share of the tensor
cores' peak.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope.drawing.player import Player, Setting
from pallascope.machine import Machine
from pipelib_book.climbs import core_busy

TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
#: The product that was published: rows, columns, inner dimension.
SHAPE = 4096, 8192, 4096
#: Operations a second of a B200's tensor cores on 16 bits, as `pallascope.B200` has them.
PEAK = 2.25e15


type Order = Callable[[Any, tuple[int, int], "Tile"], tuple[Any, Any]]


class Tile(NamedTuple):
    """The sizes of a rung.

    Attributes:
      m, n, k: a block's rows and columns of the output, and the length of a step. In a pair each
        block has `m` rows, and both have the same `n` columns.
      slots: of the ring.
      part: columns that are stored at once, from rung 2 on.
      pairs: pairs of blocks that run at once, from rung 4 on.
      width: rows of tiles in a strip, on rung 6.
    """

    m: int = 128
    n: int = 256
    k: int = 64
    slots: int = 3
    part: int = 64
    pairs: int = pallascope.B200.sms // 2
    width: int = 8


def tiled(*shape: int) -> Any:
    """An array of SMEM in the layout that the tensor core reads."""
    return plgpu.SMEM(shape, jnp.float16, transforms=TILED)


def ordered(*count: int) -> Any:
    """Barriers that order the tensor core's work, too."""
    return plgpu.Barrier(num_barriers=count, orders_tensor_core=True)


def of_both(*count: int) -> Any:
    """Barriers of the leader, at which a thread of each block arrives."""
    return plgpu.ClusterBarrier(
        collective_axes=("rank",),
        num_barriers=count,
        orders_tensor_core=True,
        leader_tracked=True,
    )


def slots_of(tile: Tile, blocks: int = 1) -> list[Any]:
    """What a `Ring` is made of: the slots for `a` and `b`, produced, consumed."""
    return [
        tiled(tile.slots, tile.m, tile.k),
        tiled(tile.slots, tile.k, tile.n // blocks),
        plgpu.Barrier(num_arrivals=2, num_barriers=tile.slots),
        ordered(tile.slots),
    ]


class Ring(NamedTuple):
    """The slots of a block; `s` counts all steps that the block makes."""

    a_smem: Any
    b_smem: Any
    produced: Any
    consumed: Any
    pair: bool = False

    def load(self, s, a_tile, b_tile):
        """Loads step `s`, once its slot is free."""
        slots = self.a_smem.shape[0]
        slot, done = lax.rem(s, slots), self.produced.at[lax.rem(s, slots)]

        @pl.when(s >= slots)
        def wait_until_free():
            plgpu.barrier_wait(self.consumed.at[slot])

        rows, columns = (halves(0), halves(1)) if self.pair else ({}, {})
        plgpu.copy_gmem_to_smem(a_tile, self.a_smem.at[slot], done, **rows)
        plgpu.copy_gmem_to_smem(b_tile, self.b_smem.at[slot], done, **columns)

    def multiply(self, s, sums, accumulate):
        """Starts the product of step `s`, whose end frees the slot."""
        slot = lax.rem(s, self.a_smem.shape[0])
        plgpu.barrier_wait(self.produced.at[slot])
        plgpu.tcgen05_mma(
            sums,
            self.a_smem.at[slot],
            self.b_smem.at[slot],
            self.consumed.at[slot],
            accumulate=accumulate,
            collective_axis="rank" if self.pair else None,
        )

    def drain(self, s):
        """Waits until all slots are free, after `s` steps, `slots` at least."""
        slots = self.a_smem.shape[0]
        for number in range(slots):
            free = self.consumed.at[lax.rem(s + number, slots)]
            plgpu.barrier_wait(free)


def halves(axis: int) -> dict[str, Any]:
    """Each block loads half of the axis; the leader's barrier hears of both."""
    return dict(
        collective_axes="rank",
        leader_tracked=plgpu.CopyPartition.PARTITIONED(axis),
    )


def store(sums: Any, o_gmem: Any, o_smem: Any, part: int) -> None:
    """Brings sums from TMEM to GMEM in parts, by two places in SMEM."""
    for number in range(sums.shape[1] // part):
        place, columns = o_smem.at[number % 2], pl.ds(number * part, part)
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        part_of_sums = plgpu.async_load_tmem(sums.at[:, columns])
        place[...] = part_of_sums.astype(place.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(place, o_gmem.at[:, columns])


def rung_0(a: Any, b: Any, tile: Tile) -> Any:
    """One thread and a ring."""
    (m, k), n = a.shape, b.shape[1]
    spec = functools.partial(plgpu.BlockSpec, transforms=TILED, delay_release=1)

    def kernel(a_gmem, b_gmem, o_gmem, o_smem, acc, ended):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def body(indices, a_smem, b_smem):
            (step,) = indices
            parity = lax.rem(step, 2)
            accumulate, mine = step > 0, ended.at[parity]
            plgpu.tcgen05_mma(acc, a_smem, b_smem, mine, accumulate=accumulate)

            @pl.when(step > 0)
            def wait_for_the_product_before():
                plgpu.barrier_wait(ended.at[1 - parity])

        pipelib.emit_pipeline(
            body,
            grid=(k // tile.k,),
            max_concurrent_steps=tile.slots,
            in_specs=[
                spec((tile.m, tile.k), lambda s: (i, s)),
                spec((tile.k, tile.n), lambda s: (s, j)),
            ],
            ordinary_reads=False,
        )(a_gmem, b_gmem)
        plgpu.barrier_wait(ended.at[(k // tile.k - 1) % 2])
        o_smem[...] = plgpu.async_load_tmem(acc).astype(o_smem.dtype)
        plgpu.commit_smem()
        here = pl.ds(i * tile.m, tile.m), pl.ds(j * tile.n, tile.n)
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // tile.m, n // tile.n),
        grid_names=("i", "j"),
        scratch_types=[
            tiled(tile.m, tile.n),
            plgpu.TMEM((tile.m, tile.n), jnp.float32),
            ordered(2),
        ],
    )(a, b)


def rung_1(a: Any, b: Any, tile: Tile) -> Any:
    """A warp that loads, and a warp that multiplies."""
    (m, k), n = a.shape, b.shape[1]
    steps = k // tile.k

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        ring, (acc, finished, o_smem) = Ring(*scratch[:4]), scratch[4:]
        rows = pl.ds(lax.axis_index("i") * tile.m, tile.m)
        columns = pl.ds(lax.axis_index("j") * tile.n, tile.n)

        def load(s, _):
            ks = pl.ds(s * tile.k, tile.k)
            ring.load(s, a_gmem.at[rows, ks], b_gmem.at[ks, columns])

        def multiply(s, _):
            ring.multiply(s, acc, accumulate=s > 0)

        @plgpu.warp_map
        def roles(warp):
            @pl.when(warp == 0)
            def memory_warp():
                lax.fori_loop(0, steps, load, None)
                ring.drain(steps)

            @pl.when(warp == 1)
            def product_warp():
                lax.fori_loop(0, steps, multiply, None)
                plgpu.tcgen05_commit_arrive(finished)

        plgpu.barrier_wait(finished)
        o_smem[...] = plgpu.async_load_tmem(acc).astype(o_smem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // tile.m, n // tile.n),
        grid_names=("i", "j"),
        scratch_types=[
            *slots_of(tile),
            plgpu.TMEM((tile.m, tile.n), jnp.float32),
            ordered(),
            tiled(tile.m, tile.n),
        ],
    )(a, b)


def rung_2(a: Any, b: Any, tile: Tile) -> Any:
    """The sums leave in parts."""
    (m, k), n = a.shape, b.shape[1]
    steps = k // tile.k

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        ring, (acc, finished, o_smem) = Ring(*scratch[:4]), scratch[4:]
        rows = pl.ds(lax.axis_index("i") * tile.m, tile.m)
        columns = pl.ds(lax.axis_index("j") * tile.n, tile.n)

        def load(s, _):
            ks = pl.ds(s * tile.k, tile.k)
            ring.load(s, a_gmem.at[rows, ks], b_gmem.at[ks, columns])

        def multiply(s, _):
            ring.multiply(s, acc, accumulate=s > 0)

        @plgpu.warp_map
        def roles(warp):
            @pl.when(warp == 0)
            def memory_warp():
                lax.fori_loop(0, steps, load, None)
                ring.drain(steps)

            @pl.when(warp == 1)
            def product_warp():
                lax.fori_loop(0, steps, multiply, None)
                plgpu.tcgen05_commit_arrive(finished)

        plgpu.barrier_wait(finished)
        store(acc, o_gmem.at[rows, columns], o_smem, tile.part)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // tile.m, n // tile.n),
        grid_names=("i", "j"),
        scratch_types=[
            *slots_of(tile),
            plgpu.TMEM((tile.m, tile.n), jnp.float32),
            ordered(),
            tiled(2, tile.m, tile.part),
        ],
    )(a, b)


def rung_3(a: Any, b: Any, tile: Tile) -> Any:
    """Products of two blocks."""
    (m, k), n = a.shape, b.shape[1]
    steps = k // tile.k

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        ring, (acc, finished, o_smem) = Ring(*scratch[:4], pair=True), scratch[4:]
        i, rank = lax.axis_index("i"), lax.axis_index("rank")
        rows = pl.ds(i * 2 * tile.m, 2 * tile.m)  # of the pair
        mine = pl.ds((i * 2 + rank) * tile.m, tile.m)
        columns = pl.ds(lax.axis_index("j") * tile.n, tile.n)

        def load(s, _):
            ks = pl.ds(s * tile.k, tile.k)
            ring.load(s, a_gmem.at[rows, ks], b_gmem.at[ks, columns])

        def multiply(s, _):
            ring.multiply(s, acc, accumulate=s > 0)

        @plgpu.warp_map
        def roles(warp):
            @pl.when(warp == 0)
            def memory_warp():
                lax.fori_loop(0, steps, load, None)
                ring.drain(steps)

            @pl.when((warp == 1) & (rank == 0))
            def product_warp():
                lax.fori_loop(0, steps, multiply, None)
                plgpu.tcgen05_commit_arrive(finished, collective_axis="rank")

        plgpu.barrier_wait(finished)
        store(acc, o_gmem.at[mine, columns], o_smem, tile.part)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // (2 * tile.m), n // tile.n),
        grid_names=("i", "j"),
        cluster=(2,),
        cluster_names=("rank",),
        scratch_types=[
            *slots_of(tile, blocks=2),
            plgpu.TMEM((tile.m, tile.n), jnp.float32, collective=True),
            ordered(),
            tiled(2, tile.m, tile.part),
        ],
    )(a, b)


def by_rows(index: Any, tiles: tuple[int, int], tile: Tile) -> tuple[Any, Any]:
    """Tile number `index`: along a row of tiles, then the next row."""
    return index // tiles[1], lax.rem(index, tiles[1])


def in_strips(index: Any, tiles: tuple[int, int], tile: Tile) -> tuple[Any, Any]:
    """Along a strip of `tile.width` rows of tiles, and back along the next."""
    return plgpu.planar_snake(index, tiles, 0, tile.width)


def rung_4(a: Any, b: Any, tile: Tile) -> Any:
    """Persistent pairs."""
    (m, k), n = a.shape, b.shape[1]
    tiles, steps = (m // (2 * tile.m), n // tile.n), k // tile.k
    every = tiles[0] * tiles[1]
    pairs = min(every, tile.pairs)

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        ring = Ring(*scratch[:4], pair=True)
        acc, finished, drained, o_smem = scratch[4:]
        rank, pair = lax.axis_index("rank"), lax.axis_index("pair")
        count = pl.cdiv(every - pair, pairs)

        def one_tile(number, _):  # the pair's first, second, ... tile
            i, j = by_rows(pair + number * pairs, tiles, tile)
            rows = pl.ds(i * 2 * tile.m, 2 * tile.m)
            mine = pl.ds((i * 2 + rank) * tile.m, tile.m)
            columns = pl.ds(j * tile.n, tile.n)

            def load(step, _):
                s, ks = number * steps + step, pl.ds(step * tile.k, tile.k)
                ring.load(s, a_gmem.at[rows, ks], b_gmem.at[ks, columns])

            def multiply(step, _):
                ring.multiply(number * steps + step, acc, accumulate=step > 0)

            @plgpu.warp_map
            def roles(warp):
                @pl.when(warp == 0)
                def memory_warp():
                    lax.fori_loop(0, steps, load, None)
                    is_last = number == count - 1
                    pl.when(is_last)(lambda: ring.drain(count * steps))

                @pl.when((warp == 1) & (rank == 0))
                def product_warp():
                    lax.fori_loop(0, steps, multiply, None)
                    plgpu.tcgen05_commit_arrive(finished, collective_axis="rank")

            plgpu.barrier_wait(finished)
            store(acc, o_gmem.at[mine, columns], o_smem, tile.part)
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(drained)
            pl.when(rank == 0)(lambda: plgpu.barrier_wait(drained))

        lax.fori_loop(0, count, one_tile, None)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(pairs,),
        grid_names=("pair",),
        cluster=(2,),
        cluster_names=("rank",),
        scratch_types=[
            *slots_of(tile, blocks=2),
            plgpu.TMEM((tile.m, tile.n), jnp.float32, collective=True),
            ordered(),
            of_both(),
            tiled(2, tile.m, tile.part),
        ],
    )(a, b)


def rung_5(a: Any, b: Any, tile: Tile, order: Order = by_rows) -> Any:
    """A thread that stores."""
    (m, k), n = a.shape, b.shape[1]
    tiles, steps = (m // (2 * tile.m), n // tile.n), k // tile.k
    every = tiles[0] * tiles[1]
    pairs = min(every, tile.pairs)

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        ring = Ring(*scratch[:4], pair=True)
        acc, finished, drained, o_smem = scratch[4:]
        rank, pair = lax.axis_index("rank"), lax.axis_index("pair")
        count = pl.cdiv(every - pair, pairs)

        def place(number):
            i, j = order(pair + number * pairs, tiles, tile)
            return i, pl.ds(j * tile.n, tile.n)

        def load_tile(number, _):
            i, columns = place(number)
            rows = pl.ds(i * 2 * tile.m, 2 * tile.m)

            def load(step, _):
                s, ks = number * steps + step, pl.ds(step * tile.k, tile.k)
                ring.load(s, a_gmem.at[rows, ks], b_gmem.at[ks, columns])

            lax.fori_loop(0, steps, load, None)

        def multiply_tile(number, _):
            half = lax.rem(number, 2)
            sums = acc.at[:, pl.ds(half * tile.n, tile.n)]

            def multiply(step, _):
                ring.multiply(number * steps + step, sums, accumulate=step > 0)

            is_used_again = number >= 2
            pl.when(is_used_again)(lambda: plgpu.barrier_wait(drained.at[half]))
            lax.fori_loop(0, steps, multiply, None)
            plgpu.tcgen05_commit_arrive(finished.at[half], collective_axis="rank")

        def store_tile(number, _):
            (i, columns), half = place(number), lax.rem(number, 2)
            mine = pl.ds((i * 2 + rank) * tile.m, tile.m)
            sums = acc.at[:, pl.ds(half * tile.n, tile.n)]
            plgpu.barrier_wait(finished.at[half])
            store(sums, o_gmem.at[mine, columns], o_smem, tile.part)
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(drained.at[half])

        def roles(warp):
            @pl.when(warp == 0)
            def memory_warp():
                lax.fori_loop(0, count, load_tile, None)
                ring.drain(count * steps)

            @pl.when((warp == 1) & (rank == 0))
            def product_warp():
                lax.fori_loop(0, count, multiply_tile, None)
                for number in (count - 2, count - 1):
                    last = drained.at[lax.rem(number + 2, 2)]
                    pl.when(number >= 0)(functools.partial(plgpu.barrier_wait, last))

        thread = lax.axis_index("thread")
        pl.when(thread == 0)(lambda: plgpu.warp_map(roles))

        @pl.when(thread == 1)
        def store_thread():
            lax.fori_loop(0, count, store_tile, None)
            plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(pairs,),
        grid_names=("pair",),
        cluster=(2,),
        cluster_names=("rank",),
        num_threads=2,
        thread_name="thread",
        scratch_types=[
            *slots_of(tile, blocks=2),
            plgpu.TMEM((tile.m, 2 * tile.n), jnp.float32, collective=True),
            ordered(2),
            of_both(2),
            tiled(2, tile.m, tile.part),
        ],
    )(a, b)


def rung_6(a: Any, b: Any, tile: Tile) -> Any:
    """An order of tiles for L2."""
    return rung_5(a, b, tile, order=in_strips)


class Rung(NamedTuple):
    """A rung of the ladder.

    Attributes:
      number, name, idea: the last in one sentence.
      kernel: the function.
      tile: its sizes.
      published: the share of the peak that JAX's authors measured for their kernel of this rung.
    """

    number: int
    name: str
    idea: str
    kernel: Callable[..., Any]
    tile: Tile
    published: float


_APART, _PAIR = Tile(), Tile(slots=6)
RUNGS: tuple[Rung, ...] = (
    Rung(
        0, "one thread and a ring", "Load steps ahead, and keep a product in flight.",
        rung_0, _APART, 0.3762,
    ),
    Rung(
        1, "a warp for each role", "Load ahead in one warp, start products in another.",
        rung_1, _APART, 0.4547,
    ),
    Rung(
        2, "sums leave in parts", "Store some columns while the next ones come from TMEM.",
        rung_2, _APART._replace(slots=4), 0.5582,
    ),
    Rung(
        3, "products of two blocks", "Share the operands of one product between two blocks.",
        rung_3, _PAIR, 0.5941,
    ),
    Rung(
        4, "persistent pairs", "Start as many pairs as run at once, and give each its tiles.",
        rung_4, _PAIR, 0.6146,
    ),
    Rung(
        5, "a thread that stores", "Store a tile while the next one is multiplied.",
        rung_5, _PAIR, 0.6338,
    ),
    Rung(
        6, "an order of tiles", "Make tiles together that load the same.",
        rung_6, _PAIR, 0.6944,
    ),
)  # fmt: skip
#: The shares that were published beside the rungs': of two libraries.
LIBRARIES = {"cuBLAS": 0.6338, "CUTLASS": 0.6930}
#: `pallascope.B200` whose L2 limits nothing.
ENDLESS_L2 = pallascope.B200.changed(
    name="NVIDIA B200 (public figures, L2 without a limit)",
    l2_bytes_per_second=1e15,
    l2_shared_bytes_per_second=1e15,
)


#: One block's or one pair's work in a player: three tiles on a persistent rung, one on the others.
_PLAYED = 256, 768, 512


def play(number: int) -> Player:
    """Plays a rung after the rung before: one block or pair, simulated, with `ENDLESS_L2`.

    Example:
      >>> blackwell_ladder.play(1)
      <Player of 2 timelines, ... bytes>
    """
    shown = range(max(0, number - 1), number + 1)
    title = f"Rung{'s' if number else ''} {' and '.join(map(str, shown))}"
    return pallascope.player([_setting(RUNGS[each], title) for each in shown])


def _setting(rung: Rung, title: str) -> Setting:
    """A rung as a setting of a player."""
    kernel = functools.partial(rung.kernel, tile=rung.tile._replace(pairs=1))
    program = pallascope.trace(kernel, *operands(*_PLAYED)).renamed(title)
    timeline, report = pallascope.simulate(program, ENDLESS_L2), pallascope.check(program)
    outcome = f"{rung.name}: tensor core busy {core_busy(timeline):.0%} of the whole"
    return Setting(
        {"rung": rung.number}, timeline, outcome, report.ok, f"pallascope.check: {report}"
    )


def operands(m: int = SHAPE[0], n: int = SHAPE[1], k: int = SHAPE[2]) -> tuple[Any, Any]:
    """The shapes of two factors; by default of the product that was published."""
    return jax.ShapeDtypeStruct((m, k), jnp.float16), jax.ShapeDtypeStruct((k, n), jnp.float16)


def share(us: float) -> float:
    """The share of the peak that a time of the published product is."""
    m, n, k = SHAPE
    return 2 * m * n * k / (us * 1e-6) / PEAK


def predicted(rung: Rung, machine: Machine = pallascope.B200) -> float:
    """The share of the peak that a machine's model gives a rung: predicted, not validated.

    Example:
      >>> 0.3 < blackwell_ladder.predicted(RUNGS[0]) < 0.6
      True
    """
    kernel = functools.partial(rung.kernel, tile=rung.tile)
    return share(pallascope.predict(kernel, *operands(), machine=machine).us)


def least_rate(rung: Rung, rows: int, columns: int) -> float:
    """Bytes a second that a kernel loads at a rung's published time, if its tiles are such ones.

    Every load of a tile of `rows` x `columns` sums counts: `a` and `b` once for each tile.

    Example:
      >>> wide = blackwell_ladder.least_rate(RUNGS[2], 128, 512)
      >>> wide < blackwell_ladder.least_rate(RUNGS[2], 128, 256)
      True
    """
    m, n, k = SHAPE
    loaded = (m // rows) * (n // columns) * (rows + columns) * k * 2
    return loaded * rung.published * PEAK / (2 * m * n * k)


def first_wave(order: Order, tile: Tile) -> tuple[int, int]:
    """The rows of tiles and the columns of tiles that the first tiles of all pairs are in.

    Each row is a strip of `a` that L2 must have, each column a strip of `b`.

    Example:
      >>> blackwell_ladder.first_wave(blackwell_ladder.by_rows, RUNGS[5].tile)
      (3, 32)
    """
    tiles = SHAPE[0] // (2 * tile.m), SHAPE[1] // tile.n
    places = [order(np.int32(index), tiles, tile) for index in range(tile.pairs)]
    rows, columns = ({int(place[axis]) for place in places} for axis in (0, 1))
    return len(rows), len(columns)
