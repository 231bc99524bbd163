"""What warps do apart from each other: `plgpu.warp_map`."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.schedule.program import Program, Warp
from tests.schedule import kernels
from tests.schedule.kernels import like

X = like(256, 64)
TILE = plgpu.SMEM((64, 64), jnp.float16)


def rows(step):
    return pl.ds(step * 64, 64)


def loader(fault=""):
    """Warp 0 loads two tiles, warp 1 stores what came of them, with one fault at most."""

    def kernel(x, o, x_smem, o_smem, loaded):
        def apart(warp):
            @pl.when(warp == 0)
            def _():
                for slot in range(2):
                    tile = x_smem.at[0 if fault == "one slot" else slot]
                    plgpu.copy_gmem_to_smem(x.at[rows(slot)], tile, loaded.at[slot])

            @pl.when(warp == 1)
            def _():
                plgpu.copy_smem_to_gmem(o_smem, o.at[rows(0)])
                if fault not in ("no wait for the store", "the thread waits for the store"):
                    plgpu.wait_smem_to_gmem(0)

        o_smem[...] = jnp.zeros_like(o_smem)
        if fault != "no commit":
            plgpu.commit_smem()
        plgpu.warp_map(apart)
        if fault == "the thread waits for the store":
            plgpu.wait_smem_to_gmem(0)
        for slot in range(2):
            if fault != "no wait":
                plgpu.barrier_wait(loaded.at[slot])
            o[rows(1 + slot)] = x_smem[slot]

    scratch = [plgpu.SMEM((2, 64, 64), jnp.float16), TILE, plgpu.Barrier(num_barriers=2)]
    return kernels.of(kernel, scratch_types=scratch)


def test_each_warp_is_a_thread_of_its_own():
    program = pipelib.trace(loader(), X)
    assert program.warps == tuple(Warp(0, number) for number in range(4))
    assert [[op.kind for op in ops] for ops in program.threads[1:]] == [
        ["meet", "load", "load", "meet"],
        ["meet", "store", "commit_group", "wait_store", "meet"],
        ["meet", "meet"],
        ["meet", "meet"],
    ]
    assert {op.members for ops in program.threads for op in ops if op.kind == "meet"} == {
        (0, 1, 2, 3, 4)
    }
    assert program.per_block == 1 and program.pallas_thread(3) == 0
    assert Program.from_json(program.to_json()) == program
    assert pipelib.check(program).ok
    lanes = pipelib.simulate(program, pipelib.H100).lanes
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
    report = pipelib.check(pipelib.trace(loader(fault), X))
    assert {finding.kind for finding in report} == found, report


def test_a_report_names_the_warp():
    report = pipelib.check(pipelib.trace(loader("one slot"), X))
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

    program = pipelib.trace(kernels.of(kernel, scratch_types=[TILE, plgpu.Barrier()]), X)
    waits = [(op.thread, op.phase) for ops in program.threads for op in ops if op.kind == "wait"]
    assert waits == [(0, 0), (0, 1), (1, 0)]
    report = pipelib.check(program)
    assert [finding.kind for finding in report] == ["deadlock"]
    assert "thread 0 waits for phase 1 of `loaded`" in report[0].cause


def test_warps_that_do_not_all_come_back():
    def kernel(x, o, never):
        def apart(warp):
            @pl.when(warp == 2)
            def _():
                plgpu.barrier_wait(never)

        plgpu.warp_map(apart)

    report = pipelib.check(pipelib.trace(kernels.of(kernel, scratch_types=[plgpu.Barrier()]), X))
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
    program = pipelib.trace(kernels.of(kernel, scratch_types=scratch), X, max_steps=2)
    assert program.truncated == (0, 1, 2, 3, 4)
    assert pipelib.check(program).ok


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
    program = pipelib.trace(kernels.of(kernel, **cluster), X)
    assert [warp.thread for warp in program.warps] == [0] * 4 + [1] * 4
    assert program.block_of(9) == 1
    report = pipelib.check(program)
    assert report.ok, report
    assert "block 1 lane" not in str(report)
    names = pipelib.simulate(program, pipelib.H100).lanes
    assert "block 1 thread 0 warp 3" in names
