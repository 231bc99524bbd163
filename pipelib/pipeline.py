"""`emit_pipeline`: one thread loads, computes and stores.

The algorithm, for S slots and delay d (`ring` says why it is right)::

    prologue      load steps 0 .. S-1
    steady state  for each step s:
                    wait    for the inputs, at produced[s mod S]
                    wait    for free output slots: all but S - 1 stores have read theirs
                    body    on slot s mod S
                    commit  its reads and writes
                    load    step s + S - d into the slot of step s - d
                    store   the blocks that step s + 1 does not visit
    drain         wait for all stores

There are no consumed barriers: one thread both computes and loads, so program order keeps a load
from overwriting a slot that is still read. A GPU before Hopper has no TMA: what the pipeline is
there, `cp_async` says.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl

from pipelib import cp_async, ring, specs, targets
from pipelib.refs import Body, Ref, Tree


def emit_pipeline(
    body: Body,
    *,
    grid: Sequence[ring.Size],
    in_specs: Tree = (),
    out_specs: Tree = (),
    max_concurrent_steps: int = 1,
    init_carry: Tree = None,
    ordinary_reads: bool = True,
) -> "Pipeline":
    """Makes a pipeline of `body` over `grid`, inside a Pallas kernel.

    A drop-in superset of `jax.experimental.pallas.mosaic_gpu.emit_pipeline`. It adds pytrees of
    specs, outputs in the GPU interpreter and before Hopper, and blocks that consecutive steps build
    up in one slot (stored once, after the last of these steps).

    It is for Hopper, and for GPUs before it from compute capability 8.0 on (`pipelib.target`).
    There an output has one slot, blocks must divide their array (or
    `oob_fill_mode=PROMISE_IN_BOUNDS`), and an input's block without `transforms` must lie in GMEM
    in runs of a multiple of 512 bytes. Pallas's interpreter runs the pipeline for Hopper only.

    Args:
      body: called at each step as `body(indices, *in_refs, *out_refs)`. The indices are a tuple of
        int32 scalars, one for each grid axis. The refs have the shapes of the blocks, without
        squeezed dimensions. With `init_carry`, the last argument is the carry, and the body returns
        the next one.
      grid: sizes of the sequential axes, the last one fastest: ints, or traced int32 scalars, which
        may be 0. A *ragged* grid has as its last size a function of the indices before it, whose
        result must be at least 1; the body and the index maps get it as one more index, the last.
      in_specs, out_specs: pytrees of `pl.BlockSpec` or `plgpu.BlockSpec`, one leaf for each
        operand. Index maps count blocks, not elements. A block that no step visits is not written.
        With `plgpu.BlockSpec(delay_release=d)`, the slot that step s reads is loaded again when
        step s + d ends. As upstream, an input is loaded at each step even if its block does not
        change: copy what all steps share once, before the pipeline.
      max_concurrent_steps: slots of each ring, 1 (no overlap) to 32; never more than the steps.
      init_carry: a pytree of arrays, or None for no carry.
      ordinary_reads: whether the body reads inputs with ordinary loads (`ref[...]`). If only
        `wgmma` and copies read them, False saves the `commit_smem` before a slot is loaded again.

    Returns:
      A function of the GMEM refs, inputs then outputs, in the trees of the specs. It runs the
      pipeline and returns the last carry (None if there is none). For memory that is allocated
      elsewhere, pass its `get_allocations(*gmem_refs)` through `pl.run_scoped` to its argument
      `allocations`.

    Raises:
      ValueError, TypeError, NotImplementedError: for wrong specs, slots or types of arguments. The
        function that is returned raises them for wrong operands.

    Example:
      Adds 1 to an array, 16 rows a step. While one step runs, the next 16 rows are loaded.

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
    specs.check_carry(init_carry)
    ordinary_reads = specs.flag("ordinary_reads", ordinary_reads)
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps)
    init = () if init_carry is None else (init_carry,)
    for operand in plan.inputs:
        if axes := operand.collective_axes:
            raise NotImplementedError(
                f"{operand.name}: pl.BlockSpec with collective_axes= is not supported without warp"
                f" specialization: no barrier tells the blocks along {axes} that a slot is free."
            )

    return Pipeline(body, plan, init, ordinary_reads)


class Pipeline(NamedTuple):
    """What `emit_pipeline` returns.

    Attributes:
      body, ordinary_reads: arguments of the emitter.
      plan: the steps and the operands.
      init: a tuple of the first carry, or of nothing.
    """

    body: Body
    plan: ring.Plan
    init: tuple[Tree, ...]
    ordinary_reads: bool

    def __call__(self, *gmem_refs: Tree, allocations: ring.Allocations | None = None) -> Tree:
        """Runs the pipeline on these refs, and returns the last carry.

        Raises:
          ValueError, TypeError: the refs do not match the specs.
        """
        gmem = self.plan.flatten_refs(gmem_refs)
        run = functools.partial(_run, self.plan, self.body, self.init, self.ordinary_reads, gmem)
        if not targets.has_tma():
            run = functools.partial(cp_async.run, self.plan, self.body, self.init, gmem)
        if allocations is not None:
            return run(**allocations)
        return pl.run_scoped(run, **self.get_allocations(*gmem_refs))

    def get_allocations(self, *gmem_refs: Tree) -> ring.Allocations:
        """The SMEM and barriers of a call with these refs, for `pl.run_scoped`.

        For a caller that cannot allocate where it runs the pipeline, as a warp cannot.

        Raises:
          ValueError, TypeError: the refs do not match the specs, or a block has too little SMEM.
        """
        gmem = self.plan.flatten_refs(gmem_refs)
        allocations = ring.Plan.allocations if targets.has_tma() else cp_async.allocations
        return allocations(self.plan, gmem)


class _State(NamedTuple):
    """What one step hands to the next.

    Attributes:
      indices: its grid indices.
      out_slots: the slot of each output.
      load_indices: for each channel, the grid indices of the step that is loaded when it ends.
      carry: a tuple of the body's carry, or of nothing.
    """

    indices: ring.Indices
    out_slots: ring.Indices
    load_indices: list[ring.Indices]
    carry: tuple[Tree, ...]


def _run(
    plan: ring.Plan,
    body: Body,
    init: tuple[Tree, ...],
    ordinary_reads: bool,
    gmem: list[Ref],
    smem: list[Ref | None],
    produced: list[Ref],
) -> Tree:
    """Runs all steps; returns the last carry."""
    steps = plan.steps
    inputs, outputs, channels = plan.bind(gmem, smem, produced)
    stores = ring.Stores(outputs, steps)

    def one_step(step: jax.Array, state: _State) -> _State:
        indices, out_slots, load_indices, carry = state
        slot = steps.slot(step)
        for channel in channels:
            channel.wait_until_loaded(slot)
        stores.wait_for_free_slots()
        refs = plan.refs(inputs + outputs, slot, out_slots)
        carry = ring.run_body(body, indices, refs, carry)
        plan.commit(ordinary_reads)
        load_indices = ring.load_ahead(steps, channels, step, load_indices)
        out_slots = stores.store(step, indices, out_slots)
        return _State(steps.following(indices), out_slots, load_indices, carry)

    # Prologue.
    ring.load_first(steps, channels, steps.prologue)
    # Steady state.
    load_indices = [steps.indices(steps.slots - channel.delay) for channel in channels]
    state = _State(steps.indices(), stores.first_slots(), load_indices, init)
    state = steps.loop(0, steps.num_steps, one_step, state)
    # Drain.
    stores.drain()
    return state.carry[0] if state.carry else None
