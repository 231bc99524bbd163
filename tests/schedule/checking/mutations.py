"""Mechanical mutations of a program: each synchronisation removed, weakened or moved in turn.

The model. A *site* is where the source has one synchronising op: the ops of one thread of the same
kind, source line, named scope and barrier. (All that an emitter does stands on the line that calls
it.) Each site is altered everywhere it occurs, or at its middle occurrence only. What the program
counts anew is counted anew: a kernel that makes one wait less has lower phases thereafter.

=========  ====================================  ===================================================
mutation   what is done                          to
=========  ====================================  ===================================================
without    every occurrence is taken away        wait, arrive, fence, wait_store, wgmma_wait,
                                                 commit_group, where a shared scope begins
once less  the middle occurrence is taken away   the same, if there are several
twice      the middle occurrence is done twice   wait, arrive, load
raised     `pending` is one more, everywhere           wait_store, wgmma_wait, acc_read
earlier    the middle occurrence changes places  all, and load
           with the op before
later      the middle occurrence changes places  all, and load
           with the op after
elsewhere  the middle occurrence is on the next  wait, arrive, load
           barrier of its array
fewer      a phase takes one arrival less        barriers of several arrivals
more       a phase takes one arrival more        barriers
=========  ====================================  ===================================================
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pipelib.schedule.program import Op, Program
from tests.schedule.checking.explorer import NOTHING
from tests.schedule.strategies import with_thread

# What an op that moves passes beside the op that it moves past.
PASSED = (*NOTHING, "registers")
REMOVABLE = ("wait", "arrive", "fence", "wait_store", "wgmma_wait", "commit_group", "scope_begin")
COUNTS = ("wait_store", "wgmma_wait", "acc_read")
ON_BARRIERS = ("wait", "arrive", "load")


class Mutant(NamedTuple):
    """A program altered; `mutation` and `kind` of op say how, `places` where in the original."""

    name: str
    mutation: str
    kind: str
    program: Program
    thread: int | None
    places: tuple[int, ...]


def mutants(program: Program) -> Iterator[Mutant]:
    """Every mutant of a program, each with a name of its own."""
    for thread, ops in enumerate(program.threads):
        sites = defaultdict(list)
        for index, op in enumerate(ops):
            if _synchronises(op):
                sites[op.kind, op.line, op.scope, op.barrier].append(index)
        for number, indices in enumerate(sites.values()):
            for mutation, places, altered in _altered(program, ops, indices):
                op = ops[indices[0]]
                words = [mutation, op.kind]
                words += [program.barriers[op.barrier].name] if op.barrier is not None else []
                name = f"{' '.join(words)}, thread {thread}, site {number} [{op.line}]"
                changed = with_thread(program, thread, altered)
                yield Mutant(name, mutation, op.kind, changed, thread, tuple(places))
    for barrier in program.barriers:
        for mutation, change in (("fewer", -1), ("more", 1)):
            if barrier.arrivals + change:
                barriers = list(program.barriers)
                barriers[barrier.id] = replace(barrier, arrivals=barrier.arrivals + change)
                changed = replace(program, barriers=tuple(barriers))
                name = f"{mutation} arrivals on {barrier.name}, barrier {barrier.id}"
                yield Mutant(name, mutation, "barrier", changed, None, ())


def _synchronises(op: Op) -> bool:
    if op.kind == "scope_begin":
        return op.shared
    return op.kind in REMOVABLE + COUNTS + ON_BARRIERS


def _altered(program: Program, ops: tuple[Op, ...], indices: list[int]) -> Iterator[tuple]:
    """(mutation, indices of the ops that it concerns, the thread's new ops)."""
    kind, middle = ops[indices[0]].kind, indices[len(indices) // 2]
    op, before, after = ops[middle], list(ops[:middle]), list(ops[middle + 1 :])
    if kind in REMOVABLE:
        yield "without", indices, [op for i, op in enumerate(ops) if i not in set(indices)]
        if len(indices) > 1:
            yield "once less", [middle], before + after
    if kind in ON_BARRIERS:
        yield "twice", [middle], [*before, op, replace(op), *after]
        count = program.barriers[op.barrier].count
        if count > 1:
            moved = replace(op, index=(op.index + 1) % count)
            yield "elsewhere", [middle], [*before, moved, *after]
    if kind in COUNTS:
        more = lambda op: replace(op, pending=op.pending + 1)
        raised = [more(o) if i in set(indices) else o for i, o in enumerate(ops)]
        yield "raised", indices, raised
    if (last := _neighbour(before[::-1])) is not None:
        at = len(before) - 1 - last
        yield "earlier", [middle], [*before[:at], op, *before[at:], *after]
    if (following := _neighbour(after)) is not None:
        yield "later", [middle], [*before, *after[: following + 1], op, *after[following + 1 :]]


def _neighbour(ops: list[Op]) -> int | None:
    """The index of the first op that does anything, unless it is where a scope begins or ends."""
    for index, op in enumerate(ops):
        if op.kind not in PASSED:
            return None if op.kind.startswith("scope_") else index
    return None
