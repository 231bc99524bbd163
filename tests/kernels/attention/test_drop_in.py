"""`dot_product_attention` beside `jax.nn.dot_product_attention`: its arguments, one by one.

Under `jax.jit` JAX's own takes no float16 on a CPU, so those tests have bfloat16.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipelib.kernels import attention_reference, dot_product_attention
from pipelib.kernels.attention import drop_in
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import BRAIN, lowered, operands

THEIRS = jax.nn.dot_product_attention
#: Of differences of results and gradients, which are about 1; probabilities are rounded to 16 bits.
TOLERANCE = 6e-3


def int32(*numbers):
    return jnp.array(numbers, jnp.int32)


#: What the kernel computes: shapes (queries, keys, heads, kv_heads), and options.
OURS = {
    "plain": ((16, 24, 2, 1), {}),
    "four heads over two": ((16, 24, 4, 2), {}),
    "scale": ((16, 24, 2, 1), {"scale": 0.3}),
    "causal": ((16, 24, 2, 1), {"is_causal": True}),
    "causal, more queries than keys": ((32, 16, 2, 1), {"is_causal": True}),
    "window": ((16, 24, 2, 1), {"local_window_size": (3, 2)}),
    "window of one number": ((16, 24, 2, 1), {"local_window_size": 4}),
    "window as a list": ((16, 24, 2, 1), {"local_window_size": [3, 2]}),
    "causal window": ((16, 24, 2, 1), {"local_window_size": (5, 7), "is_causal": True}),
    "window that leaves queries without keys": ((32, 16, 2, 1), {"local_window_size": (4, 0)}),
    "window of all": ((32, 16, 2, 1), {"local_window_size": (40, 40)}),
    "query lengths": ((16, 24, 2, 1), {"query_seq_lengths": int32(9, 0)}),
    "key lengths": ((16, 24, 2, 1), {"key_value_seq_lengths": int32(9, 24)}),
    "no keys": ((16, 24, 2, 1), {"key_value_seq_lengths": int32(0, 5)}),
    "both lengths": (
        (16, 24, 2, 1), {"query_seq_lengths": int32(9, 16), "key_value_seq_lengths": int32(0, 20)},
    ),
    "all together": (
        (16, 24, 2, 1), {
            "query_seq_lengths": int32(15, 16), "key_value_seq_lengths": int32(7, 14),
            "local_window_size": (4, 1), "is_causal": True, "scale": 0.5,
        },
    ),
}  # fmt: skip


def results(function, arrays, options):
    """The result of a function, and its gradients for a weight of each element."""
    call = functools.partial(function, **options)
    out, pull = jax.vjp(call, *arrays)
    weights = np.random.default_rng(0).standard_normal(out.shape)
    return out, *pull(jnp.asarray(weights, out.dtype))


def check_alike(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        ours, theirs = (np.asarray(x).astype(np.float32) for x in (ours, theirs))
        assert np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, np.abs(theirs).max())


@pytest.fixture(autouse=True)
def promotion():
    """JAX's own function needs it."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def by_kernel_only(monkeypatch):
    """JAX's own function fails, but as `THEIRS`."""
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *_, **__: pytest.fail("JAX's own"))


@pytest.fixture
def by_jax_only(monkeypatch):
    """The kernel's function fails."""
    monkeypatch.setattr(drop_in, "attention", lambda *_, **__: pytest.fail("the kernel"))


@pytest.mark.both_jax
def test_the_signature_is_jax_s():
    ours, theirs = map(inspect.signature, (dot_product_attention, THEIRS))
    facts = [
        [(x.name, x.kind, x.default) for x in signature.parameters.values()]
        for signature in (ours, theirs)
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.usefixtures("by_kernel_only")
def test_arguments_with_the_reference_for_the_kernel(name, monkeypatch):
    """What is made of the arguments, without the time that the interpreter takes."""
    monkeypatch.setattr(drop_in, "attention", attention_reference)
    shape, options = OURS[name]
    arrays = operands(*shape, batch=2)
    with interpreted():
        found = dot_product_attention(*arrays, **options)
    check_alike([found], [THEIRS(*arrays, **options)])


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
@pytest.mark.usefixtures("by_kernel_only")
def test_arguments_and_gradients_by_the_kernel(name):
    shape, options = OURS[name]
    arrays = operands(*shape, batch=2)
    with interpreted(detect_races=False):
        found = results(dot_product_attention, arrays, options)
    check_alike(found, results(THEIRS, arrays, options))


@pytest.mark.both_jax
@pytest.mark.usefixtures("by_kernel_only")
def test_result_by_the_kernel():
    """In bfloat16, where JAX's own can be compiled as a whole on a CPU."""
    shape, options = OURS["all together"]
    arrays = operands(*shape, dtype=BRAIN, batch=2)
    with interpreted(detect_races=False):
        found = dot_product_attention(*arrays, **options)
    expected = jax.jit(functools.partial(THEIRS, **options))(*arrays).astype(jnp.float32)
    assert found.dtype == BRAIN
    np.testing.assert_allclose(np.asarray(found).astype(np.float32), expected, 0, 2e-2)


@pytest.mark.parametrize("without", [(0, 1, 2), (0,), (1, 2)])
@pytest.mark.usefixtures("by_kernel_only")
def test_arrays_without_a_batch(without, monkeypatch):
    monkeypatch.setattr(drop_in, "attention", attention_reference)
    whole = operands(16, 24, 2, 1)
    arrays = [x[0] if i in without else x for i, x in enumerate(whole)]
    with interpreted():
        found = dot_product_attention(*arrays, query_seq_lengths=int32(9))
        expected = dot_product_attention(*whole, query_seq_lengths=int32(9))
    assert found.shape == arrays[0].shape == jax.eval_shape(THEIRS, *arrays).shape
    np.testing.assert_array_equal(found, expected.reshape(found.shape))


@pytest.mark.slow
@pytest.mark.usefixtures("by_kernel_only")
def test_vmap_and_jit():
    q, k, v = (x[:, None] for x in operands(16, 24, dtype=BRAIN, batch=2))
    options = {"key_value_seq_lengths": int32(5, 24)[:, None], "is_causal": True}

    def each(function):
        def call(q, k, v, key_value_seq_lengths, is_causal):
            one = lambda q, k, v, n: function(q, k, v, key_value_seq_lengths=n, is_causal=is_causal)
            return jax.jit(jax.vmap(one))(q, k, v, key_value_seq_lengths)

        return call

    with interpreted(detect_races=False):
        found = each(dot_product_attention)(q, k, v, **options)
    expected = each(THEIRS)(q, k, v, **options).astype(jnp.float32)
    np.testing.assert_allclose(found.astype(jnp.float32), expected, 0, 2e-2)


# What is JAX's own.

BIAS = jnp.asarray(np.random.default_rng(1).standard_normal((1, 1, 16, 24)), jnp.float32)
LEFT = {
    "bias": {"bias": BIAS},
    "mask": {"mask": BIAS > 0},
    "residual": {"return_residual": True},
    "xla": {"implementation": "xla"},
    "scale of 0": {"scale": 0.0},
    "negative scale": {"scale": -0.5},
    "traced scale": {"scale": jnp.float32(0.5)},
    "negative window": {"local_window_size": (-2, 5)},
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.usefixtures("by_jax_only")
def test_what_is_left_to_jax_s_own(name):
    options, arrays = dict(LEFT[name]), operands(16, 24, 2, 1, dtype=BRAIN)
    traced = {"scale": options.pop("scale")} if name == "traced scale" else {}
    calls = [functools.partial(f, *arrays, **options) for f in (dot_product_attention, THEIRS)]
    with interpreted():
        found, expected = (jax.jit(call)(**traced) for call in calls)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.usefixtures("by_jax_only")
def test_another_dtype_is_left_to_jax_s_own():
    arrays = operands(16, 24, dtype=jnp.float32)
    with interpreted():
        found = dot_product_attention(*arrays)
    np.testing.assert_array_equal(found, THEIRS(*arrays))


@pytest.mark.both_jax
def test_devices_without_the_kernel_are_left_to_jax_s_own():
    arrays = operands(16, 24, dtype=BRAIN)
    gpus = Gpu("NVIDIA A100", "8.0"), Gpu("NVIDIA B200", "10.0"), Gpu("NVIDIA H200", "9.0")
    for gpu in gpus:
        with assumed(gpu):
            has_kernel = "mosaic_gpu" in lowered(lambda *x: dot_product_attention(*x), *arrays)
        assert has_kernel == (gpu is gpus[2])
    np.testing.assert_array_equal(dot_product_attention(*arrays), THEIRS(*arrays))
    found = jax.jit(jax.grad(lambda q: dot_product_attention(q, *arrays[1:]).sum()))(arrays[0])
    assert found.shape == arrays[0].shape


@pytest.mark.both_jax
def test_the_interpreter_is_known():
    assert not drop_in._is_here()
    with interpreted():
        assert drop_in._is_here() and jax.jit(lambda: jnp.bool(drop_in._is_here()))()
    assert not drop_in._is_here()
    with assumed(Gpu("NVIDIA H200", "9.0")):
        assert drop_in._is_here()


Q, K, V = operands(16, 24, 2, 1)


@pytest.mark.parametrize("arrays, options", [
    ((Q[..., :32], K, V), {}), ((Q, K, V[:, :8]), {}), ((Q, K, V[..., :32]), {}),
    ((Q, K.astype(BRAIN), V), {}), ((Q[:, :, :1], jnp.repeat(K, 2, 2), jnp.repeat(V, 2, 2)), {}),
    ((Q, K, V), {"query_seq_lengths": int32(1, 2)}),
    ((Q, K, V), {"key_value_seq_lengths": jnp.array([1.0])}),
    ((Q, K, V), {"implementation": "ours"}), ((Q, K, V), {"mask": BIAS}),
])  # fmt: skip
def test_what_is_refused_is_refused_in_jax_s_words(arrays, options):
    said = []
    for function in (THEIRS, dot_product_attention):
        with pytest.raises((TypeError, ValueError)) as error, interpreted():
            function(*arrays, **options)
        said.append((error.type, str(error.value)))
    assert said[0] == said[1]
