"""`deadlock`: which threads of a program wait for ever, and for what.

The model. After `Order` has run, every thread has come as far as it ever does. A thread that has
ops left is stuck. One exception: the end of another thread may be missing (truncated), and what the
thread waits for could come from there, directly or by way of other such threads.
"""

from collections.abc import Iterable

from pallascope.checking.facts import Clash
from pallascope.checking.facts.barriers import Deadlock, NoRegisters, Stuck
from pallascope.checking.order import Order
from pallascope.program import Kind, Op, Program


def deadlock(program: Program, order: Order) -> Deadlock | None:
    """The threads that wait for ever, if there are any."""
    rest = [ops[at:] for ops, at in zip(program.threads, order.position)]
    waiting = [thread for thread, ops in enumerate(rest) if ops]
    may_come = {thread for thread in program.truncated if not rest[thread]}
    excused: set[int] = set()
    while more := {
        thread
        for thread in waiting
        if thread not in excused and _could_serve(program, rest[thread][0], may_come | excused)
    }:
        excused |= more
    stuck = [thread for thread in waiting if thread not in excused]
    if not stuck:
        return None
    clash = Clash(
        done=tuple((thread, at - 1) for thread, at in enumerate(order.position) if at),
        coming=tuple((thread, order.position[thread]) for thread in stuck),
    )
    return Deadlock(tuple(_stuck(program, order, rest[thread][0], rest) for thread in stuck), clash)


def _could_serve(program: Program, wait: Op, threads: Iterable[int]) -> bool:
    """Whether one of these threads arrives, anywhere, where this op waits."""
    if wait.kind not in (Kind.WAIT, Kind.AWAIT):
        return bool(set(threads))
    return any(_arrives(program, op, wait) for thread in threads for op in program.threads[thread])


def _arrives(program: Program, op: Op, wait: Op) -> bool:
    if wait.kind is Kind.AWAIT:
        return op.kind is Kind.SIGNAL and op.place == wait.place
    if op.kind not in _ARRIVALS or op.index != wait.index or op.barrier is None:
        return False
    peers = op.peers or program.barriers[op.barrier].peers or (op.barrier,)
    return wait.barrier in peers


_ARRIVALS = Kind.LOAD, Kind.ARRIVE, Kind.TCGEN05_COMMIT


def _stuck(
    program: Program, order: Order, wait: Op, rest: list[tuple[Op, ...]]
) -> Stuck | NoRegisters:
    if wait.kind is Kind.REGISTERS and order.registers is not None:
        block = program.block_of(wait.thread)
        return NoRegisters(wait, order.registers.held[wait.thread], order.registers.free[block])
    if wait.kind is Kind.AWAIT:
        held = order.semaphores
        return Stuck(wait, held.totals[wait.place], held.need(wait), _coming(program, wait, rest))
    if wait.kind != Kind.WAIT:
        return Stuck(wait)
    place = order.places[wait.place]
    arrivals = len(place.phase(wait.phase).arrivals)
    return Stuck(wait, arrivals, place.expects, _coming(program, wait, rest))


def _coming(program: Program, wait: Op, rest: list[tuple[Op, ...]]) -> tuple[Op, ...]:
    """The first op of each stuck thread that arrives or signals where another waits."""
    coming = (next((op for op in ops if _arrives(program, op, wait)), None) for ops in rest)
    return tuple(op for op in coming if op is not None)
