"""`finding` and `note`: what a report says of each fact.

The model. A cause says who does what to which memory, and by what the two would have been in order.
A remedy names the call that is missing and the thread that has to make it. All sentences of the
check are here, and nothing is decided here: `facts` says what was found. Source: this project's
own.
"""

from typing import assert_never

from pipelib.schedule.checking.facts import (
    BeyondArray,
    BlocksMeet,
    BlocksRace,
    Deadlock,
    EarlyAccess,
    EarlyArrival,
    EarlyExit,
    EarlySignal,
    Fault,
    IncompletePhase,
    LanesRace,
    LanesRacePerhaps,
    LappedWait,
    LostWrite,
    MissingCommit,
    MixedTile,
    NoRegisters,
    Outliving,
    OutsideBarriers,
    OutsideBuffer,
    Overshoot,
    Overwritten,
    Race,
    Remark,
    SharedScratch,
    SharedScratchPerhaps,
    Signalled,
    Spill,
    Stuck,
    TakenBarrier,
    Tested,
    TooManyBarriers,
    TooManyColumns,
    TooManyRegisters,
    TooMuchMemory,
    Truncated,
    Trusted,
    UnawaitedLoad,
    Unchecked,
    Uninitialized,
    Unobserved,
    Unplaced,
    Unused,
    Unwritten,
    UnwrittenOutput,
    WrongWay,
)
from pipelib.schedule.machine import COLUMN_BYTES
from pipelib.schedule.program import Action, Buffer, Engine, Kind, Op, Program, Space, step_name
from pipelib.schedule.report import (
    Finding,
    FindingKind,
    block_name,
    count,
    thread_name,
    truncation,
)

#: What a report calls the memory that reductions across warps share.
SCRATCH = "the scratch of reductions"


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
        case EarlyAccess():
            return _early_access(program, fault)
        case MixedTile():
            return _mixed_tile(program, fault)
        case SharedScratch():
            return _shared_scratch(program, fault)
        case LanesRace():
            return _lanes_race(program, fault)
        case OutsideBuffer():
            return _outside_buffer(program, fault)
        case OutsideBarriers():
            return _outside_barriers(program, fault)
        case BeyondArray():
            return _beyond_array(program, fault)
        case EarlyArrival():
            return _early_arrival(program, fault)
        case LappedWait():
            return _lapped_wait(program, fault)
        case IncompletePhase():
            return _incomplete_phase(program, fault)
        case UnawaitedLoad():
            return _unawaited_load(program, fault)
        case EarlyExit():
            return _early_exit(program, fault)
        case WrongWay():
            return _wrong_way(program, fault)
        case TooManyBarriers(barrier, limit):
            return _too_many_barriers(program, barrier, limit)
        case TakenBarrier():
            return _taken_barrier(program, fault)
        case Deadlock():
            return _deadlock(program, fault)
        case BlocksRace():
            return _blocks_race(fault)
        case UnwrittenOutput():
            return _unwritten_output(program, fault)
        case TooMuchMemory():
            return _too_much_memory(program, fault)
        case TooManyColumns():
            return _too_many_columns(program, fault)
        case TooManyRegisters():
            return _too_many_registers(fault)
        case Spill():
            return _spill(program, fault)
        case _:
            assert_never(fault)


def moment(program: Program, fault: Fault) -> str:
    """What happens at the moment at which a fault with a clash shows."""
    match fault:
        case Race(newer=newer, older=older):
            agents = [_agent(program, op) for op in (older, newer)]
            flying = [op.kind.engine is not None for op in (older, newer)]
            if all(flying):
                return f"{agents[0]} and {agents[1]} are in flight at once."
            if not any(flying):
                return f"{agents[0]} and {agents[1]} may access it in either order, or at once."
            agents = agents if flying[0] else agents[::-1]
            return f"{agents[0]} is in flight, and {agents[1]} goes on to its access."
        case EarlyAccess(op=op):
            does = "goes on to its access" if op.kind.engine is None else "is in flight"
            return f"{_agent(program, op)} {does}, and the kernel before has not ended."
        case SharedScratch(newer=newer, older=older):
            who, other = (thread_name(program, op.thread) for op in (older, newer))
            return f"{who} and {other} go on to their reductions, and may use the scratch at once."
        case LanesRace(newer=newer, older=older):
            older_access = f"the {older.kind} at {older.line or 'an unknown line'}"
            if newer.kind is Kind.LOAD:
                return (
                    f"{_agent(program, newer)} is in flight, and one of the thread's lanes has yet"
                    f" to make {older_access}."
                )
            return (
                f"one lane of {thread_name(program, newer.thread)} goes on to its access, and"
                f" another has yet to make {older_access}."
            )
        case Outliving(late, _):
            return f"the {late.kind} is in flight, and its memory is given to the next scope."
        case EarlyArrival(arrival, _, barrier, index, number):
            return (
                f"phase {number - 1} of {_barrier(program, barrier, index)} is not complete, and"
                f" {thread_name(program, arrival.thread)} arrives for phase {number}."
            )
        case LappedWait(wait, _, barrier, index, number):
            return (
                f"phase {number} of {_barrier(program, barrier, index)} is complete, and"
                f" {thread_name(program, wait.thread)} has yet to wait for phase {number - 1}."
            )
        case EarlyExit(arrival, _, _, block):
            return f"block {block} has ended, and {thread_name(program, arrival.thread)} arrives."
        case Deadlock():
            return "no thread can go on."
        case _:
            raise AssertionError(f"{type(fault).__name__} has no clash")


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
        case Unplaced(line, name, times):
            return (
                f"{line}: where this accesses `{name}` depends on what a tensor holds,"
                f" {count(times, 'time')}: it was taken to be within the array, and compared with"
                " no other access."
            )
        case Signalled(names):
            return (
                f"semaphores order nothing here, since others may signal them, or several wait and"
                f" take off what they hold: {', '.join(names)}."
            )
        case Unobserved(barrier, phases):
            name = program.barriers[barrier].name
            return (
                f"nobody waits for the last {count(phases, 'phase')} of `{name}`: harmless here,"
                " since the kernel ends, but JAX 0.11's interpreter stops."
            )
        case Overshoot(kind, line, name, times):
            what = "gets zeros only" if kind == Kind.LOAD else "stores nothing"
            return (
                f"{line}: this {kind} is of a tile behind the end of `{name}` and {what},"
                f" {count(times, 'time')}: right if a number of steps was rounded up."
            )
        case BlocksMeet():
            return _blocks_meet(remark)
        case SharedScratchPerhaps(older, newer):
            return (
                f"{_lines(older, newer)}: two threads reduce arrays, in no order: a race on the"
                " scratch that all threads of a block share, if the layout that Mosaic GPU chooses"
                " spreads the reduced axes over several warps. A plgpu.layout_cast before the"
                " reductions would say which layout it is."
            )
        case LanesRacePerhaps(older, newer, name):
            return (
                f"{_lines(older, newer)}: one thread accesses `{name}` twice, and its lanes do not"
                " meet between (unsafe_no_auto_barriers): right if each lane accesses the same"
                " elements both times, which depends on layouts that are not known here."
            )
        case EarlySignal(line, name, write):
            at = f" ({write})" if write else ""
            return (
                f"{line or 'at an unknown line'}: the next kernel may start from here on, and"
                f" `{name}` may be written later{at}: right if that kernel calls"
                f" griddepcontrol_wait before it reads `{name}`, since this wait ends when the"
                " kernel here has ended."
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
        f" still be {doing} by {_agent(program, first)}: {_why_unordered(program, fault)}"
        + _if_rounded(program, buffer, first, second),
        _order_them(program, fault), buffer.name, _slot(buffer, first, second),
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
        remedy, buffer.name, _slot(buffer, first, second), is_strict=not fault.older_writes,
    )  # fmt: skip


def _why_unordered(program: Program, fault: Race) -> str:
    first, second = fault.older, fault.newer
    who, other = (thread_name(program, op.thread) for op in (first, second))
    if fault.is_unfenced and _has_plain_arrivals(program):
        return (
            f"{other} waits for what {who} does after it, but on a barrier without"
            " orders_tensor_core, which puts no accesses of TMEM in order."
        )
    if fault.is_unfenced:
        return (
            f"{other} waits for a copy that starts after {who} has gone on, and a copy's arrival"
            " puts no accesses of TMEM in order."
        )
    if first.kind == Kind.LOAD:
        name = "its barrier"
        if first.barrier is not None:
            name = _barrier(program, _landing_on(first, fault.buffer), first.index)
        return (
            f"the copy has landed when phase {first.phase} of {name} is over, and {other} has not"
            " waited for that."
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
            f"the product is over once a wgmma_wait of {who} that covers it returns, and nothing"
            " makes that come first."
        )
    if first.kind.engine is Engine.TENSOR_CORE:
        what = "product" if first.kind is Kind.TCGEN05_MMA else "copy"
        return (
            f"the {what} is over once a tcgen05_commit_arrive of {who} after it has arrived on its"
            f" barrier, and {other} has not waited for that."
        )
    if first.kind.engine is Engine.TMEM:
        call, what = _TMEM_WAITS[first.kind]
        return (
            f"the {what} is over once a {call} of {who} returns, and nothing makes that come first."
        )
    if first.thread == second.thread:
        return "nothing puts them in order."
    return f"nothing that {who} does after it is waited for by {other} before."


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


def _order_them(program: Program, fault: Race) -> str:
    first, second = fault.older, fault.newer
    who, other = (thread_name(program, op.thread) for op in (first, second))
    if fault.is_unfenced and _has_plain_arrivals(program):
        return "Make that barrier with orders_tensor_core=True."
    if fault.is_unfenced:
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
            f"Call wait_gmem_to_smem(0) in {who}{across}, before the access; in a pipeline, leave"
            " as many copies in flight as have begun after the step's own, and no more."
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
            f"Give tcgen05_mma a barrier, or call tcgen05_commit_arrive after it in {who}, and call"
            f" barrier_wait on that barrier in {other}, before the access."
        )
    if first.kind.engine is Engine.TMEM:
        call, _ = _TMEM_WAITS[first.kind]
        return f"Call {call} in {who}{across}, before the access."
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
    if late.kind == Kind.CP_ASYNC:
        return _late_cp_async(program, late, taker)
    name = program.buffers[late.reads[0].buffer].name
    if late.kind == Kind.LOAD:
        assert taker is not None, "what lands after the end is told of its barrier"
        return _landing(program, late, taker)
    if late.kind == Kind.STORE:
        kind, what, missing = FindingKind.LOST_STORE, "copy", "wait_smem_to_gmem"
        remedy = (
            "Call wait_smem_to_gmem(0) (after commit_smem_to_gmem_group, if the copy has"
            " commit_group=False) before its memory is given to others, or the kernel ends."
        )
    else:
        kind, what, missing = FindingKind.RACE, "product", "wgmma_wait"
        remedy = "Call wgmma_wait(0), or read the accumulator, before the next scope begins."
        if late.kind is not Kind.WGMMA:
            missing = "wait for a commit"
            remedy = "Wait for a tcgen05_commit_arrive after it before the next scope begins."
    ceases = "ceases to exist" if taker is None else "is given to the next scope"
    return Finding(
        kind, (late,) if taker is None else (taker, late),
        f"`{name}` {ceases} while this {what} of {thread_name(program, late.thread)} may still read"
        f" it: no {missing} after it covers it.",
        remedy, name,
    )  # fmt: skip


def _late_cp_async(program: Program, late: Op, taker: Op | None) -> Finding:
    """A copy without a barrier that may land in memory which others have by then."""
    name, who = program.buffers[late.writes[0].buffer].name, thread_name(program, late.thread)
    ceases = "ceases to exist" if taker is None else "is given to the next scope"
    return Finding(
        FindingKind.RACE, (late,) if taker is None else (taker, late),
        f"`{name}` {ceases} while this copy of {who} may still write it: no wait_gmem_to_smem after"
        " it covers it.",
        "Call wait_gmem_to_smem(0) before its memory is given to others, or the kernel ends.", name,
    )  # fmt: skip


def _landing(program: Program, load: Op, taker: Op) -> Finding:
    name = program.buffers[load.writes[0].buffer].name
    barrier = _barrier(program, *load.place) if load.barrier is not None else "its barrier"
    return Finding(
        FindingKind.RACE, (taker, load),
        f"`{name}` is given to the next scope while this copy of"
        f" {thread_name(program, load.thread)} may still land in it:"
        f" {thread_name(program, taker.thread)} does not know that its phase of {barrier} is over.",
        f"Wait on {barrier} before the scope of `{name}` ends.", name,
    )  # fmt: skip


def _early_access(program: Program, fault: EarlyAccess) -> Finding:
    op, buffer, wait = fault.op, fault.buffer, fault.wait
    who = thread_name(program, op.thread)
    does, may = "read", "still write it"
    unless = f" It is right as it is only if no kernel before writes {_named(buffer)}."
    if fault.writes:
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
        f"{_named(buffer)} is {does} by {_agent(program, op)} while the kernel before may {may}:"
        " this kernel uses griddepcontrol_wait, so it may start before that one has ended, and"
        f" {why}.",
        f"Call griddepcontrol_wait in {who} before the access{across}.{unless}", buffer.name,
    )  # fmt: skip


def _mixed_tile(program: Program, fault: MixedTile) -> Finding:
    op, older = fault.op, fault.older
    buffer = program.buffers[op.whole[1].buffer]
    who, other = (thread_name(program, each.thread) for each in (op, older))
    tile, others = (f"`{program.index_of(each.whole[0])}`" for each in (op, older))
    axes = " and ".join(op.collective)
    return Finding(
        FindingKind.MIXED_TILE, (op, older),
        f"{who} and {other} share a load to {_place(buffer, op)} along the axis {axes} of the"
        f" cluster, but {other} copies its part of {others}, and {who} its part of {tile}: each of"
        " them gets a mixture of the two.",
        f"Let all blocks along {axes} name the same tile, without {axes} in its index, or leave"
        " collective_axes out, so that each block loads a tile of its own.",
        buffer.name, _slot(buffer, op),
    )  # fmt: skip


def _shared_scratch(program: Program, fault: SharedScratch) -> Finding:
    who, other = (thread_name(program, op.thread) for op in (fault.newer, fault.older))
    return Finding(
        FindingKind.RACE, (fault.newer, fault.older),
        f"{who} reduces an array across its warps while {other} may still do so: both pass parts of"
        " their results through the scratch in SMEM that Mosaic GPU gives to reductions, one for"
        f" all threads of a block, and nothing that {other} does after it is waited for by {who}"
        " before.",
        f"Let {other}, after its reduction, arrive on a barrier on which {who} waits before its"
        " own, and so in turn; or reduce within warps: the last axis of an array in"
        " plgpu.Layout.WGMMA.",
        SCRATCH,
    )  # fmt: skip


def _lanes_race(program: Program, fault: LanesRace) -> Finding:
    first, second, buffer = fault.older, fault.newer, fault.buffer
    who = thread_name(program, second.thread)
    verb = "overwritten" if fault.newer_writes else "read"
    doing = "written" if fault.older_writes else "read"
    which = f"the first access is in {first.layout}, the second in {second.layout}"
    if second.kind is Kind.LOAD:
        which = "one lane issues a load for all"
    return Finding(
        FindingKind.RACE, (second, first),
        f"{_place(buffer, first, second)} is {verb} by {_agent(program, second)} while other lanes"
        f" of that thread may not have {doing} it yet: {which}, and the lanes do not meet in"
        " between, since the kernel is compiled with unsafe_no_auto_barriers.",
        f"Call commit_smem in {who} between the two, where the lanes meet, or compile without"
        " unsafe_no_auto_barriers.",
        buffer.name, _slot(buffer, first, second),
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


def _beyond_array(program: Program, fault: BeyondArray) -> Finding:
    op, buffer = fault.op, program.buffers[fault.region.buffer]
    (start, stop), size = fault.region.box[fault.axis], buffer.shape[fault.axis]
    is_write = fault.region in op.writes
    indices = f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"
    follows = "it stores nothing" if is_write else "it gets zeros only"
    remedy = "Correct the index, or leave the copy out (pl.when)."
    if not is_write:
        remedy = (
            "Correct the index, or leave the copy out (pl.when); if zeros are meant, write them to"
            " SMEM."
        )
    return Finding(
        FindingKind.OUT_OF_BOUNDS, (op,),
        f"{_in_step(op)}{_agent(program, op)} {'writes' if is_write else 'reads'} {_named(buffer)}"
        f" at {indices} of axis {fault.axis}, which has {size} ({_range(size)}): all of that is"
        f" outside of the array, so {follows}, and no error says so.",
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
    cause = (
        f"Nothing waits for this copy: its bytes may land on {name} and in SMEM when both"
        " have ceased to exist."
    )
    remedy = f"Wait on {name}, or do not make the copy."
    if fault.load.kind is Kind.TCGEN05_COMMIT:
        cause = (
            f"Nothing waits for this commit, nor for a later one of its thread: products may still"
            f" run, and arrive on {name}, when the block has ended."
        )
        remedy = f"Wait on {name}, or on the barrier of a later commit."
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.load,), cause, remedy,
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _early_exit(program: Program, fault: EarlyExit) -> Finding:
    name, block = _barrier(program, fault.barrier, fault.index), fault.block
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.arrival,),
        f"Block {block} of the cluster may have ended when"
        f" {thread_name(program, fault.arrival.thread)} arrives on its {name}: the memory may be"
        " another block's by then.",
        f"Let a thread of block {block} wait for the last phase of {name} before it ends.",
        *_where(program, fault.barrier, fault.index),
    )  # fmt: skip


def _taken_barrier(program: Program, fault: TakenBarrier) -> Finding:
    number, threads = fault.number, program.per_block
    whose = f"the lanes of thread {number - 1} meet there" if number else "all threads meet there"
    return Finding(
        FindingKind.BARRIER_MISUSE, (fault.op,),
        f"{thread_name(program, fault.op.thread)} arrives on named barrier {number}, which Mosaic"
        f" GPU uses itself ({whose}): its arrivals and these count together.",
        f"Take a number from {threads + 1} to 15.", f"named barrier {number}",
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


def _why_stuck(program: Program, stuck: Stuck | NoRegisters) -> str:
    op, who = stuck.op, thread_name(program, stuck.op.thread)
    if isinstance(stuck, NoRegisters):
        return (
            f"{who} has {stuck.held} registers a lane and waits for {op.registers}, of which"
            f" {stuck.free} are free: no other thread comes to give up some"
        )
    if op.kind is Kind.AWAIT:
        name = _barrier(program, *op.place)
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
    name = _barrier(program, *op.place)
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


# Blocks of a grid.


def _blocks_race(fault: BlocksRace) -> Finding:
    (later, earlier), buffer = fault.programs, fault.buffer
    verb = "overwritten" if fault.newer_writes else "read"
    doing = "written" if fault.older_writes else "read"
    if fault.newer_writes and fault.older_writes:
        verb, doing = "written", "written too"
    who, other = (
        f"{_agent(program, op)} of {block_name(program)}"
        for program, op in ((later, fault.newer), (earlier, fault.older))
    )
    return Finding(
        FindingKind.RACE, (fault.newer, fault.older),
        f"{_named(buffer)} is {verb} by {who}, and a part of the same place is {doing} by {other}:"
        " nothing orders the blocks of one launch, so either may come first.",
        "Let each block write a part of its own (the block's index on every axis of the grid has to"
        " be in the index of the array), add with an atomic operation, or launch two kernels.",
        buffer.name, programs=fault.programs,
    )  # fmt: skip


def _unwritten_output(program: Program, fault: UnwrittenOutput) -> Finding:
    name = program.buffers[fault.region.buffer].name
    return Finding(
        FindingKind.UNWRITTEN_OUTPUT, (),
        f"No block of grid {program.grid} writes all of the output `{name}`, at least not"
        f" `{program.index_of(fault.region)}`: the caller gets there what the memory held before.",
        "Let the grid, or a block's loop, also cover that part (pl.cdiv rounds up a number of"
        " tiles), or make the output smaller.", name,
    )  # fmt: skip


def _blocks_meet(remark: BlocksMeet) -> str:
    why = "the blocks may wait for each other in a way that is not followed here"
    if remark.is_rounded:
        why = "what is accessed is no box, and was rounded up to one"
    return (
        f"{_lines(*remark.lines)}: two blocks of the grid may access the same part of"
        f" `{remark.buffer}`, one to write it, {count(remark.times, 'time')}: not judged, since"
        f" {why}."
    )


# Resources.


def _too_much_memory(program: Program, fault: TooMuchMemory) -> Finding:
    mine = [b for b in program.buffers if b.space is Space.SMEM and not b.block]
    terms = [f"{b.bytes:,} ({b.name})" for b in mine]
    singles = sum(barrier.count for barrier in program.barriers if not barrier.block)
    terms += [f"{8 * singles:,} ({count(singles, 'barrier')})"] if singles else []
    reserved = (program.scratch_bytes, SCRATCH), (program.profiler_bytes, "the profiler")
    terms += [f"{size:,} ({name})" for size, name in reserved if size]
    return Finding(
        FindingKind.RESOURCE, (),
        f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can have"
        f" {fault.limit:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot be"
        " launched.",
        "Take fewer slots, smaller tiles, or scopes that do not live at the same time.",
    )  # fmt: skip


def _wrong_way(program: Program, fault: WrongWay) -> Finding:
    op, who = fault.op, thread_name(program, fault.op.thread)
    asked, right = "a decrease", "increase"
    if op.action is Action.INCREASE:
        asked, right = "an increase", "decrease"
    return Finding(
        FindingKind.RESOURCE, (op,),
        f"{who} asks for {op.registers} registers a lane as {asked}, and it has {fault.held}: PTX"
        " gives that no meaning.",
        f'Ask with action="{right}", or for another number.',
    )  # fmt: skip


def _too_many_barriers(program: Program, barrier: int, limit: int) -> Finding:
    array = program.barriers[barrier]
    return Finding(
        FindingKind.RESOURCE, (),
        f"`{array.name}` has {array.count} barriers, and Mosaic GPU takes up to {limit} in one"
        " array, since their parities are the bits of one word: it does not compile.",
        "Take several arrays.", array.name,
    )  # fmt: skip


def _too_many_columns(program: Program, fault: TooManyColumns) -> Finding:
    mine = [b for b in program.buffers if b.space is Space.TMEM and not b.block]
    terms = " + ".join(f"{b.bytes // COLUMN_BYTES} ({b.name})" for b in mine)
    return Finding(
        FindingKind.RESOURCE, (),
        f"The block allocates {program.tmem_columns} columns of TMEM at once, and a block can have"
        f" {fault.limit}: {terms}; it cannot be launched.",
        "Take narrower tiles or fewer accumulators, or let some share memory (plgpu.RefUnion).",
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


def _lines(*lines: str | None) -> str:
    """Lines of source, each once."""
    return " and ".join(dict.fromkeys(line or "an unknown line" for line in lines))


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
    block = f" of block {owner}" if program.blocks > 1 and owner is not None else ""
    return f"`{array}{each}`{block}"
