"""Sizes that copies cannot address: any length, any head up to 256, and v's of another size."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import attention_reference
from pipelib.kernels.attention.padding import Padding
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    HALF,
    check_close,
    exact,
    exact_gradients,
    ids,
    lowered,
    operands,
    small,
)
from tests.kernels.attention.padding_cases import (
    PROBLEMS,
    arrays_of,
)

#: Queries, keys, heads of q and of k, the size of q's heads, of v's, and options.
SIZES = {
    "odd lengths": ((77, 131, 2, 1, 64, 64), {}),
    "one token": ((1, 1, 1, 1, 64, 64), {}),
    "more queries than keys, causal": ((150, 67, 1, 1, 64, 64), {"causal": True}),
    "a small head": ((64, 72, 1, 1, 40, 40), {"causal": True}),
    "a head of an odd size": ((72, 65, 1, 1, 7, 7), {}),
    "v's heads are smaller": ((70, 130, 1, 1, 64, 24), {"window": (20, 30)}),
    "v's heads are larger": ((70, 130, 1, 1, 24, 64), {}),
    "segments": ((65, 67, 1, 1, 64, 64), {"segment_ids": (ids(1, 40, 25), ids(1, 20, 47))}),
}


@pytest.mark.parametrize("name", SIZES)
def test_result(name):
    sizes, options = SIZES[name]
    arrays = arrays_of(*sizes)
    for schedule in ("plain", "optimistic"):
        with interpreted():
            found = attention(*arrays, config=small(schedule), return_residuals=True, **options)
        assert found[0].shape == (1, sizes[0], sizes[2], sizes[5])
        check_close(found, exact(*arrays, **options), HALF)


@pytest.mark.parametrize(
    "name",
    ["odd lengths", "more queries than keys, causal", "v's heads are smaller", "segments"],
)
def test_gradients(name):
    """Of what was added there are none."""
    sizes, options = SIZES[name]
    arrays = arrays_of(*sizes)
    call = functools.partial(attention, config=small("plain"), **options)
    check_gradients(arrays, call, options)


def check_gradients(arrays, call, options):
    """Those of a sum of all results, by chance, against float64."""
    call = functools.partial(call, return_residuals=True)
    out_type, lse_type = jax.eval_shape(call, *arrays)
    draw = np.random.default_rng(3).standard_normal
    d_out, d_lse = (
        jnp.asarray(draw(out_type.shape), out_type.dtype),
        jnp.asarray(draw(lse_type.shape), jnp.float32),
    )
    with interpreted():
        _, pull = jax.vjp(call, *arrays)
        found = pull((d_out, d_lse))
    for one, expected in zip(found, exact_gradients(*arrays, d_out, d_lse, **options)):
        assert one.shape == expected.shape
        error = np.linalg.norm(np.asarray(one, np.float64) - expected)
        assert error <= 2e-3 * np.linalg.norm(expected)


def test_the_reference_has_values_of_another_size():
    arrays = arrays_of(33, 45, 2, 1, 24, 40)
    found = attention_reference(*arrays, causal=True, return_residuals=True)
    check_close(found, exact(*arrays, causal=True), HALF)
    arrays = arrays_of(16, 24, 1, 1, 264, 40)  # no kernel has such heads
    check_close(attention(*arrays, return_residuals=True), exact(*arrays), HALF)


def test_under_vmap_and_jit():
    q, k, v = (jnp.stack([x[0]] * 2) for x in arrays_of(33, 45, 1, 1, 24, 40))
    one = lambda q, k, v: attention(q[None], k[None], v[None], config=small("plain"))[0]
    with interpreted():
        out = jax.jit(jax.vmap(one))(q, k, v)
    np.testing.assert_allclose(np.asarray(out), exact(q, k, v)[0], 0, 2e-3)


def test_nothing_is_copied_that_fits():
    arrays = operands(128, 64, head_dim=128)
    text = lowered(functools.partial(attention, config=AttentionConfig()), *arrays)
    assert "stablehlo.pad" not in text and "stablehlo.slice" not in text
    q, k, v = arrays_of(8, 16, 1, 1, 64, 64)
    padding = Padding.of(q, k, v)
    assert padding is not None and padding.filled(q) is q


@pytest.mark.parametrize(("head_dim", "values", "kernel"), [(8, 72, 128), (129, 1, 256)])
def test_the_head_of_the_kernel(head_dim, values, kernel):
    q, k, v = arrays_of(8, 8, 1, 1, head_dim, values)
    padding = Padding.of(q, k, v)
    assert padding is not None and padding.head_dim == kernel
    assert padding.filled(v).shape[-1] == padding.filled(q).shape[-1] == kernel
    assert Padding.of(q, k, jnp.zeros((1, 8, 1, 257), HALF)) is None


def test_the_scale_is_that_of_the_head_as_it_was():
    """Of 80, not of 128."""
    arrays = arrays_of(16, 24, 1, 1, 40, 40)
    with interpreted():
        found = attention(*arrays, config=small("plain"), return_residuals=True)
    check_close(found, exact(*arrays, scale=40**-0.5), HALF)


BY_ROWS = {name: case for name, case in PROBLEMS.items() if name != "heads of 20"} | {
    "heads of 64": ((777, 777, 2, 1, 64, 64), {}),
    "a head of v in more pieces": ((520, 64, 2, 2, 64, 200), {}),
    "segments": ((777, 777, 2, 1, 128, 128), {"segment_ids": (ids(1, 400, 377),) * 2}),
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_copies_see_rows_on_a_gpu(name):
    """The forward kernel needs no array filled up, but of the numbers of rows."""
    sizes, options = BY_ROWS[name]
    arrays = arrays_of(*sizes)
    call = functools.partial(attention, **options)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        program = pallascope.trace(call, *arrays)
        text = str(jax.make_jaxpr(call)(*arrays))
    assert pallascope.check(program, strict=True).ok
    assert not re.search(r":f16\[[\d,]+\] = (pad|slice)\[", text)


def test_rows_that_no_copy_can_address_are_filled_up():
    """A head of 20 has 40 bytes, and rows of a copy begin at multiples of 16."""
    arrays = arrays_of(64, 64, 1, 1, 20, 20)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        text = str(jax.make_jaxpr(attention)(*arrays))
    assert re.search(r":f16\[[\d,]+\] = pad\[", text)


def test_a_configuration_must_fit_the_head_of_the_kernel():
    with pytest.raises(ValueError, match="registers of a lane"):
        attention(*arrays_of(8, 8, 1, 1, 192, 192), config=AttentionConfig(block_kv=256))


# On a Hopper GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [None, True])
def test_gradients_on_gpu(fused):
    sizes, options = PROBLEMS["777 tokens"]
    call = functools.partial(attention, config=AttentionConfig(fused=fused), **options)
    arrays = arrays_of(*sizes)
    expected = jax.grad(total(attention_reference, options), (0, 1, 2))(*arrays)
    for found, wanted in zip(jax.grad(total(call, {}), (0, 1, 2))(*arrays), expected):
        found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
        assert np.linalg.norm(found - wanted) <= 3e-3 * np.linalg.norm(wanted)


def total(call, options):
    """A function of q, k and v that depends on every result."""
    return lambda *arrays: jnp.sin(call(*arrays, **options).astype(jnp.float32)).sum()
