"""`decode_attention`: what its tests share (caches, results in float64), and its cases."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from pipelib.kernels import DecodeConfig, decode_attention, hopper
from pipelib.kernels.attention.decode_config import default_config
from tests.kernels.attention.cases import BRAIN, HALF, check_close, exact, spread_over
from tests.kernels.contract import (
    BOTH_JAX,
    LOWERED,
    ON_GPU,
    Call,
    case,
    refused,
    refuses,
    wrong_configurations,
)

#: No page: a copy from there would raise, or read what it must not.
NO_PAGE = 10**6


def small(**options):
    """What the interpreter runs."""
    return DecodeConfig(**dict(block_kv=64, slots=2, probabilities="interpreted") | options)


def problem(q_seq, lengths, keys, heads=1, kv_heads=1, head_dim=64, dtype=HALF, page=None):
    """q, k, v, lengths, and the table of pages or None; pages lie in no order."""
    draw = np.random.default_rng(q_seq + keys + heads)
    batch = len(lengths)
    q = draw.standard_normal((batch, q_seq, heads, head_dim))
    k, v = draw.standard_normal((2, batch, keys, kv_heads, head_dim))
    for array in (k, v):
        for cache, length in zip(array, lengths):
            cache[length:] = 1e4
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    table = None
    if page is not None:
        count = batch * keys // page
        order = draw.permutation(count)
        k, v = (x.reshape(count, page, kv_heads, head_dim)[np.argsort(order)] for x in (k, v))
        table = order.reshape(batch, -1)
        for pages, length in zip(table, lengths):
            pages[-(-length // page) :] = NO_PAGE
        table = jnp.asarray(table, jnp.int32)
    return q, k, v, jnp.asarray(lengths, jnp.int32), table


def expected(q, k, v, lengths, table, scale=None):
    """The result and the log-sum-exp in float64."""
    if table is not None:
        pages = np.where(np.asarray(table) == NO_PAGE, 0, table)
        k, v = (np.asarray(x)[pages].reshape(q.shape[0], -1, *x.shape[2:]) for x in (k, v))
    found = [
        exact(*(x[i : i + 1] for x in (q, k, v)), window=(10**9, int(n) - q.shape[1]), scale=scale)
        for i, n in enumerate(lengths)
    ]
    return tuple(map(np.concatenate, zip(*found)))


def decode(arrays, **options):
    *others, table = arrays
    return decode_attention(*others, page_table=table, return_residuals=True, **options)


# What every kernel is asked.

#: Rows of a head of K and V by q_seq and group, the size of a head, keys of a page, splits.
KINDS = [
    (1, 4, 128, None, 1), (1, 4, 128, None, 4), (16, 4, 128, None, 1), (16, 8, 128, None, 4),
    (4, 4, 64, None, 4), (16, 16, 64, None, 1), (1, 8, 256, None, 1), (4, 4, 256, None, 4),
    (1, 4, 128, 16, 4), (1, 4, 128, 64, 1), (4, 4, 128, 128, 4), (1, 4, 128, 256, 1),
    (16, 8, 64, 32, 4),
]  # fmt: skip


def on_hopper():
    """A context in which kernels are planned for an H200."""
    return hopper.assumed(hopper.Gpu("NVIDIA H200", "9.0"))


def kind(q_seq, group, head_dim, page, splits, dtype=HALF):
    """A problem of two sequences of 2048 keys at most, its configuration, and its call."""
    arrays = problem(q_seq, (2048, 1301), 2048, 2 * group, 2, head_dim, dtype, page)
    with on_hopper():
        config = default_config(q_seq * group, head_dim, page)
    config = DecodeConfig(config.block_kv, config.slots, splits)
    return arrays, config, functools.partial(decode, config=config)


PROBLEMS = {
    "one query": ((1, (4096, 1000, 0, 1), 4096, 8, 2), {}),
    "one query, one part": ((1, (4096, 1000, 0, 129), 4096, 8, 2), {"splits": 1}),
    "a block of rows": ((16, (3000, 15, 128), 3072, 8, 2), {}),
    "two compute threads": ((16, (3000, 15, 128), 3072, 16, 2), {}),
    "four blocks of 64 rows": ((16, (3000, 0, 1000), 3072, 16, 1), {}),
    "ragged cache": ((4, (1000, 777), 1000, 8, 8), {}),
}


@case("decode_attention", LOWERED, marks=BOTH_JAX, args=KINDS)
def lowering(args):
    arrays, _, call = kind(*args, BRAIN)
    return Call(lambda *args: call(args), arrays, is_hopper=False)


def on_gpu(head_dim, dtype, shape, options, page=None):
    """The call of a problem."""
    arrays = problem(*shape, head_dim, dtype, page)
    q, k, _, _, table = arrays
    config = default_config(
        q.shape[1] * q.shape[2] // k.shape[2], head_dim, None if table is None else page
    )
    call = lambda *arrays: decode(arrays, config=dataclasses.replace(config, **options))
    return Call(call, arrays, lambda found: check_close(found, expected(*arrays), dtype))


@case("decode_attention", ON_GPU, which=spread_over(PROBLEMS, (64, 128, 256)))
def default(which):
    name, head_dim, dtype = which
    return on_gpu(head_dim, dtype, *PROBLEMS[name])


@case("decode_attention", ON_GPU, page=[8, 16, 32, 64, 128, 192, 256], splits=[None, 1])
def pages(page, splits):
    shape = 3, (1536, 1000, 0, 257), 1536, 8, 2
    return on_gpu(128, BRAIN, shape, {"splits": splits}, page)


@case("decode_attention", ON_GPU, q_seq=range(1, 17))
def every_number_of_queries(q_seq):
    return on_gpu(128, BRAIN, (q_seq, (2048, q_seq - 1, 999), 2048, 8, 2), {})


wrong_configurations(
    DecodeConfig,
    ({"block_kv": 96}, "block_kv=96 is not a multiple of 64 up to 256, the most columns of a wgmm"),
    ({"slots": 0}, "slots=0 is not 1 to 32, the most barriers of one array."),
    ({"splits": 0}, "splits=0 is not 1 to 128, the most partial results of a sequence."),
    ({"probabilities": "x"}, "probabilities='x' is none of registers, interpreted."),
)

Q, K, V, LENGTHS, _ = problem(2, (24, 8), 24, 4, 2)
*OF_PAGES, TABLE = problem(1, (100, 8), 128, 2, 1, page=64)


def paged(words, page):
    """A cache with pages of this many keys."""
    k = jnp.zeros((3, page, 1, 64), HALF)
    return refused(words, OF_PAGES[0], k, k, OF_PAGES[3], page_table=TABLE)


def too_large(words, head_dim=128, **fields):
    arrays = problem(1, (64,), 64, head_dim=head_dim)[:4]
    return refused(f"DecodeConfig: {words}", *arrays, config=DecodeConfig(**fields))


refuses(
    decode_attention,
    refused("k is float32, but the", Q, K.astype(jnp.float32), V, kind=TypeError),
    refused("and v (2, 16, 2, 64) must have one head_dim, and k and v one", Q, K, V[:, :16]),
    refused("decode_attention: 3 heads of q over 2 heads of k leave 1", Q[:, :, :3], K, V),
    refused("head_dim is 32, but the kernel has heads of", *(x[..., :32] for x in (Q, K, V))),
    refused("17 queries of a sequence are more", jnp.zeros((2, 17, 4, 64), HALF), K, V),
    refused("k has kv_seq 23 keys, which is not a multiple of 8", Q, K[:, :23], V[:, :23]),
    refused("but without a page_table each sequence has its own keys.", Q, K[:1], V[:1]),
    refused(
        "lengths is float32 (2,), but it must be integers [batch], of a batch of 2.",
        Q,
        K,
        V,
        LENGTHS.astype(jnp.float32),
    ),
    refused("must be integers [batch, pages_per_sequence]", *OF_PAGES, page_table=TABLE[:1]),
    refused("a page_table needs lengths: pages say where", *OF_PAGES[:3], page_table=TABLE),
    paged("pages of 96 keys neither divide the 64 keys of a step (block_kv) nor are a", 96),
    paged("k has pages of 12 keys, which is not a multiple of 8, so copies cannot", 12),
    refused("k=[1.0] has type list, but a kernel copies arrays", Q, [1.0], V, kind=TypeError),
    refused("lengths=[64] has type list, but a ker", Q, K, V, [64], kind=TypeError),
    refused("scale='x' has type str, but a kernel is compiled", scale="x", kind=TypeError),
    refused("config=64 has type int, but a DecodeConfig says", config=64, kind=TypeError),
    refused("return_residuals=2 has type int", return_residuals=2, kind=TypeError),
    too_large(
        "queries 1 x 16,384 B + slots of K and V 8 x 32,768 B + log-sum-exp 1 x 1,024 B +"
        " barriers 17 x 8 B + partial results 1 x 16,384 B = 296,072 B of shared memory, but a",
        slots=4,
        splits=2,
    ),
    too_large("result 128 + scores 128 = 256 registers of a lane", 256, slots=1, block_kv=256),
    arrays=(Q, K, V),
)
