"""`edited`: a program whose ops go, come twice, move or wait for less, or whose barriers differ.

The model. Who wonders what a wait is good for takes it away and looks at what becomes of the
program. An **edit** says what is changed, and names ops by their thread and their indices in the
program before it. Edits are made one after another, so a list of them is a history: without its
last edit it is the program before. What a program counts is counted anew (`counted`): a thread that
makes one wait less finds earlier phases in all later waits, as a parity bit that is turned once
less would have it.

A **site** is where the source has one op: the ops of a thread of the same kind, source line, scope
and barrier. It occurs once in each step of a loop, and a reader who changes a line of the source
changes all of these.

Not covered: ops on whose places others depend, which are no edit's to change. These are scopes,
whose memory begins and ends with them, meetings, which all members must come to, and accumulators
as they are made. Nor is there an edit of what an op accesses. A program does not say which values
go from op to op in registers, so ops that may hand values on keep their order (`VALUES`), and so do
a product and what reads or sets its accumulator: else the result would be another. A thread whose
warps wait apart has phases that its own ops do not tell, so its program takes no edits.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from pallascope.program import Kind, Op, Program

#: Kinds of ops that stay where they are.
FIXED = frozenset({
    Kind.SCOPE_BEGIN, Kind.SCOPE_END, Kind.MEET, Kind.ACC_INIT, Kind.SKIP, Kind.OPAQUE,
})  # fmt: skip
#: Kinds of ops with values in registers: one does not pass another.
VALUES = frozenset({
    Kind.READ, Kind.WRITE, Kind.COMPUTE, Kind.ACC_READ, Kind.ACC_WRITE, Kind.LOAD_TMEM,
    Kind.STORE_TMEM,
})  # fmt: skip
#: Kinds of ops that wait until at most so many of what their thread started are unfinished.
RELAXED = frozenset({Kind.WGMMA_WAIT, Kind.WAIT_STORE, Kind.WAIT_CP_ASYNC})
WAIT_STORES = frozenset({Kind.WAIT_STORE})


@dataclass(frozen=True, slots=True)
class Remove:
    """Takes ops of a thread away."""

    thread: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Makes ops of a thread twice, the second time at once after the first."""

    thread: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Moves ops of a thread past `by` others each: later, or earlier if `by` is negative.

    An op at the end of its thread goes no further; nor does it pass an op that stays where it is,
    or, with values in registers itself, another with such values. A product does not pass what
    reads or sets its accumulator.
    """

    thread: int
    indices: tuple[int, ...]
    by: int


@dataclass(frozen=True, slots=True)
class Relax:
    """Has waits for products, stores or `cp_async` leave one more unfinished.

    With `read_only`, has waits for stores wait until these have read their SMEM.
    """

    thread: int
    indices: tuple[int, ...]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """Has each phase of a barrier's array take this many arrivals; 1 or more."""

    barrier: int
    arrivals: int


OfOps = Remove | Repeat | Move | Relax
Edit = OfOps | Expect


def edited(program: Program, edits: Iterable[Edit]) -> Program:
    """The program after these edits, one after another.

    Raises:
      ValueError: an edit of a thread, an op or a barrier that is not there, of an op that stays
        where it is, of fewer than one arrival, or of a program whose phases its ops do not tell; an
        op that is relaxed, but waits for nothing of its thread.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> wait = next(i for i, op in enumerate(program.threads[0]) if op.kind == "wait")
      >>> faulty = edited(program, [Remove(0, site(program, 0, wait))])
      >>> sorted({str(finding.kind) for finding in pallascope.check(faulty).findings})
      ['race']
    """
    edits = [*edits]
    if edits and counted(program) != program:
        raise ValueError(
            f"{program.name} has warps that wait apart, so the ops of a thread do not tell its"
            " phases, and after an edit they would be wrong: edit the kernel, and trace it again."
        )
    for edit in edits:
        is_count = isinstance(edit, Expect)
        program = counted(_with_arrivals(program, edit) if is_count else _with_ops(program, edit))
    return program


def site(program: Program, thread: int, index: int) -> tuple[int, ...]:
    """The indices of all ops of a thread at the site of one of them."""
    ops = program.threads[thread]
    return tuple(i for i, op in enumerate(ops) if _site(op) == _site(ops[index]))


def counted(program: Program) -> Program:
    """The program with each wait's and arrival's phase counted anew: how many came before."""
    return replace(program, threads=tuple(map(_counted, program.threads)))


def _counted(ops: Sequence[Op]) -> tuple[Op, ...]:
    """A thread's ops with their phases counted anew."""
    seen, found = Counter[tuple[int, int, bool]](), list[Op]()
    for op in ops:
        if op.barrier is not None:
            key = (*op.place, op.kind in (Kind.WAIT, Kind.TEST))
            op = op if op.phase == seen[key] else replace(op, phase=seen[key])
            seen[key] += op.kind is not Kind.TEST
        found.append(op)
    return tuple(found)


def _site(op: Op) -> tuple[object, ...]:
    return op.kind, op.line, op.scope, op.barrier


def _with_arrivals(program: Program, edit: Expect) -> Program:
    """The program with another count of arrivals."""
    if not 0 <= edit.barrier < len(program.barriers):
        raise _absent(program, f"barrier {edit.barrier}", f"{len(program.barriers)} barriers")
    barriers = [*program.barriers]
    barrier = barriers[edit.barrier]
    if edit.arrivals < 1:
        raise ValueError(
            f"A phase of {barrier.name} cannot take {edit.arrivals} arrivals, since it would be"
            " over before it begins: give 1 or more."
        )
    barriers[edit.barrier] = replace(barrier, arrivals=edit.arrivals)
    return replace(program, barriers=tuple(barriers))


def _with_ops(program: Program, edit: OfOps) -> Program:
    """The program with other ops of one thread."""
    threads, made = [*program.threads], order(program, edit)
    ops = [*threads[edit.thread]]
    if isinstance(edit, Relax):
        for index in edit.indices:
            ops[index] = _relaxed(ops[index], edit.read_only)
    threads[edit.thread] = tuple([ops[index] for index in made])
    return replace(program, threads=tuple(threads))


def _relaxed(op: Op, read_only: bool) -> Op:
    """A wait that waits for less."""
    if op.kind not in (WAIT_STORES if read_only else RELAXED):
        raise ValueError(
            f"{op.kind} does not wait for {'stores' if read_only else 'what its thread started'},"
            " so it cannot wait for less: relax one that does."
        )
    return replace(op, read_only=True) if read_only else replace(op, pending=(op.pending or 0) + 1)


def order(program: Program, edit: OfOps) -> list[int]:
    """What an edit makes of its thread: for each op afterwards, its index before.

    An op that is taken away is not among them, and one that is repeated is twice.

    Raises:
      ValueError: as `edited`.
    """
    if not 0 <= edit.thread < len(program.threads):
        raise _absent(program, f"thread {edit.thread}", f"{len(program.threads)} threads")
    ops, chosen = program.threads[edit.thread], {*edit.indices}
    for index in edit.indices:
        if not 0 <= index < len(ops):
            what = f"op {index} of thread {edit.thread}"
            raise _absent(program, what, f"{len(ops)} ops of this thread")
        if ops[index].kind in FIXED:
            raise ValueError(
                f"Op {index} of thread {edit.thread} is {ops[index].kind}, which other ops depend"
                " on, so without it in its place the program would mean nothing: change the ops"
                " around it."
            )
    match edit:
        case Remove():
            return [index for index in range(len(ops)) if index not in chosen]
        case Repeat():
            return [i for i in range(len(ops)) for _ in range(2 if i in chosen else 1)]
        case Relax():
            return [*range(len(ops))]
        case Move():
            return _moved(ops, chosen, edit.by)
        case _:
            assert_never(edit)


def _moved(ops: Sequence[Op], chosen: set[int], by: int) -> list[int]:
    """The ops' indices with the chosen ones moved, those first that are furthest on their way."""
    found = [*range(len(ops))]
    for index in sorted(chosen, reverse=by > 0):
        step, at = (1 if by > 0 else -1), index
        while at != index + by and 0 <= at + step < len(found):
            if not _passes(ops[found[at]], ops[found[at + step]]):
                break
            found[at], found[at + step] = found[at + step], found[at]
            at += step
    return found


def _passes(op: Op, other: Op) -> bool:
    """Whether an op may move past another."""
    is_held = {op.kind, other.kind} <= VALUES or _is_product_of(op, other)
    return other.kind not in FIXED and not is_held


def _is_product_of(op: Op, other: Op) -> bool:
    """Whether one of two ops is a product, and the other reads or sets its accumulator."""
    kinds = {op.kind, other.kind}
    if Kind.WGMMA not in kinds or kinds.isdisjoint({Kind.ACC_READ, Kind.ACC_WRITE}):
        return False
    return not _buffers(op).isdisjoint(_buffers(other))


def _buffers(op: Op) -> set[int]:
    return {region.buffer for region in (*op.reads, *op.writes)}


def _absent(program: Program, what: str, there_are: str) -> ValueError:
    """The error for what an edit names and the program has not."""
    return ValueError(
        f"{program.name} has no {what}, since it has {there_are}, so there is nothing to edit: name"
        " one that it has, in the program before this edit."
    )
