"""`deepened`: a program whose rings have a slot more.

The model. A **ring** of n slots is memory that loads fill, one slot after another, with the arrays
of n barriers that say when a slot is full or free. What a thread does to a ring goes on by one slot
at a time: its t-th tile is in slot t mod n. So with a slot more each op of tile t names slot t mod
(n + 1). What comes earlier are the loads.
A thread that waits until a slot is free begins to wait a tile later: its first wait goes, and the
wait for the release of tile t stands where that of tile t + 1 stood; if it waits for all in the
end, it still does. A thread that loads and waits for nobody starts each load where it started the
one before, and one more at the beginning.

Whether the result is right, and fits, is for `check` to say: the model is of rings as they are
usually built. Not covered: rings whose slots are not taken in order, or whose barriers begin with
arrivals; other barriers than those of the ring that count its steps. Source: this project's own.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pallascope.editing import counted
from pallascope.program import BarrierType, Kind, Op, Program, Region, Space

_BARRIER_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Rings:
    """The rings of n slots.

    `parts` has, by the ids of their buffers, the size of a slot along the first axis; `arrays` the
    ids of their arrays of barriers, `full` those of all on which loads arrive. `releases` says how
    often a thread arrives on each array.
    """

    slots: int
    parts: dict[int, int]
    arrays: frozenset[int]
    full: frozenset[int]
    releases: dict[int | None, int]

    @classmethod
    def of(cls, program: Program, slots: int) -> "_Rings":
        """Those of a program."""
        waits = Counter(op.place for op in program.ops if op.kind is Kind.WAIT)
        arrivals = Counter((op.barrier, op.thread) for op in program.ops if op.kind is Kind.ARRIVE)
        loads = [op for op in program.ops if op.kind is Kind.LOAD]
        again = Counter(region for op in loads for region in op.writes)
        filled = {region.buffer for region, times in again.items() if times > 1}
        buffers = (b for b in program.buffers if b.space is Space.SMEM and b.slots == slots)
        own = (b for b in program.barriers if b.type is BarrierType.MBARRIER and b.count == slots)
        return cls(
            slots,
            {b.id: b.shape[0] // slots for b in buffers if b.id in filled},
            frozenset(b.id for b in own if any(waits[b.id, i] > 1 for i in range(slots))),
            frozenset(op.barrier for op in loads if op.barrier is not None),
            {array: arrivals[array, thread] for array, thread in arrivals},
        )


def depths(program: Program) -> list[int]:
    """The numbers of slots that rings of a program have, in order."""
    found = {buffer.slots for buffer in program.buffers if buffer.slots} - {None}
    return sorted(slots for slots in found if _Rings.of(program, slots).parts)


def deepened(program: Program, slots: int) -> Program | None:
    """The program whose rings of so many slots have one more; None if they are not of the model."""
    rings = _Rings.of(program, slots)
    threads: list[tuple[Op, ...]] = []
    for ops in program.threads:
        if (found := _thread(ops, rings)) is None:
            return None
        threads.append(tuple(found))
    more = 0
    buffers, barriers = [*program.buffers], [*program.barriers]
    for at, buffer in enumerate(buffers):
        if buffer.id in rings.parts:
            part, size = buffer.shape[0] // slots, buffer.bytes // slots
            shape = (part * (slots + 1), *buffer.shape[1:])
            buffers[at] = replace(buffer, shape=shape, bytes=size * (slots + 1), slots=slots + 1)
            more += 0 if buffer.block else size
    for at, array in enumerate(barriers):
        if array.id in rings.arrays:
            barriers[at] = replace(array, count=slots + 1)
            more += 0 if array.block else _BARRIER_BYTES
    return counted(
        replace(
            program,
            threads=tuple(threads),
            buffers=tuple(buffers),
            barriers=tuple(barriers),
            smem_bytes=program.smem_bytes + more,
        )
    )


#: What a thread does to the tiles of a ring: the kind, and a buffer or an array of barriers.
_Deed = tuple[Kind, str, int]


class _Tiles:
    """Numbers the tiles of a ring, for each deed of a thread, by the slots that they are in."""

    def __init__(self, slots: int):
        self.slots, self.are_in_order = slots, True
        self.done: dict[_Deed, int] = {}
        self._last: dict[_Deed, tuple[int, object]] = {}

    @property
    def loaded(self) -> set[int]:
        """How many tiles of each buffer the thread has loaded."""
        return {count for (kind, _, _), count in self.done.items() if kind is Kind.LOAD}

    def number(self, deed: _Deed, slot: int, step: object, region: Region | None = None) -> int:
        """The number of the tile in this slot that the deed is done to at this step.

        Loads that come again to the region where the tile's first one was are for the next tile.
        """
        is_load, last = deed[0] is Kind.LOAD, self._last.get(deed)
        now = slot, region if is_load else step
        is_again = last is not None and last[0] == slot
        if self.slots == 1:
            is_again = is_again and (now != last if is_load else now == last)
        if not (is_again and is_load):
            self._last[deed] = now
        tile = self.done.get(deed, 0) - is_again
        self.are_in_order &= tile % self.slots == slot
        self.done[deed] = tile + 1
        return tile


def _thread(ops: Sequence[Op], rings: _Rings) -> list[Op] | None:
    """A thread's ops on rings with a slot more; None if it does not take the slots in order."""
    tiles = _Tiles(rings.slots)
    loaded = {r.buffer for op in ops if op.kind is Kind.LOAD for r in op.writes} & {*rings.parts}
    waits = {op.barrier for op in ops if op.kind is Kind.WAIT} & rings.arrays
    free = waits - rings.full if loaded else set[int]()
    loads: defaultdict[int, list[int]] = defaultdict(list)
    made: list[Op] = []
    last: dict[int, int] = {}  # the place of the last wait for a free slot, by array
    for op in ops:
        regions, tile = dict[Region, int](), None
        for region in (*op.reads, *op.writes):
            if (part := rings.parts.get(region.buffer)) is not None:
                slot = region.box[0][0] // part
                deed = op.kind, "buffer", region.buffer
                tile = tiles.number(deed, slot, op.step, region)
                regions[region] = tile
                if op.kind is Kind.LOAD and not free:
                    loads[tile].append(len(made))
        if op.barrier in rings.arrays and tile is None:
            tile = tiles.number((op.kind, "array", op.barrier), op.index, op.step)
            if op.kind is Kind.WAIT and op.barrier in free:
                tiles.are_in_order &= tile > 0 or tiles.loaded == {rings.slots}
                last[op.barrier], tile = len(made) - (tile == 0), tile - 1
        if tile is None or tile >= 0:
            made.append(op if tile is None else _placed(op, tile, regions, rings))
    for array, at in sorted(last.items(), key=lambda item: -item[1]):
        count = tiles.done[Kind.WAIT, "array", array]
        if count == rings.releases.get(array):  # it waits for all in the end
            made.insert(at + 1, _placed(made[at], count - 1, {}, rings))
    return _earlier(made, loads, rings.slots) if tiles.are_in_order else None


def _placed(op: Op, tile: int, tiles: Mapping[Region, int], rings: _Rings) -> Op:
    """An op of a tile, on the slot that this has in rings with a slot more."""

    def moved(region: Region) -> Region:
        if (part := rings.parts.get(region.buffer)) is None:
            return region
        (start, stop), *rest = region.box
        by = tiles.get(region, tile) % (rings.slots + 1) * part - start // part * part
        return replace(region, box=((start + by, stop + by), *rest))

    index = tile % (rings.slots + 1) if op.barrier in rings.arrays else op.index
    reads, writes, whole = (tuple(map(moved, each)) for each in (op.reads, op.writes, op.whole))
    return replace(op, reads=reads, writes=writes, whole=whole, index=index)


def _earlier(ops: list[Op], loads: Mapping[int, Sequence[int]], slots: int) -> list[Op]:
    """The ops with each tile's loads behind where those of the tile before were, from `slots` on.

    `loads` has the places of each tile's.
    """
    at: dict[int, list[Op]] = {}
    for tile in sorted(loads)[slots:]:
        before = loads[tile - 1][-1]
        at[before] = ([ops[before]] if tile == slots else []) + [ops[i] for i in loads[tile]]
        at |= {place: [] for place in loads[tile]}
    return [each for index, op in enumerate(ops) for each in at.get(index, [op])]
