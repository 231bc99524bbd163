"""Arrivals and waits that do not fit each other, and threads that wait for ever."""

from dataclasses import dataclass
from typing import override

from pallascope.checking.facts import Clash, Fault, Fleeting, Remark, barrier_name, misuse
from pallascope.program import Kind, Op, Program
from pallascope.report import Finding, FindingKind, count, thread_name


@dataclass(frozen=True, slots=True)
class EarlyArrival(Fleeting):
    """An arrival for phase `number` that nothing makes wait for the end of the phase before.

    `before` is an arrival of that phase, which takes `expects`; `bytes_missing` if copies that
    belong to it may not have landed.
    """

    arrival: Op
    before: Op
    barrier: int
    index: int
    number: int
    expects: int
    bytes_missing: bool
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        name, number = barrier_name(program, self.barrier, self.index), self.number
        why = "which others may not have made by then"
        if self.bytes_missing:
            why = "while the bytes of that phase may still be on their way"
        cause = (
            f"This arrival on {name} is meant for its phase {number}, but nothing makes it come"
            f" after phase {number - 1} is complete: it takes {count(self.expects, 'arrival')},"
            f" {why}, so this one may count there, and whoever waits is let go too early."
        )
        remedy = (
            f"Wait for phase {number - 1} of {name} first, or have it expect as many arrivals as"
            " are made in a phase."
        )
        return misuse(program, self.barrier, self.index, (self.arrival, self.before), cause, remedy)

    @override
    def moment(self, program: Program) -> str:
        return (
            f"phase {self.number - 1} of {barrier_name(program, self.barrier, self.index)} is not"
            f" complete, and {thread_name(program, self.arrival.thread)} arrives for phase"
            f" {self.number}."
        )


@dataclass(frozen=True, slots=True)
class LappedWait(Fleeting):
    """A wait for a phase that may come only when phase `number`, the next one, is complete too."""

    wait: Op
    last_arrival: Op
    barrier: int
    index: int
    number: int
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        name, number = barrier_name(program, self.barrier, self.index), self.number
        who = thread_name(program, self.wait.thread)
        cause = (
            f"{who} can be lapped: its wait for phase {number - 1} of {name} may come when"
            f" phase {number} is complete too, and since a wait sees the parity of a phase"
            f" only ({number - 1} and {number + 1} look alike), it then waits for a phase"
            f" {number + 1} that has not come."
        )
        remedy = (
            f"Let {who} arrive on a barrier after this wait, and wait for that before"
            f" phase {number} of {name} gets its last arrival."
        )
        return misuse(
            program, self.barrier, self.index, (self.wait, self.last_arrival), cause, remedy
        )

    @override
    def moment(self, program: Program) -> str:
        return (
            f"phase {self.number} of {barrier_name(program, self.barrier, self.index)} is complete,"
            f" and {thread_name(program, self.wait.thread)} has yet to wait for phase"
            f" {self.number - 1}."
        )


@dataclass(frozen=True, slots=True)
class IncompletePhase(Fault):
    """The first arrivals of a phase that stays incomplete: `count` of the `expects` it takes."""

    arrivals: tuple[Op, ...]
    barrier: int
    index: int
    count: int
    expects: int

    @override
    def finding(self, program: Program) -> Finding:
        cause = (
            f"{barrier_name(program, self.barrier, self.index)} is left with"
            f" {count(self.count, 'arrival')} of the {self.expects} that a phase takes: they"
            " complete none."
        )
        remedy = "Let it expect as many arrivals as are made in a phase, or make them all."
        return misuse(program, self.barrier, self.index, self.arrivals, cause, remedy)


@dataclass(frozen=True, slots=True)
class UnawaitedLoad(Fault):
    """A load, or a commit of products, on a barrier on which nobody waits for it."""

    load: Op
    barrier: int
    index: int

    @override
    def finding(self, program: Program) -> Finding:
        name = barrier_name(program, self.barrier, self.index)
        cause = (
            f"Nothing waits for this copy: its bytes may land on {name} and in SMEM when both"
            " have ceased to exist."
        )
        remedy = f"Wait on {name}, or do not make the copy."
        if self.load.kind is Kind.TCGEN05_COMMIT:
            cause = (
                "Nothing waits for this commit, nor for a later one of its thread: products may"
                f" still run, and arrive on {name}, when the block has ended."
            )
            remedy = f"Wait on {name}, or on the barrier of a later commit."
        return misuse(program, self.barrier, self.index, (self.load,), cause, remedy)


@dataclass(frozen=True, slots=True)
class EarlyExit(Fleeting):
    """An arrival on a barrier of `block`, which may have ended before it."""

    arrival: Op
    barrier: int
    index: int
    block: int
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        name, block = barrier_name(program, self.barrier, self.index), self.block
        cause = (
            f"Block {block} of the cluster may have ended when"
            f" {thread_name(program, self.arrival.thread)} arrives on its {name}: the memory may be"
            " another block's by then."
        )
        remedy = f"Let a thread of block {block} wait for the last phase of {name} before it ends."
        return misuse(program, self.barrier, self.index, (self.arrival,), cause, remedy)

    @override
    def moment(self, program: Program) -> str:
        return (
            f"block {self.block} has ended, and {thread_name(program, self.arrival.thread)}"
            " arrives."
        )


@dataclass(frozen=True, slots=True)
class TakenBarrier(Fault):
    """An op on a named barrier that Mosaic GPU uses itself: for all threads, or for one of them."""

    op: Op
    number: int

    @override
    def finding(self, program: Program) -> Finding:
        number, threads = self.number, program.per_block
        whose = (
            f"the lanes of thread {number - 1} meet there" if number else "all threads meet there"
        )
        cause = (
            f"{thread_name(program, self.op.thread)} arrives on named barrier {number}, which"
            f" Mosaic GPU uses itself ({whose}): its arrivals and these count together."
        )
        remedy = f"Take a number from {threads + 1} to 15."
        return Finding(
            FindingKind.BARRIER_MISUSE, (self.op,), cause, remedy, f"named barrier {number}"
        )


@dataclass(frozen=True, slots=True)
class Stuck:
    """An op that its thread never gets past.

    A wait's phase has `arrivals` of the `expects` it takes, and `coming` are the next ones, which
    stuck threads would make.
    """

    op: Op
    arrivals: int = 0
    expects: int = 0
    coming: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRegisters:
    """A thread that waits for ever for registers, beside others that wait, maybe for it.

    It has `held` a lane and asks for more, and its block has `free` that no thread has.
    """

    op: Op
    held: int
    free: int


@dataclass(frozen=True, slots=True)
class Deadlock(Fleeting):
    """All threads that wait for ever."""

    threads: tuple[Stuck | NoRegisters, ...]
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        number = len(self.threads)
        reasons = "; ".join(_why_stuck(program, stuck) for stuck in self.threads)
        cause = (
            f"{count(number, 'thread')} {'waits' if number == 1 else 'wait'} for ever: {reasons}."
        )
        remedy = (
            "Each phase that is waited for needs all its arrivals, from threads that can come to"
            " make them: add the missing arrival, or let the barrier expect fewer, or move an"
            " arrival before the wait that holds it up."
        )
        return Finding(
            FindingKind.DEADLOCK, tuple(stuck.op for stuck in self.threads), cause, remedy
        )

    @override
    def moment(self, program: Program) -> str:
        return "no thread can go on."


def _why_stuck(program: Program, stuck: Stuck | NoRegisters) -> str:
    op, who = stuck.op, thread_name(program, stuck.op.thread)
    if isinstance(stuck, NoRegisters):
        return (
            f"{who} has {stuck.held} registers a lane and waits for {op.registers}, of which"
            f" {stuck.free} are free: no other thread comes to give up some"
        )
    if op.kind is Kind.AWAIT:
        name = barrier_name(program, *op.place)
        hope = _hope(program, stuck)
        return (
            f"{who} waits until signals of {name} add up to {stuck.expects}, and they come to"
            f" {stuck.arrivals}; {hope}"
        )
    if op.kind == Kind.MEET:
        return f"{who} meets the other warps of its thread, to which not all come"
    if op.barrier is None:
        return f"{who} begins a scope that all threads share, to which not all others come"
    has = f"has {stuck.arrivals} of {count(stuck.expects, 'arrival')}"
    if stuck.arrivals >= stuck.expects:
        has = "has its arrivals but not the peers' parts of its multicast copy"
    name = barrier_name(program, *op.place)
    return f"{who} waits for phase {op.phase} of {name}, which {has}, and {_hope(program, stuck)}"


def _hope(program: Program, stuck: Stuck) -> str:
    """Where the next arrival, or signal, would come from."""
    if not stuck.coming:
        return "no thread makes another"
    places = (
        thread_name(program, op.thread) + (f" at {op.line}" if op.line else "")
        for op in stuck.coming
    )
    return f"the next comes from {', '.join(places)}, which is stuck"


@dataclass(frozen=True, slots=True)
class Unobserved(Remark):
    """An array of barriers of which `count` phases complete and nobody waits for them."""

    barrier: int
    count: int

    @override
    def note(self, program: Program) -> str:
        name = program.barriers[self.barrier].name
        return (
            f"nobody waits for the last {count(self.count, 'phase')} of `{name}`: harmless here,"
            " since the kernel ends, but JAX 0.11's interpreter stops."
        )
