"""`check_grid`: what the blocks of one grid do to each other in GMEM.

The model. Nothing orders the blocks of one launch: any of them may run before, after or beside any
other. (The blocks of a cluster are one program, and `check` looks at what is between these.) So two
blocks that access one place, at least one of them to write it, race, whatever their threads do. The
exception is as within a block: additions of one kind commute (`combines`). A part of an output that
no block writes is a fault too, if every block of the grid is there. A block's **footprint** is what
it accesses in GMEM: few regions, without the ops of its threads, so that footprints of many blocks
fit in memory and go from process to process.

What gives a note, never a finding: a region that is not exact, unless a tensor holds the index and
the other block accesses every place that it may name; and any access where the two blocks
may wait for each other, by an op of `_MEETS` or in opaque code that has GMEM.

The algorithm. The boxes of each buffer that some block writes are `Cells`, which find the boxes
that overlap. Each box gets to know the accesses of the boxes that it overlaps. Of those that are
alike, it keeps the accesses of two blocks: one of the two is of another block than the next access.

Not covered: prefetches, which change nothing; what opaque code accesses; outputs that are also
inputs, which hold something from the start. Source: this project's own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from pallascope.checking.bounds import clipped
from pallascope.checking.cells import Box, Cells, is_empty
from pallascope.checking.check import Findings
from pallascope.checking.facts.memory import UnwrittenOutput
from pallascope.checking.facts.races import BlocksMeet, BlocksRace
from pallascope.checking.order import Order
from pallascope.program import Buffer, Kind, Op, Program, Region, Role, Space
from pallascope.report import Report

_ACCESSES = Kind.LOAD, Kind.CP_ASYNC, Kind.STORE, Kind.READ, Kind.WRITE
# The kinds of ops by which one block of a grid may wait for another.
_MEETS = frozenset({Kind.AWAIT})


@dataclass(frozen=True, slots=True)
class Access:
    """The first of a block's accesses of one box of GMEM that are alike."""

    op: Op
    region: Region
    writes: bool

    @property
    def manner(self) -> tuple[bool, Kind | None, bool]:
        """Accesses with one manner collide with the same others: how it writes, adds, is known."""
        adds = self.op.kind if self.op.combines else None
        return self.writes, adds, self.region.is_exact

    def covers(self, other: "Access") -> bool:
        """Whether it is of every place at which another may be whose index a tensor holds."""
        pairs = zip(self.region.box, other.region.box)
        is_within = all(a <= c and d <= b for (a, b), (c, d) in pairs)
        return self.region.is_exact and not other.region.is_placed and is_within


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a block, or a cluster, accesses in GMEM.

    `program` is without its ops; `meets` says whether the block may wait for others.
    """

    program: Program
    accesses: tuple[Access, ...]
    meets: bool


# Accesses and the blocks that make them.
_Alike = list[tuple[Footprint, Access]]


def footprint(program: Program) -> Footprint:
    """What a program accesses in GMEM."""
    found: dict[tuple[object, ...], Access] = {}
    meets = False
    for op in program.ops:
        regions = [(r, False) for r in op.reads] + [(r, True) for r in op.writes]
        in_gmem = [(r, w) for r, w in regions if program.buffers[r.buffer].space is Space.GMEM]
        meets |= op.kind in _MEETS or (op.kind == Kind.OPAQUE and bool(in_gmem))
        for region, writes in in_gmem if op.kind in _ACCESSES else ():
            box = clipped(op, region, program.buffers[region.buffer])
            if not is_empty(box):
                access = Access(op, replace(region, box=box), writes)
                alike = access.region, access.manner, op.kind, op.line
                found.setdefault(alike, access)
    outline = replace(program, threads=tuple(() for _ in program.threads))
    return Footprint(outline, tuple(found.values()), meets)


def check_grid(programs: Iterable[Program]) -> Report:
    """The races between blocks of one grid, and the outputs that no block writes.

    Args:
      programs: those of different blocks, or clusters, of one kernel's grid; at least one.

    Returns:
      a `Report` whose `compared` is the number of programs.
    """
    return compare([footprint(program) for program in programs])


def compare(footprints: Sequence[Footprint]) -> Report:
    """The report of `check_grid`, from the footprints of the blocks."""
    first = footprints[0].program
    findings, meetings = Findings(first), Counter[BlocksMeet]()
    for shared in _shared(footprints):
        for fault in shared.collisions():
            if isinstance(fault, BlocksMeet):
                meetings[fault] += 1
            else:
                findings.add(fault)
        is_output = shared.buffer.role is Role.OUT
        if is_output and _are_all(footprints) and (bare := shared.unwritten()) is not None:
            findings.add(UnwrittenOutput(bare))
    notes = (replace(one, times=times).note(first) for one, times in meetings.items())
    return Report(first, findings.all(Order(first)), tuple(notes), len(footprints))


def _are_all(footprints: Sequence[Footprint]) -> bool:
    """Whether every block of the grid is here, and all that it does to GMEM is known."""
    is_known = not any(each.meets or each.program.truncated for each in footprints)
    return is_known and len(footprints) == prod(footprints[0].program.grid)


class _Shared:
    """A buffer of GMEM and what the blocks do to it."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.accesses: _Alike = []
        self.cells = Cells(is_given=False)

    def collisions(self) -> Iterator[BlocksRace | BlocksMeet]:
        """The accesses of different blocks that race, or may."""
        if not any(access.writes for _, access in self.accesses):
            return
        cells = list(filter(None, (self.cells.at(a.region.box) for _, a in self.accesses)))
        seen: defaultdict[object, _Alike] = defaultdict(list)
        met: defaultdict[Box, defaultdict[object, _Alike]] = defaultdict(lambda: defaultdict(list))
        for (home, access), cell in zip(self.accesses, cells, strict=True):
            for alike in met[cell.box].values():
                older = next((other for other in alike if other[0] is not home), None)
                if older is not None and _collide(older[1], access):
                    yield self._collision(home, access, *older)
            manner = access.manner, access.op.kind, access.op.line
            if _keep(seen[cell.box, manner], home, access):
                for near in cell.near:
                    _keep(met[near.box][manner], home, access)

    def _collision(
        self, home: Footprint, newer: Access, other: Footprint, older: Access
    ) -> BlocksRace | BlocksMeet:
        is_exact = newer.region.is_exact and older.region.is_exact
        is_rounded = not (is_exact or newer.covers(older) or older.covers(newer))
        if is_rounded or home.meets or other.meets:
            return BlocksMeet((newer.op.line, older.op.line), self.buffer.name, is_rounded, 1)
        programs = home.program, other.program
        return BlocksRace(newer.op, older.op, self.buffer, newer.writes, older.writes, programs)

    def unwritten(self) -> Region | None:
        """A part that no block writes, if there is one."""
        whole = self.cells.at(tuple((0, size) for size in self.buffer.shape))
        for cell in (self.cells.at(a.region.box) for _, a in self.accesses if a.writes):
            if cell is not None:
                self.cells.cover(cell)
        bare = None if whole is None else self.cells.bare(whole)
        return None if bare is None else Region(self.buffer.id, bare)


def _shared(footprints: Sequence[Footprint]) -> Iterable[_Shared]:
    """The buffers of GMEM that all blocks have, with every access."""
    everywhere: dict[Buffer, _Shared] = {}
    for buffer in footprints[0].program.buffers:
        if buffer.space is Space.GMEM:
            everywhere[buffer] = _Shared(buffer)
    for each in footprints:
        for access in each.accesses:
            buffer = each.program.buffers[access.region.buffer]
            if buffer in everywhere:
                everywhere[buffer].accesses.append((each, access))
    return everywhere.values()


def _keep(alike: _Alike, home: Footprint, access: Access) -> bool:
    """Keeps one more block's access, if there are not yet those of two; says whether it did."""
    is_new = len(alike) < 2 and all(other is not home for other, _ in alike)
    if is_new:
        alike.append((home, access))
    return is_new


def _collide(first: Access, second: Access) -> bool:
    """Whether two accesses of one place by different blocks need an order."""
    adds = first.op.combines and second.op.combines and first.op.kind == second.op.kind
    return (first.writes or second.writes) and not adds
