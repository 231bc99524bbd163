"""One run of the simulation, from the first event to the `Timeline`.

The model. Each block of a cluster has a multiprocessor of its own. Several copies of the program
may share these; they start together. The run ends when no thread can go on. Threads that still wait
then are stuck: their waits run to the end of everything, and the timeline's notes say for what.
"""

from collections.abc import Iterator

from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Kind, Program
from pipelib.schedule.report import truncation
from pipelib.schedule.simulating.events import Events
from pipelib.schedule.simulating.operations import Operations
from pipelib.schedule.simulating.recorder import Recorder
from pipelib.schedule.simulating.threads import Thread
from pipelib.schedule.simulating.traffic import share_of_sm
from pipelib.schedule.simulating.units import Sm
from pipelib.schedule.timeline import Source, SpanKind, Timeline


class Run:
    """A program on a machine, `copies` times on each SM; `l2_hits` is a fraction from 0 to 1."""

    def __init__(self, program: Program, machine: Machine, copies: int, l2_hits: float) -> None:
        self.program, self.machine, self.copies = program, machine, copies
        share = share_of_sm(program, machine, copies, l2_hits)
        self.sms = [Sm(share) for _ in range(program.blocks)]
        self.recorder = Recorder(program)
        self.events = Events(_threads(program, copies, self.sms))
        self.operations = Operations(program, machine, l2_hits, self.events, self.recorder)

    def timeline(self) -> Timeline:
        """Runs all threads until no thread can go on; returns what happened."""
        self.events.run(self.operations.handlers)
        stuck = [self.events.threads[number] for number in sorted(self.events.waiting)]
        cycles = max([self.recorder.cycles(), *(thread.since for thread in stuck)])
        for thread in stuck:
            text = f"waits {self._missing(thread)}, for ever"
            self.recorder.span(thread, thread.op, SpanKind.WAIT, thread.since, cycles, text)
        return Timeline(
            name=self.program.name,
            lanes=tuple(self.recorder.lanes),
            spans=self.recorder.finished(),
            cycles=cycles,
            clock_hz=self.machine.clock_hz,
            source=Source.SIMULATED,
            machine=self.machine.name,
            truncated=bool(self.program.truncated),
            notes=tuple(self._notes(stuck, cycles)),
            stuck=bool(stuck) and not self.program.truncated,
            gmem=tuple(tuple(sm.port.uses) for sm in self.sms),
        )

    def _notes(self, stuck: list[Thread], cycles: float) -> Iterator[str]:
        """What the reader of a figure must know beside the spans."""
        program = self.program
        if program.truncated:
            yield truncation(program)
        shown = [
            f"thread {thread.index} waits {self._missing(thread)}"
            for thread in stuck
            if not thread.copy
        ]
        if shown:
            word = "cut off" if program.truncated else "deadlock"
            yield f"{word} at {cycles:,.0f} cycles: " + "; ".join(shown)
        if self.operations.opaque:
            yield f"{self.operations.opaque} opaque ops are taken to need no time"
        if self.copies > 1:
            yield f"one of {self.copies} blocks that share the multiprocessor"

    def _missing(self, thread: Thread) -> str:
        """What a thread waits for in vain."""
        op = thread.op
        if op.kind == Kind.SCOPE_BEGIN:
            return f"for the other threads to begin the shared scope {op.scope_id}"
        if op.kind == Kind.MEET:
            return "for the warps that it meets"
        array, index = op.place
        barrier = self.operations.barriers.at(thread.copy, array, index)
        phase = barrier.phases[op.phase]
        return (
            f"on {self.program.barriers[array].name}[{index}], phase {op.phase}, which got"
            f" {phase.arrivals} of {barrier.needed} arrivals"
        )


def _threads(program: Program, copies: int, sms: list[Sm]) -> list[Thread]:
    """The threads of all copies, in the order of their numbers."""
    count = len(program.threads)
    threads: list[Thread] = []
    for copy in range(copies):
        for index, ops in enumerate(program.threads):
            block = program.block_of(index)
            threads.append(Thread(copy * count + index, index, copy, block, ops, sms[block]))
    return threads
