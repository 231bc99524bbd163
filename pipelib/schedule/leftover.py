"""What is left over where a scope, a thread or a program ends.

The model. Memory whose scope has ended is given away where the thread's next scope with SMEM
begins, and until then a wait is in time; a block's memory is given away where the block ends. An
engine that still reads it then reads what others wrote; a copy that nobody waited for may land in
it. Arrivals that complete no phase are left over. Not covered: products in flight where a thread
ends, which read memory that nobody is given before the block ends.
"""

from collections import defaultdict

from pipelib.schedule.order import Event, Order, Place
from pipelib.schedule.program import Op
from pipelib.schedule.report import Findings, count, thread_name


class Outliving:
    """Copies from SMEM and products that may still read it when it is given to others.

    A copy must also be over where its thread ends.
    """

    def __init__(self, order: Order, findings: Findings):
        self.order, self.findings = order, findings
        self.pending: dict[int, list[Event]] = defaultdict(list)
        self.ended: dict[int, set[int]] = defaultdict(set)
        self.takers = {b.scope for b in order.program.buffers if b.space == "smem"}

    def see(self, event: Event) -> None:
        """One event: something begins to read SMEM, or a scope ends, or begins and takes it."""
        op = event.op
        if op.kind in ("store", "wgmma"):
            self.pending[op.thread].append(event)
        elif op.kind == "scope_end":
            self.pending[op.thread] = self._unfinished(op.thread)
            self.ended[op.thread].add(op.n)
        elif op.kind == "scope_begin" and op.n in self.takers:
            for late in self._unfinished(op.thread):
                if self._scopes(late) & self.ended[op.thread]:
                    self._report(late, op)

    def finish(self) -> None:
        """Reports the copies that threads have not waited for when they end."""
        for thread in self.pending:
            for late in self._unfinished(thread):
                if late.op.kind == "store":
                    self._report(late)

    def _unfinished(self, thread: int) -> list[Event]:
        clock = self.order.clocks[thread]
        return [e for e in self.pending[thread] if clock[e.read_done[0]] < e.read_done[1]]

    def _scopes(self, event: Event) -> set[int | None]:
        buffers = (self.order.program.buffers[region.buffer] for region in event.op.reads)
        return {buffer.scope for buffer in buffers if buffer.space == "smem"}

    def _report(self, late: Event, *taker: Op) -> None:
        who = thread_name(self.order.program, late.op.thread)
        name = self.order.program.buffers[late.op.reads[0].buffer].name
        if late.op.kind == "store":
            kind, what, missing = "lost-store", "copy", "wait_smem_to_gmem"
            remedy = (
                "Call wait_smem_to_gmem(0) (after commit_smem_to_gmem_group, if the copy has"
                " commit_group=False) before its memory is given to others, or the kernel ends."
            )
        else:
            kind, what, missing = "race", "product", "wgmma_wait"
            remedy = "Call wgmma_wait(0), or read the accumulator, before the next scope begins."
        ceases = "is given to the next scope" if taker else "ceases to exist"
        self.findings.add(
            kind, (*taker, late.op),
            f"`{name}` {ceases} while this {what} of {who} may still read it: no {missing} after it"
            " covers it.",
            remedy, name,
        )  # fmt: skip


def left_over(order: Order, place: Place, findings: Findings) -> None:
    """Adds the arrivals that complete no phase, and the loads that nobody waits for."""
    name, extra = order.name(place), place.total % place.expects
    if extra:
        arrivals = place.phases[place.total // place.expects].arrivals
        findings.add(
            "barrier-misuse", tuple(op for *_, op in arrivals[:2]),
            f"{name} is left with {count(extra, 'arrival')} of the {place.expects} that a phase"
            " takes: they complete none.",
            "Let it expect as many arrivals as are made in a phase, or make them all.",
            *order.where(place),
        )  # fmt: skip
    for phase in place.phases[place.waited :]:
        loads = [op for *_, op in phase.arrivals if op.kind == "load"]
        if loads:
            findings.add(
                "barrier-misuse", (loads[0],),
                f"Nothing waits for this copy: its bytes may land on {name} and in SMEM when both"
                " have ceased to exist.",
                f"Wait on {name}, or do not make the copy.",
                *order.where(place),
            )  # fmt: skip
