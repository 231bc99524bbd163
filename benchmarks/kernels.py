"""The kernels whose measured times `simulate` is held against, at the sizes that are measured.

Beside them products with the same body by pipelib's emitters and by JAX's (`by_emitter`).

Each is a function of `stamped`: whether every thread also writes the cycle counter, the timer and
its multiprocessor's number, at its start and end, to a second output (block, thread, stamp).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from benchmarks import clocked
from pipelib_book.matmul_ladder import RUNGS

SIZE = 4096
ROWS = 16384
RING_SLOTS, RING_STEPS = 2, 16
#: Columns of a tile that are stored together, where an emitter makes it.
_STAGED_COLUMNS = 64
#: Whose emitters a pipeline is by: pipelib's in two ways, and JAX's own.
UNORDINARY = "pipelib, ordinary_reads=False"
EMITTERS = ("upstream", "pipelib", UNORDINARY)
_CROWD = {True: "", False: ", as many blocks as fit"}  # of an SM, where more than one does
STAMPS = ("clock0", "clock1", "ns0", "ns1", "sm")


class Case(NamedTuple):
    """A kernel to measure and to simulate: `build(stamped)` of inputs of these shapes.

    `l2_hits` is `simulate`'s: 1 for inputs so small that they are in L2 from the launch before.
    """

    name: str
    build: Callable[[bool], Callable[..., Any]]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    l2_hits: float | None = None


def like(*shape: int, dtype: Any = jnp.float16) -> jax.ShapeDtypeStruct:
    """An array of this shape."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _kernel(
    body, out, grid: dict[str, int], stamped: bool, threads: int = 1, scratch=(), **params
) -> Callable[..., Any]:
    """A kernel of `body(*refs)`, stamped or not; `body` is run by each thread."""
    blocks, names = math.prod(grid.values()), tuple(grid)
    out_type = (out, jax.ShapeDtypeStruct((blocks, threads, len(STAMPS)), jnp.int32))

    def run(*refs):
        if not stamped:
            return body(*refs)
        place = len(refs) - len(scratch) - 1
        stamps, refs = refs[place], refs[:place] + refs[place + 1 :]
        first, start = clocked.nanoseconds(), clocked.clock()
        body(*refs)
        values = start, clocked.clock(), first, clocked.nanoseconds()
        sm = clocked._register(mgpu_utils.smid)
        block = functools.reduce(lambda n, a: n * grid[a] + lax.axis_index(a), names, jnp.int32(0))
        thread = lax.axis_index("wg") if threads > 1 else 0
        for i, value in enumerate((*values, sm)):
            stamps[block, thread, i] = value

    wg = (threads, "wg") if threads > 1 else (None, None)
    return plgpu.kernel(
        run,
        out_type=out_type if stamped else out,
        grid=tuple(grid.values()),
        grid_names=names,
        scratch_types=tuple(scratch),
        compiler_params=plgpu.CompilerParams(**params),
        num_threads=wg[0],
        thread_name=wg[1],
    )


class Tiles(NamedTuple):
    """How a product is divided: a block's tile, its steps, and who makes it.

    Attributes:
      m, n, k: the tile of the result, and the columns of a step.
      slots: of operands.
      delay: how many steps a slot is kept for products that may be unfinished.
      threads: compute threads, which divide the rows.
      emitter: one of `EMITTERS`.
    """

    m: int
    n: int = 128
    k: int = 64
    slots: int = 1
    delay: int = 0
    threads: int = 1
    emitter: str = UNORDINARY

    @property
    def rows(self) -> int:
        """Of a compute thread."""
        return self.m // self.threads

    def emit(self, name: str, step: Callable[..., Any], i: Any, j: Any, k: int, **options: Any):
        """The pipeline of a block (i, j) of the grid, of k columns, by the emitter of this name."""
        block = functools.partial(
            plgpu.BlockSpec, transforms=clocked.TILED, delay_release=self.delay
        )
        a, b = block((self.m, self.k), lambda k: (i, k)), block((self.k, self.n), lambda k: (k, j))
        options |= dict(grid=(k // self.k,), in_specs=[a, b], max_concurrent_steps=self.slots)
        if self.emitter == UNORDINARY:
            options["ordinary_reads"] = False
        return getattr(plgpu if self.emitter == "upstream" else pipelib, name)(step, **options)

    def accumulated(self, work: Callable[[Any], Any]) -> jax.Array:
        """The accumulator of a compute thread after some work."""

        def scope(acc):
            work(acc)
            return acc[...]

        return pl.run_scoped(scope, plgpu.ACC((self.rows, self.n), jnp.float32))


#: Stores a thread's accumulator: called with it, the result, its place in SMEM, and the block's
#: place in the grid; if there are several compute threads, also with this one and its rows.
Store = Callable[..., None]


def one_thread(tiles: Tiles, store: Store) -> Callable[..., None]:
    """The body of a product by one compute thread, which loads too."""

    def body(a, b, out, out_smem, *_):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def work(acc):
            def step(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(tiles.delay)

            tiles.emit("emit_pipeline", step, i, j, a.shape[1])(a, b)

        store(tiles.accumulated(work), out, out_smem, i, j)

    return body


def several_threads(tiles: Tiles, axis: str, store: Store) -> Callable[..., None]:
    """The body of a product by compute threads and a memory thread, along an axis of this name."""

    def body(a, b, out, out_smem, *_):
        i, j, thread = (lax.axis_index(name) for name in ("i", "j", axis))
        mine = pl.ds(thread * tiles.rows, tiles.rows)

        def compute_thread(pipeline):
            store(tiles.accumulated(pipeline), out, out_smem, i, j, thread, mine)

        def step(_, a, b, acc):
            plgpu.wgmma(acc, a.at[mine], b)
            plgpu.wgmma_wait(tiles.delay)
            return acc

        name, k = "emit_pipeline_warp_specialized", a.shape[1]
        options: dict[str, Any] = dict(memory_registers=40, num_compute_wgs=tiles.threads)
        options |= dict(wg_axis=axis, compute_context=compute_thread)
        tiles.emit(name, step, i, j, k, **options)(a, b)

    return body


def _product(tiles: Tiles, alone: bool, stamped: bool) -> Callable[..., Any]:
    """A product, whose tiles are stored by way of SMEM."""

    def store(acc, out, out_smem, i, j, thread=None, mine=None):
        staged = out_smem if mine is None else out_smem.at[mine]
        staged[...] = acc.astype(jnp.float16)
        plgpu.commit_smem()
        top = i * tiles.m if thread is None else i * tiles.m + thread * tiles.rows
        plgpu.copy_smem_to_gmem(staged, out.at[pl.ds(top, tiles.rows), pl.ds(j * 128, 128)])
        plgpu.wait_smem_to_gmem(0)

    is_one, used = tiles.threads == 1, tiles.slots * (tiles.m + 128) * 128 + tiles.m * 256
    # Scratch so large that one block fills a multiprocessor.
    pad = plgpu.SMEM((max(1, (120 << 10) - used) // 128, 128), jnp.int8)
    scratch = clocked.swizzled(tiles.m, 128), *[pad] * (alone and used < 116 << 10)
    body = one_thread(tiles, store) if is_one else several_threads(tiles, "wg", store)
    grid = dict(i=SIZE // tiles.m, j=SIZE // 128)
    threads = 1 if is_one else tiles.threads + 1
    return _kernel(body, like(SIZE, SIZE), grid, stamped, threads=threads, scratch=scratch)


def matmul(slots: int, delay: int, alone: bool, stamped: bool) -> Callable[..., Any]:
    """One thread; tiles of 128x128x64."""
    return _product(Tiles(128, slots=slots, delay=delay), alone, stamped)


def specialized(
    slots: int, delay: int, rows: int, alone: bool, stamped: bool
) -> Callable[..., Any]:
    """Two compute threads of `rows` rows each and a memory thread; tiles of 2 rows x 128 x 64."""
    return _product(Tiles(2 * rows, slots=slots, delay=delay, threads=2), alone, stamped)


def by_emitter(a: jax.Array, b: jax.Array, rung: int, emitter: str) -> jax.Array:
    """a @ b with the settings of a rung by one of `EMITTERS`; 16-bit numbers, whole tiles.

    These are the bodies of rungs 1, 2 and 4 of the ladder (`pipelib_book.matmul_ladder`), without
    what `pipelib.kernels.matmul` does besides: one tile for each block, stored at once.
    """
    config = RUNGS[rung].config
    is_ring, (m, _), (_, n) = config.form == "ring", a.shape, b.shape
    sizes = config.tile_m, config.tile_n, config.tile_k, config.slots, config.delay_release
    tiles = Tiles(*sizes, config.compute_threads, emitter)
    store = functools.partial(_store_columns, tiles)
    body = one_thread(tiles, store) if is_ring else several_threads(tiles, "thread", store)
    staged = config.compute_threads, config.rows, _STAGED_COLUMNS
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        grid=(m // tiles.m, n // tiles.n),
        grid_names=("i", "j"),
        num_threads=None if is_ring else config.threads,
        thread_name=None if is_ring else "thread",
        scratch_types=[plgpu.SMEM(staged, a.dtype, transforms=clocked.TILED)],
    )(a, b)


def _store_columns(
    tiles: Tiles, acc: jax.Array, out: Any, out_smem: Any, i: Any, j: Any, *of: Any
) -> None:
    """Stores one thread's rows of a tile, some columns after the other."""
    thread = of[0] if of else 0
    row = i * tiles.m + thread * tiles.rows if of else i * tiles.m
    column, staged = j * tiles.n, out_smem.at[thread]
    for first in range(0, acc.shape[1], _STAGED_COLUMNS):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged[...] = acc[:, first : first + _STAGED_COLUMNS].astype(out.dtype)
        plgpu.commit_smem()
        here = pl.ds(row, acc.shape[0]), pl.ds(column + first, _STAGED_COLUMNS)
        plgpu.copy_smem_to_gmem(staged, out.at[here])
    plgpu.wait_smem_to_gmem(0)


def add_one(slots: int, stamped: bool) -> Callable[..., Any]:
    """x + 1, in blocks of 64x64."""

    def body(x, out):
        i = lax.axis_index("i")

        def step(_, x, out):
            out[...] = x[...] + 1.0

        spec = plgpu.BlockSpec((64, 64), lambda k: (i, k))
        pipelib.emit_pipeline(
            step, grid=(SIZE // 64,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=slots
        )(x, out)

    out = like(ROWS, SIZE, dtype=jnp.float32)
    return _kernel(body, out, dict(i=ROWS // 64), stamped)


def total(slots: int, stamped: bool) -> Callable[..., Any]:
    """The sum over blocks of 64 columns."""

    def body(x, out, sums):
        i, layout = lax.axis_index("i"), plgpu.Layout.WG_STRIDED((64, 64), vec_size=2)
        zeros = plgpu.layout_cast(jnp.zeros((64, 64), jnp.float32), layout)
        spec = plgpu.BlockSpec((64, 64), lambda k: (i, k))
        sums[...] = pipelib.emit_pipeline(
            lambda _, x, carry: carry + x[...],
            grid=(SIZE // 64,),
            in_specs=[spec],
            max_concurrent_steps=slots,
            init_carry=zeros,
        )(x)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sums, out.at[pl.ds(i * 64, 64)])
        plgpu.wait_smem_to_gmem(0)

    out = like(ROWS, 64, dtype=jnp.float32)
    scratch = (plgpu.SMEM((64, 64), jnp.float32),)
    return _kernel(body, out, dict(i=ROWS // 64), stamped, scratch=scratch)


def ring(slots: int, steps: int, stamped: bool, **params) -> Callable[..., Any]:
    """A matrix product by hand, with a named scope around each thing that its threads do."""

    def memory_thread(a, b, a_smem, b_smem, produced, consumed):
        def step(k, _):
            slot = lax.rem(k, jnp.int32(slots))
            with jax.named_scope("wait consumed"):
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            with jax.named_scope("load"):
                here = pl.ds(k * 64, 64)
                plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced.at[slot])
                plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced.at[slot])

        lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, None)

    def compute_thread(out, out_smem, a_smem, b_smem, produced, consumed):
        def scope(acc):
            def step(k, _):
                slot = lax.rem(k, jnp.int32(slots))
                with jax.named_scope("wait produced"):
                    plgpu.barrier_wait(produced.at[slot])
                with jax.named_scope("multiply"):
                    plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                    plgpu.wgmma_wait(0)
                with jax.named_scope("release"):
                    plgpu.barrier_arrive(consumed.at[slot])

            lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, None)
            return acc[...].astype(jnp.float16)

        out_smem[...] = pl.run_scoped(scope, plgpu.ACC((128, 128), jnp.float32))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out.at[lax.axis_index("i")])
        plgpu.wait_smem_to_gmem(0)

    def body(a, b, out, a_smem, b_smem, out_smem, produced, consumed):
        shared = a_smem, b_smem, produced, consumed
        wg = lax.axis_index("wg")
        pl.when(wg == 0)(lambda: compute_thread(out, out_smem, *shared))
        pl.when(wg == 1)(lambda: memory_thread(a, b, *shared))

    smem = clocked.swizzled
    scratch = (
        smem(slots, 128, 64),
        smem(slots, 64, 128),
        smem(128, 128),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        plgpu.Barrier(num_barriers=slots),
    )
    out = like(2, 128, 128)
    return _kernel(body, out, dict(i=2), stamped, threads=2, scratch=scratch, **params)


def cases() -> list[Case]:
    """All that is measured."""
    steps = RING_STEPS * 64
    small = (like(128, steps), like(steps, 128))
    square, tall = (like(SIZE, SIZE),) * 2, (like(ROWS, SIZE, dtype=jnp.float32),)
    found = [Case("ring", functools.partial(ring, RING_SLOTS, RING_STEPS), small, l2_hits=1.0)]
    for slots, delay in ((1, 0), (2, 0), (3, 0), (4, 0), (4, 1)):
        for alone in (True, False) if slots < 3 else (True,):
            name = f"matmul 128x128x64, {slots} slots, delay {delay}" + _CROWD[alone]
            found.append(Case(name, functools.partial(matmul, slots, delay, alone), square))
    for slots, delay, rows in ((1, 0, 64), (2, 0, 64), (3, 0, 64), (4, 0, 64), (3, 1, 128)):
        for alone in (True, False) if slots < 3 else (True,):
            name = f"specialized {2 * rows}x128x64, {slots} slots, delay {delay}" + _CROWD[alone]
            build = functools.partial(specialized, slots, delay, rows, alone)
            found.append(Case(name, build, square))
    found.append(Case("x + 1, 4 slots", functools.partial(add_one, 4), tall))
    found.append(Case("sum, 2 slots", functools.partial(total, 2), tall))
    found.append(Case("sum, 4 slots", functools.partial(total, 4), tall))
    return found
