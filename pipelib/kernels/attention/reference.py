"""`attention` in plain JAX, forward and backward, in float32.

The model. It goes through chunks of at most `CHUNK` queries, and holds only the scores of one chunk
at a time. Heads are seen as [kv_heads, group]: the group of query heads that share one of K and V.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pipelib.kernels.attention.band import Options, Sizes
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.front import varying_alike
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
    scores = _einsum("bqkgd,bskd->bkgqs", q, k) * options.scale
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


def _chunked(
    function: Callable[..., tuple[Tree, Tree]], carry: Tree, *arrays: jax.Array
) -> tuple[Tree, Tree]:
    """Calls `function(carry, first, *chunks)` for one chunk of queries after the other.

    Args:
      function: takes the carry, the number of a chunk's first query, and the chunk of each array.
        It returns the next carry, and arrays [batch, queries, ...].
      carry: the first carry.
      arrays: [batch, seq, ...] each, over all queries.

    Returns:
      The last carry, and the arrays of all chunks together.
    """
    length = arrays[0].shape[1]
    count = -(-length // CHUNK)
    size = -(-length // count)
    split = functools.partial(_split, count=count, size=size)
    join = functools.partial(_join, length=length)

    def step(carry: Tree, xs: tuple[jax.Array, ...]) -> tuple[Tree, Tree]:
        return function(carry, *xs)

    carry, outs = lax.scan(step, carry, (jnp.arange(count) * size, *map(split, arrays)))
    return carry, jax.tree.map(join, outs)


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
) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp.

    Args:
      q, k, v: as `attention` takes them.
      segments: none, or int32 [batch, seq] of q and of k.
      options: what queries see, and the scale.

    Returns:
      [batch, q_seq, heads, v's head_dim] in q's dtype, and float32 [batch, heads, q_seq].
    """
    sizes = Sizes.of(q, k)

    def rows(carry: Tree, first: jax.Array, q: jax.Array, *own: jax.Array) -> tuple[Tree, Tree]:
        scores = _scores(q, k, first, (*own, *segments[1:]), options)
        maximum = scores.max(-1, keepdims=True)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
        p = jnp.exp(scores - finite)
        total = p.sum(-1, keepdims=True)
        p = p / jnp.where(total == 0.0, 1.0, total)
        lse = jnp.moveaxis((finite + jnp.log(total))[..., 0], 3, 1)
        return carry, (_einsum("bkgqs,bskd->bqkgd", p, v).astype(q.dtype), lse)

    _, (out, lse) = _chunked(rows, (), _grouped(q, sizes), *segments[:1])
    lse = lse.reshape(*lse.shape[:2], sizes.heads)
    return out.reshape(*q.shape[:3], v.shape[3]), jnp.moveaxis(lse, 2, 1)


@functools.partial(jax.jit, static_argnums=7)
def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    d_out: jax.Array,
    segments: tuple[jax.Array, ...],
    lse: jax.Array,
    delta: jax.Array,
    options: Options[AttentionConfig | None],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """dQ, dK and dV: dV = P^T dO and, with dS = P (dO V^T - delta), dQ = dS K and dK = dS^T Q.

    Args:
      q, k, v, segments, options: as `forward` takes them.
      d_out: the cotangent of the result, of the result's shape.
      lse: the log-sum-exp, float32 [batch, heads, q_seq].
      delta: the row sum of dO O minus the cotangent of the log-sum-exp, as lse.

    Returns:
      Arrays of the shapes and dtypes of q, k and v.
    """
    sizes = Sizes.of(q, k)

    def rows(
        carry: tuple[jax.Array, jax.Array],
        first: jax.Array,
        q: jax.Array,
        d_out: jax.Array,
        delta: jax.Array,
        lse: jax.Array,
        *own: jax.Array,
    ) -> tuple[Tree, Tree]:
        dk, dv = carry
        scores = _scores(q, k, first, (*own, *segments[1:]), options)

        def column(x: jax.Array) -> jax.Array:
            return jnp.moveaxis(x, 1, 3)[..., None]

        p = jnp.exp(scores - jnp.where(column(lse) == -jnp.inf, 0.0, column(lse)))
        ds = p * (_einsum("bqkgd,bskd->bkgqs", d_out, v) - column(delta)) * options.scale
        dk += _einsum("bkgqs,bqkgd->bskd", ds, q)
        dv += _einsum("bkgqs,bqkgd->bskd", p, d_out)
        return (dk, dv), _einsum("bkgqs,bskd->bqkgd", ds, k).astype(q.dtype)

    zeros = (varying_alike(jnp.zeros(x.shape, jnp.float32), x)[0] for x in (k, v))
    numbers = (jnp.moveaxis(x, 1, 2) for x in (delta, lse))
    queries = [_grouped(x, sizes) for x in (q, d_out, *numbers)]
    (dk, dv), dq = _chunked(rows, tuple(zeros), *queries, *segments[:1])
    return dq.reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype)
