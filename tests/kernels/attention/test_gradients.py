"""The gradients of `pipelib.kernels.attention` against float64: by its kernels, by plain JAX."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import PartitionSpec as P

import pallascope
from pallascope.compiling import compiled_all
from pipelib import specs
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import default_config
from pipelib.kernels.attention.backward import parts_of
from pipelib.kernels.attention.config import (
    ALL,
    DK,
    DKV,
    DQ,
    DV,
    HEAD_DIMS,
    PROBABILITIES,
    GradientConfig,
)
from pipelib.kernels.attention.gradients import GradientOfAll
from pipelib.kernels.attention.order import BlockOrder
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    BRAIN,
    SINKS,
    config_of,
    exact_gradients,
    ids,
    lowered,
    operands,
    small,
)
from tests.kernels.attention.gradient_cases import (
    FUSED,
    TOLERANCE,
    check,
    cotangents,
    gradients,
)
from tests.kernels.devices import pretend

CASES = {
    "causal, grouped heads, ragged": ((40, 72, 2, 1), {"causal": True}),
    "window, segments, most see nothing": (
        (72, 40, 1, 1),
        {"window": (10, 5), "segment_ids": (ids(1, 20, 52), ids(1, 32, 8))},
    ),
    "soft cap, sinks": ((72, 40, 4, 2), {"causal": True, "soft_cap": 1.5, "sinks": SINKS}),
}


def kernels(call, *args):
    """How many kernels a function calls."""
    return str(jax.make_jaxpr(call)(*args)).count("num_threads=")


# Interpreted, with race detection.


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    shape, options = CASES[case]
    with interpreted():
        check(operands(*shape), config=small("plain"), **options)


def test_three_kernels():
    """Of dQ, of dK and of dV, with a head of 256."""
    with interpreted():
        check(operands(40, 72, 2, 1, 256), config=small("plain"), causal=True)


def test_two_threads_and_more_steps_than_slots():
    config = dataclasses.replace(
        small("overlap"), dq=GradientConfig(), dkv=GradientConfig(compute_threads=2)
    )
    with interpreted():
        check(operands(128, 136, dtype=BRAIN), config=config, scale=0.3)


# One kernel of all three, interpreted. JAX's interpreter has no stores that add, so what adds here
# reads and writes: no race within a block, whose threads have columns of their own, but blocks race
# unless the interpreter, which runs them in turn, is not asked. It cannot read beyond dQ's end.

FUSED_CASES = {
    "two heads, one thread": (1, 64, (64, 72, 2, 1), {"causal": True}),
    "two threads": (2, 128, (128, 128, 1, 1), {"scale": 0.3}),
    "two blocks of keys": (2, 128, (128, 136, 1, 1), {}),
    "segments, some see nothing": (
        2,
        128,
        (192, 136, 1, 1),
        {"window": (10, 5), "segment_ids": (ids(1, 20, 172), ids(1, 32, 104))},
    ),
    "soft cap": (2, 128, (128, 136, 1, 1), {"causal": True, "soft_cap": 1.5}),
}


@pytest.fixture
def reads_and_writes(monkeypatch):
    """What stores that add are replaced with."""
    copy = plgpu.copy_smem_to_gmem

    def add(source, target, reduction_op=None):
        if reduction_op is None:
            return copy(source, target)
        assert reduction_op == "add" and source.dtype == jnp.float32
        source[...] += target[...]
        plgpu.commit_smem()
        copy(source, target)
        plgpu.wait_smem_to_gmem(0)

    monkeypatch.setattr(plgpu, "copy_smem_to_gmem", add)


@pytest.mark.usefixtures("reads_and_writes")
@pytest.mark.parametrize("case", FUSED_CASES)
def test_gradients_by_one_kernel(case):
    threads, head_dim, shape, options = FUSED_CASES[case]
    config = small("plain", fused=GradientConfig(compute_threads=threads))
    with interpreted(detect_races=shape[1] <= 64 * threads):
        check(operands(*shape, head_dim), config=config, **options)


@pytest.mark.usefixtures("reads_and_writes")
def test_keys_beyond_the_end_are_masked():
    """All scores are so low that a 0, which is that of no key, has an infinite exponential."""
    config = small("plain", fused=GradientConfig(compute_threads=1))
    q, k, v = operands(64, 72)
    q, k = 6.0 + 0.1 * q, -6.0 + 0.1 * k
    with interpreted(detect_races=False):
        found = gradients((q, k, v), *cotangents(q), config=config)
    assert all(np.isfinite(np.asarray(one)).all() for one in found)


@pytest.mark.usefixtures("reads_and_writes")
def test_one_kernel_under_vmap():
    """Each element of the axis has sums of its own."""
    config = small("plain", fused=GradientConfig(compute_threads=1))
    arrays = operands(64, 72, batch=2)
    one = lambda *a: gradients(
        tuple(x[None] for x in a[:3]), *(x[None] for x in a[3:]), config=config
    )
    with interpreted(detect_races=False):
        found = jax.vmap(one)(*arrays, *cotangents(arrays[0]))
    expected = exact_gradients(*arrays, *cotangents(arrays[0]))
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm(np.asarray(one[:, 0]).astype(np.float64) - other)
        assert error <= TOLERANCE["float16"] * np.linalg.norm(other)


# Plain JAX: what the kernels are not for.

PLAIN = {
    "causal": {"causal": True},
    "window": {"window": (3, 5), "scale": 0.2},
    "segments": {"segment_ids": (ids(2, 5, 8), ids(2, 7, 4))},
}


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_plain_gradients(options):
    check(operands(13, 11, 4, 2, 264, batch=2), **options)


@pytest.mark.parametrize(("head_dim", "count"), [(64, 3), (128, 3), (256, 4), (80, 3), (264, 0)])
def test_which_kernels(head_dim, count):
    """Beside the forward kernel two, or three."""
    arrays = operands(64, 64, head_dim=head_dim)
    call = lambda *arrays: gradients(arrays, *cotangents(arrays[0]))
    assert kernels(call, *arrays) == count


def test_one_kernel():
    """Beside the forward kernel."""
    arrays, config = operands(64, 64, head_dim=128), AttentionConfig(fused=GradientConfig())
    assert kernels(lambda *a: gradients(a, *cotangents(a[0]), config=config), *arrays) == 2


# Traced and checked.


def traced(arrays, block, call, config, **options):
    """Of the forward kernel (0), that of dQ or of all (1), that of dK and dV, or of dK (2)."""
    both = lambda *arrays: gradients(arrays, *cotangents(arrays[0]), config=config, **options)
    return pallascope.trace(both, *arrays, block=block, call=call)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_added_to_dq(head_dim):
    """All of both heads of the block's K, by each thread its queries or columns; zeros before."""
    program = traced(operands(256, 256, 4, 2, head_dim), (0, 1, 0), 1, FUSED)
    for thread, first in ((0, 0), (1, 64)):
        adds = [op for op in program.threads[thread] if op.kind == "store" and op.combines == "add"]
        (target,) = {program.buffers[op.writes[0].buffer] for op in adds}
        assert (target.role, target.dtype) == ("in/out", "float32")
        rows = range(0, 256, 64) if head_dim == 128 else range(first, 256, 128)
        columns = (first, first + 64) if head_dim == 128 else (0, 64)
        blocks = [
            ((0, 1), (row, row + 64), (head, head + 1), columns) for head in (2, 3) for row in rows
        ]
        assert [op.writes[0].box for op in adds] == [blocks[0], *blocks]


def test_one_kernel_is_picked_from_the_head():
    """For the GPU and for the interpreter; none for heads of 256, which have three."""
    config = AttentionConfig(fused=True)
    assert config.gradients(64) == {ALL: GradientConfig(block=128, memory_registers=24)}
    assert config.gradients(128) == {ALL: GradientConfig(memory_registers=24)}
    assert config.gradients(256) == AttentionConfig().gradients(256)
    small_one = AttentionConfig(fused=True, probabilities="interpreted").gradients(64)
    assert small_one == {ALL: GradientConfig(compute_threads=1)}


@pytest.mark.parametrize(
    ("blocks", "group", "steps", "sides", "parts"),
    [
        (10, 1, 50, (None, None), 1),  # nothing to share
        (33, 8, 50, (None, None), 4),  # as many as run at once
        (132, 8, 50, (None, None), 1),  # each SM has one, and all end together
        (133, 2, 50, (None, None), 2),  # one would run alone: 3 rounds of half the steps, not 2
        (4, 2, 1, (None, None), 1),  # the sum takes longer than is saved
        (236, 8, 59, (None, 0), 4),  # few heads are taken together: the last begin late
    ],
)
def test_how_many_blocks_share_a_head_of_keys(blocks, group, steps, sides, parts):
    def order_of(count):
        return BlockOrder.of(1, 4 * count, blocks // 4, sides, 30_000_000 // count)

    whole = lambda count: BlockOrder.of(1, count, blocks, sides, 1)
    order = order_of if sides[1] == 0 else whole
    with assumed(Gpu("NVIDIA H200", "9.0")):
        assert parts_of(order, group, steps, are_equal=sides == (None, None)) == parts


def test_which_kernels_are_given():
    """What is given for dK and dV is for both, where they have a kernel each."""
    dq, dkv = GradientConfig(slots=4), GradientConfig(slots=1)
    assert AttentionConfig(dq=dq, dkv=dkv).gradients(128) == {DQ: dq, DKV: dkv}
    assert AttentionConfig(dq=dq).gradients(80) == {}
    found = AttentionConfig(dkv=dkv).gradients(256)
    assert found == AttentionConfig().gradients(256) | {DK: dkv, DV: dkv}


def test_causal_blocks_skip_what_is_masked():
    """The loads of a step's two operands; of dQ the last queries first, of dK the first keys."""
    config, arrays, dq, dkv = config_of(128), operands(512, 512, 2, 1, 128), [], []
    for block in range(4):
        for call, counts in ((1, dq), (2, dkv)):
            program = traced(arrays, (0, 0, block), call, config, causal=True)
            loads = [op for thread in program.threads for op in thread if op.kind == "load"]
            counts.append(len(loads))
    own = 2 * 3  # Q, dO and numbers of two threads
    assert dq == [own + 2 * blocks for blocks in (4, 3, 2, 1)]
    own, heads = 2 * 2, 1  # K and V of two threads; two blocks share a head of keys
    assert dkv == [own + 3 * heads * blocks for blocks in (8, 6, 4, 2)]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.usefixtures("traced_anew")
def test_check_finds_what_is_missing(call, monkeypatch):
    """No fence: between ordinary writes and the stores, ordinary reads and the next load."""
    monkeypatch.setattr(plgpu, "commit_smem", lambda: None)
    arrays = operands(256, 256, 1, 1, 128)
    report = pallascope.check(traced(arrays, (0, 0, 0), call, config_of(128), scale=0.7))
    assert not report.ok


def report_of_one_kernel():
    return pallascope.check(traced(operands(256, 256, 1, 1, 128), (0, 0, 0), 1, FUSED))


@pytest.mark.usefixtures("traced_anew")
def test_one_slot_of_ds_races(monkeypatch):
    give = GradientOfAll._give
    monkeypatch.setattr(
        GradientOfAll, "_give", lambda self, number, d_s: give(self, 0 * number, d_s)
    )
    races = [finding for finding in report_of_one_kernel() if finding.kind == "race"]
    assert any("d_s" in finding.cause for finding in races)


@pytest.mark.usefixtures("traced_anew")
def test_dk_staged_while_others_multiply_races(monkeypatch):
    """Without the last meeting: the threads' K is where they stage dK."""
    add_to_sums, calls = GradientOfAll._add_to_sums, []

    def store_early(self, d_q, number):
        add_to_sums(self, d_q, number)
        calls.append(number)
        if len(calls) > 1:  # the pipeline's body is traced once, then what comes after it
            monkeypatch.setattr(plgpu, "barrier_arrive", lambda barrier: None)
            monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)

    monkeypatch.setattr(GradientOfAll, "_add_to_sums", store_early)
    races = [finding.cause for finding in report_of_one_kernel() if finding.kind == "race"]
    assert any(re.search(r"`in\d_smem`", cause) for cause in races)


# Lowered, without a GPU.


@pytest.mark.parametrize(("head_dim", "count"), [(128, 3), (256, 4)])
def test_vmap_lowers(head_dim, count):
    """The kernels get the axis; no operand is copied for it."""
    arrays = operands(128, 128, 4, 2, head_dim, batch=2)
    one = lambda *a: jnp.sum(attention(*(x[None] for x in a), causal=True).astype(jnp.float32))
    text = lowered(jax.vmap(jax.grad(one, (0, 1, 2))), *arrays)
    assert text.count("@mosaic_gpu_v2(") == count


SHARDED = [(128, None), (128, FUSED), (256, None)]


def sharded(over=(1, 1), **options):
    """Over the batch, and over the heads, on so many devices each."""
    mesh = jax.make_mesh(over, ("b", "h"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = P("b", None, "h")
    call = lambda q, k, v: attention(q, k, v, causal=True, **options)
    return jax.shard_map(call, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)


@pytest.mark.parametrize(("head_dim", "config"), SHARDED)
def test_shard_map_lowers(head_dim, config):
    total = lambda *arrays: jnp.sum(sharded(config=config)(*arrays).astype(jnp.float32))
    arrays = operands(128, 128, 4, 2, head_dim, batch=2)
    assert "mosaic_gpu" in lowered(jax.grad(total, (0, 1, 2)), *arrays)


def test_shard_map():
    """Of sizes that plain JAX computes."""
    arrays = operands(13, 11, 4, 2, 264, batch=2)
    d_out, d_lse = cotangents(arrays[0])
    found = jax.jit(lambda *arrays: jax.vjp(sharded(), *arrays)[1](d_out))(*arrays)
    expected = exact_gradients(*arrays, d_out, 0.0 * d_lse, causal=True)
    for one, other in zip(found, expected):
        error = np.linalg.norm(np.asarray(one).astype(np.float64) - other)
        assert error <= TOLERANCE["float16"] * np.linalg.norm(other)


# Configurations.


@pytest.mark.parametrize(
    ("options", "made", "head_dim", "message"),
    [
        ({"slots": 3, "block": 128}, DQ, 128, "slots 6 x 32,768 B + log-sum-exp and delta 2 x 1,0"),
        ({"block": 128}, DKV, 128, "results 128 + P 64 + dP 64 + P in 16 bits 32 = 288 registers"),
        ({"slots": 2}, DK, 256, "delta 2 x 1,024 B + barriers 14 x 8 B = 264,304 B of shared mem"),
        (
            {"compute_threads": 1, "slots": 1, "block": 192},
            DV,
            256,
            "results 128 + P 96 + P in 16 bits 48 = 272 registers of a lane, but each of 1",
        ),
        ({}, ALL, 256, "results 256 + P 32 + dQ 64 + P in 16 bits 16 = 368 registers of a lane"),
        ({"slots": 4}, ALL, 128, "queries 1 x 1,024 B + barriers 27 x 8 B = 265,432 B of shared"),
        ({"compute_threads": 1, "block": 128}, ALL, 128, "P 64 + dQ 128 + P in 16 bits 32 = 352 r"),
        ({"compute_threads": 3}, ALL, 128, "neither 128 columns of dQ nor 64 queries of a step"),
        ({}, ALL, 64, "neither 64 columns of dQ nor 64 queries of a step over 2 compute threads"),
    ],
)
def test_what_does_not_fit(options, made, head_dim, message):
    config = GradientConfig(**options)
    with pytest.raises(ValueError, match=f"^GradientConfig: .*{re.escape(message)}"):
        config.check(made, head_dim)
    field = {DQ: "dq", ALL: "fused"}.get(made, "dkv")
    whole = AttentionConfig(block_kv=64, **{field: config})
    message = message if made != DV else "= 320 registers"  # of dK's kernel, which comes first
    with pytest.raises(ValueError, match=re.escape(message)):
        attention(*operands(64, 64, head_dim=head_dim), config=whole)


def test_the_kernels_of_a_fixed_order(monkeypatch):
    """By default the fastest; on a CPU, those that the interpreter runs fastest."""
    assert default_config(128).fused is None
    pretend(monkeypatch, "NVIDIA H200", "9.0")
    for head_dim, made in ((64, [ALL]), (128, [ALL]), (256, [DQ, DK, DV])):
        assert [*default_config(head_dim).gradients(head_dim)] == made
    for head_dim, made in ((64, [DQ, DKV]), (128, [DQ, DKV]), (256, [DQ, DK, DV])):
        assert [*default_config(head_dim, deterministic=True).gradients(head_dim)] == made


def test_an_order_that_is_fixed_and_is_not():
    arrays = operands(64, 64)
    with pytest.raises(ValueError) as error:
        attention(*arrays, config=FUSED, deterministic=True)
    assert str(error.value) == (
        "attention: deterministic=True asks for sums in a fixed order, but the kernel that"
        " config.fused asks for adds up q's gradient as blocks come: leave one of them out."
    )
    with pytest.raises(TypeError, match="attention: deterministic"):
        attention(*arrays, deterministic=jnp.ones(2))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_default_configurations_fit(head_dim):
    for probabilities in PROBABILITIES:
        config = AttentionConfig(probabilities=probabilities)
        for made, kernel in config.gradients(head_dim).items():
            kernel.check(made, head_dim, not config.in_place)
            assert kernel.smem_bytes(made, head_dim, not config.in_place) <= specs.SMEM_BYTES


def test_another_gpu_than_the_forward_pass_ran_on(monkeypatch):
    arrays = operands(8, 16)
    with interpreted(), monkeypatch.context() as patch:
        pull = jax.vjp(lambda *x: attention(*x, config=small("plain")), *arrays)[1]
        pretend(patch, "NVIDIA A100", "8.0")
        message = "attention: NVIDIA A100 has compute capability 8.0, but wgmma needs 9.x, a Hopper"
        with pytest.raises(ValueError, match=re.escape(message)):
            pull(arrays[0])


# On a Hopper GPU.


@pytest.mark.gpu
@pytest.mark.parametrize(("head_dim", "config"), SHARDED)
def test_shard_map_on_two_gpus(head_dim, config):
    if len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    arrays = operands(200, 136, 4, 2, head_dim, batch=2)
    d_out, d_lse = cotangents(arrays[0])
    expected = exact_gradients(*arrays, d_out, 0.0 * d_lse, causal=True)
    for over in ((2, 1), (1, 2)):
        call = sharded(over, config=config)
        found = jax.jit(lambda *arrays: jax.vjp(call, *arrays)[1](d_out))(*arrays)
        for one, other in zip(found, expected):
            error = np.linalg.norm(np.asarray(one).astype(np.float64) - other)
            assert error <= TOLERANCE["float16"] * np.linalg.norm(other)


@pytest.mark.gpu
def test_many_launches_agree():
    arrays = operands(2048, 2048, 8, 4, 128)
    call = jax.jit(lambda *a: gradients(a, *cotangents(a[0]), causal=True, deterministic=True))
    first = call(*arrays)
    for _ in range(20):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, call(*arrays), first))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("head_dim", "config"), [(64, None), (128, None), (256, None), (64, FUSED), (128, FUSED)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_ptxas_waits_for_no_product(causal, head_dim, config):
    arrays = operands(512, 512, 2, 1, head_dim)
    call = lambda *arrays: gradients(arrays, *cotangents(arrays[0]), causal=causal, config=config)
    found = {one.kernel: one.serialized for one in compiled_all(call, *arrays)}
    assert ("attention_gradients" if config else "attention_dq") in found
    assert not any(found.values())
