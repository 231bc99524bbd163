"""`Foregone`: what a peer does to a scope's memory while an earlier scope still has it.

The model. SMEM is a stack: where a scope ends, the next one of its thread begins at the same place,
its buffers one after another, each rounded up to 1,024 bytes (Mosaic GPU's `run_scoped`). The block
itself comes to the two scopes in turn. Another block of the cluster names the later one's memory as
soon as it is there itself, so its access has to come after all accesses of what had the place; so
has a load that it shares. Not covered: buffers of another shape that had a part of the place.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import override

from pallascope.checking.cells import Access, Box, overlap
from pallascope.checking.clocks import Clock
from pallascope.checking.detector import Detector
from pallascope.checking.facts import NO_CLASH
from pallascope.checking.facts.races import Race
from pallascope.checking.leftover import is_over, peer_of
from pallascope.checking.order import Event, Order
from pallascope.program import Buffer, Kind, Program, Space

_ALIGNED = 1_024


class Foregone(Detector):
    """Finds accesses by a peer of memory that an earlier scope may still use.

    `earlier` has the buffers whose place a buffer got that a peer accesses; `used` the newest
    accesses of these, by key; `peers` the accesses by a peer, with what it knew.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        self.earlier = _earlier(self.program)
        self.used: dict[int, dict[tuple[object, bool, Box], Access]] = defaultdict(dict)
        self.peers: list[tuple[Buffer, Box, Access, Clock]] = []

    @override
    def see(self, event: Event) -> Iterable[Race]:
        for region, end, writes in event.accesses() if self.earlier else ():
            buffer, new = self.program.buffers[region.buffer], Access(event, writes, end)
            peer = peer_of(self.program, event.op, buffer)
            if peer is not None and buffer.id in self.earlier:
                self.peers.append((buffer, region.box, new, event.clock.copy()))
            self.used[buffer.id][new.key, writes, region.box] = new
        return ()

    @override
    def finish(self, is_whole: bool) -> Iterator[Race]:
        for buffer, place, new, clock in self.peers:
            for before in (self.program.buffers[id] for id in self.earlier[buffer.id]):
                for (*_, box), old in self.used[before.id].items():
                    is_free = is_over(old.end, clock) or not overlap(place, box)
                    if (old.writes or new.writes) and not is_free:
                        # No order is shown: the block itself may come to the peer's access later.
                        verbs = new.writes, old.writes
                        yield Race(new.op, old.op, before, *verbs, NO_CLASH, later=buffer)


def _earlier(program: Program) -> dict[int, list[int]]:
    """Of each buffer that a peer accesses, the buffers of ended scopes that had its place last."""
    buffers, reached = program.buffers, set[int]()
    for op in program.ops if program.blocks > 1 else ():
        for region in op.reads + op.writes:
            if peer_of(program, op, buffers[region.buffer]) is not None:
                reached.add(region.buffer)
    scopes: dict[int | None, list[int]] = defaultdict(list)
    for buffer in buffers if reached else ():
        if buffer.space is Space.SMEM:
            scopes[buffer.scope_id].append(buffer.id)
    found: dict[int, list[int]] = {}
    for ops in program.threads if reached else ():
        tops, places = [0], dict[int, tuple[int, int]]()
        had: dict[int, tuple[int, int]] = {}  # by what has ended, and has not been replaced whole
        for op in ops:
            if op.kind is Kind.SCOPE_BEGIN:
                tops.append(tops[-1])
                for id in scopes[op.scope_id]:
                    start, size = tops[-1], -(-buffers[id].bytes // _ALIGNED) * _ALIGNED
                    places[id], tops[-1] = (start, start + size), start + size
                    alike = (old for old, at in had.items() if at == places[id])
                    found[id] = [old for old in alike if buffers[old].shape == buffers[id].shape]
            elif op.kind is Kind.SCOPE_END and len(tops) > 1:
                tops.pop()
                for id in scopes[op.scope_id]:
                    start, stop = places.get(id, (0, 0))
                    had = {old: at for old, at in had.items() if at[0] < start or stop < at[1]}
                    had[id] = start, stop
    return {id: earlier for id, earlier in found.items() if earlier and id in reached}
