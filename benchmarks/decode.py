"""Measures `pipelib.kernels.decode_attention` beside cuDNN, plain JAX and a copy, on one GPU.

    python -m benchmarks.decode          each problem by all contenders
    python -m benchmarks.decode table    prints the record

The model. A *problem* is a batch of sequences that have all of their keys: few queries each, and
K and V of 32,768 tokens, which every contender must read. What counts is how near a contender comes
to the time in which a copy moves as many bytes: it reads K, and writes as much. Problems with pages
have them in no order. A contender is a function of (q, k, v, lengths, page table).

cuDNN is called through `jax.nn.dot_product_attention`, and has no pages there. It cannot align a
causal mask to the end, so each of its queries sees all keys; so few keys more cost nothing. Plain
JAX gathers the pages of a sequence first. FlashAttention-3 runs where its build of JAX's is
(`benchmarks/peers.py`), with some numbers of blocks that share a head's keys.

Samples and records are those of `turns`. Errors are relative, by norms, of some heads of the first
and the last sequence, against float64. A batch of one has K and V of 128 MiB, so all of these
problems are larger than the L2.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import peers, suite
from benchmarks.suite import SEED
from benchmarks.turns import Contender, InTurns, float64, normal, off, suite_in_turns
from pipelib.kernels import DecodeConfig, decode_attention
from pipelib_book.measured.attention import FA3_JAX

OURS, CUDNN, XLA, COPY = "decode_attention", "cuDNN (XLA)", "XLA", "copy"
#: Of a relative error; a result that is wrong has a larger one.
TOLERANCE = 2e-2


class Problem(NamedTuple):
    """`q_seq` queries of each of `batch` sequences; `page` is None if K and V have no pages."""

    batch: int
    q_seq: int = 1
    page: int | None = None
    keys: int = 32768
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: str = "bfloat16"

    @property
    def bytes(self) -> int:
        """Of K and V."""
        per_key = 2 * self.kv_heads * self.head_dim * jnp.dtype(self.dtype).itemsize
        return self.batch * self.keys * per_key

    @property
    def args(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of q, k, v, the lengths and the table, which without pages has no entries."""
        page = self.page or self.keys
        pages = self.batch * self.keys // page
        cache = jax.ShapeDtypeStruct((pages, page, self.kv_heads, self.head_dim), self.dtype)
        q = jax.ShapeDtypeStruct((self.batch, self.q_seq, self.heads, self.head_dim), self.dtype)
        lengths = jax.ShapeDtypeStruct((self.batch,), jnp.int32)
        count = pages // self.batch if self.page else 0
        return q, cache, cache, lengths, jax.ShapeDtypeStruct((self.batch, count), jnp.int32)

    def __str__(self) -> str:
        pages = f"pages of {self.page}" if self.page else "no pages"
        return (
            f"{self.batch} x {self.q_seq} queries, {self.keys} keys, {self.heads} heads of"
            f" {self.kv_heads}, {self.head_dim} {self.dtype}, {pages}"
        )


PROBLEMS = tuple(
    Problem(batch, q_seq, page)
    for batch, q_seq, page in itertools.product((1, 4, 16, 64), (1, 4, 16), (None, 64, 128))
)


# Contenders.


def ours(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array,
    table: jax.Array,
    *,
    config: DecodeConfig | None = None,
) -> jax.Array:
    """`pipelib.kernels.decode_attention`; of `config` None, as it picks."""
    return decode_attention(
        q, k, v, lengths, page_table=table if table.size else None, config=config
    )


def cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    """cuDNN's, in which each query sees all keys of its sequence."""
    del table
    return jax.nn.dot_product_attention(
        q, k, v, key_value_seq_lengths=lengths, implementation="cudnn"
    )


def xla(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    """Plain JAX's."""
    if table.size:
        k, v = (x[table].reshape(q.shape[0], -1, *x.shape[2:]) for x in (k, v))
    last = lengths[:, None] - q.shape[1] + jnp.arange(q.shape[1])
    sees = jnp.arange(k.shape[1]) <= last[:, :, None]
    return jax.nn.dot_product_attention(q, k, v, mask=sees[:, None], implementation="xla")


def copy(q: jax.Array, k: jax.Array, *_: jax.Array) -> jax.Array:
    """Reads K, and writes as many bytes."""
    del q
    return k + jnp.ones((), k.dtype)


def contenders(problem: Problem) -> dict[str, Contender]:
    """All of a problem; ours also with other divisions, for the simplest problems."""
    found: dict[str, Contender] = {OURS: ours, XLA: xla, COPY: copy}
    if problem.page is None:
        found[CUDNN] = cudnn
    for splits in (1, 4, 16) if peers.has(FA3_JAX) else ():
        name = f"{FA3_JAX}, {splits} splits"
        found[name] = functools.partial(peers.fa3_decode, splits=splits)
    if problem.page is None and problem.q_seq == 1:
        for splits in (1, 2, 4, 8, 16, 32):
            name = f"{OURS}, {splits} splits"
            found[name] = functools.partial(ours, config=DecodeConfig(splits=splits))
        small = DecodeConfig(block_kv=64, slots=6)
        found[f"{OURS}, steps of 64 keys"] = functools.partial(ours, config=small)
    return found


# Arrays and errors.


def operands(problem: Problem) -> tuple[jax.Array, ...]:
    """Normal random numbers, all lengths, and pages in no order."""
    types = problem.args
    keys = jax.random.split(jax.random.key(SEED), 3)
    arrays = list(map(normal, types, keys))
    order = np.random.default_rng(SEED).permutation(problem.args[4].size)
    table = jnp.asarray(order.reshape(types[4].shape), jnp.int32)
    return (*arrays, jnp.full(types[3].shape, problem.keys, jnp.int32), table)


def exact(problem: Problem, args: tuple[jax.Array, ...], sequence: int, head: int) -> np.ndarray:
    """The result of a head of a sequence in float64, [q_seq, head_dim]."""
    q, k, v, _, table = args
    kv_head = head * problem.kv_heads // problem.heads
    pages = table[sequence] if table.size else jnp.array([sequence])
    k, v = (float64(x[pages, :, kv_head]) for x in (k, v))
    k, v = (x.reshape(problem.keys, problem.head_dim) for x in (k, v))
    scores = float64(q[sequence, :, head]) @ k.T * problem.head_dim**-0.5
    last = problem.keys - problem.q_seq + np.arange(problem.q_seq)
    scores[np.arange(problem.keys) > last[:, None]] = -np.inf
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v


def error(
    problem: Problem, args: tuple[jax.Array, ...], name: str, contender: Contender
) -> float | None:
    """The relative error of the last query, which by all contenders sees all keys."""
    if name == COPY:
        return None
    out = jax.jit(contender)(*args)
    places = [(0, 0), (problem.batch - 1, problem.heads - 1)]
    found = np.stack([float64(out[i, -1, head]) for i, head in places])
    return off(found, np.stack([exact(problem, args, *place)[-1] for place in places]))


SUITE = suite_in_turns(
    "decode",
    PROBLEMS,
    contenders,
    InTurns(operands, error, TOLERANCE),
    (suite.tb_per_second, *(suite.beside(f"{{:6.3f}} of {x}", x) for x in (COPY, CUDNN, FA3_JAX))),
    (CUDNN, FA3_JAX),
)

if __name__ == "__main__":
    suite.main("decode")
