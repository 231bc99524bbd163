"""Small kernels that tell what one operation costs on the GPU, in cycles of its clock.

`probing` has what they are made of. Those of two threads that share the tensor core, and of its
operands, are in `probes_tensor_core`; what a softmax is made of is in `probes_softmax`; copies by
box, by the order of blocks, beside others, and by how a slot is found in `probes_copies`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import probes_beside, probes_copies, probes_softmax, probes_tensor_core
from benchmarks.probing import (
    SMS,
    TILED,
    Probe,
    Role,
    alike,
    clock,
    delay,
    for_loads,
    half,
    inner,
    loading,
    loop,
    once,
    rem,
    tile,
)

# Synchronisation.


def _arrive(i, block, barrier):
    return inner(lambda: plgpu.barrier_arrive(barrier))


def _arrive_wait(i, block, barrier):
    plgpu.barrier_arrive(barrier)
    return inner(lambda: plgpu.barrier_wait(barrier))


def _wait_passed(i, block, barrier):
    plgpu.barrier_arrive(barrier)
    delay(8)  # some hundred cycles, after which the phase is long complete
    return inner(lambda: plgpu.barrier_wait(barrier))


def _ping(fences, i, block, there, back):
    delay(fences)
    plgpu.barrier_arrive(there)
    plgpu.barrier_wait(back)


def _pong(fences, i, block, there, back):
    plgpu.barrier_wait(there)
    delay(fences)
    plgpu.barrier_arrive(back)


def _round_trip(fences: int) -> tuple[Role, ...]:
    return tuple(once(functools.partial(role, fences)) for role in (_ping, _pong))


def _meet(i, block):
    def scope(memory):
        memory[0, 0] = jnp.float32(1)

    pl.run_scoped(scope, plgpu.SMEM((8, 128), jnp.float32), collective_axes="thread")


def synchronisation() -> list[Probe]:
    """What barriers, fences and the counter itself cost."""
    barrier = plgpu.Barrier()
    return [
        Probe("clock", (once(lambda i, block: inner(lambda: None)),), 1024),
        Probe("clock rate", (once(lambda i, block: plgpu.commit_smem()),), 1 << 17),
        Probe("fence", (once(lambda i, block: inner(plgpu.commit_smem)),), 1024),
        Probe("arrive", (once(_arrive),), 1024, (barrier,)),
        Probe("arrive, wait", (once(_arrive_wait),), 1024, (barrier,)),
        Probe("wait, passed", (once(_wait_passed),), 1024, (barrier,)),
        Probe("delay", (once(lambda i, block: delay(8)),), 1024),
        Probe("round trip", _round_trip(0), 1024, (barrier, barrier)),
        Probe("round trip, delayed", _round_trip(8), 1024, (barrier, barrier)),
        Probe("meet", (once(_meet), once(_meet)), 256),
    ]


# Copies.


def _load_wait(rows, x, slot, barrier, index):
    issue = inner(lambda: plgpu.copy_gmem_to_smem(tile(x, rows, index), slot, barrier))
    plgpu.barrier_wait(barrier)
    return issue


def load_latency(rows: int, cold: bool) -> Probe:
    """One load at a time; the inner part is its issue."""
    repeats = 64

    def step(i, block, x, slot, barrier):
        return _load_wait(rows, x, slot, barrier, i * 5 if cold else rem(i, 4))

    tiles = 5 * 3 * repeats if cold else 4
    return Probe(
        f"load {rows * 128} bytes, {'HBM' if cold else 'L2'}", (once(step),), repeats,
        (half(rows, 64), plgpu.Barrier()), (tiles * rows, 64), work=dict(bytes=rows * 128),
        cold=cold,
    )  # fmt: skip


def _load_ring(
    name: str, rows: int, slots: int, repeats: int, index: Callable[..., Any], tiles: int, **fields
) -> Probe:
    """A ring of slots that are loaded again as soon as they are full, step i of a block with the
    tile of number `index(i, block)`."""

    def role(timed, block, x, ring, barriers):
        timed(loading(slots, lambda i: tile(x, rows, index(i, block)), ring, barriers))

    # The rings must be in step with the slots at the second run's first index.
    assert repeats % slots == 0, (repeats, slots)
    return Probe(
        f"{name} of {slots} x {rows * 128} bytes, {fields['blocks']} blocks", (role,), repeats,
        for_loads(slots, rows), (tiles * rows, 64), work=dict(bytes=rows * 128), **fields,
    )  # fmt: skip


def load_bandwidth(rows: int, slots: int, blocks: int, cold: bool) -> Probe:
    """Tiles that no two blocks share."""
    repeats, warm = (384 if cold else 768), 8 if blocks > 1 else 16
    tiles = 3 * repeats * blocks if cold else warm * blocks
    index = lambda i, block: i * blocks + block if cold else block * warm + rem(i, warm)
    fields = dict(blocks=blocks, cold=cold)
    probe = _load_ring("load ring", rows, slots, repeats, index, tiles, **fields)
    return probe._replace(name=f"{probe.name}, {'HBM' if cold else 'L2'}")


def shared_load_bandwidth(rows: int, slots: int, sharers: int, near: bool) -> Probe:
    """Tiles in L2 that so many blocks load at about the same time, neighbours or far apart."""
    warm, groups = 16, -(-SMS // sharers)

    def index(i, block):
        group = block // sharers if near else rem(block, groups)
        return group * warm + rem(i, warm)

    probe = _load_ring("shared ring", rows, slots, 768, index, groups * warm, blocks=SMS)
    which = "neighbours" if near else "blocks apart"
    return probe._replace(name=f"{probe.name}, L2, each tile by {sharers} {which}")


def product_load_bandwidth(rows: int, slots: int, columns: int, cold: bool) -> Probe:
    """The tiles that the blocks of a matrix product load: every other one with those of the same
    row of the grid, the others with those of the same column."""
    repeats, lines = 384 if cold else 768, -(-SMS // columns)
    along = 3 * repeats // 2 if cold else 16

    def index(i, block):
        row, column = block // columns, lines + rem(block, columns)
        line = jnp.where(rem(i, 2) == 0, row, column)
        return line * along + rem(lax.div(i, np.int32(2)), along)

    tiles = (lines + columns) * along
    probe = _load_ring("shared ring", rows, slots, repeats, index, tiles, blocks=SMS, cold=cold)
    where = "HBM" if cold else "L2"
    return probe._replace(name=f"{probe.name}, {where}, as in a product of {columns} columns")


def store_latency(rows: int, read_only: bool) -> Probe:
    """One store at a time; the inner part is its issue."""

    def step(i, block, out, slot):
        def store():
            plgpu.copy_smem_to_gmem(slot, tile(out, rows, i % 4))

        issue = inner(store)
        plgpu.wait_smem_to_gmem(0, wait_read_only=read_only)
        return issue

    what = "read" if read_only else "written"
    return Probe(
        f"store {rows * 128} bytes, {what}", (once(step),), 64,
        (half(rows, 64),), None, (4 * rows, 64), work=dict(bytes=rows * 128),
    )  # fmt: skip


def store_bandwidth(rows: int, blocks: int, cold: bool, adds: bool = False) -> Probe:
    """Stores with up to four in flight; if cold, over more than L2 holds. They may add."""
    repeats = 384 if cold else 768
    tiles = 3 * repeats * blocks if cold else 8 * blocks

    def step(i, block, out, slot):
        index = i * blocks + block if cold else block * 8 + rem(i, 8)
        plgpu.copy_smem_to_gmem(slot, tile(out, rows, index), reduction_op="add" if adds else None)
        plgpu.wait_smem_to_gmem(4)

    what = "add store ring" if adds else "store ring"
    return Probe(
        f"{what} of {rows * 128} bytes, {blocks} blocks, {'HBM' if cold else 'L2'}",
        (once(step),), repeats, (half(rows, 64),), None, (tiles * rows, 64), blocks=blocks,
        work=dict(bytes=rows * 128), cold=cold,
    )  # fmt: skip


_PRODUCTS = (2, False), (4, False), (2, True), (4, True), (8, True)  # slots, cold


def copies() -> list[Probe]:
    """What loads and stores take, alone and in crowds."""
    rings = (64, 1), (64, 2), (64, 4), (64, 8), (64, 16), (128, 8), (256, 4), (256, 6)
    probes = [load_latency(rows, cold) for rows in (8, 64, 128, 256) for cold in (False, True)]
    for blocks in (1, SMS):
        for rows, slots in rings:
            probes += [load_bandwidth(rows, slots, blocks, cold) for cold in (False, True)]
    for rows in (8, 64, 128, 256):
        probes += [store_latency(rows, read_only) for read_only in (False, True)]
    probes += [store_bandwidth(128, b, cold) for b in (1, SMS) for cold in (False, True)]
    probes += [store_bandwidth(128, b, False, adds=True) for b in (1, SMS)]
    for sharers in (2, 4, 33, SMS):
        near = (True, False) if sharers < 33 else (True,)
        probes += [shared_load_bandwidth(128, 8, sharers, n) for n in near]
    probes += [product_load_bandwidth(128, 8, columns, False) for columns in (11, 33)]
    probes += [product_load_bandwidth(128, slots, 33, cold) for slots, cold in _PRODUCTS]
    return probes


# The tensor core.


def _keep_rolled() -> None:
    """A loop that never does a step: the compiler unrolls loops that have none within.

    Of products unrolled, it needs a time that grows with the square of the accumulator: minutes.
    This costs a step some 76 cycles where nothing runs meanwhile. `probing.keep_rolled` costs none:
    use that in new probes. The record is of this one.
    """
    count = jnp.where(clock() == 0, clock(), 0)
    lax.fori_loop(jnp.int32(0), count, lambda i, x: (plgpu.commit_smem(), x)[1], jnp.int32(0))


def wgmma(
    m: int, n: int, k: int, dtype: Any, left: int, threads: int = 1, timed_issue: bool = False
) -> Probe:
    """Products one after another with `left` unfinished; the inner part is the issue, if timed."""
    dtype = jnp.dtype(dtype)
    transforms = plgpu.TilingTransform((8, 128 // dtype.itemsize)), plgpu.SwizzleTransform(128)
    transposed = dtype.itemsize == 1 or n < 64  # where only rows of b along k fill the swizzle

    def role(thread, timed, block, a, b, sink):
        def scope(acc):
            right = b.T if transposed else b

            def step(i):
                multiply = lambda: plgpu.wgmma(acc, a.at[thread], right)
                issue = inner(multiply) if timed_issue else multiply()
                plgpu.wgmma_wait(left)
                if n > 64:
                    _keep_rolled()
                return issue

            def run(first, count):
                total = loop(first, count, step)
                plgpu.wgmma_wait(0)
                return total

            timed(run)
            return acc[...]

        # Products whose result nobody needs are not made.
        sink[thread] = pl.run_scoped(scope, plgpu.ACC((m, n), jnp.float32)).astype(jnp.float16)

    scratch = (
        plgpu.SMEM((threads, m, k), dtype, transforms=transforms),
        plgpu.SMEM((n, k) if transposed else (k, n), dtype, transforms=transforms),
        plgpu.SMEM((threads, m, n), jnp.float16, transforms=TILED if n >= 64 else ()),
    )
    name = f"wgmma {m}x{n}x{k} {dtype.name}, {left} left, {threads} threads"
    name += ", issue timed" * timed_issue
    return Probe(name, alike(role, threads), 256, scratch, work=dict(flops=2.0 * m * n * k))


def tensor_core() -> list[Probe]:
    """What products take, for many shapes."""
    half, quarter = jnp.float16, jnp.float8_e4m3fn
    shapes = (64, 16), (64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128)
    probes = [wgmma(m, n, 64, half, left) for m, n in shapes for left in (0, 1)]
    probes += [
        wgmma(64, 128, 128, half, 1),
        wgmma(64, 128, 64, half, 1, threads=2),
        wgmma(64, 128, 64, jnp.bfloat16, 1),
        wgmma(64, 128, 128, quarter, 1),
        wgmma(64, 64, 64, half, 0, timed_issue=True),
        wgmma(64, 32, 64, half, 0, timed_issue=True),
    ]
    shapes = (64, 128, 128), (64, 256, 64), (128, 128, 64)
    probes += [beside_loads(*shape, rows) for shape in shapes for rows in (64, 128, 256)]
    return probes


def beside_loads(m: int, n: int, k: int, rows: int, slots: int = 4) -> Probe:
    """Products, with a load of rows x 64 float16 from L2 in each step: who gets SMEM's banks?"""
    warm = 16

    def role(timed, block, x, a, b, ring, sink, barriers):
        def start(i):
            slot, index = rem(i, slots), rem(i, warm)
            plgpu.copy_gmem_to_smem(tile(x, rows, index), ring.at[slot], barriers.at[slot])

        def scope(acc):
            def step(i):
                plgpu.barrier_wait(barriers.at[rem(i, slots)])
                start(i + slots)
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(1)

            def run(first, count):
                total = loop(first, count, step)
                plgpu.wgmma_wait(0)
                return total

            timed(run)
            return acc[...]

        loop(jnp.int32(0), slots, start)
        sink[...] = pl.run_scoped(scope, plgpu.ACC((m, n), jnp.float32)).astype(jnp.float16)
        loop(jnp.int32(0), slots, lambda i: plgpu.barrier_wait(barriers.at[i]))

    ring, barriers = for_loads(slots, rows)
    scratch = half(m, k), half(k, n), ring, half(m, n), barriers
    work = dict(flops=2.0 * m * n * k, bytes=128.0 * rows)
    return Probe(
        f"wgmma {m}x{n}x{k} beside loads of {rows * 128} bytes", (role,), 256, scratch,
        (warm * rows, 64), work=work,
    )  # fmt: skip


# What lanes do themselves.


def _lanes(
    name: str, shape: tuple[int, int], work: dict, step: Callable, threads: int = 1, **options
) -> Probe:
    """Steps of `step(ref, carry) -> carry` on arrays, the ref being one of two slots of SMEM."""

    def role(thread, timed, block, ring):
        layout = plgpu.Layout.WG_STRIDED(shape, vec_size=4)
        start = plgpu.layout_cast(jnp.full(shape, 0.5, jnp.float32), layout)
        for slot in range(2):
            ring[thread, slot] = start
        # The compiler must not know what memory holds, nor drop what nobody reads.
        plgpu.commit_smem()

        def run(first, count):
            one = lambda i, x: step(ring.at[thread, rem(first + i, 2)], x)
            x = plgpu.layout_cast(ring[thread, 1], layout)
            ring[thread, 0] = lax.fori_loop(jnp.int32(0), jnp.int32(count), one, x)
            plgpu.commit_smem()

        timed(run)

    scratch, said = (plgpu.SMEM((threads, 2, *shape), jnp.float32),), f"{name}, {threads} threads"
    return Probe(said, alike(role, threads), 256, scratch, work=work, **options)


def _read(ref, x):
    x = x + ref[...]
    plgpu.commit_smem()  # without it, reads and writes leave the loop
    return x


def _write(ref, x):
    ref[...] = x
    plgpu.commit_smem()
    return x


def _chain(count: int, function: Callable[[Any], Any]) -> Callable[..., Any]:
    """`count` times the function, which leaves memory alone."""

    def step(ref, x):
        for _ in range(count):
            x = function(x)
        return x

    return step


def lanes() -> list[Probe]:
    """What ordinary accesses and arithmetic take."""
    probes = []
    for threads in (1, 2):
        for rows in (16, 64):
            shape = (rows, 128)
            moved = dict(bytes=4.0 * rows * 128)
            probes += [
                _lanes(f"read {rows}x128", shape, moved, _read, threads),
                _lanes(f"write {rows}x128", shape, moved, _write, threads),
            ]
        shape = (32, 128)
        ops = dict(ops=8.0 * 32 * 128)
        chain = lambda name, function, **options: _lanes(
            name, shape, ops, _chain(8, function), threads, **options
        )
        probes += [
            chain("add", lambda x: x + 0.25),
            chain("multiply and add", lambda x: x * 0.5 + 0.25),
            chain("exp2", jnp.exp2),
            chain("exp2, approximate", jnp.exp2, params=dict(approx_math=True)),
            chain("exp", jnp.exp),
            chain("exp, approximate", jnp.exp, params=dict(approx_math=True)),
        ]
    return probes


def reduced(rows: int, threads: int) -> Probe:
    """Sums of rows x 128 float32, each of what the one before left; a step also takes a part of the
    sum from each element."""
    shape = (rows, 128)

    def role(thread, timed, block, ring):
        layout = plgpu.Layout.WG_STRIDED(shape, vec_size=4)
        start = plgpu.layout_cast(jnp.full(shape, 0.5, jnp.float32), layout)
        one = lambda i, x: x - jnp.sum(x) * 0.25

        def run(first, count):
            ring[thread] = lax.fori_loop(jnp.int32(0), jnp.int32(count), one, start)
            plgpu.commit_smem()

        timed(run)

    scratch = (plgpu.SMEM((threads, *shape), jnp.float32),)
    name = f"sum of {rows}x128 to one, {threads} threads"
    work = dict(ops=3.0 * rows * 128)
    return Probe(name, alike(role, threads), 128, scratch, work=work)


def _chained() -> Probe:
    """Reads of one word, each at where the last one says.

    Nobody needs the first run's result, so the compiler drops it: `second_run` is the figure.
    """

    def role(timed, block, table):
        table[...] = jnp.zeros(128, jnp.int32)
        plgpu.commit_smem()

        def run(first, count):
            step = lambda i, at: table[at]
            return lax.fori_loop(jnp.int32(0), jnp.int32(count), step, jnp.int32(0))

        timed(run)

    return Probe("read, chained", (role,), 1024, (plgpu.SMEM((128,), jnp.int32),))


class Access(NamedTuple):
    """How the lanes of a thread reach SMEM: what of an array each of them has, and where that is.

    `swizzle` is that of SMEM in tiles of 8 rows and so many bytes, or 0 for rows one after another;
    `strided` the elements that a lane has side by side, or 0 for the layout of an accumulator.
    """

    name: str
    dtype: Any
    swizzle: int
    strided: int

    @property
    def transforms(self) -> tuple[Any, ...]:
        """Those of the SMEM."""
        if not self.swizzle:
            return ()
        columns = self.swizzle // jnp.dtype(self.dtype).itemsize
        return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(self.swizzle)

    def layout(self, shape: tuple[int, int]) -> Any:
        """That of the registers."""
        if self.strided:
            return plgpu.Layout.WG_STRIDED(shape, vec_size=self.strided)
        return plgpu.Layout.WGMMA


ACCESSES = (
    Access("16 bytes a lane", jnp.float32, 0, 4),
    Access("8 bytes a lane", jnp.float32, 0, 2),
    Access("4 bytes a lane", jnp.float32, 0, 1),
    Access("2 bytes a lane", jnp.float16, 0, 1),
    Access("accumulator's float16, swizzle 128", jnp.float16, 128, 0),
    Access("accumulator's float16, swizzle 32", jnp.float16, 32, 0),
    Access("accumulator's float32, swizzle 128", jnp.float32, 128, 0),
    Access("accumulator's float16, plain", jnp.float16, 0, 0),
    Access("accumulator's float32, plain", jnp.float32, 0, 0),
)


def _put(ref: Any, x: jax.Array, optimized: bool) -> None:
    """Writes; JAX 0.12 must be told that banks may conflict, which 0.11 lets any write do."""
    store = getattr(plgpu, "store", None)
    if optimized or store is None:
        ref[...] = x
    else:
        store(ref, x, optimized=False)


def access(kind: Access, rows: int, writes: bool) -> Probe:
    """An array of rows x 64, read or written. By lane semantics, which leaves SMEM as it is
    declared: otherwise the compiler swizzles what is not."""
    shape, optimized = (rows, 64), bool(kind.swizzle or kind.strided)

    def role(timed, block, ring):
        layout = kind.layout(shape)
        load = lambda slot: plgpu.layout_cast(
            plgpu.load(ring.at[slot], optimized=optimized), layout
        )
        start = plgpu.layout_cast(jnp.full(shape, 0.5, kind.dtype), layout)
        for slot in range(2):
            _put(ring.at[slot], start, optimized)
        plgpu.commit_smem()

        def run(first, count):
            def one(i, x):
                slot = rem(first + i, 2)
                if writes:
                    _put(ring.at[slot], x, optimized)
                else:
                    x = x + load(slot)
                plgpu.commit_smem()
                return x

            last = lax.fori_loop(jnp.int32(0), jnp.int32(count), one, load(1))
            _put(ring.at[0], last, optimized)
            plgpu.commit_smem()

        timed(run)

    size = rows * 64 * jnp.dtype(kind.dtype).itemsize
    return Probe(
        f"{'write' if writes else 'read'} {rows}x64, {kind.name}", (role,), 128,
        (plgpu.SMEM((2, *shape), kind.dtype, transforms=kind.transforms),),
        work=dict(bytes=float(size)), params=dict(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )  # fmt: skip


def accesses() -> list[Probe]:
    """Reads and writes by layout, at two sizes: what is the same for both cancels."""
    kinds = itertools.product(ACCESSES, (64, 128), (False, True))
    return [_chained(), *itertools.starmap(access, kinds)]


def _epilogue() -> Probe:
    """An accumulator of 128x128 to float16 in swizzled SMEM, fence included."""

    def role(timed, block, ring):
        layout = plgpu.Layout.WGMMA
        start = plgpu.layout_cast(jnp.full((128, 128), 0.5, jnp.float32), layout)

        def run(first, count):
            def one(i, x):
                ring[rem(i, 2)] = x.astype(jnp.float16)
                plgpu.commit_smem()
                return x

            lax.fori_loop(jnp.int32(0), jnp.int32(count), one, start)

        timed(run)

    work = dict(bytes=2.0**15)
    return Probe("write an accumulator 128x128", (role,), 128, (half(2, 128, 128),), work=work)


def probes() -> list[Probe]:
    """All of them."""
    sums = itertools.starmap(reduced, itertools.product((16, 64), (1, 2)))
    alone = *lanes(), *sums, *accesses(), _epilogue()
    return [*synchronisation(), *copies(), *alone, *tensor_core(), *later()]


def later() -> list[Probe]:
    """Those whose docstrings predict what they will measure: `probed` compares the two."""
    modules = probes_tensor_core, probes_softmax, probes_copies, probes_beside
    return [probe for module in modules for probe in module.probes()]
