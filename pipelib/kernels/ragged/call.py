"""`ragged_dot` as it is called: what it refuses, its configuration, and its gradients.

Where copies cannot address an array, `jax.lax.ragged_dot` makes the products: see `ragged_dot`.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pipelib import tiles
from pipelib.kernels.front import Front, differentiable
from pipelib.kernels.hopper import default_device, num_sms
from pipelib.kernels.keywords import RAGGED, knows
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.kernels.ragged.forward import Grouped, launch
from pipelib.kernels.ragged.weights import launch_weights
from pipelib.refs import Dtype, Shaped

FRONT = Front("ragged_dot", "jax.lax.ragged_dot", MatmulConfig)


@knows(RAGGED)
def ragged_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    *,
    config: MatmulConfig | None = None,
    out_dtype: DTypeLike | None = None,
    transpose_rhs: bool = False,
) -> jax.Array:
    """The products of groups of rows, each with a matrix of its own, on a Hopper GPU.

    Row r of group g gives `lhs[r] @ rhs[g]`, accumulated in float32. The groups' rows follow each
    other from row 0; rows behind the last group give zeros. As `jax.lax.ragged_dot`, for mixtures
    of experts. Works under `jax.jit`, `jax.grad`, `jax.vmap` and `jax.shard_map`.

    Args:
      lhs: [M, K], float16 or bfloat16.
      rhs: [groups, K, N] of the same dtype; [groups, N, K] if `transpose_rhs`.
      group_sizes: integers [groups]. Rows past M are left out, and a negative size counts as 0.
      config: "chained", without clusters and `splits`; by default by the sizes.
      out_dtype: float16, bfloat16 or float32; by default that of `lhs`.

    Returns:
      [M, N] in `out_dtype`.

    Rows of `lhs` and of the result must begin at multiples of 16 bytes, and K and N of `rhs` must
    be multiples of 8 and 64 (with `transpose_rhs`, K one of 8). Else `jax.lax.ragged_dot` makes the
    products. So it does for the gradient of `rhs` if M, K and N are not multiples of 8, 64 and 64.
    What is infinite in a row of the result's gradient makes the gradients of groups beside its own
    undefined, too.

    Raises:
      TypeError: dtypes, and types of arguments, that are not as above.
      ValueError: shapes; a GPU that is not Hopper, or a CPU where nothing interprets kernels (under
        `jax.jit` in Pallas's words); a configuration that does not fit, with the sum.

    Example:
      >>> lhs = jnp.ones((24, 64), jnp.bfloat16)
      >>> rhs = jnp.stack([jnp.ones((64, 64)), jnp.full((64, 64), 2.0)]).astype(jnp.bfloat16)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out = pipelib.kernels.ragged_dot(lhs, rhs, jnp.array([3, 5]))
      >>> out[:, 0].tolist()[:9]
      [64.0, 64.0, 64.0, 128.0, 128.0, 128.0, 128.0, 128.0, 0.0]
    """
    transpose_rhs = FRONT.flag("transpose_rhs", transpose_rhs)
    _check(lhs, rhs, group_sizes, config, transpose_rhs)
    stored = FRONT.stored_dtype(lhs, out_dtype)
    if config is not None:
        config.check(lhs.dtype, stored)
    asked = Asked(config, transpose_rhs, stored)
    FRONT.refuse_unused(config, unaddressed(lhs, rhs, asked))
    return FRONT.call(_ragged, (lhs, rhs, group_sizes.astype(jnp.int32)), asked)


class Asked(NamedTuple):
    """What `ragged_dot` is told beside its arrays; hashable."""

    config: MatmulConfig | None
    transpose_rhs: bool
    out_dtype: Dtype


def _made(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, asked: Asked) -> jax.Array:
    """The products by the kernel, or without it; all arguments are checked."""
    out: jax.Array
    if unaddressed(lhs, rhs, asked):
        other = rhs.swapaxes(1, 2) if asked.transpose_rhs else rhs
        out = lax.ragged_dot(lhs, other, sizes, preferred_element_type=jnp.float32)
        return out.astype(asked.out_dtype)
    FRONT.require_gpu()
    config = asked.config or default_config(lhs.shape[0], rhs.shape[0])
    is_gpu = default_device().platform == "gpu"
    grouped = Grouped(config, asked.transpose_rhs, asked.out_dtype, is_gpu)
    return launch(lhs, rhs, sizes, grouped, num_sms())


def default_config(rows: int, groups: int) -> MatmulConfig:
    """Tiles of 128 rows; of 64, if a group has no more on average."""
    if rows <= 64 * groups:
        return MatmulConfig(64, 256, 64, slots=4, compute_threads=1)
    return MatmulConfig(128, 256, 64, slots=4)


def unaddressed(lhs: Shaped, rhs: Shaped, asked: Asked) -> str | None:
    """Which array the kernel's copies cannot address, if there is one."""
    matrix = tuple(rhs.shape[1:])
    n = matrix[0 if asked.transpose_rhs else 1]
    can = tiles.has_rows if asked.transpose_rhs else tiles.has_pieces
    if not tiles.has_rows((1, lhs.shape[1]), lhs.dtype):
        return f"no copy can address the rows of lhs {lhs.shape}"
    if not can(matrix, rhs.dtype):
        return f"no copy can address the matrices of rhs {rhs.shape}"
    if not tiles.has_rows((1, n), asked.out_dtype):
        return f"no copy can address the result's rows of {n} columns"
    return None


def _backward(
    asked: Asked, g: jax.Array, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    """The gradients: of lhs by the same kernel, of rhs group by group."""
    g = g.astype(lhs.dtype)
    back = Asked(None, not asked.transpose_rhs, lhs.dtype)
    d_lhs = _ragged(g, rhs, sizes, back)
    left, right = (g, lhs) if asked.transpose_rhs else (lhs, g)
    return d_lhs, weights_of(left, right, sizes), None  # pyright: ignore[reportUnknownVariableType]


_ragged = differentiable(_made, _backward)


@jax.jit
def weights_of(lhs: jax.Array, g: jax.Array, sizes: jax.Array) -> jax.Array:
    """lhs^T @ g of each group, in lhs's dtype."""
    matrix = lhs.shape[1], g.shape[1]
    arrays = lhs.shape, g.shape, matrix
    out: jax.Array
    if not all(tiles.has_pieces(cast("tuple[int, int]", x), lhs.dtype) for x in arrays):
        numbers = lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(((0,), (0,)), ((), ())),
            lhs_ragged_dimensions=[0],
            rhs_group_dimensions=[],
        )
        out = lax.ragged_dot_general(lhs, g, sizes, numbers, preferred_element_type=jnp.float32)
        return out.astype(lhs.dtype)
    config = MatmulConfig(128, 256, 64, slots=4)
    return launch_weights(lhs, g, sizes, config, num_sms())


# What is refused.


def _check(lhs: object, rhs: object, sizes: object, config: object, transpose_rhs: bool) -> None:
    """Refuses arguments that are not as `ragged_dot` says.

    Raises:
      TypeError, ValueError: as it says.
    """
    FRONT.check_arrays(lhs=lhs, rhs=rhs, group_sizes=sizes)
    left, right, groups = cast("tuple[Shaped, Shaped, Shaped]", (lhs, rhs, sizes))
    FRONT.check_halves(left, right)
    if not jnp.issubdtype(groups.dtype, jnp.integer):
        raise TypeError(f"ragged_dot: group_sizes are {groups.dtype}, but must be integers.")
    if left.ndim != 2 or right.ndim != 3 or groups.shape != right.shape[:1]:
        raise ValueError(
            f"ragged_dot: lhs has shape {left.shape}, rhs {right.shape} and group_sizes"
            f" {groups.shape}, but they must be [M, K], [groups, K, N] and [groups]."
        )
    k = right.shape[2 if transpose_rhs else 1]
    if left.shape[1] != k:
        raise ValueError(
            f"ragged_dot: lhs {left.shape} has K = {left.shape[1]}, and rhs {right.shape} with"
            f" {transpose_rhs=} has K = {k}; they must be equal."
        )
    if 0 in (*left.shape, *right.shape):
        raise ValueError(
            f"ragged_dot: lhs {left.shape} or rhs {right.shape} is empty; all sizes must be 1 or"
            " more."
        )
    FRONT.check_config(config)
    if not isinstance(config, MatmulConfig):
        return
    if config.form != "chained" or config.cluster_size > 1 or config.splits > 1 or config.blocks:
        raise ValueError(
            f"ragged_dot: {config} has a form, clusters, splits or blocks of its own, but the"
            ' kernel is "chained", with one block for each SM: leave them as they are by default.'
        )
