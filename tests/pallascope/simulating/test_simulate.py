"""`simulate`: exact times on a machine of round numbers, and what holds for every program."""

import itertools
import re
from dataclasses import replace

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.machine import H200
from pallascope.program import Barrier, Buffer, Op, Program
from pallascope.simulating.simulate import simulate
from pallascope.simulating.traffic import best_l2_hits, likely_l2_hits
from pallascope.simulating.units import Port
from tests.pallascope import corpus, kernels, toy
from tests.pallascope.kernels import like
from tests.pallascope.toy import TOY, arrive, compute, load, op, product, program, ring, wait


def times(timeline, kind=None):
    """(lane, kind, start, stop) of each span."""
    return [
        (timeline.lanes[s.lane], s.kind, s.start, s.stop)
        for s in timeline.spans
        if kind in (None, s.kind)
    ]


def run(*threads, hits=1.0, **fields):
    return simulate(program(*threads, **fields), TOY, l2_hits=hits)


def test_a_load_is_issued_moved_and_landed():
    found = run([load(0), wait(0, 0), compute()])
    assert times(found) == [
        ("thread 0", "issue", 0, 2),
        ("TMA loads", "load", 2, 2 + 20 + 10),
        ("thread 0", "wait", 2, 32),
        ("thread 0", "compute", 32, 42),
    ]
    assert found.cycles == 42
    assert found.lanes == ("thread 0", "TMA loads", "TMA stores", "tensor core")
    assert (found.source, found.machine, found.clock_hz, found.notes) == (
        "simulated",
        "toy",
        1e9,
        (),
    )
    wait_span = found.spans[2]
    assert found.spans[wait_span.cause].kind == "load"
    assert (wait_span.slot, wait_span.step, wait_span.thread, wait_span.op) == (None, (0,), 0, 1)


def test_loads_share_the_port_and_overlap_in_latency():
    found = run([load(0), load(1), wait(0, 1)])
    assert times(found, "load") == [("TMA loads", "load", 2, 32), ("TMA loads", "load", 22, 52)]
    assert found.cycles == 52


def test_hits_set_the_latency():
    found = run([load(0), wait(0, 0)], hits=0.25)
    assert found.cycles == 2 + 20 + (10 * 0.25 + 30 * 0.75)


def test_hbm_and_l2_set_the_bandwidth():
    fast = replace(TOY, sm_bytes_per_cycle=8, l2_bytes_per_second=4e9, sms=2)
    bytes_per_cycle = lambda active, hbm: fast.gmem_bytes_per_cycle(active, hbm)
    assert bytes_per_cycle(1, 0) == 4  # L2's
    assert bytes_per_cycle(2, 0) == 2  # and half of it
    assert bytes_per_cycle(1, 0.5) == 2  # HBM's 1, of half the bytes
    assert replace(fast, l2_bytes_per_second=99e9).gmem_bytes_per_cycle(1, 0) == 8
    one = program([load(0), wait(0, 0)])
    assert simulate(one, fast, l2_hits=1).cycles == 2 + 20 / 4 + 10
    two_blocks = replace(one, grid=(2,))
    assert simulate(two_blocks, fast, l2_hits=1).cycles == 2 + 20 / 2 + 10


def test_an_sm_s_share_bounds_the_mean_and_not_each_copy():
    """20 bytes take 5 cycles at the SM's 4 a cycle, and 20 at its share of 1."""
    fast = replace(TOY, sm_bytes_per_cycle=4)
    late = [load(0), compute(flops=60), load(1), wait(0, 1)]
    found = simulate(program(late), fast, l2_hits=1)
    # The first is due 20 cycles after it was asked for; at the second, 40 bytes long are.
    expected = [("TMA loads", "load", 17, 32), ("TMA loads", "load", 64, 79)]
    assert times(found, "load") == expected
    ahead = simulate(program([load(0), load(1), wait(0, 1)]), fast, l2_hits=1)
    assert times(ahead, "load") == [("TMA loads", "load", 17, 32), ("TMA loads", "load", 37, 52)]
    assert simulate(program([load(0), wait(0, 0)]), fast, l2_hits=1).cycles == 2 + 20 + 10


@pytest.mark.parametrize(("begins_anew", "start"), [(False, 2000), (True, 2300)])
def test_what_a_block_did_not_use_the_next_one_does_not_get(begins_anew, start):
    """400 bytes take 100 cycles at 4 a cycle, and 400 at the share of 1."""
    port = Port(share=1.0)
    assert port.move(0, 400, 4) == (300, 400)
    if begins_anew:
        port.renew()
    assert port.move(2000, 400, 4) == (start, start + 100)


def test_a_load_lands_with_the_last_of_its_lines():
    """300 bytes are three lines of 128; each has the probability of a half to be in L2."""
    found = run([load(0, size=300), wait(0, 0)], hits=0.5, slot_bytes=300)
    assert found.cycles == 2 + 300 + (10 * 0.125 + 30 * 0.875)


def test_l2_gives_more_of_what_blocks_share():
    """A block loads 20 of 20,000 bytes: each of these is loaded twice where 2000 blocks do."""
    machine = replace(
        TOY,
        sm_bytes_per_cycle=8,
        l2_bytes_per_second=1e9,
        l2_shared_bytes_per_second=2e9,
        hbm_bytes_per_second=99e9,
    )
    cycles = lambda blocks, ops: (
        simulate(replace(program(ops), grid=(blocks,)), machine, l2_hits=1).cycles
    )
    once = [load(0), wait(0, 0)]
    assert cycles(1999, once) == 2 + 20 / 1 + 10
    assert cycles(2000, once) == 2 + 20 / 2 + 10
    # The same twice by the same block is not shared.
    twice = [load(0), replace(load(0), index=1), wait(0, 0), wait(0, 1)]
    assert cycles(1999, twice) == 2 + 40 / 1 + 10


def test_by_default_l2_has_all_but_the_first_fetch_of_an_array():
    """20 bytes by each of 1000 blocks are the array; by 4000, a quarter comes from HBM."""
    one = program([load(0), wait(0, 0)])
    for blocks, hits in ((10, 0), (1000, 0), (4000, 0.75)):
        expected = simulate(replace(one, grid=(blocks,)), TOY, l2_hits=hits)
        assert simulate(replace(one, grid=(blocks,)), TOY) == expected
    assert simulate(replace(one, grid=(4000,)), TOY).cycles != expected.cycles - 1


def test_products_run_in_order_on_one_tensor_core():
    waits = [op("wgmma_wait", pending=1), op("wgmma_wait", pending=0)]
    found = run([product(), product(), *waits], [product()])
    assert sorted(times(found, "wgmma"), key=lambda t: t[2]) == [
        ("tensor core", "wgmma", 1, 101),
        ("tensor core", "wgmma", 101, 201),
        ("tensor core", "wgmma", 201, 301),
    ]
    waits = [s for s in found.spans if s.kind == "wait"]
    assert [s.thread for s in waits] == [0, 0]
    for span in waits:
        assert span.stop == found.spans[span.cause].stop + TOY.wgmma_latency_cycles
        assert found.spans[span.cause].thread == 0


def test_a_product_of_small_operands_waits_for_smem():
    """2 x 64 rows of 4 left operands; 4 x 8 right ones, read for each 64 rows again: 1152 bytes."""
    shapes = (toy.region(0, (0, 128), (0, 4)), toy.region(1, (0, 4), (0, 8)))
    acc = toy.region(toy.ACC, (0, 128), (0, 8))
    small = op("wgmma", reads=(*shapes, acc), writes=(acc,), flops=100)
    made = program([small])
    smem = tuple(replace(b, space="smem") if b.id in (0, 1) else b for b in made.buffers)
    found = simulate(replace(made, buffers=smem), TOY)
    assert times(found, "wgmma") == [("tensor core", "wgmma", 1, 1 + 128 * 4 * 2 + 2 * 4 * 8 * 2)]


def test_acc_read_waits_for_products():
    assert run([product(), op("acc_read", pending=0), compute()]).cycles == 1 + 100 + 3 + 10


def test_an_accumulator_that_is_read_as_it_is():
    """`wgmma_accumulator_load(acc, wait_n=None)` waits for nothing, so it takes no time."""
    assert times(run([product(), op("acc_read"), compute()]), "wait") == []


def test_stores_are_read_then_written():
    store = op("store", bytes=20, reads=(toy.region(toy.RING, (0, 1), (0, 1), (0, 10)),))
    group = [store, op("commit_group")]
    reads = op("wait_store", pending=0, read_only=True)
    assert times(run([*group, reads]), "wait") == [("thread 0", "wait", 2, 22)]
    written = run([*group, op("wait_store", pending=0)])
    assert times(written, "wait") == [("thread 0", "wait", 2, 29)]
    assert times(written, "store") == [("TMA stores", "store", 2, 29)]
    assert written.spans[written.spans[-1].cause].kind == "store"
    # One group may go on: nothing to wait for.
    assert times(run([*group, op("wait_store", pending=1)]), "wait") == []
    two = run([*group, *group, op("wait_store", pending=1), compute()])
    assert times(two, "wait") == [("thread 0", "wait", 4, 29)]


def test_an_uncommitted_store_is_not_waited_for():
    store = op("store", bytes=20)
    assert times(run([store, op("wait_store", pending=0)]), "wait") == []


def test_accesses_take_their_wavefronts():
    """Of 128 bytes each, however few they move; bytes, where the trace did not tell."""
    ring_region = toy.region(toy.RING, (0, 1), (0, 1), (0, 10))
    slow = replace(TOY, smem_write_cycles=6)
    read = op("read", reads=(ring_region,), bytes=20, wavefronts=2)
    write = op("write", writes=(ring_region,), bytes=20, wavefronts=1)
    found = simulate(program([read, write, replace(write, wavefronts=None)]), slow)
    ends = list(itertools.accumulate([2 * 128 + 3, 128 + 6, 20 + 6]))
    assert [span.stop for span in found.spans] == ends
    assert [span.text for span in found.spans] == [
        "read x, 2 wavefronts",
        "write x, 1 wavefronts",
        "write x",
    ]
    # The wavefronts are all that others wait for.
    both = simulate(program([write], [replace(write, thread=1)]), slow)
    assert sorted(span.stop for span in both.spans) == [128 + 6, 2 * 128 + 6]


def test_arithmetic_and_accesses():
    ring_region = toy.region(toy.RING, (0, 1), (0, 1), (0, 10))
    read = op("read", reads=(ring_region,), bytes=20)
    write = op("write", writes=(ring_region,), bytes=20)
    found = run([read, compute(flops=10, transcendental=2), write, op("fence")])
    assert times(found) == [
        ("thread 0", "access", 0, 23),
        ("thread 0", "compute", 23, 23 + 8 + 2 / 0.25),
        ("thread 0", "access", 39, 59),
        ("thread 0", "issue", 59, 64),
    ]
    gmem = op("read", reads=(toy.region(toy.GMEM, (0, 1), (0, 10)),), bytes=20)
    assert run([gmem]).cycles == 20 + 10


def test_exchanges_between_lanes_take_their_time():
    """At half of one a cycle, after what else the op does."""
    found = run([compute(flops=10, transcendental=2, exchanges=6), compute(flops=0, exchanges=4)])
    assert [stop for *_, stop in times(found)] == [8 + 2 / 0.25 + 6 / 0.5, 28 + 4 / 0.5]


def test_threads_share_the_alu():
    assert run([compute(flops=50)], [compute(flops=50)]).cycles == 100


def test_arrivals_of_two_threads_complete_a_phase():
    threads = (
        [compute(flops=10), arrive(1, 0)],
        [compute(flops=30), arrive(1, 0)],
        [wait(1, 0), compute(flops=1)],
    )
    found = run(*threads, arrivals=(1, 2))
    (waited,) = (s for s in found.spans if s.kind == "wait")
    assert (waited.stop, found.spans[waited.cause].thread) == (41, 1)


def test_waking_and_passing_take_their_time():
    slow = replace(TOY, wait_cycles=6, wake_cycles=9)
    woken = simulate(program([arrive(0, 0)], [wait(0, 0)]), slow)
    assert times(woken, "wait") == [("thread 1", "wait", 0, 1 + 9)]
    passed = simulate(program([arrive(0, 0), compute(flops=50), wait(0, 0)]), slow)
    assert times(passed, "wait") == [("thread 0", "wait", 51, 57)]
    assert passed.spans[passed.spans[-1].cause].kind == "issue"


def test_threads_meet_where_a_shared_scope_begins():
    begin = op("scope_begin", scope_id=0, shared=True)
    found = run([compute(flops=40), begin], [begin, compute(flops=5)])
    assert times(found, "wait") == [("compute thread 1", "wait", 0, 44)]
    assert times(found, "issue") == [("compute thread 0", "issue", 40, 44)]
    (waited,) = (s for s in found.spans if s.kind == "wait")
    assert found.spans[waited.cause].thread == 0
    assert found.cycles == 49
    alone = run([op("scope_begin", scope_id=0)], [])
    assert alone.cycles == 0


def test_a_deadlock_ends_and_says_who_waits():
    found = run([load(0), wait(0, 0), wait(0, 0)], [wait(1, 1)])
    assert found.cycles == 32
    assert found.stuck
    assert str(found).startswith("toy, simulated on toy: stops at 32 cycles\n")
    (note,) = found.notes
    assert note == (
        "deadlock at 32 cycles: thread 0 waits on produced[0], phase 1, which got 0 of 1 arrivals;"
        " thread 1 waits on consumed[1], phase 0, which got 0 of 1 arrivals"
    )
    stuck = [s for s in found.spans if s.text.endswith("for ever")]
    assert [(s.thread, s.start, s.stop, s.cause) for s in stuck] == [
        (0, 32, 32, None),
        (1, 0, 32, None),
    ]
    alone = run([op("scope_begin", scope_id=3, shared=True)], [])
    assert "thread 0 waits for the other threads to begin the shared scope 3" in alone.notes[0]


def test_a_truncated_program_says_so():
    cut = program([load(0)], [wait(0, 0), wait(0, 1)], truncated=(0,))
    found = simulate(cut, TOY, l2_hits=1)
    assert found.truncated and not found.stuck
    assert found.notes[0] == "truncated: the end of thread 0 is missing"
    assert found.notes[1].startswith("cut off at 32 cycles: thread 1 waits on produced[1]")
    both = simulate(program([load(0)], [wait(0, 0)], truncated=(0, 1)), TOY)
    assert both.notes == ("truncated: the ends of thread 0, thread 1 are missing",)


def test_opaque_ops_take_no_time_and_are_told():
    found = run([op("opaque", function="clock"), compute()])
    assert (found.cycles, found.notes) == (10, ("1 opaque ops are taken to need no time",))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(blocks_per_sm=0), "blocks_per_sm=0 is less than 1: no block would run"),
        (dict(l2_hits=1.5), "l2_hits=1.5 is not a fraction from 0 to 1"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        simulate(program([]), TOY, **options)


def test_a_dtype_without_a_rate():
    made = program([product()])
    odd = replace(made.buffers[toy.RING], dtype="int4")
    region = toy.region(toy.RING, (0, 1), (0, 1), (0, 10))
    ops = (replace(product(), reads=(region,), line="k.py:7"),)
    made = replace(made, threads=(ops,), buffers=(made.buffers[0], odd, *made.buffers[2:]))
    with pytest.raises(ValueError, match=r"k\.py:7 multiplies int4, but toy has rates"):
        simulate(made, TOY)


def test_operands_in_a_union_are_multiplied_as_what_they_are():
    """The union itself has bytes, for which no rate is known."""

    def multiply(in_union):
        def kernel(a, b, o, memory, loaded):
            a_smem, b_smem = memory[0] if in_union else memory
            plgpu.copy_gmem_to_smem(a, a_smem, loaded)
            plgpu.copy_gmem_to_smem(b, b_smem, loaded)
            plgpu.barrier_wait(loaded)

            def scope(acc):
                plgpu.wgmma(acc, a_smem, b_smem)
                return acc[...].astype(jnp.float16)

            o[...] = pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

        tile = plgpu.SMEM((64, 64), jnp.float16, transforms=kernels.TRANSFORMS)
        memory = [tile, tile]
        memory = plgpu.RefUnion(memory, plgpu.SMEM((64, 64), jnp.float32)) if in_union else memory
        scratch = [memory, plgpu.Barrier(num_arrivals=2)]
        made = kernels.of(kernel, like(64, 64), scratch_types=scratch)
        found = simulate(pallascope.trace(made, like(64, 64), like(64, 64)), H200)
        return [(s.start, s.stop) for s in found.spans if found.lanes[s.lane] == "tensor core"]

    assert multiply(in_union=True) == multiply(in_union=False) != []


def test_resident_blocks_share_what_an_sm_has():
    one = program([compute(flops=50)])
    found = simulate(one, TOY, blocks_per_sm=3)
    assert found.notes == ("one of 3 blocks that share the multiprocessor",)
    assert times(found) == [("thread 0", "compute", 0, 50)]
    steps = ring(20, 2, 5)
    crowded = simulate(steps, TOY, blocks_per_sm=3)
    assert crowded.cycles >= 2.9 * 20 * 20  # the port moves 20 bytes of 20 steps for each
    assert not any(s.thread is None for s in crowded.spans)
    assert len(crowded.spans) == len(simulate(steps, TOY).spans)


def test_the_blocks_of_a_cluster_have_servers_of_their_own():
    found = simulate(program([compute()], [compute()], blocks=2), TOY)
    assert found.cycles == 10
    assert found.lanes[:2] == ("block 0 thread 0", "block 0 TMA loads")
    assert found.lanes[4] == "block 1 thread 0"
    assert [s.lane for s in found.spans] == [0, 4]


def test_a_multicast_lands_on_all_peers():
    """Each block loads half of what both need: a phase takes both halves."""
    peers = 0, 1
    barriers = tuple(
        Barrier(i, f"produced{i}", 1, 1, ("x",), block=i, peers=peers) for i in range(2)
    )
    part = lambda i: replace(load(0), barrier=i, peers=peers, bytes=10)
    threads = [[compute(flops=30 * i), part(i), wait(i, 0)] for i in range(2)]
    made = replace(program(*threads, blocks=2), barriers=barriers)
    found = simulate(made, TOY, l2_hits=1)
    landed = [s.stop for s in found.spans if s.kind == "load"]
    assert landed == [2 + 10 + 10, 30 + 2 + 10 + 10]
    waits = [s for s in found.spans if s.kind == "wait"]
    assert [s.stop for s in waits] == [52, 52]


def test_a_multicast_takes_the_port_of_each_block_that_gets_it():
    """Each block loads 20 bytes for both; block 1 has asked for 40 of its own before."""
    barriers = tuple(
        Barrier(i, f"produced{i}", 1, 2, ("x",), block=i, peers=(0, 1)) for i in range(2)
    )
    own = replace(load(0, size=40), barrier=1, index=0)
    part = lambda block: replace(load(1), barrier=block, index=1, peers=(0, 1))
    threads = [[compute(flops=10), part(0), wait(0, 1)], [own, part(1), wait(1, 1)]]
    made = replace(program(*threads, blocks=2, slot_bytes=40), barriers=barriers)
    found = simulate(made, TOY, l2_hits=1)
    assert found.gmem == (((4, 24), (24, 44)), ((2, 42), (42, 62), (62, 82)))
    # Each block goes on when its own copies have landed.
    waits = {s.thread: s.stop for s in found.spans if s.kind == "wait"}
    assert waits == {0: 44 + 10, 1: 82 + 10}


def test_of_a_multicast_all_that_get_it_count_for_what_l2_has():
    """2000 clusters load 20 bytes of an array of 20,000; each block loads half of them."""
    halves = [replace(load(step, size=10), index=0) for step in range(2)]
    loaded = program(*([half] for half in halves), blocks=2, grid=(2000,))
    shared = program(*([replace(half, peers=(0, 1))] for half in halves), blocks=2, grid=(2000,))
    assert best_l2_hits(loaded) == 1 - 20_000 / (2000 * 20)
    assert best_l2_hits(shared) == 1 - 20_000 / (2000 * 40)


@pytest.mark.parametrize(
    ("size", "kept"),
    [(100, 1.0), (833_300, 1.0), (1_250_000, 0.5), (1_666_700, 0.0)],
)
def test_l2_keeps_what_a_block_loads_again_if_all_blocks_find_room(size, kept):
    """Ten SMs have two blocks each, which move 1.5 times the bytes until these come again."""
    ops = [load(0, size=size), op("store", bytes=size // 2), load(0, size=size)]
    made = program(ops, grid=(200,), slot_bytes=size // 5)
    machine = TOY.changed(sms=10)
    assert likely_l2_hits(made, machine, 2) == pytest.approx(0.5 * kept, abs=1e-5)
    # What others load too, as a product's rows, is not a block's alone.
    shared = program(ops, grid=(200,), slot_bytes=size // 50)
    assert likely_l2_hits(shared, machine, 2) == best_l2_hits(shared)


def test_a_store_that_adds_takes_longer_than_one_that_does_not():
    store = op("store", bytes=20)
    stop = lambda each: times(run([each]), "store")[0][-1]
    longer = stop(replace(store, combines="add")) - stop(store)
    assert longer == (TOY.add_cost - 1) * 20


def test_calibrated_constants_lengthen_what_they_are_of():
    """A wait for products, products, and operations, which are 100 cycles each or none."""
    ops = [product(), op("wgmma_wait", pending=0), compute(flops=100)]
    cycles = lambda **fields: simulate(program(ops), TOY.changed(**fields)).cycles
    assert cycles(wgmma_restart_cycles=9) == cycles() + 9
    assert cycles(wgmma_reach=0.5) == cycles() + 100
    assert cycles(code_growth=1.25) == cycles() + 25


def test_functions_and_all_else_of_two_threads_overlap():
    """12 functions take 48 cycles of their unit, 30 additions 30 of theirs."""
    softmax = compute(flops=42, transcendental=12)
    cycles = lambda *threads, **fields: simulate(program(*threads), TOY.changed(**fields)).cycles
    assert cycles([softmax]) == 48 + 30
    assert cycles([compute(flops=12, transcendental=12)], [compute(flops=30)]) == 48
    assert cycles([softmax], [softmax]) == 48 + 78
    assert cycles([softmax], [softmax], arithmetic_reach=0.75) == 64 + 78
    assert cycles([softmax, softmax], arithmetic_reach=0.75) == 78 + 78  # its own turn
    assert cycles([compute(flops=30)], [compute(flops=30)]) == 60


def test_arithmetic_beside_products_takes_longer_while_they_run():
    """A product takes 100 cycles of the tensor core, from cycle 1 on."""
    slow = TOY.changed(alu_slowdown=2, transcendental_slowdown=1.5)
    cycles = lambda each: simulate(program([product(), each]), slow).cycles
    assert cycles(compute(flops=40)) == 101
    stop = lambda each: times(simulate(program([product(), each]), slow), "compute")[0][-1]
    assert stop(compute(flops=40)) == 1 + 40 * 2
    assert stop(compute(flops=10, transcendental=10)) == 1 + 40 * 1.5
    assert stop(compute(flops=80)) == 101 + 80 - 50  # the half of it that was done by then
    assert stop(compute(flops=50, transcendental=10)) == pytest.approx(101 + 80 - 100 / 1.75)


def test_hbm_reads_faster_than_it_writes():
    fast = TOY.changed(sm_bytes_per_cycle=8, l2_bytes_per_second=99e9, hbm_read_gain=1.25)
    rate = lambda written: fast.gmem_bytes_per_cycle(1, 1, written=written)
    assert rate(0.5) == 1  # a copy
    assert rate(0) == 1.25
    assert 1 / rate(1) == pytest.approx(2 / rate(0.5) - 1 / rate(0))


@pytest.mark.parametrize(
    ("columns", "first", "times_as_long"),
    [(64, 0, 1), (80, 0, 1), (72, 0, 1.25), (72, 8, 1.25), (64, 8, 1.5), (64, 16, 1)],
)
def test_rows_that_begin_inside_a_sector_take_longer(columns, first, times_as_long):
    """A sector has 16 elements of float16. Of 72 columns, each second row begins inside one."""
    wide = Buffer(toy.GMEM, "in0", "gmem", (16, columns), "float16", 32 * columns)
    rows = replace(load(0, size=1024), reads=(toy.region(0, (0, 16), (first, first + 32)),))
    made = program([rows, wait(0, 0)], slot_bytes=1024)
    made = replace(made, buffers=(wide, *made.buffers[1:]))
    assert simulate(made, TOY, l2_hits=1).cycles == 2 + 1024 * times_as_long + 10


def test_an_arrival_on_a_cluster_barrier_reaches_all_peers():
    barriers = tuple(
        Barrier(i, f"consumed{i}", 2, 1, ("x",), block=i, peers=(0, 1)) for i in range(2)
    )
    threads = [[compute(flops=20 * i), arrive(i, 0, 1), wait(i, 0, 1)] for i in range(2)]
    made = replace(program(*threads, blocks=2), barriers=barriers)
    waits = [s.stop for s in simulate(made, TOY).spans if s.kind == "wait"]
    assert waits == [21, 21]


def test_named_scopes_are_spans_around_others():
    ops = [
        replace(compute(step), scope=scope)
        for step in (0, 1)
        for scope in ("outer", "outer/inner", "")
    ]
    found = [s for s in run(ops).spans if s.kind == "scope"]
    assert [(s.text, s.step, s.start, s.stop) for s in found] == [
        ("outer", (0,), 0, 20),
        ("outer/inner", (0,), 10, 20),
        ("outer", (1,), 30, 50),
        ("outer/inner", (1,), 40, 50),
    ]


# What holds for every program.

RINGS = dict(
    steps=st.integers(1, 12),
    slots=st.integers(1, 5),
    flops=st.integers(0, 60),
    size=st.sampled_from([4, 20, 64]),
    threads=st.integers(1, 3),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(**RINGS)
def test_what_holds_for_every_ring(steps, slots, flops, size, threads):
    made = ring(steps, slots, flops, size, threads)
    found = simulate(made, TOY, l2_hits=1)
    assert not found.notes
    assert found == simulate(made, TOY, l2_hits=1)
    # Each op of a thread is one span there, in order, without a gap: a thread works or waits.
    names = ["memory thread", *(f"compute thread {i}" for i in range(threads))]
    for thread, name in enumerate(names):
        mine = [s for s in found.spans if found.lanes[s.lane] == name]
        assert [s.op for s in mine] == list(range(len(made.threads[thread])))
        assert mine[0].start == 0
        assert all(a.stop == b.start for a, b in itertools.pairwise(mine))
    for span in found.spans:
        assert span.start <= span.stop <= found.cycles
        if span.kind == "wait":
            cause = found.spans[span.cause]
            assert span.stop == max(span.start, cause.stop)
    # No resource does more than it can.
    assert found.cycles >= steps * size / TOY.sm_bytes_per_cycle
    assert found.cycles >= threads * steps * flops / TOY.alu_ops_per_cycle
    loads = [s for s in found.spans if s.kind == "load"]
    assert all(b.start - a.start >= size for a, b in itertools.pairwise(loads))
    for use in found.uses():
        parts = use.busy, use.waiting, use.bubble
        assert sum(parts) == pytest.approx(1) and min(parts) >= 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**RINGS)
def test_more_slots_are_never_slower(steps, slots, flops, size, threads):
    fewer, more = (simulate(ring(steps, n, flops, size, threads), TOY) for n in (slots, slots + 1))
    assert more.cycles <= fewer.cycles


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kinds=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["wait", "arrive", "load", "meet"])),
        max_size=14,
    )
)
def test_no_program_hangs(kinds):
    """Whatever waits for what, the simulation ends, and says who is stuck if anybody is."""
    meet = op("scope_begin", scope_id=0, shared=True)
    ops = {"wait": wait(0, 0, 1), "arrive": arrive(0, 0, 1), "load": load(0, 1), "meet": meet}
    threads = [], []
    for thread, kind in kinds:
        threads[thread].append(ops[kind])
    found = simulate(program(*threads, slots=1), TOY)
    done = {(s.thread, s.op) for s in found.spans if not s.text.endswith("for ever")}
    all_ops = {(t, i) for t in (0, 1) for i in range(len(threads[t]))}
    assert (done == all_ops) == (not found.notes)


# Traced kernels.


@pytest.mark.parametrize(
    "kernel, shapes",
    [
        (kernels.add_one, [(256, 64)]),
        (kernels.matmul, [(64, 192), (192, 64)]),
        (lambda x: kernels.specialized(x, 2, 1, 2), [(512, 64)]),
    ],
)
def test_traced_kernels_run_to_their_end(kernel, shapes):
    made = pallascope.trace(kernel, *(like(*shape) for shape in shapes))
    found = simulate(made, H200)
    assert found.cycles > 0 and not found.truncated
    assert not any("deadlock" in note for note in found.notes)
    assert all(s.cause is not None for s in found.spans if s.kind == "wait")


CLUSTERS = [kernel for kernel in corpus.clean() if "matmul-cluster_dimension" in kernel.name]


@pytest.mark.parametrize("kernel", CLUSTERS, ids=lambda kernel: kernel.name)
def test_the_blocks_of_a_traced_cluster_move_what_they_get(kernel):
    made = kernel.trace()
    expected = [0] * made.blocks
    for thread, ops in enumerate(made.threads):
        for each in ops:
            if each.kind == "load":
                for barrier in each.peers or (each.barrier,):
                    expected[made.barriers[barrier].block] += each.bytes
            elif each.kind == "store":
                expected[made.block_of(thread)] += each.bytes
    assert any(each.peers for each in made.ops)
    found = simulate(made, TOY, l2_hits=1)  # one byte a cycle
    assert [sum(stop - start for start, stop in uses) for uses in found.gmem] == expected


def test_steady_state_of_a_bounded_ring():
    """Loads of 20 bytes every 20 cycles are what bounds a body of 5."""
    found = simulate(ring(40, 4, 5), TOY, l2_hits=1)
    steady = found.steady()
    assert steady.cycles_per_step == 20
    assert found.bound() == "memory bandwidth: load x (20): 20 cycles for a step"
    assert replace(found, spans=alone(found)).bound() == f"{GMEM_BUSY} 100% of the steady state"
    assert replace(found, spans=alone(found), gmem=()).bound() == (
        "memory bandwidth: 70% of the steady state compute thread 0 waits on produced (load x, TMA"
        " loads)"
    )
    slow = simulate(ring(40, 4, 50), TOY, l2_hits=1)
    assert slow.steady().cycles_per_step == 51
    assert slow.bound() == "compute thread 0: compute (50) -> arrive (1): 51 cycles for a step"
    latent = simulate(ring(40, 1, 5), TOY, l2_hits=1)
    assert latent.bound() == (
        "latency: load x (32) -> compute (5) -> arrive (1): 38 cycles for a step; the GMEM port"
        " alone needs 20 a step"
    )
    assert latent.steady().cycles_per_step == 20 + 10 + 2 + 5 + 1


GMEM_BUSY = "memory bandwidth: the GMEM port is busy"


def alone(timeline):
    """Its spans, none of which says what it was late for, as in what was measured."""
    return tuple(replace(span, after=None) for span in timeline.spans)


def steps_of(*ops, steps=12):
    """The same ops in each step of a thread."""
    return program([replace(each, step=(step,)) for step in range(steps) for each in ops])


def test_stores_alone_are_bound_by_bandwidth_or_not():
    """20 bytes, 2 cycles of issue; a wait until they are read hides nothing, one until they are
    written 7 cycles of latency."""
    store, group = op("store", bytes=20), op("commit_group")
    read, written = op("wait_store", pending=0, read_only=True), op("wait_store", pending=0)
    near = simulate(steps_of(store, group, read), TOY)
    assert near.bound().startswith("latency: store (22): 22 cycles for a step; the GMEM port alone")
    far = simulate(steps_of(store, group, written), TOY)
    assert far.bound().startswith("latency: store (29): 29 cycles for a step; the GMEM port alone")
    ahead = simulate(steps_of(store, group, op("wait_store", pending=1)), TOY)
    assert ahead.bound() == "memory bandwidth: store (20): 20 cycles for a step"
    shares = [replace(found, spans=alone(found)).bound() for found in (near, far, ahead)]
    assert shares[0] == f"{GMEM_BUSY} 91% of the steady state"
    assert shares[1].startswith("stores: 93% of the steady state thread 0 waits for its stores")
    assert shares[2] == f"{GMEM_BUSY} 100% of the steady state"


def test_ordinary_accesses_of_gmem_are_bound_by_bandwidth_or_not():
    region = toy.region(toy.GMEM, (0, 1), (0, 10))
    write = op("write", writes=(region,), bytes=20)
    written = simulate(steps_of(write), TOY)
    assert written.bound() == "thread 0: write in0 (20): 20 cycles for a step"
    shares = replace(written, spans=alone(written)).bound()
    assert shares == f"{GMEM_BUSY} 100% of the steady state"
    read = simulate(steps_of(op("read", reads=(region,), bytes=20)), TOY, l2_hits=1)
    assert read.bound() == "thread 0: read in0 (30): 30 cycles for a step"
    shares = replace(read, spans=alone(read)).bound()
    assert shares == "thread 0: busy 100% of the steady state with its own work"


def test_two_blocks_use_what_one_leaves():
    """A slot's turn takes 38 cycles, 20 of them the bytes'."""
    one, both = (simulate(ring(40, 1, 5), TOY, blocks_per_sm=n, l2_hits=1) for n in (1, 2))
    assert one.bound().startswith("latency: load x (32) -> compute (5) -> arrive (1)")
    assert replace(one, spans=alone(one)).bound().startswith("memory latency: ")
    assert both.bound() == f"{GMEM_BUSY} 100% of the steady state"
    assert len(both.spans) == len(one.spans)


def test_the_share_of_an_sm_is_what_it_uses():
    """Alone it moves 4 bytes a cycle; at the card's rate, a load of 20 takes 20 cycles."""
    fast = replace(TOY, sm_bytes_per_cycle=4)
    found = simulate(ring(40, 4, 5), fast, l2_hits=1)
    assert found.bound() == "memory bandwidth: load x (20): 20 cycles for a step"
    assert found.gmem == (tuple((2 + 20 * i, 22 + 20 * i) for i in range(40)),)
    slow = simulate(ring(40, 4, 30), fast, l2_hits=1)
    assert slow.bound() == "compute thread 0: compute (30) -> arrive (1): 31 cycles for a step"


def test_of_two_units_the_busier_bounds():
    """Products of 100 cycles, and stores of 97 or 103."""
    kinds = "tensor core: wgmma acc (100): 100", "memory bandwidth: store (103): 103"
    shares = "tensor core: busy 100%", f"{GMEM_BUSY} 100%"
    for size, said, share in zip((97, 103), kinds, shares):
        turn = [op("store", bytes=size), op("commit_group"), product(), op("wgmma_wait", pending=1)]
        found = simulate(steps_of(*turn, op("wait_store", pending=1), steps=40), TOY)
        assert found.bound() == f"{said} cycles for a step"
        assert replace(found, spans=alone(found)).bound() == f"{share} of the steady state"


def test_the_blocks_of_a_cluster_have_ports_of_their_own():
    """One computes all the time, the other writes."""
    write = op("write", writes=(toy.region(toy.GMEM, (0, 1), (0, 10)),), bytes=20)
    threads = [compute(step, flops=20) for step in range(12)], [write] * 12
    found = simulate(program(*threads, blocks=2), TOY)
    assert [len(uses) for uses in found.gmem] == [0, 12]
    assert found.bound() == "block 0 thread 0: compute (20): 20 cycles for a step"
    shares = replace(found, spans=alone(found)).bound()
    assert shares == f"{GMEM_BUSY} 100% of the steady state"


def test_summary_says_it_all():
    text = str(simulate(ring(40, 4, 5), TOY, l2_hits=1))
    assert text.splitlines()[0].startswith("toy, simulated on toy: 8")
    assert "20.0 cycles a step in the steady state" in text
    assert re.search(r"compute thread 0 +busy +\d+\.\d% +waiting +\d+\.\d% +bubble +\d+\.\d%", text)
    empty = simulate(Program("nothing", ((),)), TOY)
    assert "nothing: no time passes" in str(empty)


def test_an_op_needs_no_more_than_its_kind():
    """Programs built by hand often leave regions and lines out."""
    for kind in ("load", "store", "prefetch", "fence", "registers", "acc_init", "acc_write"):
        simulate(Program("bare", ((Op(kind, 0),),)), TOY)
