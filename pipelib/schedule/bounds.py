"""What of an op lies outside of its arrays: what the hardware leaves out, and what is a fault.

The model. The device looks at no index. An ordinary access, a product, the SMEM that a copy reads
or writes and a barrier are where the index says, which may be another's memory. Only in GMEM is a
copy clipped: beyond its array it loads zeros and stores nothing. What is outside is reported once,
here; the rest of the check goes on as if the array were larger, so that one wrong index is one
finding.

Not covered: an index outside that is inside again when taken apart, as a column too many of a
reshaped ref is in the next row, or in a union another member.
"""

from pipelib.schedule import wording
from pipelib.schedule.cells import Box
from pipelib.schedule.program import Buffer, Op, Program, Region
from pipelib.schedule.report import Findings

COPIES = ("load", "store", "prefetch")


def out_of_bounds(program: Program, findings: Findings) -> None:
    """Adds what any op accesses outside of its buffer, or of its array of barriers."""
    for ops in program.threads:
        for op in ops:
            for region in dict.fromkeys(op.reads + op.writes):
                buffer = program.buffers[region.buffer]
                if op.kind in COPIES and buffer.space == "gmem":
                    continue
                if (axis := axis_outside(region.box, buffer)) is not None:
                    findings.add(*wording.outside(program, op, region, axis))
            if op.barrier is not None and not 0 <= op.index < program.barriers[op.barrier].count:
                findings.add(*wording.no_barrier(program, op))


def axis_outside(box: Box, buffer: Buffer) -> int | None:
    """The first axis on which a box is not within its buffer, if there is one."""
    for axis, ((start, stop), size) in enumerate(zip(box, buffer.shape)):
        if start < stop and (start < 0 or stop > size):
            return axis
    return None


def clipped(op: Op, region: Region, buffer: Buffer) -> Box:
    """What an op really accesses of a region that it names."""
    if op.kind not in COPIES or buffer.space != "gmem":
        return region.box
    return tuple(
        (min(max(start, 0), size), max(min(stop, size), 0))
        for (start, stop), size in zip(region.box, buffer.shape)
    )


def arriving(op: Op, region: Region, program: Program) -> Box:
    """What of a region that an op reads comes anywhere: of a store, what GMEM has a place for.

    The axes of both sides are matched in order, without those of one element. If that does not
    work out, it is taken to be all.
    """
    if op.kind != "store" or program.buffers[region.buffer].space != "smem":
        return region.box
    (target,) = op.writes
    kept = clipped(op, target, program.buffers[target.buffer])
    if any(start >= stop for start, stop in kept):
        return tuple((start, start) for start, _ in region.box)
    size = lambda interval: interval[1] - interval[0]
    there = [(whole, part) for whole, part in zip(target.box, kept) if size(whole) != 1]
    here = [axis for axis, interval in enumerate(region.box) if size(interval) != 1]
    if [size(region.box[axis]) for axis in here] != [size(whole) for whole, _ in there]:
        return region.box
    box = list(region.box)
    for axis, (whole, part) in zip(here, there):
        first = box[axis][0] - whole[0]
        box[axis] = part[0] + first, part[1] + first
    return tuple(box)
