"""`check`: races, deadlocks and misused barriers of a program, for every schedule of its threads.

The model. `order.py` runs the threads once and gives each op a clock; its docstring says why once
is enough for all interleavings. `memory.py` compares accesses by these clocks. Here are the two put
together, and what only the end shows: who is stuck, what is left over, what does not fit.

A deadlock. Threads run as far as they can; whoever has not come to its end then never does. A
thread whose missing arrival could come after another's truncated end is not called stuck.

The proxy question. An ordinary write that an engine reads or overwrites later needs `commit_smem`
between, always. An ordinary *read* of a slot that a load overwrites later needs one by the letter
of PTX, too, and pipelib's emitters have it; JAX's do not, and no fault has been seen on hardware.
So that is a finding with `strict=True` only.

Not covered: what the answer of a barrier test or the contents of tensors decide (`trace` refuses
flow that depends on them); other blocks of the grid, but those of the cluster; opaque code; memory
that one scope after another has at the same address; registers that the compiler needs.

Limits of a block: CUDA C++ Programming Guide, technical specifications for compute capability 9.0.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pipelib.schedule.memory import Memory
from pipelib.schedule.order import Event, Order, Place
from pipelib.schedule.program import Op, Program
from pipelib.schedule.report import Findings, Report, count, thread_name

SMEM_BYTES, REGISTERS, THREAD_REGISTERS = 232_448, 65_536, 255
_LANES, _REGISTER_BYTES = 128, 4


def check(program: Program, *, strict: bool = False) -> Report:
    """The faults of a program that some schedule of its threads can bring out.

    Args:
      program: what `trace` gave, or one built by hand.
      strict: also report that an asynchronous copy overwrites, with no `commit_smem` between, what
        a thread has read with ordinary loads (see the module's docstring).

    Returns:
      a `Report`: an iterable of `Finding`s, empty if there is no fault.
    """
    findings = Findings()
    order = Order(program, findings)
    memory, outliving = Memory(program, order, findings, strict), _Outliving(order, findings)
    for event in order:
        memory.see(event)
        outliving.see(event)
    stuck = _deadlock(program, order, findings)
    is_whole = not stuck and not program.truncated
    memory.finish(is_whole)
    if is_whole:
        outliving.finish()
        for place in order.places.values():
            _left_over(order, place, findings)
    for block in range(program.blocks):
        _shared_memory(program, block, findings)
        _registers(program, block, findings)
    return Report(program, findings.all(), tuple(_notes(program, stuck, memory)))


def _notes(program: Program, stuck: list[int], memory: Memory) -> Iterator[str]:
    """What the check did not look at, and what may be meant."""
    if program.truncated:
        names = ", ".join(thread_name(program, thread) for thread in program.truncated)
        yield f"truncated: the ends of {names} are missing, and so are the faults in them."
    if stuck:
        yield "what stuck threads would do next was not checked."
    ops = [op for ops in program.threads for op in ops]
    opaque = sorted({op.note for op in ops if op.kind == "opaque"})
    if opaque:
        yield f"opaque code was taken on trust: {', '.join(opaque)}."
    if any(op.kind == "test" for op in ops):
        yield "a barrier test orders nothing here, whatever it answers."
    for (line, name), times in memory.overwritten.items():
        yield (
            f"{line}: what is written to `{name}` is not read before it is written anew,"
            f" {count(times, 'time')}: right if only the last is meant to count."
        )


# Deadlock.


def _deadlock(program: Program, order: Order, findings: Findings) -> list[int]:
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
        f"{thread_name(program, op.thread)}" + (f" at {op.line}" if op.line else "")
        for op in coming if op is not None
    ]  # fmt: skip
    next_one = f"the next comes from {', '.join(later)}, which is stuck" if later else ""
    return (
        f"{who} waits for phase {wait.phase} of {order.name(place)}, which {has}, and"
        f" {next_one or 'no thread makes another'}"
    )


# What is left at the end.


class _Outliving:
    """Copies from SMEM and products that may still read it when it is given to others.

    Memory whose scope has ended is given away where the thread's next scope with SMEM begins; until
    then a wait for them is in time. A copy must also be over where the thread ends.
    """

    def __init__(self, order: Order, findings: Findings):
        self.order, self.findings = order, findings
        self.pending: dict[int, list[Event]] = defaultdict(list)
        self.ended: dict[int, set[int]] = defaultdict(set)
        self.takers = {b.scope for b in order.program.buffers if b.space == "smem"}

    def see(self, event: Event) -> None:
        op = event.op
        if op.kind in ("store", "wgmma"):
            self.pending[op.thread].append(event)
        elif op.kind == "scope_end":
            self.pending[op.thread] = self._unfinished(op.thread)
            self.ended[op.thread].add(op.n)
        elif op.kind == "scope_begin" and op.n in self.takers:
            for late in self._unfinished(op.thread):
                if self._scopes(late) & self.ended[op.thread]:
                    self._report(late, op)

    def finish(self) -> None:
        """Reports the copies that threads have not waited for when they end."""
        for thread in self.pending:
            for late in self._unfinished(thread):
                if late.op.kind == "store":
                    self._report(late)

    def _unfinished(self, thread: int) -> list[Event]:
        clock = self.order.clocks[thread]
        return [e for e in self.pending[thread] if clock[e.read_done[0]] < e.read_done[1]]

    def _scopes(self, event: Event) -> set[int | None]:
        buffers = (self.order.program.buffers[region.buffer] for region in event.op.reads)
        return {buffer.scope for buffer in buffers if buffer.space == "smem"}

    def _report(self, late: Event, *taker: Op) -> None:
        who = thread_name(self.order.program, late.op.thread)
        name = self.order.program.buffers[late.op.reads[0].buffer].name
        if late.op.kind == "store":
            kind, what, missing = "lost-store", "copy", "wait_smem_to_gmem"
            remedy = (
                "Call wait_smem_to_gmem(0) (after commit_smem_to_gmem_group, if the copy has"
                " commit_group=False) before its memory is given to others, or the kernel ends."
            )
        else:
            kind, what, missing = "race", "product", "wgmma_wait"
            remedy = "Call wgmma_wait(0), or read the accumulator, before the next scope begins."
        ceases = "is given to the next scope" if taker else "ceases to exist"
        self.findings.add(
            kind, (*taker, late.op),
            f"`{name}` {ceases} while this {what} of {who} may still read it: no {missing} after it"
            " covers it.",
            remedy, name,
        )  # fmt: skip


def _left_over(order: Order, place: Place, findings: Findings) -> None:
    """Adds the arrivals that complete no phase, and the loads that nobody waits for."""
    name, extra = order.name(place), place.total % place.expects
    if extra:
        arrivals = place.phases[place.total // place.expects].arrivals
        findings.add(
            "barrier-misuse", tuple(op for *_, op in arrivals[:2]),
            f"{name} is left with {count(extra, 'arrival')} of the {place.expects} that a phase"
            " takes: they complete none.",
            "Let it expect as many arrivals as are made in a phase, or make them all.",
            *order.where(place),
        )  # fmt: skip
    for phase in place.phases[place.waited :]:
        loads = [op for *_, op in phase.arrivals if op.kind == "load"]
        if loads:
            findings.add(
                "barrier-misuse", (loads[0],),
                f"Nothing waits for this copy: its bytes may land on {name} and in SMEM when both"
                " have ceased to exist.",
                f"Wait on {name}, or do not make the copy.",
                *order.where(place),
            )  # fmt: skip


# Resources.


def _shared_memory(program: Program, block: int, findings: Findings) -> None:
    if program.smem_bytes <= SMEM_BYTES or block:
        return
    inside = lambda x: program.blocks == 1 or x.block in (None, block)
    terms = [f"{b.bytes:,} ({b.name})" for b in program.buffers if b.space == "smem" and inside(b)]
    singles = sum(b.count for b in program.barriers if inside(b))
    terms += [f"{8 * singles:,} ({count(singles, 'barrier')})"] if singles else []
    findings.add(
        "resource", (),
        f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can have"
        f" {SMEM_BYTES:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot be"
        " launched.",
        "Take fewer slots, smaller tiles, or scopes that do not live at the same time.",
    )  # fmt: skip


def _registers(program: Program, block: int, findings: Findings) -> None:
    each = len(program.threads) // program.blocks
    threads = range(block * each, (block + 1) * each)
    asked = [(program.registers[t] or 0) if program.registers else 0 for t in threads]
    if _LANES * sum(asked) > REGISTERS:
        terms = " + ".join(map(str, asked))
        findings.add(
            "resource", (),
            f"The threads ask for {_LANES} x ({terms}) = {_LANES * sum(asked):,} registers, and a"
            f" block can have {REGISTERS:,}: who asks last waits for ever.",
            "Let the memory thread give up more, or the compute threads ask for less.",
        )  # fmt: skip
    for thread, limit in zip(threads, asked):
        needed = _accumulator_registers(program, thread)
        if needed > (limit or THREAD_REGISTERS):
            findings.add(
                "resource", (),
                f"The accumulators of {thread_name(program, thread)} take {needed} registers a lane"
                f" at once, and it has {limit or THREAD_REGISTERS}: they spill to local memory.",
                "Take a smaller tile, or share it among more compute threads.",
            )  # fmt: skip


def _accumulator_registers(program: Program, thread: int) -> int:
    """The most that the accumulators of the thread's scopes take at once, in registers a lane."""
    sizes: dict[int, int] = {}
    for buffer in program.buffers:
        if buffer.space == "acc" and buffer.thread == thread and buffer.scope is not None:
            size = buffer.bytes // (_LANES * _REGISTER_BYTES)
            sizes[buffer.scope] = sizes.get(buffer.scope, 0) + size
    now = most = 0
    for op in program.threads[thread]:
        if op.kind in ("scope_begin", "scope_end") and op.n in sizes:
            now += sizes[op.n] if op.kind == "scope_begin" else -sizes[op.n]
            most = max(most, now)
    return most


