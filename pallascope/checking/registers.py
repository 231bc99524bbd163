"""The registers that the threads of a block share, and whether one may wait for some.

The model. A block begins with the same number for each lane, a multiple of 8, and its threads share
out these when they ask for others later: a thread that finds too few waits, and the end of another
block brings no more. Source: PTX ISA, `setmaxnreg`.
"""

from pallascope.machine import THREAD_LANES
from pallascope.program import Kind, Program

REGISTERS, THREAD_REGISTERS = 65_536, 255
_REGISTER_UNIT, _MOST_REGISTERS = 8, 256


def registers_at_first(program: Program) -> int:
    """The registers a lane that each thread of a block begins with."""
    equally = min(REGISTERS // (THREAD_LANES * program.per_block), _MOST_REGISTERS)
    return equally // _REGISTER_UNIT * _REGISTER_UNIT


def may_wait_for_registers(program: Program) -> bool:
    """Whether threads may have to wait for registers, and get them if the others are right."""
    first = registers_at_first(program)
    asks = program.has(Kind.REGISTERS)
    return (
        asks
        and first < THREAD_REGISTERS
        and not any(
            sum(asked_later(program, block)) > program.per_block * first
            for block in range(program.blocks)
        )
    )


def asked_later(program: Program, block: int) -> tuple[int, ...]:
    """The registers a lane that the block's threads have in the end."""
    first = registers_at_first(program)
    asked = [program.registers[t] if program.registers else None for t in program.threads_of(block)]
    return tuple(own or first for own in asked)
