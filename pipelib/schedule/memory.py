"""`Memory`: what every box of memory was last written and read by, and who may collide there.

The model. Events come in an order that agrees with every run (`order.py`). For each box of each
buffer the last write and the reads since are kept (`cells.py`); a new access is compared with those
that it overlaps, one of the two being a write. They are in order if the older is over by the
newer's clock. What is written over is forgotten: whoever comes after the newer is after the older
too. That is not so of what only adds to it, which others that add need not come after: it lets
nothing be forgotten. `wording.py` has the sentences.

- In no order: a race. The thread's own products on one accumulator are in order (the tensor core
  has a queue). Two atomic accesses do not harm each other, nor do two stores that add into GMEM;
  one of each does, since PTX promises nothing of an ordinary and an asynchronous access at once.
- In order, but the older is an ordinary access, the newer asynchronous, and there is no fence on
  the way from one to the other: a missing commit. PTX asks for that fence if the older reads and a
  copy overwrites, too; no fault has been seen for want of it and JAX's own kernels leave it out,
  so that one is only reported if `strict`. GMEM has no such fence in Pallas.
- A read of a box that the writes so far do not cover: uninitialized. Arguments that a kernel is
  given and accumulators that it allocates (zeros) are written from the start.
- An ordinary write of SMEM that is never read until it is loaded over or all ends: a lost store.
  If what its line writes at other steps is read, the line may run once too often, as where a buffer
  is filled for a step that does not come. That does no harm, but a last store that was forgotten
  looks the same: so it is a finding, which says both.
  If the same line of the thread writes to the buffer again, that may be meant (only the last
  counts), so it is a note. So is a load into SMEM or a product of which nothing is read: it takes
  time, and may be the sign that another slot is read than was meant.
- A part of an output that nothing has written where a kernel of one cluster ends is what it was
  for the caller, who may not read it: a note. Where a grid has more clusters, others may write it.

Where accesses of a buffer race, nothing else is reported of the source lines at which they stand.
Not covered: code that is opaque (it counts as having read and written its buffers, and takes part
in no race); scopes that follow each other at the same address. After FastTrack: Flanagan and
Freund, PLDI 2009.
"""

import math
from collections import Counter

from pipelib.schedule import wording
from pipelib.schedule.bounds import arriving, axis_outside, clipped
from pipelib.schedule.cells import Access, Cell, Cells, is_empty
from pipelib.schedule.order import Event, Order
from pipelib.schedule.program import Buffer, Op, Program, Region
from pipelib.schedule.report import Findings


class Memory:
    """Sees all events in turn, and adds what it finds to `findings`; `finish` when all are seen.

    `overwritten` counts, by source line and buffer, the writes of which only the last may count;
    `unused`, by line, kind of op and buffer, the copies and products of which nothing is read.
    `unwritten` has a part of each output that nothing has written, if it is known.
    """

    def __init__(self, program: Program, order: Order, findings: Findings, strict: bool):
        self.program, self.order, self.findings, self.strict = program, order, findings, strict
        self.cells = [Cells(_is_given(buffer)) for buffer in program.buffers]
        self.raced: set[tuple] = set()
        self.latest: dict[tuple, int] = {}
        self.useful: set[tuple] = set()  # the sites of writes of which some are read
        self.suspects: list[tuple[str, Access, Buffer]] = []
        self.overwritten: Counter[tuple[str | None, str]] = Counter()
        self.unused: Counter[tuple[str | None, str, str]] = Counter()
        self.unwritten: list[Region] = []
        changes = {r.buffer for ops in program.threads for op in ops for r in op.writes}
        # Nothing can go wrong where nothing is written.
        self.is_plain = [_is_given(b) and b.id not in changes for b in program.buffers]

    def see(self, event: Event) -> None:
        """The accesses of one event."""
        op = event.op
        if op.kind == "opaque":
            self._see_opaque(op)
            return
        for region in op.reads:
            if not self.is_plain[region.buffer]:
                self._read(region, Access(event, False, event.read_done))
        for region, done in zip(op.writes, event.write_done, strict=True):
            self._write(region, Access(event, True, done))

    def finish(self, is_whole: bool) -> None:
        """Adds what stayed suspect and no race explains; what a whole run never read is lost."""
        if is_whole:
            for buffer, cells in zip(self.program.buffers, self.cells):
                for cell in cells:
                    self._suspect_unread(cell, buffer)
                    self._note_unused(cell, buffer)
                self._see_output(buffer, cells)
        for kind, access, buffer in self.suspects:
            site = _site(access.op, buffer)
            if site not in self.raced:
                is_useful = site in self.useful
                self.findings.add(*wording.alone(kind, self.program, access, buffer, is_useful))

    # Accesses.

    def _read(self, region: Region, access: Access) -> None:
        cells, buffer = self.cells[region.buffer], self.program.buffers[region.buffer]
        box = clipped(access.op, region, buffer)
        if is_empty(box):
            return
        cell = cells.at(box)
        for near in cell.near:
            for older in near.writes.values():
                if not older.was_read:
                    older.was_read = True
                    self.useful.add(_site(older.op, buffer))
                self._compare(older, access, buffer)
        needed = arriving(access.op, region, self.program)
        is_inside = not is_empty(needed) and axis_outside(box, buffer) is None
        if is_inside and not cells.is_covered(cells.at(needed)):
            self.suspects.append(("uninitialized-read", access, buffer))
        cell.reads[access.key] = access

    def _write(self, region: Region, access: Access) -> None:
        cells, buffer = self.cells[region.buffer], self.program.buffers[region.buffer]
        box = clipped(access.op, region, buffer)
        if is_empty(box):
            return
        cell = cells.at(box)
        for near in cell.near:
            for older in (*near.writes.values(), *near.reads.values()):
                if older.event is not access.event:
                    self._compare(older, access, buffer)
            if not access.adds and cell.contains(near):
                self._suspect_unread(near, buffer, access)
                self._note_unused(near, buffer)
                near.writes.clear()
                near.reads.clear()
        cell.writes[access.key] = access
        self.latest[_site(access.op, buffer)] = access.event.index
        cells.cover(cell)

    def _see_opaque(self, op: Op) -> None:
        """It has read and written all of its regions, in whatever order."""
        for region in op.reads:
            cells = self.cells[region.buffer]
            cell = cells.at(region.box)
            for near in cell.near:
                for older in near.writes.values():
                    older.was_read = True
            cells.cover(cell)

    # Pairs of accesses.

    def _compare(self, older: Access, newer: Access, buffer: Buffer) -> None:
        first, second, now = older.op, newer.op, newer.event
        is_over = now.clock[older.component] >= older.value
        if older.is_ordinary:
            is_over |= first.thread == second.thread
        else:
            is_over |= _in_queue(first, second, buffer)
        if not is_over:
            if not older.adds or older.adds != newer.adds:
                self.raced |= {_site(first, buffer), _site(second, buffer)}
                self.findings.add(*wording.race(self.order, older, newer, buffer))
        elif older.is_ordinary and not newer.is_ordinary and buffer.space != "acc":
            if buffer.space == "smem" and now.fenced[first.thread] >= older.value:
                return
            if older.writes or self.strict:
                self.findings.add(*wording.missing_commit(self.program, older, newer, buffer))

    def _suspect_unread(self, cell: Cell, buffer: Buffer, by: Access | None = None) -> None:
        """Ordinary writes of SMEM that nothing has read when `by`, or the end, makes them void."""
        if buffer.space != "smem" or axis_outside(cell.box, buffer) is not None:
            return
        for access in cell.writes.values():
            if access.is_ordinary and not access.was_read:
                latest = self.latest[_site(access.op, buffer)]
                again = by is None and access.event.index < latest
                if again or (by and by.is_ordinary and by.op.thread == access.op.thread):
                    self.overwritten[access.op.line, buffer.name] += 1
                else:
                    self.suspects.append(("lost-store", access, buffer))

    def _note_unused(self, cell: Cell, buffer: Buffer) -> None:
        """Copies into SMEM and products that nothing has read when they are void."""
        for access in cell.writes.values():
            is_wanted = access.was_read or access.is_ordinary or buffer.space == "gmem"
            if not is_wanted:
                self.unused[access.op.line, access.op.kind, buffer.name] += 1

    def _see_output(self, buffer: Buffer, cells: Cells) -> None:
        """Of a kernel of one cluster, what it is to fill and has not."""
        if buffer.role == "out" and math.prod(self.program.grid) == 1:
            whole = cells.at(tuple((0, size) for size in buffer.shape))
            bare = None if is_empty(whole.box) else cells.bare(whole)
            if bare is not None:
                self.unwritten.append(Region(buffer.id, bare))


def _is_given(buffer: Buffer) -> bool:
    """Whether it holds something from the start."""
    if buffer.space == "gmem":
        return buffer.role != "out"
    return buffer.space == "acc" and buffer.scope is not None


def _site(op: Op, buffer: Buffer) -> tuple:
    """Where in the source which thread accesses which buffer, and how."""
    return op.kind, op.thread, op.line, buffer.id


def _in_queue(first: Op, second: Op, buffer: Buffer) -> bool:
    """Whether these are products that the tensor core makes one after the other."""
    return (
        buffer.space == "acc" and first.kind == second.kind == "wgmma"
        and first.thread == second.thread
    )  # fmt: skip
