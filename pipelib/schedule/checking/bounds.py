"""Accesses outside of their arrays: which parts the hardware leaves out, and which are a fault.

The model. The device checks no index. An ordinary access, a product, a copy's access of SMEM and a
barrier are where the index says, even if that is another array's memory. Only a copy's access of
GMEM is clipped: beyond its array it loads zeros and stores nothing. A region outside is reported
once, here. The rest of the check goes on as if the array were larger, so that one wrong index is
one finding.

Not covered: a wrong index that leads back into the array, as one column too many of a reshaped ref,
which is in the next row, or another member of a union.
"""

from collections.abc import Iterator

from pipelib.schedule.checking.cells import Box
from pipelib.schedule.checking.facts import OutsideBarriers, OutsideBuffer
from pipelib.schedule.program import Buffer, Kind, Op, Program, Region, Space


def out_of_bounds(program: Program) -> Iterator[OutsideBuffer | OutsideBarriers]:
    """The accesses outside of a buffer, or of an array of barriers."""
    for ops in program.threads:
        for op in ops:
            regions = op.reads + op.writes
            for region in regions if len(regions) < 2 else dict.fromkeys(regions):
                buffer = program.buffers[region.buffer]
                if op.kind.is_copy and buffer.space is Space.GMEM:
                    continue
                if (axis := axis_outside(region.box, buffer)) is not None:
                    yield OutsideBuffer(op, region, axis)
            if op.barrier is not None and not 0 <= op.index < program.barriers[op.barrier].count:
                yield OutsideBarriers(op)


def axis_outside(box: Box, buffer: Buffer) -> int | None:
    """The first axis on which a box reaches beyond its buffer; None if there is none."""
    for axis, ((start, stop), size) in enumerate(zip(box, buffer.shape)):
        if start < stop and (start < 0 or stop > size):
            return axis
    return None


def clipped(op: Op, region: Region, buffer: Buffer) -> Box:
    """The part of a region that an op really accesses."""
    if not op.kind.is_copy or buffer.space is not Space.GMEM:
        return region.box
    return tuple(
        (min(max(start, 0), size), max(min(stop, size), 0))
        for (start, stop), size in zip(region.box, buffer.shape)
    )


def arriving(op: Op, region: Region, program: Program) -> Box:
    """The part of a region that an op reads and that arrives: of a store, what GMEM has room for.

    The axes of both sides are matched in order, without axes of one element. If they do not match,
    the part is the whole region.
    """
    if op.kind != Kind.STORE or program.buffers[region.buffer].space is not Space.SMEM:
        return region.box
    (target,) = op.writes
    kept = clipped(op, target, program.buffers[target.buffer])
    if any(start >= stop for start, stop in kept):
        return tuple((start, start) for start, _ in region.box)
    there = [(whole, part) for whole, part in zip(target.box, kept) if _size(whole) != 1]
    here = [axis for axis, interval in enumerate(region.box) if _size(interval) != 1]
    if [_size(region.box[axis]) for axis in here] != [_size(whole) for whole, _ in there]:
        return region.box
    box = list(region.box)
    for axis, (whole, part) in zip(here, there):
        first = box[axis][0] - whole[0]
        box[axis] = part[0] + first, part[1] + first
    return tuple(box)


def _size(interval: tuple[int, int]) -> int:
    return interval[1] - interval[0]
