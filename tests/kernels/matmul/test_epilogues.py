"""What `matmul` takes for an epilogue, and what it refuses."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from pipelib.kernels import matmul
from pipelib.kernels.matmul import epilogues
from pipelib.kernels.matmul.epilogues import check_epilogue


def further(epilogue):
    """How many operands it has beside the product."""
    needed = inspect.signature(epilogue).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in needed) - 1


MIXED = {
    "softmax": lambda acc: jax.nn.softmax(acc, axis=1),
    "a cumulative sum": lambda acc: jnp.cumsum(acc, axis=0),
    "less its maximum": lambda acc: acc - acc.max(),
    "less its mean, small": lambda acc: 1e-9 * (acc - acc.mean(1, keepdims=True)),
    "the largest that is a number": lambda acc: acc / jnp.nanmax(acc),
    "turned round": lambda acc: acc[::-1],
    "its place": lambda acc: acc + lax.broadcasted_iota(jnp.float32, acc.shape, 0),
    "the shape": lambda acc: acc / acc.shape[1],
    "a guard": lambda acc: jnp.where(jnp.isfinite(acc).all(), acc, 0.0),
    "another operand": lambda acc, x: acc + x.sum(),
}


@pytest.mark.parametrize("epilogue", MIXED.values(), ids=MIXED)
def test_epilogues_that_are_not_elementwise(epilogue):
    """Each would give what the tiles make of it."""
    a = jnp.ones((64, 64), jnp.float16)
    with pytest.raises(ValueError, match="depend on how the kernel divides the result"):
        matmul(a, a, epilogue=epilogue, operands=(a,) * further(epilogue))


def test_what_is_said_of_an_epilogue_that_is_not_elementwise():
    with pytest.raises(ValueError) as caught:
        check_epilogue(MIXED["the shape"], 0)
    assert str(caught.value) == (
        "matmul: the epilogue gives 0.224 for element (0, 0) of a part of shape (3, 5), but 1.12"
        " for that element alone: it looks at other elements, its place or the part's shape, so"
        " what it gives would depend on how the kernel divides the result."
    )


ELEMENTWISE = {
    "gelu": jax.nn.gelu,
    "exact gelu": lambda acc: jax.nn.gelu(acc, approximate=False),
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "fast": lambda acc: jnp.sin(30.0 * acc),
    "small": lambda acc: 1e-12 * acc,
    "rounded": lambda acc: acc.astype(jnp.bfloat16),
    "a test": lambda acc: acc > 0.0,
    "two": lambda acc, x: jnp.where(x > 0.0, acc, jnp.tanh(x)),
}


@pytest.mark.parametrize("epilogue", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_epilogues_that_are_elementwise(epilogue):
    """Also below transformations, under which arrays made on the way are no numbers."""
    check = lambda x: (check_epilogue(epilogue, further(epilogue)), x)[1]
    epilogues._difference.cache_clear()
    jax.jit(jax.vmap(jax.grad(check)))(jnp.ones(3))
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    epilogues._difference.cache_clear()
    with jax.debug_nans(True):
        jax.shard_map(check, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(jnp.ones(3))
