"""`QueryThread`: the parts that a compute thread of `attention`'s forward kernel is made of.

The model. A thread loads its queries, runs the pipeline, and stores their result (`compute`). The
parts of a step are methods here: the scores of a block of keys, their softmax, and the product of
the probabilities with V. A subclass in `schedules` says in which order a step calls them.

The softmax is *online*: `State` has a running maximum and a running sum of each row. When a step
raises the maximum, what was added up before is multiplied by a factor. In powers of 2 (log2 e is in
the scale), for a step's scores S::

    maximum' = max(maximum, row maximum of S)      factor = exp2(maximum - maximum')
    total' = factor total + row sum of P           P = exp2(S - maximum')
    result' = factor result + P V                  (in the end: result / total)

A row's scores lie in the four lanes of a quad, as an accumulator of `wgmma` has them. So maxima and
sums of rows are made by shuffles within quads. Reductions across warps would share one SMEM scratch
area between all threads; these need none.

The *schedule barrier* passes the turn to use the tensor core. Each compute thread has one. A thread
waits at its own barrier before it queues products. Then it arrives at the barrier of the next
thread in the ring of threads. So the tensor core gets the products of one thread after those of
another, and the softmax of one thread runs beside the products of the others. At the start, the
last thread gives the first one its turn. In the end, the first thread takes the turn that is left,
so that a wait follows every arrival.

Sources: FlashAttention-2 (T. Dao, 2023) for the softmax, FlashAttention-3 (J. Shah et al., 2024)
for turns ("pingpong") and for overlap within a thread.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import tiles
from pipelib.kernels.attention import narrow, powers
from pipelib.kernels.attention.band import LOG2_E, Arrays, Band, Options, Sizes, accumulate, spread
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.order import BlockVisits
from pipelib.kernels.attention.pieces import InPieces, piece_of
from pipelib.kernels.dividing import Scratch
from pipelib.refs import Accumulator, Dtype, Int, Ref, Tree
from pipelib.ring import Allocations

#: The scratch memory that has queries.
Queries = Literal["q", "next_q"]


class State(NamedTuple):
    """What a step hands to the next, for a thread's `rows` of queries.

    Attributes:
      result: the result so far, not yet divided by `total`: float32 [rows, head_dim]. `()` if it is
        elsewhere, in an accumulator.
      maximum: the largest scaled score of each row so far, times log2 e: float32 [rows].
      total: the sum of exponentials of each row so far: float32 [rows].
      p: the last step's probabilities, not yet divided: 16 bits, [rows, block_kv]. `()` if no later
        step needs them.
      progress: how far it is; `()` if this follows from the indices of a step.
    """

    result: Tree
    maximum: jax.Array
    total: jax.Array
    p: Tree
    progress: Tree = ()


class Progress(NamedTuple):
    """How far a thread is, through visits of different numbers of steps.

    Attributes:
      number: of the step, over all visits.
      block: the block of queries of the visit.
    """

    number: jax.Array
    block: jax.Array


class Inputs(NamedTuple):
    """What is loaded for a step.

    Attributes:
      k, v: the blocks of K and V, [block_kv, head_dim], in SMEM.
      k_in, v_in: their produced barriers.
      k_out, v_out: their consumed barriers.
    """

    k: Ref
    v: Ref
    k_in: Ref
    v_in: Ref
    k_out: Ref
    v_out: Ref


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryThread(InPieces):
    """A compute thread of the forward kernel; its subclasses are the schedules.

    Attributes:
      options, sizes: the problem.
      band_of: the steps of a block of queries.
      visits: the places that its block goes through.
      arrays: Q, the result and the log-sum-exp, whole, in GMEM.
      segments: none, or the segments [batch, seq] of queries and of keys, in GMEM.
      sinks: none, or a score for each head of queries, [heads], in GMEM.
      scratch: SMEM and barriers of the block, by the names of `AttentionConfig.memory`; the first
        axis of each is the compute threads. If copies see rows, "q" and "next_q" are both refs.
      allocations: the rings of K and V, and their barriers, as the pipeline allocates them.
      index: the number of the thread in its block, an int32 scalar.
    """

    options: Options[AttentionConfig]
    sizes: Sizes
    band_of: Callable[[Int], Band]
    visits: BlockVisits
    arrays: tuple[Ref, Ref, Ref]
    segments: tuple[Ref, ...]
    sinks: tuple[Ref, ...] = ()
    scratch: Scratch
    allocations: Allocations
    index: jax.Array

    @property
    def config(self) -> AttentionConfig:
        """The configuration of the kernel."""
        return self.options.config

    @property
    def dtype(self) -> Dtype:
        """That of q, k and v."""
        return self.arrays[0].dtype

    @property
    def is_narrow(self) -> bool:
        """Whether it multiplies float8: see `narrow`."""
        return self.dtype.itemsize == 1

    @property
    def scale(self) -> float:
        """What scores are multiplied by: exponentials are powers of 2."""
        return self.options.factor

    def compute(self, pipeline: Callable[[State], State]) -> None:
        """All that the thread does, as the pipeline's `compute_context`."""
        self.load(jnp.int32(0), "q")
        plgpu.barrier_wait(self.mine("loaded"))
        self.load_next(jnp.int32(1))
        state = self.start()
        if self.config.takes_turns:
            is_last = self.index == self.config.compute_threads - 1
            pl.when(is_last)(self.pass_turn)
        state = self.before_steps(state)
        state = pipeline(state)
        pl.when(self.index == 0)(self.take_turn)
        self.store(state, self.visits.count - 1)
        plgpu.wait_smem_to_gmem(0)

    def before_steps(self, state: State) -> State:
        """What a schedule does before the first step of the pipeline."""
        return state

    def body(self, indices: tuple[jax.Array, ...], *refs: Any) -> State:
        """The body of the pipeline, with manual barriers."""
        *inputs, state = refs
        return self.step(indices, Inputs(*inputs), state)

    def step(self, indices: tuple[jax.Array, ...], inputs: Inputs, state: State) -> State:
        """The state after a step, from that of the step before.

        Args:
          indices: of the step in the grid of `visits`.
          inputs: what was loaded for it.
          state: that of the step before.
        """
        raise NotImplementedError

    # Its queries and their result.

    def rows(self, visit: Int) -> tuple[Int, pl.Slice, Int]:
        """The index of its queries in Q: the batch, the rows, the head."""
        batch, head, block = self.visits.place(visit)
        row = block * self.config.block_q + self.index * self.config.rows
        return batch, pl.ds(row, self.config.rows), head

    def mine(self, name: str) -> Ref:
        """This thread's part of the scratch memory of this name, in tiles."""
        field = self.scratch[name]
        if self.sizes.by_rows and name in ("q", "next_q"):
            field = tiles.both(field, True).tiles
        return field.at[self.index]

    def in_rows(self, name: Queries, piece: int | None) -> Ref:
        """This thread's queries as copies see them; of a piece, [rows, columns of a piece]."""
        if piece is None:
            return self.mine(name)
        return tiles.both(self.scratch[name], True).rows.at[self.index].at[piece]

    def load(self, visit: jax.Array, name: Queries) -> None:
        """Starts to load the queries of a visit into `q` or `next_q`."""
        there, loaded = self.arrays[0].at[self.rows(visit)], self.mine("loaded")
        for piece in self.pieces(self.sizes.head_dim):
            here = self.in_rows(name, piece)
            plgpu.copy_gmem_to_smem(self.columns(there, piece), here, loaded)

    def load_next(self, visit: jax.Array) -> None:
        """Starts to load the queries of a later visit into `next_q`, if there is such a visit."""
        if self.visits.are_many:
            pl.when(visit < self.visits.count)(lambda: self.load(visit, "next_q"))

    def take_next(self) -> None:
        """Copies the next queries to `q`: every step reads its queries at one address."""
        plgpu.barrier_wait(self.mine("loaded"))
        to, of = self.mine("q"), self.mine("next_q")
        for piece in self.pieces(self.sizes.head_dim):
            piece_of(to, piece)[...] = piece_of(of, piece)[...]
        plgpu.commit_smem()

    def load_behind_store(self, visit: jax.Array) -> None:
        """Loads the queries of `visit + 2` to `next_q`, once the store of `visit` has read it."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.load_next(visit + 2)

    def start(self) -> State:
        """The state before any key."""
        rows = self.config.rows
        p = jnp.zeros((rows, self.config.block_kv), self.mine("q").dtype)
        result = jnp.full((rows, self.sizes.values), 0.0, jnp.float32)
        maximum = jnp.full((rows,), -jnp.inf, jnp.float32)
        return State(result, maximum, jnp.full((rows,), 0.0, jnp.float32), p)

    def store(self, state: State, visit: Int) -> None:
        """Starts to store the result of a visit."""
        (_, out, lse), here = self.arrays, self.rows(visit)
        free: Queries = "next_q" if self.visits.are_many else "q"  # no product reads it
        staging = self.mine("out" if self.is_narrow else free)
        batch, rows, head = here
        pieces = self.pieces(self.sizes.values)

        def stage(result: jax.Array) -> None:
            for piece in pieces:
                part = self.cut(result, piece)
                piece_of(staging, piece)[...] = part.astype(staging.dtype)

        self.finish(self.with_sink(state, head), stage)
        plgpu.commit_smem()
        for piece in pieces:
            staged = staging if piece is None else self.in_rows(free, piece)
            plgpu.copy_smem_to_gmem(staged, self.columns(out.at[here], piece))
        plgpu.copy_smem_to_gmem(self.mine("lse"), lse.at[batch, head, rows])

    def finish(self, state: State, stage: Callable[[jax.Array], None]) -> None:
        """Gives `stage` the result, float32, and then writes the log-sum-exp to SMEM."""
        is_none = state.total == 0.0
        inverse = 1.0 / jnp.where(is_none, 1.0, state.total)
        stage(scaled(state.result, inverse))
        sums = (state.maximum + jnp.log2(state.total)) * math.log(2.0)
        if self.is_narrow:
            sums -= self.shift * math.log(2.0)
        numbers = self.mine("lse")
        numbers[...] = jnp.where(is_none, -jnp.inf, sums)

    def with_sink(self, state: State, head: Int) -> State:
        """The state after the sink of a head: one more score, whose value is 0."""
        if not self.sinks:
            return state
        sink = self.sinks[0][head] * LOG2_E + (self.shift if self.is_narrow else 0.0)
        maximum = jnp.maximum(state.maximum, sink)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)  # a sink of -inf is none
        shrink = jnp.exp2(state.maximum - finite)
        total = state.total * shrink + jnp.exp2(sink - finite)
        return state._replace(result=scaled(state.result, shrink), maximum=maximum, total=total)

    @property
    def shift(self) -> float:
        """The power of 2 that probabilities of float8 are multiplied by."""
        return narrow.SHIFT

    # The schedule barrier.

    def take_turn(self) -> None:
        """Waits for its turn, if threads take turns."""
        if self.config.takes_turns:
            plgpu.barrier_wait(self.scratch["turns"].at[self.index])

    def pass_turn(self) -> None:
        """Gives the next thread the turn."""
        if self.config.takes_turns:
            following = lax.rem(self.index + 1, jnp.int32(self.config.compute_threads))
            plgpu.barrier_arrive(self.scratch["turns"].at[following])

    # The parts of a step.

    def scores_type(self) -> plgpu.ACC:  # pyright: ignore[reportPrivateImportUsage]
        """The accumulator of a step's scores."""
        return plgpu.ACC((self.config.rows, self.config.block_kv), jnp.float32)  # pyright: ignore[reportPrivateImportUsage]

    def multiply_keys(self, acc: Accumulator, k: Ref) -> None:
        """Queues Q K^T."""
        self.multiply_rows(acc, self.mine("q"), k)

    def multiply_values(self, acc: Accumulator, p: jax.Array | Ref, v: Ref) -> None:
        """Queues P V, as `value_products` products; V of float8 comes transposed."""
        v = v.transpose((1, 0)) if self.is_narrow else v
        self.multiply_columns(acc, p, v, self.sizes.values)

    @property
    def value_products(self) -> int:
        """How many products make P V."""
        return len(self.pieces(self.sizes.values))

    def scores(self, k: Ref, meanwhile: Callable[[], None] = lambda: None) -> jax.Array:
        """Q K^T of a step. The turn passes when it is queued; then comes `meanwhile`."""

        def multiply(acc: Accumulator) -> jax.Array:
            self.multiply_keys(acc, k)
            self.pass_turn()
            meanwhile()
            return self.read(acc)

        return pl.run_scoped(multiply, self.scores_type())

    def read(self, scores: Accumulator, running: int = 0) -> jax.Array:
        """The scores of a step once they are made, capped; so many later products may still run."""
        made = plgpu.wgmma_accumulator_load(scores, wait_n=running)
        if self.options.soft_cap is None:
            return made
        # Or ptxas moves a tanh before the wait of a masked step, and waits for all products there.
        return self.options.capped(lax.optimization_barrier(made))  # pyright: ignore[reportUnknownMemberType]

    def masked(self, scores: jax.Array, block: Int, step: Int) -> jax.Array:
        """The scores of a step of a block of queries, masked if its columns are not all seen."""
        return self.band_of(block).masked(scores, step, *self.seen_from(block))

    def seen_from(self, block: Int) -> tuple[Int, tuple[Ref, ...]]:
        """The thread's first query of a block, and its segments: a mask depends on both."""
        if self.visits.vary:
            return block * self.config.block_q + self.index * self.config.rows, ()
        batch, rows, _ = self.rows(jnp.int32(0))  # every visit sees the same
        # No constant 0: JAX 0.11.2 does not lower one that a branch hands to `run_scoped`.
        segments = tuple(ids.at[lax.mul(batch, jnp.int32(1))] for ids in self.segments)
        return rows.start, segments

    def block_of(self, visit: Int, later: int = 0) -> Int:
        """The block of queries of a visit, or of one later; 0 if all visits see the same."""
        return self.visits.place(visit + later)[2] if self.visits.vary else 0

    def softmax(self, scores: jax.Array, state: State) -> tuple[State, jax.Array]:
        """The softmax of a step.

        Args:
          scores: masked, float32 [rows, block_kv].
          state: the state before. If it has a result, the result is multiplied by the factor. This
            comes before the exponentials: they keep one unit busy, and the others are idle then.

        Returns:
          The next state, whose probabilities are not rounded if the configuration `rounds_late`;
          and the factor for results from before this step, [rows].
        """
        maximum = jnp.maximum(state.maximum, scores.max(axis=1) * self.scale)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)  # -inf less -inf would be NaN
        shrink = jnp.exp2(state.maximum - finite)
        result = jax.tree.map(lambda result: scaled(result, shrink), state.result)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
        p = self.exponentials(scores, finite)
        total = self.added(state.total, shrink, p)
        p = p if self.config.rounds_late else self.rounded(p)
        return State(result, maximum, total, p), shrink

    def exponentials(self, scores: jax.Array, maximum: jax.Array) -> jax.Array:
        """exp2 of scaled scores [rows, block_kv] less a maximum of each row: float32."""
        maximum = maximum - self.shift if self.is_narrow else maximum
        exponents = scores * self.scale - spread(maximum, scores.shape, 0)
        capped = self.options.soft_cap is not None and self.sizes.head_dim == powers.HEAD_DIM
        make = powers.powers_of_two if capped and self.config.in_place else jnp.exp2
        return make(exponents)

    def added(self, total: jax.Array, shrink: jax.Array, p: jax.Array) -> jax.Array:
        """The sums of rows, [rows], with the exponentials of a step [rows, block_kv] added."""
        return total * shrink + p.sum(axis=1)

    def rounded(self, p: jax.Array) -> jax.Array:
        """Probabilities in the dtype of q, in registers as `wgmma` reads them.

        So they are carried to the next step. Those of 8 bits in an accumulator's layout would be
        taken apart into bytes where a loop or a branch begins or ends.
        """
        p = p.astype(self.mine("q").dtype)
        return narrow.as_operand(p) if self.is_narrow and not self.config.through_smem else p

    def operand(self, p: jax.Array) -> jax.Array | Ref:
        """The probabilities, where `wgmma` reads them: in registers, or in SMEM."""
        if not self.config.through_smem:
            return p
        staging = self.mine("p")
        staging[...] = p
        plgpu.commit_smem()
        return staging

    def accumulate(
        self, result: jax.Array, like: Arrays, multiply: Callable[[Accumulator], Arrays]
    ) -> tuple[jax.Array, Arrays]:
        """The result after `multiply` has added to it, and the arrays that `multiply` returned.

        `like` are arrays of the shapes and dtypes of these.
        """
        (result,), values = accumulate(self.config.in_place, (result,), like, multiply)
        return result, values


def scaled(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Each row times its factor."""
    return rows * spread(factors, rows.shape, 0)
