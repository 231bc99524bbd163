"""`attention`: softmax(scale Q K^T) V, without the scores in memory.

The model. `attention_config` says how the work is divided, `attention_blocks` what the kernel does,
`attention_backward` what those of its gradients do, and this module what a caller may ask: it
checks shapes, dtypes and devices, picks a configuration, and has the same in plain JAX
(`attention_reference`).

The fallback. The kernel has head dimensions of 64, 128 and 256, and Pallas copies by pieces of 8
rows x 128 bytes, which is how `wgmma` reads SMEM: both sequences must be multiples of 8. What is
not is computed by `attention_reference`: no operand is copied, and no configuration applies.

Gradients are made from the log-sum-exp of each row. With a head of 64 or 128 two kernels make them,
or one, if `AttentionConfig.fused` asks for it; with one of 256, three. In the fallback plain JAX
does, in float32, for `CHUNK` queries at a time, so that the scores of the others take no memory.

Not covered: dropout, biases, paged keys, scores whose mask is given as an array; gradients of
gradients that kernels make, where JAX says "Differentiation rule for 'mpmd_map' not implemented".
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipelib import specs
from pipelib.kernels import attention_backward, attention_blocks
from pipelib.kernels.attention_band import Problem, Sizes
from pipelib.kernels.attention_config import HEAD_DIMS, AttentionConfig
from pipelib.kernels.device import default_device, require_hopper
from pipelib.kernels.matmul_config import PIECE_ROWS
from pipelib.kernels.sharding import varying_alike

#: Queries whose scores plain JAX has in memory at once.
CHUNK = 512
_DTYPES = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16))


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
    segment_ids: jax.Array | tuple[jax.Array, jax.Array] | None = None,
    config: AttentionConfig | None = None,
    return_residuals: bool = False,
) -> Any:
    """`softmax(scale * q @ k.T) @ v` for each head on a Hopper GPU, with a float32 softmax.

    Works under `jax.jit`, `jax.vmap`, `jax.grad` and `jax.shard_map`. A query that sees no key
    gives zeros, and a log-sum-exp of -inf.

    Args:
      q: [batch, q_seq, heads, head_dim], float16 or bfloat16.
      k, v: [batch, kv_seq, kv_heads, head_dim] of the same dtype; `kv_heads` divides `heads`, and
        each of its heads serves as many consecutive heads of q. Of sizes that the kernel cannot
        address, `attention_reference` computes: see "The fallback" in the module.
      causal: query i sees keys j <= i, whatever the lengths (as `jax.nn.dot_product_attention`).
      window: (left, right): query i sees keys i - left to i + right; a number is for both.
      scale: of the scores, positive; by default 1 / sqrt(head_dim).
      segment_ids: integers [batch, seq], or a pair of q's and k's: a query sees keys of its own.
      config: by default one is picked from head_dim alone. There is no table of tuned ones yet.
      return_residuals: whether to return the log-sum-exp of the (scaled) scores too.

    Returns:
      [batch, q_seq, heads, head_dim] in q's dtype; or a pair of it and the log-sum-exp, natural,
      [batch, heads, q_seq], float32.

    Raises:
      TypeError: dtypes, and types of arguments, that are not as above.
      ValueError: shapes and options; a GPU that is not Hopper, or a CPU where nothing interprets
        kernels (that one is Pallas's); a configuration that does not fit, with the sum.

    Example:
      >>> q = k = v = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out, lse = attention(q, k, v, return_residuals=True)
      >>> out.shape, float(out[0, 0, 0, 0]), round(float(lse[0, 0, 0]), 3)
      ((1, 64, 1, 64), 1.0, 12.159)
    """
    _check_arrays(q, k, v)
    problem = _problem(q, causal, window, scale, config)
    segments = _segments(q, k, segment_ids)
    return_residuals = _flag("return_residuals", return_residuals)
    if config is not None:
        config.check(q.shape[-1])
    q, k, v, *segments = varying_alike(q, k, v, *segments)
    out, lse = _attention(q, k, v, tuple(segments), problem)
    return (out, lse) if return_residuals else out


def attention_kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
    config: AttentionConfig | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The forward kernel and nothing beside it, as `plgpu.as_torch_kernel` takes it.

    From PyTorch: `plgpu.as_torch_kernel(functools.partial(attention_kernel, causal=True))(q, k, v)`
    with tensors on the GPU. Arguments are as `attention`'s; there are no gradients.

    Returns:
      The result and the log-sum-exp, as `attention` with `return_residuals=True`.

    Raises:
      TypeError, ValueError: as `attention`; sizes that would need more than the kernel.
    """
    _check_arrays(q, k, v)
    problem = _configured(_problem(q, causal, window, scale, config), q)
    if not _addressable(q, k):
        raise ValueError(
            f"attention_kernel: q {q.shape} and k {k.shape} must have a head_dim of 64, 128 or 256"
            f" and sequences of multiples of {PIECE_ROWS}, which copies can address."
        )
    problem.config.check(q.shape[-1])
    if rest := q.shape[1] % (block := problem.config.block_q):
        raise ValueError(
            f"attention_kernel: {q.shape[1]} queries are not a multiple of {block} (rows x"
            f" compute_threads), so {block - rest} numbers must be cut off the log-sum-exp."
        )
    require_hopper("attention_kernel")
    return attention_blocks.run(q, k, v, (), problem)


def attention_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
    segment_ids: jax.Array | tuple[jax.Array, jax.Array] | None = None,
    return_residuals: bool = False,
) -> Any:
    """`attention` in plain JAX, in float32, `CHUNK` queries at a time; arguments as its."""
    _check_arrays(q, k, v)
    problem, segments = _problem(q, causal, window, scale), _segments(q, k, segment_ids)
    return_residuals = _flag("return_residuals", return_residuals)
    out, lse = _reference(q, k, v, segments, problem)
    return (out, lse) if return_residuals else out


def default_config(head_dim: int) -> AttentionConfig:
    """As many keys in a step, and threads, as registers and SMEM hold; nothing in it was measured.

    Where JAX's default device is no GPU, the least that JAX's interpreter has to do.
    """
    if default_device().platform != "gpu":
        return AttentionConfig(
            block_kv=64, compute_threads=1, schedule="plain", probabilities="interpreted"
        )
    block_kv, threads, slots = {64: (128, 3, 4), 128: (128, 2, 2), 256: (64, 2, 2)}[head_dim]
    return AttentionConfig(block_kv=block_kv, compute_threads=threads, slots=slots)


def _check_arrays(q: Any, k: Any, v: Any) -> None:
    for name, array in zip("qkv", (q, k, v)):
        specs.check_array(f"attention: {name}", array)
        if array.dtype not in _DTYPES:
            raise TypeError(
                f"attention: {name} is {array.dtype}, but the kernel takes float16 or bfloat16."
            )
        if array.dtype != q.dtype:
            raise TypeError(
                f"attention: q is {q.dtype} and {name} is {array.dtype}, but wgmma takes one"
                " dtype: cast one."
            )
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"attention: {name} has shape {array.shape}, but it must be [batch, seq, heads,"
                " head_dim], each 1 or more."
            )
    if k.shape != v.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            f"attention: q {q.shape}, k {k.shape} and v {v.shape} must have one batch and head_dim,"
            " and k and v one shape."
        )
    if q.shape[2] % k.shape[2]:
        raise ValueError(
            f"attention: {q.shape[2]} heads of q over {k.shape[2]} heads of k leave"
            f" {q.shape[2] % k.shape[2]}, but each head of k must serve equally many."
        )


def _problem(q: Any, causal: Any, window: Any, scale: Any, config: Any = None) -> Problem:
    left, right = _sides(window)
    if config is not None and not isinstance(config, AttentionConfig):
        because = "an AttentionConfig says how it is divided"
        raise specs.wrong_type("attention: config", config, because)
    return Problem(left, 0 if _flag("causal", causal) else right, _scale(q, scale), config)


def _sides(window: Any) -> tuple[int | None, int | None]:
    """How many keys a query sees before its own, and after it; None for all."""
    sides = window if isinstance(window, tuple) else (window, window)
    try:
        sides = tuple(None if side is None else operator.index(side) for side in sides)
    except TypeError:
        because = (
            "a kernel is compiled for it, so it must be an integer, or a tuple (left, right) of two"
            " integers, that is known before"
        )
        raise specs.wrong_type("attention: window", window, because) from None
    if len(sides) != 2:
        raise ValueError(
            f"attention: {window=} has {len(sides)} sides, but there are 2, left and right of a"
            " query's own key."
        )
    if any(side is not None and side < 0 for side in sides):
        raise ValueError(
            f"attention: {window=} has a negative side, so a query would not see its own key."
        )
    return sides


def _scale(q: Any, scale: Any) -> float:
    try:
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    except (TypeError, ValueError):
        because = "a kernel is compiled for it, so it must be a number that is known before"
        raise specs.wrong_type("attention: scale", scale, because) from None
    if not 0.0 < scale < math.inf:
        raise ValueError(
            f"attention: {scale=} is not positive and finite, so the largest score would not have"
            " the largest exponential."
        )
    return scale


def _flag(name: str, value: Any) -> bool:
    """The value as a bool, NumPy's and JAX's too; TypeError if it is none or known too late."""
    try:
        is_flag = value in (False, True)
    except (TypeError, ValueError):  # traced; an array of several
        is_flag = False
    if not is_flag:
        because = "what is computed depends on it, so it must be True or False, known before"
        raise specs.wrong_type(f"attention: {name}", value, because)
    return bool(value)


def _segments(q: Any, k: Any, segment_ids: Any) -> tuple[jax.Array, ...]:
    if segment_ids is None:
        return ()
    pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids,) * 2
    if len(pair) != 2:
        raise ValueError(
            f"attention: segment_ids are a tuple of {len(pair)}, but it must be of 2, q's and k's."
        )
    for name, array, ids in zip("qk", (q, k), pair):
        specs.check_array("attention: segment_ids", ids)
        if ids.shape != array.shape[:2] or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(
                f"attention: segment_ids of {name} are {ids.dtype} {ids.shape}, but they must be"
                f" integers of its [batch, seq], {array.shape[:2]}."
            )
    return tuple(ids.astype(jnp.int32) for ids in pair)


def _addressable(q: Any, k: Any) -> bool:
    """Whether the kernel has this head_dim, and its copies can address the sequences."""
    lengths = q.shape[1], k.shape[1]
    return q.shape[-1] in HEAD_DIMS and not any(length % PIECE_ROWS for length in lengths)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
@functools.partial(jax.jit, static_argnums=4)
def _attention(q, k, v, segments: tuple, problem: Problem) -> tuple[jax.Array, jax.Array]:
    if not _addressable(q, k):
        return _reference(q, k, v, segments, problem)
    require_hopper("attention")
    out, lse = attention_blocks.run(q, k, v, segments, _configured(problem, q))
    return varying_alike(out, lse, q)[:2]


def _configured(problem: Problem, q: Any) -> Problem:
    if problem.config is None:
        problem = problem._replace(config=default_config(q.shape[-1]))
    return problem


# In plain JAX. Heads are seen as [kv_heads, group].


def _scores(q: jax.Array, k: jax.Array, first: Any, segments: tuple, problem: Problem) -> Any:
    """The masked scores [batch, kv_heads, group, queries, keys] of some queries, from `first`."""
    scores = _einsum("bqkgd,bskd->bkgqs", q, k) * problem.scale
    ahead = jnp.arange(k.shape[1]) - (first + jnp.arange(q.shape[1]))[:, None]
    seen = jnp.ones_like(ahead, bool)
    if problem.left is not None:
        seen &= ahead >= -problem.left
    if problem.right is not None:
        seen &= ahead <= problem.right
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


def _reference(q, k, v, segments: tuple, problem: Problem) -> tuple[jax.Array, jax.Array]:
    sizes = Sizes.of(q, k)

    def rows(carry, first, q, *own):
        scores = _scores(q, k, first, (*own, *segments[1:]), problem)
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


def _forward(q, k, v, segments: tuple, problem: Problem) -> tuple:
    out, lse = _attention(q, k, v, segments, problem)
    return (out, lse), (q, k, v, segments, out, lse)


def _backward(problem: Problem, arrays: tuple, cotangents: tuple) -> tuple:
    q, k, v, segments, out, lse = arrays
    d_out, d_lse = cotangents
    product = d_out.astype(jnp.float32) * out.astype(jnp.float32)
    # The barrier, since XLA would add up within the fusion of what reads delta, much slower.
    delta = jnp.moveaxis(lax.optimization_barrier(product.sum(-1)), 1, 2) - d_lse
    if _addressable(q, k):
        require_hopper("attention")  # the forward pass may have run on another device
        run, problem = attention_backward.run, _configured(problem, q)
        found = varying_alike(*run((q, k, v, d_out, segments), lse, delta, problem), q)[:3]
    else:
        found = _plain_backward(q, k, v, d_out, segments, lse, delta, problem)
    return *found, (None,) * len(segments)


@functools.partial(jax.jit, static_argnums=7)
def _plain_backward(q, k, v, d_out, segments, lse, delta, problem: Problem) -> tuple:
    """dV = P^T dO and, with dS = P (dO V^T - delta): dQ = dS K, dK = dS^T Q."""
    sizes = Sizes.of(q, k)

    def rows(carry, first, q, d_out, delta, lse, *own):
        dk, dv = carry
        scores = _scores(q, k, first, (*own, *segments[1:]), problem)
        column = lambda x: jnp.moveaxis(x, 1, 3)[..., None]
        p = jnp.exp(scores - jnp.where(column(lse) == -jnp.inf, 0.0, column(lse)))
        ds = p * (_einsum("bqkgd,bskd->bkgqs", d_out, v) - column(delta)) * problem.scale
        dk += _einsum("bkgqs,bqkgd->bskd", ds, q)
        dv += _einsum("bkgqs,bqkgd->bskd", p, d_out)
        return (dk, dv), _einsum("bkgqs,bskd->bqkgd", ds, k).astype(q.dtype)

    zeros, _ = varying_alike(jnp.zeros(k.shape, jnp.float32), k)
    numbers = (jnp.moveaxis(x, 1, 2) for x in (delta, lse))
    queries = [_grouped(x, sizes) for x in (q, d_out, *numbers)]
    (dk, dv), dq = _chunked(rows, (zeros, zeros), *queries, *segments[:1])
    return dq.reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype)


_attention.defvjp(_forward, _backward)
