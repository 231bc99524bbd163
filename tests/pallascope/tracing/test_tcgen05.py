"""Blackwell's tensor core in a trace: what its primitives become. `test_blackwell` checks them."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from tests.pallascope import blackwell
from tests.pallascope.kernels import like, of

pytestmark = pytest.mark.both_jax

KINDS = "tcgen05_mma", "tcgen05_copy", "tcgen05_commit", "load_tmem", "store_tmem"


def described(program, thread=0, kinds=KINDS):
    """The ops of some kinds, without their lines."""
    ops = (op for op in program.threads[thread] if op.kind in kinds)
    return [program.describe(op).partition("  [")[0] for op in ops]


def test_a_product_is_a_start_and_a_commit():
    program = pallascope.trace(*blackwell.multiplied(2, 1))
    smem = "a_smem[0, 0:128, 0:64], b_smem[0, 0:64, 0:64]"
    assert described(program) == [
        f"tcgen05_mma reads {smem} writes acc[0:128, 0:64]",
        "tcgen05_commit on consumed[0] #0",
        f"tcgen05_mma reads {smem}, acc[0:128, 0:64] writes acc[0:128, 0:64]",
        "tcgen05_commit on finished[0] #0",
        "load_tmem reads acc[0:128, 0:64]",
    ]
    first, second = (op for op in program.threads[0] if op.kind == "tcgen05_mma")
    assert (len(first.reads), len(second.reads)) == (2, 3)  # which adds to what is there
    assert second.reads[2] == second.writes[0]
    assert first.flops == 2 * 128 * 64 * 64
    assert program.tmem_columns == 64


def test_two_blocks_multiply_in_one_op_of_the_first():
    program = pallascope.trace(*blackwell.paired())
    product = next(op for op in program.threads[0] if op.kind == "tcgen05_mma")
    names = lambda regions: [program.index_of(region) for region in regions]
    assert names(product.reads) == [
        "a_smem@0[0, 0:128, 0:64]",
        "a_smem@1[0, 0:128, 0:64]",
        "b_smem@0[0, 0:64, 0:64]",
        "b_smem@1[0, 0:64, 0:64]",
    ]
    assert names(product.writes) == ["acc@0[0:128, 0:128]", "acc@1[0:128, 0:128]"]
    assert product.flops == 2 * 256 * 128 * 64
    assert described(program, 1, ("tcgen05_mma", "tcgen05_commit")) == []
    commit = next(op for op in program.threads[0] if op.kind == "tcgen05_commit")
    assert [program.barriers[peer].name for peer in commit.peers] == ["consumed@0", "consumed@1"]


def test_one_block_tracks_the_copies_of_both():
    program = pallascope.trace(*blackwell.paired())
    mine, others = ([op for op in ops if op.kind == "load"] for ops in program.threads)
    assert [(op.parts, program.barriers[op.peers[0]].name) for op in mine[:2] + others[:2]] == [
        (2, "produced@0"),
        (2, "produced@0"),
        (0, "produced@0"),
        (0, "produced@0"),
    ]
    assert program.index_of(mine[0].reads[0]) == "a[0:128, 0:64]"
    assert program.index_of(others[0].reads[0]) == "a[128:256, 0:64]"
    assert program.index_of(others[1].reads[0]) == "b[0:64, 64:128]"


def test_a_replicated_copy_is_all_of_it_in_each_block():
    def kernel(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(
            x.at[0:64],
            smem,
            barrier,
            collective_axes="x",
            leader_tracked=plgpu.CopyPartition.REPLICATED,
        )

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    call = of(kernel, scratch_types=scratch, cluster=(2,), cluster_names=("x",))
    program = pallascope.trace(call, like(256, 64))
    loads = [op for op in program.ops if op.kind == "load"]
    assert [op.parts for op in loads] == [2, 0]
    assert loads[0].reads == loads[1].reads


def test_members_of_a_union_overlap_in_columns():
    """128 sums of 32 bits, or twice as many numbers of 16, in one column for each."""
    program = pallascope.trace(*blackwell.chained())
    assert described(program, 1, ("load_tmem", "store_tmem")) == [
        "load_tmem reads memory[0:128, 0:128]",
        "store_tmem writes memory[0:128, 0:64]",
        "load_tmem reads acc[0:128, 0:64]",
    ]
    assert program.tmem_columns == 128 + 64
    apart = pallascope.trace(*blackwell.chained(aliased=False))
    assert apart.tmem_columns == 128 + 64 + 64
    assert all(r.is_exact for op in program.ops for r in op.reads + op.writes)


def test_members_side_by_side_and_of_half_the_rows():
    """Of 64 rows it is not followed which lanes have them: all of their columns are taken."""
    half, whole = plgpu.TMEM((64, 64), jnp.float32), plgpu.TMEM((128, 32), jnp.float32)

    def kernel(x, o, memory):
        first, (second, third) = memory
        plgpu.async_load_tmem(first.at[:, pl.ds(8, 8)])
        plgpu.async_load_tmem(second)
        plgpu.async_load_tmem(third.at[:, pl.ds(8, 8)])

    scratch = [plgpu.RefUnion(half, [whole, whole])]
    program = pallascope.trace(of(kernel, scratch_types=scratch), like(256, 64))
    assert described(program, kinds=("load_tmem",)) == [
        "load_tmem reads memory[0:128, 0:32]",
        "load_tmem reads memory[0:128, 0:32]",
        "load_tmem reads memory[0:128, 40:48]",
    ]


def test_a_batch_lies_side_by_side():
    def kernel(x, o, acc):
        plgpu.async_load_tmem(acc.at[lax.axis_index("i")])
        plgpu.async_load_tmem(acc.at[1].at[:, pl.ds(8, 8)])

    scratch = [plgpu.TMEM((3, 128, 32), jnp.float32)]
    call = of(kernel, scratch_types=scratch, grid=(3,), grid_names=("i",))
    program = pallascope.trace(call, like(256, 64), block=(2,))
    assert described(program) == [
        "load_tmem reads acc[0:128, 64:96]",
        "load_tmem reads acc[0:128, 40:48]",
    ]
    assert program.tmem_columns == 96


def test_scales_are_copied_in_the_queue_of_products():
    program = pallascope.trace(*blackwell.scaled(1))
    a, b, *_ = described(program)
    assert a == "tcgen05_copy reads as_smem[0, 0, 0:32, 0:16] writes rest.0[0:128, 0:4]"
    assert b.startswith("tcgen05_copy reads bs_smem")
    op = next(op for op in program.threads[0] if op.kind == "tcgen05_mma")
    assert [program.buffers[region.buffer].name for region in op.reads] == [
        "a_smem",
        "b_smem",
        "rest.0",
        "rest.1",
    ]


@pytest.mark.parametrize(
    ("claims", "tiles"), [(0, [1]), (1, [1, 2]), (4, [1, 2, 3]), (9, [1, 2, 3])]
)
def test_a_cluster_claims_those_that_follow_it(claims, tiles):
    """As many as it is told and as there are, each in all threads; the next attempt fails."""
    program = pallascope.trace(*blackwell.fetching(4), block=(1,), claims=claims)
    for ops in program.threads:
        stored = [op.writes[0].box[0][0] // 128 for op in ops if op.kind == "store"]
        assert stored == tiles
    asked = [op for op in program.threads[0] if op.claims]
    assert len(asked) == len(tiles) and all(op.bytes == 16 for op in asked)
    arrived = [
        op.parts
        for op in program.threads[1]
        if op.kind == "arrive" and program.barriers[op.barrier].name == "try_cancel_barrier"
    ]
    assert arrived == [None] * len(tiles)


def test_a_block_that_is_asked_for_claims_none_by_default():
    """So that the programs of all blocks, each with its own tile, can be compared."""
    stores = lambda **options: sum(
        op.kind == "store" for op in pallascope.trace(*blackwell.fetching(9), **options).threads[0]
    )
    assert (stores(), stores(block=(0,)), stores(block=(0,), claims=2)) == (5, 1, 3)


def test_an_answer_lands_in_all_blocks_of_a_cluster():
    program = pallascope.trace(*blackwell.fetching(2, blocks=2, threads=1))
    asked = next(op for op in program.threads[0] if op.claims)
    assert [program.buffers[region.buffer].block for region in asked.writes] == [0, 1]
    assert asked.parts == 1 and len(asked.peers) == 2
    assert not any(op.claims for op in program.threads[1])
    told = next(op for op in program.threads[1] if op.kind == "arrive")
    assert told.parts == 1  # it announces the answer that the other block asks for


def test_no_cluster_claims_others_where_all_are_traced():
    program = pallascope.trace(*blackwell.fetching(3), whole_grid=True)
    assert sum(op.kind == "store" for op in program.threads[0]) == 1


def test_claims_that_are_no_number():
    with pytest.raises(ValueError, match="claims=-1 is less than 0: give 0 for a cluster that"):
        pallascope.trace(*blackwell.fetching(3), claims=-1)
    with pytest.raises(TypeError, match="an integer for claims="):
        pallascope.trace(*blackwell.fetching(3), claims="all")
