"""A whole launch: from what some of its blocks do to the cycles until all of them are done.

The model. A grid's blocks start in the order of their numbers, each where there is room: an SM has
room for as many as SMEM, threads and registers allow (`blocks_per_sm`), a cluster takes as many SMs
as it has blocks. If all blocks do the same, one SM runs its share of them, one after another, and
the time of further blocks follows from the time of the first few. If they differ, as in causal
attention, the time of each block follows from those that were sampled along the axes of the grid on
which blocks differ, in between by interpolation. Then blocks go to SMs as the hardware hands them
out (list scheduling, R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969); where they
share SMs for several rounds, work is divided evenly. To all this comes what launching takes by
itself, and what it takes to prepare a block's barriers.

Where all blocks have room at once and HBM bounds them, SMs get unequal shares of the bandwidth, and
nobody takes over a slow SM's work: such a launch reaches less of it (`Machine.hbm_static_reach`).
A launch with a few blocks more has the same first round; those few then run by themselves, and the
copies that they keep in flight no longer fill the bandwidth.

Not covered: which SMs get a cluster whose size does not divide the SMs of a GPC; registers that the
compiler takes beside accumulators and the largest value read, which are guessed (`_OTHERS`).
"""

import bisect
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pallascope.machine import BLOCKS, THREAD_LANES, Machine
from pallascope.program import Kind, Program, Space
from pallascope.report import count
from pallascope.simulating.costs import Costs
from pallascope.simulating.run import Run, start_cycles
from pallascope.simulating.traffic import L2_BYTES, likely_l2_hits
from pallascope.simulating.ways import SLOW_WAYS, decided

type Index = tuple[int, ...]

# Of an SM of compute capability 9.0; CUDA C++ Programming Guide, technical specifications.
_SMEM_BYTES, _RESERVED_BYTES = 233_472, 1024
_THREADS, _REGISTERS, _REGISTER_UNIT = 2048, 65_536, 8
#: Registers of a lane beside accumulators and the largest value that is read.
_OTHERS = 16
_WORD_BYTES = 4
#: How many rounds of blocks are simulated, from which the time of further ones is known.
_ROUNDS = 3


class Launch(NamedTuple):
    """The predicted launch of a kernel.

    Attributes:
      kernel: its name.
      cycles: from the launch until the last block has ended.
      clock_hz: the clock that it runs at.
      blocks_per_sm: how many blocks an SM has at a time.
      rounds: how many times an SM is filled with blocks, at most.
      use: the fraction of the time that the card's tensor cores multiply, on average.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> (launch,) = pallascope.predict(matmul, x, x).launches
      >>> launch.kernel, launch.blocks_per_sm, launch.rounds
      ('matmul', 1, 1)
    """

    kernel: str
    cycles: float
    clock_hz: float
    blocks_per_sm: int
    rounds: int
    use: float

    @property
    def us(self) -> float:
        """Microseconds."""
        return 1e6 * self.cycles / self.clock_hz

    def __str__(self) -> str:
        return (
            f"{self.kernel}: {self.us:,.1f} us, {self.cycles:,.0f} cycles at"
            f" {self.clock_hz / 1e9:.2f} GHz; {self.blocks_per_sm} to an SM,"
            f" {self.rounds} in turn; tensor cores busy {self.use:.0%}"
        )


def work(program: Program) -> tuple[tuple[int, int, int], ...]:
    """What tells blocks apart that do not do the same: ops, bytes and operations of each thread."""
    return tuple(
        (len(ops), sum(op.bytes for op in ops), sum(op.flops for op in ops))
        for ops in program.threads
    )


def blocks_per_sm(program: Program, registers: int | None = None) -> int:
    """How many blocks of this kernel an SM has room for.

    Args:
      program: one of its blocks, or a cluster of them.
      registers: of a lane, as ptxas says (`pallascope.compiled`); by default a guess.
    """
    lanes = THREAD_LANES * program.per_block
    each = _registers(program) if registers is None else registers
    each = -(-each // _REGISTER_UNIT) * _REGISTER_UNIT
    room = (
        _SMEM_BYTES // (program.smem_bytes + _RESERVED_BYTES),
        _THREADS // lanes,
        _REGISTERS // (lanes * each),
        BLOCKS,
    )
    return max(1, min(room))


def _registers(program: Program) -> int:
    """A guess at a lane's registers when a block starts; all of an SM's if threads share them out.

    A lane keeps the largest value that is read; if the thread does arithmetic on values of 16 bits,
    as float32.
    """
    if program.has(Kind.REGISTERS):
        return _REGISTERS // (THREAD_LANES * program.per_block)
    accumulators: dict[int | None, int] = {}
    for buffer in program.buffers:
        if buffer.space is Space.ACC:
            held = accumulators.get(buffer.thread, 0)
            accumulators[buffer.thread] = held + buffer.bytes // _WORD_BYTES
    reads = [op for op in program.ops if op.kind is Kind.READ]
    computes = any(op.exchanges or op.transcendental for op in program.ops)
    sizes = (math.prod(b - a for a, b in op.reads[0].box) for op in reads if op.reads)
    words = (op.bytes // _WORD_BYTES for op in reads)
    most = max([*accumulators.values(), *(sizes if computes else words), 0])
    return min(_OTHERS + most // THREAD_LANES, 255)


def launched(
    samples: Mapping[Index, Program],
    machine: Machine,
    registers: int | None = None,
    l2_hits: float | None = None,
    slow_ways: float = SLOW_WAYS,
) -> Launch:
    """The launch of a grid, of which some blocks are known.

    Args:
      samples: programs by the index of their block in the grid: one if all blocks do the same, else
        a number of positions along each axis on which they differ, each with each, the first and
        the last ones among them.
      machine: at the clock of the launch.
      registers: as in `blocks_per_sm`.
      l2_hits: as in `simulate`; where it is 1, HBM has nothing that a launch waits for.
      slow_ways: as in `simulate`.
    """
    samples = {at: decided(program, machine, slow_ways) for at, program in samples.items()}
    first = next(iter(samples.values()))
    blocks, places = max(1, math.prod(first.grid)), machine.sms // first.blocks
    share = -(-blocks // places)
    crowd = min(blocks_per_sm(first, registers), share)
    if share < 2 * crowd:
        reached = machine.hbm_bytes_per_second * machine.hbm_static_reach
        machine = machine.changed(hbm_bytes_per_second=reached)
    hits = likely_l2_hits(first, machine, crowd) if l2_hits is None else l2_hits
    cold = 0.0 if l2_hits == 1 else machine.cold_seconds
    if len(samples) == 1:
        cycles = _alike(first, hits, share, crowd, machine)
    else:
        runs = {index: _cycles(program, machine, crowd, hits) for index, program in samples.items()}
        start = start_cycles(first, machine)
        every = _interpolated(runs, first.grid)
        if crowd == 1 or share < 2 * crowd:
            left = share % crowd
            alone = _cycles(first, machine, left, hits) / every[0] if left else 1.0
            cycles = _scheduled(every, places * crowd, start, alone)
        else:
            cycles = _shared(every, places * crowd, start)
    cycles += (machine.launch_seconds + cold) * machine.clock_hz
    cycles += first.mbarriers * machine.barrier_init_cycles
    multiplied = {index: _multiplied(program, machine) for index, program in samples.items()}
    use = sum(_interpolated(multiplied, first.grid)) / (cycles * machine.sms)
    return Launch(first.name, cycles, machine.clock_hz, crowd, -(-share // crowd), use)


def streamed(read: int, written: int, machine: Machine, l2_hits: float | None = None) -> float:
    """The seconds of a kernel of XLA's, which reads and writes so many bytes, each once.

    L2 has them if they fit there, as what the kernel before has written, or if it `l2_hits` all.
    """
    is_near = l2_hits == 1 or read + written <= L2_BYTES
    stored = written / (read + written) if read else 1.0
    rate = machine.gmem_bytes_per_cycle(machine.sms, float(not is_near), written=stored)
    cycles = machine.load_latency_cycles(float(is_near)) + (read + written) / (rate * machine.sms)
    return machine.launch_seconds + cycles / machine.clock_hz


def _cycles(
    program: Program, machine: Machine, crowd: int, hits: float, copies: int | None = None
) -> float:
    """The cycles of a block, or of several, of which an SM has `crowd` at a time.

    Raises:
      ValueError: threads wait for ever.
    """
    run = Run(program, machine, crowd, hits, copies=copies, records=False)
    cycles = run.cycles()
    if stuck := sorted(run.events.waiting):
        raise ValueError(
            f"{program.name}: {count(len(stuck), 'thread')} must wait for ever after"
            f" {cycles:,.0f} cycles, so the launch has no end: `pallascope.check` says for what."
        )
    return cycles


def _multiplied(program: Program, machine: Machine) -> float:
    """The cycles that the program's products take of tensor cores."""
    costs = Costs(program, machine)
    every = (op for op in program.ops if op.kind.is_product)
    return sum(costs.product(op) * len(op.writes) for op in every)  # one write for each block


def _alike(program: Program, hits: float, share: int, crowd: int, machine: Machine) -> float:
    """The cycles in which an SM runs its share of blocks that do the same.

    Blocks that run together do not end together on a GPU, so of several rounds blocks beyond the
    first one start one by one: each adds what a block adds in full rounds.
    """
    first = _cycles(program, machine, crowd, hits, min(share, crowd))
    if share <= crowd:
        return first
    if share < 2 * crowd:
        return (
            first + start_cycles(program, machine) + _cycles(program, machine, share - crowd, hits)
        )
    more = _cycles(program, machine, crowd, hits, _ROUNDS * crowd) - first
    return first + (share - crowd) * more / ((_ROUNDS - 1) * crowd)


def _scheduled(runs: Sequence[float], places: int, start: float, alone: float = 1.0) -> float:
    """When the last block ends, if each has a place of its own and starts where the first one is
    free, so much later; blocks beyond the first round take `alone` times their cycles.
    """
    ends: list[float] = []
    for cycles in runs:
        free = 0.0
        if len(ends) >= places:
            free = heapq.heappop(ends) + start
            cycles *= alone
        heapq.heappush(ends, free + cycles)
    return max(ends)


def _shared(runs: Sequence[float], places: int, start: float) -> float:
    """When the last block ends, if blocks share SMs: their times are those in full rounds, and
    fewer blocks are faster, so a last round that is not full takes its share of one.
    """
    rounds = len(runs) / places
    return max(max(runs), sum(runs) / places + max(0.0, rounds - 1) * start)


def _interpolated(known: Mapping[Index, float], grid: Index) -> list[float]:
    """A number for each block of the grid, in order, from those at some positions of each axis."""
    positions = [sorted({index[axis] for index in known}) for axis in range(len(grid))]
    weights = [
        [_weights(place, number) for number in range(size)] for place, size in zip(positions, grid)
    ]
    return [
        sum(
            math.prod(share for _, share in corner) * known[tuple(at for at, _ in corner)]
            for corner in itertools.product(*near)
        )
        for near in itertools.product(*weights)
    ]


def _weights(positions: list[int], number: int) -> list[tuple[int, float]]:
    """The positions around a number, and how much each counts."""
    after = bisect.bisect_left(positions, number)
    if after == len(positions) or after == 0 or positions[after] == number:
        return [(positions[min(after, len(positions) - 1)], 1.0)]
    low, high = positions[after - 1 : after + 1]
    return [(low, (high - number) / (high - low)), (high, (number - low) / (high - low))]
