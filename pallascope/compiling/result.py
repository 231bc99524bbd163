"""`Compiled`: what is known of a kernel's machine code; `Loop`: of one of its loops."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallascope.report import Document, count


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop of the machine code.

    Attributes:
      start: the address of its first instruction, in bytes from the kernel's start.
      line: "file:line" of the source that most of its instructions come from, if that is known.
      instructions: the number of instructions of one iteration, by class, as in `Compiled`. Both
        sides of a branch count, and of a wait its first try.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> loads, products = pallascope.compiled(matmul, x, x).loops
      >>> products.instructions["HGMMA"], products.line
      (4, '...forms.py:...')
    """

    start: int
    line: str | None
    instructions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What ptxas and the machine code say of a kernel for Hopper.

    Attributes:
      kernel: the name of its function; the second of one name ends with " (2)".
      ptxas: the version of ptxas, as "13.0.88".
      registers: of a lane, when the kernel is launched. `plgpu.set_max_registers`, and the
        emitters, move registers between threads later.
      spill_stores: bytes of registers that a lane stores to local memory, over the whole code.
      spill_loads: bytes that it loads from there.
      stack: bytes of local memory of a lane, spilled registers among them.
      warnings: what ptxas remarks, one text each, with its number if it has one, as "(C7513) ...".
      instructions: the number of instructions of each class, and of "all". A class has the name
        of its opcode: HGMMA is a product of wgmma, UTMALDG and UTMASTG are loads and stores of
        TMA, SYNCS is an mbarrier's, LDL and STL are spilled registers; uniform, branch and other
        are groups. Each is for a warp, and counts once, however often it runs.
      loops: the innermost loops that do more than wait, by address.
      ptx: the kernel as JAX gives it to ptxas.
      sass: its machine code, as nvdisasm prints it.

    Example:
      >>> q = jax.ShapeDtypeStruct((2, 4096, 8, 128), jnp.bfloat16)
      >>> found = pallascope.compiled(attention, q, q, q)
      >>> print(found)
      attention: 255 registers a lane, no spill, no product serialized (ptxas ...)
      instructions   kernel   loop 0   loop 1
      HGMMA              12        .       12
      MUFU               ...
      >>> found.ok
      True
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
        """Serialized products and spilled registers, which cost time, each with its remedy."""
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

    def fields(self) -> Document:
        """The facts as JSON has them, without the PTX and the machine code."""
        found = dataclasses.asdict(self)
        del found["ptx"], found["sass"]
        lists = {name: [*found[name]] for name in ("warnings", "loops")}
        return found | {"ok": self.ok, "faults": [*self.faults]} | lists

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
