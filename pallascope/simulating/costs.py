"""Costs: how many cycles an op keeps a unit busy.

Arithmetic. An op's operations, functions and exchanges take their time one after the other, at the
rates of an SM that always has more of them to do. Each operation costs the same as an addition of
float32s, whatever its dtype, conversions and integers among them. Addresses, loop counters, moves
and casts of layouts are in no jaxpr: `Machine.code_growth` says how many instructions there are for
each operation that is. Not covered: units that work side by side; latencies of instructions, since
here no instruction waits for the result of another, no round of exchanges for the round before, and
no warp for another where they exchange through SMEM; registers that spill.

Banks of SMEM. An access takes several wavefronts where lanes want different words of one bank. How
the array's elements lie in memory and in registers decides that. The trace counts the wavefronts
(`tracing.layouts`); here they only take time. Where they are not known, the bytes count.

Products. The tensor core takes 64 rows at a time, and reads the right operand from SMEM for each 64
again, since one `wgmma` instruction multiplies 64 rows. Source: PTX ISA, "Asynchronous Warpgroup
Level Matrix Multiply-Accumulate Instructions", shapes of wgmma. Blackwell's `tcgen05.mma` has the
128 rows of TMEM, and reads each operand once; two blocks each read half of the right one.
"""

import math

from pallascope.machine import WAVEFRONT_BYTES, Machine
from pallascope.program import Kind, Op, Program, Region, Space

_WGMMA_ROWS = 64  # of a wgmma instruction


class Costs:
    """The cycles that ops of a program take of a machine's units."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self._machine = machine
        self._in_smem = [buffer.space is Space.SMEM for buffer in program.buffers]
        self._dtypes = [buffer.dtype for buffer in program.buffers]
        self._element_bytes = [_bits(buffer.dtype) / 8 for buffer in program.buffers]

    def arithmetic(self, op: Op) -> float:
        """The cycles of the ALU for operations, functions and exchanges."""
        machine, hard = self._machine, op.transcendental
        instructions = machine.code_growth * max(0, op.flops - hard)
        return (
            instructions / machine.alu_ops_per_cycle
            + hard / machine.transcendental_ops_per_cycle
            + op.exchanges / machine.exchanges_per_cycle
        )

    def access(self, op: Op) -> float:
        """The cycles of SMEM for an ordinary read or write."""
        taken = op.bytes if op.wavefronts is None else op.wavefronts * WAVEFRONT_BYTES
        return taken / self._machine.smem_bytes_per_cycle

    def product(self, op: Op) -> float:
        """The cycles of the tensor core: the longer of arithmetic and of the operands' way from
        SMEM; ValueError if the machine has no rate for the operands' dtype.
        """
        machine = self._machine
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
