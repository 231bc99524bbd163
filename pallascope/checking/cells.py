"""`Cells`: the boxes of one buffer that were accessed, and by whom last.

The model. Each box that some op names is a **cell**, which knows the cells that it overlaps (itself
among them). A new cell finds these in grids. There is a grid for each size of boxes, rounded up to
powers of two: a box begins in one bin of it, and whatever overlaps the box begins in a bin nearby.
A cell keeps the newest write and the newest read for each key (`Access.key`): an access that comes
after the newest one comes after all older ones with the same key. A box is covered if the written
boxes, taken together, leave nothing of it. The time grows with the pairs of cells that overlap, not
with all pairs. Boxes have as many dimensions as their buffer. Source: this project's own.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pallascope.checking.facts import Clash
from pallascope.checking.order import End, Ends, Event
from pallascope.interleaving import Spot
from pallascope.program import Engine, Kind

Box = tuple[tuple[int, int], ...]


class Access:
    """One op's access of one box. It is over at its `end`; `index` is the op's, in its thread.

    `is_ordinary` says whether the thread itself accesses memory, not an engine on its behalf;
    `needs_fence` whether it does so by another proxy than ordinary accesses. An op that comes after
    the newest access with this `key` comes after all of them. `adds` is the kind of an access that
    combines its value with the value in memory: accesses of one kind that do so commute. It is None
    for an access that overwrites or only reads. `fills` says that it is a write to memory that held
    nothing. `began` is the end of the first write with this `key` to the box.
    """

    __slots__ = (
        "adds", "began", "end", "fills", "index", "is_ordinary", "key", "needs_fence", "op",
        "was_read", "writes",
    )  # fmt: skip

    def __init__(self, event: Event, writes: bool, end: End):
        op = event.op
        self.op, self.index, self.writes, self.was_read = op, event.index, writes, False
        self.end = self.began = end
        self.fills, self.is_ordinary = False, op.kind.engine is None
        # To PTX all of Hopper's engines are another proxy, and `cp.async` is not.
        self.needs_fence = op.kind.engine not in (None, Engine.CP_ASYNC)
        self.adds: Kind | None = op.kind if op.combines else None
        self.key = end[0], self.adds

    @property
    def spot(self) -> Spot:
        """Which op it is."""
        return self.op.thread, self.index


def clash_of(*found: Access | Event) -> Clash:
    """The moment at which ops meet in memory: what engines do is in flight, the others are next."""
    flying = tuple((each.op.thread, each.index) for each in found if each.op.kind.engine)
    coming = tuple((each.op.thread, each.index) for each in found if not each.op.kind.engine)
    return Clash(in_flight=flying, coming=coming)


class Cell:
    """A box; `near` are the cells that it overlaps, `within` those that it contains, itself too."""

    __slots__ = ("box", "is_covered", "near", "reads", "within", "writes")

    def __init__(self, box: Box, is_covered: bool):
        self.box, self.is_covered, self.near, self.within = box, is_covered, [self], [self]
        self.writes: dict[tuple[Ends, Kind | None], Access] = {}
        self.reads: dict[tuple[Ends, Kind | None], Access] = {}


class Cells:
    """The cells of one buffer; `is_given` says whether it holds something from the start."""

    def __init__(self, is_given: bool):
        self.is_given = is_given
        self._cells: dict[Box, Cell] = {}
        self._grids: dict[tuple[int, ...], dict[tuple[int, ...], list[Cell]]] = {}

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def at(self, box: Box) -> Cell | None:
        """The cell of this box, new if it is the first time; None if the box has no element."""
        cell = self._cells.get(box)
        if cell is None and not is_empty(box):
            cell = Cell(box, self.is_given)
            for other in self._not_far(box):
                if overlap(other.box, box):
                    _note_overlap(cell, other)
                    _note_overlap(other, cell)
            self._cells[box] = cell
            edges = tuple(1 << max(0, b - a - 1).bit_length() for a, b in box)
            grid = self._grids.setdefault(edges, defaultdict(list))
            grid[tuple(a // edge for (a, _), edge in zip(box, edges))].append(cell)
        return cell

    def _not_far(self, box: Box) -> Iterator[Cell]:
        """All cells that a box may overlap, and not many more."""
        for edges, grid in self._grids.items():
            bins = [
                range((a - edge + 1) // edge, (b - 1) // edge + 1)
                for (a, b), edge in zip(box, edges)
            ]
            if math.prod(map(len, bins)) < len(grid):
                for place in itertools.product(*bins):
                    yield from grid.get(place, ())
            else:
                yield from itertools.chain.from_iterable(grid.values())

    def cover(self, cell: Cell) -> None:
        """Notes that all of the cell has been written."""
        cell.is_covered = True

    def is_covered(self, cell: Cell) -> bool:
        """Whether every part of the cell holds something."""
        return self.bare(cell) is None

    def bare(self, cell: Cell) -> Box | None:
        """A part of the cell that holds nothing, if there is one."""
        if cell.is_covered:
            return None
        rest = next(_uncovered(cell.box, (near.box for near in cell.near if near.is_covered)), None)
        cell.is_covered = rest is None
        return rest


def _note_overlap(cell: Cell, other: Cell) -> None:
    cell.near.append(other)
    if all(a <= c and d <= b for (a, b), (c, d) in zip(cell.box, other.box)):
        cell.within.append(other)


def is_empty(box: Box) -> bool:
    """Whether a box has no element."""
    for start, stop in box:  # noqa: SIM110, `any` takes three times as long
        if start >= stop:
            return True
    return False


def overlap(first: Box, second: Box) -> bool:
    """Whether two boxes of one buffer have elements in common."""
    return all(a < d and c < b for (a, b), (c, d) in zip(first, second))


def _uncovered(box: Box, written: Iterable[Box]) -> Iterator[Box]:
    """The parts of a box outside of all others: cuts the box along each that it overlaps."""
    others, parts = sorted(written), [(box, 0)]  # sorted, so that a part soon meets its next
    while parts:
        part, first = parts.pop()
        for number in range(first, len(others)):
            if overlap(part, others[number]):
                parts += [(rest, number + 1) for rest in _without(part, others[number])]
                break
        else:
            yield part


def _without(box: Box, other: Box) -> Iterator[Box]:
    """The boxes that make up the first box without the second, which it overlaps."""
    rest = list(box)
    for axis, ((a, b), (c, d)) in enumerate(zip(box, other)):
        for low, high in ((a, min(b, c)), (max(a, d), b)):
            if low < high:
                yield (*rest[:axis], (low, high), *rest[axis + 1 :])
        rest[axis] = (max(a, c), min(b, d))
