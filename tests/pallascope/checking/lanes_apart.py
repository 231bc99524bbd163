"""A program whose threads are taken apart: each of two lanes of a thread is a thread of its own.

The model, for the explorer, to which a thread's ops are in order. Of an ordinary access of SMEM in
a known layout, each lane makes one half, along the first axis that has halves; which half is whose
depends on the layout, and there are two layouts at most. The first lane alone makes an op that is
on GMEM or that an engine works on. Both lanes make all others. They meet at a commit, at a wait for
stores, and where a reduction or a wait for a semaphore is, as `lanes` of the checker says. A phase
of a barrier takes two arrivals for one: both lanes arrive, or the first lane twice for a load.
Not covered: accesses of SMEM in a layout that is not known, products, warps apart from each other.
"""

from dataclasses import replace
from typing import NamedTuple

from pallascope.program import Op, Program, Region

LANES = 2
MEETS = ("fence", "wait_store", "compute", "opaque", "await")


class Apart(NamedTuple):
    """The program of the lanes; `origin` has, for each op of each lane, its index in the thread."""

    program: Program
    origin: tuple[tuple[int, ...], ...]


def apart(program: Program) -> Apart:
    """The lanes of a program's threads, those of thread t at LANES * t and after."""
    ops = [*program.ops]
    layouts = sorted({op.layout for op in ops if op.layout})
    threads: list[tuple[Op, ...]] = []
    origin: list[tuple[int, ...]] = []
    for thread, ops in enumerate(program.threads):
        for lane in range(LANES):
            made = [
                (index, replace(each, thread=LANES * thread + lane))
                for index, op in enumerate(ops)
                for each in _of_lane(program, op, lane, layouts)
            ]
            threads.append(tuple(op for _, op in made))
            origin.append(tuple(index for index, _ in made))
    barriers = tuple(replace(b, arrivals=LANES * b.arrivals) for b in program.barriers)
    lanes = replace(
        program, threads=tuple(threads), barriers=barriers, registers=(), auto_barriers=True
    )
    return Apart(lanes, tuple(origin))


def _of_lane(program: Program, op: Op, lane: int, layouts: list[str]) -> list[Op]:
    """What one lane of a thread does for an op of the thread."""
    memory = op.reads + op.writes
    is_of_smem = any(program.buffers[region.buffer].space == "smem" for region in memory)
    if op.kind in ("read", "write") and is_of_smem:
        half = (lane + layouts.index(op.layout)) % LANES
        reads, writes = (
            tuple(_half(region, half) for region in regions) for regions in (op.reads, op.writes)
        )
        return [replace(op, reads=reads, writes=writes)]
    if op.kind == "load":
        arrival = Op("arrive", op.thread, barrier=op.barrier, index=op.index)
        return [] if lane else [op, arrival]
    if memory or op.kind == "commit_group":
        return [] if lane else [op]
    members = tuple(range(LANES * op.thread, LANES * (op.thread + 1)))
    meeting = Op("meet", op.thread, members=members, line=op.line)
    return [op, *[meeting] * (op.kind in MEETS)]


def _half(region: Region, half: int) -> Region:
    """One half of a region."""
    axis = next(i for i, (start, stop) in enumerate(region.box) if stop - start > 1)
    start, stop = region.box[axis]
    middle = (start + stop) // 2
    box = list(region.box)
    box[axis] = (middle, stop) if half else (start, middle)
    return replace(region, box=tuple(box))
