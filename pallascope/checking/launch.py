"""`EarlyLaunch`: what the kernels before and after this one in the stream may do to its memory.

The model: **programmatic dependent launch**. A kernel that `starts_early` may begin before the
kernel before it has ended. That kernel may still write this one's inputs. It may also still use the
memory of this one's outputs, since XLA gives memory to one array after another. `grid_wait` returns
once all kernels before have ended and what they wrote can be seen by the whole grid. So an access
of GMEM is in order if its thread knows of a wait, of its own or of another thread of the program,
when it issues the access (`order`). Blocks that are no cluster wait for themselves.

`grid_signal` lets the kernel after start, once each block has signalled or ended. It makes no write
visible, so the kernel after has to wait before it reads, wherever the signal stands; and its wait
ends only when this kernel has ended. A signal before a write is therefore no fault of this kernel.
It is a remark, since it is right only if the kernel after waits.

Not covered: prefetches into the L2 cache, which holds what all blocks see; opaque code; semaphores;
which arrays no kernel before writes (constants, weights): these may be read at any time.
Source: PTX ISA, `griddepcontrol`.
"""

from collections.abc import Iterator
from typing import override

from pallascope.checking.bounds import clipped
from pallascope.checking.cells import is_empty
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Clash
from pallascope.checking.facts.races import EarlyAccess, EarlySignal
from pallascope.checking.order import End, Event, Order
from pallascope.program import Buffer, Kind, Op, Region, Space


class EarlyLaunch(Detector):
    """Finds accesses of GMEM that come before the kernels before are known to have ended.

    `waits` has, for each thread that has one, the index and the op of its first wait.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        self.waits: dict[int, tuple[int, Op]] = {}
        for thread, ops in enumerate(self.program.threads):
            for index, op in enumerate(ops):
                if op.kind is Kind.GRID_WAIT:
                    self.waits.setdefault(thread, (index, op))
        self._may_signal = self.program.has(Kind.GRID_SIGNAL)
        # Of each block: its signals so far, and the last write of each thread to each buffer.
        self._signals: dict[int, list[Op]] = {}
        self._writes: dict[tuple[int, Kind, int], tuple[Op, End]] = {}

    @override
    def see(self, event: Event) -> Iterator[EarlyAccess]:
        """One event; its access of GMEM, if no wait comes before it."""
        if event.op.kind in (Kind.SKIP, Kind.OPAQUE):
            return
        if self.program.starts_early:
            yield from self._early(event)
        if self._may_signal:
            self._follow(event)

    def _early(self, event: Event) -> Iterator[EarlyAccess]:
        op, clock = event.op, event.clock
        accessed = [(r, True) for r in op.writes] + [(r, False) for r in op.reads]
        found = next(((b, w) for r, w in accessed if (b := self._in_gmem(op, r))), None)
        if found is None or any(clock.has(t, at) for t, (at, _) in self.waits.items()):
            return
        own = self.waits.get(op.thread)
        _, wait = own or next(iter(self.waits.values()), (0, None))
        spot, waits = (op.thread, event.index), tuple((t, at) for t, (at, _) in self.waits.items())
        if op.kind.engine is None:
            clash = Clash(coming=(spot,), later=waits)
        else:
            clash = Clash(in_flight=(spot,), later=waits)
        yield EarlyAccess(op, *found, wait, clash)

    def _follow(self, event: Event) -> None:
        """Notes a write and the signals before it, or a signal and the writes not over by then."""
        op, block = event.op, self.program.block_of(event.op.thread)
        for region, end in zip(op.writes, event.write_ends, strict=True):
            if buffer := self._in_gmem(op, region):
                self._writes[op.thread, op.kind, buffer.id] = op, end
                for signal in self._signals.get(block, ()):
                    self._tell(signal, op, buffer)
        if op.kind is Kind.GRID_SIGNAL:
            self._signals.setdefault(block, []).append(op)
            for (thread, _, buffer), (write, (ends, number)) in self._writes.items():
                is_over = ends.are_known(number, event.clock)
                if not is_over and self.program.block_of(thread) == block:
                    self._tell(op, write, self.program.buffers[buffer])

    def _tell(self, signal: Op, write: Op, buffer: Buffer) -> None:
        remark = EarlySignal(signal.line, buffer.name, write.line)
        self.note(remark, key=(signal.line, buffer.name))

    def _in_gmem(self, op: Op, region: Region) -> Buffer | None:
        """The array in GMEM that an op accesses in a region, if it accesses any of it."""
        buffer = self.program.buffers[region.buffer]
        if buffer.space is not Space.GMEM or is_empty(clipped(op, region, buffer)):
            return None
        return buffer
