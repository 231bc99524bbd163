"""What a pipeline is told: BlockSpecs, made uniform and checked; what is said of wrong types.

The model. An *operand* is one leaf of `in_specs` or `out_specs`. In SMEM it has a ring of slots,
each of its block's shape; an output whose index map uses no grid index has one slot, because its
block never changes (such an input has all, and is loaded at each step); an operand pinned to GMEM
has none, and the body gets its GMEM ref.

What can be known to be wrong before a kernel is traced is refused here.
"""

import dataclasses
import math
import operator
import reprlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

#: Bytes of shared memory that a block may use on compute capability 9.0, and registers for each of
#: 128 lanes if one Pallas thread had all 65,536 (CUDA C++ Programming Guide, "Technical
#: Specifications"); barriers in one array, whose phases Mosaic GPU keeps in 32 bits.
SMEM_BYTES, REGISTERS, MAX_SLOTS = 227 * 1024, 65536 // 128, 32
_SMEM, _GMEM = (None, pl.MemorySpace.DEFAULT, plgpu.SMEM), (pl.MemorySpace.ANY, plgpu.GMEM)


@dataclasses.dataclass(frozen=True)
class Operand:
    """A BlockSpec of the GPU kind, its name, if its block ever changes, if it is pinned to GMEM."""

    name: str
    spec: plgpu.BlockSpec
    changes: bool
    pinned: bool

    def allocation(self, gmem_ref: Any, slots: int) -> Any:
        """The SMEM for so many slots; None if pinned."""
        if self.pinned:
            return None
        block, shape = self.spec.block_shape, tuple(gmem_ref.shape)
        if block is not None:
            if len(block) != len(shape):
                raise ValueError(
                    f"{self.name}: a block of {len(block)} dimensions {block} cannot tile an"
                    f" operand of {len(shape)} {shape}; each dimension needs one entry."
                )
            shape = tuple(size for size in map(_block_size, block) if size is not None)
        return plgpu.SMEM((slots, *shape), gmem_ref.dtype, transforms=self.spec.transforms)

    def block_indices(self, indices: Sequence[jax.Array]) -> tuple[Any, ...]:
        """What the index map returns at a step; the first block if there is no map."""
        if self.spec.index_map is None:
            return (0,) * len(self.spec.block_shape or ())
        result = self.spec.index_map(*indices)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def gmem_slices(self, indices: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The index of a step's block in GMEM, for `gmem_ref.at[...]`."""
        if self.spec.block_shape is None:
            return (...,)
        slices = []
        for index, dim in zip(self.block_indices(indices), self.spec.block_shape, strict=True):
            size = _block_size(dim)
            start = index if size is None or isinstance(dim, pl.Element) else index * size
            slices.append(start if size is None else pl.ds(start, size))
        return tuple(slices)


def flatten(specs: Any, argument: str, rank: int) -> tuple[tuple[Operand, ...], Any]:
    """Operands, each checked, and tree of `in_specs` or `out_specs` over `rank` grid axes."""
    specs = tuple(specs) if isinstance(specs, (list, tuple)) else (specs,)
    leaves, tree = jax.tree_util.tree_flatten_with_path(specs)
    operands = []
    for path, spec in leaves:
        name = argument + jax.tree_util.keystr(path)
        spec = _gpu_spec(name, spec, is_output=argument == "out_specs")
        changes, pinned = _uses_grid(name, spec, rank), spec.memory_space in _GMEM
        operands.append(Operand(name, spec, changes, pinned))
    return tuple(operands), tree


def check_slots(slots: int, inputs: Sequence[Operand]) -> None:
    """Raises ValueError unless the slots suffice for every delay_release."""
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(
            f"max_concurrent_steps={slots} is not 1 to {MAX_SLOTS}, which barriers can tell."
        )
    for operand in inputs:
        delay = integer(f"{operand.name}: delay_release", operand.spec.delay_release)
        if not 0 <= delay < slots:
            raise ValueError(
                f"{operand.name}: max_concurrent_steps must be greater than delay_release, but"
                f" max_concurrent_steps={slots} and delay_release={delay}: {slots} - {delay} ="
                f" {slots - delay} slots are free to load into, and the next block never arrives."
            )


def check_smem(operands: Sequence[Operand], allocations: Sequence[Any], barriers: int) -> int:
    """The bytes of the operands' SMEM (or None) and 8 a barrier; ValueError over `SMEM_BYTES`."""
    terms, total = [], 8 * barriers
    for operand, memory in zip(operands, allocations, strict=True):
        if memory is not None:
            (slots, *block), dtype = memory.shape, memory.dtype
            integer = jnp.issubdtype(dtype, jnp.integer)  # int4 has 4 bits, but an itemsize of 1
            bits = jnp.iinfo(dtype).bits if integer else 8 * jnp.dtype(dtype).itemsize
            size = math.prod(block) * bits // 8
            total += slots * size
            terms.append(f"{operand.name} {slots} x {size:,} B")
    if total > SMEM_BYTES:
        raise ValueError(
            f"The pipeline needs {' + '.join(terms)} + {barriers} barriers x 8 B = {total:,} B of"
            f" shared memory, but a block has {SMEM_BYTES:,} B, so the kernel could not start. Use"
            " fewer slots (max_concurrent_steps) or smaller blocks."
        )
    return total


def compute_registers(memory_registers: int, num_compute_wgs: int) -> int:
    """Registers for each lane of a compute thread: its share, as PTX's `setmaxnreg` takes it."""
    if not 1 <= num_compute_wgs <= 7:
        raise ValueError(
            f"{num_compute_wgs=} is not 1 to 7: {num_compute_wgs} + 1 memory thread = "
            f"{num_compute_wgs + 1} threads of 128 lanes, but a block has at most 1,024 lanes."
        )
    if memory_registers % 8 or not 24 <= memory_registers <= 256:
        raise ValueError(
            f"{memory_registers=}: setmaxnreg compiles only with a multiple of 8 from 24 to 256."
        )
    threads = num_compute_wgs + 1
    pool = threads * begin_registers(threads)
    return min(256, (pool - memory_registers) // num_compute_wgs) // 8 * 8


def begin_registers(threads: int) -> int:
    """Registers for each lane with which a block of so many Pallas threads begins, all equally.

    A multiple of 8. Only these can be shared out afterwards: who asks for more than are left waits
    for ever (PTX ISA, `setmaxnreg`).
    """
    return min(256, REGISTERS // threads) // 8 * 8


def _gpu_spec(name: str, spec: Any, is_output: bool) -> plgpu.BlockSpec:
    """Checks one BlockSpec; a plain one becomes the GPU kind."""
    if not isinstance(spec, pl.BlockSpec):
        raise ValueError(f"{name}: {spec!r} is not a BlockSpec; use pl.BlockSpec(shape, map).")
    if spec.pipeline_mode is not None:
        raise NotImplementedError(f"{name}: pipeline_mode= is not supported: all have equal slots.")
    space, block = spec.memory_space, spec.block_shape
    if space not in _SMEM + _GMEM:
        raise ValueError(f"{name}: memory_space={space} is not SMEM or GMEM: no copies reach it.")
    if spec.index_map is not None and block is None:
        raise ValueError(f"{name}: an index_map but no block_shape: it indexes blocks of no size.")
    for dim in block or ():
        _block_size(dim, name)
    if not isinstance(spec, plgpu.BlockSpec):
        return plgpu.BlockSpec(block, spec.index_map, memory_space=space)
    if spec.collective_axes and (is_output or len(spec.collective_axes) > 1):
        fact = "Only a single collective axis supported in input BlockSpecs"
        if is_output:
            fact = "Output BlockSpecs cannot have collective_axes, since a store has one source"
        raise ValueError(f"{name}: {fact}, but got {spec.collective_axes}.")
    return spec


def _block_size(dim: Any, name: str = "block_shape") -> int | None:
    """The size of one dimension of a block; None if it is squeezed away."""
    match dim:
        case None | pl.Squeezed():
            return None
        case int():
            return dim
        case pl.Element(padding=padding) if tuple(padding) != (0, 0):
            raise NotImplementedError(
                f"{name}: Element dim with padding not supported: {padding} would be ignored."
            )
        case pl.Blocked() | pl.Element():
            return dim.block_size
    raise NotImplementedError(f"{name}: Unsupported block dimension type {type(dim)}: of no size.")


def _uses_grid(name: str, spec: plgpu.BlockSpec, rank: int) -> bool:
    """Whether an index map's results, traced back, depend on its arguments."""
    if spec.index_map is None:
        return False
    try:
        index = jax.ShapeDtypeStruct((), jnp.int32)
        jaxpr = jax.make_jaxpr(spec.index_map)(*[index] * rank).jaxpr
    except TypeError as e:
        raise ValueError(f"{name}: the index_map fails for {rank} grid indices: {e}") from e
    if len(jaxpr.outvars) != len(spec.block_shape):
        raise ValueError(
            f"{name}: the index_map returns {len(jaxpr.outvars)} indices for a block of"
            f" {len(spec.block_shape)} dimensions {spec.block_shape}; each needs one."
        )
    needed = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(map(id, eqn.outvars)):
            needed.update(map(id, eqn.invars))
    return not needed.isdisjoint(map(id, jaxpr.invars))


# Types of arguments.


def wrong_type(name: str, value: Any, because: str) -> TypeError:
    """The error for an argument of a type that nothing can be done with."""
    given = f"{name}={reprlib.repr(value)} has type {type(value).__name__}"
    return TypeError(f"{given}, but {because}.")


def integer(name: str, value: Any) -> int:
    """The value as an int, NumPy's too; TypeError if it is none, or known only at run time."""
    try:
        return operator.index(value)
    except TypeError:
        because = "a kernel is compiled for it, so it must be an integer that is known before"
        raise wrong_type(name, value, because) from None


def is_integer(value: Any) -> bool:
    """Whether it is an integer without axes, known or traced, and no truth value."""
    if isinstance(value, (int, np.integer)):
        return not isinstance(value, bool)
    is_array = isinstance(value, (np.ndarray, jax.Array))
    return is_array and value.shape == () and jnp.issubdtype(value.dtype, jnp.integer)


def check_function(name: str, value: Any) -> None:
    """Raises TypeError for what cannot be called."""
    if not callable(value):
        raise wrong_type(name, value, "it is called while a kernel is traced: give a function")


def check_array(name: str, value: Any) -> None:
    """Raises TypeError for what has no shape and dtype, such as a list."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise wrong_type(name, value, "a kernel copies arrays: make one, with jnp.asarray")


def check_ref(name: str, value: Any) -> None:
    """Raises TypeError for what is no ref, such as an array."""
    if isinstance(value, (jax.Array, np.ndarray)) or not hasattr(value, "at"):
        raise wrong_type(name, value, "blocks are copied from and to refs of a kernel: give one")
