"""`attention` as it is called: it picks a configuration, and has the rules of its gradients.

The package's docstring says when plain JAX computes instead of the kernel.
"""

from collections.abc import Callable
from typing import Literal, Protocol, TypedDict, Unpack, cast, overload

import jax
import jax.numpy as jnp
from jax import lax

from pipelib.kernels.attention import backward, choosing, forward, narrow, reference
from pipelib.kernels.attention.arguments import (
    FLOAT8,
    FRONT,
    SegmentIds,
    Segments,
    Sinks,
    Window,
    check_arrays,
    is_addressable,
    options_of,
    segments_of,
    sinks_of,
)
from pipelib.kernels.attention.band import Options, Sizes, padded
from pipelib.kernels.attention.choosing import default_config
from pipelib.kernels.attention.config import HEAD_DIMS, AttentionConfig
from pipelib.kernels.attention.padding import Padding
from pipelib.kernels.front import differentiable
from pipelib.kernels.hopper import default_device
from pipelib.kernels.keywords import ATTENTION, knows
from pipelib.refs import Shaped
from pipelib.tiles import PIECE_ROWS, has_rows

#: The result and the log-sum-exp.
Residuals = tuple[jax.Array, jax.Array]
#: The front door of the kernel by itself.
_KERNEL = FRONT._replace(name="attention_kernel")
#: All that a kernel's function is told beside its arrays.
_Asked = Options[AttentionConfig | None]


class _Options(TypedDict, total=False):
    """The arguments of `attention` beside the arrays and `return_residuals`."""

    causal: bool
    window: Window
    scale: float | None
    segment_ids: SegmentIds
    cu_seqlens: SegmentIds
    config: AttentionConfig | None
    deterministic: bool
    soft_cap: float | None
    sinks: jax.Array | None


class _Attention(Protocol):
    """What a type checker knows of `attention`: its result depends on `return_residuals`."""

    @overload
    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        return_residuals: Literal[False] = False,
        **options: Unpack[_Options],
    ) -> jax.Array: ...
    @overload
    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        return_residuals: Literal[True],
        **options: Unpack[_Options],
    ) -> Residuals: ...


def _typed(function: Callable[..., jax.Array | Residuals]) -> _Attention:
    """The same function with the types of `_Attention`."""
    return cast(_Attention, function)


@_typed
@knows(ATTENTION)
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    segment_ids: SegmentIds = None,
    cu_seqlens: SegmentIds = None,
    config: AttentionConfig | None = None,
    deterministic: bool = False,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    return_residuals: bool = False,
) -> jax.Array | Residuals:
    """`softmax(scale * q @ k.T) @ v` for each head on a Hopper GPU, with a float32 softmax.

    Works under `jax.jit`, `jax.vmap`, `jax.grad` and `jax.shard_map`. A query that sees no key
    gives zeros, and a log-sum-exp of -inf. NaN or infinity in v reaches queries that do not see it,
    too, as 0 times NaN is NaN, and in the gradients so does what is in k: put zeros there.

    Args:
      q: [batch, q_seq, heads, head_dim], float16 or bfloat16; or float8_e4m3fn, with heads of up
        to 256 and no gradient. What q and k were divided by can be a part of `scale`, and what v
        was divided by multiplies the result. No error tells of axes in another order, such as
        PyTorch's [batch, heads, seq, head_dim].
      k, v: [batch, kv_seq, kv_heads, head_dim] of the same dtype; v's head_dim may be another.
        `kv_heads` divides `heads`: each head of k and v serves equally many consecutive heads of q.
        See "Sizes" in the package's docstring for what each size costs.
      causal: query i sees keys j <= i, whatever the lengths: aligned at the top left, as in
        `jax.nn.dot_product_attention`, and not at the last key, as in flash_attn.
      window: (left, right): query i sees keys i - left to i + right; a number stands for both.
      scale: the factor of the scores, positive; by default 1 / sqrt(head_dim).
      segment_ids: integers [batch, seq], or a pair of q's and k's: a query sees only keys of its
        own segment.
      cu_seqlens: the same for documents that lie one behind the other: integers [documents + 1], 0
        and where each ends, for all rows of the batch, or a pair of q's and k's. What is behind the
        last one's end is a document, too. `causal` and `window` count from the first token of all.
      config: by default picked from the sizes and the mask: that of the least estimated time, or
        of the least measured time where there is one (`choosing`). It must fit the head_dim that
        the kernel gets.
      deterministic: whether q's gradient is added up in a fixed order, so that equal calls give
        equal bits. If not, the fastest kernels are picked: with heads of up to 128, one that adds
        it up as blocks come. A `config` says itself, by `fused`.
      soft_cap: a scaled score s becomes soft_cap tanh(s / soft_cap), before any mask (Gemma 2). The
        GPU's own tanh is used, whose error is 2^-11 of its value. It takes the unit of an SM that
        makes the exponentials, so a capped score takes that unit twice as long.
      sinks: [heads], float: a score more for each head, whose key has a value of zeros (gpt-oss):
        the probabilities of a row add up to less than 1. It is not scaled, capped or masked, and
        is in the log-sum-exp.
      return_residuals: whether to return the log-sum-exp of the (scaled) scores too.

    Returns:
      [batch, q_seq, heads, v's head_dim] in q's dtype, bfloat16 for float8. With
      `return_residuals`, a pair of this and the natural log-sum-exp, [batch, heads, q_seq],
      float32.

    Raises:
      TypeError: for dtypes, and types of arguments, that are not as above.
      ValueError: for wrong shapes and options; a GPU that is not Hopper; a CPU where nothing
        interprets kernels (under `jax.jit` in Pallas's words); a configuration that does not fit,
        with the sum.

    Example:
      >>> q = k = v = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out, lse = attention(q, k, v, return_residuals=True)
      >>> out.shape, float(out[0, 0, 0, 0]), round(float(lse[0, 0, 0]), 3)
      ((1, 64, 1, 64), 1.0, 12.159)
    """
    check_arrays(q, k, v, float8=True)
    options = options_of(q, causal, window, scale, config, deterministic, soft_cap)
    segments, of_heads = segments_of(q, k, segment_ids, cu_seqlens), sinks_of(q, sinks)
    return_residuals = FRONT.flag("return_residuals", return_residuals)
    padding = Padding.of(q, k, v)
    if padding is None:
        largest = max(q.shape[3], v.shape[3])
        FRONT.refuse_unused(config, f"heads of {largest} are larger than {HEAD_DIMS[-1]}")
    elif config is not None:
        if q.dtype == FLOAT8:
            narrow.check(config, padding.head_dim)
        else:
            config.check(padding.head_dim)
    make = _attention_of_float8 if q.dtype == FLOAT8 else _attention
    found = FRONT.call(make, (q, k, v, segments, of_heads), options)
    return found if return_residuals else found[0]


def attention_kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    config: AttentionConfig | None = None,
) -> Residuals:
    """The forward kernel and nothing else, as `plgpu.as_torch_kernel` needs it.

    From PyTorch: `plgpu.as_torch_kernel(functools.partial(attention_kernel, causal=True))(q, k, v)`
    with tensors on the GPU. The arguments are those of `attention`; there are no gradients.

    Returns:
      The result and the log-sum-exp, as `attention` with `return_residuals=True`.

    Raises:
      TypeError, ValueError: as `attention`, and for sizes that need more than the kernel.
    """
    check_arrays(q, k, v)
    given = options_of(q, causal, window, scale, config)
    options = _configured(given, q, k, q.shape[-1], whole=True)
    if not is_addressable(q, k) or k.shape != v.shape:
        raise ValueError(
            f"attention_kernel: q {q.shape}, k {k.shape} and v {v.shape} must have one head_dim of"
            f" 64, 128 or 256 and sequences of multiples of {PIECE_ROWS}, which copies can address."
        )
    options.config.check(q.shape[-1])
    if rest := q.shape[1] % (block := options.config.block_q):
        raise ValueError(
            f"attention_kernel: {q.shape[1]} queries are not a multiple of {block} (rows x"
            f" compute_threads), so {block - rest} numbers must be cut off the log-sum-exp."
        )
    _KERNEL.require_gpu()
    with _KERNEL.explained():
        return forward.launch_forward(q, k, v, (), options)


@_typed
@knows(ATTENTION)
def attention_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    segment_ids: SegmentIds = None,
    cu_seqlens: SegmentIds = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    return_residuals: bool = False,
) -> jax.Array | Residuals:
    """`attention` in plain JAX, in float32, on any device; the arguments are those of `attention`.

    Example:
      >>> q = k = v = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
      >>> float(pipelib.kernels.attention_reference(q, k, v, causal=True)[0, 0, 0, 0])
      1.0
    """
    check_arrays(q, k, v)
    options = options_of(q, causal, window, scale, soft_cap=soft_cap)
    segments, of_heads = segments_of(q, k, segment_ids, cu_seqlens), sinks_of(q, sinks)
    return_residuals = FRONT.flag("return_residuals", return_residuals)
    out, lse = reference.forward(q, k, v, segments, options, of_heads)
    return (out, lse) if return_residuals else out


def _made(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, sinks: Sinks, options: _Asked
) -> Residuals:
    """The result and the log-sum-exp, by the kernel or without it; all arguments are checked."""
    padding = Padding.of(q, k, v)
    if padding is None:
        return reference.forward(q, k, v, segments, options, sinks)
    FRONT.require_gpu()
    if _copies_rows(q, v):
        sized = _configured(options, q, k, forward.head_dim_of(q, v), segments)
        return forward.launch_forward(q, k, v, segments, sized, sinks)
    sized = _configured(options, q, k, padding.head_dim, segments)._replace(keys=padding.keys)
    q, k, v, *ids = map(padding.filled, (q, k, v, *segments))
    return padding.cut(*forward.launch_forward(q, k, v, tuple(ids), sized, sinks))


def _copies_rows(q: Shaped, v: Shaped) -> bool:
    """Whether copies can see the rows of heads: not of float8, nor in JAX's interpreter."""
    rows = (q.dtype != FLOAT8 and has_rows(x.shape[2:], x.dtype) for x in (q, v))
    return default_device().platform == "gpu" and all(rows)


def _configured(
    options: _Asked,
    q: Shaped,
    k: Shaped,
    head_dim: int,
    segments: Segments = (),
    whole: bool = False,
) -> Options[AttentionConfig]:
    """The options with a configuration: by default, the one that is chosen for the forward kernel.

    Args:
      options, q, k, segments: as `attention` has them.
      head_dim: the size of a head that the kernel gets.
      whole: whether queries must divide into whole blocks.
    """
    if options.config is not None:
        return options.configured(options.config)
    sizes = Sizes.of(q, k)._replace(head_dim=head_dim)
    return options.configured(
        choosing.chosen(options, sizes, q.dtype.itemsize, segmented=bool(segments), whole=whole)
    )


def _backward(
    options: _Asked,
    cotangents: Residuals,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    sinks: Sinks,
    found: Residuals,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[None, ...], Sinks]:
    """dQ, dK, dV and that of the sinks; segments have no gradients."""
    (d_out, d_lse), (out, lse) = cotangents, found
    padding = Padding.of(q, k, v)
    if padding is None:
        *grads, d_sinks = reference.backward(q, k, v, segments, sinks, cotangents, options)  # pyright: ignore[reportUnknownVariableType]
        return *grads, (None,) * len(segments), d_sinks  # pyright: ignore[reportUnknownVariableType]
    FRONT.require_gpu()  # the forward pass may have run on another device
    product = d_out.astype(jnp.float32) * out.astype(jnp.float32)
    # Without the barrier, XLA fuses delta's sum with its consumer, which is much slower.
    delta = jnp.moveaxis(lax.optimization_barrier(product.sum(-1)), 1, 2) - d_lse  # pyright: ignore[reportUnknownMemberType]
    config = options.config or default_config(padding.head_dim, options.deterministic)
    sized = options.configured(config)
    if _copies_rows(q, v) and {forward.head_dim_of(x, x) for x in (q, v)} == {padding.head_dim}:
        grads = backward.launch_backward((q, k, v, d_out, segments), lse, delta, sized)
    else:
        fill = padding.filled
        filled = fill(q), fill(k), fill(v), fill(d_out), tuple(map(fill, segments))
        numbers = padded(lse, PIECE_ROWS), padded(delta, PIECE_ROWS)
        grads = backward.launch_backward(filled, *numbers, sized._replace(keys=padding.keys))
    d_q, d_k, d_v = (grad[:, : x.shape[1], :, : x.shape[3]] for grad, x in zip(grads, (q, k, v)))
    # A sink's probabilities multiply zeros, so all of dP is -delta there.
    d_sinks = tuple(-(jnp.exp(x[:, None] - lse) * delta).sum((0, 2)) for x in sinks)
    return d_q, d_k, d_v, (None,) * len(segments), d_sinks


_attention = differentiable(_made, _backward, keeps_result=True)
_attention_of_float8 = FRONT.without_gradient(_made, " in float8: cast to bfloat16")
