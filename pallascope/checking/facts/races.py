"""Two accesses of one memory that nothing puts in order, or that no fence stands between."""

from dataclasses import dataclass
from typing import NamedTuple, override

from pallascope.checking.facts import (
    SCRATCH,
    Clash,
    Fault,
    Fleeting,
    Remark,
    agent,
    barrier_name,
    landing_on,
    lines,
    named,
    of_buffer,
    place,
)
from pallascope.program import Buffer, Engine, Kind, Op, Program, Space
from pallascope.report import Finding, FindingKind, block_name, count, thread_name


@dataclass(frozen=True, slots=True)
class Collision:
    """Two accesses of one buffer that overlap, at least one of them a write."""

    newer: Op
    older: Op
    buffer: Buffer
    newer_writes: bool
    older_writes: bool

    @property
    def verbs(self) -> tuple[str, str]:
        """What becomes of the buffer by the newer access, and by the older one."""
        return (
            "overwritten" if self.newer_writes else "read",
            "written" if self.older_writes else "read",
        )


@dataclass(frozen=True, slots=True)
class Race(Collision, Fleeting):
    """The two are in no order; or the threads are, but not the tensor core (`is_unfenced`).

    The newer may access the memory as the `later` buffer, of a scope that follows the buffer's own.
    """

    clash: Clash
    is_unfenced: bool = False
    later: Buffer | None = None

    @override
    def finding(self, program: Program) -> Finding:
        first, second, buffer = self.older, self.newer, self.buffer
        verb, doing = self.verbs
        why, remedy = self._why_and_remedy(program)
        cause = (
            f"{place(buffer, first, second)} is {verb} by {agent(program, second)} while it may"
            f" still be {doing} by {agent(program, first)}: {why}"
        )
        if self.later is not None:
            cause += f" A later scope has this memory as {named(self.later)}."
        return of_buffer(FindingKind.RACE, program, buffer, (second, first), cause, remedy)

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

    def _why_and_remedy(self, program: Program) -> tuple[str, str]:
        """Why nothing puts the two in order, and what would."""
        first, second = self.older, self.newer
        who, other = (thread_name(program, op.thread) for op in (first, second))
        across = f", then arrive on a barrier on which {other} waits" if who != other else ""
        if self.is_unfenced and _has_plain_arrivals(program):
            return (
                f"{other} waits for what {who} does after it, but on a barrier without"
                " orders_tensor_core, which puts no accesses of TMEM in order.",
                "Make that barrier with orders_tensor_core=True.",
            )
        if self.is_unfenced:
            return (
                f"{other} waits for a copy that starts after {who} has gone on, and a copy's"
                " arrival puts no accesses of TMEM in order.",
                f"Let {who}, once its access is over, arrive on a barrier made with"
                f" orders_tensor_core=True on which {other} waits before.",
            )
        if first.kind == Kind.LOAD:
            name, elsewhere, waits = "its barrier", "", False
            if first.barrier is not None:
                barrier = landing_on(first, self.buffer)
                name = barrier_name(program, barrier, first.index)
                landed = barrier, first.index
                ops = program.threads[second.thread]
                waits = any(op.kind is Kind.WAIT and op.place == landed for op in ops)
            if len(program.threads) > 1:
                elsewhere = (
                    f", or in a thread that then arrives on a barrier on which {other} waits"
                )
            remedy = f"Call barrier_wait on that barrier in {other}{elsewhere}, before the access."
            if waits:
                remedy = (
                    f"Let {other} wait for phase {first.phase} before the access: its barrier_wait"
                    " on that barrier comes later, or is for another phase."
                )
            return (
                f"the copy has landed when phase {first.phase} of {name} is over, and {other} has"
                " not waited for that.",
                remedy,
            )
        if (wait := _WAITS.get(first.kind)) is not None:
            return (
                f"{wait.over} once a {wait.call} of {who}{wait.covers} returns, and nothing makes"
                " that come first.",
                f"Call {wait.call}{wait.all} in {who}{across}, before the access{wait.more}.",
            )
        if first.kind.engine is Engine.TENSOR_CORE:
            what = "product" if first.kind is Kind.TCGEN05_MMA else "copy"
            return (
                f"the {what} is over once a tcgen05_commit_arrive of {who} after it has arrived on"
                f" its barrier, and {other} has not waited for that.",
                f"Give tcgen05_mma a barrier, or call tcgen05_commit_arrive after it in {who}, and"
                f" call barrier_wait on that barrier in {other}, before the access.",
            )
        why = f"nothing that {who} does after it is waited for by {other} before."
        if first.thread == second.thread:
            why = "nothing puts them in order."
        return (
            why,
            f"Let {who}, after its access, arrive on a barrier on which {other} waits before.",
        )


def _has_plain_arrivals(program: Program) -> bool:
    """Whether a thread arrives by itself on a barrier that orders no accesses of TMEM."""
    arrivals = (op.barrier for op in program.ops if op.kind is Kind.ARRIVE)
    return any(b is not None and not program.barriers[b].orders_tensor_core for b in arrivals)


class _Wait(NamedTuple):
    """The call that waits for an engine's access, and what is said of it."""

    over: str
    call: str
    covers: str = ""
    all: str = ""
    more: str = ""


_MANY = "; in a pipeline, leave as many {} as {}, and no more"
_COPIES = _MANY.format("copies in flight", "have begun after the step's own")
_PRODUCTS = _MANY.format("products in flight", "delay_release says")
_IT = " that covers it"
_WAITS = {
    Kind.CP_ASYNC: _Wait("the copy has landed", "wait_gmem_to_smem", _IT, "(0)", _COPIES),
    Kind.STORE: _Wait("the copy is over", "wait_smem_to_gmem", " that covers its group", "(0)"),
    Kind.WGMMA: _Wait("the product is over", "wgmma_wait", _IT, "(0)", _PRODUCTS),
    Kind.LOAD_TMEM: _Wait("the read is over", "wait_load_tmem"),
    Kind.STORE_TMEM: _Wait("the write is over", "commit_tmem"),
}


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
        cause = (
            f"{agent(program, second)} {does} {place(buffer, first, second)}, which"
            f" {thread_name(program, first.thread)} {what} with ordinary accesses, and no"
            " commit_smem stands between: the two may be seen in another order."
        )
        return of_buffer(
            FindingKind.MISSING_COMMIT,
            program,
            buffer,
            (second, first),
            cause,
            remedy,
            is_strict=not self.older_writes,
        )


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
        cause = (
            f"{named(buffer)} is {does} by {agent(program, op)} while the kernel before may {may}:"
            " this kernel uses griddepcontrol_wait, so it may start before that one has ended, and"
            f" {why}."
        )
        remedy = f"Call griddepcontrol_wait in {who} before the access{across}.{unless}"
        return Finding(FindingKind.RACE, (op,), cause, remedy, buffer.name)

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
        cause = (
            f"{who} reduces an array across its warps while {other} may still do so: both pass"
            " parts of their results through the scratch in SMEM that Mosaic GPU gives to"
            f" reductions, one for all threads of a block, and nothing that {other} does after it"
            f" is waited for by {who} before."
        )
        remedy = (
            f"Let {other}, after its reduction, arrive on a barrier on which {who} waits before its"
            " own, and so in turn; or reduce within warps: the last axis of an array in"
            " plgpu.Layout.WGMMA."
        )
        return Finding(FindingKind.RACE, (self.newer, self.older), cause, remedy, SCRATCH)

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
        verb, doing = self.verbs
        which = f"the first access is in {first.layout}, the second in {second.layout}"
        if second.kind is Kind.LOAD:
            which = "one lane issues a load for all"
        cause = (
            f"{place(buffer, first, second)} is {verb} by {agent(program, second)} while other"
            f" lanes of that thread may not have {doing} it yet: {which}, and the lanes do not meet"
            " in between, since the kernel is compiled with unsafe_no_auto_barriers."
        )
        remedy = (
            f"Call commit_smem in {who} between the two, where the lanes meet, or compile without"
            " unsafe_no_auto_barriers."
        )
        return of_buffer(FindingKind.RACE, program, buffer, (second, first), cause, remedy)

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


@dataclass(frozen=True, slots=True)
class BlocksRace(Collision, Fault):
    """The two are of different blocks of a grid; `programs` are the newer's and the older's."""

    programs: tuple[Program, Program]

    @override
    def finding(self, program: Program) -> Finding:
        (later, earlier), buffer = self.programs, self.buffer
        verb, doing = self.verbs
        if self.newer_writes and self.older_writes:
            verb, doing = "written", "written too"
        who, other = (
            f"{agent(program, op)} of {block_name(program)}"
            for program, op in ((later, self.newer), (earlier, self.older))
        )
        cause = (
            f"{named(buffer)} is {verb} by {who}, and a part of the same place is {doing} by"
            f" {other}: nothing orders the blocks of one launch, so either may come first."
        )
        remedy = (
            "Let each block write a part of its own (the block's index on every axis of the grid"
            " has to be in the index of the array), add with an atomic operation, or launch two"
            " kernels."
        )
        return Finding(
            FindingKind.RACE,
            (self.newer, self.older),
            cause,
            remedy,
            buffer.name,
            programs=self.programs,
        )


@dataclass(frozen=True, slots=True)
class BlocksMeet(Remark):
    """Accesses of a buffer in GMEM by two blocks that may race, `times`; nobody can tell.

    `is_rounded` if what one of the two accesses was rounded up; else the blocks may wait for each
    other, in a way that the check does not follow.
    """

    lines: tuple[str | None, ...]
    buffer: str
    is_rounded: bool
    times: int

    @override
    def note(self, program: Program) -> str:
        why = "the blocks may wait for each other in a way that is not followed here"
        if self.is_rounded:
            why = "what is accessed is no box, and was rounded up to one"
        return (
            f"{lines(*self.lines)}: two blocks of the grid may access the same part of"
            f" `{self.buffer}`, one to write it, {count(self.times, 'time')}: not judged, since"
            f" {why}."
        )
