"""`Foregone`: what a peer does to a scope's memory while an earlier scope still has it.

The model. SMEM is a stack: where a scope ends, the next one of its thread begins at the same place,
its buffers one after another, each rounded up to 1,024 bytes (Mosaic GPU's `run_scoped`). The block
itself comes to the two scopes in turn. Another block of the cluster names the later one's memory as
soon as it is there itself, so its access has to come after all accesses of what had the place.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import override

from pallascope.checking.cells import Access, clash_of
from pallascope.checking.detector import Detector
from pallascope.checking.facts import NO_CLASH
from pallascope.checking.facts.races import Race
from pallascope.checking.leftover import is_over, peer_of
from pallascope.checking.order import Event, Order
from pallascope.program import Buffer, Kind, Program, Space

_ALIGNED = 1_024


class Foregone(Detector):
    """Finds accesses by a peer of memory that an earlier scope may still use.

    `earlier` has the buffers whose place a buffer got that a peer accesses, `later` the same the
    other way. `used` has the newest accesses of all these, `peers` all that a peer made.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        self.earlier = _earlier(self.program)
        self.later: dict[int, list[int]] = defaultdict(list)
        for buffer, before in self.earlier.items():
            for each in before:
                self.later[each].append(buffer)
        self.used: dict[int, dict[object, Access]] = defaultdict(dict)
        self.peers: dict[int, list[Access]] = defaultdict(list)

    @override
    def see(self, event: Event) -> Iterator[Race]:
        for region, end, writes in event.accesses() if self.earlier else ():
            id, new = region.buffer, Access(event, writes, end)
            is_peers = peer_of(self.program, event.op, self.program.buffers[id]) is not None
            for place in self.earlier.get(id, ()) if is_peers else ():
                for old in self.used[place].values():
                    if not is_over(old.end, event.clock):
                        yield from self._race(place, old, id, new)
            for place in self.later.get(id, ()):
                for early in self.peers[place]:  # too early, in whatever order
                    yield from self._race(id, new, place, early, is_over(early.end, event.clock))
            if is_peers and id in self.earlier:
                self.peers[id].append(new)
            self.used[id][new.key, writes] = new

    def _race(
        self, earlier: int, use: Access, later: int, peers: Access, always: bool = False
    ) -> Iterator[Race]:
        """The two, if one of them writes, and the moment that shows it, unless all orders do."""
        if use.writes or peers.writes:
            clash = NO_CLASH if always else clash_of(peers, use)
            verbs, buffers = (peers.writes, use.writes), self.program.buffers
            yield Race(peers.op, use.op, buffers[earlier], *verbs, clash, later=buffers[later])


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
        places, ended, tops = dict[int, tuple[int, int]](), list[int](), [0]
        for op in ops:
            own = scopes.get(op.scope_id, ())
            if op.kind is Kind.SCOPE_BEGIN:
                tops.append(tops[-1])
                for each in own:
                    start, tops[-1] = tops[-1], tops[-1] + -(-each.bytes // _ALIGNED) * _ALIGNED
                    places[each.id] = start, tops[-1]
                    if each.id in reached:
                        found[each.id] = _last(places, ended, each.id)
            elif op.kind is Kind.SCOPE_END:
                ended += [each.id for each in own if each.id in places]
                tops = tops[:-1] or [0]
    return found


def _last(places: dict[int, tuple[int, int]], ended: list[int], id: int) -> list[int]:
    """The buffers that had the place of this one, back to one that had all of it."""
    (start, stop), found = places[id], list[int]()
    for old in reversed(ended):
        first, last = places[old]
        if first < stop and start < last:
            found.append(old)
            if first <= start and stop <= last:
                break
    return found
