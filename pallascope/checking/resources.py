"""Whether a block's shared memory and registers fit, and whose its named barriers are.

The model. `Program.smem_bytes` is the most SMEM that a block allocates at once, with the SMEM that
Mosaic GPU reserves for reductions and for the profiler. Registers are the ones that threads ask
for (`registers`), and at least the ones that accumulators take. Named barriers 0 (all threads of a
block) and 1 to the number of threads (the lanes of each) are Mosaic GPU's own:
`warpgroup_barrier_idx` in `jax.experimental.mosaic.gpu.utils`. Not covered: registers that the
compiler needs.
Limits of a block: CUDA C++ Programming Guide, technical specifications for compute capability 9.0
(10.0 has the same) and 8.0 (8.6 and 8.9 have 101,376 bytes of SMEM, which nothing here asks for);
TMEM: PTX ISA, "Tensor Memory", 512 columns for each block. Limits of a launch and of an SM: the
Guide too; of clusters the Hopper Tuning Guide: 16 blocks, as JAX's launch asks for more than 8
(`jaxlib/mosaic/gpu/custom_call.cc`). An H100 or H200 has 132 SMs. CUDA's x is the grid's last axis,
z all but the last two.
"""

from collections.abc import Iterator
from math import prod
from typing import override

from pallascope.checking.detector import Detector
from pallascope.checking.facts import Fault
from pallascope.checking.facts.barriers import TakenBarrier
from pallascope.checking.facts.resources import (
    LIMITS,
    Absent,
    Spill,
    TooLarge,
    TooManyBarriers,
    TooManyColumns,
    TooManyRegisters,
    TooMuchMemory,
    WrongWay,
)
from pallascope.checking.order import Order
from pallascope.checking.registers import THREAD_REGISTERS, asked_later, registers_at_first
from pallascope.machine import THREAD_LANES
from pallascope.program import Action, BarrierType, Kind, Program, Space

SMEM_BYTES = 232_448
EARLIER_SMEM_BYTES = 166_912  # of compute capability 8.0, the most before Hopper
TMEM_COLUMNS = 512
ARRAY_BARRIERS = 32  # of one array, whose parities are the bits of one word
_REGISTER_BYTES = 4
# Of an SM, on which each block takes 1,024 bytes of SMEM besides its own; and how many there are.
_SM_BYTES, _BLOCK_BYTES, _SM_LANES, _SM_REGISTERS, _SMS = 233_472, 1_024, 2_048, 65_536, 132
LEAST_REGISTERS = 24  # of a lane, for `setmaxnreg`


class Resources(Detector):
    """Finds what a block asks for and cannot have, and named barriers that are not its own."""

    @override
    def finish(self, is_whole: bool) -> Iterator[Fault]:
        for find in (launch, allocated_memory, barriers, named_barriers, register_requests):
            yield from find(self.program)
        for block in range(self.program.blocks):
            yield from registers(self.program, block)
        for remark in absent(self.order):
            self.note(remark)


def launch(program: Program) -> Iterator[TooLarge]:
    """Whether a block, a cluster or an axis of the grid is larger than CUDA launches."""
    grid = (prod(program.grid[:-2]), *(1, 1, *program.grid)[-2:])
    cluster = (1, 1, 1, *program.cluster)[-3:]
    axes = reversed([*zip(grid, cluster)])
    for what, sizes in zip(LIMITS, ((program.per_block, THREAD_LANES), cluster, *axes)):
        if prod(sizes) > LIMITS[what][0]:
            yield TooLarge(what, sizes)


def absent(order: Order) -> Iterator[Absent]:
    """The waits for signals of a later block that begins only when others have ended."""
    program, lanes = order.program, order.program.per_block * THREAD_LANES
    taken = registers_at_first(program) if program.has(Kind.REGISTERS) else LEAST_REGISTERS
    by_memory = _SM_BYTES // (program.smem_bytes + _BLOCK_BYTES)
    each = min(by_memory, _SM_LANES // lanes, _SM_REGISTERS // (taken * lanes))
    of_device = program.blocks // program.num_devices
    for (thread, index), signals in order.semaphores.sure.items() if each else ():
        block = program.block_of(thread)
        for other in {program.block_of(signaller) for signaller, _ in signals}:
            is_later = block < other and program.device_of(block) == program.device_of(other)
            if is_later and other % of_device >= each * _SMS:
                yield Absent(program.threads[thread][index].line, each, _SMS, of_device)


def allocated_memory(program: Program) -> Iterator[TooMuchMemory | TooManyColumns]:
    """Whether a block allocates more SMEM (before Hopper, with `cp.async`) or TMEM than it can."""
    is_earlier = program.has(Kind.CP_ASYNC)
    limit = EARLIER_SMEM_BYTES if is_earlier else SMEM_BYTES
    if program.smem_bytes > limit:
        yield TooMuchMemory(limit)
    if program.tmem_columns > TMEM_COLUMNS:
        yield TooManyColumns(TMEM_COLUMNS)


def barriers(program: Program) -> Iterator[TooManyBarriers]:
    """The arrays with more barriers than Mosaic GPU takes (`BarrierRef.initialize`)."""
    for barrier in program.barriers:
        is_memory = barrier.type is BarrierType.MBARRIER and not barrier.block
        if is_memory and barrier.count > ARRAY_BARRIERS:
            yield TooManyBarriers(barrier.id, ARRAY_BARRIERS)


def named_barriers(program: Program) -> Iterator[TakenBarrier]:
    """The ops on named barriers that Mosaic GPU uses: 0 for a block, then one for each thread."""
    taken = {
        barrier.id: barrier.number
        for barrier in program.barriers
        if barrier.number is not None and barrier.number <= program.per_block
    }
    for op in program.ops if taken else ():
        if op.kind is Kind.ARRIVE and (number := taken.get(op.place[0])) is not None:
            yield TakenBarrier(op, number)


def register_requests(program: Program) -> Iterator[WrongWay]:
    """The requests for fewer registers that are an increase, or for more that are none.

    What a thread begins with is known only if the block's threads share all there are: else the
    compiler may have taken fewer. But all begin alike: a decrease to 232 tells that all have more.
    """
    first = registers_at_first(program)
    asks = [[op for op in ops if op.kind is Kind.REGISTERS] for ops in program.threads]
    down = (ops[0].registers or 0 for ops in asks if ops and ops[0].action is Action.DECREASE)
    least = max(down, default=0)
    for ops in asks:
        held = first if first < THREAD_REGISTERS else None
        for op in ops:
            asked = op.registers or 0
            if held is None and op.action is Action.INCREASE:
                if asked < least or asked <= LEAST_REGISTERS:
                    yield WrongWay(op, max(least, LEAST_REGISTERS), or_more=True)
            elif held is not None:
                more = {Action.INCREASE: held - asked, Action.DECREASE: asked - held}
                if more.get(op.action, 0) > 0:
                    yield WrongWay(op, held)
            held = op.registers or held


def registers(program: Program, block: int) -> Iterator[TooManyRegisters | Spill]:
    """Whether the block's threads ask for too many registers, or accumulators need too many."""
    first, later = registers_at_first(program), asked_later(program, block)
    if sum(later) > program.per_block * first:
        yield TooManyRegisters(later, first)
    for thread in program.threads_of(block):
        own = program.registers[thread] if program.registers else None
        needed, limit = _accumulator_registers(program, thread), own or THREAD_REGISTERS
        if needed > limit:
            yield Spill(thread, needed, limit)


def _accumulator_registers(program: Program, thread: int) -> int:
    """The most registers a lane that the accumulators of the thread's scopes take at once."""
    sizes: dict[int, int] = {}
    for buffer in program.buffers:
        if buffer.space is Space.ACC and buffer.thread == thread and buffer.scope_id is not None:
            size = buffer.bytes // (THREAD_LANES * _REGISTER_BYTES)
            sizes[buffer.scope_id] = sizes.get(buffer.scope_id, 0) + size
    now = most = 0
    for op in program.threads[thread]:
        if op.kind in (Kind.SCOPE_BEGIN, Kind.SCOPE_END) and op.scope_id in sizes:
            size = sizes[op.scope_id]
            now += size if op.kind == Kind.SCOPE_BEGIN else -size
            most = max(most, now)
    return most
