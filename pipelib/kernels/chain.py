"""`run_chain`: the tiles of a block, one after the other, as one chain of pipelines.

The model. Each tile has a pipeline of its own, and all of them share slots and barriers. The memory
thread goes on to the next tile while the compute threads store. The tiles of a kernel are numbered;
its blocks take them in turns.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring
from pipelib.refs import Bool, Int, Ref
from pipelib.warp_specialized import WarpSpecializedPipeline


def run_chain(
    count: Int,
    pipeline: Callable[..., WarpSpecializedPipeline],
    first: WarpSpecializedPipeline,
    refs: tuple[Ref, ...],
    unreleased: int,
    has_any: Bool = True,
    steps: int | None = None,
) -> None:
    """Makes the tiles of this block; all its threads call it, and its grid's axis is "block".

    Args:
      count: how many tiles all blocks have together.
      pipeline: takes the number of a tile, and the place of its pipeline in the chain; if there are
        `steps`, also how many of them come before it.
      first: a pipeline with the same allocations as all of them.
      refs: the operands of each.
      unreleased: how many slots the memory thread has not heard of when the last steps are loaded.
      has_any: whether this block has a tile.
      steps: how many steps a tile has, at least as many as slots, all of which are unreleased at
        the end. None: some multiple of the slots.
    """

    def scope(allocations: ring.Allocations) -> None:
        @plgpu.nd_loop((count,), collective_axes="block")
        def _(info: plgpu.NDLoopInfo) -> None:
            state = state_in_chain(info.local_index == 0)
            before = () if steps is None else (jnp.int32(info.local_index) * steps,)
            pipeline(info.index[0], state, *before)(*refs, allocations=allocations)

        is_memory_thread = lax.axis_index("thread") == first.threads.memory_thread
        is_waiting = is_memory_thread if has_any is True else is_memory_thread & has_any

        # A STOP would do it, but the only tile of a block would have to be a START too.
        @pl.when(is_waiting)
        def _() -> None:
            wait_for_last_releases(allocations, unreleased)

    pl.run_scoped(scope, first.get_allocations(*refs), collective_axes="thread")


def state_in_chain(is_first: Bool) -> jax.Array:
    """The place in the chain of a tile's pipeline, which is the block's first or a later one."""
    places = plgpu.PipelinePipeline
    return jnp.where(is_first, places.START, places.STEADY)


def wait_for_last_releases(allocations: ring.Allocations, unreleased: int) -> None:
    """What the memory thread does at the end of a chain, each pipeline of which ends in a slot 0.

    Args:
      allocations: those of the pipelines.
      unreleased: how many slots it has not heard of since the last steps were loaded.
    """
    for consumed in allocations["consumed"]:
        for slot in range(unreleased):
            plgpu.barrier_wait(consumed.at[slot])
