"""`attention` of float8 against float64: interpreted, checked, compiled; on a GPU."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import narrow
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted

E4M3, BRAIN, FLOAT = jnp.float8_e4m3fn, jnp.bfloat16, jnp.float32
#: Of the norm. Probabilities are rounded to 4 bits: by up to 1/16, and by 0.02 to 0.03 of the norm
#: for normal random numbers.
TOLERANCE = 4e-2
REGISTERS = AttentionConfig(block_kv=128, schedule="both", probabilities="registers")


def operands(batch=1, queries=256, keys=256, heads=2, kv_heads=1, head_dim=128, v_dim=None):
    rng = np.random.default_rng(queries + keys + head_dim)
    shapes = ((queries, heads, head_dim), (keys, kv_heads, head_dim),
              (keys, kv_heads, v_dim or head_dim))  # fmt: skip
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


@pytest.fixture
def on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


# How things lie.


def test_the_order_of_keys_in_registers():
    """Lane q of a quad has, of 16 columns, 2q, 2q + 1, 8 + 2q and 9 + 2q."""
    v = jnp.arange(32, dtype=FLOAT).reshape(1, 32, 1, 1)
    order = [2 * q + i + 8 * half for q in range(4) for half in (0, 1) for i in (0, 1)]
    found = narrow.turned(v, 16, in_registers=True)[0, 0, 0]
    assert found.tolist() == [*order, *(16 + column for column in order)]
    plain = narrow.turned(v[:, :20], 16, in_registers=False)[0, 0, 0]
    assert plain.tolist() == [*range(20), *[0] * 12]


# Interpreted, with race detection.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        {}, dict(batch=2, queries=72, keys=328, heads=4, kv_heads=2),
        dict(queries=77, keys=130, head_dim=80),  # filled up
        dict(queries=64, keys=128, head_dim=192, v_dim=128),
    ],
    ids=str,
)  # fmt: skip
def test_result(sizes, causal):
    arrays = operands(**sizes)
    with interpreted():
        found = attention(*arrays, causal=causal, return_residuals=True)
    check_close(found, expected(*arrays, causal))


def test_probabilities_that_are_small_are_not_lost():
    """Of 512 equal ones each is 1/512, which float8 cannot tell from zero beside a sum of 1."""
    q, k, v = operands(keys=512, queries=64)
    flat = jnp.zeros_like(q).at[..., 0].set(1.0)
    sharp = k.at[:, 0].set(0).at[..., 0].set(0).at[:, 0, :, 0].set(100.0)  # one key far ahead
    with interpreted():
        found = attention(flat, sharp, v, scale=0.05, return_residuals=True)
    check_close(found, expected(flat, sharp, v, scale=0.05))


def growing(largest):
    """Operands whose scores grow with the keys by this many powers of 2."""
    q, k, v = operands(queries=128, keys=512)
    q, k = (np.array(x, np.float32) * 0.25 for x in (q, k))
    q[..., 0], k[..., 0] = 4.0, np.linspace(0.0, largest / 4.0, 512)[:, None]
    return *(jnp.asarray(x, E4M3) for x in (q, k)), v


@pytest.mark.parametrize("largest", [0.0, 4.0, 40.0, 400.0])
def test_without_maxima(largest):
    """Sums that show that a probability may be too large for float8 ask for one."""
    arrays, scale = growing(largest), np.log(2.0)
    config = AttentionConfig(
        block_kv=128, schedule="optimistic", probabilities="interpreted", slots=2
    )
    with interpreted():
        found = attention(*arrays, config=config, scale=scale, return_residuals=True)
    check_close(found, expected(*arrays, scale=scale))


@pytest.mark.usefixtures("traced_anew")
def test_without_maxima_nor_sums_that_ask_it_is_wrong(monkeypatch):
    monkeypatch.setattr(narrow, "LARGEST", np.inf)
    with pytest.raises(AssertionError):
        test_without_maxima(400.0)


def test_vmap_jit_and_scan():
    arrays = operands(queries=64, keys=128)
    with interpreted():
        one = attention(*arrays)
        many = jax.jit(jax.vmap(attention))(*(jnp.stack([x, x]) for x in arrays))
        _, scanned = jax.lax.scan(
            lambda _, q: (None, attention(q, *arrays[1:])), None, arrays[0][None]
        )
    for out in (*many, *scanned):
        np.testing.assert_array_equal(out, one)


def test_it_has_no_gradient():
    arrays = operands(queries=64, keys=128)
    total = lambda q: attention(q, *arrays[1:]).astype(FLOAT).sum()
    text = r"^attention has no gradient in float8: cast to bfloat16\."  # JAX adds a note
    with pytest.raises(NotImplementedError, match=text):
        jax.jvp(total, arrays[:1], arrays[:1])


# Traced and checked, compiled.

CONFIGS = {
    "both": REGISTERS,
    "pingpong": dataclasses.replace(REGISTERS, schedule="pingpong"),
    "overlap": dataclasses.replace(REGISTERS, schedule="overlap"),
    "plain": dataclasses.replace(REGISTERS, schedule="plain"),
    "optimistic": dataclasses.replace(REGISTERS, schedule="optimistic"),
    "shared": dataclasses.replace(REGISTERS, probabilities="shared"),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.usefixtures("on_an_h200")
def test_check_finds_nothing(name, causal):
    call = functools.partial(attention, causal=causal, config=CONFIGS[name])
    program = pallascope.trace(call, *operands(queries=1024, keys=1024))
    assert list(pallascope.check(program, strict=True)) == []


@pytest.mark.compiler
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("on_an_h200")
def test_no_lane_passes_anything_on_for_an_operand(causal):
    """The default neither spills nor waits for products; its shuffles are those of the softmax."""
    arrays = operands(queries=1024, keys=1024)
    of = lambda arrays: pallascope.compiled(functools.partial(attention, causal=causal), *arrays)
    found = of(arrays)
    assert found.ok and not found.serialized and not found.spill_stores
    config = AttentionConfig(block_kv=128, schedule="both", probabilities="registers")
    wide = pallascope.compiled(
        functools.partial(attention, causal=causal, config=config),
        *(x.astype(BRAIN) for x in arrays),
    )
    assert found.instructions["SHFL"] <= wide.instructions["SHFL"]


# What is refused.

Q, K, V = operands(queries=8, keys=8)


@pytest.mark.parametrize(
    ("arrays", "options", "kind", "text"),
    [
        ((Q, K.astype(BRAIN), V), {}, TypeError, "q is float8_e4m3fn and k is bfloat16, but wgmma"),
        ((Q.astype(jnp.float8_e5m2), K, V), {}, TypeError, "q is float8_e5m2, but the kernel"),
        ((Q[0], K, V), {}, ValueError, "q has shape .* but it must be .batch, seq, heads"),
        (operands(queries=8, keys=8, head_dim=264), {}, ValueError, "heads of 264 in float8"),
        ((Q, K, V), {"config": AttentionConfig(block_kv=64)}, ValueError, "block_kv=64 in"),
    ],
)  # fmt: skip
def test_errors(arrays, options, kind, text):
    with pytest.raises(kind, match=f"^attention: .*{text}"):
        attention(*arrays, **options)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_on_gpu(name, causal):
    arrays = operands(2, 1000, 1304, 4, 2)
    found = attention(*arrays, causal=causal, config=CONFIGS[name], return_residuals=True)
    check_close(found, expected(*arrays, causal), on_gpu=True)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_heads_on_gpu(head_dim):
    arrays = operands(1, 777, 2048, 2, 2, head_dim)
    check_close(attention(*arrays, return_residuals=True), expected(*arrays), on_gpu=True)
