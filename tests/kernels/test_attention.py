"""`pipelib.kernels.attention` against float64: interpreted, traced and checked, lowered; on a GPU.

Interpreted cases are tiny, with one or two compute threads: JAX's interpreter hands each thread's
work to a pool of as many as the machine has cores, and larger ones can starve each other.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib import specs
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import CHUNK, attention_reference, default_config
from pipelib.kernels.attention_config import SCHEDULES
from tests.emitters.contract import interpreted

HALF, BRAIN = jnp.float16, jnp.bfloat16

# Of the norm of the result: probabilities and the result are rounded to the dtype. One block of 64
# keys lost of 200 gives over 0.1. The log-sum-exp is float32, by approximate functions on a GPU.
TOLERANCE, LSE_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3}, 2e-5


def small(schedule, **options):
    """What the interpreter runs."""
    threads = 2 if schedule in ("pingpong", "both") else 1
    options = dict(compute_threads=threads, block_kv=64, probabilities="shared") | options
    return AttentionConfig(schedule=schedule, **options)


def operands(q_seq, kv_seq, heads=1, kv_heads=1, head_dim=64, dtype=HALF, batch=1):
    """Normal random q, k and v."""
    draw = np.random.default_rng(q_seq + kv_seq + heads).standard_normal
    shapes = [(q_seq, heads), (kv_seq, kv_heads), (kv_seq, kv_heads)]
    return tuple(jnp.asarray(draw((batch, *shape, head_dim)), dtype) for shape in shapes)


def exact(q, k, v, causal=False, window=None, scale=None, segment_ids=None):
    """The result and the log-sum-exp in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.swapaxes(np.asarray(x).astype(np.float64), 1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    left, right = window if isinstance(window, tuple) else (window, window)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    seen = np.ones((q.shape[0], 1, q.shape[2], k.shape[2]), bool)
    seen &= (j <= i) | (not causal)
    if window is not None:
        seen &= (i - left <= j) & (j <= i + right)
    if segment_ids is not None:
        pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids,) * 2
        own, others = map(np.asarray, pair)
        seen &= (own[:, :, None] == others[:, None])[:, None]
    scores = q @ np.swapaxes(k, 2, 3) * (scale or q.shape[-1] ** -0.5)
    scores = np.where(seen, scores, -np.inf)
    maximum = scores.max(-1, keepdims=True)
    maximum[maximum == -np.inf] = 0.0
    p = np.exp(scores - maximum)
    total = p.sum(-1, keepdims=True)
    out = np.swapaxes(p / np.where(total == 0.0, 1.0, total) @ v, 1, 2)
    with np.errstate(divide="ignore"):
        return out, (maximum + np.log(total))[..., 0]


def check_close(found, expected, dtype):
    (out, lse), (expected, expected_lse) = map(np.asarray, found), expected
    assert out.shape == expected.shape and out.dtype == jnp.dtype(dtype)
    out = out.astype(np.float64)
    assert np.isfinite(out).all() and lse.dtype == np.float32
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[jnp.dtype(dtype).name]
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
    none = np.moveaxis(np.isneginf(expected_lse), 1, 2)
    assert not out[none].any()
    np.testing.assert_allclose(lse, expected_lse, LSE_TOLERANCE, LSE_TOLERANCE)


def uses_kernel(*args, **options):
    """Whether it is the kernel that computes such arguments; else `trace` finds none."""
    try:
        pipelib.trace(lambda *args: attention(*args, **options), *args)
    except ValueError as e:
        assert "kernel" in str(e)
        return False
    return True


def ids(batch, *lengths):
    """Segments of these lengths, numbered."""
    return jnp.asarray(np.tile(np.repeat(np.arange(len(lengths)), lengths), (batch, 1)), jnp.int32)


# Interpreted, with race detection.

CASES = {
    "ragged keys": ((128, 200), {}),
    "causal, grouped heads, ragged": ((136, 200, 2, 1), {"causal": True}),
    "window, most rows see nothing": ((256, 64, 2, 2), {"window": (30, 10)}),
    "segments": ((72, 128), {"causal": True, "segment_ids": (ids(1, 40, 32), ids(1, 20, 108))}),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_result(case, schedule):
    shape, options = CASES[case]
    arrays, config = operands(*shape), small(schedule)
    assert uses_kernel(*arrays, config=config, **options)
    with interpreted():
        found = attention(*arrays, config=config, return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), HALF)


def test_more_steps_than_slots_in_bfloat16():
    arrays, config = operands(64, 384, dtype=BRAIN, batch=2), small("overlap", slots=3)
    with interpreted():
        found = attention(*arrays, config=config, scale=0.3, return_residuals=True)
    check_close(found, exact(*arrays, scale=0.3), BRAIN)


@pytest.mark.parametrize("schedule", ["plain", "overlap"])
def test_large_scores(schedule):
    """exp of the scores themselves would be infinite, and exp of less all of them 0."""
    q, k, v = operands(64, 128)
    q = q * 60.0
    with interpreted():
        found = attention(q, k, v, config=small(schedule), return_residuals=True)
    check_close(found, exact(q, k, v), HALF)


def test_vmap_and_jit():
    q, k, v = operands(64, 64, batch=2)
    one = lambda q: attention(q[None], k[:1], v[:1], config=small("plain"))
    with interpreted():
        out = jax.jit(jax.vmap(one))(q)[:, 0]
    again = lambda x: jnp.repeat(x[:1], 2, 0)
    expected, _ = exact(q, again(k), again(v))
    np.testing.assert_allclose(np.asarray(out), expected, 0, 2e-3)


def test_default_configuration_is_one_that_the_interpreter_runs():
    arrays = operands(64, 64)
    with interpreted():
        found = attention(*arrays, return_residuals=True)
    check_close(found, exact(*arrays), HALF)


# Plain JAX: the reference, which the kernel is not needed for, and gradients.


@pytest.mark.parametrize("case", CASES)
def test_reference(case):
    shape, options = CASES[case]
    arrays = operands(*shape)
    found = attention_reference(*arrays, return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), HALF)


def test_reference_in_chunks():
    arrays = operands(2 * CHUNK + 3, 37, 2, 1, 24)
    found = attention_reference(*arrays, causal=True, return_residuals=True)
    check_close(found, exact(*arrays, causal=True), HALF)


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((64, 64), True),
        ((8, 72), True),
        ((63, 64), False),
        ((64, 63), False),
        ((64, 64, 1, 1, 80), False),
        ((64, 64, 1, 1, 128), True),
        ((64, 64, 1, 1, 256), True),
    ],
)
def test_fallback(shape, kernel):
    """The kernel takes sequences in eights, and three sizes of a head."""
    arrays = operands(*shape)
    assert uses_kernel(*arrays) == kernel
    if not kernel:
        check_close(attention(*arrays, return_residuals=True), exact(*arrays), HALF)


GRADIENTS = {
    "causal": {"causal": True},
    "window": {"window": (3, 5), "scale": 0.2},
    "segments": {"segment_ids": (ids(2, 5, 8), ids(2, 7, 4))},
}


@pytest.mark.parametrize("options", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients(options):
    """Of the result and of the log-sum-exp, against JAX's own of the unchunked formula."""
    arrays = operands(13, 11, 4, 2, 16, batch=2)
    weights, lse_weights = operands(13, 11, 4, 2, 16, jnp.float32, batch=2)[0], jnp.arange(13.0)

    def fused(q, k, v):
        out, lse = attention(q, k, v, return_residuals=True, **options)
        finite = jnp.where(jnp.isneginf(lse), 0.0, lse)
        return jnp.sum(out.astype(jnp.float32) * weights) + jnp.sum(finite * lse_weights)

    def plain(q, k, v):
        k, v = (jnp.repeat(x, 2, 2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest")
        scores, seen = scores * options.get("scale", 0.25), jnp.asarray(seen_by(options))
        total = jnp.sum(jnp.where(seen, jnp.exp(scores), 0.0), -1, keepdims=True)
        safe = jnp.where(total == 0.0, 1.0, total)
        p = jnp.where(seen, jnp.exp(scores), 0.0) / safe
        out = jnp.einsum("bhqk,bkhd->bqhd", p, v, precision="highest")
        return jnp.sum(out * weights) + jnp.sum(jnp.log(safe)[..., 0] * lse_weights)

    found = jax.grad(fused, (0, 1, 2))(*arrays)
    expected = jax.grad(plain, (0, 1, 2))(*(x.astype(jnp.float32) for x in arrays))
    for one, other in zip(found, expected):
        assert one.dtype == HALF
        np.testing.assert_allclose(one.astype(np.float32), other, atol=0.03, rtol=0.01)


def seen_by(options):
    """Which of 11 keys each of 13 queries sees, [batch, 1, 13, 11]."""
    i, j = np.arange(13)[:, None], np.arange(11)
    seen = np.ones((2, 1, 13, 11), bool) & ((j <= i) | (not options.get("causal")))
    if "window" in options:
        seen &= (i - 3 <= j) & (j <= i + 5)
    if "segment_ids" in options:
        own, others = map(np.asarray, options["segment_ids"])
        seen &= (own[:, :, None] == others[:, None])[:, None]
    return seen


def test_gradients_of_the_kernel():
    """Those of the same with the plain-JAX forward pass."""
    q, k, v = operands(64, 128)
    total = lambda f, **o: lambda *args: f(*args, causal=True, **o).astype(jnp.float32).sum()
    expected = jax.grad(total(attention_reference), (0, 1, 2))(q, k, v)
    with interpreted():
        found = jax.grad(total(attention, config=small("overlap")), (0, 1, 2))(q, k, v)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), 0.01, 5e-3)


# Traced and checked, and the arithmetic of what it takes.

MASKS = {
    "dense": {},
    "causal": {"causal": True},
    "window": {"window": (100, 30)},
    "causal window": {"causal": True, "window": 200},
    "segments": {"segment_ids": ids(1, 300, 212)},
}
SHAPES = {64: (128, 3), 128: (128, 2), 256: (64, 2)}


def config_of(head_dim, **options):
    block_kv, threads = SHAPES[head_dim]
    return AttentionConfig(block_kv=block_kv, compute_threads=threads, **options)


#: All sizes of a head, and one through SMEM.
KINDS = [(64, "registers"), (128, "registers"), (256, "registers"), (128, "shared")]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("head_dim", "probabilities"), KINDS)
def test_check_finds_nothing(head_dim, schedule, mask, probabilities):
    """Of the first block and of the last."""
    config = config_of(head_dim, schedule=schedule, probabilities=probabilities)
    arrays = operands(512, 512, 4, 2, head_dim)
    call = lambda *args: attention(*args, config=config, **MASKS[mask])
    for block in (0, 512 // config.block_q - 1):
        program = pipelib.trace(call, *arrays, block=(0, 3, block))
        assert list(pipelib.check(program, strict=True)) == []
    assert program.smem_bytes <= config.smem_bytes(head_dim) <= specs.SMEM_BYTES


def test_causal_blocks_skip_what_is_masked():
    """The loads of K and V: of 1, 2, 3 and 4 blocks, the last queries first."""
    config, arrays = config_of(128), operands(512, 512, 1, 1, 128)
    call = lambda *args: attention(*args, config=config, causal=True)
    counts = []
    for block in range(4):
        program = pipelib.trace(call, *arrays, block=(0, 0, block))
        loads = sum(op.kind == "load" for thread in program.threads for op in thread)
        counts.append(loads - config.compute_threads)
    assert counts == [8, 6, 4, 2]


MUTATIONS = {
    "K released too early": ("wgmma_accumulator_load", lambda load: lambda acc, wait_n: load(
        acc, wait_n=wait_n + 1)),
    "a result that is not committed": ("commit_smem", lambda _: lambda: None),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_check_finds_what_is_missing(mutation, monkeypatch):
    name, change = MUTATIONS[mutation]
    monkeypatch.setattr(plgpu, name, change(getattr(plgpu, name)))
    arrays = operands(256, 640, 1, 1, 128)
    config = config_of(128, schedule="both")
    report = pipelib.check(
        pipelib.trace(lambda *args: attention(*args, config=config, scale=0.7), *arrays)
    )
    assert not report.ok


@pytest.mark.parametrize("head_dim", SHAPES)
def test_default_configuration_fits(head_dim, monkeypatch):
    default_config(head_dim).check(head_dim)
    gpu = type("Gpu", (), dict(platform="gpu"))
    monkeypatch.setattr(jax, "devices", lambda *_: [gpu])
    assert default_config(head_dim).probabilities == "registers"
    default_config(head_dim).check(head_dim)


# Lowered, without a GPU.


@pytest.mark.parametrize("mask", ["dense", "causal", "segments"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("head_dim", "probabilities"), KINDS)
def test_lowers(head_dim, probabilities, schedule, mask):
    dtype = BRAIN if head_dim == 128 else HALF
    config = config_of(head_dim, schedule=schedule, probabilities=probabilities)
    arrays = operands(512, 512, 2, 1, head_dim, dtype)
    call = lambda *args: attention(*args, config=config, **MASKS[mask])
    text = jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 96}, "rows=96 is not a multiple of 64, the rows of a wgmma."),
        (
            {"block_kv": 320},
            "block_kv=320 is not a multiple of 64 up to 256, the most columns of a wgmma.",
        ),
        ({"slots": 33}, "slots=33 is not 1 to 32, which barriers can tell."),
        (
            {"compute_threads": 4},
            "compute_threads=4 is not 1 to 3, so that a block has at most 512 lanes.",
        ),
        ({"schedule": "x"}, "schedule='x' is none of plain, overlap, pingpong, both."),
        (
            {"schedule": "overlap", "slots": 1},
            "schedule='overlap' overlaps two steps, so slots=1 has no slot to load into.",
        ),
        (
            {"compute_threads": 1},
            "schedule='both' needs threads that take turns, but compute_threads=1.",
        ),
        ({"probabilities": "gmem"}, "probabilities='gmem' is not 'registers' or 'shared'."),
    ],
)
def test_configuration_errors(options, message):
    with pytest.raises(ValueError) as error:
        AttentionConfig(**options)
    assert str(error.value) == f"AttentionConfig: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"slots": 4},
            "AttentionConfig: queries 2 x 16,384 B + slots of K and V 8 x 32,768 B + log-sum-exp 2"
            " x 256 B + barriers 20 x 8 B + reductions 1 x 2,048 B = 297,632 B of shared memory,"
            " but a block has 232,448 B, so the kernel could not start.",
        ),
        (
            {"block_kv": 256},
            "AttentionConfig: result 64 + scores 128 + probabilities 64 = 256 registers of a lane,"
            " but each of 2 compute threads has 232, and needs some for the rest.",
        ),
    ],
)
def test_what_does_not_fit(options, message):
    with pytest.raises(ValueError) as error:
        attention(*operands(64, 64, head_dim=128), config=AttentionConfig(**options))
    assert str(error.value) == message


def test_wrong_arrays():
    q, k, v = operands(16, 24, 3, 2, 64)

    def refused(kind, message, *args, **options):
        for function in (attention, attention_reference):
            with pytest.raises(kind, match=re.escape(message)):
                function(*args, **options)

    refused(
        TypeError, "attention: k is float32, but the kernel takes float16 or bfloat16.",
        q, k.astype(jnp.float32), v,
    )  # fmt: skip
    refused(
        TypeError, "attention: q is float16 and v is bfloat16, but wgmma takes one dtype: cast one",
        q, k, v.astype(BRAIN),
    )  # fmt: skip
    refused(
        ValueError,
        "attention: q has shape (16, 3, 64), but it must be [batch, seq, heads, head_dim], each 1"
        " or more.",
        q[0], k, v,
    )  # fmt: skip
    refused(ValueError, "k has shape (1, 0, 2, 64), but it must be [", q, k[:, :0], v[:, :0])
    refused(
        ValueError,
        "attention: q (1, 16, 3, 64), k (1, 24, 2, 64) and v (1, 23, 2, 64) must have one batch and"
        " head_dim, and k and v one shape.",
        q, k, v[:, 1:],
    )  # fmt: skip
    refused(
        ValueError,
        "attention: 3 heads of q over 2 heads of k leave 1, but each head of k must serve equally"
        " many.",
        q, k, v,
    )  # fmt: skip
    q = q[:, :, :2]
    refused(
        ValueError,
        "attention: window=(-1, 2) has a negative side, so a query would not see its own key.",
        q, k, v, window=(-1, 2),
    )  # fmt: skip
    refused(
        ValueError,
        "attention: scale=-1.0 is not positive and finite, so the largest score would not have the"
        " largest exponential.",
        q, k, v, scale=-1.0,
    )  # fmt: skip
    refused(
        ValueError,
        "attention: segment_ids of k are int32 (1, 16), but they must be integers of its [batch,"
        " seq], (1, 24).",
        q, k, v, segment_ids=ids(1, 16),
    )  # fmt: skip


def test_another_gpu(monkeypatch):
    class Ampere:
        platform, device_kind, compute_capability, core_count = "gpu", "NVIDIA A100", "8.0", 108

    monkeypatch.setattr(jax, "devices", lambda *_: [Ampere])
    message = "attention: NVIDIA A100 has compute capability 8.0, but wgmma needs 9.x, a Hopper GPU"
    with pytest.raises(ValueError, match=re.escape(message)):
        attention(*operands(64, 88))


# On a Hopper GPU.

ON_GPU = {
    "dense": ((1000, 2000, 2, 2), {}),
    "causal, multi-query": ((1000, 1000, 4, 1), {"causal": True}),
    "window": ((2048, 1000, 2, 1), {"window": (300, 100)}),
    "segments": ((640, 640, 2, 2), {"causal": True, "segment_ids": ids(2, 100, 300, 240)}),
}


def check_on_gpu(head_dim, dtype, case, config=None):
    shape, options = ON_GPU[case]
    arrays = operands(*shape, head_dim, dtype, batch=2)
    found = attention(*arrays, config=config, return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("head_dim", SHAPES)
@pytest.mark.parametrize("case", ON_GPU)
def test_on_gpu(case, head_dim, dtype):
    check_on_gpu(head_dim, dtype, case)


@pytest.mark.gpu
@pytest.mark.parametrize("probabilities", ["registers", "shared"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", ["dense", "causal, multi-query"])
def test_schedules_on_gpu(case, schedule, probabilities):
    config = config_of(128, schedule=schedule, probabilities=probabilities)
    check_on_gpu(128, BRAIN, case, config)


@pytest.mark.gpu
def test_large_scores_on_gpu():
    q, k, v = operands(256, 1024, head_dim=128)
    q = q * 60.0
    check_close(attention(q, k, v, return_residuals=True), exact(q, k, v), HALF)


@pytest.mark.gpu
def test_many_launches_agree():
    """A race would show as a difference, now and then."""
    arrays = operands(2048, 2048, 8, 8, 128)
    first = attention(*arrays, causal=True)
    assert all(bool(jnp.array_equal(attention(*arrays, causal=True), first)) for _ in range(50))


def test_replaced_configurations_are_equal():
    """A configuration is hashable, so that JAX compiles each once."""
    assert hash(dataclasses.replace(AttentionConfig(), slots=2)) == hash(AttentionConfig())
