"""The kernel of `decode_attention`: its launch, its threads, and how parts of keys are combined.

The model. All queries that share a head of K and V are the rows of one product (`decode_config`):
row r is query r // group of a sequence. A block has some rows, and one part of the keys of its
sequence, a range of whole steps. It is one pipeline over these steps::

    memory thread                        each compute thread
    for each step s:                     for each step s:
      read  the pages of its keys          S = Q K[s]^T, once K[s] has landed; release K[s]
      wait  until its slot is free         the softmax of S, and with it a new maximum (`queries`)
      load  K[s], then V[s]                O = O + P V[s], once V[s] has landed; release V[s]

K and V have a ring each, whose slot s mod S has step s (`pipelib.ring` says why a ring is right).
Nothing here overlaps a softmax and a product, as `schedules` has it: a step computes in about half
of the time in which its keys arrive, so it is the memory thread that must never wait.

A **page** is a piece of the cache that holds consecutive keys of one sequence. A step whose keys
lie in several pages is loaded by a copy of each, and all arrive at one barrier. Without a table of
pages, a sequence is one page. Keys past the end of a sequence are never looked up in the table: the
last page with keys is loaded in their place.

A compute thread's arithmetic is that of `attention`'s schedule "plain". Its masks are its own:
query i of a sequence of L keys sees key j if j <= L - q_seq + i. Only steps in which some row does
not see all keys are masked.

If the keys are divided, each part stores its result divided by its own sum, in float32, and its
log-sum-exp. `combined` weights the parts. A part without keys has a log-sum-exp of -inf.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.kernels.attention.band import Band, Options, Sizes, numbers_along
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.decode_config import staging
from pipelib.kernels.attention.order import BlockVisits
from pipelib.kernels.attention.queries import Inputs, State
from pipelib.kernels.attention.schedules import Plain
from pipelib.kernels.dividing import Barriers, Scratch, allocations
from pipelib.kernels.front import named
from pipelib.refs import Allocation, Dtype, Index, Int, Ref
from pipelib.ring import Steps
from pipelib.tiles import tiled

#: The axes of the grid. The blocks of all heads and one part of the keys, which lie side by side in
#: memory, begin together.
AXES = ("batch", "split", "head")
#: Where the keys of a copy lie: the page, and the first key in it.
Place = tuple[Int, Int]


class Work(NamedTuple):
    """What the kernel is told beside its arrays; hashable.

    Attributes:
      options: the scale and the configuration of a block.
      q_seq: queries of a sequence.
      group: heads of the queries that share a head of K and V.
      keys: the most keys of a sequence: those that its part of the cache has room for.
      splits: into how many parts the keys of a sequence are divided.
      page: the keys of a page; None if a sequence is one page.
    """

    options: Options[AttentionConfig]
    q_seq: int
    group: int
    keys: int
    splits: int
    page: int | None

    @property
    def config(self) -> AttentionConfig:
        """The configuration of a block."""
        return self.options.config

    @property
    def blocks(self) -> int:
        """Blocks of rows of a head."""
        return pl.cdiv(self.q_seq * self.group, self.config.block_q)

    @property
    def copies(self) -> int:
        """Copies of the keys of a step."""
        return 1 if self.page is None else max(1, self.config.block_kv // self.page)


class Part(NamedTuple):
    """The part of a sequence that a block reads.

    Attributes:
      batch, split, head: the place of the block in the grid; the head is one of K and V.
      row: the first row of the block.
      length: the keys of the sequence.
      first: the first step of the part, of all steps of the sequence.
      steps: the steps of the part.
    """

    batch: jax.Array
    split: jax.Array
    head: jax.Array
    row: Int
    length: jax.Array
    first: jax.Array
    steps: Steps

    @classmethod
    def here(cls, work: Work, lengths: Ref) -> "Part":
        """The part of the sequence that the block which asks has."""
        batch, split, head = map(lax.axis_index, AXES)
        row: Int = 0
        if work.blocks > 1:
            blocks = jnp.int32(work.blocks)
            head, row = lax.div(head, blocks), lax.rem(head, blocks) * work.config.block_q
        length, splits = jnp.clip(lengths[batch], 0, work.keys), jnp.int32(work.splits)
        count = lax.div(length + work.config.block_kv - 1, jnp.int32(work.config.block_kv))
        first, end = lax.div(count * split, splits), lax.div(count * (split + 1), splits)
        steps = Steps.of((end - first,), work.config.slots)
        return cls(batch, split, head, row, length, first, steps)


#: The slots of K, or of V: "smem" [slots, keys of a step, head_dim], and for each slot the barriers
#: "produced", where each copy of a step arrives, and "consumed", where each compute thread does.
Ring = Mapping[str, Ref]


# Its memory thread.


def memory_thread(
    work: Work, part: Part, arrays: tuple[Ref, Ref], rings: tuple[Ring, Ring], *table: Ref
) -> None:
    """Loads K and V of each step as their slots become free."""
    steps = part.steps

    def one_step(step: jax.Array, _: None) -> None:
        places = _places(work, part, step, *table)  # read before the wait, which takes longer
        slot = steps.slot(step)
        for ring, array in zip(rings, arrays):

            @pl.when(step >= steps.slots)
            def wait_until_released() -> None:
                plgpu.barrier_wait(ring["consumed"].at[slot])

            for number, (page, key) in enumerate(places):
                keys = work.config.block_kv // work.copies
                source = array.at[page, pl.ds(key, keys), part.head]
                target = ring["smem"].at[slot, pl.ds(number * keys, keys)]
                plgpu.copy_gmem_to_smem(source, target, ring["produced"].at[slot])

    def wait_for_the_last_release(step: jax.Array, _: None) -> None:
        for ring in rings:
            plgpu.barrier_wait(ring["consumed"].at[steps.slot(step)])

    steps.loop(0, steps.num_steps, one_step, None)
    steps.loop(steps.num_steps - steps.prologue, steps.num_steps, wait_for_the_last_release, None)


def _places(work: Work, part: Part, step: jax.Array, *table: Ref) -> list[Place]:
    """Where the keys of a step lie: the place of each copy."""
    first, page = (part.first + step) * work.config.block_kv, work.page
    if page is None:
        return [(part.batch, first)]
    (pages,), size = table, jnp.int32(page)
    last = lax.div(part.length - 1, size)

    def place(key: jax.Array) -> Place:
        number = jnp.minimum(lax.div(key, size), last)
        within = 0 if work.copies > 1 else lax.rem(key, size)
        return pages[part.batch, number], within

    return [place(first + i * page) for i in range(work.copies)]


# Its compute threads.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeThread(Plain):
    """A compute thread: the steps of "plain", with masks and stores of its own.

    Attributes:
      work, part: the problem, and the part of it that the block has.
    """

    work: Work
    part: Part

    @classmethod
    def of(
        cls,
        work: Work,
        part: Part,
        arrays: tuple[Ref, Ref, Ref],
        scratch: Scratch,
        index: jax.Array,
    ) -> "DecodeThread":
        """The thread `index` of a block; `arrays` are the rows, the results and their lse."""
        batch, heads, rows, head_dim = arrays[0].shape
        config, steps = work.config, part.steps
        band = Band(None, None, work.keys, config.tiles, part.first, steps.num_steps)
        return cls(
            options=work.options,
            sizes=Sizes(batch, rows, work.keys, heads, 1, head_dim),
            band_of=lambda _: band,
            visits=BlockVisits(1, lambda visit: (part.batch, part.head, part.row)),
            arrays=arrays,
            segments=(),
            scratch=scratch,
            allocations={},
            index=index,
            work=work,
            part=part,
        )

    @property
    def first_row(self) -> Int:
        """The first of its rows."""
        return self.part.row + self.index * self.config.rows

    def run(self, rings: tuple[Ring, Ring]) -> None:
        """All that the thread does."""
        (q, _, _), part, steps = self.arrays, self.part, self.part.steps
        rows = q.at[part.batch, part.head, pl.ds(self.first_row, self.config.rows)]
        plgpu.copy_gmem_to_smem(rows, self.mine("q"), self.mine("loaded"))
        plgpu.barrier_wait(self.mine("loaded"))

        def one_step(step: jax.Array, state: State) -> State:
            slot = steps.slot(step)
            (k, k_in, k_out), (v, v_in, v_out) = (
                tuple(ring[name].at[slot] for name in ("smem", "produced", "consumed"))
                for ring in rings
            )
            return self.step((step,), Inputs(k, v, k_in, v_in, k_out, v_out), state)

        state = steps.loop(0, steps.num_steps, one_step, self.start())
        self.store_part(state)
        plgpu.wait_smem_to_gmem(0)

    def masked(self, scores: jax.Array, block: Int, step: Int) -> jax.Array:
        """The scores of a step, masked if a row does not see all of its keys."""
        key, rows = self.band_of(block).column(step), self.first_row
        last = self.part.length - self.work.q_seq  # the last key that query 0 sees

        def mask(scores: jax.Array) -> jax.Array:
            beyond = numbers_along(scores.shape, 1) + (key - last)
            # beyond <= row // group, without a division
            row = numbers_along(scores.shape, 0) + rows
            return jnp.where(beyond * self.work.group <= row, scores, -jnp.inf)

        is_edge = key + self.config.block_kv - 1 > last
        return lax.cond(is_edge, mask, lambda scores: scores, scores)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]

    def store_part(self, state: State) -> None:
        """Starts to store the result of its part, and the log-sum-exp."""
        part, rows = self.part, pl.ds(self.first_row, self.config.rows)
        here = part.batch, part.split, part.head, rows
        self.finish(state, functools.partial(self.store_result, here))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(self.mine("lse"), self.arrays[2].at[here])

    def store_result(self, here: tuple[Index, ...], result: jax.Array) -> None:
        """Starts to store a result: the whole of it, or a partial one some columns at a time."""
        is_whole = self.work.splits == 1  # then no product reads the queries any more
        staging = self.mine("q") if is_whole else self.scratch["staged"].at[self.index]
        columns = staging.shape[1]
        for first in range(0, self.sizes.head_dim, columns):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            staging[...] = result[:, first : first + columns].astype(staging.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staging, self.arrays[1].at[*here, pl.ds(first, columns)])


# The launch.


def launch_decode(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array,
    page_table: jax.Array | None,
    work: Work,
) -> tuple[jax.Array, jax.Array]:
    """Makes the results and the log-sum-exps of all parts by the kernel.

    Args:
      q: the rows, [batch, kv_heads, rows, head_dim], filled up to a multiple of 8 rows.
      k, v: the cache, [pages, keys of a page, kv_heads, head_dim].
      lengths: int32 [batch].
      page_table: int32 [batch, pages of a sequence]; None if sequence b is page b.
      work: the problem and how it is divided.

    Returns:
      [batch, splits, kv_heads, rows, head_dim] in float32, or in q's dtype for one part; and
      float32 [batch, splits, kv_heads, rows up to a multiple of those of a block].
    """
    config, (batch, heads, _, head_dim) = work.config, q.shape
    dtype = q.dtype if work.splits == 1 else jnp.float32
    out_type = jax.ShapeDtypeStruct((batch, work.splits, *q.shape[1:]), dtype)
    rows = work.blocks * config.block_q
    lse_type = jax.ShapeDtypeStruct((batch, work.splits, heads, rows), jnp.float32)
    tables = () if page_table is None else (page_table,)
    return plgpu.kernel(
        named("decode_attention", functools.partial(_block, work)),
        out_type=[out_type, lse_type],
        scratch_types=dict(
            scratch=_scratch(work, head_dim, q.dtype),
            k_ring=_ring(work, head_dim, q.dtype),
            v_ring=_ring(work, head_dim, q.dtype),
        ),
        grid=(batch, work.splits, heads * work.blocks),
        grid_names=AXES,
        num_threads=config.compute_threads + 1,
        thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v, lengths, *tables)


def combined(out: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp of all parts, which axis 1 counts.

    Parts are added up one by one, so that XLA makes one kernel of it all. It makes several of sums
    along an axis.

    Args:
      out: [batch, splits, kv_heads, rows, head_dim].
      lse: [batch, splits, kv_heads, rows].
    """
    parts = range(lse.shape[1])
    maximum = functools.reduce(jnp.maximum, (lse[:, part] for part in parts))
    finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
    weights = [jnp.exp(lse[:, part] - finite) for part in parts]
    total = functools.reduce(jnp.add, weights)
    inverse = 1.0 / jnp.where(total == 0.0, 1.0, total)
    weighted = (out[:, part] * (weights[part] * inverse)[..., None] for part in parts)
    return functools.reduce(jnp.add, weighted), finite + jnp.log(total)


def _scratch(work: Work, head_dim: int, dtype: Dtype) -> dict[str, Any]:
    """What the kernel allocates for its compute threads."""
    memory = work.config.memory(head_dim, dtype=dtype)
    if work.splits > 1:
        memory["staged"] = staging(work.config)
    return allocations(memory)


def _ring(work: Work, head_dim: int, dtype: Dtype) -> dict[str, Allocation]:
    """What the kernel allocates for a `Ring`."""
    config = work.config
    shape = config.slots, config.block_kv, head_dim
    return dict(
        smem=plgpu.SMEM(shape, dtype, transforms=tiled(dtype)),
        produced=Barriers(config.slots, work.copies).allocation(),
        consumed=Barriers(config.slots, config.compute_threads).allocation(),
    )


def _block(
    work: Work,
    q: Ref,
    k: Ref,
    v: Ref,
    lengths: Ref,
    *refs: Ref,
    scratch: Scratch,
    k_ring: Ring,
    v_ring: Ring,
) -> None:
    """What each thread of a block does; `refs` are the table, if any, the result, and its lse."""
    config, (*table, out, lse) = work.config, refs
    rings, part = (k_ring, v_ring), Part.here(work, lengths)
    registers = config.memory_registers
    threads = specs.Threads.of("thread", config.compute_threads, None, registers)
    index = lax.axis_index("thread")

    def compute() -> None:
        plgpu.set_max_registers(threads.compute_registers, action="increase")
        DecodeThread.of(work, part, (q, out, lse), scratch, index).run(rings)

    def load() -> None:
        plgpu.set_max_registers(threads.memory_registers, action="decrease")
        memory_thread(work, part, (k, v), rings, *table)

    lax.cond(index == threads.memory_thread, load, compute)
