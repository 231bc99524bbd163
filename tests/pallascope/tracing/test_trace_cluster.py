"""Clusters: all blocks in one program, their barriers' peers, loads that are shared."""

import collections
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.tracing.views import View, share
from tests.pallascope import corpus
from tests.pallascope.constructs.clusters import X, of, of_two

pytestmark = pytest.mark.both_jax

CORPUS = {kernel.name: kernel for kernel in corpus.clean()}
MULTICAST = [
    name for name in CORPUS if "cluster_dimension" in name or name.startswith("contract/multicast")
]


@pytest.mark.parametrize("name", MULTICAST)
def test_barriers_get_what_is_waited_for(name):
    """Arrivals, those of peers among them, make whole phases; each is waited for."""
    program = CORPUS[name].trace()
    assert program.blocks == 2
    per_block = len(program.threads) // 2
    assert len(program.registers) == len(program.threads)
    arrivals, waits = collections.Counter(), collections.Counter()
    bytes_landed, bytes_expected = collections.Counter(), collections.Counter()
    for op in (op for op in program.ops if op.barrier is not None):
        barrier = program.barriers[op.barrier]
        assert barrier.block == op.thread // per_block
        if op.kind == "wait":
            waits[op.barrier, op.index, op.thread] += 1
            continue
        for peer in (op.kind == "arrive" and barrier.peers) or (op.barrier,):
            arrivals[peer, op.index] += 1
        if op.kind == "load":
            bytes_expected[op.barrier, op.index] += op.bytes * max(len(op.peers), 1)
            for peer in op.peers or (op.barrier,):
                bytes_landed[peer, op.index] += op.bytes
    assert waits
    for (barrier, index, _), count in waits.items():
        assert count * program.barriers[barrier].arrivals == arrivals[barrier, index]
    assert bytes_landed == bytes_expected


@pytest.mark.parametrize("name", MULTICAST)
def test_the_blocks_shares_make_the_whole(name):
    program = CORPUS[name].trace()
    loads = [[op for op in ops if op.peers] for ops in program.threads]
    pairs = list(zip(*(ops for ops in loads if ops), strict=True))
    assert pairs
    for pair in pairs:
        for block, op in enumerate(pair):
            assert [program.buffers[region.buffer].block for region in op.writes] == [0, 1]
            assert [program.barriers[peer].block for peer in op.peers] == [0, 1]
            assert op.barrier == op.peers[block]
            assert len({region.box for region in op.writes}) == 1
            elements = math.prod(b - a for a, b in op.reads[0].box)
            assert elements == math.prod(b - a for a, b in op.writes[0].box)
            dtype = program.buffers[op.writes[0].buffer].dtype
            assert op.bytes == elements * jnp.dtype(dtype).itemsize
        for regions in zip(*(op.reads + op.writes for op in pair)):
            first, second = (region.box for region in regions)
            (cut,) = [(one, other) for one, other in zip(first, second) if one != other]
            assert cut[0][1] == cut[1][0]


def test_names_blocks_and_shared_gmem():
    program = CORPUS["jax/matmul-cluster_dimension=M"].trace()
    for buffer in program.buffers:
        assert (buffer.block is None) == (buffer.space == "gmem")
        assert buffer.space == "gmem" or buffer.name.endswith(f"@{buffer.block}")
    blocks = [
        [(b.name[:-1], b.shape) for b in program.buffers if b.block == block] for block in (0, 1)
    ]
    assert blocks[0] == blocks[1]
    assert [b.name for b in program.buffers if b.space == "gmem"] == ["a", "b", "out0"]


def barriers_of(shape, names, axes, arrivals=1):
    def kernel(x, o, barrier):
        plgpu.barrier_arrive(barrier)
        plgpu.barrier_wait(barrier)

    scratch = [plgpu.ClusterBarrier(collective_axes=axes, num_arrivals=arrivals)]
    program = pallascope.trace(of(kernel, shape, names, scratch_types=scratch), X)
    assert program.blocks == math.prod(shape)
    return program.barriers


@pytest.mark.parametrize(
    ("shape", "axes", "arrivals", "peers"),
    [
        # Blocks (0, 0), (0, 1), (1, 0) and (1, 1): both axes at once are not reached...
        ((2, 2), ("x", "y"), 3, [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]),
        # ... unless they are one group; and along one axis, pairs.
        ((2, 2), (("x", "y"),), 4, [(0, 1, 2, 3)] * 4),
        ((2, 2), ("x",), 2, [(0, 2), (1, 3), (0, 2), (1, 3)]),
        ((2, 2), ("y",), 2, [(0, 1), (0, 1), (2, 3), (2, 3)]),
        ((1, 2), ("x",), 1, [(), ()]),
    ],
)
def test_a_cluster_barrier_s_peers_and_arrivals(shape, axes, arrivals, peers):
    barriers = barriers_of(shape, ("x", "y"), axes, arrivals=5)
    assert [barrier.peers for barrier in barriers] == peers
    assert [barrier.arrivals for barrier in barriers] == [5 * arrivals] * len(peers)
    assert [barrier.name for barrier in barriers] == [f"barrier@{b}" for b in range(len(peers))]


def test_which_share_is_a_block_s():
    def kernel(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x.at[0:64], smem, barrier, collective_axes=("x", "y"))

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    program = pallascope.trace(of(kernel, (2, 2), ("x", "y"), scratch_types=scratch), X)
    rows = [ops[1].reads[0].box[0] for ops in program.threads]
    assert rows == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert program.threads[2][1].peers == (0, 1, 2, 3)
    assert program.threads[2][1].barrier == 2


def test_block_picks_the_cluster():
    def kernel(x, o):
        o[lax.axis_index("i"), lax.axis_index("x")] = jnp.float16(0)

    call = of(kernel, grid=(3,), grid_names=("i",))
    for block in ((2,), (2, 0)):
        program = pallascope.trace(call, X, block=block)
        places = [ops[1].writes[0].box for ops in program.threads]
        assert places == [((2, 3), (0, 1)), ((2, 3), (1, 2))]
        assert program.block == (2, 0)
    with pytest.raises(ValueError, match=r"has 1 on the cluster's axis 'x', but the blocks of a"):
        pallascope.trace(call, X, block=(2, 1))


def test_what_a_block_does_in_another():
    """Arrivals on another's barrier, values stored to its SMEM."""

    def kernel(x, o, smem, there, barrier):
        other = 1 - lax.axis_index("x")
        plgpu.barrier_arrive(plgpu.cluster_ref(barrier, {"x": other}))
        value = plgpu.layout_cast(smem[...], plgpu.Layout.WG_STRIDED((64, 64), vec_size=2))
        plgpu.async_store_smem(value, there, barrier, cluster_idx=other, cluster_dim="x")
        plgpu.barrier_wait(barrier)

    tile = plgpu.SMEM((64, 64), jnp.float16)
    scratch = [tile, tile, plgpu.Barrier(num_arrivals=2)]
    program = pallascope.trace(of(kernel, scratch_types=scratch), X)
    for block, ops in enumerate(program.threads):
        lines = [program.describe(replace(op, line=None)) for op in ops[1:-1]]
        other = 1 - block
        assert lines == [
            f"arrive on barrier@{other}[0] #0",
            f"read reads smem@{block}[0:64, 0:64]",
            f"load writes there@{other}[0:64, 0:64] on barrier@{other}[0] #1 (from registers)",
            f"wait on barrier@{block}[0] #0",
        ]


def test_what_two_blocks_add_to_the_memory_of_one():
    """Two atomic additions to one place are no race; two copies are."""
    added, copied = of_two("add"), of_two(None)
    loads = [op for op in added.ops if op.kind == "load"]
    assert [(op.from_registers, op.combines) for op in loads] == [(True, "add")] * 2
    assert "(from registers, atomic add)" in added.describe(loads[0])
    assert pallascope.check(added).ok
    races = [finding for finding in pallascope.check(copied) if finding.kind == "race"]
    assert [[op.kind for op in finding.ops] for finding in races] == [["load", "load"]]


def test_a_block_that_the_cluster_lacks():
    def kernel(x, o, barrier):
        plgpu.barrier_arrive(plgpu.cluster_ref(barrier, {"x": lax.axis_index("x") + 1}))

    told = (
        r"Block \(1,\) reaches for the block \(2,\), but the axes x have the sizes \(2,\), so there"
    )
    with pytest.raises(ValueError, match=told):
        pallascope.trace(of(kernel, scratch_types=[plgpu.Barrier()]), X)


def untiled(shape):
    """A view of a whole buffer."""
    aval = collections.namedtuple("Aval", "shape dtype")(shape, jnp.dtype("float16"))
    return View(0, aval, (), "here.py:1")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3),
    count=st.sampled_from([2, 3, 4, 8]),
)
def test_shares_are_a_partition_or_refused(shape, count):
    view = untiled(tuple(shape))
    try:
        boxes = [share(view, number, count) for number in range(count)]
    except NotImplementedError as error:
        assert f"is shared by {count} blocks, whose parts are no boxes" in str(error)
        return
    seen = np.zeros(shape, int)
    for box in boxes:
        seen[tuple(slice(a, b) for a, b in box)] += 1
    assert (seen == 1).all()
