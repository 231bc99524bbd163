"""A machine with round numbers, and programs built by hand."""

from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Barrier, Buffer, Op, Program, Region

# One byte a cycle everywhere, one operation a cycle, and costs that are told apart.
TOY = Machine(
    name="toy", clock_hz=1e9, sms=1, load_issue_cycles=2, l2_latency_cycles=10,
    hbm_latency_cycles=30, sm_bytes_per_cycle=1, l2_bytes_per_second=1e9, hbm_bytes_per_second=1e9,
    store_issue_cycles=2, store_latency_cycles=7, store_bytes_per_cycle=1, wgmma_issue_cycles=1,
    wgmma_latency_cycles=3, wgmma_flops_per_cycle=(("float16", 1.0),), arrive_cycles=1,
    wait_cycles=0, wake_cycles=0, meet_cycles=4, fence_cycles=5, smem_latency_cycles=3,
    smem_bytes_per_cycle=1, alu_ops_per_cycle=1, transcendental_ops_per_cycle=0.25,
)  # fmt: skip

GMEM, RING, OUT, ACC = range(4)


def op(kind, thread=0, **fields):
    return Op(kind, thread, **fields)


def region(buffer, *box):
    return Region(buffer, tuple(box))


def program(*threads, slots=2, arrivals=(1, 1), blocks=1, slot_bytes=20, **fields):
    """Of these ops: barriers 0 (produced) and 1 (consumed), one of each for every slot."""
    half = slot_bytes // 2
    buffers = (
        Buffer(GMEM, "in0", "gmem", (1000, half), "float16", 1000 * slot_bytes),
        Buffer(RING, "x", "smem", (slots, 1, half), "float16", slots * slot_bytes, slots),
        Buffer(OUT, "out0", "gmem", (1000, half), "float16", 1000 * slot_bytes),
        Buffer(ACC, "acc", "acc", (64, 64), "float32", 64 * 64 * 4),
    )
    names = "produced", "consumed"
    barriers = tuple(Barrier(i, names[i], arrivals[i], slots) for i in range(2))
    return Program("toy", tuple(map(tuple, threads)), buffers, barriers, blocks=blocks, **fields)


def load(step, slots=2, thread=0, size=20):
    slot = step % slots
    return op(
        "load", thread, reads=(region(GMEM, (step, step + 1), (0, size // 2)),),
        writes=(region(RING, (slot, slot + 1), (0, 1), (0, size // 2)),), barrier=0, index=slot,
        phase=step // slots, step=(step,), bytes=size, line="k.py:1",
    )  # fmt: skip


def wait(barrier, step, slots=2, thread=0, phase=None):
    phase = step // slots if phase is None else phase
    return op(
        "wait", thread, barrier=barrier, index=step % slots, phase=phase, step=(step,),
        line=f"k.py:{2 + barrier}",
    )  # fmt: skip


def arrive(barrier, step, slots=2, thread=0):
    return op(
        "arrive", thread, barrier=barrier, index=step % slots, phase=step // slots, step=(step,),
        line="k.py:4",
    )  # fmt: skip


def compute(step=0, flops=10, thread=0, n=0):
    return op("compute", thread, flops=flops, n=n, step=(step,), line="k.py:5")


def product(step=0, flops=100, thread=0):
    acc = region(ACC, (0, 64), (0, 64))
    return op("wgmma", thread, reads=(acc,), writes=(acc,), flops=flops, step=(step,))


def ring(steps, slots, flops, size=20, threads=1):
    """A memory thread and compute threads: thread 0 loads, the others compute and release."""
    memory = []
    for step in range(steps):
        memory += [wait(1, step, slots, phase=step // slots - 1)] * (step >= slots)
        memory.append(load(step, slots, size=size))
    computes = [
        [
            f(step)
            for step in range(steps)
            for f in (
                lambda s: wait(0, s, slots, thread),
                lambda s: compute(s, flops, thread),
                lambda s: arrive(1, s, slots, thread),
            )
        ]
        for thread in range(1, threads + 1)
    ]
    return program(memory, *computes, slots=slots, arrivals=(1, threads), slot_bytes=size)
