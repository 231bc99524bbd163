"""Which threads of a program wait for ever, and for what.

The model. After `Order` every thread has come as far as it ever does. One that has ops left is
stuck, unless what it waits for could come after the end of another that was truncated, directly or
by way of others like it.
"""

from collections.abc import Iterable

from pipelib.schedule.order import Order
from pipelib.schedule.program import Op, Program
from pipelib.schedule.report import Findings, count, thread_name


def deadlock(program: Program, order: Order, findings: Findings) -> list[int]:
    """Adds one finding for all threads that wait for ever, and says which these are."""
    rest = [ops[at:] for ops, at in zip(program.threads, order.position)]
    waiting = [thread for thread, ops in enumerate(rest) if ops]
    may_come = {thread for thread in program.truncated if not rest[thread]}
    excused: set[int] = set()
    while more := {
        thread for thread in waiting
        if thread not in excused and _could_serve(program, rest[thread][0], may_come | excused)
    }:  # fmt: skip
        excused |= more
    stuck = [thread for thread in waiting if thread not in excused]
    if stuck:
        ops = tuple(rest[thread][0] for thread in stuck)
        reasons = [_why_stuck(program, order, op, rest) for op in ops]
        verb = "waits" if len(stuck) == 1 else "wait"
        findings.add(
            "deadlock", ops,
            f"{count(len(stuck), 'thread')} {verb} for ever: {'; '.join(reasons)}.",
            "Each phase that is waited for needs all its arrivals, from threads that can come to"
            " make them: add the missing arrival, or let the barrier expect fewer, or move an"
            " arrival before the wait that holds it up.",
        )  # fmt: skip
    return stuck


def _could_serve(program: Program, wait: Op, threads: Iterable[int]) -> bool:
    """Whether one of these threads arrives, anywhere, where this op waits."""
    if wait.kind != "wait":
        return bool(set(threads))
    return any(_arrives(program, op, wait) for thread in threads for op in program.threads[thread])


def _arrives(program: Program, op: Op, wait: Op) -> bool:
    if op.kind not in ("load", "arrive") or op.index != wait.index or op.barrier is None:
        return False
    peers = op.peers or program.barriers[op.barrier].peers or (op.barrier,)
    return wait.barrier in peers


def _why_stuck(program: Program, order: Order, wait: Op, rest: list[tuple[Op, ...]]) -> str:
    who = thread_name(program, wait.thread)
    if wait.kind != "wait":
        return f"{who} begins a scope that all threads share, to which not all others come"
    place = order.places[wait.barrier, wait.index]
    phase = place.phase(wait.phase)
    has = f"has {len(phase.arrivals)} of {count(place.expects, 'arrival')}"
    if len(phase.arrivals) >= place.expects:
        has = "has its arrivals but not the peers' parts of its multicast copy"
    coming = [next((op for op in ops if _arrives(program, op, wait)), None) for ops in rest]
    later = [
        thread_name(program, op.thread) + (f" at {op.line}" if op.line else "")
        for op in coming if op is not None
    ]  # fmt: skip
    hope = "no thread makes another"
    if later:
        hope = f"the next comes from {', '.join(later)}, which is stuck"
    return f"{who} waits for phase {wait.phase} of {order.name(place)}, which {has}, and {hope}"
