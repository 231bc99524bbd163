"""rms_norm and softmax: values, edges, gradients, schedules, lowering, refusals; and at size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib.kernels import memory_bound
from pipelib.kernels.memory_bound import (
    RowPlan,
    rms_norm,
    rms_norm_reference,
    softmax,
    softmax_reference,
)
from tests.emitters import contract

#: Relative, of one rounding to the output's dtype with room for another of an argument.
TOLERANCE = {"float32": 4e-6, "float16": 1e-3, "bfloat16": 8e-3}
BOTH = pytest.mark.parametrize("kernel", [rms_norm, softmax])


def normal(*shape, dtype="float32", seed=0):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def exact(kernel, x, weight=None, eps=1e-6):
    """In float64."""
    x = np.asarray(x, np.float64)
    if kernel is softmax:
        with np.errstate(invalid="ignore"):
            e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * np.asarray(weight, np.float64)


def check(kernel, x, *weight, tolerance=None, **options):
    """Runs a kernel in the interpreter and compares it with float64."""
    with contract.interpreted():
        y = np.asarray(kernel(x, *weight, **options))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    tolerance = tolerance or TOLERANCE[x.dtype.name]
    smallest = float(jnp.finfo(x.dtype).smallest_subnormal)
    expected = exact(kernel, x, *weight)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, tolerance, 8 * smallest)


def plan_of(kernel_rows, length, size, weight_size=0, slots=None, rows=None):
    return RowPlan.of(kernel_rows, length, size, weight_size, slots, rows)


# Values.


# Whole rows; rows padded for the lanes, with leading axes; a row alone.
@pytest.mark.parametrize(
    ("kernel", "shape", "dtype"),
    [
        (rms_norm, (5, 384), "bfloat16"),
        (rms_norm, (3, 1, 200), "float16"),
        (softmax, (3, 1, 200), "bfloat16"),
        (softmax, (256,), "float32"),
    ],
)
def test_one_pass(kernel, shape, dtype):
    check(kernel, 3 * normal(*shape, dtype=dtype))


# Chunks that divide the row, and that do not, with 3 rows, of which the last block has one.
@pytest.mark.parametrize("slots", [None, 2])
@pytest.mark.parametrize(
    ("kernel", "length", "padded"),
    [(rms_norm, 160 * 128, False), (softmax, 160 * 128, False), (softmax, 163 * 128, True)],
)
def test_rows_in_chunks(kernel, length, padded, slots):
    """They are kept in SMEM, unless slots are asked for; else there are two passes."""
    plan = plan_of(3, length, 4, slots=slots)
    assert plan.chunks > 1 and plan.padded == padded and plan.is_kept == (slots is None)
    x = normal(3, length) * jnp.linspace(1.0, 6.0, length)  # the maximum moves
    check(kernel, x, slots=slots)


@pytest.mark.parametrize(
    ("weight_dtype", "length"),
    [("float16", 384), ("bfloat16", 200), ("float32", 160 * 128), ("float32", 163 * 128)],
)
def test_weight(weight_dtype, length):
    weight = jnp.linspace(0.5, 2.0, length).astype(weight_dtype)
    check(rms_norm, normal(3, length), weight)


@pytest.mark.parametrize(
    ("kernel", "slots", "rows", "weights"), [(softmax, 2, 4, 0), (rms_norm, 3, 1, 1)]
)
def test_blocks_take_several_steps(kernel, slots, rows, weights, monkeypatch):
    """13 rows do not divide into steps of 4, nor the steps among the blocks."""
    monkeypatch.setattr(memory_bound, "num_sms", lambda: 1)
    monkeypatch.setattr(memory_bound, "SM_BYTES", 64 * 1024)
    plan = plan_of(13, 1024, 4, weights * 4, slots, rows)
    assert plan.blocks < -(-13 // rows)
    weight = [normal(1024, seed=1)] * weights
    check(kernel, normal(13, 1024), *weight, slots=slots, rows=rows)


def test_rms_norm_of_extremes():
    scale = jnp.array([1e-30, 1e-3, 1e4, 1e18, 0.0, -7.0])[:, None]
    check(rms_norm, scale * normal(6, 256), tolerance=2e-5)


def test_eps():
    with contract.interpreted():
        out = rms_norm(jnp.zeros((2, 256)) + 2.0, eps=12.0)
    np.testing.assert_allclose(out, 0.5, 1e-6)


@pytest.mark.parametrize("length", [200, 163 * 128])
def test_softmax_of_extremes(length):
    """Large, all equal, some -inf (a whole chunk of them first), one that is not; then NaN."""
    x = np.asarray(normal(8, length)).copy()
    x[0] *= 1e4
    x[1] = -3e38
    x[2] = 7.0
    x[3, : length * 3 // 4] = -np.inf
    x[4, 1::2] = -np.inf
    x[5], x[5, 17] = -np.inf, -4.0
    check(softmax, jnp.asarray(x), tolerance=2e-5)
    x[6] = -np.inf  # as jax.nn.softmax: 0 / 0
    x[7, 3] = np.nan
    with contract.interpreted():
        y = np.asarray(softmax(jnp.asarray(x)))
    np.testing.assert_array_equal(np.isnan(y).all(-1), [False] * 6 + [True] * 2)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(softmax_reference(jnp.asarray(x))))


# What JAX makes of them.


@BOTH
def test_vmap_is_one_kernel(kernel):
    x = normal(2, 3, 256)
    assert pallascope.trace(jax.vmap(kernel, in_axes=1), x)  # ValueError if it has none or several
    with contract.interpreted():
        y = jax.jit(jax.vmap(kernel, in_axes=1, out_axes=1))(x)
    np.testing.assert_allclose(y, exact(kernel, x), 1e-5)


def test_vmap_of_the_weight():
    x, weight = normal(3, 256), normal(2, 256, seed=1)
    y = jax.vmap(rms_norm, in_axes=(None, 0))(x, weight)  # plain JAX: needs no interpreter
    np.testing.assert_allclose(y, exact(rms_norm, x, weight[:, None]), 1e-5)


def test_gradients():
    x, weight, c = normal(3, 256), normal(256, seed=1), normal(3, 256, seed=2)

    def gradients(norm, smax):
        total = lambda x, weight: jnp.sum(c * (norm(x, weight) + smax(x)))
        return jax.grad(total, (0, 1))(x, weight)

    expected = gradients(rms_norm_reference, softmax_reference)
    with contract.interpreted():
        actual = gradients(rms_norm, softmax)
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


# Left to plain JAX: no multiple of 16 bytes; 8 times a prime; pieces that would be 16 bytes; none.
@pytest.mark.parametrize("shape", [(3, 129), (3, 8 * 1021), (3, 8), (0, 256), (3, 0)])
def test_fallback(shape):
    x = normal(*shape, dtype="bfloat16")
    np.testing.assert_array_equal(rms_norm(x), rms_norm_reference(x))  # outside the interpreter
    if shape[-1]:
        np.testing.assert_array_equal(softmax(x), softmax_reference(x))


# Schedules and lowering.


def test_plans():
    """The default plans of the shapes that are measured, and of edges."""
    assert plan_of(8192, 8192, 2) == RowPlan(256, 32, 32, rows=1, slots=1, blocks=8192)
    assert plan_of(8192, 8192, 2, slots=2).blocks == 6 * 132
    assert plan_of(8192, 8192, 2, weight_size=2, slots=2).blocks == 3 * 132
    assert plan_of(8192, 1024, 2).rows == 2
    assert plan_of(8192, 16384, 4).chunks == 1
    assert plan_of(8192, 16384, 4, weight_size=4).chunks > 1  # one block would fill an SM
    assert plan_of(8192, 16384, 4, weight_size=4, slots=1).chunks == 1
    padded = plan_of(8192, 8200, 2)
    assert (padded.piece, padded.pieces, padded.block, padded.rows) == (40, 205, 208, 2)
    long = plan_of(64, 151936, 2)  # 1187 pieces, a prime number
    assert (long.piece, long.block, long.chunks, long.rows) == (128, 63, 19, 2)
    assert not plan_of(64, 128000, 2).padded
    assert plan_of(64, 50176, 4).is_kept and not plan_of(64, 65536, 4).is_kept  # 196 and 256 KiB


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("weight_size", [0, 4])
def test_every_plan_is_possible(size, weight_size):
    """TMA, the lanes, SMEM and registers can do what a plan says, for all lengths."""
    taken = 0
    for length in [*range(1, 2000, 3), *range(8000, 40000, 24), 50257, 151936, 262144]:
        if (plan := plan_of(100, length, size, weight_size)) is None:
            continue
        taken += 1
        step = plan.block * plan.piece
        assert plan.piece * plan.pieces == length and plan.piece * size % 16 == 0
        assert step % 128 == 0 and step <= 16384
        assert (plan.chunks - 1) * plan.block < plan.pieces <= plan.chunks * plan.block
        contiguous = plan.rows == 1 or plan.block == plan.pieces
        assert contiguous or (plan.block <= 256 and plan.piece <= 256)
        assert not (plan.padded and plan.rows == 1)
        in_place = plan.is_kept or plan.chunks == 1
        rings = (1 if in_place else 2) * plan.slots * plan.rows * step * size
        weights = (2 if plan.is_kept else plan.slots) * step * weight_size
        assert rings + weights + 3072 <= 227 * 1024, plan
    assert taken > 500


# Refusals.


def test_numpy_s_integers():
    x = normal(3, 256)
    with contract.interpreted():
        one = softmax(x, slots=np.int64(2), rows=np.int32(1))
        np.testing.assert_array_equal(one, softmax(x, slots=2, rows=1))


# On a GPU, at size.

AT_SIZE = [(8192, 8192), (8191, 8200), (33, 128000), (33, 151936), (5, 200), (9999, 1024)]
AT_SIZE += [(513, 32768), (129, 163 * 128)]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", AT_SIZE)
@pytest.mark.parametrize("dtype", TOLERANCE)
@BOTH
def test_at_size(kernel, dtype, shape):
    x = 3 * normal(*shape, dtype=dtype)
    check_on_gpu(kernel, x)
    if kernel is rms_norm:
        for weight_dtype in TOLERANCE:
            check_on_gpu(kernel, x, normal(shape[1], dtype=weight_dtype, seed=1))


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@BOTH
def test_slots_at_size(kernel, slots):
    check_on_gpu(functools.partial(kernel, slots=slots), normal(8192, 8192, dtype="bfloat16"))


@pytest.mark.gpu
def test_some_infinite_at_size():
    x = normal(64, 151936)
    x = x.at[:, ::3].set(-jnp.inf).at[1, :100000].set(-jnp.inf).at[2].set(-jnp.inf)
    check_on_gpu(softmax, x)
    assert np.isnan(softmax(x)[2]).all()


def check_on_gpu(kernel, x, *weight):
    """Against the reference, everywhere, and so that no row is lost."""
    function = getattr(kernel, "func", kernel)
    reference = {rms_norm: rms_norm_reference, softmax: softmax_reference}[function]
    y, expected = kernel(x, *weight), reference(x.astype(jnp.float32), *weight)
    close = functools.partial(jnp.isclose, rtol=4 * TOLERANCE[x.dtype.name], atol=1e-7)
    assert bool(jnp.all(close(y.astype(jnp.float32), expected, equal_nan=True)))
