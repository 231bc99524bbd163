"""What a report says of accesses that collide, come to nothing or find nothing there.

The model. Each function gives what `Findings.add` takes: the kind, the ops (the newer first), a
sentence on the cause, one on the remedy, the buffer's name and the slot. A cause says who does what
to which memory, and by what the two would have been in order; a remedy names the call that is
missing and the thread that has to make it. Source: this project's own.
"""

from typing import Any

from pipelib.schedule.cells import Access
from pipelib.schedule.order import Order
from pipelib.schedule.program import Buffer, Op, Program, Region, step_name
from pipelib.schedule.report import count, thread_name

Words = tuple[Any, ...]


def race(order: Order, older: Access, newer: Access, buffer: Buffer) -> Words:
    """Of two accesses in no order."""
    first, second = older.op, newer.op
    verb = "overwritten" if newer.writes else "read"
    doing = "written" if older.writes else "read"
    return (
        "race", (second, first),
        f"{_place(buffer, first, second)} is {verb} by {agent(order.program, second)} while it may"
        f" still be {doing} by {agent(order.program, first)}:"
        f" {_why_unordered(order, first, second)}"
        + _if_rounded(order.program, buffer, first, second),
        _order_them(order.program, first, second), buffer.name, _slot(buffer, first, second),
    )  # fmt: skip


def missing_commit(program: Program, older: Access, newer: Access, buffer: Buffer) -> Words:
    """Of an ordinary access and an asynchronous one in order, but with no fence between."""
    first, second = older.op, newer.op
    does = "overwrites" if newer.writes else "reads"
    what = "wrote" if older.writes else "read"
    remedy = "Call commit_smem after the ordinary access, before others are let at it."
    if buffer.space == "gmem":
        remedy = "commit_smem is for SMEM only: copy to GMEM from SMEM, and wait for the copy."
    return (
        "missing-commit", (second, first),
        f"{agent(program, second)} {does} {_place(buffer, first, second)}, which"
        f" {thread_name(program, first.thread)} {what} with ordinary accesses, and no commit_smem"
        " stands between: the two may be seen in another order."
        + _if_rounded(program, buffer, first, second),
        remedy, buffer.name, _slot(buffer, first, second),
    )  # fmt: skip


def alone(kind: str, program: Program, access: Access, buffer: Buffer, is_useful: bool) -> Words:
    """Of a read of what nothing wrote, or a write of what nothing reads.

    `is_useful` if what the write's line writes at other steps is read.
    """
    op = access.op
    verb, what, remedy = _ALONE[kind]
    cause = f"{agent(program, op)} {verb} {_place(buffer, op)}, {what}."
    if kind == "lost-store" and is_useful:
        cause += (
            " What this line writes at other steps is read: so a last read is missing, or the line"
            " runs once too often, which does no harm."
        )
        remedy = remedy.replace("leave the write out.", "leave out this write (pl.when).")
    cause += _if_rounded(program, buffer, op)
    return kind, (op,), cause, remedy, buffer.name, _slot(buffer, op)


_ALONE = {
    "uninitialized-read": (
        "reads", "of which at least a part has been written by nothing before",
        "Write it first, or let a copy into it land.",
    ),
    "lost-store": (
        "writes",
        "and nothing reads it before it is written over or ceases to exist: the result is lost",
        "Store it with copy_smem_to_gmem, or leave the write out.",
    ),
}  # fmt: skip


def outside(program: Program, op: Op, region: Region, axis: int) -> Words:
    """Of an access of a region that is not within its buffer on this axis."""
    buffer, (start, stop) = program.buffers[region.buffer], region.box[axis]
    size, is_write = buffer.shape[axis], region in op.writes
    indices = f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"
    follows = f"it {'overwrites' if is_write else 'gets'} what is not the array's"
    remedy = f"Keep the indices from 0 to {size - 1}, or give the axis more."
    if buffer.space == "gmem":
        remedy = (
            f"Leave out what is not from 0 to {size - 1}, or copy through SMEM: a copy's engine"
            " leaves it out in GMEM."
        )
    elif stop - start == 1:
        remedy = (
            f"Take the index modulo {size}, as lax.rem does of what is not negative, or give the"
            " axis more."
        )
    return (
        "out-of-bounds", (op,),
        f"{_in_step(op)}{agent(program, op)} {'writes' if is_write else 'reads'} {_named(buffer)}"
        f" at {indices} of axis {axis}, which has {size} ({_range(size)}): {follows}.",
        remedy, buffer.name,
    )  # fmt: skip


def no_barrier(program: Program, op: Op) -> Words:
    """Of an op on a barrier that its array does not have."""
    barrier = program.barriers[op.barrier]
    does = {"wait": "waits", "test": "tests"}.get(op.kind, "arrives")
    return (
        "out-of-bounds", (op,),
        f"{_in_step(op)}{agent(program, op)} {does} on `{barrier.name}` at index {op.index}, but"
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


def _why_unordered(order: Order, first: Op, second: Op) -> str:
    who, other = (thread_name(order.program, op.thread) for op in (first, second))
    if first.kind == "load":
        place = order.places.get((first.barrier, first.index))
        name = order.name(place) if place else "its barrier"
        return (
            f"the copy has landed when phase {first.phase} of {name} is over, and {other} has not"
            " waited for that."
        )
    if first.kind == "store":
        return (
            f"the copy is over once a wait_smem_to_gmem of {who} that covers its group returns,"
            " and nothing makes that come first."
        )
    if first.kind == "wgmma":
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
    if first.kind == "load":
        elsewhere = f", or in a thread that then arrives on a barrier on which {other} waits"
        elsewhere = elsewhere if len(program.threads) > 1 else ""
        return f"Call barrier_wait on that barrier in {other}{elsewhere}, before the access."
    if first.kind == "store":
        return f"Call wait_smem_to_gmem(0) in {who}{across}, before the access."
    if first.kind == "wgmma":
        return (
            f"Call wgmma_wait(0) in {who}{across}, before the access; in a pipeline, leave as"
            " many products in flight as delay_release says, and no more."
        )
    return f"Let {who}, after its access, arrive on a barrier on which {other} waits before."


def _if_rounded(program: Program, buffer: Buffer, *ops: Op) -> str:
    """A sentence on regions of these ops that are larger than what is accessed, if any are."""
    regions = (r for op in ops for r in op.reads + op.writes if r.buffer == buffer.id)
    names = [program.index_of(region) for region in dict.fromkeys(regions) if not region.is_exact]
    if not names:
        return ""
    boxes = " and to ".join(f"`{name}`" for name in names)
    return f" It may be false: what is accessed is no box, and was rounded up to {boxes}."


def agent(program: Program, op: Op) -> str:
    """Who it is that accesses memory for this op."""
    who = thread_name(program, op.thread)
    engine = {"load": "the load", "store": "the store", "wgmma": "the wgmma"}.get(op.kind)
    return f"{engine} of {who}" if engine else who


def _slot(buffer: Buffer, *ops: Op) -> int | None:
    """The slot of the buffer's ring that all these ops are in, if they are in one."""
    boxes = [r.box for op in ops for r in op.reads + op.writes if r.buffer == buffer.id]
    slots = {box[0][0] for box in boxes} if buffer.slots else ()
    return slots.pop() if len(slots) == 1 else None


def _place(buffer: Buffer, *ops: Op) -> str:
    """The buffer's name, with its slot if the ops are in one."""
    slot = _slot(buffer, *ops)
    return ("" if slot is None else f"slot {slot} of ") + _named(buffer)


def _named(buffer: Buffer) -> str:
    """The buffer's name, with its block's number if that is not the first."""
    return f"`{buffer.name}`" + (f" of block {buffer.block}" if buffer.block else "")
