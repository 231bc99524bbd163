"""Simulated times of Blackwell's ops: on a machine of round numbers, on the B200's public ones."""

import dataclasses
import functools

import pytest
from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu

import pallascope
from pallascope.simulating.costs import Costs
from pallascope.spans import SpanKind
from tests.pallascope import blackwell
from tests.pallascope.kernels import like
from tests.pallascope.toy import TOY

TOY_CORE = TOY.changed(
    name="toy",
    tcgen05_flops_per_cycle=(("float16", 1024.0), ("float8_e4m3fn", 2048.0)),
    tmem_bytes_per_cycle=512.0,
    smem_bytes_per_cycle=256.0,
)


def spans(timeline, kind):
    return [span for span in timeline.spans if span.kind == kind]


def lane(timeline, span):
    return timeline.lanes[span.lane]


def test_a_product_takes_its_operations_or_its_operands():
    program = blackwell.PROGRAMS["one slot"]()
    product = next(op for op in program.threads[0] if op.kind == "tcgen05_mma")
    cycles = lambda machine: Costs(program, machine).product(product)
    assert cycles(TOY_CORE) == 2 * 128 * 64 * 64 / 1024
    slow = TOY_CORE.changed(smem_bytes_per_cycle=8.0)
    assert cycles(slow) == (128 * 64 + 64 * 64) * 2 / 8


@pytest.mark.parametrize(("columns", "is_bound"), [(64, True), (128, False), (256, False)])
def test_narrow_products_wait_for_smem(columns, is_bound):
    """As measured elsewhere: with both operands in SMEM, below 128 columns (SemiAnalysis, 2026)."""
    program = blackwell.PROGRAMS["one slot"]()
    product = next(op for op in program.threads[0] if op.kind == "tcgen05_mma")
    a, b = product.reads
    wide = dataclasses.replace(
        product,
        flops=2 * 128 * 64 * columns,
        reads=(a, dataclasses.replace(b, box=(b.box[0], (0, 64), (0, columns)))),
    )
    cycles = Costs(program, pallascope.B200).product(wide)
    assert (cycles > wide.flops / pallascope.B200.tcgen05_rate("float16")) == is_bound


def test_each_block_of_a_pair_loads_through_its_own_port():
    timeline = pallascope.simulate(blackwell.PROGRAMS["a pair of blocks"](), TOY_CORE)
    first = sorted(spans(timeline, SpanKind.LOAD), key=lambda span: span.start)[:2]
    assert [lane(timeline, span) for span in first] == ["block 0 TMA loads", "block 1 TMA loads"]
    assert first[0].start == first[1].start


def test_two_blocks_multiply_at_once_in_half_the_time():
    program = blackwell.PROGRAMS["a pair of blocks"]()
    product = next(op for op in program.threads[0] if op.kind == "tcgen05_mma")
    assert Costs(program, TOY_CORE).product(product) == 2 * 256 * 128 * 64 / (2 * 1024)
    assert len(product.writes) == 2


def test_a_commit_arrives_when_the_products_before_it_are_over():
    timeline = pallascope.simulate(blackwell.PROGRAMS["one slot"](), TOY_CORE)
    (product,) = spans(timeline, SpanKind.WGMMA)
    (read,) = (s for s in spans(timeline, SpanKind.ACCESS) if s.text.startswith("load_tmem"))
    assert lane(timeline, product) == "tensor core"
    assert not timeline.stuck
    waits = [s for s in spans(timeline, SpanKind.WAIT) if "finished" in s.text]
    due = product.stop + TOY_CORE.wgmma_latency_cycles + TOY_CORE.wake_cycles
    assert [w.stop for w in waits] == [pytest.approx(due)]
    assert read.stop - read.start == 128 * 64 * 4 / 512


def test_a_tracked_load_is_over_when_the_parts_of_both_blocks_have_landed():
    timeline = pallascope.simulate(blackwell.PROGRAMS["a pair of blocks"](), TOY_CORE)
    assert not timeline.stuck
    loads = sorted(spans(timeline, SpanKind.LOAD), key=lambda span: span.start)
    products = sorted(spans(timeline, SpanKind.WGMMA), key=lambda span: span.start)
    assert len(products) == 2
    assert products[0].start > max(load.stop for load in loads[:4])


@pytest.mark.parametrize("kernel", blackwell.PROGRAMS)
def test_every_kernel_comes_to_its_end(kernel):
    timeline = pallascope.simulate(blackwell.PROGRAMS[kernel](), pallascope.B200)
    assert not timeline.stuck and timeline.cycles > 0
    assert "not validated on hardware" in timeline.machine


def test_threads_are_called_by_what_they_do():
    timeline = pallascope.simulate(blackwell.PROGRAMS["three threads"](), pallascope.B200)
    assert timeline.lanes == (
        "memory thread",
        "product thread",
        "compute thread 0",
        "TMA loads",
        "TMA stores",
        "tensor core",
        "tensor memory",
    )


def test_a_kernel_for_the_other_gpu_has_no_time():
    with pytest.raises(ValueError, match="is a tcgen05_mma, which NVIDIA H200 does not have"):
        pallascope.simulate(blackwell.PROGRAMS["one slot"](), pallascope.H200)


def predicted(machine, **fields):
    options = dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, collective=False)
    config = blackwell_matmul_mgpu.TuningConfig(**options | fields)
    call = functools.partial(blackwell_matmul_mgpu.matmul_kernel, config=config)
    return pallascope.predict(call, like(4096, 4096), like(4096, 8192), machine=machine)


def test_a_launch_has_a_time():
    """Where L2 gives all that is asked, more slots help, and so does a pair of blocks."""
    machine = pallascope.B200.changed(l2_bytes_per_second=1e15, l2_shared_bytes_per_second=1e15)
    found = [
        predicted(machine, **fields).us
        for fields in (dict(max_concurrent_steps=2), {}, dict(collective=True))
    ]
    assert found == sorted(found, reverse=True)
    assert 2 * 4096 * 4096 * 8192 / (found[-1] * 1e-6) < 2.25e15


def test_blocks_that_take_over_others_make_all_of_them():
    """Two tiles for each of 148 SMs or 74 pairs take about twice the time of one."""
    (one,) = predicted(pallascope.B200, tile_n=256).launches
    assert (one.rounds, one.blocks_per_sm) == (1, 1)
    config = blackwell_matmul_mgpu.TuningConfig(128, 128, 64, 4, False)
    call = functools.partial(blackwell_matmul_mgpu.matmul_kernel, config=config)
    times = [
        pallascope.predict(
            call, like(128 * 37, 1024), like(1024, 512 * n), machine=pallascope.B200
        ).us
        for n in (1, 2, 4)
    ]
    assert 1.4 < times[1] / times[0] < 2.1 and 1.6 < times[2] / times[1] < 2.1
