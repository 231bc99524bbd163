"""The sum of each row by a memory thread and a ring of two slots, in CUTLASS's CuTe DSL."""

# pyright: reportAttributeAccessIssue=false

import operator

import cutlass
from cutlass import cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync

ROWS, COLUMNS, SLOTS = 64, 64, 2
COMPUTE_WARPS, LANES_OF_A_ROW = 4, 16


@cute.kernel
def kernel(
    copy: cute.CopyAtom, x_gmem: cute.Tensor, sums_gmem: cute.Tensor, ring_layout: cute.Layout
):
    """One block: the sums of `ROWS` rows."""
    block, _, _ = cute.arch.block_idx()
    lane, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    # The slot: one of the ring's last mode.
    ring_smem = smem.allocate_tensor(cutlass.Float32, ring_layout, 128)
    memory, compute = pipeline.PipelineTmaAsync.create(
        num_stages=SLOTS,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, COMPUTE_WARPS),
        tx_count=ROWS * COLUMNS * 4,
        barrier_storage=smem.allocate_array(cutlass.Int64, 2 * SLOTS),
    ).make_participants()
    tiles = cute.local_tile(x_gmem, (ROWS, COLUMNS), (block, None))
    to_smem, from_gmem = cpasync.tma_partition(
        copy, 0, cute.make_layout(1), *(cute.group_modes(t, 0, 2) for t in (ring_smem, tiles))
    )
    steps = cute.size(tiles, mode=[2])

    # The role: the last warp loads, the first four add.
    if warp == COMPUTE_WARPS:
        for step in cutlass.range(steps):
            slot = memory.acquire_and_advance()  # waits until it is free, and tells it the bytes
            # The copy: its barrier is the slot's.
            cute.copy(copy, from_gmem[None, step], to_smem[None, slot.index],
                      tma_bar_ptr=slot.barrier)  # fmt: skip
        memory.tail()
    else:
        lanes = cute.make_layout((8, LANES_OF_A_ROW), stride=(LANES_OF_A_ROW, 1))
        load = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), cutlass.Float32)
        tiled = cute.make_tiled_copy_tv(load, lanes, cute.make_layout((1, 4))).get_slice(lane)
        mine_smem = tiled.partition_S(ring_smem)
        acc = cute.make_rmem_tensor(mine_smem[None, None, None, 0].shape, cutlass.Float32)
        acc.fill(0.0)
        for _ in cutlass.range(steps):
            # The barrier that says it has landed: the pipeline counts the phases.
            slot = compute.wait_and_advance()
            acc.store(acc.load() + mine_smem[None, None, None, slot.index].load())
            # The release: a fence after the reads, then one arrival of each warp.
            cute.arch.fence_view_async_shared()
            cute.arch.sync_warp()
            slot.release()
        for i in cutlass.range_constexpr(ROWS // 8):
            own = acc[None, i, None].load().reduce(cute.ReductionOp.ADD, 0.0, 0)
            total = cute.arch.warp_reduction(own, operator.add, threads_in_group=LANES_OF_A_ROW)
            if lane % LANES_OF_A_ROW == 0:
                sums_gmem[block * ROWS + i * 8 + lane // LANES_OF_A_ROW] = total


@cute.jit
def row_sums(x: cute.Tensor, sums: cute.Tensor):
    """Puts the sum of each row of x, float32, whose shape is of whole tiles, into `sums`."""
    ring = cute.make_layout((ROWS, COLUMNS, SLOTS), stride=(COLUMNS, 1, ROWS * COLUMNS))
    copy, x_gmem = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), x, cute.select(ring, [0, 1]), (ROWS, COLUMNS)
    )
    kernel(copy, x_gmem, sums, ring).launch(
        grid=(x.shape[0] // ROWS, 1, 1), block=(32 * (COMPUTE_WARPS + 1), 1, 1)
    )
