"""`RungConfig`: the forms of `matmul` that only its ladder uses.

The model. `pipelib.kernels.matmul` has the forms that its defaults and searches pick,
"specialized" and "chained". The ladder climbs to them over two more, which a `RungConfig` adds:

===========  =====================================================================================
ring         A block makes one tile. A single compute thread loads what it multiplies
             (`emit_pipeline`). Two compute threads share the slots, and the first loads a slot
             again when both have released it.
persistent   A block makes several tiles, in a snake order that keeps neighbours in the L2. Each
             tile has its own pipeline, so nothing is loaded while the last tile is stored.
===========  =====================================================================================

All else is the package's: the steps, the end of a tile, the arithmetic of memory and registers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, override

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.kernels.matmul.forms import KSteps, TileMaker, accumulated
from pipelib.kernels.matmul.product import Product
from pipelib.kernels.matmul.result import TileResult
from pipelib.pipeline import emit_pipeline
from pipelib.refs import Accumulator, Bool, Ref


def one_thread(a: Ref, b: Ref, product: Product[MatmulConfig], result: TileResult) -> None:
    """One thread loads, multiplies and stores a tile."""
    steps = KSteps.of(a, b, product, result.place)

    def multiply_all(acc: Accumulator) -> None:
        def body(indices: ring.Indices, a: Ref, b: Ref) -> None:
            steps.multiply(product, indices, a, b, acc)

        emit_pipeline(
            body,
            grid=(steps.count,),
            in_specs=steps.in_specs,
            max_concurrent_steps=steps.slots,
            ordinary_reads=False,
        )(a, b)

    result.prefetch()
    result.store(accumulated(product, multiply_all))


#: What one step of `two_threads` hands to the next: its grid indices, and those of the step that is
#: loaded when it ends.
_State = tuple[ring.Indices, ring.Indices]


def two_threads(a: Ref, b: Ref, product: Product[MatmulConfig], result: TileResult) -> None:
    """Two threads multiply half a tile each. The first one loads, for both.

    This is `emit_pipeline` with consumed barriers: program order does not tell the first thread
    when the second has read a slot.
    """
    k_steps, is_first = KSteps.of(a, b, product, result.place), lax.axis_index("thread") == 0
    plan = ring.Plan.of((k_steps.count,), k_steps.in_specs, (), k_steps.slots)
    steps = plan.steps

    def scope(smem: list[Ref | None], produced: list[Ref], consumed: list[Ref]) -> None:
        inputs, _, [channel] = plan.bind([a, b], smem, produced, consumed)

        def one_step(acc: Accumulator, step: jax.Array, state: _State) -> _State:
            indices, load_indices = state
            slot = steps.slot(step)
            channel.wait_until_loaded(slot)
            a_smem, b_smem = plan.refs(inputs, slot, ())
            k_steps.multiply(product, indices, a_smem, b_smem, acc)
            load_indices = _load_when_released(steps, channel, step, load_indices, is_first)
            return steps.following(indices), load_indices

        def multiply_all(acc: Accumulator) -> None:
            load_indices = steps.indices(k_steps.slots - k_steps.delay)
            state = steps.indices(), load_indices
            steps.loop(0, k_steps.count, functools.partial(one_step, acc), state)

        @pl.when(is_first)
        def prologue() -> None:
            ring.load_first(steps, [channel], steps.prologue)

        result.prefetch()
        result.store(accumulated(product, multiply_all))

    allocations = plan.allocations([a, b], k_steps.slots)
    threads = product.config.compute_threads
    consumed = [plgpu.Barrier(num_arrivals=threads, num_barriers=k_steps.slots)]
    pl.run_scoped(scope, **allocations, consumed=consumed, collective_axes="thread")


def _load_when_released(
    steps: ring.Steps,
    channel: ring.Channel,
    step: jax.Array,
    load_indices: ring.Indices,
    is_first: Bool,
) -> ring.Indices:
    """Releases the slot of step - d; the first thread loads it again once both have released it.

    Args:
      steps, channel: those of the pipeline.
      step: the step that has ended.
      load_indices: the grid indices of the step that is loaded.
      is_first: whether this thread is the first.

    Returns:
      The `load_indices` of the next call.
    """
    freed = step - channel.delay
    is_needed = (freed >= 0) & (freed + steps.slots < steps.num_steps)
    slot = steps.slot(step, channel.delay)
    pl.when(is_needed)(lambda: channel.release(slot))

    @pl.when(is_needed & is_first)
    def load() -> None:
        channel.wait_until_released(slot)
        channel.load(slot, load_indices)

    return steps.following(load_indices)


def ring_of_slots(tiles: TileMaker) -> None:
    """The form "ring": the block's only tile, without a memory thread."""
    form = one_thread if tiles.product.config.threads == 1 else two_threads
    form(tiles.a, tiles.b, tiles.product, tiles.result.of(tiles.place(lax.axis_index("block"))))


def persistent(tiles: TileMaker) -> None:
    """The form "persistent": the block's tiles, with a pipeline each."""

    @plgpu.nd_loop((tiles.count,), collective_axes="block")
    def _(info: plgpu.NDLoopInfo) -> None:
        tiles.pipeline(tiles.place(info.index[0]))(tiles.a, tiles.b)


@dataclasses.dataclass(frozen=True)
class RungConfig(MatmulConfig):
    """A `MatmulConfig` that may have the ladder's forms, too.

    Attributes:
      form: "ring" (of 1 or 2 compute threads, without clusters), "persistent", or one of
        `MatmulConfig`'s.

    Raises:
      ValueError, TypeError: as `MatmulConfig`.
    """

    form: Literal["ring", "persistent", "specialized", "chained"] = "chained"  # pyright: ignore[reportIncompatibleVariableOverride]
    more_forms: ClassVar[Mapping[str, Callable[[Any], None]]] = {
        "ring": ring_of_slots,
        "persistent": persistent,
    }

    @override
    def problems(self) -> dict[str, object]:
        is_ring = self.form == "ring"
        return {
            f"{self.compute_threads=} is not 1 to 2, as form='ring' has": is_ring
            and not 1 <= self.compute_threads <= 2,
            f"{self.form=} has no memory thread, so {self.cluster_m=} x {self.cluster_n=} blocks"
            " could not tell each other which slots are free": is_ring and self.cluster_size > 1,
        } | super().problems()

    @property
    @override
    def threads(self) -> int:
        return self.compute_threads + (self.form != "ring")

    @property
    @override
    def makes_one_tile(self) -> bool:
        return self.form in ("ring", "specialized")
