"""A machine with round numbers, and programs by hand whose sizes are round on it."""

from pallascope.machine import Machine
from pallascope.program import Buffer, Op, Region
from tests.pallascope import build

# One byte a cycle everywhere, one operation a cycle, and costs that are told apart.
TOY = Machine(
    name="toy", clock_hz=1e9, sms=1, load_issue_cycles=2, l2_latency_cycles=10,
    hbm_latency_cycles=30, sm_bytes_per_cycle=1, l2_bytes_per_second=1e9,
    l2_shared_bytes_per_second=1e9, hbm_bytes_per_second=1e9,
    store_issue_cycles=2, store_latency_cycles=7, store_bytes_per_cycle=1, wgmma_issue_cycles=1,
    wgmma_latency_cycles=3, wgmma_flops_per_cycle=(("float16", 1.0),), arrive_cycles=1,
    wait_cycles=0, wake_cycles=0, meet_cycles=4, fence_cycles=5, smem_latency_cycles=3,
    smem_write_cycles=0,
    smem_bytes_per_cycle=1, alu_ops_per_cycle=1, transcendental_ops_per_cycle=0.25,
    exchanges_per_cycle=0.5, add_cost=2, launch_seconds=100e-9, block_start_cycles=50,
    block_gap_cycles=0, barrier_init_cycles=6, wgmma_restart_cycles=0, wgmma_reach=1,
    hbm_read_gain=1, transcendental_slowdown=1, alu_slowdown=1, arithmetic_reach=1,
    code_growth=1, cold_seconds=20e-9, hbm_static_reach=1,
    clock_at=((0, 1.0), (0.5, 1.0), (1, 0.5)),
)  # fmt: skip

GMEM, RING, OUT, ACC = range(4)


def op(kind, **fields):
    return Op(kind, 0, **fields)


def region(buffer, *box):
    return Region(buffer, tuple(box))


def program(*threads, slots=2, arrivals=(1, 1), slot_bytes=20, grid=(), **fields):
    """Of these ops: barriers 0 (produced) and 1 (consumed), one of each for every slot."""
    half = slot_bytes // 2
    buffers = (
        Buffer(GMEM, "in0", "gmem", (1000, half), "float16", 1000 * slot_bytes),
        Buffer(RING, "x", "smem", (slots, 1, half), "float16", slots * slot_bytes, slots),
        Buffer(OUT, "out0", "gmem", (1000, half), "float16", 1000 * slot_bytes),
        Buffer(ACC, "acc", "acc", (64, 64), "float32", 64 * 64 * 4),
    )
    barriers = build.barriers(*arrivals, count=slots)
    memory = dict(buffers=buffers, barriers=barriers)
    return build.program(*threads, name="toy", grid=grid, **memory, **fields)


def load(step, slots=2, size=20):
    slot = step % slots
    return op(
        "load",
        reads=(region(GMEM, (step, step + 1), (0, size // 2)),),
        writes=(region(RING, (slot, slot + 1), (0, 1), (0, size // 2)),),
        barrier=0,
        index=slot,
        step=(step,),
        bytes=size,
        line="k.py:1",
    )


def wait(barrier, step, slots=2):
    line = f"k.py:{2 + barrier}"
    return op("wait", barrier=barrier, index=step % slots, step=(step,), line=line)


def arrive(barrier, step, slots=2):
    return op("arrive", barrier=barrier, index=step % slots, step=(step,), line="k.py:4")


def compute(step=0, flops=10, **fields):
    return op("compute", flops=flops, step=(step,), line="k.py:5", **fields)


def product(step=0, flops=100):
    acc = region(ACC, (0, 64), (0, 64))
    return op("wgmma", reads=(acc,), writes=(acc,), flops=flops, step=(step,))


def ring(steps, slots, flops, size=20, threads=1):
    """A memory thread and compute threads: thread 0 loads, the others compute and release."""
    memory, computes = [], []
    for step in range(steps):
        memory += [wait(1, step, slots)] * (step >= slots) + [load(step, slots, size)]
        computes += [wait(0, step, slots), compute(step, flops), arrive(1, step, slots)]
    return program(
        memory, *[computes] * threads, slots=slots, arrivals=(1, threads), slot_bytes=size
    )
