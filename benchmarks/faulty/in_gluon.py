"""The gallery's faults in Triton's Gluon, each beside its mended twin, on a Hopper GPU.

    python -m benchmarks.faulty.in_gluon list                       prints the names
    python -m benchmarks.faulty.in_gluon NAME fixed|faulty RUNS [BLOCKS]

The model. Each kernel takes `FIXED`. Wherever a kernel asks for `FIXED` stands its fault; nothing
else differs. A kernel has the name of its hazard in `pipelib_book.gallery`, where there is one. The
second command launches one version RUNS times, with 8 blocks unless told otherwise, and compares
each result with PyTorch's. All inputs are small integers in floating point, so that every sum is
exact. The command prints one line of JSON, where `wrong` counts the wrong results:

    {"runs": 1000, "wrong": 3}
    {"error": "AcceleratorError: CUDA error: device-side assert triggered", "runs": 0}

Where Triton or CUDA raises an error, `runs` counts the runs before it. A faulty kernel may hang the
GPU: run it in a process that can be killed.

Most kernels are one of two. The *sum* has STEPS tiles for each block. A memory thread loads them
into a ring of SLOTS slots, and compute threads read each tile TURNS times, so slowly that the next
tile can land meanwhile. The *product* makes one tile of a matrix product for each block.

Gluon's words: a thread of the gallery is a *partition* of a warp-specialized kernel. The first one
has the kernel's four warps. Parameters that end in `_tma` are descriptors of TMA, and those that
end in `_gmem` are pointers.

ConSan, the concurrency sanitizer of Triton 3.6.0, is switched on in the process's environment:

==================================  ================================================================
TRITON_INSTRUMENTATION_MODE=consan  Triton instruments the kernels that it compiles
CUDA_LAUNCH_BLOCKING=1              optional: the launch itself raises the error, not what follows
==================================  ================================================================

ConSan keeps its state in global memory from `triton.set_allocator`, which this module sets. It
reports by a device-side assert. Many lanes write "Assertion `...` failed." to stderr, with one of
the sentences below. Then CUDA raises the error above, and the process can launch nothing more.

    Buffer being accessed has outstanding writes.
    Buffer being accessed has outstanding reads
    Accessing buffer with pending access. Pending access type: ...
    Barrier arrive underflow: current count would become negative
    Deadlock detected: all active threads are waiting on mbarriers
"""

# pyright: reportIndexIssue=false

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from triton.errors import TritonError
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

#: Tiles of a block; slots of its ring; rows and columns of a tile; how often a tile is read.
STEPS, SLOTS = gl.constexpr(6), gl.constexpr(2)
ROWS, COLUMNS, TURNS = gl.constexpr(64), gl.constexpr(64), gl.constexpr(16)
#: How often `lapped_waiter` writes.
WRITES = gl.constexpr(3)
#: The product's tile, what a step multiplies, and the number of its steps.
TILE, DEPTH, PRODUCTS = gl.constexpr(128), gl.constexpr(64), gl.constexpr(16)
#: In the registers of four warps: a tile; the b of a step of the product; the accumulator.
REGISTERS = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))
HALVES = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
#: A tile in SMEM.
SHARED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2))
#: Registers of each lane: as many as three threads of four warps can have. ConSan's functions may
#: use them all, so the memory thread gives none of its own away.
LANE = gl.constexpr(168)
#: What TMA copies at once, by the name of the parameter.
BOXES = {
    "x_tma": (ROWS, COLUMNS),
    "y_tma": (ROWS, COLUMNS),
    "out_tma": (ROWS, COLUMNS),
    "a_tma": (TILE, DEPTH),
    "b_tma": (DEPTH, TILE),
}


class Fault(NamedTuple):
    """One fault: the kernel, which fills `reference(*inputs)` if it is right.

    `inputs(blocks)` gives the tensors for a grid of `blocks` blocks.
    """

    kernel: Any
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    reference: Callable[..., torch.Tensor]


FAULTS: dict[str, Fault] = {}


def fault(inputs: Callable, reference: Callable) -> Callable:
    """Enters a kernel under its name, with hyphens."""

    def enter(kernel: Any) -> Any:
        FAULTS[kernel.__name__.replace("_", "-")] = Fault(kernel, inputs, reference)
        return kernel

    return enter


# Inputs and references.


def integers(*shapes: tuple[int, int], dtype: torch.dtype = torch.float32) -> tuple:
    """Whole numbers from -4 to 4, always the same."""
    source = torch.Generator("cuda").manual_seed(0)
    draw = lambda shape: torch.randint(-4, 5, shape, generator=source, device="cuda")
    return tuple(draw(shape).to(dtype) for shape in shapes)


def tiles(each: int = 1, arrays: int = 1) -> Callable[[int], tuple]:
    """Arrays with `each` tiles for each block, one below the other."""
    rows, columns = each * ROWS.value, COLUMNS.value
    return lambda blocks: integers(*[(blocks * rows, columns)] * arrays)


def factors(blocks: int) -> tuple:
    """Two matrices whose product has a tile for each block, one below the other."""
    depth = PRODUCTS.value * DEPTH.value
    return integers((blocks * TILE.value, depth), (depth, TILE.value), dtype=torch.float16)


def by_block(x: torch.Tensor) -> torch.Tensor:
    """The tiles of each block."""
    return x.view(-1, STEPS.value, ROWS.value, COLUMNS.value)


def moments(readers: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum of each row, TURNS times; for a second reader, the sum of the squares."""
    powers = range(1, readers + 1)
    return lambda x: torch.stack(
        [TURNS.value * (by_block(x) ** power).sum((1, 3)) for power in powers], 1
    )


def multiples(steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Each tile times 1, 2, ..., steps."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        times = torch.arange(1, steps + 1, device=x.device).to(x.dtype)
        each = x.view(-1, 1, ROWS.value, COLUMNS.value) * times[:, None, None]
        return each.view(-1, COLUMNS.value)

    return reference


def plus_one(x: torch.Tensor) -> torch.Tensor:
    """What most kernels of one tile compute."""
    return x + 1


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In float64, which has no fast and inexact form."""
    return (a.double() @ b.double()).float()


# The kernels, as they should be.


class Ring(NamedTuple):
    """The slots, and for each slot the barriers that say that it is full, and free."""

    smem: Any
    full: Any
    free: Any


@gluon.jit
def new_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, each of which opens after ARRIVALS arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(COUNT):
        mbarrier.init(barriers.index(number), count=ARRIVALS)
    return barriers


@gluon.jit
def new_ring(x_tma, RELEASES: gl.constexpr):
    """A ring of tiles. RELEASES arrivals free a slot."""
    smem = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS, COLUMNS], x_tma.layout)
    return Ring(smem, new_barriers(SLOTS, 1), new_barriers(SLOTS, RELEASES))


@gluon.jit
def copy(x_tma, tile, smem, full):
    """Starts to load a tile; its barrier gets an arrival that expects the tile's bytes."""
    mbarrier.expect(full, x_tma.block_type.nbytes)
    tma.async_copy_global_to_shared(x_tma, [tile * ROWS, 0], full, smem)


@gluon.jit
def load(x_tma, ring, step):
    """Starts to load a step's tile into its slot."""
    slot = step % SLOTS
    tile = gl.program_id(0) * STEPS + step
    copy(x_tma, tile, ring.smem.index(slot), ring.full.index(slot))


@gluon.jit
def wait_until_full(ring, step):
    """Waits for a step's tile."""
    mbarrier.wait(ring.full.index(step % SLOTS), (step // SLOTS) & 1)


@gluon.jit
def wait_until_free(ring, step):
    """Waits until a step's slot is free, as all are at first: the phase before phase 0 is over."""
    mbarrier.wait(ring.free.index(step % SLOTS), (step // SLOTS + 1) & 1)


@gluon.jit
def release(ring, step):
    """Frees a step's slot: TMA may write it once all warps have read it."""
    fence_async_shared()
    mbarrier.arrive(ring.free.index(step % SLOTS), count=1)


@gluon.jit
def load_all(x_tma, ring):
    """The memory thread: each tile once its slot is free."""
    for step in range(STEPS):
        wait_until_free(ring, step)
        load(x_tma, ring, step)


@gluon.jit
def sum_all(sums_gmem, ring, READER: gl.constexpr, READERS: gl.constexpr):
    """A compute thread: adds each tile, then releases its slot."""
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS)
    for step in range(STEPS):
        wait_until_full(ring, step)
        acc = add(acc, ring.smem.index(step % SLOTS), READER)
        release(ring, step)
    store_sums(sums_gmem, acc, READER, READERS)


@gluon.jit
def add(acc, smem, READER: gl.constexpr = 0):
    """Adds a tile TURNS times; the second reader, its squares."""
    for _ in range(TURNS):
        values = smem.load(REGISTERS)
        acc += values * values if READER else values
        gl.thread_barrier()  # so that the compiler cannot read once and keep the values
    return acc


@gluon.jit
def store_sums(sums_gmem, acc, READER: gl.constexpr = 0, READERS: gl.constexpr = 1):
    """Stores the sum of each row. A row is in one warp, so this needs no SMEM."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, REGISTERS))
    first = (gl.program_id(0) * READERS + READER) * ROWS
    gl.store(sums_gmem + first + rows, gl.sum(acc, axis=1))


@gluon.jit
def pointers(gmem, tile):
    """Where the elements of a tile are in GMEM."""
    rows = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, REGISTERS))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, REGISTERS))
    return gmem + rows[:, None] * COLUMNS + columns[None, :]


@gluon.jit
def new_tile():
    """SMEM for one tile."""
    return gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], SHARED)


@gluon.jit
def store(out_tma, tile, smem):
    """Starts to store a tile."""
    tma.async_copy_shared_to_global(out_tma, [tile * ROWS, 0], smem)


class Operands(NamedTuple):
    """Slots for what a step of the product multiplies, and the barriers that say they are full."""

    a: Any
    b: Any
    full: Any


@gluon.jit
def new_operands(a_tma, b_tma, COUNT: gl.constexpr):
    """COUNT slots, all free."""
    a = gl.allocate_shared_memory(gl.float16, [COUNT, TILE, DEPTH], a_tma.layout)
    b = gl.allocate_shared_memory(gl.float16, [COUNT, DEPTH, TILE], b_tma.layout)
    return Operands(a, b, new_barriers(COUNT, 1))


@gluon.jit
def load_operands(a_tma, b_tma, operands, step, COUNT: gl.constexpr):
    """Starts to load what a step multiplies: two copies, and one arrival for both."""
    slot = step % COUNT
    full = operands.full.index(slot)
    mbarrier.expect(full, a_tma.block_type.nbytes + b_tma.block_type.nbytes)
    row = gl.program_id(0) * TILE
    tma.async_copy_global_to_shared(a_tma, [row, step * DEPTH], full, operands.a.index(slot))
    tma.async_copy_global_to_shared(b_tma, [step * DEPTH, 0], full, operands.b.index(slot))


@gluon.jit
def wait_and_multiply(operands, step, acc, COUNT: gl.constexpr):
    """Waits for what a step multiplies, and starts to."""
    slot = step % COUNT
    mbarrier.wait(operands.full.index(slot), (step // COUNT) & 1)
    return warpgroup_mma(operands.a.index(slot), operands.b.index(slot), acc, is_async=True)


@gluon.jit
def no_product():
    """An accumulator of zeros."""
    return warpgroup_mma_init(gl.zeros([TILE, TILE], gl.float32, ACC))


@gluon.jit
def store_product(out_gmem, acc):
    """Waits for all products, and stores their sum."""
    product = warpgroup_mma_wait(0, deps=[acc])
    rows = gl.program_id(0) * TILE + gl.arange(0, TILE, gl.SliceLayout(1, ACC))
    columns = gl.arange(0, TILE, gl.SliceLayout(0, ACC))
    gl.store(out_gmem + rows[:, None] * TILE + columns[None, :], product)


# The faults. First: what is not yet there.


@fault(tiles(), plus_one)
@gluon.jit
def read_before_the_wait(x_tma, out_gmem, FIXED: gl.constexpr):
    """The tile is read while the copy that brings it is still on its way."""
    block = gl.program_id(0)
    smem, full = new_tile(), new_barriers(1, 1).index(0)
    copy(x_tma, block, smem, full)
    if FIXED:
        mbarrier.wait(full, 0)
    values = smem.load(REGISTERS)
    if not FIXED:
        mbarrier.wait(full, 0)  # too late
    gl.store(pointers(out_gmem, block), values + 1)


@fault(tiles(STEPS.value), moments())
@gluon.jit
def wrong_slot(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The thread waits for one slot's barrier and reads another slot."""
    ring = new_ring(x_tma, 1)
    gl.warp_specialize(
        [(sum_wrong_slots, (sums_gmem, ring, FIXED)), (load_all, (x_tma, ring))], [1], [LANE]
    )


@gluon.jit
def sum_wrong_slots(sums_gmem, ring, FIXED: gl.constexpr):
    """The compute thread of `wrong_slot`."""
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS)
    for step in range(STEPS):
        wait_until_full(ring, step)
        read = step if FIXED else step + 1
        acc = add(acc, ring.smem.index(read % SLOTS))
        release(ring, step)
    store_sums(sums_gmem, acc)


@fault(tiles(STEPS.value), lambda x: by_block(x).sum(1).view(-1, COLUMNS.value))
@gluon.jit
def uninitialized_smem(x_gmem, out_gmem, FIXED: gl.constexpr):
    """A total is kept in SMEM and added to, but never set to zero."""
    block = gl.program_id(0)
    total = new_tile()
    if FIXED:
        total.store(gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS))
    for step in range(STEPS):
        values = gl.load(pointers(x_gmem, block * STEPS + step))
        total.store(total.load(REGISTERS) + values)
    gl.store(pointers(out_gmem, block), total.load(REGISTERS))


@fault(tiles(), plus_one)
@gluon.jit
def missing_commit(x_gmem, out_tma, FIXED: gl.constexpr):
    """TMA is sent for a tile whose writes no fence has shown to it."""
    block = gl.program_id(0)
    smem = new_tile()
    smem.store(gl.load(pointers(x_gmem, block)) + 1)
    if FIXED:
        fence_async_shared()
    store(out_tma, block, smem)
    tma.store_wait(0)


@fault(factors, lambda a, b: 2 * matmul(a, b))
@gluon.jit
def missing_commit_before_wgmma(a_tma, b_tma, out_gmem, FIXED: gl.constexpr):
    """The tensor core multiplies a tile that a thread has just changed in SMEM."""
    operands = new_operands(a_tma, b_tma, 1)
    a, b, full = operands.a.index(0), operands.b.index(0), operands.full.index(0)
    acc = no_product()
    for step in range(PRODUCTS):
        load_operands(a_tma, b_tma, operands, step, 1)
        mbarrier.wait(full, step & 1)
        b.store(b.load(HALVES) * 2)
        if FIXED:
            fence_async_shared()
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
    store_product(out_gmem, acc)


# What is no longer there.


@fault(tiles(STEPS.value), moments())
@gluon.jit
def refill_too_early(x_tma, sums_gmem, FIXED: gl.constexpr):
    """A single thread starts to load the slot's next tile, and only then reads the present one."""
    ring = new_ring(x_tma, 1)
    for step in gl.static_range(SLOTS):
        load(x_tma, ring, step)
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS)
    for step in range(STEPS):
        wait_until_full(ring, step)
        if not FIXED:
            refill(x_tma, ring, step)  # too early
        acc = add(acc, ring.smem.index(step % SLOTS))
        fence_async_shared()
        if FIXED:
            refill(x_tma, ring, step)
    store_sums(sums_gmem, acc)


@gluon.jit
def refill(x_tma, ring, step):
    """Starts to load the slot's next tile, if there is one."""
    if step + SLOTS < STEPS:
        load(x_tma, ring, step + SLOTS)


@fault(tiles(STEPS.value), moments())
@gluon.jit
def missing_consumed_wait(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The memory thread loads tile after tile, whether the compute thread has read them or not."""
    ring = new_ring(x_tma, 1)
    gl.warp_specialize(
        [(sum_all, (sums_gmem, ring, 0, 1)), (load_unasked, (x_tma, ring, FIXED))], [1], [LANE]
    )


@gluon.jit
def load_unasked(x_tma, ring, FIXED: gl.constexpr):
    """The memory thread of `missing_consumed_wait`."""
    for step in range(STEPS):
        if FIXED:
            wait_until_free(ring, step)
        load(x_tma, ring, step)


@fault(tiles(STEPS.value), moments())
@gluon.jit
def release_too_early(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The compute thread says that a slot is free, and only then reads it."""
    ring = new_ring(x_tma, 1)
    gl.warp_specialize(
        [(sum_released, (sums_gmem, ring, FIXED)), (load_all, (x_tma, ring))], [1], [LANE]
    )


@gluon.jit
def sum_released(sums_gmem, ring, FIXED: gl.constexpr):
    """The compute thread of `release_too_early`."""
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS)
    for step in range(STEPS):
        wait_until_full(ring, step)
        if not FIXED:
            release(ring, step)  # too early
        acc = add(acc, ring.smem.index(step % SLOTS))
        if FIXED:
            release(ring, step)
    store_sums(sums_gmem, acc)


@fault(tiles(STEPS.value), moments(2))
@gluon.jit
def one_release_of_two(x_tma, sums_gmem, FIXED: gl.constexpr):
    """Two threads read each slot, but its barrier opens at the first one's arrival."""
    ring = new_ring(x_tma, 2 if FIXED else 1)
    gl.warp_specialize(
        [
            (sum_all, (sums_gmem, ring, 0, 2)),
            (sum_all, (sums_gmem, ring, 1, 2)),
            (load_all, (x_tma, ring)),
        ],
        [4, 1],
        [LANE, LANE],
    )


@fault(factors, matmul)
@gluon.jit
def undelayed_release(a_tma, b_tma, out_gmem, FIXED: gl.constexpr):
    """A slot is released while the product that reads it may be unfinished."""
    operands = new_operands(a_tma, b_tma, SLOTS)
    free = new_barriers(SLOTS, 1)
    gl.warp_specialize(
        [
            (multiply_and_release, (out_gmem, operands, free, FIXED)),
            (load_all_operands, (a_tma, b_tma, operands, free)),
        ],
        [1],
        [LANE],
    )


@gluon.jit
def multiply_and_release(out_gmem, operands, free, FIXED: gl.constexpr):
    """The compute thread of `undelayed_release`."""
    acc = no_product()
    for step in range(PRODUCTS):
        acc = wait_and_multiply(operands, step, acc, SLOTS)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))  # this step's product goes on
        finished = step - 1 if FIXED else step
        mbarrier.arrive(free.index(finished % SLOTS), count=1, pred=finished >= 0)
    store_product(out_gmem, acc)


@gluon.jit
def load_all_operands(a_tma, b_tma, operands, free):
    """The memory thread of `undelayed_release`."""
    for step in range(PRODUCTS):
        mbarrier.wait(free.index(step % SLOTS), (step // SLOTS + 1) & 1)
        load_operands(a_tma, b_tma, operands, step, SLOTS)


@fault(factors, matmul)
@gluon.jit
def missing_wgmma_wait(a_tma, b_tma, out_gmem, FIXED: gl.constexpr):
    """A slot is refilled right after the product was started on it, as if it had been awaited."""
    operands = new_operands(a_tma, b_tma, SLOTS)
    for step in gl.static_range(SLOTS):
        load_operands(a_tma, b_tma, operands, step, SLOTS)
    acc = no_product()
    for step in range(PRODUCTS):
        acc = wait_and_multiply(operands, step, acc, SLOTS)
        if FIXED:
            acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
        if step + SLOTS < PRODUCTS:
            load_operands(a_tma, b_tma, operands, step + SLOTS, SLOTS)
    store_product(out_gmem, acc)


# Barriers.


@fault(tiles(STEPS.value), moments())
@gluon.jit
def arrival_never_comes(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The barrier of a free slot expects two arrivals for each release, but one thread reads."""
    ring = new_ring(x_tma, 1 if FIXED else 2)
    gl.warp_specialize([(sum_all, (sums_gmem, ring, 0, 1)), (load_all, (x_tma, ring))], [1], [LANE])


@fault(tiles(arrays=2), lambda x, y: x + y)
@gluon.jit
def arrival_too_many(x_tma, y_tma, out_gmem, FIXED: gl.constexpr):
    """Two copies arrive at a barrier that expects one: the second arrives at a full phase."""
    block = gl.program_id(0)
    x_smem, y_smem = new_tile(), new_tile()
    full = new_barriers(1, 2 if FIXED else 1).index(0)
    copy(x_tma, block, x_smem, full)
    copy(y_tma, block, y_smem, full)
    mbarrier.wait(full, 0)
    gl.store(pointers(out_gmem, block), x_smem.load(REGISTERS) + y_smem.load(REGISTERS))


@fault(tiles(arrays=2), lambda x, y: x + y)
@gluon.jit
def wrong_bytes(x_tma, y_tma, out_gmem, FIXED: gl.constexpr):
    """A barrier that two copies share is told the bytes of one: it opens when half has landed."""
    block = gl.program_id(0)
    x_smem, y_smem = new_tile(), new_tile()
    full = new_barriers(1, 1).index(0)
    mbarrier.expect(full, x_tma.block_type.nbytes * (2 if FIXED else 1))
    tma.async_copy_global_to_shared(x_tma, [block * ROWS, 0], full, x_smem)
    tma.async_copy_global_to_shared(y_tma, [block * ROWS, 0], full, y_smem)
    mbarrier.wait(full, 0)
    gl.store(pointers(out_gmem, block), x_smem.load(REGISTERS) + y_smem.load(REGISTERS))


@fault(tiles(), multiples(WRITES.value))
@gluon.jit
def lapped_waiter(x_gmem, out_tma, FIXED: gl.constexpr):
    """One thread arrives at a barrier several times before the other has looked once."""
    smem = gl.allocate_shared_memory(gl.float32, [WRITES, ROWS, COLUMNS], SHARED)
    written = new_barriers(WRITES if FIXED else 1, 1)
    gl.warp_specialize(
        [
            (write_multiples, (x_gmem, smem, written, FIXED)),
            (store_multiples, (out_tma, smem, written, FIXED)),
        ],
        [1],
        [LANE],
    )


@gluon.jit
def write_multiples(x_gmem, smem, written, FIXED: gl.constexpr):
    """The first thread of `lapped_waiter`."""
    values = gl.load(pointers(x_gmem, gl.program_id(0)))
    for k in gl.static_range(WRITES):
        smem.index(k).store(values * (k + 1))
        fence_async_shared()
        mbarrier.arrive(written.index(k if FIXED else 0), count=1)


@gluon.jit
def store_multiples(out_tma, smem, written, FIXED: gl.constexpr):
    """The second thread of `lapped_waiter`."""
    for k in gl.static_range(WRITES):
        mbarrier.wait(written.index(k if FIXED else 0), 0 if FIXED else k & 1)
        store(out_tma, gl.program_id(0) * WRITES + k, smem.index(k))
        tma.store_wait(0)


@fault(tiles(STEPS.value), moments())
@gluon.jit
def one_load_too_few(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The compute thread waits for a last tile that the memory thread does not load."""
    ring = new_ring(x_tma, 1)
    gl.warp_specialize(
        [(sum_all, (sums_gmem, ring, 0, 1)), (load_some, (x_tma, ring, FIXED))], [1], [LANE]
    )


@gluon.jit
def load_some(x_tma, ring, FIXED: gl.constexpr):
    """The memory thread of `one_load_too_few`."""
    for step in range(STEPS if FIXED else STEPS - 1):
        wait_until_free(ring, step)
        load(x_tma, ring, step)


@fault(tiles(STEPS.value), moments())
@gluon.jit
def waiting_in_a_circle(x_tma, sums_gmem, FIXED: gl.constexpr):
    """The memory thread waits for a release before its first load, which nobody can give."""
    ring = new_ring(x_tma, 1)
    gl.warp_specialize(
        [(sum_all, (sums_gmem, ring, 0, 1)), (load_released, (x_tma, ring, FIXED))], [1], [LANE]
    )


@gluon.jit
def load_released(x_tma, ring, FIXED: gl.constexpr):
    """The memory thread of `waiting_in_a_circle`."""
    for step in range(STEPS):
        # A slot's first wait is for the phase before phase 0, or for phase 0.
        wait_until_free(ring, step if FIXED else step + SLOTS)
        load(x_tma, ring, step)


# The way out.


@fault(tiles(), multiples(STEPS.value))
@gluon.jit
def staging_used_again(x_gmem, out_tma, FIXED: gl.constexpr):
    """The next result is written into SMEM from which the last is still being stored."""
    block = gl.program_id(0)
    smem = new_tile()
    values = gl.load(pointers(x_gmem, block))
    for k in gl.static_range(STEPS):
        smem.store(values * (k + 1))
        fence_async_shared()
        store(out_tma, block * STEPS + k, smem)
        if FIXED:
            tma.store_wait(0)
    tma.store_wait(0)


@fault(tiles(), plus_one)
@gluon.jit
def exit_before_the_store(x_gmem, out_tma, FIXED: gl.constexpr):
    """A block ends while TMA may still be reading its SMEM."""
    block = gl.program_id(0)
    smem = new_tile()
    smem.store(gl.load(pointers(x_gmem, block)) + 1)
    fence_async_shared()
    store(out_tma, block, smem)
    if FIXED:
        tma.store_wait(0)


@fault(tiles(), multiples(STEPS.value))
@gluon.jit
def never_stored(x_gmem, out_tma, FIXED: gl.constexpr):
    """The condition for another load guards the store too, so the last result stays in SMEM."""
    block = gl.program_id(0)
    smem = new_tile()
    values = gl.load(pointers(x_gmem, block))
    for k in gl.static_range(STEPS):
        smem.store(values * (k + 1))
        fence_async_shared()
        if FIXED or k + 1 < STEPS:
            store(out_tma, block * STEPS + k, smem)
            tma.store_wait(0)


@fault(tiles(2), plus_one)
@gluon.jit
def same_output_block(x_gmem, out_tma, FIXED: gl.constexpr):
    """Both threads of a block store their tiles in the same place."""
    smem = gl.allocate_shared_memory(gl.float32, [2, ROWS, COLUMNS], SHARED)
    gl.warp_specialize(
        [
            (store_mine, (x_gmem, out_tma, smem, 0, FIXED)),
            (store_mine, (x_gmem, out_tma, smem, 1, FIXED)),
        ],
        [4],
        [LANE],
    )


@gluon.jit
def store_mine(x_gmem, out_tma, smem, THREAD: gl.constexpr, FIXED: gl.constexpr):
    """Each thread of `same_output_block`."""
    first = 2 * gl.program_id(0)
    smem.index(THREAD).store(gl.load(pointers(x_gmem, first + THREAD)) + 1)
    fence_async_shared()
    store(out_tma, first + THREAD if FIXED else first, smem.index(THREAD))
    tma.store_wait(0)


@fault(tiles(), plus_one)
@gluon.jit
def too_much_smem(x_tma, out_gmem, FIXED: gl.constexpr):
    """A ring of 256 KiB is more shared memory than a block can have."""
    block = gl.program_id(0)
    slots: gl.constexpr = 2 if FIXED else 16
    ring = gl.allocate_shared_memory(gl.float32, [slots, ROWS, COLUMNS], x_tma.layout)
    full = new_barriers(1, 1).index(0)
    copy(x_tma, block, ring.index(slots - 1), full)
    mbarrier.wait(full, 0)
    gl.store(pointers(out_gmem, block), ring.index(slots - 1).load(REGISTERS) + 1)


# The command.


def launched(name: str, *, fixed: bool, blocks: int) -> Callable[[], bool]:
    """A function that launches one version once, and says whether the result is right."""
    kernel, inputs, reference = FAULTS[name]
    given = inputs(blocks)
    right = reference(*given)
    out = torch.empty_like(right)
    pairs = zip(kernel.arg_names, (*given, out), strict=False)
    arguments = [described(parameter, tensor) for parameter, tensor in pairs]

    def run() -> bool:
        out.fill_(torch.nan)
        kernel[(blocks,)](*arguments, FIXED=fixed, num_warps=4, maxnreg=LANE.value)
        return torch.equal(out, right)

    return run


def described(parameter: str, tensor: torch.Tensor) -> Any:
    """The tensor, or its descriptor where the parameter is one."""
    if parameter not in BOXES:
        return tensor
    box = [size.value for size in BOXES[parameter]]
    bits = 8 * tensor.element_size()
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=bits, rank=2)
    return TensorDescriptor.from_tensor(tensor, box, layout)


def repeated(name: str, *, fixed: bool, runs: int, blocks: int) -> dict[str, Any]:
    """What `runs` launches of one version do, as the command prints it."""
    done = wrong = 0
    try:
        run = launched(name, fixed=fixed, blocks=blocks)
        while done < runs:
            wrong += not run()
            done += 1
    except (RuntimeError, TritonError) as error:
        return {"error": f"{type(error).__name__}: {str(error).partition('\n')[0]}", "runs": done}
    return {"runs": runs, "wrong": wrong}


def main(arguments: list[str]) -> None:
    """Lists the names, or runs one version of a kernel."""
    if arguments == ["list"]:
        print(*FAULTS, sep="\n")
        return
    name, version, runs, *blocks = arguments
    triton.set_allocator(lambda size, _, __: torch.empty(size, dtype=torch.int8, device="cuda"))
    fixed = {"fixed": True, "faulty": False}[version]
    grid = int(blocks[0]) if blocks else 8
    print(json.dumps(repeated(name, fixed=fixed, runs=int(runs), blocks=grid)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
