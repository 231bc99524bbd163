"""What the tests of `pipelib.kernels.attention` share: problems, and their results in float64."""

import jax
import jax.numpy as jnp
import numpy as np

import pallascope
from pipelib.kernels import AttentionConfig, attention

HALF, BRAIN = jnp.float16, jnp.bfloat16

# Of the norm of the result: probabilities and the result are rounded to the dtype. One block of 64
# keys lost of 200 gives over 0.1. The log-sum-exp is float32, by approximate functions on a GPU.
TOLERANCE, LSE_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3}, 2e-5


def small(schedule, **options):
    """What the interpreter runs."""
    threads = 1 if schedule in ("plain", "overlap") else 2
    options = dict(compute_threads=threads, block_kv=64, probabilities="interpreted") | options
    return AttentionConfig(schedule=schedule, **options)


def operands(q_seq, kv_seq, heads=1, kv_heads=1, head_dim=64, dtype=HALF, batch=1):
    """Normal random q, k and v."""
    draw = np.random.default_rng(q_seq + kv_seq + heads).standard_normal
    shapes = [(q_seq, heads), (kv_seq, kv_heads), (kv_seq, kv_heads)]
    return tuple(jnp.asarray(draw((batch, *shape, head_dim)), dtype) for shape in shapes)


def which(batch, queries, keys, causal=False, window=None, scale=None, segment_ids=None):
    """What is seen, [batch, 1, queries, keys]."""
    del scale
    left, right = window if isinstance(window, tuple) else (window, window)
    i, j = np.arange(queries)[:, None], np.arange(keys)
    seen = np.ones((batch, 1, queries, keys), bool) & ((j <= i) | (not causal))
    if window is not None:
        seen &= (i - left <= j) & (j <= i + right)
    if segment_ids is not None:
        pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids,) * 2
        own, others = map(np.asarray, pair)
        seen &= (own[:, :, None] == others[:, None])[:, None]
    return seen


def exact(q, k, v, causal=False, window=None, scale=None, segment_ids=None):
    """The result and the log-sum-exp in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.swapaxes(np.asarray(x).astype(np.float64), 1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    seen = which(q.shape[0], q.shape[2], k.shape[2], causal, window, None, segment_ids)
    scores = q @ np.swapaxes(k, 2, 3) * (scale or q.shape[-1] ** -0.5)
    scores = np.where(seen, scores, -np.inf)
    maximum = scores.max(-1, keepdims=True)
    maximum[maximum == -np.inf] = 0.0
    p = np.exp(scores - maximum)
    total = p.sum(-1, keepdims=True)
    out = np.swapaxes(p / np.where(total == 0.0, 1.0, total) @ v, 1, 2)
    with np.errstate(divide="ignore"):
        return out, (maximum + np.log(total))[..., 0]


def exact_gradients(q, k, v, d_out, d_lse, **options):
    """Those of q, k and v in float64, for cotangents of the result and of the log-sum-exp."""
    out, lse = exact(q, k, v, **options)
    group, scale = q.shape[2] // k.shape[2], options.get("scale") or q.shape[-1] ** -0.5
    q, k, v, d_out, out = (
        np.swapaxes(np.asarray(x).astype(np.float64), 1, 2) for x in (q, k, v, d_out, out)
    )
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    turned = lambda x: np.swapaxes(x, 2, 3)
    seen = which(q.shape[0], q.shape[2], k.shape[2], **options)
    finite = np.where(np.isneginf(lse), 0.0, lse)[..., None]
    p = np.where(seen, np.exp(np.where(seen, q @ turned(k) * scale, 0.0) - finite), 0.0)
    delta = (d_out * out).sum(-1, keepdims=True) - np.asarray(d_lse)[..., None]
    d_s = p * (d_out @ turned(v) - delta) * scale
    grouped = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)
    results = d_s @ k, grouped(turned(d_s) @ q), grouped(turned(p) @ d_out)
    return tuple(np.swapaxes(x, 1, 2) for x in results)


def spread_over(cases, head_dims):
    """(case, head_dim, dtype) of all cases and sizes of a head; each of these has both dtypes."""
    return [
        (case, head_dim, (HALF, BRAIN)[(i + j) % 2])
        for i, case in enumerate(cases) for j, head_dim in enumerate(head_dims)
    ]  # fmt: skip


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
        pallascope.trace(lambda *args: attention(*args, **options), *args)
    except ValueError as e:
        assert "kernel" in str(e)
        return False
    return True


def lowered(call, *arrays):
    """The text of a function as it is compiled for a GPU, which need not be there."""
    return jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


def ids(batch, *lengths):
    """Segments of these lengths, numbered."""
    return jnp.asarray(np.tile(np.repeat(np.arange(len(lengths)), lengths), (batch, 1)), jnp.int32)


CASES = {
    "ragged keys": ((128, 136), {}),
    "causal, grouped heads, ragged": ((136, 136, 2, 1), {"causal": True}),
    "window, most rows see nothing": ((192, 64), {"window": (30, 10)}),
    "segments": ((72, 128), {"causal": True, "segment_ids": (ids(1, 40, 32), ids(1, 20, 108))}),
}

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
    where = "shared" if options.get("schedule") in ("overlap", "both") else "registers"
    options = dict(block_kv=block_kv, compute_threads=threads, probabilities=where) | options
    return AttentionConfig(**options)


ON_GPU = {
    "dense": ((1000, 2000, 2, 2), {}),
    "causal, multi-query": ((1000, 1000, 4, 1), {"causal": True}),
    "window": ((2048, 1000, 2, 1), {"window": (300, 100)}),
    "segments": ((640, 640, 2, 2), {"causal": True, "segment_ids": ids(2, 100, 300, 240)}),
}
