"""The schedules of `attention`'s forward kernel: the order of the parts of a step, a class each.

The model. A step has two products, QK = Q K[s]^T and PV = p V[s], and the softmax between them. The
tensor core makes products while other units make a softmax, of the same thread or of another::

    plain      QK[s] | softmax[s] | PV[s] | QK[s+1] ...
    overlap    QK[s+1] PV[s] queued | softmax[s+1], once QK[s+1] is done, beside PV[s] | ...
    pingpong   PV[s] QK[s+1] queued | softmax[s+1], once both are done | ...
               and a thread has the turn while it queues the two
    optimistic as overlap, with turns, and most steps make no maximum (`optimistic`)

All but "plain" have K one step *ahead* of V: step s of the pipeline makes the scores of step s + 1.
The first scores are made before the pipeline begins, from the ring that the pipeline was given. A
thread waits for a step's inputs while the previous step's products run, so a ring needs two slots.

In a persistent kernel the last step of a visit is like any other. Its PV runs beside the QK of the
next visit's first step. Three things happen between them:

1. The next queries, which were loaded to `next_q`, are copied to `q`.
2. The visit's result is staged in `next_q`, and its store runs beside the next softmax.
3. The queries of the visit after the next are loaded to `next_q`.

The first factor of a product may be in registers as long as nothing writes these registers while
the product runs: else ptxas waits for each product (its warning C7513). "pingpong" makes p once its
products are done. "overlap" makes the next p beside PV, which reads the p before it. So either p
goes through SMEM, or the next p stays in float32, in registers of its own, and is rounded once PV
is done.

Source of "pingpong" and "overlap": FlashAttention-3 (J. Shah et al., 2024).
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.band import Arrays, Mask
from pipelib.kernels.attention.queries import Inputs, Progress, QueryThread, State, scaled
from pipelib.refs import Accumulator, Int, Ref, Tree
from pipelib.tiles import both


class Plain(QueryThread):
    """One thing after the other."""

    def start(self) -> State:
        """The state before any key; it has no probabilities, since no later step needs them."""
        return super().start()._replace(p=())

    def step(self, indices: tuple[jax.Array, ...], inputs: Inputs, state: State) -> State:
        """Scores, softmax, result."""
        k, v, k_in, v_in, k_out, v_out = inputs
        visit, step = self.visits.split(indices)
        plgpu.barrier_wait(k_in)
        scores = self.scores(k)
        plgpu.barrier_arrive(k_out)
        state, _ = self.softmax(self.masked(scores, self.block_of(visit), step), state)
        p = self.operand(state.p)
        plgpu.barrier_wait(v_in)

        def multiply(acc: Accumulator) -> tuple[()]:
            self.multiply_values(acc, p, v)
            return ()

        result, _ = self.accumulate(state.result, (), multiply)
        plgpu.barrier_arrive(v_out)
        return state._replace(result=result, p=())


class Now(NamedTuple):
    """What a step ahead works on: the probabilities and V of its own step, and K of the next.

    Attributes:
      visit, step: its own step.
      steps: how many steps the visit has.
      block: the block of queries of the visit; 0 if all visits see the same.
      number: the number of the next step, over all visits.
      p: the probabilities of its own step.
      v, v_in, v_out: V of its own step, the produced and the consumed barrier.
      k, k_in, k_out: K of the next step, the produced and the consumed barrier.
    """

    visit: jax.Array
    step: jax.Array
    steps: Int
    block: Int
    number: jax.Array
    p: Tree
    v: Ref
    v_in: Ref
    v_out: Ref
    k: Ref
    k_in: Ref
    k_out: Ref


class Ahead(QueryThread):
    """The schedules whose K is one step ahead of V; subclasses put the products in order."""

    def before_steps(self, state: State) -> State:
        """The first scores and their softmax."""
        first = jnp.int32(0)
        k, k_in, k_out = self.slot("k", first)
        plgpu.barrier_wait(k_in)
        self.take_turn()
        scores = self.scores(k, lambda: self.wait_for_inputs(first))
        plgpu.barrier_arrive(k_out)
        block = self.block_of(first)
        state, _ = self.softmax(self.masked(scores, block, jnp.int32(0)), state)
        state = state._replace(p=self.rounded(state.p)) if self.config.rounds_late else state
        return self.at(state, first, block)

    def at(self, state: State, number: Int, block: Int) -> State:
        """The state before the step of this number, in a visit to this block."""
        if not self.visits.vary:
            return state
        return state._replace(progress=Progress(jnp.asarray(number), jnp.asarray(block)))

    def step(self, indices: tuple[jax.Array, ...], inputs: Inputs, state: State) -> State:
        """P V of this step, and the probabilities of the next step, perhaps of the next visit."""
        visit, step = self.visits.split(indices)
        if self.visits.vary:
            steps, (number, block) = indices[-1], state.progress
            number, state = number + 1, state._replace(progress=())
        else:
            block, steps = 0, self.band_of(0).steps
            number = visit * steps + step + 1
        own = inputs.v, inputs.v_in, inputs.v_out
        now = Now(visit, step, steps, block, number, state.p, *own, *self.slot("k", number))

        def go_on(state: State) -> State:
            return self.at(self.same_visit(now, state), number, block)

        last_step = self.last_of_visit if self.visits.are_many else self.last
        end = functools.partial(last_step, now)
        return lax.cond(step + 1 < steps, go_on, end, state)

    def same_visit(self, now: Now, state: State) -> State:
        """A step that another step of the visit follows."""
        raise NotImplementedError

    def next_visit(self, now: Now, state: State, following: Int) -> State:
        """The last step of a visit that a visit to the block `following` follows."""
        raise NotImplementedError

    def last_of_visit(self, now: Now, state: State) -> State:
        """The last step of a visit: it takes the next queries, if there are any."""

        def go_on(state: State) -> State:
            self.take_next()
            following = self.block_of(now.visit, later=1)
            return self.at(self.next_visit(now, state, following), now.number, following)

        def end(state: State) -> State:
            return self.at(self.last(now, state), now.number, now.block)

        return lax.cond(now.visit + 1 < self.visits.count, go_on, end, state)

    def last(self, now: Now, state: State) -> State:
        """The last step of the block: P V, and no more scores."""
        p = self.begin(now)

        def multiply(result: Accumulator) -> tuple[()]:
            self.multiply_values(result, p, now.v)
            self.pass_turn()
            return ()

        result, _ = self.accumulate(state.result, (), multiply)
        plgpu.barrier_arrive(now.v_out)
        return state._replace(result=result)

    def begin(self, now: Now) -> jax.Array | Ref:
        """Takes the turn; returns the probabilities, where `wgmma` reads them."""
        p = self.operand(now.p)
        self.take_turn()
        return p

    def slot(self, of: Literal["k", "v"], number: jax.Array) -> tuple[Ref, Ref, Ref]:
        """K or V of a step, by its number over all visits; its produced and consumed barriers."""
        rings = (self.allocations[name] for name in ("smem", "produced", "consumed"))
        smem, produced, consumed = (ring["kv".index(of)] for ring in rings)
        smem = both(smem, bool(self.sizes.by_rows)).tiles
        slot = lax.rem(number, jnp.int32(smem.shape[0]))
        return smem.at[slot], produced.at[slot], consumed.at[slot]

    def wait_for_inputs(self, number: jax.Array) -> None:
        """Waits for the inputs of a step: its V, and K of the next step, if there is one.

        It is called while the products of the previous step run, so the wait costs no time.
        """
        plgpu.barrier_wait(self.slot("v", number)[1])

        @pl.when(number + 1 < self.band_of(0).steps * self.visits.count)
        def wait_for_keys() -> None:
            plgpu.barrier_wait(self.slot("k", number + 1)[1])


class Pingpong(Ahead):
    """Queues P V and the next Q K^T in its turn; its softmax runs beside others' products."""

    def same_visit(self, now: Now, state: State) -> State:
        """Both products, then the softmax."""
        state, scores = self.products(now, state)
        return self.softmax(self.masked(scores, now.block, now.step + 1), state)[0]

    def next_visit(self, now: Now, state: State, following: Int) -> State:
        """Both products, then the store, beside the softmax of the next queries."""
        state, scores = self.products(now, state)
        scores = self.masked(scores, following, jnp.int32(0))
        self.store(state, now.visit)
        state, _ = self.softmax(scores, self.start())
        self.load_behind_store(now.visit)
        return state

    def products(self, now: Now, state: State) -> tuple[State, jax.Array]:
        """Both products: the state with P V added, and the next scores."""
        p = self.begin(now)

        def multiply_both(result: Accumulator) -> tuple[jax.Array]:
            def multiply(scores: Accumulator) -> jax.Array:
                self.multiply_values(result, p, now.v)
                self.multiply_keys(scores, now.k)
                self.pass_turn()
                self.wait_for_inputs(now.number)
                return self.read(scores)

            return (pl.run_scoped(multiply, self.scores_type()),)

        like = jnp.zeros((self.config.rows, self.config.block_kv), jnp.float32)
        result, (scores,) = self.accumulate(state.result, (like,), multiply_both)
        plgpu.barrier_arrive(now.k_out)
        plgpu.barrier_arrive(now.v_out)
        return state._replace(result=result), scores


class Overlap(Ahead):
    """Queues the next Q K^T and then P V; its softmax runs beside its own P V."""

    def same_visit(self, now: Now, state: State) -> State:
        """The next softmax runs beside P V; then its factor multiplies the result."""
        one_step = functools.partial(self.one_step, now)
        ahead, band = now.step + 1, self.band_of(now.block)
        return band.choose(ahead, *self.seen_from(now.block), one_step, state)

    def one_step(self, now: Now, mask: Mask, state: State) -> State:
        """A step whose next scores have this mask."""
        result, ahead, shrink = self.products(now, mask, lambda: state, state)
        return ahead._replace(result=scaled(result, shrink))

    def next_visit(self, now: Now, state: State, following: Int) -> State:
        """The softmax of the next queries beside P V of the last ones; then the store."""

        def one_step(mask: Mask, state: State) -> State:
            result, ahead, _ = self.products(now, mask, self.start, state)
            self.store(state._replace(result=result), now.visit)
            self.load_behind_store(now.visit)
            return ahead._replace(result=self.start().result)

        # No constant 0: JAX 0.11.2 does not lower one that a branch hands to `run_scoped`.
        first = now.step + 1 - now.steps
        band, seen_from = self.band_of(following), self.seen_from(following)
        return band.choose(first, *seen_from, one_step, state)

    def products(
        self,
        now: Now,
        mask: Mask,
        before: Callable[[], State],
        state: State,
    ) -> tuple[jax.Array, State, jax.Array]:
        """Both products, and the softmax of the next scores.

        Args:
          now: the step.
          mask: the mask of the next scores.
          before: makes the state that the next scores are added to.
          state: the state of this step, whose result P V is added to.

        Returns:
          The result with P V added; the state after the next scores, without a result; the factor
          of the next softmax for results from before it.
        """
        p = self.begin(now)

        def multiply_both(result: Accumulator) -> Arrays:
            scores = self.queue(now, p, result)
            plgpu.barrier_arrive(now.k_out)
            ahead, shrink = self.softmax(mask(scores), before()._replace(result=()))
            self.wait_for_inputs(now.number)
            return ahead.maximum, ahead.total, ahead.p, shrink

        late = self.config.rounds_late
        p_like = jnp.zeros(state.p.shape, jnp.float32) if late else state.p
        like = state.maximum, state.total, p_like, self.of_rows(state)
        result, (maximum, total, p, shrink) = self.accumulate(state.result, like, multiply_both)
        plgpu.barrier_arrive(now.v_out)
        if late:  # the barrier keeps the rounding behind the wait for P V, which reads the p before
            p = self.rounded(lax.optimization_barrier(p))  # pyright: ignore[reportUnknownMemberType]
        return result, State((), maximum, total, p), shrink

    def of_rows(self, state: State) -> jax.Array:
        """Some array with a number for each row, [rows], as the factors have."""
        return state.total

    def queue(self, now: Now, p: jax.Array | Ref, result: Accumulator) -> jax.Array:
        """Queues both products and passes the turn; the next scores, while P V runs."""

        def multiply(scores: Accumulator) -> jax.Array:
            self.multiply_keys(scores, now.k)
            self.multiply_values(result, p, now.v)
            self.pass_turn()
            return self.read(scores, running=self.value_products)

        return pl.run_scoped(multiply, self.scores_type())
