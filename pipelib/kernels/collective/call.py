"""`collective_matmul` as it is called: what it refuses, its gradients, and the plain way.

The gradients. To the gradient of a shard each device adds the part of its columns: a product, and
`jax.lax.psum_scatter`. The gradient of the columns needs all shards again: they are gathered anew
(`jax.lax.all_gather`), not kept. Both products are `matmul`'s. No transfer is hidden.
There is no forward mode: `jax.jvp` ends, when JAX compiles it, with JAX's TypeError, which names
custom_vjp.
"""

from typing import cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pipelib import specs, tiles
from pipelib.kernels.collective.choosing import default_config
from pipelib.kernels.collective.config import CollectiveConfig
from pipelib.kernels.collective.kernel import Gathered, launch
from pipelib.kernels.front import Front, differentiable
from pipelib.kernels.hopper import num_sms
from pipelib.kernels.keywords import PRODUCT, knows
from pipelib.kernels.matmul import matmul
from pipelib.kernels.matmul.product import Product
from pipelib.refs import Shaped

FRONT = Front(
    "collective_matmul", "jax.lax.all_gather and jnp.matmul", CollectiveConfig, is_interpreted=False
)


@knows(PRODUCT)
def collective_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    config: CollectiveConfig | None = None,
    out_dtype: DTypeLike | None = None,
) -> jax.Array:
    """`jax.lax.all_gather(lhs, axis_name, tiled=True) @ rhs`, the transfer behind the products.

    For layers whose input lies in rows on several Hopper GPUs of one host, and whose weights lie in
    columns. It is called within `jax.shard_map`, on all devices along an axis of the mesh. Works
    under `jax.jit` and `jax.grad`.

    Args:
      lhs: [M, K], this device's rows, float16 or bfloat16.
      rhs: [K, N], this device's columns, of the same dtype.
      axis_name: the axis of the mesh along which the rows lie. With one device along it, this is
        `matmul`.
      config: how the work is divided; by default the likeliest of a few, by estimates of the
        product and of the transfer (`pipelib.kernels.collective.choosing`).
      out_dtype: float16, bfloat16 or float32; by default that of `lhs`.

    Returns:
      [devices x M, N] in `out_dtype`: the rows of the first device, then those of the second, ...

    M must be a multiple of 8, or less, and K and N multiples of 64. Else JAX's own gather and
    product are used, one after the other. The kernel takes memory for the shards of the other
    devices, (devices - 1) x M x K elements, which is free after the call.

    Raises:
      TypeError: dtypes, and types of arguments, that are not as above.
      ValueError: shapes; an axis that is not of the mesh; a GPU that is not Hopper, or a CPU; a
        configuration that does not fit, with the sum.

    Example:
      On a mesh of one device, which is `matmul`:

      >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> rows, columns = jax.P("x", None), jax.P(None, "x")
      >>> multiply = jax.shard_map(
      ...     lambda a, b: pipelib.kernels.collective_matmul(a, b, axis_name="x"),
      ...     mesh=mesh, in_specs=(rows, columns), out_specs=columns)
      >>> lhs, rhs = jnp.ones((64, 128), jnp.bfloat16), jnp.ones((128, 64), jnp.bfloat16)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out = multiply(lhs, rhs)
      >>> out.shape, float(out[0, 0])
      ((64, 64), 128.0)
    """
    devices = _check(lhs, rhs, axis_name, config)
    stored = FRONT.stored_dtype(lhs, out_dtype)
    if config is not None:
        config.check(lhs.dtype, stored)
    if devices == 1:
        return matmul(lhs, rhs, config=config, out_dtype=stored)
    (m, k), n = lhs.shape, rhs.shape[1]
    taken = config or default_config(m, n, k, devices, lhs.dtype, stored, num_sms())
    asked = Gathered(Product(False, False, taken, None, stored), axis_name, devices)
    FRONT.refuse_unused(config, unaddressed(lhs, rhs, asked))
    return FRONT.call(_collective, (lhs, rhs), asked)


def _made(lhs: jax.Array, rhs: jax.Array, asked: Gathered) -> jax.Array:
    """The product by the kernel, or without it; all arguments are checked."""
    if unaddressed(lhs, rhs, asked):
        dtype, rows = asked.product.out_dtype, lax.all_gather(lhs, asked.axis, tiled=True)
        return jnp.matmul(rows, rhs, preferred_element_type=dtype)
    FRONT.require_gpu()
    _check_blocks(asked.product.config, num_sms())
    return launch(lhs, rhs, asked, num_sms())


def unaddressed(lhs: Shaped, rhs: Shaped, asked: Gathered) -> str | None:
    """Which of the shard, the columns and the result copies cannot address, if there is one."""
    result = (lhs.shape[0], rhs.shape[1]), asked.product.out_dtype
    arrays = {"lhs": (lhs.shape, lhs.dtype), "rhs": (rhs.shape, rhs.dtype), "the result": result}
    for name, (shape, dtype) in arrays.items():
        if not tiles.has_pieces(cast("tuple[int, int]", shape), dtype):
            return f"no copy can address {name} {shape}"
    return None


def _backward(
    asked: Gathered, g: jax.Array, lhs: jax.Array, rhs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The gradients of the shard and of the columns."""
    g = g.astype(lhs.dtype)
    of_all = matmul(g, rhs, transpose_b=True, out_dtype=jnp.float32)
    d_lhs = lax.psum_scatter(of_all, asked.axis, tiled=True)
    d_rhs = matmul(lax.all_gather(lhs, asked.axis, tiled=True), g, transpose_a=True)
    return d_lhs.astype(lhs.dtype), d_rhs


_collective = differentiable(_made, _backward)


# What is refused.


def _check(lhs: object, rhs: object, axis_name: object, config: object) -> int:
    """Refuses arguments that are not as `collective_matmul` says; returns the devices of the axis.

    Raises:
      TypeError, ValueError: as it says.
    """
    FRONT.check_arrays(lhs=lhs, rhs=rhs)
    if not isinstance(axis_name, str):
        because = "the shards lie along one axis of the mesh, which a string names"
        raise specs.wrong_type("collective_matmul: axis_name", axis_name, because)
    FRONT.check_config(config)
    a, b = cast("tuple[Shaped, Shaped]", (lhs, rhs))
    _check_arrays(a, b)
    try:
        return lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"collective_matmul: {axis_name=} is no axis here, so no device knows whose rows it"
            " needs: call it within jax.shard_map over a mesh with this axis."
        ) from None


def _check_arrays(lhs: Shaped, rhs: Shaped) -> None:
    """Raises TypeError and ValueError for dtypes and shapes that are not so."""
    FRONT.check_halves(lhs, rhs)
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ValueError(
            f"collective_matmul: lhs has shape {lhs.shape} and rhs {rhs.shape}, but they must be"
            " [M, K] and [K, N] with one K: this device's rows, and its columns."
        )
    if 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(
            f"collective_matmul: lhs {lhs.shape} or rhs {rhs.shape} is empty; M, N, K must be 1 or"
            " more."
        )


def _check_blocks(config: CollectiveConfig, sms: int) -> None:
    """Raises ValueError for more blocks than can run at once."""
    blocks = config.senders + (config.blocks or 1)
    if blocks > sms:
        raise ValueError(
            f"collective_matmul: senders={config.senders} and blocks={config.blocks or 1} are"
            f" {blocks}, more than the GPU's {sms} SMs, which run one each, so {blocks} - {sms} ="
            f" {blocks - sms} would not have begun when others wait for what they send or multiply:"
            f" ask for at most {sms} together."
        )
