"""Costs: how many cycles an op keeps a unit busy.

Arithmetic. A thread's operations, functions and exchanges take their time one after the other, at
the rates of an SM that always has more of them to do. Operations are counted in additions of
float32s, which take as long (`tracing.pure`). Addresses, loop counters, moves and casts of layouts
are in no jaxpr: `Machine.code_growth` says how many instructions there are for each addition that
is. Functions keep another unit busy than all else does, so another thread may have that one
meanwhile; of units that threads share, they reach `Machine.arithmetic_reach`. (Threads that do
nothing but arithmetic reach all of it; those of attention do not, and why is not known.) Beside
products both are slower, as measured: accumulators and arithmetic share the registers. Not covered:
latencies of instructions, since here no instruction waits for the result of another, no round of
exchanges for the round before, and no warp for another where they exchange through SMEM; registers
that spill.

Rows in GMEM. L2 gives and takes sectors of 32 bytes, two in a cycle (64 bytes of a slice; NVIDIA
A100 whitepaper). Of a copy's row, 128 bytes that begin inside a sector touch five, which take three
cycles and not two: such rows count as half as many bytes again. Blocks that load neighbouring bytes
at the same time, as pairs of `matmul` do, need less; that is not covered.

Banks of SMEM. An access takes several wavefronts where lanes want different words of one bank. How
the array's elements lie in memory and in registers decides that. The trace counts the wavefronts
(`tracing.layouts`); here they only take time. Where they are not known, the bytes count.

Products. The tensor core takes 64 rows at a time, and reads the right operand from SMEM for each 64
again, since one `wgmma` instruction multiplies 64 rows. Source: PTX ISA, "Asynchronous Warpgroup
Level Matrix Multiply-Accumulate Instructions", shapes of wgmma. Blackwell's `tcgen05.mma` has the
128 rows of TMEM, and reads each operand once; two blocks each read half of the right one.
"""

import math
from typing import NamedTuple

from pallascope.machine import LINE_BYTES, WAVEFRONT_BYTES, Machine
from pallascope.program import Kind, Op, Program, Region, Space

_WGMMA_ROWS = 64  # of a wgmma instruction
_SECTOR_BYTES = 32  # of L2


class Arithmetic(NamedTuple):
    """The cycles of an op's arithmetic: of its functions, and of all else."""

    functions: float
    others: float

    @property
    def alone(self) -> float:
        """Of a thread that shares the SM with nothing."""
        return self.functions + self.others


class Costs:
    """The cycles that ops of a program take of a `machine`'s units."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.machine = machine
        self._in_smem = [buffer.space is Space.SMEM for buffer in program.buffers]
        self._dtypes = [buffer.dtype for buffer in program.buffers]
        self._element_bytes = [_bits(buffer.dtype) / 8 for buffer in program.buffers]
        self._shapes = [
            buffer.shape if buffer.space is Space.GMEM else None for buffer in program.buffers
        ]
        self._spread: dict[Region, float] = {}

    def arithmetic(self, op: Op) -> Arithmetic:
        """The cycles for operations, functions and exchanges."""
        machine, hard = self.machine, op.transcendental
        instructions = machine.code_growth * max(0, op.flops - hard)
        return Arithmetic(
            hard / machine.transcendental_ops_per_cycle,
            instructions / machine.alu_ops_per_cycle + op.exchanges / machine.exchanges_per_cycle,
        )

    def stretched(self, cycles: Arithmetic, beside: float) -> float:
        """How many times as long arithmetic takes that has products beside it for so long."""
        machine, alone = self.machine, cycles.alone
        slow = (
            cycles.functions * machine.transcendental_slowdown
            + cycles.others * machine.alu_slowdown
        ) / alone
        return slow if alone * slow <= beside else 1 + beside * (1 - 1 / slow) / alone

    def port(self, op: Op) -> float:
        """The bytes a cycle of a load of one SM alone."""
        return self.machine.sm_bytes_per_cycle / self.spread(op)

    def spread(self, op: Op) -> float:
        """How many times as long L2 takes for a copy as if its rows began with a sector."""
        spread = 1.0
        for region in op.reads + op.writes:
            if self._shapes[region.buffer] is not None:
                spread = max(spread, self._spread_of(region))
        return spread

    def _spread_of(self, region: Region) -> float:
        found = self._spread.get(region)
        if found is None:
            found = self._spread[region] = self._touched(region)
        return found

    def _touched(self, region: Region) -> float:
        shape, size = self._shapes[region.buffer], self._element_bytes[region.buffer]
        if not shape or len(shape) < 2:
            return 1.0
        (first, last), (start, stop) = region.box[-2:]
        if (stop - start) * size <= _SECTOR_BYTES or stop - start == shape[-1]:
            return 1.0
        stride = shape[-1] * size
        if stride % _SECTOR_BYTES == 0:  # all rows begin alike
            last = min(last, first + 1)
        rows = range(first, min(last, first + LINE_BYTES))
        begins = ((row * stride + start * size) % _SECTOR_BYTES for row in rows)
        return 1 + sum(begin > 0 for begin in begins) / len(rows) / 2 if rows else 1.0

    def access(self, op: Op) -> float:
        """The cycles of SMEM for an ordinary read or write."""
        taken = op.bytes if op.wavefronts is None else op.wavefronts * WAVEFRONT_BYTES
        return taken / self.machine.smem_bytes_per_cycle

    def product(self, op: Op) -> float:
        """The cycles of the tensor core: the longer of arithmetic and of the operands' way from
        SMEM; ValueError if the machine has no rate for the operands' dtype.
        """
        machine = self.machine
        operands = [region for region in op.reads if self._in_smem[region.buffer]]
        dtype = op.dtype or (self._dtypes[operands[-1].buffer] if operands else "float16")
        if op.kind is Kind.TCGEN05_MMA:
            blocks = len(op.writes)
            rate = machine.tcgen05_rate(dtype, op.line) * blocks
            moved = sum(map(self._bytes, operands)) / blocks
            return max(op.flops / rate, moved / machine.smem_bytes_per_cycle)
        rate = machine.wgmma_rate(dtype, op.line)
        moved = 0.0
        if operands:
            right = self._bytes(operands[-1])
            left = sum(map(self._bytes, operands[:-1]))
            moved = left + right * -(-_rows(op) // _WGMMA_ROWS)
        return max(op.flops / (rate * machine.wgmma_reach), moved / machine.smem_bytes_per_cycle)

    def _bytes(self, region: Region) -> float:
        elements = math.prod(stop - start for start, stop in region.box)
        return elements * self._element_bytes[region.buffer]


def _rows(op: Op) -> int:
    """The rows of the accumulator that a product writes."""
    box = op.writes[0].box if op.writes else ()
    return box[-2][1] - box[-2][0] if len(box) > 1 else _WGMMA_ROWS


def _bits(dtype: str) -> int:
    """The bits of an element: `float8_e4m3fn` has 8, and so has `bool`."""
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return int(digits[0]) if digits else 8
