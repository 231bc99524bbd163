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

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.experimental import pallas as pl

from pipelib import ring, specs


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

    On Hopper, a drop-in superset of `jax.experimental.pallas.mosaic_gpu.emit_pipeline` (which also
    runs pipelines of inputs only on GPUs before). Beyond it: pytrees of specs; a block that
    consecutive steps visit is built up in one slot and stored once, after the last; outputs in the
    GPU interpreter.

    Args:
      body: called at each step as `body(indices, *in_refs, *out_refs)`, with a tuple of int32
        scalars, one for each grid axis, and refs of the blocks' shapes without squeezed dimensions.
        With `init_carry` it also takes the carry, last, and returns the next.
      grid: sizes of the sequential axes, last fastest: ints, or traced int32 scalars (also 0).
      in_specs, out_specs: pytrees of `pl.BlockSpec` or `plgpu.BlockSpec`, a leaf an operand. Index
        maps count blocks, not elements; a block that no step visits is not written. A slot of an
        input is loaded again when step s + d ends, d being its `plgpu.BlockSpec(delay_release=d)`.
        An input whose block does not change is loaded again at each step all the same, and has all
        slots, as upstream: copy what all steps share once, before the pipeline.
      max_concurrent_steps: slots of each ring, 1 (no overlap) to 32; no more than there are steps.
      init_carry: a pytree of arrays, or None for no carry.
      ordinary_reads: whether the body reads inputs with ordinary loads (`ref[...]`). False, right
        if only `wgmma` and copies do, saves the `commit_smem` before the slot is loaded again.

    Returns:
      A function of the GMEM refs, inputs then outputs, in the trees of the specs. It runs the
      pipeline and returns the last carry (None without).

    Raises:
      ValueError, TypeError, NotImplementedError: for wrong specs, slots or types of arguments here,
        for wrong operands when called.

    Example:
      Adds 1 to an array, 16 rows a step; the next 16 are loaded meanwhile.

      >>> def add_one(x_gmem, o_gmem):
      ...     block = pl.BlockSpec((16, 128), lambda i: (i, 0))
      ...     def body(indices, x_smem, o_smem):
      ...         o_smem[...] = x_smem[...] + 1.0
      ...     pipeline = pipelib.emit_pipeline(
      ...         body, grid=(4,), in_specs=[block], out_specs=[block],
      ...         max_concurrent_steps=2,
      ...     )
      ...     pipeline(x_gmem, o_gmem)
      >>> x = jnp.zeros((64, 128))
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = plgpu.kernel(add_one, out_type=x)(x)
      >>> bool((y == 1).all())
      True
    """
    specs.check_function("body", body)
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps)
    steps, carry = plan.steps, () if init_carry is None else (init_carry,)
    for operand in plan.inputs:
        if axes := operand.spec.collective_axes:
            raise NotImplementedError(
                f"{operand.name}: pl.BlockSpec with collective_axes= is not supported without warp"
                f" specialization: no barrier tells the blocks along {axes} that a slot is free."
            )

    def pipeline(*gmem_refs):
        gmem = plan.flatten_refs(gmem_refs)
        return pl.run_scoped(functools.partial(run, gmem), **plan.allocations(gmem))

    def run(gmem, smem, produced):
        inputs, outputs, channels = plan.bind(gmem, smem, produced)
        stores = ring.Stores(outputs, steps)

        def refill(step, fetch_indices):
            for channel, indices in zip(channels, fetch_indices, strict=True):
                fetch = step + (steps.slots - channel.delay)
                load = functools.partial(channel.load, steps.slot(fetch), indices)
                pl.when((step >= channel.delay) & (fetch < steps.num_steps))(load)
            return [steps.following(indices) for indices in fetch_indices]

        # Prologue:
        plan.load_steps(channels, 0, steps.prologue, steps.indices())
        # Steady state:
        call = lambda _, indices, refs, carry: body(indices, *refs, *carry)
        fetch_indices = [steps.indices(steps.slots - channel.delay) for channel in channels]
        last_carry = plan.compute_steps(
            call, inputs, channels, stores, carry, ordinary_reads, refill, fetch_indices
        )
        # Drain:
        stores.drain()
        return last_carry

    return pipeline
