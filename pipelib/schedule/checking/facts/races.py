"""Two accesses of one memory that nothing puts in order, or that no fence stands between."""

from dataclasses import dataclass
from typing import override

from pipelib.schedule.checking.facts import Clash, Fault, Fleeting, Remark
from pipelib.schedule.checking.facts.naming import (
    SCRATCH,
    agent,
    barrier_name,
    if_rounded,
    lines,
    named,
    place,
    slot_of,
)
from pipelib.schedule.program import Buffer, Engine, Kind, Op, Program, Space
from pipelib.schedule.report import Finding, FindingKind, thread_name


@dataclass(frozen=True, slots=True)
class Collision:
    """Two accesses of one buffer that overlap, at least one of them a write."""

    newer: Op
    older: Op
    buffer: Buffer
    newer_writes: bool
    older_writes: bool


@dataclass(frozen=True, slots=True)
class Race(Collision, Fleeting):
    """The two are in no order; or the threads are, but not the tensor core (`is_unfenced`)."""

    clash: Clash
    is_unfenced: bool = False

    @override
    def finding(self, program: Program) -> Finding:
        first, second, buffer = self.older, self.newer, self.buffer
        verb = "overwritten" if self.newer_writes else "read"
        doing = "written" if self.older_writes else "read"
        return Finding(
            FindingKind.RACE, (second, first),
            f"{place(buffer, first, second)} is {verb} by {agent(program, second)} while it may"
            f" still be {doing} by {agent(program, first)}: {self._why_unordered(program)}"
            + if_rounded(program, buffer, first, second),
            self._order_them(program), buffer.name, slot_of(buffer, first, second),
        )  # fmt: skip

    @override
    def moment(self, program: Program) -> str:
        agents = [agent(program, op) for op in (self.older, self.newer)]
        flying = [op.kind.engine is not None for op in (self.older, self.newer)]
        if all(flying):
            return f"{agents[0]} and {agents[1]} are in flight at once."
        if not any(flying):
            return f"{agents[0]} and {agents[1]} may access it in either order, or at once."
        agents = agents if flying[0] else agents[::-1]
        return f"{agents[0]} is in flight, and {agents[1]} goes on to its access."

    def _why_unordered(self, program: Program) -> str:
        first, second = self.older, self.newer
        who, other = (thread_name(program, op.thread) for op in (first, second))
        if self.is_unfenced and _has_plain_arrivals(program):
            return (
                f"{other} waits for what {who} does after it, but on a barrier without"
                " orders_tensor_core, which puts no accesses of TMEM in order."
            )
        if self.is_unfenced:
            return (
                f"{other} waits for a copy that starts after {who} has gone on, and a copy's"
                " arrival puts no accesses of TMEM in order."
            )
        if first.kind == Kind.LOAD:
            name = "its barrier"
            if first.barrier is not None:
                name = barrier_name(program, _landing_on(first, self.buffer), first.index)
            return (
                f"the copy has landed when phase {first.phase} of {name} is over, and {other} has"
                " not waited for that."
            )
        if first.kind == Kind.CP_ASYNC:
            return (
                f"the copy has landed once a wait_gmem_to_smem of {who} that covers it returns, and"
                " nothing makes that come first."
            )
        if first.kind == Kind.STORE:
            return (
                f"the copy is over once a wait_smem_to_gmem of {who} that covers its group returns,"
                " and nothing makes that come first."
            )
        if first.kind == Kind.WGMMA:
            return (
                f"the product is over once a wgmma_wait of {who} that covers it returns, and"
                " nothing makes that come first."
            )
        if first.kind.engine is Engine.TENSOR_CORE:
            what = "product" if first.kind is Kind.TCGEN05_MMA else "copy"
            return (
                f"the {what} is over once a tcgen05_commit_arrive of {who} after it has arrived on"
                f" its barrier, and {other} has not waited for that."
            )
        if first.kind.engine is Engine.TMEM:
            call, what = _TMEM_WAITS[first.kind]
            return (
                f"the {what} is over once a {call} of {who} returns, and nothing makes that come"
                " first."
            )
        if first.thread == second.thread:
            return "nothing puts them in order."
        return f"nothing that {who} does after it is waited for by {other} before."

    def _order_them(self, program: Program) -> str:
        first, second = self.older, self.newer
        who, other = (thread_name(program, op.thread) for op in (first, second))
        if self.is_unfenced and _has_plain_arrivals(program):
            return "Make that barrier with orders_tensor_core=True."
        if self.is_unfenced:
            return (
                f"Let {who}, once its access is over, arrive on a barrier made with"
                f" orders_tensor_core=True on which {other} waits before."
            )
        across = f", then arrive on a barrier on which {other} waits" if who != other else ""
        if first.kind == Kind.LOAD:
            elsewhere = f", or in a thread that then arrives on a barrier on which {other} waits"
            elsewhere = elsewhere if len(program.threads) > 1 else ""
            return f"Call barrier_wait on that barrier in {other}{elsewhere}, before the access."
        if first.kind == Kind.CP_ASYNC:
            return (
                f"Call wait_gmem_to_smem(0) in {who}{across}, before the access; in a pipeline,"
                " leave as many copies in flight as have begun after the step's own, and no more."
            )
        if first.kind == Kind.STORE:
            return f"Call wait_smem_to_gmem(0) in {who}{across}, before the access."
        if first.kind == Kind.WGMMA:
            return (
                f"Call wgmma_wait(0) in {who}{across}, before the access; in a pipeline, leave as"
                " many products in flight as delay_release says, and no more."
            )
        if first.kind.engine is Engine.TENSOR_CORE:
            return (
                f"Give tcgen05_mma a barrier, or call tcgen05_commit_arrive after it in {who}, and"
                f" call barrier_wait on that barrier in {other}, before the access."
            )
        if first.kind.engine is Engine.TMEM:
            call, _ = _TMEM_WAITS[first.kind]
            return f"Call {call} in {who}{across}, before the access."
        return f"Let {who}, after its access, arrive on a barrier on which {other} waits before."


def _has_plain_arrivals(program: Program) -> bool:
    """Whether a thread arrives by itself on a barrier that orders no accesses of TMEM."""
    arrivals = (op for ops in program.threads for op in ops if op.kind is Kind.ARRIVE)
    return any(
        not program.barriers[op.barrier].orders_tensor_core
        for op in arrivals
        if op.barrier is not None
    )


def _landing_on(load: Op, buffer: Buffer) -> int:
    """The barrier on which a load's part in a buffer lands, which may be another block's."""
    assert load.barrier is not None, "it lands on one"
    peers = dict(zip((region.buffer for region in load.writes), load.peers))
    return peers.get(buffer.id, load.barrier)


_TMEM_WAITS = {
    Kind.LOAD_TMEM: ("wait_load_tmem", "read"), Kind.STORE_TMEM: ("commit_tmem", "write"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MissingCommit(Collision, Fault):
    """An ordinary access comes before an asynchronous one, with no fence between the two."""

    @override
    def finding(self, program: Program) -> Finding:
        first, second, buffer = self.older, self.newer, self.buffer
        does = "overwrites" if self.newer_writes else "reads"
        what = "wrote" if self.older_writes else "read"
        remedy = "Call commit_smem after the ordinary access, before others are let at it."
        if buffer.space is Space.GMEM:
            remedy = "commit_smem is for SMEM only: copy to GMEM from SMEM, and wait for the copy."
        return Finding(
            FindingKind.MISSING_COMMIT, (second, first),
            f"{agent(program, second)} {does} {place(buffer, first, second)}, which"
            f" {thread_name(program, first.thread)} {what} with ordinary accesses, and no"
            " commit_smem stands between: the two may be seen in another order."
            + if_rounded(program, buffer, first, second),
            remedy, buffer.name, slot_of(buffer, first, second), is_strict=not self.older_writes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EarlyAccess(Fleeting):
    """An access of GMEM before the kernels before this one are known to have ended.

    `wait` is the first wait for them of its thread, else of another; None if no thread has one.
    """

    op: Op
    buffer: Buffer
    writes: bool
    wait: Op | None
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        op, buffer, wait = self.op, self.buffer, self.wait
        who = thread_name(program, op.thread)
        does, may = "read", "still write it"
        unless = f" It is right as it is only if no kernel before writes {named(buffer)}."
        if self.writes:
            does, may, unless = "written", "still use its memory", ""
        why, across = "no thread of it comes to call that", ""
        if wait is not None and wait.thread == op.thread:
            why = f"{who} calls that only later" + (f" ({wait.line})" if wait.line else "")
        elif wait is not None:
            other = thread_name(program, wait.thread)
            why = f"nothing that {other} does after its call is waited for by {who} before"
            across = f", or let {other} arrive after it on a barrier on which {who} waits before"
        return Finding(
            FindingKind.RACE, (op,),
            f"{named(buffer)} is {does} by {agent(program, op)} while the kernel before may {may}:"
            " this kernel uses griddepcontrol_wait, so it may start before that one has ended, and"
            f" {why}.",
            f"Call griddepcontrol_wait in {who} before the access{across}.{unless}", buffer.name,
        )  # fmt: skip

    @override
    def moment(self, program: Program) -> str:
        does = "goes on to its access" if self.op.kind.engine is None else "is in flight"
        return f"{agent(program, self.op)} {does}, and the kernel before has not ended."


@dataclass(frozen=True, slots=True)
class SharedScratch(Fleeting):
    """Reductions of two threads, in no order, that use the same scratch."""

    newer: Op
    older: Op
    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        who, other = (thread_name(program, op.thread) for op in (self.newer, self.older))
        return Finding(
            FindingKind.RACE, (self.newer, self.older),
            f"{who} reduces an array across its warps while {other} may still do so: both pass"
            " parts of their results through the scratch in SMEM that Mosaic GPU gives to"
            f" reductions, one for all threads of a block, and nothing that {other} does after it"
            f" is waited for by {who} before.",
            f"Let {other}, after its reduction, arrive on a barrier on which {who} waits before its"
            " own, and so in turn; or reduce within warps: the last axis of an array in"
            " plgpu.Layout.WGMMA.",
            SCRATCH,
        )  # fmt: skip

    @override
    def moment(self, program: Program) -> str:
        who, other = (thread_name(program, op.thread) for op in (self.older, self.newer))
        return f"{who} and {other} go on to their reductions, and may use the scratch at once."


@dataclass(frozen=True, slots=True)
class LanesRace(Collision, Fleeting):
    """The two are of one thread, by different of its lanes, which do not meet in between.

    The order that shows it has the ops of the thread's fastest lane, the older access among them,
    which its slowest lane has yet to make.
    """

    clash: Clash

    @override
    def finding(self, program: Program) -> Finding:
        first, second, buffer = self.older, self.newer, self.buffer
        who = thread_name(program, second.thread)
        verb = "overwritten" if self.newer_writes else "read"
        doing = "written" if self.older_writes else "read"
        which = f"the first access is in {first.layout}, the second in {second.layout}"
        if second.kind is Kind.LOAD:
            which = "one lane issues a load for all"
        return Finding(
            FindingKind.RACE, (second, first),
            f"{place(buffer, first, second)} is {verb} by {agent(program, second)} while other"
            f" lanes of that thread may not have {doing} it yet: {which}, and the lanes do not meet"
            " in between, since the kernel is compiled with unsafe_no_auto_barriers.",
            f"Call commit_smem in {who} between the two, where the lanes meet, or compile without"
            " unsafe_no_auto_barriers.",
            buffer.name, slot_of(buffer, first, second),
        )  # fmt: skip

    @override
    def moment(self, program: Program) -> str:
        older_access = f"the {self.older.kind} at {self.older.line or 'an unknown line'}"
        if self.newer.kind is Kind.LOAD:
            return (
                f"{agent(program, self.newer)} is in flight, and one of the thread's lanes has yet"
                f" to make {older_access}."
            )
        return (
            f"one lane of {thread_name(program, self.newer.thread)} goes on to its access, and"
            f" another has yet to make {older_access}."
        )


@dataclass(frozen=True, slots=True)
class EarlySignal(Remark):
    """A signal at `line` to the kernel after, which a write of a buffer does not come before."""

    line: str | None
    buffer: str
    write: str | None

    @override
    def note(self, program: Program) -> str:
        at = f" ({self.write})" if self.write else ""
        return (
            f"{self.line or 'at an unknown line'}: the next kernel may start from here on, and"
            f" `{self.buffer}` may be written later{at}: right if that kernel calls"
            f" griddepcontrol_wait before it reads `{self.buffer}`, since this wait ends when the"
            " kernel here has ended."
        )


@dataclass(frozen=True, slots=True)
class SharedScratchPerhaps(Remark):
    """Lines with reductions of two threads, in no order, that may use the same scratch."""

    older: str | None
    newer: str | None

    @override
    def note(self, program: Program) -> str:
        return (
            f"{lines(self.older, self.newer)}: two threads reduce arrays, in no order: a race on"
            " the scratch that all threads of a block share, if the layout that Mosaic GPU chooses"
            " spreads the reduced axes over several warps. A plgpu.layout_cast before the"
            " reductions would say which layout it is."
        )


@dataclass(frozen=True, slots=True)
class LanesRacePerhaps(Remark):
    """Lines with accesses of one thread which race if different of its lanes make them."""

    older: str | None
    newer: str | None
    buffer: str

    @override
    def note(self, program: Program) -> str:
        return (
            f"{lines(self.older, self.newer)}: one thread accesses `{self.buffer}` twice, and its"
            " lanes do not meet between (unsafe_no_auto_barriers): right if each lane accesses the"
            " same elements both times, which depends on layouts that are not known here."
        )
