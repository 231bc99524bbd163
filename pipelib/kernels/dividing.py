"""How a kernel divides an SM: its shared memory and registers, described once.

The model. A configuration describes the memory of a block as one dict, by name: `Smem` are arrays
in shared memory, `Barriers` are barriers. The same dict is *allocated*, by the kernel
(`allocations`), and *added up*, before anything is compiled (`check_smem`). So an estimate cannot
miss what a kernel allocates. What an emitter allocates, the slots of what it loads and their
barriers, is in the dict too, and says so (`is_emitted`).

Mosaic GPU begins each array at a multiple of 1,024 bytes, the pattern of a 128 B swizzle, so the
bytes of an array are rounded up to it.

Registers. The compute threads of a block share what the memory thread leaves. Each has the arrays
of a step there, and needs some registers for the rest.

Source of the hardware's constants: `pipelib.specs`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.refs import Allocation
from pipelib.tiles import by_rows, tiled

_ALIGNMENT, _BARRIER_BYTES = 1024, 8
#: What lies in shared memory, as errors add it up: a name, a count, and the bytes of each.
Term = tuple[str, int, int]


class Smem(NamedTuple):
    """Arrays in shared memory.

    Attributes:
      name: what errors call them.
      shape: of one allocation.
      dtype: of their elements.
      number: how many arrays errors count, in all allocations together.
      copies: how many allocations there are, in a list; None for one, which is by itself.
      is_tiled: whether an allocation lies in pieces (`tiles`), as copies and `wgmma` address it.
      is_emitted: whether the emitter of the kernel's pipeline allocates them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DTypeLike
    number: int = 1
    copies: int | None = None
    is_tiled: bool = True
    is_emitted: bool = False

    def allocation(self, *, sees_rows: bool = False) -> Any:
        """One allocation; of two refs, if copies see rows of its pieces."""
        if sees_rows:
            return by_rows(self.shape, self.dtype)
        return plgpu.SMEM(self.shape, self.dtype, transforms=tiled(self.dtype) * self.is_tiled)

    def term(self) -> Term:
        """The name, the count, and the bytes of each."""
        copies = 1 if self.copies is None else self.copies
        size = copies * math.prod(self.shape) * jnp.dtype(self.dtype).itemsize
        return self.name, self.number, -(-size // self.number // _ALIGNMENT) * _ALIGNMENT


class Barriers(NamedTuple):
    """Barriers.

    Attributes:
      number: how many there are; None for one that is by itself.
      arrivals: how many complete a phase of one.
      is_emitted: whether the emitter of the kernel's pipeline allocates them.
    """

    number: int | None = None
    arrivals: int = 1
    is_emitted: bool = False

    def allocation(self) -> plgpu.Barrier:
        """The barriers as one allocation."""
        if self.number is None:
            return plgpu.Barrier(num_arrivals=self.arrivals)
        return plgpu.Barrier(num_arrivals=self.arrivals, num_barriers=self.number)


#: The memory of a block, by the names that the kernel has for it.
Memory = dict[str, Smem | Barriers]
#: The refs of a block's memory within the kernel, by the same names.
Scratch = Mapping[str, Any]


def allocations(memory: Memory) -> dict[str, Allocation | list[Allocation]]:
    """What the kernel allocates of a block's memory, by the same names."""
    made: dict[str, Allocation | list[Allocation]] = {}
    for name, each in memory.items():
        if each.is_emitted:
            continue
        copies = each.copies if isinstance(each, Smem) else None
        made[name] = each.allocation() if copies is None else [each.allocation()] * copies
    return made


def terms(memory: Memory) -> list[Term]:
    """What errors add up: each kind of array, and all barriers together, which come last."""
    arrays = [each.term() for each in memory.values() if isinstance(each, Smem)]
    numbers = (each.number for each in memory.values() if isinstance(each, Barriers))
    barriers = sum(1 if number is None else number for number in numbers)
    return [*arrays, ("barriers", barriers, _BARRIER_BYTES)]


def smem_bytes(memory: Memory) -> int:
    """The bytes of a block's shared memory."""
    return sum(count * size for _, count, size in terms(memory))


def check_smem(name: str, memory: Memory, more: Sequence[Term] = ()) -> None:
    """Raises ValueError, with the sum, if a block has too little shared memory.

    Args:
      name: the class of the configuration; the error begins with it.
      memory: of a block.
      more: what else lies there.
    """
    every = [*terms(memory), *more]
    if (total := sum(count * size for _, count, size in every)) > specs.SMEM_BYTES:
        added = " + ".join(f"{term} {count} x {size:,} B" for term, count, size in every)
        raise ValueError(
            f"{name}: {added} = {total:,} B of shared memory, but a block has"
            f" {specs.SMEM_BYTES:,} B, so the kernel could not start."
        )


def check_registers(
    name: str, arrays: Mapping[str, int], compute_threads: int, memory_registers: int
) -> None:
    """Raises ValueError, with the sum, if a lane has too few registers for these arrays.

    Args:
      name: the class of the configuration; the error begins with it.
      arrays: the registers of a lane for each array, by the array's name.
      compute_threads, memory_registers: as the configuration has them.
    """
    share = min(255, specs.compute_registers(memory_registers, compute_threads))
    if (total := sum(arrays.values())) >= share:
        added = " + ".join(f"{array} {size}" for array, size in arrays.items())
        raise ValueError(
            f"{name}: {added} = {total} registers of a lane, but each of {compute_threads} compute"
            f" threads has {share}, and needs some for the rest."
        )


# The fields of configurations.


class Config(Protocol):
    """A configuration: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def take_integers(config: Config, *optional: str) -> None:
    """Makes ints of the fields that must be ints; raises TypeError for other values.

    Args:
      config: the configuration.
      optional: the names of fields that may also be None.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type is int or (field.name in optional and value is not None):
            value = specs.integer(f"{type(config).__name__}: {field.name}", value)
            object.__setattr__(config, field.name, value)


def refuse(name: str, problems: Mapping[str, object]) -> None:
    """Raises ValueError for the first problem that is so.

    Args:
      name: the class of the configuration; the error begins with it.
      problems: whether each is so, by its words.
    """
    for problem in (text for text, is_so in problems.items() if is_so):
        raise ValueError(f"{name}: {problem.replace('self.', '').replace('config.', '')}.")
