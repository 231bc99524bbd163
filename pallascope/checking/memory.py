"""`Memory`: what wrote and read every box of memory last, and which accesses may collide there.

The model. Events come in an order that agrees with every run (`order`). For each box of each buffer
the last write and the reads since are kept (`cells`). A new access is compared with the older
accesses that it overlaps, if one of the two writes. They are in order if the older access is over
by the newer one's clock. A write makes older accesses of its box forgotten, since whoever comes
after the write also comes after them. An addition is different: other additions need no order with
it, so it makes nothing forgotten.

- Two accesses in no order are a race. Products on one accumulator are in order as they are issued,
  since the tensor core has a queue (`_in_queue`). Two atomic operations do not harm each other, nor
  do two stores that add into GMEM, nor two copies that add registers to SMEM. An ordinary and an
  asynchronous addition do: PTX promises nothing of the two at once.
- Two accesses in order are a missing commit if the older is ordinary, the newer asynchronous, and
  no fence lies on the way from one to the other. PTX also asks for that fence if the older access
  reads and a copy overwrites. No fault has been seen for want of it, and JAX's own kernels leave it
  out, so this is a finding only if `strict`. GMEM has no such fence in Pallas.
- A read of a box that the writes so far do not cover is uninitialized. Arguments that a kernel is
  given, and accumulators that it allocates (zeros), count as written from the start.
- An ordinary write of SMEM is a lost store if nothing reads it until a load overwrites it or the
  memory ends. If what its line writes at other steps is stored, a last store is missing, or the
  line runs once too often, which does no harm: the finding says both. If that is only read, the
  line may fill a buffer for a step that does not come, so it is a remark. If the same line of the
  thread writes to the buffer again, only the last write may be meant to count, so it is a remark;
  and so is a write to memory that held nothing, which a load overwrites: it may fill what the load
  leaves out. A load into SMEM or a product that nothing reads is a remark too: it takes time, and
  the kernel may read another slot than was meant.
- A part of an output that nothing has written is a remark, where a program with all blocks ends:
  the caller may not read it. Where a grid has more, others may write it.

Where accesses of a buffer race, nothing else is reported of their source lines.
An access whose index a tensor holds counts as having read and written all that it may reach. It is
compared with the accesses that cover this: whatever the index, they have the place too. Not
covered: its other races; opaque code, which counts alike and takes part in no race. After
FastTrack: Flanagan and Freund, PLDI 2009.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import override

from pallascope.checking.bounds import arriving, axis_outside, clipped
from pallascope.checking.cells import Access, Cell, Cells, clash_of
from pallascope.checking.clocks import Clock
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Fault, Remark
from pallascope.checking.facts.memory import (
    HandedOver,
    LostWrite,
    Overwritten,
    Uninitialized,
    Unplaced,
    Unused,
    Unwritten,
)
from pallascope.checking.facts.races import MissingCommit, Race
from pallascope.checking.order import End, Event, Order
from pallascope.program import Buffer, Engine, Kind, Op, Region, Role, Space

# Where in the source a thread accesses a buffer: the kind of op, the thread, the line, the buffer.
_Site = tuple[Kind, int, str | None, int]


class Memory(Detector):
    """Finds accesses that race, lack a fence, or touch what nothing has written or reads.

    `overwritten` counts writes, by source line and buffer, that the same line overwrites; only the
    last may be meant. `unused` counts copies and products that nothing reads, by line, kind of op
    and buffer. `unplaced` counts accesses whose place is not known, by line and buffer; the newest
    are `anywhere`. `unwritten` has a part of each output that nothing has written, if it is known.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        self._found: list[Fault] = []
        program = order.program
        self.cells = [Cells(_is_given(buffer)) for buffer in program.buffers]
        self.raced: set[_Site] = set()
        self.latest: dict[_Site, int] = {}
        self.useful: set[_Site] = set()  # the sites of writes that are read at some step
        self.stored: set[_Site] = set()  # of which a copy reads some
        self.suspects: list[tuple[Access, Buffer]] = []
        self.overwritten: Counter[tuple[str | None, str, bool]] = Counter()
        self.unused: Counter[tuple[str | None, Kind, str]] = Counter()
        self.unplaced: Counter[tuple[str | None, str]] = Counter()
        self.anywhere: dict[int, dict[object, tuple[Cell, Access]]] = defaultdict(dict)
        self.unwritten: list[Region] = []
        changes = {r.buffer for op in program.ops for r in op.writes}
        # Nothing can go wrong where nothing is written.
        self.is_plain = [_is_given(b) and b.id not in changes for b in program.buffers]

    @override
    def see(self, event: Event) -> list[Fault]:
        self._found = []
        self._see(event)
        return self._found

    def _see(self, event: Event) -> None:
        """The accesses of one event."""
        op = event.op
        if op.kind == Kind.OPAQUE:
            self._see_opaque(op)
            return
        for region in op.reads:
            if self.is_plain[region.buffer]:
                continue
            if op.kind == Kind.SKIP:
                self._use(region)
            elif region.is_placed:
                self._read(region, Access(event, False, event.read_end), event.clock)
            else:
                self._see_anywhere(region, Access(event, False, event.read_end), event.clock)
        for region, end in zip(op.writes, event.write_ends, strict=True):
            if region.is_placed:
                self._write(region, Access(event, True, end), event.clock)
            else:
                self._see_anywhere(region, Access(event, True, end), event.clock)

    @override
    def finish(self, is_whole: bool) -> Iterator[Fault]:
        """What stayed suspect and no race explains; what a whole run never read is lost."""
        if is_whole:
            for buffer, cells in zip(self.program.buffers, self.cells):
                for cell in cells:
                    self._note_unread(cell, buffer)
                self._see_output(buffer, cells)
        for access, buffer in self.suspects:
            site = _site(access.op, buffer)
            if site in self.raced:
                continue
            if not access.writes:
                yield Uninitialized(access.op, buffer)
            elif site in self.useful and site not in self.stored:
                self.overwritten[access.op.line, buffer.name, True] += 1
            else:
                yield LostWrite(access.op, buffer, is_useful=site in self.stored)

    @override
    def remarks(self) -> Iterator[Remark]:
        """Writes, copies and products that change nothing, by mistake or as they are meant."""
        yield from super().remarks()
        for (line, name, at_times), times in self.overwritten.items():
            yield Overwritten(line, name, at_times, times)
        for (line, name), times in self.unplaced.items():
            yield Unplaced(line, name, times)
        for region in self.unwritten:
            yield Unwritten(region)
        for (line, kind, name), times in self.unused.items():
            yield Unused(line, name, kind.is_product, times)

    # Accesses.

    def _read(self, region: Region, access: Access, clock: Clock) -> None:
        cells, buffer = self.cells[region.buffer], self.program.buffers[region.buffer]
        box = clipped(access.op, region, buffer)
        cell = cells.at(box)
        if cell is None:
            return
        self._compare_with_older(cell, access, clock, buffer)
        for near in cell.near:
            for older in near.writes.values():
                if not older.was_read:
                    older.was_read = True
                    self.useful.add(_site(older.op, buffer))
                if access.op.kind is Kind.STORE:
                    self.stored.add(_site(older.op, buffer))
        if not cell.is_covered or box is not region.box:
            needed = cells.at(arriving(access.op, region, self.program))
            is_bare = needed is not None and not cells.is_covered(needed)
            if is_bare and axis_outside(box, buffer) is None:
                self._suspect_bare(access, buffer, clock)
        cell.reads[access.key] = access

    def _suspect_bare(self, access: Access, buffer: Buffer, clock: Clock) -> None:
        """Another block may have written GMEM that is read after a wait for its semaphore."""
        over = (op for ops, end in zip(self.program.threads, clock.over) for op in ops[:end])
        waits = {op.place for op in over if op.kind is Kind.AWAIT} - self.order.semaphores.places
        if waits and buffer.space is Space.GMEM:
            names = {self.program.barriers[array].name for array, _ in waits}
            self.note(HandedOver(access.op.line, buffer.name, tuple(sorted(names))))
        else:
            self.suspects.append((access, buffer))

    def _write(self, region: Region, access: Access, clock: Clock) -> None:
        cells, buffer = self.cells[region.buffer], self.program.buffers[region.buffer]
        cell = cells.at(clipped(access.op, region, buffer))
        if cell is None:
            return
        self._compare_with_older(cell, access, clock, buffer)
        if (former := cell.writes.get(access.key)) is not None:
            access.began = former.began
        for near in () if access.adds else cell.within:
            if near.writes:
                self._note_unread(near, buffer, access)
                near.writes.clear()
            if near.reads:
                near.reads.clear()
        cell.writes[access.key] = access
        if access.is_ordinary:
            access.fills = not any(near.is_covered for near in cell.near)
            self.latest[_site(access.op, buffer)] = access.index
        cells.cover(cell)

    def _see_opaque(self, op: Op) -> None:
        """Opaque code has read and written all of its regions, in whatever order."""
        for region in op.reads:
            self._see_all(region)

    def _see_anywhere(self, region: Region, access: Access, clock: Clock) -> None:
        """An access somewhere in a region: it may have read, and written, all of it.

        Of what overlaps the region, only an access of all of it has the place, whatever that is.
        """
        buffer, cell = self.program.buffers[region.buffer], self.cells[region.buffer].at(region.box)
        if cell is not None:
            for near in (near for near in cell.near if cell in near.within):
                reads = near.reads.values() if access.writes else ()
                for older in (*near.writes.values(), *reads):
                    self._compare(older, access, clock, buffer)
            self.anywhere[buffer.id][access.key, access.writes, cell.box] = cell, access
        self._see_all(region)
        self.unplaced[access.op.line, buffer.name] += 1

    def _see_all(self, region: Region) -> None:
        """Counts all of a region as read and written, in whatever order."""
        self._use(region)
        cells = self.cells[region.buffer]
        if (cell := cells.at(region.box)) is not None:
            cells.cover(cell)

    def _use(self, region: Region) -> None:
        """Counts what was written in a region as read."""
        cell = self.cells[region.buffer].at(region.box)
        for near in cell.near if cell is not None else ():
            for older in near.writes.values():
                older.was_read = True
                self.useful.add(_site(older.op, self.program.buffers[region.buffer]))

    # Pairs of accesses.

    def _compare_with_older(self, cell: Cell, access: Access, clock: Clock, buffer: Buffer) -> None:
        """Compares an access with the older ones that it overlaps, if one of the two writes."""
        found = [older for near in cell.near if near.writes for older in near.writes.values()]
        if access.writes:
            found += [older for near in cell.near if near.reads for older in near.reads.values()]
        for inside, older in self.anywhere[buffer.id].values() if self.anywhere else ():
            if (access.writes or older.writes) and inside in cell.within:
                found.append(older)
        is_tmem = buffer.space is Space.TMEM
        over = None  # an end that is: several blocks' copies of parts of one slot share theirs
        for older in found:
            end = older.end
            if end == over:
                continue
            if not older.is_ordinary and _is_over(end, clock, is_tmem):
                over = end  # in order, and nothing asks for a fence after an engine
            elif older.op is not access.op or older.index != access.index:
                self._compare(older, access, clock, buffer)

    def _compare(self, older: Access, newer: Access, clock: Clock, buffer: Buffer) -> None:
        first, second = older.op, newer.op
        is_over = _is_over(older.end, clock, buffer.space is Space.TMEM)
        if not is_over and not _in_queue(older, newer, clock, buffer):
            if not older.adds or older.adds != newer.adds:
                self.raced |= {_site(first, buffer), _site(second, buffer)}
                is_unfenced = _is_over(older.end, clock, False)
                clash = clash_of(older, newer)
                if not is_unfenced and _overtakes(older, newer, clock):
                    older, newer = newer, older
                self._found.append(
                    Race(
                        newer.op,
                        older.op,
                        buffer,
                        newer.writes,
                        older.writes,
                        clash,
                        is_unfenced=is_unfenced,
                    )
                )
        elif older.is_ordinary and newer.needs_fence and buffer.space is not Space.ACC:
            if buffer.space is Space.SMEM and clock.has_fenced(first.thread, older.index):
                return
            if older.writes or self.strict:
                self._found.append(MissingCommit(second, first, buffer, newer.writes, older.writes))

    def _note_unread(self, cell: Cell, buffer: Buffer, by: Access | None = None) -> None:
        """Notes the writes that nothing has read when `by`, or the end, makes them void."""
        for access in cell.writes.values():
            if access.was_read:
                continue
            if access.is_ordinary:
                self._suspect_unread(access, cell, buffer, by)
            elif buffer.space is not Space.GMEM:
                self.unused[access.op.line, access.op.kind, buffer.name] += 1

    def _suspect_unread(
        self, access: Access, cell: Cell, buffer: Buffer, by: Access | None
    ) -> None:
        if buffer.space is not Space.SMEM or axis_outside(cell.box, buffer) is not None:
            return
        again = by is None and access.index < self.latest[_site(access.op, buffer)]
        anew = by and by.is_ordinary and by.op.thread == access.op.thread
        filled = by and by.op.kind in (Kind.LOAD, Kind.CP_ASYNC) and access.fills
        if again or anew or filled:
            self.overwritten[access.op.line, buffer.name, False] += 1
        else:
            self.suspects.append((access, buffer))

    def _see_output(self, buffer: Buffer, cells: Cells) -> None:
        """Notes the part of an output that a kernel of one cluster should fill and has not."""
        if buffer.role is Role.OUT and self.program.is_whole:
            whole = cells.at(tuple((0, size) for size in buffer.shape))
            bare = None if whole is None else cells.bare(whole)
            if bare is not None:
                self.unwritten.append(Region(buffer.id, bare))


def _is_given(buffer: Buffer) -> bool:
    """Whether a buffer holds something from the start."""
    if buffer.space is Space.GMEM:
        return buffer.role is not Role.OUT
    return buffer.space is Space.ACC and buffer.scope_id is not None


def _site(op: Op, buffer: Buffer) -> _Site:
    """Where in the source which thread accesses which buffer, and how."""
    return op.kind, op.thread, op.line, buffer.id


def _is_over(end: End, clock: Clock, is_tmem: bool) -> bool:
    """Whether an access that is over at this end comes before what is done at this moment."""
    ends, number = end
    return ends.are_ordered(number, clock) if is_tmem else ends.are_known(number, clock)


def _overtakes(write: Access, read: Access, clock: Clock) -> bool:
    """Whether a read is of another thread's earlier ordinary write, and this write is too early."""
    if read.writes or not (write.writes and write.is_ordinary) or write.began == write.end:
        return False
    return write.op.thread != read.op.thread and _is_over(write.began, clock, False)


def _in_queue(older: Access, newer: Access, clock: Clock, buffer: Buffer) -> bool:
    """Whether the tensor core makes these two in the order in which they are issued.

    On Hopper: products of one thread. On Blackwell it depends on what the two are, and they may be
    two threads', if what orders these orders the tensor core (PTX ISA, "Pipelined tcgen05
    Instructions" and "Pipelined instructions, different thread"): a product comes after a copy to
    TMEM, and after a product on the same accumulator and of the same shape; and a copy or a product
    writes after an older product has read. The last rule is in newer revisions of the PTX ISA only.
    """
    first, second = older.op, newer.op
    if buffer.space is Space.ACC:
        return first.thread == second.thread and first.kind is second.kind is Kind.WGMMA
    if buffer.space is not Space.TMEM or not clock.has_ordered(first.thread, older.index):
        return False
    if not (first.kind.engine is second.kind.engine is Engine.TENSOR_CORE):
        return False
    if not older.writes:
        return True
    is_same = first.kind is Kind.TCGEN05_COPY or first.writes == second.writes
    return second.kind is Kind.TCGEN05_MMA and is_same
