"""`attention` of float8 against float64: interpreted, checked, compiled; on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import narrow
from pipelib.kernels.hopper import Gpu, assumed
from pipelib_book.attention_forms import RungConfig
from tests.emitters.contract import interpreted
from tests.kernels.attention.float8_cases import (
    BRAIN,
    E4M3,
    FLOAT,
    check_close,
    expected,
    operands,
)


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
        {},
        dict(batch=2, queries=72, keys=328, heads=4, kv_heads=2),
        dict(queries=77, keys=130, head_dim=80),  # filled up
        dict(queries=64, keys=128, head_dim=192, v_dim=128),
    ],
    ids=str,
)
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


@pytest.mark.compiler
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("on_an_h200")
def test_no_lane_passes_anything_on_for_an_operand(causal):
    """The default neither spills nor waits for products; its shuffles are those of the softmax."""
    arrays = operands(queries=1024, keys=1024)
    of = lambda arrays: pallascope.compiled(functools.partial(attention, causal=causal), *arrays)
    found = of(arrays)
    assert found.ok and not found.serialized and not found.spill_stores
    config = RungConfig(block_kv=128, schedule="both")
    wide = pallascope.compiled(
        functools.partial(attention, causal=causal, config=config),
        *(x.astype(BRAIN) for x in arrays),
    )
    assert found.instructions["SHFL"] <= wide.instructions["SHFL"]


# What is refused.


# On a GPU.
