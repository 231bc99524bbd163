"""The kernels whose measured times `simulate` is held against, at the sizes that are measured.

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
from benchmarks import probing

SIZE = 4096
ROWS = 16384
RING_SLOTS, RING_STEPS = 2, 16
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
        first, start = probing.nanoseconds(), probing.clock()
        body(*refs)
        values = start, probing.clock(), first, probing.nanoseconds()
        sm = probing._register(mgpu_utils.smid)
        block = functools.reduce(lambda n, a: n * grid[a] + lax.axis_index(a), names, jnp.int32(0))
        thread = lax.axis_index("wg") if threads > 1 else 0
        for i, value in enumerate((*values, sm)):
            stamps[block, thread, i] = value

    wg = (threads, "wg") if threads > 1 else (None, None)
    return plgpu.kernel(
        run, out_type=out_type if stamped else out, grid=tuple(grid.values()), grid_names=names,
        scratch_types=tuple(scratch), compiler_params=plgpu.CompilerParams(**params),
        num_threads=wg[0], thread_name=wg[1],
    )  # fmt: skip


def _tiles(rows: int, i: Any, j: Any, delay: int) -> list[plgpu.BlockSpec]:
    """Those that the steps of a block (i, j) of a product load."""
    block = functools.partial(plgpu.BlockSpec, transforms=probing.TILED, delay_release=delay)
    return [block((rows, 64), lambda k: (i, k)), block((64, 128), lambda k: (k, j))]


def _store(acc: Any, staged: Any, here: Callable[[], Any]) -> None:
    """Stores an accumulator by way of SMEM."""
    staged[...] = acc.astype(jnp.float16)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staged, here())
    plgpu.wait_smem_to_gmem(0)


def _pad(used: int) -> tuple[Any, ...]:
    """Scratch so large that one block fills a multiprocessor."""
    return (plgpu.SMEM((max(1, (120 << 10) - used) // 128, 128), jnp.int8),)


def matmul(slots: int, delay: int, alone: bool, stamped: bool) -> Callable[..., Any]:
    """One thread; tiles of 128x128x64."""
    pad = _pad((slots + 1) << 15) if alone and slots < 3 else ()

    def body(a, b, out, out_smem, *_):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def scope(acc):
            def step(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(delay)

            pipelib.emit_pipeline(
                step, grid=(a.shape[1] // 64,), max_concurrent_steps=slots, ordinary_reads=False,
                in_specs=_tiles(128, i, j, delay),
            )(a, b)  # fmt: skip
            return acc[...]

        acc = pl.run_scoped(scope, plgpu.ACC((128, 128), jnp.float32))
        _store(acc, out_smem, lambda: out.at[pl.ds(i * 128, 128), pl.ds(j * 128, 128)])

    scratch, grid = (probing.swizzled(128, 128), *pad), dict(i=SIZE // 128, j=SIZE // 128)
    return _kernel(body, like(SIZE, SIZE), grid, stamped, scratch=scratch)


def specialized(
    slots: int, delay: int, rows: int, alone: bool, stamped: bool
) -> Callable[..., Any]:
    """Two compute threads of `rows` rows each and a memory thread; tiles of 2 rows x 128 x 64."""
    tile = 2 * rows
    used = slots * (tile + 128) * 128 + tile * 256
    pad = _pad(used) if alone and used < 116 << 10 else ()

    def body(a, b, out, out_smem, *_):
        i, j, wg = (lax.axis_index(name) for name in ("i", "j", "wg"))
        mine = pl.ds(wg * rows, rows)

        def context(pipeline):
            def scope(acc):
                pipeline(acc)
                return acc[...]

            acc = pl.run_scoped(scope, plgpu.ACC((rows, 128), jnp.float32))
            here = lambda: out.at[pl.ds(i * tile + wg * rows, rows), pl.ds(j * 128, 128)]
            _store(acc, out_smem.at[mine], here)

        def step(_, a, b, acc):
            plgpu.wgmma(acc, a.at[mine], b)
            plgpu.wgmma_wait(delay)
            return acc

        pipelib.emit_pipeline_warp_specialized(
            step, grid=(a.shape[1] // 64,), max_concurrent_steps=slots, memory_registers=40,
            num_compute_wgs=2, wg_axis="wg", compute_context=context, ordinary_reads=False,
            in_specs=_tiles(tile, i, j, delay),
        )(a, b)  # fmt: skip

    scratch, grid = (probing.swizzled(tile, 128), *pad), dict(i=SIZE // tile, j=SIZE // 128)
    return _kernel(body, like(SIZE, SIZE), grid, stamped, threads=3, scratch=scratch)


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
            lambda _, x, carry: carry + x[...], grid=(SIZE // 64,), in_specs=[spec],
            max_concurrent_steps=slots, init_carry=zeros,
        )(x)  # fmt: skip
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

    smem = probing.swizzled
    scratch = (
        smem(slots, 128, 64), smem(slots, 64, 128), smem(128, 128),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots), plgpu.Barrier(num_barriers=slots),
    )  # fmt: skip
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
