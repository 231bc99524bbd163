"""`Compiled`: what is known of a kernel's machine code; `Loop`: of one of its loops."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelib.schedule.report import count

_PTXAS = "see what it reports with print(compiled.warnings)"


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop of the machine code.

    Attributes:
      start: the address of its first instruction, in bytes from the kernel's start.
      line: "file:line" of the source that most of its instructions come from, if that is known.
      instructions: the number of instructions of one iteration, by class, as in `Compiled`.
    """

    start: int
    line: str | None
    instructions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What ptxas and the machine code say of a kernel for Hopper.

    Attributes:
      kernel: the name of its function.
      ptxas: the version of ptxas, as "13.0.88".
      registers: of a lane, when the kernel is launched. `plgpu.set_max_registers`, and the
        emitters, move registers between threads later.
      spill_stores: bytes of registers that a lane stores to local memory, over the whole code.
      spill_loads: bytes that it loads from there.
      stack: bytes of local memory of a lane, spilled registers among them.
      warnings: what ptxas remarks, one text each, with its number if it has one, as "(C7513) ...".
      instructions: the number of instructions of each class of `CLASSES`, and of "all". Each is
        for a warp, and counts once, however often it runs.
      loops: the innermost loops that do more than wait, by address.
      ptx: the kernel as JAX gives it to ptxas.
      sass: its machine code, as nvdisasm prints it.
    """

    kernel: str
    ptxas: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    warnings: tuple[str, ...]
    instructions: Mapping[str, int]
    loops: tuple[Loop, ...]
    ptx: str = field(repr=False)
    sass: str = field(repr=False)

    @property
    def serialized(self) -> tuple[str, ...]:
        """The remarks that say that ptxas waits for each product before it starts the next."""
        return tuple(text for text in self.warnings if "serializ" in text.lower())

    @property
    def faults(self) -> tuple[str, ...]:
        """What costs time: serialized products, and registers that are spilled; in sentences."""
        found: list[str] = []
        if self.serialized:
            found.append(
                f"ptxas serializes products of {self.kernel}, so it waits for each before the next"
                f" starts: change what it names, and compile again. {self.serialized[0]}"
            )
        if self.spill_stores or self.spill_loads:
            found.append(
                f"{self.kernel} spills: a lane stores {self.spill_stores:,} bytes of registers to"
                f" local memory and loads {self.spill_loads:,}: hold less at once, or give its"
                " thread more registers."
            )
        return tuple(found)

    @property
    def ok(self) -> bool:
        """Whether there are no `faults`."""
        return not self.faults

    def fields(self) -> dict[str, Any]:
        """The facts as JSON has them, without the PTX and the machine code."""
        return {
            "kernel": self.kernel,
            "ptxas": self.ptxas,
            "registers": self.registers,
            "spill_stores": self.spill_stores,
            "spill_loads": self.spill_loads,
            "stack": self.stack,
            "ok": self.ok,
            "faults": [*self.faults],
            "warnings": [*self.warnings],
            "instructions": {**self.instructions},
            "loops": [
                {"start": loop.start, "line": loop.line, "instructions": {**loop.instructions}}
                for loop in self.loops
            ],
        }

    def __str__(self) -> str:
        spills = f"{self.spill_stores:,} bytes spilled" if self.spill_stores else "no spill"
        verdict = "products serialized" if self.serialized else "no product serialized"
        lines = [
            f"{self.kernel}: {count(self.registers, 'register')} a lane, {spills}, {verdict}"
            f" (ptxas {self.ptxas})",
            *_table(self),
            *(f"loop {i}: at {loop.start:#06x}, {_at(loop)}" for i, loop in enumerate(self.loops)),
            *(f"ptxas: {text}" for text in self.warnings),
        ]
        return "\n".join(lines)


def _at(loop: Loop) -> str:
    return f"most of it from {loop.line}" if loop.line else "its source is not known"


def _table(found: Compiled) -> list[str]:
    """A column for the kernel and for each loop, a row for each class that there is."""
    heads = ["instructions", "kernel", *(f"loop {i}" for i in range(len(found.loops)))]
    columns = [found.instructions, *(loop.instructions for loop in found.loops)]
    rows = [
        [name, *(f"{column[name]:,}" if column[name] else "." for column in columns)]
        for name in found.instructions
        if any(column[name] for column in columns)
    ]
    return [
        "  ".join([row[0].ljust(12), *(cell.rjust(7) for cell in row[1:])]).rstrip()
        for row in [heads, *rows]
    ]
