"""Whether a block's shared memory and registers fit.

The model. SMEM is what `Program.smem_bytes` says, at most at once; the sum has the terms of the
cluster's first block, since the others allocate the same. Registers are those that threads ask
for, and those that accumulators take at least. A block begins with equally many for each lane, a
multiple of 8, and what its threads ask for later (`setmaxnreg`) must be among these: who finds too
few waits, and no other block's end brings more. Not covered: registers that the compiler needs.
Limits of a block: CUDA C++ Programming Guide, technical specifications for compute capability 9.0;
the pool of a block: PTX ISA, `setmaxnreg`.
"""

from pipelib.schedule.program import Program
from pipelib.schedule.report import Findings, count, thread_name

SMEM_BYTES, REGISTERS, THREAD_REGISTERS = 232_448, 65_536, 255
_LANES, _REGISTER_BYTES, _REGISTER_UNIT, _MOST_REGISTERS = 128, 4, 8, 256


def shared_memory(program: Program, findings: Findings) -> None:
    """Adds a finding, with the sum, if a block allocates more SMEM than it can have."""
    if program.smem_bytes <= SMEM_BYTES:
        return
    mine = [b for b in program.buffers if b.space == "smem" and not b.block]
    terms = [f"{b.bytes:,} ({b.name})" for b in mine]
    singles = sum(barrier.count for barrier in program.barriers if not barrier.block)
    terms += [f"{8 * singles:,} ({count(singles, 'barrier')})"] if singles else []
    findings.add(
        "resource", (),
        f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can have"
        f" {SMEM_BYTES:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot be"
        " launched.",
        "Take fewer slots, smaller tiles, or scopes that do not live at the same time.",
    )  # fmt: skip


def registers(program: Program, block: int, findings: Findings) -> None:
    """Adds findings if the block's threads ask for too many, or accumulators need too many."""
    each = len(program.threads) // program.blocks
    threads = range(block * each, (block + 1) * each)
    asked = [(program.registers[t] or 0) if program.registers else 0 for t in threads]
    equally = min(REGISTERS // (_LANES * each), _MOST_REGISTERS) // _REGISTER_UNIT * _REGISTER_UNIT
    later = [own or equally for own in asked]
    if sum(later) > each * equally:
        terms = " + ".join(map(str, later))
        findings.add(
            "resource", (),
            f"The threads ask for {terms} = {sum(later)} registers of a lane, and the block begins"
            f" with {each} x {equally} = {each * equally}: who asks last waits for ever.",
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
