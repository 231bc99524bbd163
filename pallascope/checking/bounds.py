"""Accesses outside of their arrays: which parts the hardware leaves out, and which are a fault.

The model. The device checks no index. An ordinary access, a product, a copy's access of SMEM and a
barrier are where the index says, even if that is another array's memory. Only a copy's access of
GMEM is clipped: beyond its array it loads zeros and stores nothing. A region outside is reported
once, here. The rest of the check goes on as if the array were larger, so that one wrong index is
one finding.

A copy of a tile at the edge of GMEM may reach beyond its array. A copy of a tile that lies outside
as a whole may be meant too: a kernel rounds up its number of steps, and the zeros of the last ones
add nothing. Then the same line also copies what the array has, and this is a remark. It is a fault
if no copy of that line has anything of the array, in any thread, or if the tile lies before the
array. A prefetch changes nothing, wherever it is.

A view is a part of an array. JAX adds up the indices of a view and of views of it, so an index that
leads out of the view leads to the array's other elements. That is a fault too: of a copy's tile in
GMEM if all of it is outside of the view, and some of it in the array.

Not covered: a wrong index that leads back into the array, as one column too many of a reshaped ref,
which is in the next row, or another member of a union; one that leads out of a view of barriers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import override

from pallascope.checking.cells import Box
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Fault
from pallascope.checking.facts.memory import (
    BeyondArray,
    OutsideBarriers,
    OutsideBuffer,
    OutsideView,
    Overshoot,
)
from pallascope.program import Buffer, Kind, Op, Program, Region, Space


class Bounds(Detector):
    """Finds accesses outside of arrays, and remarks on tiles behind the end of one."""

    @override
    def finish(self, is_whole: bool) -> Iterator[Fault]:
        yield from out_of_bounds(self.program)
        yield from self._beyond_arrays()

    def _beyond_arrays(self) -> Iterator[BeyondArray]:
        """The copies of tiles that lie outside of their arrays as a whole, unless meant to."""
        program = self.program
        inside: set[tuple[object, ...]] = set()
        beyond: list[tuple[tuple[Kind, str | None, str], BeyondArray]] = []
        for op in program.ops:
            for region in op.reads + op.writes if op.kind in (Kind.LOAD, Kind.STORE) else ():
                buffer = program.buffers[region.buffer]
                if buffer.space is Space.GMEM:
                    axis, site = _axis_beyond(region.box, buffer), (op.kind, op.line, buffer.name)
                    if axis is None:
                        inside.add(site)
                    else:
                        beyond.append((site, BeyondArray(op, region, axis)))
        overshoots = Counter[Overshoot]()
        for site, fault in beyond:
            if site in inside and fault.region.box[fault.axis][1] > 0:
                overshoots[Overshoot(*site, times=0)] += 1
            else:
                yield fault
        for each, times in overshoots.items():
            self.note(replace(each, times=times))


def out_of_bounds(program: Program) -> Iterator[OutsideBuffer | OutsideView | OutsideBarriers]:
    """The accesses outside of a buffer, of a view of it, or of an array of barriers."""
    for op in program.ops:
        for region in dict.fromkeys(op.reads + op.writes):
            buffer = program.buffers[region.buffer]
            axis = _axis_wrong(op, region, buffer)
            if axis is not None:
                yield OutsideBuffer(op, region, axis)
            elif region.view and (axis := _axis_left(op, region, buffer)) is not None:
                yield OutsideView(op, region, axis)
        if op.barrier is not None and not 0 <= op.index < program.barriers[op.barrier].count:
            yield OutsideBarriers(op)


def _axis_wrong(op: Op, region: Region, buffer: Buffer) -> int | None:
    """The first axis on which a region is a fault."""
    if op.kind == Kind.SKIP:
        return None
    if op.kind.is_copy and buffer.space is Space.GMEM:
        return None
    return axis_outside(region.box, buffer)


def _axis_left(op: Op, region: Region, buffer: Buffer) -> int | None:
    """The first axis on which a region is a fault outside of its view."""
    if op.kind == Kind.SKIP:
        return None
    is_tile = op.kind.is_copy and buffer.space is Space.GMEM
    for axis, ((start, stop), (first, end)) in enumerate(zip(region.box, region.view)):
        if is_tile and start >= buffer.shape[axis]:
            continue  # behind the array, too, so nothing is copied
        is_apart, is_beyond = stop <= first or end <= start, start < first or end < stop
        if is_apart or (is_beyond and not is_tile):
            return axis
    return None


def axis_outside(box: Box, buffer: Buffer) -> int | None:
    """The first axis on which a box reaches beyond its buffer; None if there is none."""
    for axis, ((start, stop), size) in enumerate(zip(box, buffer.shape)):
        if start < stop and (start < 0 or stop > size):
            return axis
    return None


def _axis_beyond(box: Box, buffer: Buffer) -> int | None:
    """The first axis on which a box has nothing of its buffer; None if there is none."""
    if any(start >= stop for start, stop in box):
        return None
    for axis, ((start, stop), size) in enumerate(zip(box, buffer.shape)):
        if stop <= 0 or start >= size:
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
    """The part of a region that an op reads and that arrives.

    Of a load from GMEM it is what lies in the array: zeros arrive in place of the rest. Of a
    store it is what GMEM has room for. There the axes of both sides are matched in order, without
    axes of one element; if they do not match, the part is the whole region.
    """
    if op.kind != Kind.STORE or program.buffers[region.buffer].space is not Space.SMEM:
        return clipped(op, region, program.buffers[region.buffer])
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
