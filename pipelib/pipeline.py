"""`emit_pipeline`: one thread loads, computes and stores.

The algorithm, for S slots and delay d (`ring` says why it is right)::

    prologue      load steps 0 .. S-1
    steady state  for each step s:
                    wait    produced[s mod S]
                    body    on slot s mod S
                    commit  its reads and writes
                    store   the blocks that no following step visits
                    load    step s + S - d into the slot of s - d
    drain         wait for all stores

Program order is what keeps a slot from being overwritten: there are no consumed barriers.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring


def emit_pipeline(
    body: Callable[..., Any],
    *,
    grid: Sequence[Any],
    in_specs: Any = (),
    out_specs: Any = (),
    max_concurrent_steps: int = 1,
    init_carry: Any = None,
    ordinary_reads: bool = True,
) -> Callable[..., Any]:
    """Makes a pipeline of `body` over `grid`, inside a Pallas kernel.

    A drop-in superset of `jax.experimental.pallas.mosaic_gpu.emit_pipeline`. Beyond it: pytrees of
    specs; a block that consecutive steps visit is built up in one slot and stored once, after the
    last; outputs in the GPU interpreter.

    Args:
      body: called at each step as `body(indices, *in_refs, *out_refs)`, with a tuple of int32
        scalars, one for each grid axis, and refs of the blocks' shapes without squeezed dimensions.
        With `init_carry` it also takes the carry, last, and returns the next.
      grid: sizes of the sequential axes, last fastest: ints, or int32 scalars known at run time
        (also 0, and nothing runs).
      in_specs, out_specs: pytrees of `pl.BlockSpec` or `plgpu.BlockSpec`, a leaf an operand.
      max_concurrent_steps: slots of each ring, 1 to 32; no more are allocated than steps exist.
      init_carry: a pytree of arrays, or None for no carry.
      ordinary_reads: whether the body reads inputs with ordinary loads (`ref[...]`). False, right
        if only `wgmma` and copies read them, saves the `commit_smem` that orders such loads before
        the slot's next load.

    Returns:
      A function of the GMEM refs, inputs then outputs, in the trees of the specs. It runs the
      pipeline and returns the last carry (None without).

    Raises:
      ValueError, NotImplementedError: here, for wrong specs, slots or delays; when called, for
        operands that do not match or too much shared memory.
    """
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps)
    for operand in plan.inputs:
        if axes := operand.spec.collective_axes:
            raise NotImplementedError(
                f"{operand.name}: pl.BlockSpec with collective_axes= is not supported by"
                f" emit_pipeline: nothing tells the blocks along {axes} that a slot is free, so it"
                " would be overwritten. Use emit_pipeline_warp_specialized."
            )
    return _Pipeline(body, plan, init_carry, ordinary_reads)


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    body: Callable[..., Any]
    plan: ring.Plan
    init_carry: Any
    ordinary_reads: bool

    def __call__(self, *gmem_refs: Any) -> Any:
        plan, steps, gmem = self.plan, self.plan.steps, self.plan.flatten_refs(gmem_refs)

        def scope(smem, produced):
            inputs, outputs, channels = plan.bind(gmem, smem, produced)
            stores = ring.Stores(outputs, steps)
            # Prologue:
            plan.load_steps(channels, 0, steps.prologue, steps.indices())
            # Steady state:
            carry = () if self.init_carry is None else (self.init_carry,)
            call = lambda _, indices, refs, carry: self.body(indices, *refs, *carry)
            refill = functools.partial(self._refill, channels)
            fetch_indices = [steps.indices(steps.slots - channel.delay) for channel in channels]
            carry = plan.compute_steps(
                call, inputs, channels, stores, carry, refill, self.ordinary_reads, fetch_indices
            )
            # Drain:
            stores.drain()
            return carry

        return pl.run_scoped(scope, **plan.allocations(gmem))

    def _refill(self, channels, step, fetch_indices) -> list[ring.Indices]:
        """Loads the next steps that use the slots released at this one."""
        steps = self.plan.steps
        for channel, indices in zip(channels, fetch_indices, strict=True):
            fetch = step + (steps.slots - channel.delay)
            load = lambda: channel.load(steps.slot(fetch), indices)
            ring.when((step >= channel.delay) & (fetch < steps.count), load)
        return [steps.following(indices) for indices in fetch_indices]
