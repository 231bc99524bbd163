"""What warps do apart from each other: `plgpu.warp_map`."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.program import Program, Warp
from tests.pallascope import kernels
from tests.pallascope.constructs.warps import TILE, X, loader, rows

pytestmark = pytest.mark.both_jax


def test_each_warp_is_a_thread_of_its_own():
    program = pallascope.trace(loader(), X)
    assert program.warps == tuple(Warp(0, number) for number in range(4))
    assert [[op.kind for op in ops] for ops in program.threads[1:]] == [
        ["meet", "load", "load", "meet"],
        ["meet", "store", "commit_group", "wait_store", "meet"],
        ["meet", "meet"],
        ["meet", "meet"],
    ]
    assert {op.members for op in program.ops if op.kind == "meet"} == {(0, 1, 2, 3, 4)}
    assert program.per_block == 1 and program.pallas_thread(3) == 0
    assert Program.from_json(program.to_json()) == program
    assert pallascope.check(program).ok
    lanes = pallascope.simulate(program, pallascope.H100).lanes
    assert lanes[:3] == ("thread 0", "thread 0 warp 0", "thread 0 warp 1")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("no wait", {"race", "barrier-misuse"}),
        ("one slot", {"race"}),
        ("no commit", {"missing-commit"}),
        ("no wait for the store", {"lost-store"}),
        ("the thread waits for the store", set()),
    ],
)
def test_faults_of_warps(fault, found):
    report = pallascope.check(pallascope.trace(loader(fault), X))
    assert {finding.kind for finding in report} == found, report


def test_a_report_names_the_warp():
    report = pallascope.check(pallascope.trace(loader("one slot"), X))
    text = "slot 0 of `x_smem` is overwritten by the load of warp 0 of thread 0 while it may still"
    assert text in str(report)


def test_a_warp_counts_its_own_waits():
    """Warp 0 has waited for the first phase: a wait of the thread is its second, and stuck."""

    def kernel(x, o, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x.at[rows(0)], x_smem, loaded)

        def apart(warp):
            @pl.when(warp == 0)
            def _():
                plgpu.barrier_wait(loaded)

        plgpu.warp_map(apart)
        plgpu.barrier_wait(loaded)
        o[rows(0)] = x_smem[...]

    program = pallascope.trace(kernels.of(kernel, scratch_types=[TILE, plgpu.Barrier()]), X)
    waits = [(op.thread, op.phase) for op in program.ops if op.kind == "wait"]
    assert waits == [(0, 0), (0, 1), (1, 0)]
    report = pallascope.check(program)
    assert [finding.kind for finding in report] == ["deadlock"]
    assert "thread 0 waits for phase 1 of `loaded`" in report[0].cause


def test_warps_that_do_not_all_come_back():
    def kernel(x, o, never):
        def apart(warp):
            @pl.when(warp == 2)
            def _():
                plgpu.barrier_wait(never)

        plgpu.warp_map(apart)

    report = pallascope.check(
        pallascope.trace(kernels.of(kernel, scratch_types=[plgpu.Barrier()]), X)
    )
    assert [finding.kind for finding in report] == ["deadlock"]
    assert "warp 2 of thread 0 waits for phase 0 of `never`" in report[0].cause
    assert "thread 0 meets the other warps of its thread, to which not all come" in report[0].cause


def test_loops_that_are_cut_off_within_warps():
    def kernel(x, o, x_smem, loaded):
        def apart(warp):
            @pl.when(warp == 0)
            def _():
                @pl.loop(0, 3)
                def _(step):
                    plgpu.copy_gmem_to_smem(x.at[rows(step)], x_smem.at[step], loaded.at[step])

        plgpu.warp_map(apart)
        for step in range(3):
            plgpu.barrier_wait(loaded.at[step])
            o[rows(step)] = x_smem[step]

    scratch = [plgpu.SMEM((3, 64, 64), jnp.float16), plgpu.Barrier(num_barriers=3)]
    program = pallascope.trace(kernels.of(kernel, scratch_types=scratch), X, max_steps=2)
    assert program.truncated == (0, 1, 2, 3, 4)
    assert pallascope.check(program).ok


def test_warps_of_each_block_of_a_cluster():
    def kernel(x, o, x_smem, loaded):
        def apart(warp):
            @pl.when(warp == 3)
            def _():
                plgpu.copy_gmem_to_smem(x.at[rows(lax.axis_index("c"))], x_smem, loaded)

        plgpu.warp_map(apart)
        plgpu.barrier_wait(loaded)
        o[rows(lax.axis_index("c"))] = x_smem[...]

    cluster = dict(cluster=(2,), cluster_names=("c",), scratch_types=[TILE, plgpu.Barrier()])
    program = pallascope.trace(kernels.of(kernel, **cluster), X)
    assert [warp.thread for warp in program.warps] == [0] * 4 + [1] * 4
    assert program.block_of(9) == 1
    report = pallascope.check(program)
    assert report.ok, report
    assert "block 1 lane" not in str(report)
    names = pallascope.simulate(program, pallascope.H100).lanes
    assert "block 1 thread 0 warp 3" in names
