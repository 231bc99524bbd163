"""`LanesApart`: races among the lanes of one Pallas thread, in a kernel without automatic barriers.

The model. A thread's 128 lanes each do the thread's ops in order, at their own pace. By default
Mosaic GPU lets them meet (`warpgroup_barrier`) before and after each ordinary write, and before
each load that a thread issues. With `unsafe_no_auto_barriers` of `plgpu.CompilerParams` it does
not (`auto_barriers` in `jax/experimental/mosaic/gpu/dialect_lowering.py`, JAX 0.11.2 and 0.12.0.1).
Then lanes meet only where `Order.met` says so. Two accesses of a thread with no such place between
are in no order, if different lanes make them:

- One lane issues a load for all. So a load over what the thread has read ordinarily is a race. By
  `cp.async` each lane loads a part: then it is a remark.
- An ordinary write and another ordinary access are a race if both layouts in registers are known
  and differ: then some element is in different lanes. With one layout and the same region each lane
  has its own elements, and nothing can go wrong. Otherwise it is a remark.

Not covered: warps apart from each other; GMEM; a load over what a product has read; a fence in
`inline_mgpu`, which counts as a place where the lanes meet, as does opaque code; views of one
region that are transposed or reshaped. A store or a product after a write needs `commit_smem`, at
which lanes meet: without it `memory` tells of a missing commit.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, override

from pallascope.checking.cells import overlap
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Clash
from pallascope.checking.facts.races import LanesRace, LanesRacePerhaps
from pallascope.checking.order import Event, Order
from pallascope.program import Kind, Op, Region, Space


class _Seen(NamedTuple):
    """An ordinary access that has been made, and its index in its thread."""

    at: int
    op: Op
    region: Region
    writes: bool


class LanesApart(Detector):
    """Finds races of one thread's lanes."""

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        # Of each thread, by its buffers: the accesses since its lanes met.
        self._seen: defaultdict[int, defaultdict[int, list[_Seen]]]
        self._seen = defaultdict(lambda: defaultdict(list))

    @override
    def see(self, event: Event) -> Iterator[LanesRace]:
        """One event; what it races with, of what its own thread did."""
        op = event.op
        is_load = op.kind in _LOADS and not op.from_registers
        is_apart = self.program.pallas_thread(op.thread) != op.thread
        if self.program.auto_barriers or is_apart or not (is_load or op.kind in _ORDINARY):
            return
        accessed = [(r, True) for r in op.writes] + [(r, False) for r in op.reads]
        for region, writes in accessed:
            buffer = self.program.buffers[region.buffer]
            if buffer.space is not Space.SMEM or not region.is_placed:
                continue
            met = self.order.met[op.thread]
            seen = [each for each in self._seen[op.thread][buffer.id] if each.at >= met]
            self._seen[op.thread][buffer.id] = seen
            now = _Seen(event.index, op, region, writes)
            for older in seen:
                yield from self._compare(older, now)
            if not is_load:
                seen.append(now)

    def _compare(self, older: _Seen, newer: _Seen) -> Iterator[LanesRace]:
        first, second = older.op, newer.op
        if first is second or not (older.writes or newer.writes):
            return
        if (first.combines and second.combines) or not overlap(older.region.box, newer.region.box):
            return
        if second.kind in _LOADS:
            if older.writes:
                return
            is_sure = second.kind is Kind.LOAD  # `cp.async` may give each lane what it has read
        else:
            is_same = bool(first.layout) and first.layout == second.layout
            if is_same and older.region == newer.region:
                return
            is_sure = bool(first.layout and second.layout) and not is_same
        buffer = self.program.buffers[newer.region.buffer]
        if is_sure and older.region.is_exact and newer.region.is_exact:
            spots = ((second.thread, newer.at),)
            is_load = second.kind is Kind.LOAD
            clash = Clash(in_flight=spots) if is_load else Clash(coming=spots)
            yield LanesRace(second, first, buffer, newer.writes, older.writes, clash)
        else:
            self.note(LanesRacePerhaps(first.line, second.line, buffer.name))


_ORDINARY = Kind.READ, Kind.WRITE
_LOADS = Kind.LOAD, Kind.CP_ASYNC
