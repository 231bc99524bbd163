"""`attention` in plain JAX, forward and backward, in float32.

The model. It goes through chunks of at most `CHUNK` queries, and holds only the scores of one chunk
at a time. Heads are seen as [kv_heads, group]: the group of query heads that share one of K and V.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipelib.kernels.attention.band import Options, Sizes
from pipelib.kernels.sharding import varying_alike

#: Queries whose scores are in memory at once.
CHUNK = 512


def _scores(q: jax.Array, k: jax.Array, first: Any, segments: tuple, options: Options) -> Any:
    """The masked scores [batch, kv_heads, group, queries, keys] of some queries, from `first`."""
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
    return jnp.einsum(equation, *(x.astype(jnp.float32) for x in operands), precision="highest")


def _chunked(function: Callable, carry: Any, *arrays: jax.Array) -> tuple:
    """`lax.scan` of function(carry, first, *chunks) over chunks of queries [batch, seq, ...]."""
    length = arrays[0].shape[1]
    count = -(-length // CHUNK)
    size = -(-length // count)

    def split(x):
        x = jnp.pad(x, ((0, 0), (0, count * size - length), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(x.shape[0], count, size, *x.shape[2:]), 1, 0)

    def join(x):
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], count * size, *x.shape[3:])[:, :length]

    step = lambda carry, xs: function(carry, *xs)
    carry, outs = lax.scan(step, carry, (jnp.arange(count) * size, *map(split, arrays)))
    return carry, jax.tree.map(join, outs)


def _grouped(x: jax.Array, sizes: Sizes) -> jax.Array:
    return x.reshape(*x.shape[:2], sizes.heads // sizes.group, sizes.group, *x.shape[3:])


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: tuple[jax.Array, ...],
    options: Options,
) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp."""
    sizes = Sizes.of(q, k)

    def rows(carry, first, q, *own):
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
    return out.reshape(q.shape), jnp.moveaxis(lse, 2, 1)


@functools.partial(jax.jit, static_argnums=7)
def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    d_out: jax.Array,
    segments: tuple[jax.Array, ...],
    lse: jax.Array,
    delta: jax.Array,
    options: Options,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """dV = P^T dO and, with dS = P (dO V^T - delta): dQ = dS K, dK = dS^T Q."""
    sizes = Sizes.of(q, k)

    def rows(carry, first, q, d_out, delta, lse, *own):
        dk, dv = carry
        scores = _scores(q, k, first, (*own, *segments[1:]), options)
        column = lambda x: jnp.moveaxis(x, 1, 3)[..., None]
        p = jnp.exp(scores - jnp.where(column(lse) == -jnp.inf, 0.0, column(lse)))
        ds = p * (_einsum("bqkgd,bskd->bkgqs", d_out, v) - column(delta)) * options.scale
        dk += _einsum("bkgqs,bqkgd->bskd", ds, q)
        dv += _einsum("bkgqs,bqkgd->bskd", p, d_out)
        return (dk, dv), _einsum("bkgqs,bskd->bqkgd", ds, k).astype(q.dtype)

    zeros, _ = varying_alike(jnp.zeros(k.shape, jnp.float32), k)
    numbers = (jnp.moveaxis(x, 1, 2) for x in (delta, lse))
    queries = [_grouped(x, sizes) for x in (q, d_out, *numbers)]
    (dk, dv), dq = _chunked(rows, (zeros, zeros), *queries, *segments[:1])
    return dq.reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype)
