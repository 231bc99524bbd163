"""`dot_product_attention`: the arguments of `jax.nn.dot_product_attention`, for the kernel.

The model. Sequences with lengths have segments: 0 for queries and keys within them, 1 for queries
behind, 2 for keys behind. So queries behind give zeros, as JAX's do. Another query that sees no key
gives zeros by the kernel, and by JAX's function the mean of all values, as all of its scores are
one large negative number: that is put in, where lengths or a window may leave a query without keys.
"""

# What it asks of JAX has no types.
# pyright: basic

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import ArrayLike

from pipelib.kernels.attention.arguments import FRONT, check_arrays, options_of
from pipelib.kernels.attention.call import attention
from pipelib.kernels.hopper import default_device


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """`jax.nn.dot_product_attention`, by the kernel of `attention` if that takes the arguments.

    Else by JAX's own function. Results and gradients are the same up to rounding. Works under
    `jax.jit`, `jax.vmap` and `jax.grad`.

    Args:
      query, key, value: [(batch,) seq, heads, head_dim]. By the kernel if float16 or bfloat16, on a
        Hopper GPU or interpreted; by JAX's own in other dtypes and on other devices.
      bias, mask: by JAX's own.
      scale: by the kernel if positive and known before; else by JAX's own.
      is_causal: by the kernel: query i sees keys j <= i, whatever the lengths.
      query_seq_lengths, key_value_seq_lengths: int32 [batch], by the kernel, as `segment_ids`.
      local_window_size: (left, right), or one for both, by the kernel; negative ones by JAX's own.
      implementation: None is the kernel where it can; "xla" and "cudnn" are JAX's own.
      return_residual: True is JAX's own; `attention` has `return_residuals`.

    Returns:
      [(batch,) seq, heads, head_dim] in query's dtype; a pair with `return_residual`, as JAX says.
      A query behind its length gives zeros, another that sees no key the mean of all values.

    Raises:
      TypeError, ValueError: as JAX's own.

    Example:
      >>> q = k = v = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
      >>> lengths = jnp.array([40], jnp.int32)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out = pipelib.kernels.dot_product_attention(q, k, v, query_seq_lengths=lengths)
      >>> float(out[0, 39, 0, 0]), float(out[0, 40, 0, 0])
      (1.0, 0.0)
    """
    asked: Any = dict(
        scale=scale, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths, local_window_size=local_window_size,
    )  # fmt: skip
    if bias is None and mask is None and implementation is None and not return_residual:
        q, k, v = (x[None] if x.ndim == 3 else x for x in map(jnp.asarray, (query, key, value)))
        if (out := _by_kernel(q, k, v, asked)) is not None:
            return out.reshape(jnp.shape(query))
    asked |= dict(implementation=implementation, return_residual=return_residual)
    return jax.nn.dot_product_attention(query, key, value, bias, mask, **asked)


def _by_kernel(q: jax.Array, k: jax.Array, v: jax.Array, asked: dict[str, Any]) -> jax.Array | None:
    """The result by the kernel; None if it does not take these arguments here."""
    lengths = asked["query_seq_lengths"], asked["key_value_seq_lengths"]
    window = asked["local_window_size"]
    try:
        check_arrays(q, k, v)
        FRONT.require_gpu()
        window = tuple(window) if isinstance(window, list) else window
        options = options_of(q, bool(asked["is_causal"]), window, asked["scale"])
    except (TypeError, ValueError):
        return None
    given = [n for n in lengths if n is not None]
    wrong = [n for n in given if (jnp.shape(n), jnp.result_type(n)) != (q.shape[:1], jnp.int32)]
    if wrong or k.shape != v.shape or not _is_here():
        return None
    places = jnp.arange(q.shape[1]), jnp.arange(k.shape[1])
    ends = [jnp.asarray(x.size if n is None else n) for x, n in zip(places, lengths)]
    ends = [jnp.broadcast_to(end, q.shape[:1])[:, None] for end in ends]
    inside = [x < end for x, end in zip(places, ends)]
    segments = (jnp.where(inside[0], 0, 1), jnp.where(inside[1], 0, 2)) if given else None
    sides = options.left, options.right
    out = attention(q, k, v, window=sides, scale=options.scale, segment_ids=segments)
    left = q.shape[1] if options.left is None else options.left
    if lengths[1] is None and q.shape[1] <= k.shape[1] + left:
        return out
    sees_none = inside[0] & (jnp.maximum(places[0] - left, 0) >= ends[1])
    mean = v.astype(jnp.float32).mean(1, keepdims=True).astype(v.dtype)
    mean = jnp.repeat(mean, q.shape[2] // k.shape[2], axis=2)
    return jnp.where(sees_none[:, :, None, None], mean, out)


def _is_here() -> bool:
    """Whether this is a GPU, or JAX's interpreter runs kernels, which only a jaxpr tells."""
    x = jax.ShapeDtypeStruct((), jnp.float32)
    kernel = pl.pallas_call(lambda *refs: None, out_shape=x)
    is_gpu = default_device().platform == "gpu"
    return is_gpu or bool(jax.make_jaxpr(kernel)(x).eqns[0].params["interpret"])
