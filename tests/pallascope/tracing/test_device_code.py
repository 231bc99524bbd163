"""Device code in kernels: named barriers and fences, and what stays opaque."""

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from tests.pallascope import kernels
from tests.pallascope.constructs.device_code import ROW, bar, given_back, handed_over, met_by_all

pytestmark = pytest.mark.both_jax


def found(kernel, *args):
    report = pallascope.check(pallascope.trace(kernel, *args))
    return report, {finding.kind for finding in report}


def test_a_named_barrier_puts_threads_in_order():
    program = pallascope.trace(handed_over())
    (barrier,) = program.barriers
    assert (barrier.name, barrier.arrivals, barrier.type, barrier.number) == (
        "named barrier 5",
        2,
        "named",
        5,
    )
    kinds = [[op.kind for op in ops if op.barrier is not None] for ops in program.threads]
    assert kinds == [["arrive"], ["arrive", "wait"]]
    report = pallascope.check(program)
    assert report.ok and not report.notes


def test_a_number_may_be_the_kernel_s():
    number = lambda: lax.axis_index("wg") * 0 + 5
    assert found(handed_over(("sync", number, 256), ("arrive", number, 256)))[1] == set()


@pytest.mark.parametrize(
    ("wait", "arrive", "kinds"),
    [
        (("sync", 6, 256), ("arrive", 5, 256), {"deadlock"}),
        (("arrive", 5, 256), ("arrive", 5, 256), {"race", "uninitialized-read"}),
        (("sync", 5, 256), ("arrive", 1, 256), {"deadlock", "barrier-misuse"}),
        (("sync", 5, 384), ("arrive", 5, 384), {"deadlock"}),
        (("sync", 2, 256), ("arrive", 2, 256), {"barrier-misuse"}),
    ],
)
def test_faults_of_named_barriers(wait, arrive, kinds):
    report, found_kinds = found(handed_over(wait, arrive))
    assert found_kinds <= kinds and found_kinds, report


def test_arrivals_that_are_left_on_a_named_barrier_do_no_harm():
    def kernel(o):
        bar("arrive", 5)
        o[...] = jnp.zeros(128, jnp.float32)

    assert found(kernels.of(kernel, ROW))[0].ok


def test_a_number_that_mosaic_gpu_uses_is_told():
    report, _ = found(handed_over(("sync", 2, 256), ("arrive", 2, 256)))
    assert report[0].cause == (
        "thread 0 arrives on named barrier 2, which Mosaic GPU uses itself (the lanes of thread 1"
        " meet there): its arrivals and these count together."
    )
    assert report[0].remedy == "Take a number from 3 to 15."
    report, _ = found(handed_over(("sync", 0, 256), ("arrive", 0, 256)))
    assert "uses itself (all threads meet there)" in report[0].cause


def test_lanes_that_do_not_agree_are_refused():
    told = (
        r"device_code\.py:\d+: named barrier 5 takes 3 arrivals here and 2 elsewhere, but PTX"
        r" gives it no meaning unless all agree: give it the same number of lanes everywhere\."
    )
    with pytest.raises(ValueError, match=told):
        pallascope.trace(handed_over(("sync", 5, 384)))


@pytest.mark.parametrize("lanes", [160, 256])
def test_a_barrier_of_a_thread_and_a_warp(lanes):
    report, kinds = found(given_back(lanes), ROW)
    if lanes == 160:
        assert report.ok, report
    else:  # a quarter of an arrival
        assert any("opaque" in note for note in report.notes) and "race" in kinds


def test_a_barrier_of_all_threads():
    program = pallascope.trace(met_by_all())
    assert [op.members for op in program.threads[0] if op.kind == "meet"] == [(0, 1)]
    assert pallascope.check(program).ok


def test_a_fence_by_hand_is_a_commit():
    def kernel(o, row):
        row[...] = jnp.ones(128, jnp.float32)
        plgpu.inline_mgpu()(lambda context: mgpu.commit_shared())()
        plgpu.copy_smem_to_gmem(row, o)
        plgpu.wait_smem_to_gmem(0)

    report, _ = found(kernels.of(kernel, ROW, scratch_types=[plgpu.SMEM((128,), jnp.float32)]))
    assert report.ok and not report.notes


@pytest.mark.parametrize(
    "code",
    [
        lambda context: context.block_idx,
        lambda context: mgpu.utils.inline_ptx("nanosleep.u32 10;"),
        lambda context: 1 / 0,
    ],
)
def test_what_is_not_understood_is_opaque(code):
    def kernel(o):
        plgpu.inline_mgpu()(code)()
        o[...] = jnp.zeros(128, jnp.float32)

    report, _ = found(kernels.of(kernel, ROW))
    assert report.ok
    assert report.notes == ("opaque code was taken on trust: <lambda>.",)
