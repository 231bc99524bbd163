"""Blocks of a cluster that share a load: they must name one tile."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.program import Program
from tests.pallascope import corpus, kernels
from tests.pallascope.checking.mutations import mutants
from tests.pallascope.checking.orders import judge
from tests.pallascope.kernels import like

X = like(128, 64)
STEPS = 4


def shared(tile, along="x", names=("x",), slots=2):
    """A cluster of two blocks along each axis; in each step they load `tile(step)` of `x`."""

    def kernel(x, o, x_smem, produced, consumed):
        block = sum(2**i * lax.axis_index(name) for i, name in enumerate(names))

        def load(step):
            slot = step % slots
            plgpu.copy_gmem_to_smem(
                x.at[pl.ds(tile(step), 32)],
                x_smem.at[slot],
                produced.at[slot],
                collective_axes=along,
            )

        for step in range(slots):
            load(step)
        for step in range(STEPS):
            slot = step % slots
            plgpu.barrier_wait(produced.at[slot])
            o[block, step] = x_smem[slot]
            if step + slots < STEPS:
                plgpu.barrier_arrive(consumed.at[slot])
                plgpu.barrier_wait(consumed.at[slot])
                load(step + slots)

    scratch = [
        plgpu.SMEM((slots, 32, 64), jnp.float16),
        plgpu.Barrier(num_barriers=slots),
        plgpu.ClusterBarrier(collective_axes=(along,), num_barriers=slots),
    ]
    options = dict(cluster=(2,) * len(names), cluster_names=names, scratch_types=scratch)
    out = like(2 ** len(names), STEPS, 32, 64)
    return pallascope.trace(kernels.of(kernel, out, **options), X)


def mine(name="x"):
    return lax.axis_index(name)


def test_one_tile_for_all():
    program = shared(lambda step: 32 * step)
    assert any(op.whole for op in program.threads[0])
    assert pallascope.check(program).ok


@pytest.mark.parametrize(
    ("tile", "times"),
    [
        (lambda step: 32 * (step + mine()) % 128, STEPS),  # each a tile of its own
        (lambda step: 32 * step + 16 * mine(), STEPS),  # half a tile off
        (lambda step: 32 * (step if step < 3 else mine()), 1),  # in the last step only
    ],
)
def test_a_tile_of_each_block_s_own(tile, times):
    (finding,) = pallascope.check(shared(tile))
    assert (finding.kind, finding.where, finding.count) == ("mixed-tile", "x_smem@1", times)
    assert [op.thread for op in finding.ops] == [1, 0]
    assert finding.ops[0].step == finding.ops[1].step


def test_the_sentence():
    (finding,) = pallascope.check(shared(lambda step: 32 * ((step + mine()) % 4)))
    assert finding.cause == (
        "block 1 of the cluster, thread 0 and block 0 of the cluster, thread 0 share a load to"
        " slot 0 of `x_smem@1` of block 1 along the axis x of the cluster, but block 0 of the"
        " cluster, thread 0 copies its part of `x[0:32, 0:64]`, and block 1 of the cluster, thread"
        " 0 its part of `x[32:64, 0:64]`: each of them gets a mixture of the two."
    )
    assert finding.remedy == (
        "Let all blocks along x name the same tile, without x in its index, or leave"
        " collective_axes out, so that each block loads a tile of its own."
    )


def test_blocks_that_share_along_one_axis_of_two():
    """Each row of the cluster has a tile of its own, which its two blocks share."""
    names = "x", "y"
    assert pallascope.check(shared(lambda step: 64 * mine("x"), "y", names)).ok
    found = pallascope.check(shared(lambda step: 64 * mine("y"), "y", names))
    assert {finding.kind for finding in found} == {"mixed-tile"}
    assert "along the axis y of the cluster" in found[0].cause


def test_blocks_that_load_the_halves_of_a_slot_in_two_orders():
    """It is the place that says which loads belong together, not the turn."""

    def kernel(x, o, x_smem, produced):
        for turn in range(2):
            half = pl.ds(64 * lax.rem(turn + mine(), 2), 64)
            plgpu.copy_gmem_to_smem(x.at[half], x_smem.at[half], produced, collective_axes="x")
        plgpu.barrier_wait(produced)
        o[mine()] = x_smem[...]

    scratch = [plgpu.SMEM(X.shape, jnp.float16), plgpu.Barrier(num_arrivals=2)]
    made = kernels.of(
        kernel, like(2, *X.shape), cluster=(2,), cluster_names=("x",), scratch_types=scratch
    )
    assert pallascope.check(pallascope.trace(made, X)).ok


def test_a_tile_that_a_tensor_places_is_not_compared():
    def kernel(x, which, o, x_smem, produced):
        plgpu.copy_gmem_to_smem(
            x.at[pl.ds(which[mine()], 32)], x_smem, produced, collective_axes="x"
        )
        plgpu.barrier_wait(produced)
        o[mine()] = x_smem[...]

    scratch = [plgpu.SMEM((32, 64), jnp.float16), plgpu.Barrier()]
    made = kernels.of(
        kernel, like(2, 32, 64), cluster=(2,), cluster_names=("x",), scratch_types=scratch
    )
    program = pallascope.trace(made, X, like(2, dtype=jnp.int32))
    assert any(op.whole for op in program.threads[0])
    assert "mixed-tile" not in {finding.kind for finding in pallascope.check(program)}


def test_what_is_saved_has_the_whole():
    program = shared(lambda step: 32 * step)
    assert Program.from_json(program.to_json()) == program


def test_an_order_of_a_lapped_waiter_has_the_parts_that_other_blocks_load():
    """A phase is complete when those have landed, too, though they make no arrival."""
    (kernel,) = (k for k in corpus.clean() if k.name == "contract/multicast_input-specialized-2")
    name = "once less wait produced@0, thread 0, site 3 "
    (mutant,) = (m for m in mutants(kernel.trace()) if m.name.startswith(name))
    report = pallascope.check(mutant.program)
    assert any("can be lapped" in finding.cause for finding in report)
    assert "barrier-misuse" in judge(mutant.program, report, 0)
