"""The arguments of `attention`: what is refused, and what the others mean.

The model. Each check says the fact and its consequence in a sentence that begins with the name of
the argument. None looks at numbers, so that they work on tracers, and on `jax.ShapeDtypeStruct`.
"""

import math
import operator

import jax
import jax.numpy as jnp

from pipelib import specs
from pipelib.kernels.attention.band import Options
from pipelib.kernels.attention.config import HEAD_DIMS, AttentionConfig
from pipelib.kernels.front import HALVES, Front
from pipelib.refs import Shaped
from pipelib.tiles import PIECE_ROWS

#: A side of a window is smaller.
MOST_KEYS = 2**30
#: The argument `window` of `attention`.
Window = int | tuple[int | None, int | None] | None
#: One array for q and k, or one for each.
_Pair = jax.Array | tuple[jax.Array, jax.Array]
#: The arguments `segment_ids` and `cu_seqlens` of `attention`.
SegmentIds = _Pair | None
#: The segments of q and of k; none if there are none.
Segments = tuple[jax.Array, ...]
#: The scores of sinks, [heads]; none if there are none.
Sinks = tuple[jax.Array, ...]

#: The front door of `attention`; those of other functions take its checks, too.
FRONT = Front("attention", "pipelib.kernels.attention_reference", AttentionConfig)
#: The dtype of 8 bits that the forward kernel takes, and the largest size of its heads.
FLOAT8, MOST_OF_FLOAT8 = jnp.dtype(jnp.float8_e4m3fn), 256


def check_arrays(q: Shaped, k: Shaped, v: Shaped, *, float8: bool = False) -> None:
    """Refuses arrays that are not as `attention` says.

    Args:
      q, k, v: the arrays.
      float8: whether they may be float8_e4m3fn, too.

    Raises:
      TypeError: one is not an array, or of a dtype that the kernel does not take.
      ValueError: shapes that do not go together.
    """
    check_each(q, k, v, float8=float8)
    if q.dtype == FLOAT8 and (largest := max(q.shape[3], v.shape[3])) > MOST_OF_FLOAT8:
        raise ValueError(
            f"attention: heads of {largest} in float8 are larger than {MOST_OF_FLOAT8}, the most"
            " that the kernel has: cast to bfloat16."
        )
    if k.shape[:3] != v.shape[:3] or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            f"attention: q {q.shape}, k {k.shape} and v {v.shape} must have one batch, q and k one"
            " head_dim, and k and v one seq and as many heads."
        )
    check_groups(q, k)


def check_each(
    q: Shaped, k: Shaped, v: Shaped, function: str = "attention", *, float8: bool = False
) -> None:
    """`check_arrays` of each array by itself, for the function of this name."""
    for name, array in zip("qkv", (q, k, v)):
        specs.check_array(f"{function}: {name}", array)
        if array.dtype not in HALVES and not (float8 and FLOAT8 in (array.dtype, q.dtype)):
            raise TypeError(
                f"{function}: {name} is {array.dtype}, but the kernel takes float16 or bfloat16."
            )
        if array.dtype != q.dtype:
            raise TypeError(
                f"{function}: q is {q.dtype} and {name} is {array.dtype}, but wgmma takes one"
                " dtype: cast one."
            )
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"{function}: {name} has shape {array.shape}, but it must be [batch, seq, heads,"
                " head_dim], each 1 or more."
            )


def check_groups(q: Shaped, k: Shaped, function: str = "attention") -> None:
    """Refuses heads of q that those of k do not divide."""
    if rest := q.shape[2] % k.shape[2]:
        raise ValueError(
            f"{function}: {q.shape[2]} heads of q over {k.shape[2]} heads of k leave {rest}, but"
            " each head of k must serve equally many."
        )


def options_of(
    q: Shaped,
    causal: bool,
    window: Window,
    scale: float | None,
    config: AttentionConfig | None = None,
    deterministic: bool = False,
    soft_cap: float | None = None,
) -> Options[AttentionConfig | None]:
    """The options, checked; the arguments are those of `attention`.

    Raises:
      TypeError, ValueError: for types and values that are not as `attention` says.
    """
    left, right = _sides(window)
    FRONT.check_config(config)
    if FRONT.flag("deterministic", deterministic) and config is not None and config.fused:
        raise ValueError(
            "attention: deterministic=True asks for sums in a fixed order, but the kernel that"
            " config.fused asks for adds up q's gradient as blocks come: leave one of them out."
        )
    right = 0 if FRONT.flag("causal", causal) else right
    cap = None if soft_cap is None else FRONT.number("soft_cap", soft_cap)
    if cap is not None and not 0.0 < cap < math.inf:
        raise ValueError(
            f"attention: soft_cap={cap!r} is not positive and finite, so no scores would tend to"
            " it: None caps none."
        )
    scale = scale_of(q, scale)
    return Options(left, right, scale, config, deterministic=bool(deterministic), soft_cap=cap)


def sinks_of(q: Shaped, sinks: jax.Array | None) -> tuple[jax.Array, ...]:
    """The scores of sinks, float32 [heads]; an empty tuple if there are none.

    Raises:
      TypeError, ValueError: for sinks that are not as `attention` says.
    """
    if sinks is None:
        return ()
    specs.check_array("attention: sinks", sinks)
    if sinks.shape != (heads := q.shape[2:3]) or not jnp.issubdtype(sinks.dtype, jnp.floating):
        raise ValueError(
            f"attention: sinks are {sinks.dtype} {sinks.shape}, but they must be floats {heads},"
            " a score for each head of q."
        )
    return (sinks.astype(jnp.float32),)


def _sides(window: Window) -> tuple[int | None, int | None]:
    """How many keys a query sees before its own, and after it; None for all."""
    given = window if isinstance(window, tuple) else (window, window)
    try:
        sides = [None if side is None else operator.index(side) for side in given]
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
    if any(side is not None and side >= MOST_KEYS for side in sides):
        raise ValueError(
            f"attention: {window=} has a side of {MOST_KEYS:,} keys or more, whose sum with a"
            " query's index is no int32: None is for all keys."
        )
    left, right = sides
    return left, right


def scale_of(q: Shaped, scale: float | None, front: Front = FRONT) -> float:
    """The factor of the scores."""
    factor = q.shape[-1] ** -0.5 if scale is None else front.number("scale", scale)
    if not 0.0 < factor < math.inf:
        raise ValueError(
            f"{front.name}: scale={factor!r} is not positive and finite, so the largest score would"
            " not have the largest exponential."
        )
    return factor


def segments_of(
    q: Shaped, k: Shaped, segment_ids: SegmentIds, cu_seqlens: SegmentIds = None
) -> tuple[jax.Array, ...]:
    """The segments of q and of k, int32 [batch, seq]; an empty tuple if there are none.

    Raises:
      TypeError, ValueError: for ids or ends that are not as `attention` says.
    """
    if cu_seqlens is not None:
        if segment_ids is not None:
            raise ValueError(
                "attention: segment_ids and cu_seqlens both say where documents are: give one."
            )
        ends = _pair("cu_seqlens", cu_seqlens)
        return tuple(_numbered(*each) for each in zip("qk", (q, k), ends))
    if segment_ids is None:
        return ()
    pair = _pair("segment_ids", segment_ids)
    for name, array, ids in zip("qk", (q, k), pair):
        if ids.shape != array.shape[:2] or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(
                f"attention: segment_ids of {name} are {ids.dtype} {ids.shape}, but they must be"
                f" integers of its [batch, seq], {array.shape[:2]}."
            )
    return tuple(ids.astype(jnp.int32) for ids in pair)


def _pair(name: str, given: _Pair) -> tuple[jax.Array, ...]:
    """An argument that is an array for both q and k, or one for each."""
    pair = given if isinstance(given, tuple) else (given,) * 2
    if len(pair) != 2:
        raise ValueError(
            f"attention: {name} are a tuple of {len(pair)}, but it must be of 2, q's and k's."
        )
    for array in pair:
        specs.check_array(f"attention: {name}", array)
    return pair


def _numbered(name: str, array: Shaped, ends: jax.Array) -> jax.Array:
    """The number of each token's document, int32 [batch, seq], from where documents end."""
    if ends.ndim != 1 or ends.size < 2 or not jnp.issubdtype(ends.dtype, jnp.integer):
        raise ValueError(
            f"attention: cu_seqlens of {name} are {ends.dtype} {ends.shape}, but they must be"
            " integers [documents + 1]: 0, and where each document ends."
        )
    # In one kernel: the search by halves is one for each half.
    places, how = jnp.arange(array.shape[1]), "compare_all"
    numbers = jnp.searchsorted(ends.astype(jnp.int32), places, side="right", method=how)
    return jnp.broadcast_to(numbers.astype(jnp.int32), array.shape[:2])


def is_addressable(q: Shaped, k: Shaped) -> bool:
    """Whether the kernel has this head_dim, and its copies can address the sequences."""
    lengths = q.shape[1], k.shape[1]
    return q.shape[-1] in HEAD_DIMS and not any(length % PIECE_ROWS for length in lengths)
