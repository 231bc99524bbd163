"""`finding` and `note`: what a report says of each fact.

The model. A cause says who does what to which memory, and by what the two would have been in order.
A remedy names the call that is missing and the thread that has to make it. All sentences of the
check are here, and nothing is decided here: `facts` says what was found. Source: this project's
own.
"""

from typing import assert_never

from pipelib.schedule.checking.facts import (
    Deadlock,
    EarlyArrival,
    Fault,
    IncompletePhase,
    LappedWait,
    LostWrite,
    MissingCommit,
    Outliving,
    OutsideBarriers,
    OutsideBuffer,
    Overwritten,
    Race,
    Remark,
    Spill,
    Stuck,
    Tested,
    TooManyRegisters,
    TooMuchMemory,
    Truncated,
    Trusted,
    UnawaitedLoad,
    Unchecked,
    Uninitialized,
    Unused,
    Unwritten,
)
from pipelib.schedule.program import Buffer, Kind, Op, Program, Space, step_name
from pipelib.schedule.report import Finding, FindingKind, count, thread_name, truncation


def finding(program: Program, fault: Fault) -> Finding:
    """A fault in words."""
    match fault:
        case Race():
            return _race(program, fault)
        case MissingCommit():
            return _missing_commit(program, fault)
        case Uninitialized():
            return _uninitialized(program, fault)
        case LostWrite():
            return _lost_write(program, fault)
        case Outliving():
            return _outliving(program, fault)
        case OutsideBuffer():
            return _outside_buffer(program, fault)
        case OutsideBarriers():
            return _outside_barriers(program, fault)
        case EarlyArrival():
            return _early_arrival(program, fault)
        case LappedWait():
            return _lapped_wait(program, fault)
        case IncompletePhase():
            return _incomplete_phase(program, fault)
        case UnawaitedLoad():
            return _unawaited_load(program, fault)
        case Deadlock():
            return _deadlock(program, fault)
        case TooMuchMemory():
            return _too_much_memory(program, fault)
        case TooManyRegisters():
            return _too_many_registers(fault)
        case Spill():
            return _spill(program, fault)
        case _:
            assert_never(fault)


def note(program: Program, remark: Remark) -> str:
    """A remark in words."""
    match remark:
        case Truncated():
            return f"{truncation(program)}, and so are the faults there."
        case Unchecked():
            return "what stuck threads would do next was not checked."
        case Trusted(functions):
            return f"opaque code was taken on trust: {', '.join(functions)}."
        case Tested():
            return "a barrier test orders nothing here, whatever it answers."
        case Overwritten(line, name, times):
            return (
                f"{line}: what is written to `{name}` is not read before it is written anew,"
                f" {count(times, 'time')}: right if only the last is meant to count."
            )
        case Unwritten(region):
            name, part = program.buffers[region.buffer].name, program.index_of(region)
            return (
                f"the output `{name}` is not all written, at least not `{part}`, and the grid has"
                " no other block to do so: right if the caller does not read that."
            )
        case Unused(line, name, is_product, times):
            what = "the product in" if is_product else "what is copied into"
            return (
                f"{line}: {what} `{name}` is not read, {count(times, 'time')}: right if nothing is"
                " meant to come of it."
            )
        case _:
            assert_never(remark)


# Two accesses.


def _race(program: Program, fault: Race) -> Finding:
    first, second, buffer = fault.older, fault.newer, fault.buffer
    verb = "overwritten" if fault.newer_writes else "read"
    doing = "written" if fault.older_writes else "read"
    return Finding(
        FindingKind.RACE, (second, first),
        f"{_place(buffer, first, second)} is {verb} by {_agent(program, second)} while it may"
        f" still be {doing} by {_agent(program, first)}: {_why_unordered(program, first, second)}"
        + _if_rounded(program, buffer, first, second),
        _order_them(program, first, second), buffer.name, _slot(buffer, first, second),
    )  # fmt: skip


def _missing_commit(program: Program, fault: MissingCommit) -> Finding:
    first, second, buffer = fault.older, fault.newer, fault.buffer
    does = "overwrites" if fault.newer_writes else "reads"
    what = "wrote" if fault.older_writes else "read"
    remedy = "Call commit_smem after the ordinary access, before others are let at it."
    if buffer.space is Space.GMEM:
        remedy = "commit_smem is for SMEM only: copy to GMEM from SMEM, and wait for the copy."
    return Finding(
        FindingKind.MISSING_COMMIT, (second, first),
        f"{_agent(program, second)} {does} {_place(buffer, first, second)}, which"
        f" {thread_name(program, first.thread)} {what} with ordinary accesses, and no commit_smem"
        " stands between: the two may be seen in another order."
        + _if_rounded(program, buffer, first, second),
        remedy, buffer.name, _slot(buffer, first, second),
    )  # fmt: skip


def _why_unordered(program: Program, first: Op, second: Op) -> str:
    who, other = (thread_name(program, op.thread) for op in (first, second))
    if first.kind == Kind.LOAD:
        name = "its barrier"
        if first.barrier is not None:
            name = _barrier(program, *first.place)
        return (
            f"the copy has landed when phase {first.phase} of {name} is over, and {other} has not"
            " waited for that."
        )
    if first.kind == Kind.STORE:
        return (
            f"the copy is over once a wait_smem_to_gmem of {who} that covers its group returns,"
            " and nothing makes that come first."
        )
    if first.kind == Kind.WGMMA:
        return (
            f"the product is over once a wgmma_wait of {who} that covers it returns, and nothing"
            " makes that come first."
        )
    if first.thread == second.thread:
        return "nothing puts them in order."
    return f"nothing that {who} does after it is waited for by {other} before."


def _order_them(program: Program, first: Op, second: Op) -> str:
    who, other = (thread_name(program, op.thread) for op in (first, second))
    across = f", then arrive on a barrier on which {other} waits" if who != other else ""
    if first.kind == Kind.LOAD:
        elsewhere = f", or in a thread that then arrives on a barrier on which {other} waits"
        elsewhere = elsewhere if len(program.threads) > 1 else ""
        return f"Call barrier_wait on that barrier in {other}{elsewhere}, before the access."
    if first.kind == Kind.STORE:
        return f"Call wait_smem_to_gmem(0) in {who}{across}, before the access."
    if first.kind == Kind.WGMMA:
        return (
            f"Call wgmma_wait(0) in {who}{across}, before the access; in a pipeline, leave as"
            " many products in flight as delay_release says, and no more."
        )
    return f"Let {who}, after its access, arrive on a barrier on which {other} waits before."


# One access.


def _uninitialized(program: Program, fault: Uninitialized) -> Finding:
    op, buffer = fault.op, fault.buffer
    return Finding(
        FindingKind.UNINITIALIZED_READ, (op,),
        f"{_agent(program, op)} reads {_place(buffer, op)}, of which at least a part has been"
        " written by nothing before." + _if_rounded(program, buffer, op),
        "Write it first, or let a copy into it land.", buffer.name, _slot(buffer, op),
    )  # fmt: skip


def _lost_write(program: Program, fault: LostWrite) -> Finding:
    op, buffer = fault.op, fault.buffer
    also, leave_out = "", "leave the write out."
    if fault.is_useful:
        also = (
            " What this line writes at other steps is read: so a last read is missing, or the line"
            " runs once too often, which does no harm."
        )
        leave_out = "leave out this write (pl.when)."
    return Finding(
        FindingKind.LOST_STORE, (op,),
        f"{_agent(program, op)} writes {_place(buffer, op)}, and nothing reads it before it is"
        f" written over or ceases to exist: the result is lost.{also}"
        + _if_rounded(program, buffer, op),
        f"Store it with copy_smem_to_gmem, or {leave_out}", buffer.name, _slot(buffer, op),
    )  # fmt: skip


def _outliving(program: Program, fault: Outliving) -> Finding:
    late, taker = fault.late, fault.taker
    name = program.buffers[late.reads[0].buffer].name
    if late.kind == Kind.STORE:
        kind, what, missing = FindingKind.LOST_STORE, "copy", "wait_smem_to_gmem"
        remedy = (
            "Call wait_smem_to_gmem(0) (after commit_smem_to_gmem_group, if the copy has"
            " commit_group=False) before its memory is given to others, or the kernel ends."
        )
    else:
        kind, what, missing = FindingKind.RACE, "product", "wgmma_wait"
        remedy = "Call wgmma_wait(0), or read the accumulator, before the next scope begins."
    ceases = "ceases to exist" if taker is None else "is given to the next scope"
    return Finding(
        kind, (late,) if taker is None else (taker, late),
        f"`{name}` {ceases} while this {what} of {thread_name(program, late.thread)} may still read"
        f" it: no {missing} after it covers it.",
        remedy, name,
    )  # fmt: skip


# Bounds.


def _outside_buffer(program: Program, fault: OutsideBuffer) -> Finding:
    op, region, axis = fault.op, fault.region, fault.axis
    buffer, (start, stop) = program.buffers[region.buffer], region.box[axis]
    size, is_write = buffer.shape[axis], region in op.writes
    indices = f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"
    follows = f"it {'overwrites' if is_write else 'gets'} what is not the array's"
    remedy = f"Keep the indices from 0 to {size - 1}, or give the axis more."
    if buffer.space is Space.GMEM:
        remedy = (
            f"Leave out what is not from 0 to {size - 1}, or copy through SMEM: a copy's engine"
            " leaves it out in GMEM."
        )
    elif stop - start == 1:
        remedy = (
            f"Take the index modulo {size}, as lax.rem does of what is not negative, or give the"
            " axis more."
        )
    return Finding(
        FindingKind.OUT_OF_BOUNDS, (op,),
        f"{_in_step(op)}{_agent(program, op)} {'writes' if is_write else 'reads'} {_named(buffer)}"
        f" at {indices} of axis {axis}, which has {size} ({_range(size)}): {follows}.",
        remedy, buffer.name,
    )  # fmt: skip


def _outside_barriers(program: Program, fault: OutsideBarriers) -> Finding:
    op = fault.op
    assert op.barrier is not None
    barrier = program.barriers[op.barrier]
    does = {Kind.WAIT: "waits", Kind.TEST: "tests"}.get(op.kind, "arrives")
    return Finding(
        FindingKind.OUT_OF_BOUNDS, (op,),
        f"{_in_step(op)}{_agent(program, op)} {does} on `{barrier.name}` at index {op.index}, but"
        f" the array has {count(barrier.count, 'barrier')} ({_range(barrier.count)}): it takes for"
        " a barrier what is none, or another's.",
        f"Take the index modulo {barrier.count}, as lax.rem does of what is not negative, or give"
        " the array more barriers.",
        barrier.name,
    )  # fmt: skip


def _range(size: int) -> str:
    """The indices of an axis."""
    return f"0 to {size - 1}" if size > 1 else "0 only" if size else "none"


def _in_step(op: Op) -> str:
    return f"in {step_name(op.step)} " if op.step else ""


# Barriers.


def _early_arrival(program: Program, fault: EarlyArrival) -> Finding:
    name, number = _barrier(program, fault.barrier, fault.index), fault.number
    why = "which others may not have made by then"
    if fault.bytes_missing:
        why = "while the bytes of that phase may still be on their way"
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.arrival, fault.before),
        f"This arrival on {name} is meant for its phase {number}, but nothing makes it come"
        f" after phase {number - 1} is complete: it takes {count(fault.expects, 'arrival')},"
        f" {why}, so this one may count there, and whoever waits is let go too early.",
        f"Wait for phase {number - 1} of {name} first, or have it expect as many arrivals as"
        " are made in a phase.",
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _lapped_wait(program: Program, fault: LappedWait) -> Finding:
    name, number = _barrier(program, fault.barrier, fault.index), fault.number
    who = thread_name(program, fault.wait.thread)
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.wait, fault.last_arrival),
        f"{who} can be lapped: its wait for phase {number - 1} of {name} may come when"
        f" phase {number} is complete too, and since a wait sees the parity of a phase"
        f" only ({number - 1} and {number + 1} look alike), it then waits for a phase"
        f" {number + 1} that has not come.",
        f"Let {who} arrive on a barrier after this wait, and wait for that before"
        f" phase {number} of {name} gets its last arrival.",
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _incomplete_phase(program: Program, fault: IncompletePhase) -> Finding:
    return Finding(
        FindingKind.BARRIER_MISUSE, fault.arrivals,
        f"{_barrier(program, fault.barrier, fault.index)} is left with"
        f" {count(fault.count, 'arrival')} of the {fault.expects} that a phase takes: they complete"
        " none.",
        "Let it expect as many arrivals as are made in a phase, or make them all.",
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _unawaited_load(program: Program, fault: UnawaitedLoad) -> Finding:
    name = _barrier(program, fault.barrier, fault.index)
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.load,),
        f"Nothing waits for this copy: its bytes may land on {name} and in SMEM when both"
        " have ceased to exist.",
        f"Wait on {name}, or do not make the copy.",
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _deadlock(program: Program, fault: Deadlock) -> Finding:
    number = len(fault.threads)
    reasons = "; ".join(_why_stuck(program, stuck) for stuck in fault.threads)
    return Finding(
        FindingKind.DEADLOCK, tuple(stuck.op for stuck in fault.threads),
        f"{count(number, 'thread')} {'waits' if number == 1 else 'wait'} for ever: {reasons}.",
        "Each phase that is waited for needs all its arrivals, from threads that can come to"
        " make them: add the missing arrival, or let the barrier expect fewer, or move an"
        " arrival before the wait that holds it up.",
    )  # fmt: skip


def _why_stuck(program: Program, stuck: Stuck) -> str:
    op, who = stuck.op, thread_name(program, stuck.op.thread)
    if op.barrier is None:
        return f"{who} begins a scope that all threads share, to which not all others come"
    has = f"has {stuck.arrivals} of {count(stuck.expects, 'arrival')}"
    if stuck.arrivals >= stuck.expects:
        has = "has its arrivals but not the peers' parts of its multicast copy"
    hope = "no thread makes another"
    if stuck.coming:
        places = (
            thread_name(program, op.thread) + (f" at {op.line}" if op.line else "")
            for op in stuck.coming
        )
        hope = f"the next comes from {', '.join(places)}, which is stuck"
    name = _barrier(program, *op.place)
    return f"{who} waits for phase {op.phase} of {name}, which {has}, and {hope}"


# Resources.


def _too_much_memory(program: Program, fault: TooMuchMemory) -> Finding:
    mine = [b for b in program.buffers if b.space is Space.SMEM and not b.block]
    terms = [f"{b.bytes:,} ({b.name})" for b in mine]
    singles = sum(barrier.count for barrier in program.barriers if not barrier.block)
    terms += [f"{8 * singles:,} ({count(singles, 'barrier')})"] if singles else []
    return Finding(
        FindingKind.RESOURCE, (),
        f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can have"
        f" {fault.limit:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot be"
        " launched.",
        "Take fewer slots, smaller tiles, or scopes that do not live at the same time.",
    )  # fmt: skip


def _too_many_registers(fault: TooManyRegisters) -> Finding:
    terms, each = " + ".join(map(str, fault.asked)), len(fault.asked)
    return Finding(
        FindingKind.RESOURCE, (),
        f"The threads ask for {terms} = {sum(fault.asked)} registers of a lane, and the block"
        f" begins with {each} x {fault.given} = {each * fault.given}: who asks last waits for"
        " ever.",
        "Let the memory thread give up more, or the compute threads ask for less.",
    )  # fmt: skip


def _spill(program: Program, fault: Spill) -> Finding:
    return Finding(
        FindingKind.RESOURCE, (),
        f"The accumulators of {thread_name(program, fault.thread)} take {fault.needed} registers a"
        f" lane at once, and it has {fault.limit}: they spill to local memory.",
        "Take a smaller tile, or share it among more compute threads.",
    )  # fmt: skip


# Names.


def _agent(program: Program, op: Op) -> str:
    """Who it is that accesses memory for this op."""
    who = thread_name(program, op.thread)
    return who if op.kind.engine is None else f"the {op.kind} of {who}"


def _named(buffer: Buffer) -> str:
    """The buffer's name, with its block's number if that is not the first."""
    return f"`{buffer.name}`" + (f" of block {buffer.block}" if buffer.block else "")


def _slot(buffer: Buffer, *ops: Op) -> int | None:
    """The slot of the buffer's ring that all these ops are in, if they are in one."""
    boxes = [r.box for op in ops for r in op.reads + op.writes if r.buffer == buffer.id]
    slots = {box[0][0] for box in boxes} if buffer.slots else set[int]()
    return slots.pop() if len(slots) == 1 else None


def _place(buffer: Buffer, *ops: Op) -> str:
    """The buffer's name, with its slot if the ops are in one."""
    slot = _slot(buffer, *ops)
    return ("" if slot is None else f"slot {slot} of ") + _named(buffer)


def _if_rounded(program: Program, buffer: Buffer, *ops: Op) -> str:
    """A sentence on regions of these ops that are larger than what is accessed, if any are."""
    regions = (r for op in ops for r in op.reads + op.writes if r.buffer == buffer.id)
    names = [program.index_of(region) for region in dict.fromkeys(regions) if not region.is_exact]
    if not names:
        return ""
    boxes = " and to ".join(f"`{name}`" for name in names)
    return f" It may be false: what is accessed is no box, and was rounded up to {boxes}."


def _where(program: Program, barrier: int, index: int) -> tuple[str, int | None]:
    """The name of a barrier's array, and its index there if it has several."""
    array = program.barriers[barrier]
    return array.name, index if array.count > 1 else None


def _barrier(program: Program, barrier: int, index: int) -> str:
    """A single barrier's name, as a report has it."""
    array, at = _where(program, barrier, index)
    each = "" if at is None else f"[{at}]"
    owner = program.barriers[barrier].block
    block = f" of block {owner}" if program.blocks > 1 else ""
    return f"`{array}{each}`{block}"
