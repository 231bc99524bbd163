"""`Foregone`: what a peer does to a scope's memory while an earlier scope still has it.

The model. SMEM is a stack: where a scope ends, the next one of its thread begins at the same place,
its buffers one after another, each rounded up to 1,024 bytes (Mosaic GPU's `run_scoped`). The block
itself comes to the two scopes in turn. Another block of the cluster names the later one's memory as
soon as it is there itself, so its access has to come after all accesses of what had the place.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import override

from pallascope.checking.cells import Access
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
        self.used: dict[int, dict[object, Access]] = defaultdict(dict)
        self.peers: list[tuple[Buffer, Access, Clock]] = []

    @override
    def see(self, event: Event) -> Iterable[Race]:
        for region, end, writes in event.accesses() if self.earlier else ():
            buffer, new = self.program.buffers[region.buffer], Access(event, writes, end)
            if buffer.id in self.earlier and peer_of(self.program, event.op, buffer) is not None:
                self.peers.append((buffer, new, event.clock.copy()))
            self.used[buffer.id][new.key, writes] = new
        return ()

    @override
    def finish(self, is_whole: bool) -> Iterator[Race]:
        for buffer, new, clock in self.peers:
            for before in (self.program.buffers[id] for id in self.earlier[buffer.id]):
                for old in self.used[before.id].values():
                    if (old.writes or new.writes) and not is_over(old.end, clock):
                        # No order is shown: the block itself may come to the peer's access later.
                        verbs = new.writes, old.writes
                        yield Race(new.op, old.op, before, *verbs, NO_CLASH, later=buffer)


def _earlier(program: Program) -> dict[int, list[int]]:
    """Of each buffer that a peer accesses, the buffers of ended scopes that had its place last."""
    reached, scopes = set[int](), dict[int | None, list[Buffer]]()
    for op in program.ops if program.blocks > 1 else ():
        for region in op.reads + op.writes:
            if peer_of(program, op, program.buffers[region.buffer]) is not None:
                reached.add(region.buffer)
    for buffer in program.buffers if reached else ():
        if buffer.space is Space.SMEM:
            scopes.setdefault(buffer.scope_id, []).append(buffer)
    found: dict[int, list[int]] = {}
    for ops in program.threads if reached else ():
        tops, places = [0], dict[int, tuple[int, int]]()
        had: dict[int, tuple[int, int]] = {}  # by what has ended, and has not been replaced whole
        for op in ops:
            own = [each.id for each in scopes.get(op.scope_id, ())]
            if op.kind is Kind.SCOPE_BEGIN:
                tops.append(tops[-1])
                for id in own:
                    start, size = tops[-1], -(-program.buffers[id].bytes // _ALIGNED) * _ALIGNED
                    places[id] = start, (stop := start + size)
                    tops[-1] = stop
                    found[id] = [old for old, (a, b) in had.items() if a < stop and start < b]
            elif op.kind is Kind.SCOPE_END and len(tops) > 1:
                tops.pop()
                for id in (id for id in own if id in places):
                    start, stop = places[id]
                    had = {old: at for old, at in had.items() if at[0] < start or stop < at[1]}
                    had[id] = start, stop
    return {id: earlier for id, earlier in found.items() if earlier and id in reached}
