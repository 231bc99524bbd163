"""The sum of each row by a memory thread and a ring of two slots, in Triton's Gluon."""

# pyright: reportIndexIssue=false

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS, COLUMNS, SLOTS = gl.constexpr(64), gl.constexpr(64), gl.constexpr(2)
#: Of a tile in SMEM, and of one in the registers of four warps.
SHARED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
REGISTERS = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))


@gluon.jit
def memory_thread(x_gmem, steps, ring_smem, full, empty):
    """Loads all tiles of a block."""
    row = gl.program_id(0) * ROWS
    for step in range(steps):
        slot = step % SLOTS
        # At first all slots are free: a wait for the phase before the first one returns.
        mbarrier.wait(empty.index(slot), (step // SLOTS + 1) & 1)
        # The copy: its barrier is an argument, and has been told its bytes.
        mbarrier.expect(full.index(slot), x_gmem.block_type.nbytes)
        tile = ring_smem.index(slot)
        tma.async_copy_global_to_shared(x_gmem, [row, step * COLUMNS], full.index(slot), tile)


@gluon.jit
def compute_thread(sums_gmem, steps, ring_smem, full, empty):
    """Adds all tiles of a block."""
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, REGISTERS)
    for step in range(steps):
        slot = step % SLOTS
        # The barrier that says it has landed: the phase is counted by hand.
        mbarrier.wait(full.index(slot), (step // SLOTS) & 1)
        acc += ring_smem.index(slot).load(REGISTERS)
        # The release: a fence after the reads, then one arrival of all warps.
        fence_async_shared()
        mbarrier.arrive(empty.index(slot), count=1)
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, REGISTERS))
    gl.store(sums_gmem + rows, gl.sum(acc, axis=1))


@gluon.jit
def kernel(x_gmem, sums_gmem, steps):
    """One block: the sums of `ROWS` rows."""
    # The slot: one of the ring's first axis.
    ring_smem = gl.allocate_shared_memory(gl.float32, [SLOTS, ROWS, COLUMNS], x_gmem.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    # The role: one more warp loads; the kernel's own four add.
    gl.warp_specialize(
        [
            (compute_thread, (sums_gmem, steps, ring_smem, full, empty)),
            (memory_thread, (x_gmem, steps, ring_smem, full, empty)),
        ],
        [1],
        [24],
    )


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row of x, float32, whose shape is of whole tiles."""
    sums = torch.empty(len(x), dtype=x.dtype, device=x.device)
    x_gmem = TensorDescriptor.from_tensor(x, [ROWS.value, COLUMNS.value], SHARED)
    steps, grid = x.shape[1] // COLUMNS.value, (len(x) // ROWS.value,)
    kernel[grid](x_gmem, sums, steps, num_warps=4, maxnreg=128)  # so that two blocks fit
    return sums
