"""`Memory`: what every box of memory was last written and read by, and who may collide there.

The model. Events come in an order that agrees with every run (`order.py`). For each box of each
buffer the last write and the reads since are kept; a new access is compared with those that it
overlaps, one of the two being a write. They are in order if the older is over by the newer's clock.
What is written over is forgotten: whoever comes after the newer is after the older too. That is
not so of what only adds to it, which others that add need not come after: it lets nothing be
forgotten.

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
  If the same line of the thread writes to the buffer again, that may be meant (only the last
  counts), so it is a note.

Where accesses of a buffer race, nothing else is reported of the source lines at which they stand.
Not covered: code that is opaque (it counts as having read and written its buffers, and takes part
in no race); scopes that follow each other at the same address. After FastTrack: Flanagan and
Freund, PLDI 2009.
"""

from collections import Counter
from collections.abc import Iterator

from pipelib.schedule.order import Event, Order
from pipelib.schedule.program import Buffer, Op, Program, Region
from pipelib.schedule.report import Findings, thread_name

Box = tuple[tuple[int, int], ...]
ASYNC = ("load", "store", "wgmma")


class Access:
    """One op's access of one box, over for clocks that have `value` at `component`."""

    __slots__ = ("adds", "component", "event", "op", "value", "was_read", "writes")

    def __init__(self, event: Event, writes: bool, done: tuple[int, int]):
        self.event, self.op, self.writes, self.was_read = event, event.op, writes, False
        self.component, self.value = done
        self.adds = _adds(event.op)

    @property
    def key(self) -> tuple[int, str]:
        """Of accesses with one key, who comes after the newest comes after all."""
        return self.component, self.adds

    @property
    def is_ordinary(self) -> bool:
        """Whether the thread itself accesses memory, not an engine on its behalf."""
        return self.op.kind not in ASYNC


class Cell:
    """A box; `near` are the cells that it overlaps, itself too."""

    __slots__ = ("box", "is_covered", "near", "reads", "writes")

    def __init__(self, box: Box):
        self.box, self.is_covered, self.near = box, False, [self]
        self.writes: dict[tuple[int, str], Access] = {}
        self.reads: dict[tuple[int, str], Access] = {}


class Memory:
    """Sees all events in turn, and adds what it finds to `findings`; `finish` when all are seen."""

    def __init__(self, program: Program, order: Order, findings: Findings, strict: bool):
        self.program, self.order, self.findings, self.strict = program, order, findings, strict
        self.cells: list[dict[Box, Cell]] = [{} for _ in program.buffers]
        self.written: list[dict[Box, None]] = [{} for _ in program.buffers]
        self.raced: set[tuple] = set()
        self.latest: dict[tuple, int] = {}
        self.suspects: list[tuple[str, Access, Buffer]] = []
        self.overwritten: Counter[tuple[str | None, str]] = Counter()
        changes = {r.buffer for ops in program.threads for op in ops for r in op.writes}
        self.is_plain = [
            _is_given(b) and b.id not in changes for b in program.buffers
        ]  # nothing can go wrong there

    def see(self, event: Event) -> None:
        """The accesses of one event."""
        op = event.op
        if op.kind == "opaque":
            self._see_opaque(op)
            return
        for region in op.reads:
            if not self.is_plain[region.buffer] and not _is_empty(region.box):
                self._read(region, Access(event, False, event.read_done), event)
        for region, done in zip(op.writes, event.write_done, strict=True):
            if not _is_empty(region.box):
                self._write(region, Access(event, True, done), event)

    def finish(self, is_whole: bool) -> None:
        """Adds what stayed suspect and no race explains; what a whole run never read is lost."""
        if is_whole:
            for buffer, cells in zip(self.program.buffers, self.cells):
                for cell in cells.values():
                    self._suspect_unread(cell, buffer)
        for kind, access, buffer in self.suspects:
            if _site(access.op, buffer) not in self.raced:
                (self._report_unwritten if kind == "uninitialized-read" else self._report_lost)(
                    access, buffer
                )

    # Accesses.

    def _read(self, region: Region, access: Access, event: Event) -> None:
        cell, buffer = self._cell(region), self.program.buffers[region.buffer]
        for near in cell.near:
            for older in near.writes.values():
                older.was_read = True
                self._compare(older, access, event, buffer)
        if not self._is_covered(cell, buffer):
            self.suspects.append(("uninitialized-read", access, buffer))
        cell.reads[access.key] = access

    def _write(self, region: Region, access: Access, event: Event) -> None:
        cell, buffer = self._cell(region), self.program.buffers[region.buffer]
        for near in cell.near:
            for older in (*near.writes.values(), *near.reads.values()):
                if older.event is not event:
                    self._compare(older, access, event, buffer)
            if not access.adds and (near is cell or _contains(cell.box, near.box)):
                self._suspect_unread(near, buffer, access)
                near.writes.clear()
                near.reads.clear()
        cell.writes[access.key] = access
        self.latest[_site(access.op, buffer)] = access.event.index
        self.written[region.buffer][region.box] = None
        cell.is_covered = True

    def _see_opaque(self, op: Op) -> None:
        for region in op.reads:
            cell = self._cell(region)
            for near in cell.near:
                for older in near.writes.values():
                    older.was_read = True
            self.written[region.buffer][region.box] = None

    def _cell(self, region: Region) -> Cell:
        cells = self.cells[region.buffer]
        cell = cells.get(region.box)
        if cell is None:
            cell = Cell(region.box)
            for box, other in cells.items():
                if _overlap(box, region.box):
                    cell.near.append(other)
                    other.near.append(cell)
            cells[region.box] = cell
        return cell

    def _is_covered(self, cell: Cell, buffer: Buffer) -> bool:
        if not cell.is_covered:
            cell.is_covered = _is_given(buffer) or not any(
                True for _ in _uncovered(cell.box, list(self.written[buffer.id]))
            )
        return cell.is_covered

    # Pairs of accesses.

    def _compare(self, older: Access, newer: Access, event: Event, buffer: Buffer) -> None:
        first, second = older.op, newer.op
        is_over = event.clock[older.component] >= older.value
        if older.is_ordinary:
            is_over |= first.thread == second.thread
        else:
            is_over |= _in_queue(first, second, buffer)
        if not is_over:
            if not older.adds or older.adds != newer.adds:
                self.raced |= {_site(first, buffer), _site(second, buffer)}
                self._report_race(older, newer, buffer)
        elif older.is_ordinary and not newer.is_ordinary and buffer.space != "acc":
            if buffer.space == "smem" and event.fenced[first.thread] >= older.value:
                return
            if older.writes or self.strict:
                self._report_uncommitted(older, newer, buffer)

    def _suspect_unread(self, cell: Cell, buffer: Buffer, by: Access | None = None) -> None:
        if buffer.space == "smem":
            for access in cell.writes.values():
                if access.is_ordinary and not access.was_read:
                    latest = self.latest[_site(access.op, buffer)]
                    again = by is None and access.event.index < latest
                    if again or (by and by.is_ordinary and by.op.thread == access.op.thread):
                        self.overwritten[access.op.line, buffer.name] += 1
                    else:
                        self.suspects.append(("lost-store", access, buffer))

    # Words.

    def _report_race(self, older: Access, newer: Access, buffer: Buffer) -> None:
        first, second = older.op, newer.op
        where = _place(buffer, first, second)
        verb = "overwritten" if newer.writes else "read"
        doing = "written" if older.writes else "read"
        agent = _agent(self.program, first)
        cause = (
            f"{where} is {verb} by {_agent(self.program, second)} while it may still be {doing} by"
            f" {agent}: {self._why_unordered(first, second)}"
        )
        remedy = self._order_them(first, second)
        slot = _slot(buffer, first, second)
        self.findings.add("race", (second, first), cause, remedy, buffer.name, slot)

    def _why_unordered(self, first: Op, second: Op) -> str:
        who, other = (thread_name(self.program, op.thread) for op in (first, second))
        if first.kind == "load":
            place = self.order.places.get((first.barrier, first.index))
            name = self.order.name(place) if place else "its barrier"
            return f"the copy has landed when a wait on {name} returns, and {other} has made none."
        if first.kind == "store":
            return (
                f"the copy is over when a wait_smem_to_gmem of {who} returns that leaves no group"
                " since then, and nothing makes that come first."
            )
        if first.kind == "wgmma":
            return (
                f"the product is over when a wgmma_wait of {who} returns that leaves none of those"
                " issued since, and nothing makes that come first."
            )
        if first.thread == second.thread:
            return "nothing puts them in order."
        return f"nothing that {who} does after it is waited for by {other} before."

    def _order_them(self, first: Op, second: Op) -> str:
        who, other = (thread_name(self.program, op.thread) for op in (first, second))
        across = f", then arrive on a barrier on which {other} waits" if who != other else ""
        if first.kind == "load":
            return f"Call barrier_wait on that barrier in {other} before the access."
        if first.kind == "store":
            return f"Call wait_smem_to_gmem(0) in {who}{across}, before the access."
        if first.kind == "wgmma":
            return (
                f"Call wgmma_wait(0) in {who}{across}, before the access; in a pipeline, leave as"
                " many products in flight as delay_release says, and no more."
            )
        return f"Let {who}, after its access, arrive on a barrier on which {other} waits before."

    def _report_uncommitted(self, older: Access, newer: Access, buffer: Buffer) -> None:
        first, second = older.op, newer.op
        what = "wrote" if older.writes else "read"
        where = _place(buffer, first, second)
        does = "overwrites" if newer.writes else "reads"
        cause = (
            f"{_agent(self.program, second)} {does} {where}, which"
            f" {thread_name(self.program, first.thread)} {what} with ordinary accesses, and no"
            " commit_smem stands between: the two may be seen in another order."
        )
        remedy = "Call commit_smem after the ordinary access, before others are let at it."
        if buffer.space == "gmem":
            remedy = "commit_smem is for SMEM only: copy to GMEM from SMEM, and wait for the copy."
        slot = _slot(buffer, first, second)
        self.findings.add("missing-commit", (second, first), cause, remedy, buffer.name, slot)

    def _report_unwritten(self, access: Access, buffer: Buffer) -> None:
        self.findings.add(
            "uninitialized-read", (access.op,),
            f"{_agent(self.program, access.op)} reads {_place(buffer, access.op)}, of which at"
            " least a part has been written by nothing before.",
            "Write it first, or let a copy into it land.",
            buffer.name, _slot(buffer, access.op),
        )  # fmt: skip

    def _report_lost(self, access: Access, buffer: Buffer) -> None:
        self.findings.add(
            "lost-store", (access.op,),
            f"{_agent(self.program, access.op)} writes {_place(buffer, access.op)}, and nothing"
            " reads it before it is written over or ends to exist: the result is lost.",
            "Store it with copy_smem_to_gmem, or leave the write out.",
            buffer.name, _slot(buffer, access.op),
        )  # fmt: skip


def _is_given(buffer: Buffer) -> bool:
    """Whether it holds something from the start."""
    if buffer.space == "gmem":
        return buffer.role != "out"
    return buffer.space == "acc" and buffer.scope is not None


def _site(op: Op, buffer: Buffer) -> tuple:
    return op.kind, op.thread, op.line, buffer.id


def _adds(op: Op) -> str:
    """How it combines what is there with what it brings, "" if it does not."""
    how = op.note.partition(" ")[0]
    return how if how in ("atomic", "reduces") else ""


def _in_queue(first: Op, second: Op, buffer: Buffer) -> bool:
    return (
        buffer.space == "acc" and first.kind == second.kind == "wgmma"
        and first.thread == second.thread
    )  # fmt: skip


def _agent(program: Program, op: Op) -> str:
    """Who it is that accesses memory for this op."""
    who = thread_name(program, op.thread)
    engine = {"load": "the load", "store": "the store", "wgmma": "the wgmma"}.get(op.kind)
    return f"{engine} of {who}" if engine else who


def _slot(buffer: Buffer, *ops: Op) -> int | None:
    """The slot of the buffer's ring that all these ops are in, if they are in one."""
    boxes = [r.box for op in ops for r in op.reads + op.writes if r.buffer == buffer.id]
    slots = {box[0][0] for box in boxes} if buffer.slots else ()
    return slots.pop() if len(slots) == 1 else None


def _place(buffer: Buffer, *ops: Op) -> str:
    """The buffer's name, with its slot if the ops are in one."""
    slot = _slot(buffer, *ops)
    block = f" of block {buffer.block}" if buffer.block else ""
    return ("" if slot is None else f"slot {slot} of ") + f"`{buffer.name}`{block}"


def _is_empty(box: Box) -> bool:
    return any(a >= b for a, b in box)


def _overlap(first: Box, second: Box) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(first, second))


def _contains(outer: Box, inner: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner))


def _uncovered(box: Box, written: list[Box], first: int = 0) -> Iterator[Box]:
    """The parts of a box that lie in none of the others: cut it along the first that it meets."""
    for number in range(first, len(written)):
        other = written[number]
        if _overlap(box, other):
            rest = list(box)
            for axis, ((a, b), (c, d)) in enumerate(zip(box, other)):
                for low, high in ((a, min(b, c)), (max(a, d), b)):
                    if low < high:
                        part = (*rest[:axis], (low, high), *rest[axis + 1 :])
                        yield from _uncovered(part, written, number + 1)
                rest[axis] = (max(a, c), min(b, d))
            return
    yield box
