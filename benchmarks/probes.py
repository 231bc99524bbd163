"""Small kernels that tell what one operation costs on the GPU, in cycles of its clock.

`clocked` has what they are made of. Those of two threads that share the tensor core, and of its
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

from benchmarks import probes_copies, probes_softmax, probes_tensor_core
from benchmarks.clocked import (
    SMS,
    Probe,
    Right,
    Role,
    accumulated,
    alike,
    carrying,
    clock,
    delay,
    for_loads,
    for_result,
    halves,
    inner,
    loading_tiles,
    loop,
    multiplying,
    once,
    rem,
    swizzled,
    tile,
)

# Synchronisation.


def _arrive(i: Any, block: Any, barrier: Any) -> jax.Array:
    return inner(lambda: plgpu.barrier_arrive(barrier))


def _wait(fences: int, i: Any, block: Any, barrier: Any) -> jax.Array:
    """A wait for what has arrived, some time after that."""
    plgpu.barrier_arrive(barrier)
    delay(fences)
    return inner(lambda: plgpu.barrier_wait(barrier))


def _ping(fences: int, i: Any, block: Any, there: Any, back: Any) -> None:
    delay(fences)
    plgpu.barrier_arrive(there)
    plgpu.barrier_wait(back)


def _pong(fences: int, i: Any, block: Any, there: Any, back: Any) -> None:
    plgpu.barrier_wait(there)
    delay(fences)
    plgpu.barrier_arrive(back)


def _meet(i: Any, block: Any) -> None:
    def scope(memory):
        memory[0, 0] = jnp.float32(1)

    pl.run_scoped(scope, plgpu.SMEM((8, 128), jnp.float32), collective_axes="thread")


#: What a thread does in a step, or what each of two does, and how many barriers they have. After
#: eight fences, some hundred cycles, the phase of a barrier is long complete.
_SYNCHRONISATION: dict[str, tuple[tuple[Callable[..., Any], ...], int]] = {
    "clock": ((lambda i, block: inner(lambda: None),), 0),
    "clock rate": ((lambda i, block: plgpu.commit_smem(),), 0),
    "fence": ((lambda i, block: inner(plgpu.commit_smem),), 0),
    "arrive": ((_arrive,), 1),
    "arrive, wait": ((functools.partial(_wait, 0),), 1),
    "wait, passed": ((functools.partial(_wait, 8),), 1),
    "delay": ((lambda i, block: delay(8),), 0),
    "round trip": ((functools.partial(_ping, 0), functools.partial(_pong, 0)), 2),
    "round trip, delayed": ((functools.partial(_ping, 8), functools.partial(_pong, 8)), 2),
    "meet": ((_meet, _meet), 0),
}


def synchronisation() -> list[Probe]:
    """What barriers, fences and the counter itself cost."""
    repeats = {"clock rate": 1 << 17, "meet": 256}
    return [
        Probe(name, tuple(map(once, steps)), repeats.get(name, 1024), (plgpu.Barrier(),) * barriers)
        for name, (steps, barriers) in _SYNCHRONISATION.items()
    ]


# Copies.


def _where(cold: bool) -> str:
    return "HBM" if cold else "L2"


def _copies(name: str, rows: int, role: Role, repeats: int, *scratch: Any, **fields: Any) -> Probe:
    """A probe whose steps each copy some rows of 64 float16."""
    return Probe(name, (role,), repeats, scratch, work=dict(bytes=rows * 128), **fields)


def load_latency(rows: int, cold: bool) -> Probe:
    """One load at a time; the inner part is its issue."""
    repeats = 64

    def step(i, block, x, slot, barrier):
        index = i * 5 if cold else rem(i, 4)
        issue = inner(lambda: plgpu.copy_gmem_to_smem(tile(x, rows, index), slot, barrier))
        plgpu.barrier_wait(barrier)
        return issue

    name, tiles = f"load {rows * 128} bytes, {_where(cold)}", 5 * 3 * repeats if cold else 4
    scratch, x = (swizzled(rows, 64), plgpu.Barrier()), (tiles * rows, 64)
    return _copies(name, rows, once(step), repeats, *scratch, input=x, cold=cold)


def _load_ring(
    name: str, rows: int, slots: int, repeats: int, index: Callable[..., Any], tiles: int, **fields
) -> Probe:
    """A ring of slots that are loaded again as soon as they are full, step i of a block with the
    tile of number `index(i, block)`. "{}" in the name stands for what all of these have."""

    def role(timed, block, x, ring, barriers):
        timed(loading_tiles(slots, lambda i: tile(x, rows, index(i, block)), ring, barriers))

    # The rings must be in step with the slots at the second run's first index.
    assert repeats % slots == 0, (repeats, slots)
    name = name.format(f"ring of {slots} x {rows * 128} bytes, {fields['blocks']} blocks")
    scratch = for_loads(slots, rows)
    return _copies(name, rows, role, repeats, *scratch, input=(tiles * rows, 64), **fields)


def load_bandwidth(rows: int, slots: int, blocks: int, cold: bool) -> Probe:
    """Tiles that no two blocks share."""
    repeats, warm = (384 if cold else 768), 8 if blocks > 1 else 16
    tiles = 3 * repeats * blocks if cold else warm * blocks
    index = lambda i, block: i * blocks + block if cold else block * warm + rem(i, warm)
    name = f"load {{}}, {_where(cold)}"
    return _load_ring(name, rows, slots, repeats, index, tiles, blocks=blocks, cold=cold)


def shared_load_bandwidth(rows: int, slots: int, sharers: int, near: bool) -> Probe:
    """Tiles in L2 that so many blocks load at about the same time, neighbours or far apart."""
    warm, groups = 16, -(-SMS // sharers)

    def index(i, block):
        group = block // sharers if near else rem(block, groups)
        return group * warm + rem(i, warm)

    which = "neighbours" if near else "blocks apart"
    name = f"shared {{}}, L2, each tile by {sharers} {which}"
    return _load_ring(name, rows, slots, 768, index, groups * warm, blocks=SMS)


def product_load_bandwidth(rows: int, slots: int, columns: int, cold: bool) -> Probe:
    """The tiles that the blocks of a matrix product load: every other one with those of the same
    row of the grid, the others with those of the same column."""
    repeats, lines = 384 if cold else 768, -(-SMS // columns)
    along = 3 * repeats // 2 if cold else 16

    def index(i, block):
        row, column = block // columns, lines + rem(block, columns)
        line = jnp.where(rem(i, 2) == 0, row, column)
        return line * along + rem(lax.div(i, np.int32(2)), along)

    name = f"shared {{}}, {_where(cold)}, as in a product of {columns} columns"
    tiles = (lines + columns) * along
    return _load_ring(name, rows, slots, repeats, index, tiles, blocks=SMS, cold=cold)


def store_latency(rows: int, read_only: bool) -> Probe:
    """One store at a time; the inner part is its issue."""

    def step(i, block, out, slot):
        def store():
            plgpu.copy_smem_to_gmem(slot, tile(out, rows, i % 4))

        issue = inner(store)
        plgpu.wait_smem_to_gmem(0, wait_read_only=read_only)
        return issue

    name = f"store {rows * 128} bytes, {'read' if read_only else 'written'}"
    return _copies(name, rows, once(step), 64, swizzled(rows, 64), output=(4 * rows, 64))


def store_bandwidth(rows: int, blocks: int, cold: bool, adds: bool = False) -> Probe:
    """Stores with up to four in flight; if cold, over more than L2 holds. They may add."""
    repeats = 384 if cold else 768
    tiles = 3 * repeats * blocks if cold else 8 * blocks

    def step(i, block, out, slot):
        index = i * blocks + block if cold else block * 8 + rem(i, 8)
        plgpu.copy_smem_to_gmem(slot, tile(out, rows, index), reduction_op="add" if adds else None)
        plgpu.wait_smem_to_gmem(4)

    name = f"{'add ' * adds}store ring of {rows * 128} bytes, {blocks} blocks, {_where(cold)}"
    fields: dict[str, Any] = dict(output=(tiles * rows, 64), blocks=blocks, cold=cold)
    return _copies(name, rows, once(step), repeats, swizzled(rows, 64), **fields)


#: Slots, columns of the grid, and whether L2 has the tiles.
_IN_PRODUCTS = (
    *((8, columns, False) for columns in (11, 33)),
    *((slots, 33, False) for slots in (2, 4)),
    *((slots, 33, True) for slots in (2, 4, 8)),
)


def copies() -> list[Probe]:
    """What loads and stores take, alone and in crowds."""
    product, starmap = itertools.product, itertools.starmap
    rings = (64, 1), (64, 2), (64, 4), (64, 8), (64, 16), (128, 8), (256, 4), (256, 6)
    sizes, either = (8, 64, 128, 256), (False, True)
    shared = (2, True), (2, False), (4, True), (4, False), (33, True), (SMS, True)
    return [
        *starmap(load_latency, product(sizes, either)),
        *(load_bandwidth(*ring, n, cold) for n, ring, cold in product((1, SMS), rings, either)),
        *starmap(store_latency, product(sizes, either)),
        *(store_bandwidth(128, blocks, cold) for blocks, cold in product((1, SMS), either)),
        *(store_bandwidth(128, blocks, False, adds=True) for blocks in (1, SMS)),
        *(shared_load_bandwidth(128, 8, *each) for each in shared),
        *(product_load_bandwidth(128, *each) for each in _IN_PRODUCTS),
    ]


# The tensor core.


def _keep_rolled() -> None:
    """A loop that never does a step: the compiler unrolls loops that have none within.

    Of products unrolled, it needs a time that grows with the square of the accumulator: minutes.
    This costs a step some 76 cycles where nothing runs meanwhile. `clocked.keep_rolled` costs none:
    use that in new probes. The record is of this one.
    """
    count = jnp.where(clock() == 0, clock(), 0)
    lax.fori_loop(jnp.int32(0), count, lambda i, x: (plgpu.commit_smem(), x)[1], jnp.int32(0))


def wgmma(
    m: int, n: int, k: int, dtype: Any, left: int, threads: int = 1, timed_issue: bool = False
) -> Probe:
    """Products one after another with `left` unfinished; the inner part is the issue, if timed."""
    right, dtype = Right(n, k, dtype), jnp.dtype(dtype)

    def role(thread, timed, block, a, b, sink):
        def work(acc):
            def step(i):
                multiply = lambda: plgpu.wgmma(acc, a.at[thread], right.of(b))
                issue = inner(multiply) if timed_issue else multiply()
                plgpu.wgmma_wait(left)
                if n > 64:
                    _keep_rolled()
                return issue

            timed(multiplying(step))

        sink[thread] = accumulated(m, n, work)

    scratch = swizzled(threads, m, k, dtype=dtype), right.scratch, for_result(threads, m, n)
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

        def work(acc):
            def step(i):
                plgpu.barrier_wait(barriers.at[rem(i, slots)])
                start(i + slots)
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(1)

            timed(multiplying(step))

        loop(jnp.int32(0), slots, start)
        sink[...] = accumulated(m, n, work)
        loop(jnp.int32(0), slots, lambda i: plgpu.barrier_wait(barriers.at[i]))

    ring, barriers = for_loads(slots, rows)
    scratch = swizzled(m, k), swizzled(k, n), ring, swizzled(m, n), barriers
    work = dict(flops=2.0 * m * n * k, bytes=128.0 * rows)
    name = f"wgmma {m}x{n}x{k} beside loads of {rows * 128} bytes"
    return Probe(name, (role,), 256, scratch, (warm * rows, 64), work=work)


# What lanes do themselves.


def _lanes(
    name: str, shape: tuple[int, int], work: dict, step: Callable, threads: int = 1, **options
) -> Probe:
    """Steps of `step(ref, carry) -> carry` on arrays, the ref being one of two slots of SMEM."""

    def role(thread, timed, block, ring):
        layout = plgpu.Layout.WG_STRIDED(shape, vec_size=4)
        start = halves(shape, layout)
        for slot in range(2):
            ring[thread, slot] = start
        # The compiler must not know what memory holds, nor drop what nobody reads.
        plgpu.commit_smem()

        def end(x):
            ring[thread, 0] = x

        one = lambda x, first, i: step(ring.at[thread, rem(first + i, 2)], x)
        timed(carrying(one, lambda: plgpu.layout_cast(ring[thread, 1], layout), end))

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


def _chain(function: Callable[[Any], Any], ref: Any, x: Any) -> Any:
    """Eight times the function, which leaves memory alone."""
    for _ in range(8):
        x = function(x)
    return x


_ACCESSES = ("read", _read), ("write", _write)
_APPROXIMATE = dict(params=dict(approx_math=True))
_CHAINS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "add": (lambda x: x + 0.25, {}),
    "multiply and add": (lambda x: x * 0.5 + 0.25, {}),
    "exp2": (jnp.exp2, {}),
    "exp2, approximate": (jnp.exp2, _APPROXIMATE),
    "exp": (jnp.exp, {}),
    "exp, approximate": (jnp.exp, _APPROXIMATE),
}


def lanes() -> list[Probe]:
    """What ordinary accesses and arithmetic take."""
    probes = []
    for threads in (1, 2):
        for rows, (name, step) in itertools.product(
            (16, 64), dict(read=_read, write=_write).items()
        ):
            work, shape = dict(bytes=4.0 * rows * 128), (rows, 128)
            probes.append(_lanes(f"{name} {rows}x128", shape, work, step, threads))
        for name, (function, options) in _CHAINS.items():
            work, step = dict(ops=8.0 * 32 * 128), functools.partial(_chain, function)
            probes.append(_lanes(name, (32, 128), work, step, threads, **options))
    return probes


def reduced(rows: int, threads: int) -> Probe:
    """Sums of rows x 128 float32, each of what the one before left; a step also takes a part of the
    sum from each element."""
    shape = (rows, 128)

    def role(thread, timed, block, ring):
        start = halves(shape, plgpu.Layout.WG_STRIDED(shape, vec_size=4))
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
        """The tiles and the swizzle of the SMEM."""
        if not self.swizzle:
            return ()
        columns = self.swizzle // jnp.dtype(self.dtype).itemsize
        return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(self.swizzle)

    def layout(self, shape: tuple[int, int]) -> Any:
        """The layout of the registers."""
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
        start = halves(shape, layout, kind.dtype)
        put = lambda slot, x: _put(ring.at[slot], x, optimized)
        for slot in range(2):
            put(slot, start)
        plgpu.commit_smem()

        def load(slot):
            return plgpu.layout_cast(plgpu.load(ring.at[slot], optimized=optimized), layout)

        def one(x, first, i):
            slot = rem(first + i, 2)
            if writes:
                put(slot, x)
            else:
                x = x + load(slot)
            plgpu.commit_smem()
            return x

        timed(carrying(one, lambda: load(1), lambda x: put(0, x)))

    name = f"{'write' if writes else 'read'} {rows}x64, {kind.name}"
    ring = plgpu.SMEM((2, *shape), kind.dtype, transforms=kind.transforms)
    work = dict(bytes=float(rows * 64 * jnp.dtype(kind.dtype).itemsize))
    by_lanes = dict(lowering_semantics=plgpu.LoweringSemantics.Lane)
    return Probe(name, (role,), 128, (ring,), work=work, params=by_lanes)


def accesses() -> list[Probe]:
    """Reads and writes by layout, at two sizes: what is the same for both cancels."""
    kinds = itertools.product(ACCESSES, (64, 128), (False, True))
    return [_chained(), *itertools.starmap(access, kinds)]


def _epilogue() -> Probe:
    """An accumulator of 128x128 to float16 in swizzled SMEM, fence included."""

    def role(timed, block, ring):
        start = halves((128, 128), plgpu.Layout.WGMMA)

        def run(first, count):
            def one(i, x):
                ring[rem(i, 2)] = x.astype(jnp.float16)
                plgpu.commit_smem()
                return x

            lax.fori_loop(jnp.int32(0), jnp.int32(count), one, start)

        timed(run)

    work, ring = dict(bytes=2.0**15), swizzled(2, 128, 128)
    return Probe("write an accumulator 128x128", (role,), 128, (ring,), work=work)


def probes() -> list[Probe]:
    """All probes."""
    sums = itertools.starmap(reduced, itertools.product((16, 64), (1, 2)))
    alone = *lanes(), *sums, *accesses(), _epilogue()
    return [*synchronisation(), *copies(), *alone, *tensor_core(), *later()]


def later() -> list[Probe]:
    """The probes whose docstrings predict what they will measure: `modelled` compares the two."""
    modules = probes_tensor_core, probes_softmax, probes_copies
    found = [probe for module in modules for probe in module.probes()]
    return [*found, *probes_softmax.probes_beside()]
