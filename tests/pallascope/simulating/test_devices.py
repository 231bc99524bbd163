"""Programs with all blocks of a grid, on one device or two: exact times on round numbers."""

from dataclasses import replace

import pytest

from pallascope import B200, H200, simulate
from pallascope.program import Barrier, Buffer, Op, Program, Region
from tests.pallascope.toy import TOY

#: NVLink moves half a byte a cycle; all that devices share beside it is fast.
LINKED = replace(
    TOY, sms=2, l2_bytes_per_second=99e9, hbm_bytes_per_second=99e9, signal_cycles=3,
    await_cycles=5, nvlink_latency_cycles=100, nvlink_answer_cycles=140,
    nvlink_store_latency_cycles=150, nvlink_sm_bytes_per_cycle=1, nvlink_bytes_per_second=0.5e9,
)  # fmt: skip
BYTES = 20
#: Of a tile: issued in 2, its bytes through NVLink in 40, known to have landed 150 later.
STORED = 2 + 40 + 150
ARRIVED, FREED, LOADED = 0, 2, 4  # the semaphores of device 0, those of device 1 follow; barriers


def region(buffer, row=0):
    return Region(buffer, ((row, row + 1), (0, 10)))


def program(*threads, devices=(2,), blocks=2, grid=(), **fields):
    """Of these threads' ops; each device has an inbox, each block a tile of SMEM."""
    shape, size = (4, 10), 4 * BYTES
    memory = [
        Buffer(0, "inbox@0", "gmem", shape, "float16", size),
        Buffer(1, "inbox@1", "gmem", shape, "float16", size),
        *(
            Buffer(2 + block, f"tile@{block}", "smem", shape, "float16", size, block=block)
            for block in range(blocks)
        ),
    ]
    semaphores = [
        Barrier(first + device, f"{name}@{device}", 1, 4, type="semaphore")
        for first, name in ((ARRIVED, "arrived"), (FREED, "freed"))
        for device in (0, 1)
    ]
    loaded = [Barrier(LOADED + b, f"loaded@{b}", 1, 1, block=b) for b in range(blocks)]
    numbered = tuple(
        tuple(replace(op, thread=thread) for op in ops) for thread, ops in enumerate(threads)
    )
    return Program(
        "devices",
        numbered,
        tuple(memory),
        (*semaphores, *loaded),
        grid,
        blocks=blocks,
        devices=devices,
        **fields,
    )


def stored(block, device, step=0):
    """A store into a device's inbox, and the wait for it."""
    return [
        Op("store", 0, (region(2 + block),), (region(device),), step=(step,), bytes=BYTES),
        Op("commit_group", 0),
        Op("wait_store", 0, pending=0),
    ]


def signal(first, device, index=0, amount=1):
    return Op("signal", 0, barrier=first + device, index=index, amount=amount, line="k.py:3")


def awaits(first, device, index=0, amount=1, keeps=False):
    return Op("await", 0, barrier=first + device, index=index, amount=amount, keeps=keeps)


def exchange(device):
    other = 1 - device
    return [*stored(device, other), signal(ARRIVED, other), awaits(ARRIVED, device)]


def run(*threads, machine=LINKED, **fields):
    return simulate(program(*threads, **fields), machine, l2_hits=1.0)


def test_two_devices_exchange_a_tile():
    found = run(exchange(0), exchange(1))
    times = {(found.lanes[s.lane], s.kind, s.start, s.stop) for s in found.spans}
    for device in (0, 1):
        thread, engine = f"device {device} thread 0", f"device {device} TMA stores"
        assert times >= {
            (thread, "issue", 0, 2),
            (engine, "store", 2, STORED),
            (thread, "wait", 2, STORED),
            (thread, "issue", STORED, STORED + 3),
            (thread, "wait", STORED + 3, STORED + 3 + 100 + 5),
        }
    assert found.cycles == STORED + 3 + 100 + 5
    waits = [s for s in found.spans if s.kind == "wait" and s.cause is not None][-2:]
    assert {found.lanes[found.spans[s.cause].lane] for s in waits} == {
        "device 0 thread 0",
        "device 1 thread 0",
    }


def test_blocks_of_a_device_share_its_link_and_not_the_other_device_s():
    found = run(*(stored(block, 1 - block // 2) for block in range(4)), blocks=4, grid=(2,))
    ends = {found.lanes[s.lane]: s.stop for s in found.spans if s.kind == "store"}
    assert ends == {
        "device 0 block 0 TMA stores": STORED,
        "device 0 block 1 TMA stores": STORED + 40,
        "device 1 block 0 TMA stores": STORED,
        "device 1 block 1 TMA stores": STORED + 40,
    }
    assert {use.name for use in found.units()} == {
        f"device {device} block {block} GMEM port" for device in (0, 1) for block in (0, 1)
    }


def test_an_sm_alone_may_be_slower_than_the_link():
    slow = replace(LINKED, nvlink_sm_bytes_per_cycle=0.25)
    assert run(stored(0, 1), [], machine=slow).cycles == 2 + 80 + 150


def test_a_store_into_the_own_device_takes_no_link():
    assert run(stored(0, 0), []).cycles == 2 + 20 + 7


def test_a_load_from_another_device_takes_that_one_s_link():
    load = Op("load", 0, (region(1),), (region(2),), LOADED, bytes=BYTES)
    found = run([load, Op("wait", 0, barrier=LOADED)], stored(1, 0))
    # The load asks for the link first, and lands after L2's latency and NVLink's.
    assert found.cycles == 2 + 40 + 40 + 150
    (loaded,) = (s for s in found.spans if s.kind == "load")
    assert (loaded.start, loaded.stop) == (2, 2 + 40 + 10 + 150)


def test_a_semaphore_counts():
    """On one device a signal is there at once; a wait takes off what it waits for, or keeps it."""
    three = [signal(ARRIVED, 0), signal(ARRIVED, 0, amount=2)]
    takes = [awaits(ARRIVED, 0, amount=3, keeps=True), awaits(ARRIVED, 0, amount=2)]
    assert run([*three, *takes, awaits(ARRIVED, 0)], []).cycles == 2 * 3 + 3 * 5
    assert run([*three, *takes, awaits(ARRIVED, 0, amount=2)], []).stuck
    assert run([signal(ARRIVED, 0, index=1), awaits(ARRIVED, 0, index=0)], []).stuck


def test_a_signal_waits_until_the_one_before_it_is_answered():
    far, near = signal(ARRIVED, 1), signal(ARRIVED, 0)
    assert run([far, far], []).cycles == run([far, near], []).cycles == 3 + 140 + 3
    assert run([near, far], []).cycles == 3 + 3
    arrives = run([far, far], [awaits(ARRIVED, 1, amount=2)])
    assert arrives.cycles == 3 + 140 + 3 + 100 + 5


def test_signals_arrive_in_the_order_of_their_times_and_not_of_their_threads():
    """The far signal was sent first; the near one arrives first, and lets the thread go."""
    near = [Op("compute", 0, flops=20), signal(ARRIVED, 0)]
    found = run([awaits(ARRIVED, 0)], near, [signal(ARRIVED, 0)], [], blocks=2)
    assert found.cycles == 20 + 3 + 5


def test_who_has_waited_longest_goes_first_if_there_is_enough():
    late = lambda op: [Op("compute", 0, flops=1), op]
    two, one = awaits(ARRIVED, 0, amount=2), awaits(ARRIVED, 0)
    signals = [Op("compute", 0, flops=50), signal(ARRIVED, 0), signal(ARRIVED, 0, amount=2)]
    threads = [[two], late(one), signals, [], [], []]
    ends = {s.thread: s.stop for s in run(*threads).spans if s.kind == "wait"}
    assert ends == {1: 51 + 3 + 5, 0: 51 + 3 + 3 + 5}  # after 51 on the ALU that threads share


@pytest.mark.parametrize(
    "slots, step",
    [(1, 3 + 100 + 5 + STORED + 3 + 100 + 5 + 1000), (2, 3 + 5 + 1000), (4, 3 + 5 + 1000)],
)
def test_backpressure_of_a_ring(slots, step, steps=6):
    """A slow receiver: with one slot its sender waits for each signal, with two it is ahead."""
    threads = []
    for me in (0, 1):
        other, sends, receives = 1 - me, [], []
        for k in range(steps):
            sends += [awaits(FREED, me)] * (k >= slots)
            sends += [*stored(me, other, k), signal(ARRIVED, other)]
            receives += [awaits(ARRIVED, me), Op("compute", 0, flops=1000), signal(FREED, other)]
        threads += [sends, receives]
    first = STORED + 3 + 100 + 5 + 1000 + 3
    assert run(*threads).cycles == first + (steps - 1) * step


def test_a_signal_that_is_missing():
    found = run([*stored(0, 1), signal(ARRIVED, 1)], [*exchange(1)[:-1], awaits(ARRIVED, 1, 0, 2)])
    assert found.stuck and found.notes == (
        f"deadlock at {STORED + 3} cycles: device 1, thread 0 waits for 2 on arrived@1[0], which"
        " holds 1",
    )


def test_what_other_devices_may_signal_is_taken_to_be_there():
    """A program of one of two devices has not all signals."""
    found = run([signal(ARRIVED, 1), awaits(ARRIVED, 0)], blocks=1)
    assert found.cycles == LINKED.signal_cycles + LINKED.await_cycles and not found.stuck


def test_all_blocks_of_a_grid_on_one_device():
    thread = [signal(ARRIVED, 0), awaits(ARRIVED, 0)]
    found = run(thread, thread, devices=(), grid=(2,))
    assert found.cycles == 3 + 5
    assert found.lanes[0] == "block 0 thread 0"


def test_blocks_that_have_no_room():
    told = (
        r"devices has all blocks of its grid, 2 of a device, but toy has 1 SMs, so 1 blocks would"
        r" begin later: give it a persistent grid, or trace one block without whole_grid=True and"
        r" use pallascope\.predict\."
    )
    few = replace(LINKED, sms=1)
    with pytest.raises(ValueError, match=told):
        run([], [], [], [], blocks=4, grid=(2,), machine=few)
    assert run(exchange(0), exchange(1), machine=few).cycles
    with pytest.raises(ValueError, match=r"blocks_per_sm=2, but devices has all 2 blocks of its"):
        simulate(program([], []), LINKED, blocks_per_sm=2)


def test_a_machine_without_nvlink():
    told = (
        r"k\.py:3 reaches another device, but toy has no nvlink_latency_cycles, so it has no time:"
        r" simulate it on pallascope\.H200, or give this machine all fields whose names begin with"
        r" nvlink_\."
    )
    alone = replace(TOY, sms=2)
    with pytest.raises(ValueError, match=told):
        run([signal(ARRIVED, 1)], [], machine=alone)
    with pytest.raises(ValueError, match=r"An op reaches .* no nvlink_sm_bytes_per_cycle, so"):
        run(stored(0, 1), [], machine=alone)
    assert run([signal(ARRIVED, 0)], [], machine=alone).cycles == 0


def test_the_links_of_known_machines():
    assert B200.nvlink_bytes_per_second == 9e11
    assert 0.8 * 450e9 < H200.nvlink_bytes_per_second < 450e9  # of NVIDIA's peak
    assert H200.nvlink("nvlink_latency_cycles") > H200.l2_latency_cycles
