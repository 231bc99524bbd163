"""`Optimistic`: "overlap" with turns, less the maximum of each step that needs none.

The model. A softmax is the same whatever is subtracted from all scores of a row, as long as no
exponential is too large. So a step need not know its own maximum. It makes its exponentials with
the maximum m of the steps before, adds them up, as any softmax does, and asks the sums whether that
went well::

    p = exp2(S - m)        a lane's sums of p:   are all at most `LIMIT`?
        yes    total = total + sums, result = result + P V: no maximum, no factor
        no     S is made again; then the step is one of "overlap", with its own maximum

No p is negative, so none is larger than the sum that it is in. A p that is infinite or not a number
makes a sum that is not at most `LIMIT`. So it does where a row has seen no key yet, and its m is
minus infinity. A p near 2^15 has as many digits as one near 1, in the result and in the sum alike.

What a step of 128 keys saves, with heads of 128, for each lane: 64 maxima, the products of 64
numbers of the result and a factor, and the shuffles between lanes that a maximum needs. What it
costs: K stays in its slot until the sums are there, and the lanes of a thread must agree, since
they multiply together.

The sums are known before P V is done, so the lanes agree in its shadow. Masked steps, and the first
step of a visit, make their maxima, as in "overlap". The inputs of a step are waited for before its
turn. So no branch stands between the scores and the end of P V, and ptxas puts all of that in one
order. The totals are those of lanes, of the columns that they have, and are added up in the end.

Source of the idea that a factor is needed only where a maximum has grown much: FlashAttention-4
(2025), which makes the maximum of every step.
"""

# What it asks of JAX has no types.
# pyright: basic

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pipelib.kernels.attention import narrow
from pipelib.kernels.attention.band import Arrays, Mask, as_they_are, spread
from pipelib.kernels.attention.queries import State
from pipelib.kernels.attention.schedules import Now, Overlap
from pipelib.refs import Accumulator, Int

#: What the sum of a lane's exponentials may be. A p of float16 is less than 65,504, and float32 has
#: room for sums of so many of them, times values, over any number of keys.
LIMIT = 2.0**15
#: Columns of the pieces in which exponentials are added up: a lane has two of each row.
PIECE = 8
#: The first of the named barriers at which lanes agree, one for each thread. PTX has 16, from 0;
#: Mosaic GPU takes the first ones, one for each thread and one for all.
_FIRST_BARRIER = 8


class Optimistic(Overlap):
    """As "overlap" with turns; a step makes a maximum only if its sums say that it must."""

    def start(self) -> State:
        """The state before any key; its totals are those of lanes, [rows, `PIECE`]."""
        shape = self.config.rows, PIECE
        return super().start()._replace(total=jnp.full(shape, 0.0, jnp.float32))

    def added(self, total: jax.Array, shrink: jax.Array, p: jax.Array) -> jax.Array:
        """The totals of lanes, with the exponentials of a step added."""
        return total * spread(shrink, total.shape, 0) + _sums(p)

    def of_rows(self, state: State) -> jax.Array:
        """The maxima, [rows]: the totals of lanes have more numbers."""
        return state.maximum

    def store(self, state: State, visit: Int) -> None:
        """Starts to store the result of a visit; the totals of lanes become those of rows."""
        super().store(state._replace(total=state.total.sum(axis=1)), visit)

    @property
    def shift(self) -> float:
        """The power of 2 that float8's probabilities are multiplied by, as a lane's sums allow."""
        return narrow.OPTIMISTIC_SHIFT

    def wait_for_inputs(self, number: jax.Array) -> None:
        """Nothing: a step waits before its turn."""

    def last(self, now: Now, state: State) -> State:
        """The last step of the block, once its V has landed: P V, and no more scores."""
        plgpu.barrier_wait(now.v_in)
        return super().last(now, state)

    def one_step(self, now: Now, mask: Mask, state: State) -> State:
        """A step whose next scores have this mask."""
        if mask is as_they_are:
            return self.without_maximum(now, state)
        return super().one_step(now, mask, state)

    def products(
        self, now: Now, mask: Mask, before: Callable[[], State], state: State
    ) -> tuple[jax.Array, State, jax.Array]:
        """Both products and the softmax, as `Overlap` has them, once their inputs have landed."""
        self._wait_for_inputs_of(now)
        return super().products(now, mask, before, state)

    def without_maximum(self, now: Now, state: State) -> State:
        """Both products, and the next exponentials with the maximum that is there."""
        self._wait_for_inputs_of(now)
        p = self.begin(now)

        def multiply_both(result: Accumulator) -> Arrays:
            p_ahead = self.exponentials(self.queue(now, p, result), state.maximum)
            sums = _sums(p_ahead)
            return p_ahead, sums, self._are_small(sums)

        like = jnp.zeros((self.config.rows, self.config.block_kv), jnp.float32)
        likes = like, jnp.zeros(state.total.shape, jnp.float32), jnp.int32(0)
        result, (p_ahead, sums, are_small) = self.accumulate(state.result, likes, multiply_both)
        plgpu.barrier_arrive(now.v_out)
        p_ahead = self.rounded(lax.optimization_barrier(p_ahead))  # P V read the registers of p

        def go_on(result: jax.Array, p: jax.Array) -> State:
            return State(result, state.maximum, state.total + sums, p)

        def again(result: jax.Array, p: jax.Array) -> State:
            return self._with_maximum(now, state._replace(result=result))

        found = lax.cond(are_small != 0, go_on, again, result, p_ahead)
        plgpu.barrier_arrive(now.k_out)
        return found

    def _with_maximum(self, now: Now, state: State) -> State:
        """The state after the next scores, which are made again; P V has been added."""

        def multiply(scores: Accumulator) -> jax.Array:
            self.multiply_keys(scores, now.k)
            return self.read(scores)

        state, _ = self.softmax(pl.run_scoped(multiply, self.scores_type()), state)
        return state._replace(p=self.rounded(state.p)) if self.config.rounds_late else state

    def _wait_for_inputs_of(self, now: Now) -> None:
        """Waits for V of a step and K of the next."""
        plgpu.barrier_wait(now.k_in)
        plgpu.barrier_wait(now.v_in)

    def _are_small(self, sums: jax.Array) -> jax.Array:
        """Whether all sums of this thread are at most `LIMIT`, of float8 at most `narrow.LARGEST`.

        That is an int32 which is not 0.
        """
        if self.is_narrow:
            sums = sums * (LIMIT / narrow.LARGEST)
        if self.config.in_place:
            return _agree(sums, self.index)
        return (jnp.max(sums) <= LIMIT).astype(jnp.int32)  # JAX's interpreter has no device code


def _sums(p: jax.Array) -> jax.Array:
    """The sums of exponentials [rows, block_kv] over a lane's columns, [rows, `PIECE`]."""
    pieces = (p[:, i : i + PIECE] for i in range(0, p.shape[1], PIECE))
    return functools.reduce(jnp.add, pieces)


def _agree(sums: jax.Array, thread: jax.Array) -> jax.Array:
    """Whether all lanes of a thread have sums of at most `LIMIT`, an int32: 1 or 0.

    The lanes meet at a named barrier, which combines what they bring. Source: PTX ISA,
    `barrier.cta.red`.
    """
    splat = plgpu.Layout.WG_SPLAT
    one = plgpu.ShapeDtypeStruct((), jnp.int32, layout=splat)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA, splat), return_type=one)
    def agree(_, sums, number):
        f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
        numbers = [
            vector.extract(pair, dynamic_position=[], static_position=ir.DenseI64ArrayAttr.get([i]))
            for pair in sums.registers.flat
            for i in range(2)
        ]
        largest = functools.reduce(arith.maximumf, numbers)  # not a number, if one is not
        limit = arith.constant(f32, ir.FloatAttr.get(f32, LIMIT))
        is_small = arith.extui(i32, arith.cmpf(arith.CmpFPredicate.OLE, largest, limit))
        ptx = (
            "{ .reg .pred p; setp.ne.b32 p, $1, 0;"
            f" barrier.cta.red.and.pred p, $2, {mgpu.utils.WARPGROUP_SIZE}, p;"
            " selp.b32 $0, 1, 0, p; }"
        )
        all_are = mgpu.utils.inline_ptx(
            ptx,
            is_small,
            number.registers[()],
            result_types=i32,
            has_side_effects=True,
            convergent=True,
        )
        return mgpu.FragmentedArray.splat(all_are, (), is_signed=True)

    return agree(sums, thread + _FIRST_BARRIER)  # pyright: ignore[reportCallIssue]
