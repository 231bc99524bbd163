"""Mechanical mutations of a program: each synchronisation removed, weakened or moved in turn.

The model. A *site* is where the source has one synchronising op: the ops of one thread of the same
kind, source line, named scope and barrier. (All that an emitter does stands on the line that calls
it.) Each site is altered everywhere it occurs, or at its middle occurrence only, or at each. What
the program counts anew is counted anew: a kernel that makes one wait less has lower phases
thereafter.

=========  ====================================  ===================================================
mutation   what is done                          to
=========  ====================================  ===================================================
without    every occurrence is taken away        wait, arrive, fence, wait_store, wgmma_wait,
                                                 commit_group, where a shared scope begins, meet,
                                                 registers, signal, await, grid_wait, grid_signal,
                                                 wait_cp_async, tcgen05_commit, wait_load_tmem,
                                                 wait_store_tmem
once less  the middle occurrence is taken away   the same, if there are several
twice      the middle occurrence is done twice   wait, arrive, load, meet, signal, await,
                                                 tcgen05_commit
raised     `pending` is one more, everywhere     wait_store, wgmma_wait, acc_read, wait_cp_async
           `amount` is one more, everywhere      signal, await
           8 registers more are asked for        registers
lowered    `amount` is one less, everywhere      signal, await
           8 registers less are asked for        registers
reversed   a decrease is an increase, and an     registers
           increase is a decrease
kept       what it leaves is taken off, and      await
           what it takes off is left
plain      it overwrites what it combined with   write, load, store that combine
earlier    the middle occurrence changes places  all, and load
           with the op before
later      the middle occurrence changes places  all, and load
           with the op after
last       the first occurrence comes at the     registers
           thread's end
elsewhere  the middle occurrence is on the next  wait, arrive, load, tcgen05_commit; signal and
           barrier of its array                  await, which get a semaphore of their own if there
                                                 is no other, and ops on a named barrier, which get
                                                 another number
alone      the thread does not meet the others,  meet: each occurrence, but where warps are done:
           and these do not wait for it          their thread may wait for what they began
fewer      a phase takes one arrival less        barriers of several arrivals
more       a phase takes one arrival more        barriers, but semaphores
=========  ====================================  ===================================================
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import NamedTuple

from pallascope.program import Action, Barrier, BarrierType, Op, Program
from tests.pallascope.checking.explorer import NOTHING
from tests.pallascope.strategies import with_thread

# What an op that moves passes beside the op that it moves past.
PASSED = (*NOTHING, "registers")
REMOVABLE = (
    "wait", "arrive", "fence", "wait_store", "wgmma_wait", "commit_group", "scope_begin", "meet",
    "registers", "signal", "await", "grid_wait", "grid_signal", "wait_cp_async", "tcgen05_commit",
    "wait_load_tmem", "wait_store_tmem",
)  # fmt: skip
COUNTS = ("wait_store", "wgmma_wait", "acc_read", "wait_cp_async")
SEMAPHORES = ("signal", "await")
ON_BARRIERS = ("wait", "arrive", "load", "tcgen05_commit", *SEMAPHORES)
TWICE = (*ON_BARRIERS, "meet")
ACCESSES = ("write", "store")  # which stay where they are
OTHER_WAY = {Action.INCREASE: Action.DECREASE, Action.DECREASE: Action.INCREASE}


class Mutant(NamedTuple):
    """A program altered; `mutation` and `kind` of op say how, `places` where in the original."""

    name: str
    mutation: str
    kind: str
    program: Program
    thread: int | None
    places: tuple[int, ...]


def mutants(program: Program, every: Container[str] = ()) -> Iterator[Mutant]:
    """Every mutant of a program, each with a name of its own.

    Of the kinds of ops in `every` each occurrence is altered in its turn, not the middle one alone.
    """
    for thread, ops in enumerate(program.threads):
        sites = defaultdict(list)
        for index, op in enumerate(ops):
            if _synchronises(op):
                sites[op.kind, op.line, op.scope, op.barrier].append(index)
        for number, indices in enumerate(sites.values()):
            op = ops[indices[0]]
            for mutation, places, changed in _changed(program, thread, indices, op.kind in every):
                if changed == program:  # an op has changed places with its like
                    continue
                words = [mutation, op.kind]
                words += [program.barriers[op.barrier].name] if op.barrier is not None else []
                is_middle = places in ([indices[len(indices) // 2]], indices)
                words += [] if is_middle and mutation != "alone" else [f"at {places[0]}"]
                name = f"{' '.join(words)}, thread {thread}, site {number} [{op.line}]"
                yield Mutant(name, mutation, op.kind, changed, thread, tuple(places))
    for barrier in program.barriers:
        for mutation, change in (("fewer", -1), ("more", 1)):
            if barrier.arrivals + change and barrier.type is not BarrierType.SEMAPHORE:
                barriers = list(program.barriers)
                barriers[barrier.id] = replace(barrier, arrivals=barrier.arrivals + change)
                changed = replace(program, barriers=tuple(barriers))
                name = f"{mutation} arrivals on {barrier.name}, barrier {barrier.id}"
                yield Mutant(name, mutation, "barrier", changed, None, ())


def _synchronises(op: Op) -> bool:
    if op.kind == "scope_begin":
        return op.shared
    return op.kind in REMOVABLE + COUNTS + ON_BARRIERS or bool(op.combines)


def _changed(program: Program, thread: int, indices: list[int], every: bool) -> Iterator[tuple]:
    """(mutation, indices of the ops that it concerns, the new program)."""
    ops = program.threads[thread]
    anew = lambda altered: _asked_anew(with_thread(program, thread, altered))
    for mutation, altered in _everywhere(ops, indices):
        yield mutation, indices, anew(altered)
    for index in indices if every else [indices[len(indices) // 2]]:
        for mutation, altered in _once(program, ops, index, len(indices) > 1):
            yield mutation, [index], anew(altered)
        op = ops[index]
        if op.barrier is not None and _is_single(program, op.barrier):
            barriers = (*program.barriers, _another(program, op.barrier))
            moved = replace(op, barrier=barriers[-1].id)
            changed = with_thread(program, thread, [*ops[:index], moved, *ops[index + 1 :]])
            yield "elsewhere", [index], replace(changed, barriers=barriers)
    for index in indices:
        if op.kind == "meet" and len(op.members) > 1 and not _ends_warps(program, ops, index):
            yield "alone", [index], _alone(program, thread, index)


def _everywhere(ops: tuple[Op, ...], indices: list[int]) -> Iterator[tuple]:
    """(mutation, the thread's new ops) of what is done at every occurrence; `last` at the first."""
    first, at = ops[indices[0]], {*indices}
    if first.kind in REMOVABLE:
        yield "without", [op for i, op in enumerate(ops) if i not in at]
    for mutation, change in _changes(first):
        yield mutation, [change(op) if i in at else op for i, op in enumerate(ops)]
    if first.kind == "registers":
        yield "last", [*ops[: indices[0]], *ops[indices[0] + 1 :], first]


def _once(program: Program, ops: tuple[Op, ...], index: int, several: bool) -> Iterator[tuple]:
    """(mutation, the thread's new ops) of what is done at one occurrence, of `several` or alone."""
    op, before, after = ops[index], list(ops[:index]), list(ops[index + 1 :])
    if op.kind in REMOVABLE and several:
        yield "once less", before + after
    if op.kind in TWICE:
        yield "twice", [*before, op, replace(op), *after]
    if op.barrier is not None and (count := program.barriers[op.barrier].count) > 1:
        yield "elsewhere", [*before, replace(op, index=(op.index + 1) % count), *after]
    if op.kind in ACCESSES:
        return
    if (last := _neighbour(before[::-1])) is not None:
        at = len(before) - 1 - last
        yield "earlier", [*before[:at], op, *before[at:], *after]
    if (following := _neighbour(after)) is not None:
        yield "later", [*before, *after[: following + 1], op, *after[following + 1 :]]


def _changes(op: Op) -> Iterator[tuple[str, Callable[[Op], Op]]]:
    """The mutations that change a field of an op, wherever its site has it."""
    if op.kind in COUNTS:
        yield "raised", lambda op: replace(op, pending=op.pending + 1)
    elif op.kind in SEMAPHORES:
        yield "raised", lambda op: replace(op, amount=op.amount + 1)
        if op.amount > 1:
            yield "lowered", lambda op: replace(op, amount=op.amount - 1)
        if op.kind == "await":
            yield "kept", lambda op: replace(op, keeps=not op.keeps)
    elif op.kind == "registers":
        yield "raised", lambda op: replace(op, registers=op.registers + 8)
        yield "lowered", lambda op: replace(op, registers=op.registers - 8)
        yield "reversed", lambda op: replace(op, action=OTHER_WAY[op.action])
    elif op.combines:
        atomic = op.kind == "write"  # which reads what it combines with
        yield "plain", lambda op: replace(op, combines="", reads=() if atomic else op.reads)


def _asked_anew(program: Program) -> Program:
    """The program with what its threads now ask for last."""
    if not program.registers:
        return program
    asked = []
    for ops in program.threads[: len(program.registers)]:
        requests = [op.registers for op in ops if op.kind == "registers"]
        asked.append(requests[-1] if requests else None)
    return replace(program, registers=tuple(asked))


def _is_single(program: Program, barrier: int) -> bool:
    """Whether a barrier is no mbarrier, and has no other in its array."""
    array = program.barriers[barrier]
    return array.count == 1 and array.type is not BarrierType.MBARRIER


def _another(program: Program, barrier: int) -> Barrier:
    """A barrier like this one that no op uses; of a named barrier, with a number of its own."""
    array, number = program.barriers[barrier], None
    if array.type is BarrierType.NAMED:
        number = 1 + max(b.number for b in program.barriers if b.number is not None)
    return replace(array, id=len(program.barriers), name=f"another {array.name}", number=number)


def _ends_warps(program: Program, ops: tuple[Op, ...], index: int) -> bool:
    """Whether a meeting is the second of the two between which a thread's warps are apart."""
    members = ops[index].members
    before = [op.members == members for op in ops[:index]].count(True)
    return before % 2 == 1 and max(members) >= program.per_block * program.blocks


def _alone(program: Program, thread: int, index: int) -> Program:
    """The program whose thread does not come to this meeting, and is not waited for there."""
    ops, others = program.threads[thread], program.threads[thread][index].members
    which = [op.members == others for op in ops[:index]].count(True)
    threads = []
    for number, ops in enumerate(program.threads):
        met, found = 0, []
        for op in ops:
            is_it = number in others and op.kind == "meet" and op.members == others
            if is_it and met == which:
                rest = tuple(member for member in others if member != thread)
                found += [] if number == thread else [replace(op, members=rest)]
            else:
                found.append(op)
            met += is_it
        threads.append(tuple(found))
    return replace(program, threads=tuple(threads))


def _neighbour(ops: list[Op]) -> int | None:
    """The index of the first op that does anything, unless it is where a scope begins or ends."""
    for index, op in enumerate(ops):
        if op.kind not in PASSED or op.scratch is not None:
            return None if op.kind.startswith("scope_") else index
    return None
