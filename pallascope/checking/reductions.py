"""`Reductions`: Pallas threads that may be in the scratch of reductions at the same time.

The model. A reduction across a thread's warps passes parts of its result through SMEM, at a place
that all threads of a block share (`layouts` in `tracing` has JAX's sources). A warpgroup barrier
begins and ends its use, so a thread's own reductions are in order. Two threads' reductions at one
place have to be in order by something that the kernel does, or one overwrites what the other is
about to read. If a layout decides that is not known, this is a remark.

Of each thread the last reduction at a place is kept: whoever comes after it comes after all. Those
that are surely across warps are kept apart from the others.
Not covered: a scratch that begins within another one or in the memory of a scope that another
thread has not left yet; what a thread's own copies and products still do in the memory of a scope
that has ended, where the scratch is next.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import override

from pallascope.checking.detector import Detector
from pallascope.checking.facts import Clash
from pallascope.checking.facts.races import SharedScratch, SharedScratchPerhaps
from pallascope.checking.order import Event, Order
from pallascope.program import Op


class Reductions(Detector):
    """Finds reductions that race for the scratch of their block."""

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        # Of each block, and place in its SMEM: the last reductions of each thread, sure and unsure.
        self._last: defaultdict[tuple[int, int], dict[tuple[int, bool], tuple[int, Op]]]
        self._last = defaultdict(dict)

    @override
    def see(self, event: Event) -> Iterator[SharedScratch]:
        """One event; the reductions that it races with, if it is one."""
        op = event.op
        if op.scratch is None:
            return
        own = self.program.pallas_thread(op.thread)
        last = self._last[self.program.block_of(op.thread), op.scratch]
        for (thread, _), (index, older) in last.items():
            if thread != own and not event.clock.has(older.thread, index):
                if op.is_sure and older.is_sure:
                    both = (older.thread, index), (op.thread, event.index)
                    yield SharedScratch(op, older, Clash(coming=both))
                else:
                    self.note(SharedScratchPerhaps(older.line, op.line))
        last[own, op.is_sure] = event.index, op
