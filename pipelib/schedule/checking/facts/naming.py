"""How findings and notes name threads, memory and barriers."""

from pipelib.schedule.program import Buffer, Op, Program
from pipelib.schedule.report import thread_name

#: What a report calls the memory that reductions across warps share.
SCRATCH = "the scratch of reductions"


def lines(*lines: str | None) -> str:
    """Lines of source, each once."""
    return " and ".join(dict.fromkeys(line or "an unknown line" for line in lines))


def agent(program: Program, op: Op) -> str:
    """Who it is that accesses memory for this op."""
    who = thread_name(program, op.thread)
    return who if op.kind.engine is None else f"the {op.kind} of {who}"


def named(buffer: Buffer) -> str:
    """The buffer's name, with its block's number if that is not the first."""
    return f"`{buffer.name}`" + (f" of block {buffer.block}" if buffer.block else "")


def slot_of(buffer: Buffer, *ops: Op) -> int | None:
    """The slot of the buffer's ring that all these ops are in, if they are in one."""
    boxes = [r.box for op in ops for r in op.reads + op.writes if r.buffer == buffer.id]
    slots = {box[0][0] for box in boxes} if buffer.slots else set[int]()
    return slots.pop() if len(slots) == 1 else None


def place(buffer: Buffer, *ops: Op) -> str:
    """The buffer's name, with its slot if the ops are in one."""
    slot = slot_of(buffer, *ops)
    return ("" if slot is None else f"slot {slot} of ") + named(buffer)


def if_rounded(program: Program, buffer: Buffer, *ops: Op) -> str:
    """A sentence on regions of these ops that are larger than what is accessed, if any are."""
    regions = (r for op in ops for r in op.reads + op.writes if r.buffer == buffer.id)
    names = [program.index_of(region) for region in dict.fromkeys(regions) if not region.is_exact]
    if not names:
        return ""
    boxes = " and to ".join(f"`{name}`" for name in names)
    return f" It may be false: what is accessed is no box, and was rounded up to {boxes}."


def where(program: Program, barrier: int, index: int) -> tuple[str, int | None]:
    """The name of a barrier's array, and its index there if it has several."""
    array = program.barriers[barrier]
    return array.name, index if array.count > 1 else None


def barrier_name(program: Program, barrier: int, index: int) -> str:
    """A single barrier's name, as a report has it."""
    array, at = where(program, barrier, index)
    each = "" if at is None else f"[{at}]"
    owner = program.barriers[barrier].block
    block = f" of block {owner}" if program.blocks > 1 and owner is not None else ""
    return f"`{array}{each}`{block}"
