"""Whether a block's shared memory and registers fit.

The model. `Program.smem_bytes` is the most SMEM that a block allocates at once. Registers are the
ones that threads ask for, and at least the ones that accumulators take. A block begins with the
same number for each lane, a multiple of 8, and its threads share out these when they ask for others
later (`setmaxnreg`): a thread that finds too few waits, and the end of another block brings no
more. Not covered: registers that the compiler needs.
Limits of a block: CUDA C++ Programming Guide, technical specifications for compute capability 9.0;
the pool of a block: PTX ISA, `setmaxnreg`.
"""

from collections.abc import Iterator

from pipelib.schedule.checking.facts import Spill, TooManyRegisters, TooMuchMemory
from pipelib.schedule.program import Kind, Program, Space

SMEM_BYTES, REGISTERS, THREAD_REGISTERS = 232_448, 65_536, 255
_LANES, _REGISTER_BYTES, _REGISTER_UNIT, _MOST_REGISTERS = 128, 4, 8, 256


def shared_memory(program: Program) -> Iterator[TooMuchMemory]:
    """Whether a block allocates more SMEM than it can have."""
    if program.smem_bytes > SMEM_BYTES:
        yield TooMuchMemory(SMEM_BYTES)


def registers(program: Program, block: int) -> Iterator[TooManyRegisters | Spill]:
    """Whether the block's threads ask for too many registers, or accumulators need too many."""
    each = len(program.threads) // program.blocks
    threads = range(block * each, (block + 1) * each)
    asked = [(program.registers[t] or 0) if program.registers else 0 for t in threads]
    equally = min(REGISTERS // (_LANES * each), _MOST_REGISTERS) // _REGISTER_UNIT * _REGISTER_UNIT
    later = tuple(own or equally for own in asked)
    if sum(later) > each * equally:
        yield TooManyRegisters(later, equally)
    for thread, own in zip(threads, asked):
        needed, limit = _accumulator_registers(program, thread), own or THREAD_REGISTERS
        if needed > limit:
            yield Spill(thread, needed, limit)


def _accumulator_registers(program: Program, thread: int) -> int:
    """The most registers a lane that the accumulators of the thread's scopes take at once."""
    sizes: dict[int, int] = {}
    for buffer in program.buffers:
        if buffer.space is Space.ACC and buffer.thread == thread and buffer.scope_id is not None:
            size = buffer.bytes // (_LANES * _REGISTER_BYTES)
            sizes[buffer.scope_id] = sizes.get(buffer.scope_id, 0) + size
    now = most = 0
    for op in program.threads[thread]:
        if op.kind in (Kind.SCOPE_BEGIN, Kind.SCOPE_END) and op.scope_id in sizes:
            size = sizes[op.scope_id]
            now += size if op.kind == Kind.SCOPE_BEGIN else -size
            most = max(most, now)
    return most
