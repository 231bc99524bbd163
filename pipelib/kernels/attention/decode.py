"""`decode_attention` as it is called: its arguments, and how it hands them to the kernel."""

from typing import Literal, NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from pipelib.kernels.attention.arguments import check_each, check_groups, scale_of
from pipelib.kernels.attention.band import Options
from pipelib.kernels.attention.config import HEAD_DIMS
from pipelib.kernels.attention.decode_config import DecodeConfig, default_config, splits_for
from pipelib.kernels.attention.decode_kernel import Work, combined, launch_decode
from pipelib.kernels.front import Front
from pipelib.kernels.hopper import num_sms
from pipelib.kernels.keywords import DECODE, knows
from pipelib.refs import Shaped
from pipelib.tiles import PIECE_ROWS

#: The result and the log-sum-exp.
Residuals = tuple[jax.Array, jax.Array]
#: The most queries of a sequence.
MOST_QUERIES = 16
FRONT = Front("decode_attention", "jax.nn.dot_product_attention with a mask", DecodeConfig)


class _Options(TypedDict, total=False):
    """The arguments of `decode_attention` beside the arrays, for the overloads."""

    page_table: jax.Array | None
    scale: float | None
    config: DecodeConfig | None


@overload
def decode_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array | None = None,
    *,
    return_residuals: Literal[False] = False,
    **options: Unpack[_Options],
) -> jax.Array: ...
@overload
def decode_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array | None = None,
    *,
    return_residuals: Literal[True],
    **options: Unpack[_Options],
) -> Residuals: ...
@knows(DECODE)
def decode_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array | None = None,
    *,
    page_table: jax.Array | None = None,
    scale: float | None = None,
    config: DecodeConfig | None = None,
    return_residuals: bool = False,
) -> jax.Array | Residuals:
    """Attention of the last few queries of each sequence to all of its keys, on a Hopper GPU.

    For decoding: K and V are a cache, of which each sequence fills a part, and which is read once.
    Query i of a sequence of L keys sees keys j <= L - q_seq + i: the queries are the sequence's
    last tokens, whose keys are in the cache already. Works under `jax.jit`, `jax.vmap` and
    `jax.shard_map`; it has no gradient. A query that sees no key, as in a sequence of length 0,
    gives zeros, and a log-sum-exp of -inf.

    The cache is never copied, so its sizes must be those that the kernel takes: others are refused.
    What lies in it behind the end of a sequence does not matter, as long as it is finite.

    Args:
      q: [batch, q_seq, heads, head_dim], float16 or bfloat16: 1 to 16 queries of each sequence, and
        heads of 64, 128 or 256.
      k, v: [batch, kv_seq, kv_heads, head_dim] of the same dtype, kv_seq a multiple of 8. With a
        `page_table`: [num_pages, page_size, kv_heads, head_dim]. `kv_heads` divides `heads`: each
        head of k and v serves equally many consecutive heads of q.
      lengths: int32 [batch], the keys of each sequence; by default kv_seq each. It is required with
        a `page_table`. A number past what the cache has room for counts as all of it.
      page_table: int32 [batch, pages_per_sequence]: key j of sequence b is at
        `k[page_table[b, j // page_size], j % page_size]`. Entries of pages without keys are never
        read. A page is a multiple of 8 keys that divides the keys of a step, `config.block_kv`, or
        is a multiple of them: 8, 16, 32 or 64 keys, or a multiple of 64.
      scale: the factor of the scores, positive; by default 1 / sqrt(head_dim).
      config: by default picked from the sizes.
      return_residuals: whether to return the log-sum-exp of the (scaled) scores too.

    Returns:
      [batch, q_seq, heads, head_dim] in q's dtype. With `return_residuals`, a pair of this and the
      natural log-sum-exp, [batch, heads, q_seq], float32.

    Raises:
      TypeError: for dtypes, and types of arguments, that are not as above.
      ValueError: for wrong shapes and options; a GPU that is not Hopper; a CPU where nothing
        interprets kernels (under `jax.jit` in Pallas's words); a configuration that does not fit,
        with the sum.
      NotImplementedError: for a gradient.

    Example:
      A sequence of 10 keys in the pages 2 and 0, and one of 1 key in page 1:

      >>> q, k = jnp.ones((2, 1, 1, 64), jnp.bfloat16), jnp.ones((3, 8, 1, 64), jnp.bfloat16)
      >>> lengths, table = jnp.array([10, 1]), jnp.array([[2, 0], [1, 0]])
      >>> decode = functools.partial(
      ...     pipelib.kernels.decode_attention, page_table=table, return_residuals=True)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     out, lse = decode(q, k, k, lengths)
      >>> out.shape, [round(x, 3) for x in lse.ravel().tolist()]
      ((2, 1, 1, 64), [10.303, 8.0])
    """
    _check_arrays(q, k, v, lengths, page_table)
    if lengths is None:
        lengths = jnp.full(q.shape[:1], k.shape[1], jnp.int32)
    tables = () if page_table is None else (page_table,)
    FRONT.check_config(config)
    return_residuals = FRONT.flag("return_residuals", return_residuals)
    asked = Asked(scale_of(q, scale, FRONT), config)
    integers = tuple(array.astype(jnp.int32) for array in (lengths, *tables))
    found = FRONT.call(_decode, (q, k, v, integers), asked)
    return found if return_residuals else found[0]


class Asked(NamedTuple):
    """What `decode_attention` is told beside its arrays; hashable."""

    scale: float
    config: DecodeConfig | None


def _made(
    q: jax.Array, k: jax.Array, v: jax.Array, numbers: tuple[jax.Array, ...], asked: Asked
) -> Residuals:
    """The result and the log-sum-exp; `numbers` are the lengths, and the table of pages if any."""
    FRONT.require_gpu()
    lengths, *table = numbers
    batch, q_seq, heads, head_dim = q.shape
    group = heads // k.shape[2]
    work = _work(q, k, asked, *table)
    rows = q.reshape(batch, q_seq, k.shape[2], group, head_dim)
    rows = jnp.moveaxis(rows, 2, 1).reshape(batch, k.shape[2], q_seq * group, head_dim)
    missing = -rows.shape[2] % PIECE_ROWS
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, missing), (0, 0))) if missing else rows  # pyright: ignore[reportUnknownMemberType]
    out, lse = launch_decode(rows, k, v, lengths, table[0] if table else None, work)
    count = q_seq * group
    out, lse = out[:, :, :, :count], lse[:, :, :, :count]
    out, lse = (out[:, 0], lse[:, 0]) if work.splits == 1 else combined(out, lse)
    out = jnp.moveaxis(out.reshape(batch, -1, q_seq, group, head_dim), 1, 2)
    lse = jnp.moveaxis(lse.reshape(batch, -1, q_seq, group), 2, 3)
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(batch, heads, q_seq)


_decode = FRONT.without_gradient(_made, ": use attention")


def _work(q: Shaped, k: Shaped, asked: Asked, *table: Shaped) -> Work:
    """How the kernel divides a problem; `table` is the table of pages, if there is one.

    Raises:
      ValueError: the configuration does not fit an SM, or the pages.
    """
    batch, q_seq, heads, head_dim = q.shape
    group = heads // k.shape[2]
    rows, page = q_seq * group, k.shape[1] if table else None
    config = asked.config or default_config(rows, head_dim, page)
    if page is not None and page % config.block_kv and config.block_kv % page:
        raise ValueError(
            f"decode_attention: pages of {page} keys neither divide the {config.block_kv} keys of a"
            " step (block_kv) nor are a multiple of them, so copies of whole pages do not fill a"
            " step."
        )
    keys = k.shape[1] * (table[0].shape[1] if table else 1)
    own = config.for_rows(rows)
    blocks = batch * k.shape[2] * -(-rows // own.block_q)
    step_bytes = 2 * config.block_kv * head_dim * k.dtype.itemsize
    steps = -(-keys // config.block_kv)
    splits = config.splits or splits_for(blocks, steps, step_bytes, num_sms())
    config.check(rows, head_dim, splits > 1)
    options = Options(None, None, asked.scale, own)
    return Work(options, q_seq, group, keys, splits, page)


# What is refused.


def _check_arrays(
    q: Shaped, k: Shaped, v: Shaped, lengths: Shaped | None, page_table: Shaped | None
) -> None:
    """Refuses arrays that are not as `decode_attention` says.

    Raises:
      TypeError: one is not an array, or of a dtype that the kernel does not take.
      ValueError: shapes that do not go together, or that the kernel does not take.
    """
    check_each(q, k, v, "decode_attention")
    if k.shape != v.shape or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"decode_attention: q {q.shape}, k {k.shape} and v {v.shape} must have one head_dim,"
            " and k and v one shape."
        )
    check_groups(q, k, "decode_attention")
    if q.shape[3] not in HEAD_DIMS:
        raise ValueError(
            f"decode_attention: head_dim is {q.shape[3]}, but the kernel has heads of 64, 128 and"
            " 256, and the cache is never copied: make it with heads of one of these sizes, with"
            " zeros behind their numbers, and give scale=."
        )
    if q.shape[1] > MOST_QUERIES:
        raise ValueError(
            f"decode_attention: {q.shape[1]} queries of a sequence are more than {MOST_QUERIES}:"
            " attention is for many."
        )
    _check_cache(q, k, lengths, page_table)


def _check_cache(q: Shaped, k: Shaped, lengths: Shaped | None, page_table: Shaped | None) -> None:
    """Refuses lengths and tables of pages that do not say where the cache has keys."""
    batch, (count, size) = q.shape[0], k.shape[:2]
    if size % PIECE_ROWS:
        raise ValueError(
            f"decode_attention: k has {'kv_seq' if page_table is None else 'pages of'} {size}"
            f" keys, which is not a multiple of {PIECE_ROWS}, so copies cannot address them: make"
            " the cache longer, and give lengths."
        )
    for name, array, axes in (("lengths", lengths, 1), ("page_table", page_table, 2)):
        if array is None:
            continue
        FRONT.check_arrays(**{name: array})
        shape = array.shape
        if not jnp.issubdtype(array.dtype, jnp.integer) or len(shape) != axes or shape[0] != batch:
            wanted = "[batch]" if axes == 1 else "[batch, pages_per_sequence]"
            raise ValueError(
                f"decode_attention: {name} is {array.dtype} {shape}, but it must be integers"
                f" {wanted}, of a batch of {batch}."
            )
    if page_table is None:
        if count != batch:
            raise ValueError(
                f"decode_attention: q has a batch of {batch} and k of {count}, but without a"
                " page_table each sequence has its own keys."
            )
    elif lengths is None:
        raise ValueError(
            "decode_attention: a page_table needs lengths: pages say where keys can be, not how"
            " many there are."
        )
