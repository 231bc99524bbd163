"""`IDEAS`: orders within a step of attention that the package does not have, and what was expected.

The model. The ladder's schedule "both", with probabilities in registers, makes all of a softmax
beside its own product P V, waits for that product, and then rounds and multiplies. By the account
of its cycles (`benchmarks.accounts`) a thread's softmax and what follows it take two thirds of a
step, and the tensor core rests for a quarter of it. An *idea* changes the order of this work::

    the turn | Q K[s+1], P V[s] | the turn passes | wait for Q K
    maximum, some of the exponentials | wait for inputs | wait for P V
    the other exponentials, sums, rounding, the result times the factor

Between two branches ptxas orders instructions as it likes. The branch in which a thread waits for
inputs, and a value that P V has made (`_behind`), keep the two parts apart.

"lazy" changes the work, too: the result is multiplied only if the maximum of one of the warp's rows
has grown by more than `GROWTH`, in powers of 2. Until then the old maximum serves as well, since
the numerator and the denominator have the same. Source: FlashAttention-4 (2025).

"unchecked" is the package's "optimistic" that never asks the sums, so it is wrong where a maximum
grows too far. It says what the question costs.

They run on a GPU only, as JAX's interpreter has neither factors in registers nor device code.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pallascope.machine import THREAD_LANES
from pipelib.kernels.attention.band import Arrays, Mask
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.optimistic import Optimistic
from pipelib.kernels.attention.queries import QueryThread, State, scaled, spread
from pipelib.kernels.attention.schedules import Now, Overlap
from pipelib.refs import Accumulator
from pipelib_book.attention_forms import RungConfig

#: The schedules of `Late` and `Unchecked`.
_LATE, _UNCHECKED = "late", "unchecked"
#: By how much the maximum of a row grows before "lazy" multiplies: p is at most 256 then.
GROWTH = 8.0
#: Columns of the pieces in which rows are folded: a lane has two of them, so a row has two chains.
_PIECE = 8
#: The first named barrier of turns, behind those of Mosaic GPU; PTX has 16.
_FIRST_BARRIER = 8
#: A bit that the number of a step never has, which the compiler does not know.
_NEVER = 1 << 30


class _OfAnIdea(RungConfig):
    """A configuration whose schedule is not the ladder's; it overlaps and takes turns."""

    @property
    def overlaps(self) -> bool:
        """As "both" and "optimistic"."""
        return True

    @property
    def takes_turns(self) -> bool:
        """As "both" and "optimistic"."""
        return True


@dataclasses.dataclass(frozen=True)
class IdeaConfig(_OfAnIdea):
    """A configuration of "both" with an order of its own.

    Attributes:
      share: how many of a step's columns have their exponentials before the wait for P V, a
        multiple of 8.
      chains: whether the maximum of a row is made in two chains, so that a lane has four.
      factor_first: whether the factor's exponential comes before those behind the wait.
      lazy: whether the result is multiplied only if it must be.
      named: whether turns pass by named barriers, as FlashAttention-3's do: nobody asks twice.
    """

    share: int = 0
    chains: bool = False
    factor_first: bool = False
    lazy: bool = False
    named: bool = False
    schedule: Literal["plain", "overlap", "pingpong", "both", "optimistic"] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "schedule", _LATE)

    @property
    def thread_class(self) -> type[QueryThread]:
        """The order of the idea."""
        return Late


class Late(Overlap):
    """Exponentials behind the wait for P V, in the order of an `IdeaConfig`."""

    def one_step(self, now: Now, mask: Mask, state: State) -> State:
        """The factor multiplies the result, if it must."""
        result, ahead, shrink = self.products(now, mask, lambda: state, state)
        return ahead._replace(result=self._times(result, shrink))

    def products(
        self, now: Now, mask: Mask, before: Callable[[], State], state: State
    ) -> tuple[jax.Array, State, jax.Array]:
        """As `Overlap.products`."""
        p, scale = self.begin(now), self.scale
        share = self._idea.share // _PIECE

        def exponentials(pieces: Sequence[jax.Array], maximum: jax.Array) -> list[jax.Array]:
            return [jnp.exp2(piece * scale - maximum) for piece in pieces]

        def multiply_both(result: Accumulator) -> Arrays:
            scores = mask(self.queue(now, p, result))
            plgpu.barrier_arrive(now.k_out)
            old = before()
            maximum, finite, shrink = self._maximum(scores, scale, old)
            pieces = _pieces(scores)
            here = spread(finite, (len(finite), _PIECE), 0)
            pieces[:share] = exponentials(pieces[:share], here)
            self.wait_for_inputs(now.number)
            return maximum, finite, shrink, old.total, *pieces

        pieces = _pieces(jnp.zeros((self.config.rows, self.config.block_kv), jnp.float32))
        like = *(state.maximum,) * 3, state.total, *pieces
        result, found = self.accumulate(state.result, like, multiply_both)
        maximum, finite, shrink, total, *pieces = found
        plgpu.barrier_arrive(now.v_out)
        reason = shrink if self._idea.factor_first else now.number
        pieces[:share] = map(lax.optimization_barrier, pieces[:share])
        pieces[share:] = exponentials(pieces[share:], _behind(finite, result, reason))
        total = total * shrink + functools.reduce(jnp.add, pieces).sum(axis=1)
        p = jnp.concatenate([*map(self.rounded, pieces)], axis=1)
        return result, State((), maximum, total, p), shrink

    def take_turn(self) -> None:
        """Waits for its turn."""
        if not self._idea.named:
            return super().take_turn()
        return self._at_turn("sync", self.index)

    def pass_turn(self) -> None:
        """Gives its successor the turn."""
        if not self._idea.named:
            return super().pass_turn()
        following = lax.rem(self.index + 1, jnp.int32(self.config.compute_threads))
        return self._at_turn("arrive", following)

    def _at_turn(self, verb: str, thread: jax.Array) -> None:
        """An instruction on the named barrier of a thread's turn, of all lanes of two threads."""

        @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WG_SPLAT,))
        def go(_, number):
            text = f"bar.{verb} $0, {2 * THREAD_LANES};"
            mgpu_utils.inline_ptx(text, number.registers[()], convergent=True)

        go(thread + _FIRST_BARRIER)  # pyright: ignore[reportCallIssue]

    @property
    def _idea(self) -> IdeaConfig:
        assert isinstance(self.config, IdeaConfig), "its schedule is an idea's"
        return self.config

    def _maximum(
        self, scores: jax.Array, scale: float, old: State
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The maximum that a step uses, the same with 0 for minus infinity, and the factor."""
        if self._idea.chains:
            scores = functools.reduce(jnp.maximum, _pieces(scores))
        seen = scores.max(axis=1) * scale
        if not self._idea.lazy:
            maximum = jnp.maximum(old.maximum, seen)
            finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
            return maximum, finite, jnp.exp2(old.maximum - finite)
        grown = seen > old.maximum + GROWTH
        maximum = jnp.where(grown, seen, old.maximum)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
        return maximum, finite, jnp.where(grown, jnp.exp2(old.maximum - finite), 1.0)

    def _times(self, result: jax.Array, shrink: jax.Array) -> jax.Array:
        """The result times the factor of its rows."""
        if not self._idea.lazy:
            return scaled(result, shrink)
        must = _any_of_warp((shrink != 1.0).astype(jnp.int32)) != 0
        return lax.cond(must, scaled, lambda result, _: result, result, shrink)


@dataclasses.dataclass(frozen=True)
class UncheckedConfig(_OfAnIdea):
    """A configuration of "optimistic" that asks nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "schedule", _UNCHECKED)

    @property
    def thread_class(self) -> type[QueryThread]:
        """As "optimistic", without its question."""
        return Unchecked

    @property
    def memory_registers(self) -> int:
        """As "optimistic"."""
        return AttentionConfig(schedule="optimistic").memory_registers


class Unchecked(Optimistic):
    """Trusts that no exponential is too large."""

    def _are_small(self, sums: jax.Array) -> jax.Array:
        """Yes."""
        del sums
        return self.index * 0 + 1  # JAX does not lower a constant here


def _pieces(scores: jax.Array) -> list[jax.Array]:
    """Columns of an accumulator, so many that a lane has two numbers of each of its rows."""
    return [scores[:, i : i + _PIECE] for i in range(0, scores.shape[1], _PIECE)]


def _behind(maximum: jax.Array, result: jax.Array, reason: jax.Array) -> jax.Array:
    """The maximum of rows [rows], spread over a piece, from no sooner than `result` and `reason`.

    The bits of the result count where `reason` has a bit that it never has: the number of a step
    bit 30, and a factor, which is no less than 0, its sign.
    """
    shape = len(maximum), _PIECE
    bits = functools.partial(lax.bitcast_convert_type, new_dtype=jnp.int32)
    if reason.ndim:
        never = bits(spread(reason, shape, 0)) & jnp.int32(-(1 << 31))
    else:
        never = reason & jnp.int32(_NEVER)
    held = bits(spread(maximum, shape, 0)) | (bits(result[:, :_PIECE]) & never)
    return lax.bitcast_convert_type(held, jnp.float32)


def _any_of_warp(rows: jax.Array) -> jax.Array:
    """The int32 numbers of a warp's rows, or-ed: an int32 that may differ from warp to warp."""
    one = plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA.reduce(1),), return_type=one)
    def vote(_, numbers):
        mine = functools.reduce(arith.ori, map(_scalar, numbers.registers.flat))
        ptx, i32 = "redux.sync.or.b32 $0, $1, 0xffffffff;", ir.IntegerType.get_signless(32)
        found = mgpu_utils.inline_ptx(ptx, mine, result_types=i32, convergent=True)
        return mgpu.FragmentedArray.splat(found, (), is_signed=True)

    return vote(rows)  # pyright: ignore[reportCallIssue]


def _scalar(register: ir.Value) -> ir.Value:
    """The number in a register, which may be a vector of one."""
    if not isinstance(register.type, ir.VectorType):
        return register
    first = ir.DenseI64ArrayAttr.get([0])
    return vector.extract(register, dynamic_position=[], static_position=first)


class Idea(NamedTuple):
    """An order that was tried: its name, what was expected of it, its configuration."""

    name: str
    expected: str
    config: IdeaConfig | UncheckedConfig


IDEAS: Sequence[Idea] = (
    Idea(
        "late", "Multiplications fill the gaps between exponentials, a tenth of a step.",
        IdeaConfig(),
    ),
    Idea(
        "half late", "As late, and half of the exponentials run beside P V.", IdeaConfig(share=64)
    ),
    Idea(
        "late, four chains", "The maximum waits for itself half as long, 150 cycles of 2,600.",
        IdeaConfig(chains=True),
    ),
    Idea(
        "late, factor first", "The result's factors are there early: 100 cycles less at the end.",
        IdeaConfig(chains=True, factor_first=True),
    ),
    Idea(
        "lazy", "Nearly no step multiplies the result: 64 of 430 instructions less.",
        IdeaConfig(chains=True, lazy=True),
    ),
    Idea(
        "late, named turns", "A turn that is there is taken 60 cycles sooner.",
        IdeaConfig(named=True),
    ),
    Idea(
        "unchecked", "The question to the sums waits 100 cycles for the lanes of other warps.",
        UncheckedConfig(),
    ),
)  # fmt: skip
