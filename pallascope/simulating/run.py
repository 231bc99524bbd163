"""One run of the simulation, from the first event to the `Timeline`, or to the time alone.

The model. Each block of a cluster, or of a whole grid, has a multiprocessor of its own. Several
copies of the program may share these; they start together. Where there are more copies than an SM
holds at a time, the next one starts when the first of those before it has ended. The run ends when
no thread can go on. Threads that still wait then are stuck: their waits run to the end of
everything, and the timeline's notes say for what.
"""

from collections.abc import Iterator

from pallascope.machine import Machine
from pallascope.program import Kind, Program
from pallascope.report import thread_name, truncation
from pallascope.simulating.costs import Costs
from pallascope.simulating.events import Events
from pallascope.simulating.operations import Operations
from pallascope.simulating.recorder import Recorder
from pallascope.simulating.threads import Thread
from pallascope.simulating.traffic import share_of_sm
from pallascope.simulating.units import Sm
from pallascope.spans import SpanKind
from pallascope.timeline import Source, Timeline


class Run:
    """A program on a machine, `resident` copies at a time on each SM, until all `copies` are done.

    `l2_hits` is a fraction from 0 to 1. A run that `records` nothing knows only its time.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        resident: int,
        l2_hits: float,
        *,
        copies: int | None = None,
        records: bool = True,
    ) -> None:
        self.program, self.machine, self.resident = program, machine, resident
        self.copies = resident if copies is None else copies
        costs = Costs(program, machine)
        share = share_of_sm(program, costs, resident, l2_hits)
        self.sms = [Sm(share) for _ in range(program.blocks)]
        self.recorder = Recorder(program, records)
        threads = _threads(program, self.copies, self.sms)
        self._running = [len(program.threads)] * self.copies
        self._next = resident
        gap, count = machine.block_gap_cycles, len(program.threads)
        starts = [copy * gap for copy in range(resident) for _ in range(count)]
        self._start_cycles = start_cycles(program, machine)
        self.events = Events(threads, starts, self._ended)
        self.operations = Operations(program, costs, l2_hits, self.events, self.recorder, self.sms)

    def cycles(self) -> float:
        """Runs all threads until no thread can go on; returns the time of the last thing done."""
        self.events.run(self.operations.handlers)
        return self.recorder.cycles()

    def _ended(self, thread: Thread, now: float) -> None:
        """If a block's last thread has ended, starts the next block in its place."""
        self._running[thread.copy] -= 1
        if self._running[thread.copy] or self._next >= self.copies:
            return
        count = len(self.program.threads)
        for number in range(self._next * count, (self._next + 1) * count):
            self.events.threads[number].sm.port.renew()
            self.events.start(self.events.threads[number], now + self._start_cycles)
        self._next += 1

    def timeline(self) -> Timeline:
        """Runs all threads until no thread can go on; returns what happened."""
        recorder = self.recorder
        self.events.run(self.operations.handlers)
        stuck = [self.events.threads[number] for number in sorted(self.events.waiting)]
        cycles = max([recorder.cycles(), *(thread.since for thread in stuck)])
        for thread in stuck:
            text = f"waits {self._missing(thread)}, for ever"
            recorder.span(thread, thread.op, SpanKind.WAIT, thread.since, cycles, text)
        return Timeline(
            name=self.program.name,
            lanes=tuple(recorder.lanes),
            spans=recorder.finished(),
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
            f"{thread_name(program, thread.index)} waits {self._missing(thread)}"
            for thread in stuck
            if not thread.copy
        ]
        if shown:
            word = "cut off" if program.truncated else "deadlock"
            yield f"{word} at {cycles:,.0f} cycles: " + "; ".join(shown)
        if self.operations.opaque:
            yield f"{self.operations.opaque} opaque ops are taken to need no time"
        if program.has(Kind.CP_ASYNC):
            yield (
                f"cp_async takes the times of loads by TMA on {self.machine.name}: no GPU before"
                " Hopper was measured"
            )
        if self.resident > 1:
            yield f"one of {self.resident} blocks that share the multiprocessor"

    def _missing(self, thread: Thread) -> str:
        """The barrier, the semaphore or the threads that a thread waits for in vain."""
        op = thread.op
        if op.kind == Kind.SCOPE_BEGIN:
            return f"for the other threads to begin the shared scope {op.scope_id}"
        if op.kind == Kind.MEET:
            return "for the warps that it meets"
        array, index = op.place
        name = f"{self.program.barriers[array].name}[{index}]"
        if semaphore := self.operations.semaphores.at(thread.copy, op.place):
            return f"for {op.amount} on {name}, which holds {semaphore.held}"
        barrier = self.operations.barriers.at(thread.copy, array, index)
        phase = barrier.phases[op.phase]
        return (
            f"on {name}, phase {op.phase}, which got {phase.arrivals} of {barrier.needed} arrivals"
        )


def start_cycles(program: Program, machine: Machine) -> float:
    """From a block's end until another one is ready in its place, its barriers initialised."""
    return machine.block_start_cycles + program.mbarriers * machine.barrier_init_cycles


def _threads(program: Program, copies: int, sms: list[Sm]) -> list[Thread]:
    """The threads of all copies, in the order of their numbers."""
    count = len(program.threads)
    threads: list[Thread] = []
    for copy in range(copies):
        for index, ops in enumerate(program.threads):
            block = program.block_of(index)
            threads.append(Thread(copy * count + index, index, copy, block, ops, sms[block]))
    return threads
