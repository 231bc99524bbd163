"""`attention` in plain JAX, forward and backward, in float32.

The model. It goes through chunks of at most `CHUNK` queries, and holds only the scores of one chunk
at a time. Heads are seen as [kv_heads, group]: the group of query heads that share one of K and V.
"""

# What it asks of JAX has no types.
# pyright: basic

import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from jax import lax

from pipelib.kernels.attention.band import Options, Sizes
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.refs import Int, Tree

#: Queries whose scores are in memory at once.
CHUNK = 512


def _scores(
    q: jax.Array,
    k: jax.Array,
    first: Int,
    segments: tuple[jax.Array, ...],
    options: Options[AttentionConfig | None],
) -> jax.Array:
    """The masked scores of some queries, float32 [batch, kv_heads, group, queries, keys].

    Args:
      q: the queries [batch, queries, kv_heads, group, head_dim].
      k: all keys [batch, keys, kv_heads, head_dim].
      first: the number of the first of these queries.
      segments: none, or the segments of these queries and of all keys.
      options: what they see, and the scale.
    """
    scores = options.capped(_einsum("bqkgd,bskd->bkgqs", q, k)) * options.multiplier
    ahead = jnp.arange(k.shape[1]) - (first + jnp.arange(q.shape[1]))[:, None]
    seen = jnp.ones_like(ahead, bool)
    if options.left is not None:
        seen &= ahead >= -options.left
    if options.right is not None:
        seen &= ahead <= options.right
    if segments:
        own, others = segments
        seen = seen & (own[:, :, None] == others[:, None])[:, None, None]
    return jnp.where(seen, scores, -jnp.inf)


def _einsum(equation: str, *operands: jax.Array) -> jax.Array:
    """`jnp.einsum` in float32, without TF32."""
    return jnp.einsum(equation, *(x.astype(jnp.float32) for x in operands), precision="highest")


def _chunked(function: Callable[..., Tree], *arrays: jax.Array) -> Tree:
    """Calls `function(first, *chunks)` for one chunk of queries after the other.

    The backward pass makes each chunk once more, so that it keeps nothing of a chunk but these.

    Args:
      function: takes the number of a chunk's first query, and the chunk of each array. It returns
        arrays [batch, queries, ...].
      arrays: [batch, seq, ...] each, over all queries.

    Returns:
      The arrays of all chunks together.
    """
    length = arrays[0].shape[1]
    count = -(-length // CHUNK)
    size = -(-length // count)
    chunks = jnp.arange(count) * size, *(_split(x, count, size) for x in arrays)
    made = cast("Callable[..., Tree]", jax.checkpoint(function))

    def of_chunk(chunk: tuple[jax.Array, ...]) -> Tree:
        return made(*chunk)

    return jax.tree.map(functools.partial(_join, length=length), lax.map(of_chunk, chunks))


def _split(x: jax.Array, count: int, size: int) -> jax.Array:
    """[batch, seq, ...] as [count, batch, size, ...], with zeros at the end."""
    x = jnp.pad(x, ((0, 0), (0, count * size - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(x.shape[0], count, size, *x.shape[2:]), 1, 0)


def _join(x: jax.Array, length: int) -> jax.Array:
    """The reverse of `_split`, for `length` queries."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :length]


def _grouped(x: jax.Array, sizes: Sizes) -> jax.Array:
    """[batch, seq, heads, ...] as [batch, seq, kv_heads, group, ...]."""
    return x.reshape(*x.shape[:2], sizes.heads // sizes.group, sizes.group, *x.shape[3:])


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: tuple[jax.Array, ...],
    options: Options[AttentionConfig | None],
    sinks: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp.

    Args:
      q, k, v: as `attention` takes them.
      segments: none, or int32 [batch, seq] of q and of k.
      options: what queries see, and the scale.
      sinks: none, or float32 [heads].

    Returns:
      [batch, q_seq, heads, v's head_dim] in q's dtype, and float32 [batch, heads, q_seq].
    """
    sizes = Sizes.of(q, k)
    k, v = k.astype(jnp.float32), v.astype(jnp.float32)  # as their gradients are added up
    sink = sinks[0].reshape(-1, sizes.group, 1, 1) if sinks else jnp.float32(-jnp.inf)

    def rows(first: jax.Array, q: jax.Array, *own: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = _scores(q, k, first, (*own, *segments[1:]), options)
        maximum = lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), sink))
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
        p = jnp.exp(scores - finite)
        total = p.sum(-1, keepdims=True) + jnp.exp(sink - finite)
        is_none = total == 0.0
        total = jnp.where(is_none, 1.0, total)
        lse = jnp.where(is_none, -jnp.inf, finite + jnp.log(total))
        out = _einsum("bkgqs,bskd->bqkgd", p / total, v).astype(q.dtype)
        return out, jnp.moveaxis(lse[..., 0], 3, 1)

    out, lse = _chunked(rows, _grouped(q, sizes), *segments[:1])
    lse = lse.reshape(*lse.shape[:2], sizes.heads)
    return out.reshape(*q.shape[:3], v.shape[3]), jnp.moveaxis(lse, 2, 1)


@functools.partial(jax.jit, static_argnums=6)
def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: tuple[jax.Array, ...],
    sinks: tuple[jax.Array, ...],
    cotangents: tuple[jax.Array, jax.Array],
    options: Options[AttentionConfig | None],
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """dQ, dK and dV, of the shapes and dtypes of q, k and v, and that of the sinks.

    Args:
      q, k, v, segments, sinks, options: as `forward` takes them.
      cotangents: of the result and of the log-sum-exp.
    """

    def made(
        q: jax.Array, k: jax.Array, v: jax.Array, sinks: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        return forward(q, k, v, segments, options, sinks)

    pull: Callable[..., tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]]]
    _, pull = jax.vjp(made, q, k, v, sinks)
    return pull(cotangents)
