"""`attention` of float8: what its tests share (problems, results in float64), and its cases."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from pipelib.kernels import AttentionConfig, attention
from pipelib_book.attention_forms import RungConfig
from tests.kernels.contract import CHECKED, ON_GPU, Call, case, refusals

E4M3, BRAIN, FLOAT = jnp.float8_e4m3fn, jnp.bfloat16, jnp.float32
#: Of the norm. Probabilities are rounded to 4 bits: by up to 1/16, and by 0.02 to 0.03 of the norm
#: for normal random numbers.
TOLERANCE = 4e-2
REGISTERS = RungConfig(block_kv=128, schedule="both")


def operands(batch=1, queries=256, keys=256, heads=2, kv_heads=1, head_dim=128, v_dim=None):
    rng = np.random.default_rng(queries + keys + head_dim)
    shapes = (
        (queries, heads, head_dim),
        (keys, kv_heads, head_dim),
        (keys, kv_heads, v_dim or head_dim),
    )
    return [jnp.asarray(rng.standard_normal((batch, *shape)), E4M3) for shape in shapes]


def expected(q, k, v, causal=False, scale=None):
    """The result and the log-sum-exp."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores[..., np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None]] = -np.inf
    largest = scores.max(-1, keepdims=True)
    p = np.exp(scores - largest)
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", p / total, v), (largest + np.log(total))[..., 0]


def check_close(found, wanted, on_gpu=False):
    (out, lse), (exact, exact_lse) = found, wanted
    assert out.dtype == BRAIN and out.shape == exact.shape
    error = np.linalg.norm(np.asarray(out).astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error <= TOLERANCE
    # The tensor core adds products of float8 with some 14 bits: DeepSeek-V3, section 3.3.2.
    atol = 2e-3 if on_gpu else 2e-5
    np.testing.assert_allclose(lse, exact_lse, atol=atol, rtol=1e-5)


# What every kernel is asked.

CONFIGS = {
    "both": REGISTERS,
    "pingpong": dataclasses.replace(REGISTERS, schedule="pingpong"),
    "overlap": dataclasses.replace(REGISTERS, schedule="overlap"),
    "plain": dataclasses.replace(REGISTERS, schedule="plain"),
    "optimistic": dataclasses.replace(REGISTERS, schedule="optimistic"),
    "shared": dataclasses.replace(REGISTERS, probabilities="shared"),
}
Q, K, V = operands(queries=8, keys=8)


@case("attention, float8", CHECKED, config=CONFIGS, causal=[False, True])
def configuration(config, causal):
    call = functools.partial(attention, causal=causal, config=config)
    return Call(call, tuple(operands(queries=1024, keys=1024)))


@case("attention, float8", ON_GPU, config=CONFIGS, causal=[False, True])
def configuration_on_gpu(config, causal):
    arrays = operands(2, 1000, 1304, 4, 2)
    call = functools.partial(attention, causal=causal, config=config, return_residuals=True)
    right = lambda found: check_close(found, expected(*arrays, causal), on_gpu=True)
    return Call(call, tuple(arrays), right)


@case("attention, float8", ON_GPU, head_dim=[64, 128, 192, 256])
def heads(head_dim):
    arrays = operands(1, 777, 2048, 2, 2, head_dim)
    right = lambda found: check_close(found, expected(*arrays), on_gpu=True)
    return Call(functools.partial(attention, return_residuals=True), tuple(arrays), right)


REFUSED = [
    ((Q, K.astype(BRAIN), V), {}, TypeError, "q is float8_e4m3fn and k is bfloat16, but wgmma"),
    ((Q.astype(jnp.float8_e5m2), K, V), {}, TypeError, "q is float8_e5m2, but the kernel"),
    ((Q[0], K, V), {}, ValueError, "q has shape .* but it must be .batch, seq, heads"),
    (operands(queries=8, keys=8, head_dim=264), {}, ValueError, "heads of 264 in float8"),
    ((Q, K, V), {"config": AttentionConfig(block_kv=64)}, ValueError, "block_kv=64 in"),
]
refusals(
    "attention, float8",
    attention,
    [(*row[:3], f"^attention: .*{row[3]}") for row in REFUSED],
)
