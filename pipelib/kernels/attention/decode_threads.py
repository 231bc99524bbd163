"""The threads of `decode_attention`'s kernel: what each of them does with its part of the keys.

The model. `Work` is the problem, `Part` what a block does of it: a range of steps over the keys of
one sequence. `memory_thread` and `DecodeThread` are the two roles; `decode_kernel` says how they
work together. They share two rings, of K and of V, whose slot s mod S has step s.

A **page** is a piece of the cache that holds consecutive keys of one sequence. A step whose keys
lie in several pages is loaded by a copy of each, and all arrive at one barrier. Without a table of
pages, a sequence is one page. Keys past the end of a sequence are never looked up in the table: the
last page with keys is loaded in their place.

All of a compute thread's arithmetic is that of `attention`'s schedule "plain". Here are its masks,
and where its results go. Query i of a sequence of L keys sees key j if j <= L - q_seq + i. Only
steps in which some row does not see all keys are masked.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.band import Band, Options, Sizes, numbers_along
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.order import Visits
from pipelib.kernels.attention.queries import Inputs, Scratch, State
from pipelib.kernels.attention.schedules import Plain
from pipelib.refs import Index, Int, Ref
from pipelib.ring import Steps

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


class Staged(Scratch):
    """`Scratch` of the compute threads, and:

    Attributes:
      staged: some columns of a partial result, to be stored: float32 [threads, rows, columns].
    """

    staged: Ref


class Ring(TypedDict):
    """The slots of K, or of V, and their barriers.

    Attributes:
      smem: [slots, keys of a step, head_dim].
      produced: a barrier of each slot, at which each copy of a step arrives.
      consumed: a barrier of each slot, at which each compute thread arrives.
    """

    smem: Ref
    produced: Ref
    consumed: Ref


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
      scratch: as `QueryThread` has it, with what partial results are staged in.
    """

    work: Work
    part: Part
    scratch: Staged

    @classmethod
    def of(
        cls,
        work: Work,
        part: Part,
        arrays: tuple[Ref, Ref, Ref],
        scratch: Staged,
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
            visits=Visits(1, lambda visit: (part.batch, part.head, part.row)),
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
        return lax.cond(is_edge, mask, lambda scores: scores, scores)

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
