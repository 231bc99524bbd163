"""`launched`: the time of a grid from a few of its blocks, exact on a machine of round numbers."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope.program import Buffer
from pallascope.simulating.launch import (
    _interpolated,
    _scheduled,
    _shared,
    blocks_per_sm,
    launched,
)
from tests.pallascope import toy
from tests.pallascope.toy import TOY, compute, load, op, product, program, wait

START = TOY.block_start_cycles
LAUNCH = (TOY.launch_seconds + TOY.cold_seconds) * TOY.clock_hz
#: SMEM of a block, by how many of them an SM has room for.
ROOM = {1: 200_000, 2: 100_000, 3: 70_000}


def grid_of(count, /, *threads, room=1, barriers=0, **fields):
    """A block of a grid, whose SMEM lets an SM have so many of them at a time."""
    made = program(*threads, grid=(count,), smem_bytes=ROOM[room], **fields)
    (first, *_) = made.barriers
    return replace(made, barriers=(replace(first, count=barriers),) if barriers else ())


def cycles(*args, **fields):
    """What the launch of such a grid takes, without the launch itself."""
    return launched({(0,): grid_of(*args, **fields)}, TOY).cycles - LAUNCH


# Rounds of blocks.


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 40])
def test_a_further_block_adds_its_time_and_its_start(blocks):
    assert cycles(blocks, [compute(flops=10)]) == pytest.approx(blocks * 10 + (blocks - 1) * START)


@pytest.mark.parametrize("blocks", [1, 3, 30])
def test_each_block_prepares_its_barriers(blocks):
    more = cycles(blocks, [compute()], barriers=5) - cycles(blocks, [compute()])
    assert more == pytest.approx(blocks * 5 * TOY.barrier_init_cycles)


@pytest.mark.parametrize("room", ROOM)
def test_an_sm_has_as_many_blocks_at_a_time_as_it_has_room_for(room):
    """The thread's own time passes beside that of other blocks."""
    made = grid_of(12, [op("fence")], room=room)
    found = launched({(0,): made}, TOY)
    assert (found.blocks_per_sm, found.rounds) == (room, 12 // room)
    expected = found.rounds * TOY.fence_cycles + (found.rounds - 1) * START
    assert found.cycles - LAUNCH == pytest.approx(expected)


def test_blocks_of_one_sm_start_one_after_another():
    gap = launched({(0,): grid_of(3, [op("fence")], room=3)}, TOY.changed(block_gap_cycles=7))
    assert gap.cycles == pytest.approx(LAUNCH + 2 * 7 + TOY.fence_cycles)


def test_sms_share_the_blocks():
    wide = TOY.changed(sms=4)
    found = launched({(0,): grid_of(8, [op("fence")])}, wide)
    assert found.rounds == 2
    assert found.cycles == pytest.approx(LAUNCH + 2 * TOY.fence_cycles + START)
    pairs = grid_of(4, [op("fence")], [op("fence")], blocks=2)  # clusters of two SMs
    assert launched({(0,): pairs}, wide) == found


def test_a_launch_whose_blocks_all_run_at_once_reaches_less_of_hbm():
    half, ops = TOY.changed(hbm_static_reach=0.5), [load(0), wait(0, 0)]
    longer = lambda blocks: (
        launched({(0,): grid_of(blocks, ops, barriers=1)}, half).cycles
        - launched({(0,): grid_of(blocks, ops, barriers=1)}, TOY).cycles
    )
    assert longer(1) == pytest.approx(20)  # the 20 bytes take another 20 cycles
    assert longer(2) == 0


def test_use_is_the_part_of_the_time_that_tensor_cores_multiply():
    made = grid_of(3, [product(), op("wgmma_wait", pending=0)])
    found = launched({(0,): made}, TOY)
    assert found.use == pytest.approx(3 * 100 / found.cycles)
    # The same on a card of which two SMs of five have nothing to do.
    wide = launched({(0,): made}, TOY.changed(sms=5))
    assert wide.use == pytest.approx(3 * 100 / (5 * wide.cycles))
    assert launched({(0,): grid_of(3, [compute()])}, TOY).use == 0


def test_threads_that_wait_for_ever_have_no_launch():
    made = grid_of(2, [load(0), wait(0, 0), wait(0, 0)], barriers=1)
    told = (
        r"^toy: 1 thread must wait for ever after 32 cycles, so the launch has no end:"
        r" `pallascope.check` says for what\.$"
    )
    with pytest.raises(ValueError, match=told):
        launched({(0,): made}, TOY.changed(hbm_latency_cycles=10))


def test_arrays_that_l2_has_from_before_start_at_once():
    made = grid_of(1, [load(0), wait(0, 0)], barriers=1)
    quick, slow = (TOY.changed(cold_seconds=seconds) for seconds in (0, 1e-6))
    for hits, waits in (None, True), (0.5, True), (1, False):
        found, other = (launched({(0,): made}, m, l2_hits=hits) for m in (quick, slow))
        assert other.cycles - found.cycles == pytest.approx(waits * 1e-6 * TOY.clock_hz)


# How many blocks an SM has room for.


def room_for(*threads, registers=None, smem_bytes=0, accumulators=()):
    """How many blocks of these threads an SM has room for; accumulators by their threads."""
    buffers = tuple(
        Buffer(i, "acc", "acc", (64, 256), "float32", 64 * 256 * 4, thread=thread)
        for i, thread in enumerate(accumulators)
    )
    made = replace(program(*threads, smem_bytes=smem_bytes), buffers=buffers)
    return blocks_per_sm(made, registers)


@pytest.mark.parametrize(
    ("kib", "blocks"), [(13, 16), (14, 15), (75, 3), (76, 2), (113, 2), (114, 1), (227, 1)]
)
def test_smem_bounds_the_blocks_of_an_sm(kib, blocks):
    """A block takes 1 KiB more than it asks for, of 228."""
    assert room_for([], smem_bytes=kib << 10) == blocks


@pytest.mark.parametrize(("threads", "blocks"), [(1, 16), (2, 8), (3, 5), (8, 2)])
def test_lanes_bound_the_blocks_of_an_sm(threads, blocks):
    assert room_for(*[[]] * threads) == blocks


@pytest.mark.parametrize(
    ("registers", "blocks"), [(32, 16), (168, 3), (161, 3), (169, 2), (255, 2)]
)
def test_registers_bound_the_blocks_of_an_sm(registers, blocks):
    """A lane's are a multiple of 8: 65,536 are enough for 3 times 128 lanes of 168, and not 176."""
    assert room_for([], registers=registers) == blocks


def test_accumulators_take_registers():
    """A lane has 128 of an accumulator's elements, and 16 registers for all else."""
    assert room_for([], accumulators=[0]) == room_for([], registers=128 + 16) == 3
    # Another one of the same thread's comes on top; no lane has more than 255 registers.
    assert room_for([], accumulators=[0, 0]) == room_for([], registers=255) == 2
    # One of another thread's is beside it.
    both = room_for([], [], accumulators=[0, 1])
    assert both == room_for([], [], registers=128 + 16) == 1 < room_for([], [])


def test_arithmetic_keeps_the_value_that_is_read_as_float32():
    read = op("read", reads=(toy.region(toy.GMEM, (0, 64), (0, 256)),), bytes=64 * 256 * 2)
    assert room_for([read]) == room_for([], registers=64 + 16) == 6
    computes = [read, compute(flops=1, transcendental=1)]
    assert room_for(computes) == room_for([], registers=128 + 16) == 3


def test_threads_that_share_out_registers_have_all_of_an_sm():
    moves = op("registers", registers=40, action="decrease")
    assert room_for([moves], [], []) == 1 < room_for([], [], [])


# Blocks that differ.

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@st.composite
def grids(draw):
    """The sizes of a grid, and some positions of each axis, both ends among them."""
    sizes = draw(SIZES)
    places = [sorted({0, n - 1, *draw(st.sets(st.integers(0, n - 1)))}) for n in sizes]
    return tuple(sizes), places


@settings(max_examples=80, deadline=None, derandomize=True)
@given(grids(), st.lists(st.integers(-9, 9), min_size=4, max_size=4))
def test_what_is_linear_along_each_axis_is_interpolated_exactly(grid, slopes):
    sizes, places = grid
    value = lambda index: slopes[3] + math.sumprod(slopes[: len(index)], index)
    known = {index: value(index) for index in itertools.product(*places)}
    every = itertools.product(*map(range, sizes))
    assert _interpolated(known, sizes) == pytest.approx([value(index) for index in every])


def test_an_axis_of_one_sample_is_the_same_everywhere():
    assert _interpolated({(0, 0): 1.0, (0, 2): 5.0}, (2, 3)) == [1, 3, 5, 1, 3, 5]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_list_scheduling_keeps_its_bounds(times, places):
    """Graham's: between the mean or the longest, and the mean and the rest of the longest."""
    found = _scheduled(times, places, 0.0)
    mean, longest = sum(times) / places, max(times)
    assert max(mean, longest) <= found <= mean + (1 - 1 / places) * longest + 1e-9


def test_a_block_goes_to_the_place_that_is_free_first():
    """10 and 30 start at once, 20 after 10; each start in a block's place costs."""
    assert _scheduled((10.0, 30.0, 20.0), 2, 5.0) == 10 + 5 + 20


def test_blocks_beyond_the_first_round_take_as_long_as_they_do_alone():
    """10 and 30 start at once; 20, which takes a quarter of that alone, after 10."""
    assert _scheduled((10.0, 30.0, 20.0), 2, 2.0, 0.25) == 30
    assert _scheduled((10.0, 10.0, 20.0), 2, 2.0, 0.25) == 10 + 2 + 5


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_blocks_that_share_take_the_mean_or_the_longest(times, places):
    found = _shared(times, places, 0.0)
    assert found == max(max(times), sum(times) / places)


def test_a_last_round_that_is_not_full_takes_its_share_of_one():
    assert _shared([20.0] * 11, 10, 4.0) == pytest.approx(22 + 0.4)
    assert _shared([20.0] * 9, 10, 4.0) == 20


@pytest.mark.parametrize("blocks", [5, 9, 40])
def test_blocks_that_are_alike_take_the_same_if_they_are_taken_to_differ(blocks):
    made = grid_of(blocks, [product(), op("wgmma_wait", pending=0)])
    samples = dict.fromkeys([(0,), (blocks // 2,), (blocks - 1,)], made)
    alike, apart = launched({(0,): made}, TOY), launched(samples, TOY)
    assert apart == pytest.approx(alike)


@pytest.mark.parametrize("differ", [False, True])
def test_blocks_beyond_one_full_round_run_by_themselves(differ):
    """Five blocks on an SM that has room for three: as long as three and then two."""
    took = {}
    for blocks in (2, 3, 5):
        made = grid_of(blocks, [product(), op("wgmma_wait", pending=0)], room=3)
        samples = dict.fromkeys([(0,), (blocks - 1,)] if differ else [(0,)], made)
        took[blocks] = launched(samples, TOY).cycles - LAUNCH
    assert took[5] == pytest.approx(took[3] + START + took[2])


def test_a_block_s_first_copy_has_only_its_share_of_the_bandwidth():
    """20 bytes at 1 a cycle, though an SM moves 4 and has long had nothing to move."""
    fast = replace(TOY, sm_bytes_per_cycle=4)
    made = grid_of(9, [load(0), wait(0, 0), compute(flops=1000)], barriers=2)
    each = 2 * TOY.barrier_init_cycles + 2 + 20 + 30 + 1000
    found = launched({(0,): made}, fast, l2_hits=0.0).cycles - LAUNCH
    assert found == pytest.approx(9 * each + 8 * START)


def test_a_launch_takes_as_long_as_its_blocks_do():
    """Block i of 9 computes for 10 + 10 i cycles; the first, the middle and the last are known."""
    samples = {(i,): grid_of(9, [compute(flops=10 + 10 * i)]) for i in (0, 4, 8)}
    expected = sum(10 + 10 * i for i in range(9)) + 8 * START
    assert launched(samples, TOY).cycles - LAUNCH == pytest.approx(expected)
