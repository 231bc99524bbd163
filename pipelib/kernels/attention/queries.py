"""`QueryThread`: the parts that a compute thread of `attention`'s forward kernel is made of.

The model. A thread goes through its queries: it loads them, runs the pipeline, and stores their
result. `schedules` puts the parts of a step in order: the scores of a block of keys, their softmax,
and the product of the probabilities with V.

Maxima and sums of rows are made within quads of lanes (the layout of a `wgmma`'s accumulator), by
shuffles. Reductions across warps would share one SMEM scratch area between all threads; these need
none.

The *schedule barrier* is the turn to use the tensor core: one barrier for each compute thread. A
thread waits at its own barrier before it queues products, and then arrives at the barrier of its
successor in the ring of threads. So the tensor core gets the products of one thread after the
other's, and the softmax of one runs beside the products of the others. The last thread gives the
first one its first turn. The first thread takes the turn that is left in the end, so that each
arrival is waited for.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.band import Band, Options, Sizes, accumulate, spread
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.order import Visits


class State(NamedTuple):
    """A thread's rows: the result so far, maxima, sums, and the last step's probabilities."""

    result: Any
    maximum: Any
    total: Any
    p: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryThread:
    """A compute thread of the forward kernel; its subclasses are the schedules.

    Attributes:
      options, sizes: the problem.
      band: the steps of its block.
      visits: the places that its block goes through.
      arrays: Q, the result and the log-sum-exp, in GMEM.
      segments: none, or the segments of queries and keys, in GMEM.
      scratch: SMEM and barriers of the block.
      allocations: the rings of K and V.
      index: which compute thread of the block it is.
    """

    options: Options
    sizes: Sizes
    band: Band
    visits: Visits
    arrays: tuple[Any, Any, Any]
    segments: tuple[Any, ...]
    scratch: dict[str, Any]
    allocations: dict[str, Any]
    index: Any

    @property
    def config(self) -> AttentionConfig:
        """The configuration of the kernel."""
        return self.options.config

    def compute(self, pipeline: Callable[[State], State]) -> None:
        """All that the thread does: it loads its queries, runs the pipeline, stores the result."""
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

    def step(
        self,
        indices: tuple[Any, ...],
        k: Any,
        v: Any,
        k_in: Any,
        v_in: Any,
        k_out: Any,
        v_out: Any,
        state: State,
    ) -> State:
        """The body of the pipeline, with manual barriers."""
        raise NotImplementedError

    # Its queries and their result.

    def rows(self, visit: Any) -> tuple[Any, Any, Any]:
        """Its queries: the batch, which of the sequence, the head."""
        batch, head, block = self.visits.place(visit)
        row = block * self.config.block_q + self.index * self.config.rows
        return batch, pl.ds(row, self.config.rows), head

    def mine(self, name: str) -> Any:
        """Its part of some scratch."""
        return self.scratch[name].at[self.index]

    def load(self, visit: Any, name: str) -> None:
        """Starts to load the queries of a visit into some scratch."""
        rows = self.arrays[0].at[self.rows(visit)]
        plgpu.copy_gmem_to_smem(rows, self.mine(name), self.mine("loaded"))

    def load_next(self, visit: Any) -> None:
        """Loads the queries of a visit that is to come, if there is one."""
        if self.visits.are_many:
            pl.when(visit < self.visits.count)(lambda: self.load(visit, "next_q"))

    def take_next(self) -> None:
        """Copies the next queries to `q`, so that every step finds its queries at one address."""
        plgpu.barrier_wait(self.mine("loaded"))
        self.mine("q")[...] = self.mine("next_q")[...]
        plgpu.commit_smem()

    def load_behind_store(self, visit: Any) -> None:
        """Loads the queries after the next ones, to where the result of `visit` is stored from."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.load_next(visit + 2)

    def start(self) -> State:
        """The state before any key."""
        rows, full = self.config.rows, lambda x, *shape: jnp.full(shape, x, jnp.float32)
        p = jnp.zeros((rows, self.config.block_kv), self.scratch["q"].dtype)
        result, maximum = full(0.0, rows, self.sizes.head_dim), full(-jnp.inf, rows)
        return State(result, maximum, full(0.0, rows), p)

    def store(self, state: State, visit: Any) -> None:
        """Starts to store the result of a visit."""
        (_, out, lse), here = self.arrays, self.rows(visit)
        staging = self.mine("next_q" if self.visits.are_many else "q")  # no product reads it
        batch, rows, head = here
        is_none = state.total == 0.0
        inverse = 1.0 / jnp.where(is_none, 1.0, state.total)
        staging[...] = scaled(state.result, inverse).astype(staging.dtype)
        sums = (state.maximum + jnp.log2(state.total)) * math.log(2.0)
        numbers = self.mine("lse")
        numbers[...] = jnp.where(is_none, -jnp.inf, sums)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staging, out.at[here])
        plgpu.copy_smem_to_gmem(numbers, lse.at[batch, head, rows])

    # The schedule barrier.

    def take_turn(self) -> None:
        """Waits for its turn, if threads take turns."""
        if self.config.takes_turns:
            plgpu.barrier_wait(self.scratch["turns"].at[self.index])

    def pass_turn(self) -> None:
        """Gives its successor the turn."""
        if self.config.takes_turns:
            following = lax.rem(self.index + 1, jnp.int32(self.config.compute_threads))
            plgpu.barrier_arrive(self.scratch["turns"].at[following])

    # The parts of a step.

    def scores_type(self) -> Any:
        """The accumulator of a step's scores."""
        return plgpu.ACC((self.config.rows, self.config.block_kv), jnp.float32)

    def multiply_keys(self, acc: Any, k: Any) -> None:
        """Queues Q K^T."""
        plgpu.wgmma(acc, self.mine("q"), k.transpose((1, 0)))

    def scores(self, k: Any, meanwhile: Callable[[], None] = lambda: None) -> jax.Array:
        """Q K^T of a step. The turn passes when it is queued; then comes `meanwhile`."""

        def multiply(acc: Any) -> jax.Array:
            self.multiply_keys(acc, k)
            self.pass_turn()
            meanwhile()
            return acc[...]

        return pl.run_scoped(multiply, self.scores_type())

    def masked(self, scores: jax.Array, step: Any) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, step, *self.seen_from())

    def seen_from(self) -> tuple[Any, tuple[Any, ...]]:
        """What a mask depends on: the first of its queries, and segments."""
        batch, rows, _ = self.rows(jnp.int32(0))
        return rows.start, tuple(ids.at[batch] for ids in self.segments)

    def softmax(self, scores: jax.Array, state: State) -> tuple[State, jax.Array]:
        """Adds the scores of a step; returns also the factor for results from before this step.

        A result that is in the state is multiplied by it. That comes before the exponentials, which
        keep one unit busy and leave the others idle for it. `()` stands for a result elsewhere.
        """
        scale = self.options.scale * math.log2(math.e)
        maximum = jnp.maximum(state.maximum, scores.max(axis=1) * scale)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)  # -inf less -inf would be NaN
        shrink = jnp.exp2(state.maximum - finite)
        result = jax.tree.map(lambda result: scaled(result, shrink), state.result)
        p = jnp.exp2(scores * scale - spread(finite, scores.shape, 0))
        total = state.total * shrink + p.sum(axis=1)
        return State(result, maximum, total, p.astype(self.scratch["q"].dtype)), shrink

    def operand(self, p: jax.Array) -> Any:
        """The probabilities, where `wgmma` reads them."""
        if not self.config.through_smem:
            return p
        staging = self.mine("p")
        staging[...] = p
        plgpu.commit_smem()
        return staging

    def accumulate(
        self, result: jax.Array, like: tuple[Any, ...], multiply: Callable[[Any], Any]
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """The result plus what `multiply(accumulator)` adds, and what it returns (as `like`)."""
        (result,), values = accumulate(self.config.in_place, (result,), like, multiply)
        return result, values


def scaled(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Each row times its factor."""
    return rows * spread(factors, rows.shape, 0)
