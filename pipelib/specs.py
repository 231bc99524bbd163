"""The arguments of a pipeline, checked: BlockSpecs and their SMEM, threads and their registers.

The model. An *operand* is one leaf of `in_specs` or `out_specs`. In SMEM it has a ring of slots,
each of the shape of its block. There are two exceptions. An output whose index map uses no grid
index has a single slot, because its block never changes. An operand that is *pinned* to GMEM has no
slot; the body gets its GMEM ref.

Everything that can be known to be wrong before a kernel is traced is refused here.
"""

import dataclasses
import functools
import math
import operator
import reprlib
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import targets, tiles
from pipelib.refs import Index, Int, Ref, Tree, TreeDef, flatten_with_path

#: Bytes of shared memory that a block may use on Hopper.
SMEM_BYTES = targets.SMEM_BYTES
#: Registers for each of 128 lanes, if one Pallas thread had all 65,536. Source: CUDA C++
#: Programming Guide, "Technical Specifications".
REGISTERS = 65536 // 128
#: Barriers in one array, and so slots in a ring: Mosaic GPU keeps the parity of each in 32 bits.
MAX_SLOTS = 32
_ARRAYS: tuple[type[Any], ...] = jax.Array, np.ndarray
_SMEM, _GMEM = (None, pl.MemorySpace.DEFAULT, plgpu.SMEM), (pl.MemorySpace.ANY, plgpu.GMEM)


@dataclasses.dataclass
class ByRows(plgpu.BlockSpec):
    """A block in tiles that copies move by rows: see `tiles`.

    A block that is several pieces wide has them one after the other in SMEM, each by a copy of its
    own. So the body gets a ref [pieces, rows, columns of a piece].
    """


@dataclasses.dataclass(frozen=True)
class Operand:
    """One leaf of the specs.

    Attributes:
      name: where the leaf stands, as in `in_specs[0]`.
      spec: its BlockSpec, of the GPU kind.
      changes: whether its block depends on the step.
      pinned: whether it stays in GMEM.
    """

    name: str
    spec: plgpu.BlockSpec
    changes: bool
    pinned: bool

    @property
    def collective_axes(self) -> tuple[str, ...] | None:
        """The cluster axis along which loads are multicast, in a tuple; None without one."""
        # JAX lets an axis have any name, but its copies take strings.
        return cast("tuple[str, ...] | None", self.spec.collective_axes)

    def block_sizes(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """A block's size along each axis of the operand of this shape; None if it is squeezed away.

        Raises:
          ValueError: the block has more or fewer dimensions than the operand.
        """
        block = self.spec.block_shape
        if block is None:
            return shape
        if len(block) != len(shape):
            raise ValueError(
                f"{self.name}: a block of {len(block)} dimensions {block} cannot tile an"
                f" operand of {len(shape)} {shape}; each dimension needs one entry."
            )
        return tuple(map(_block_size, block))

    @property
    def has_element_axes(self) -> bool:
        """Whether the index map counts elements, not blocks, on some axis."""
        return any(isinstance(dim, pl.Element) for dim in self.spec.block_shape or ())

    def allocation(self, gmem_ref: Ref, slots: int) -> pl.MemoryRef | None:
        """The SMEM for this number of slots of the operand `gmem_ref`; None if pinned.

        Raises:
          ValueError: the block has more or fewer dimensions than the operand.
        """
        if self.pinned:
            return None
        sizes = self.block_sizes(tuple(gmem_ref.shape))
        shape = tuple(size for size in sizes if size is not None)
        return plgpu.SMEM((slots, *shape), gmem_ref.dtype, transforms=self.spec.transforms)

    def shared(self, memory: pl.MemoryRef | None) -> pl.MemoryRef | None:
        """What is allocated for an `allocation`: two refs of it, if copies move it by rows."""
        if memory is None or not isinstance(self.spec, ByRows):
            return memory
        dtype = cast(jax.typing.DTypeLike, memory.dtype)
        shape = cast(tuple[int, ...], memory.shape)
        if (pieces := self.pieces(dtype)) > 1:
            shape = (*shape[:-2], pieces, shape[-2], shape[-1] // pieces)
        return tiles.by_rows(shape, dtype)

    def pieces(self, dtype: jax.typing.DTypeLike) -> int:
        """How many copies move a block of this dtype: by rows, one for each piece's width."""
        if not isinstance(self.spec, ByRows):
            return 1
        shape = self.spec.block_shape
        columns = _block_size(shape[-1]) if shape else None
        return max(1, (columns or 1) // tiles.piece_columns(dtype))

    def block_indices(self, indices: Sequence[jax.Array]) -> tuple[Int, ...]:
        """The block that a step visits, by the index map; the first block if there is no map."""
        if self.spec.index_map is None:
            return (0,) * len(self.spec.block_shape or ())
        result: Sequence[Int] | Int = self.spec.index_map(*indices)
        return tuple(result) if isinstance(result, (tuple, list)) else (cast(Int, result),)

    def is_left(
        self,
        step: jax.Array,
        num_steps: Int,
        indices: Sequence[jax.Array],
        following: Sequence[jax.Array],
    ) -> jax.Array:
        """Whether a step is the last of `num_steps`, or the next step visits another block.

        `indices` and `following` are the grid indices of the step and of the next one.
        """
        blocks = map(self.block_indices, (indices, following))
        changes = (jnp.asarray(old != new) for old, new in zip(*blocks))
        return functools.reduce(lax.bitwise_or, changes, step == num_steps - 1)

    def gmem_slices(self, indices: Sequence[jax.Array]) -> tuple[Index | EllipsisType, ...]:
        """The index of a step's block in GMEM, for `gmem_ref.at[...]`."""
        if self.spec.block_shape is None:
            return (...,)
        slices: list[Index] = []
        for index, dim in zip(self.block_indices(indices), self.spec.block_shape, strict=True):
            size = _block_size(dim)
            start = index if size is None or isinstance(dim, pl.Element) else index * size
            slices.append(start if size is None else pl.ds(start, size))
        return tuple(slices)


def flatten(specs: Tree, argument: str, rank: int) -> tuple[tuple[Operand, ...], TreeDef]:
    """The operands and the pytree of `in_specs` or `out_specs`.

    Args:
      specs: the value of the argument.
      argument: its name.
      rank: the number of grid axes.

    Raises:
      ValueError, NotImplementedError: for a leaf that is not a BlockSpec, or a wrong one.
    """
    specs = tuple(cast(Sequence[Tree], specs)) if isinstance(specs, (list, tuple)) else (specs,)
    leaves, tree = flatten_with_path(specs)
    operands: list[Operand] = []
    for path, spec in leaves:
        name = argument + jax.tree_util.keystr(path)  # pyright: ignore[reportUnknownMemberType]
        spec = _gpu_spec(name, spec, is_output=argument == "out_specs")
        changes, pinned = _uses_grid(name, spec, rank), spec.memory_space in _GMEM
        operands.append(Operand(name, spec, changes, pinned))
    return tuple(operands), tree


def check_slots(slots: int, inputs: Sequence[Operand]) -> None:
    """Raises ValueError unless the slots suffice for every delay_release."""
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(
            f"max_concurrent_steps={slots} is not 1 to {MAX_SLOTS}: each slot has a barrier, and an"
            f" array has at most {MAX_SLOTS} barriers."
        )
    for operand in inputs:
        delay = integer(f"{operand.name}: delay_release", operand.spec.delay_release)
        if not 0 <= delay < slots:
            raise ValueError(
                f"{operand.name}: max_concurrent_steps must be greater than delay_release, but"
                f" max_concurrent_steps={slots} and delay_release={delay}: {slots} - {delay} ="
                f" {slots - delay} slots are free to load into, and the next block never arrives."
            )


def check_smem(
    operands: Sequence[Operand],
    allocations: Sequence[pl.MemoryRef | None],
    barriers: int,
    limit: int = SMEM_BYTES,
) -> int:
    """The bytes of SMEM that these allocations and barriers take.

    Args:
      operands: their names are in the error.
      allocations: the SMEM of each operand; None if it has none.
      barriers: how many there are, of 8 bytes each.
      limit: the bytes that a block may use.

    Raises:
      ValueError: the sum is more than the limit; the error names each of its terms.
    """
    terms: list[str] = []
    total = 8 * barriers
    for operand, memory in zip(operands, allocations, strict=True):
        if memory is not None:
            slots, *block = cast(tuple[int, ...], memory.shape)
            dtype = jnp.dtype(cast(jax.typing.DTypeLike, memory.dtype))
            size = math.prod(block) * bits_of(dtype) // 8
            total += slots * size
            terms.append(f"{operand.name} {slots} x {size:,} B")
    terms += [f"{barriers} barriers x 8 B"] if barriers else []
    if total > limit:
        raise ValueError(
            f"The pipeline needs {' + '.join(terms)} = {total:,} B of"
            f" shared memory, but a block has {limit:,} B, so the kernel could not start. Use"
            " fewer slots (max_concurrent_steps) or smaller blocks."
        )
    return total


def bits_of(dtype: jax.typing.DTypeLike) -> int:
    """The bits of an element. An int4 has 4, but an itemsize of 1."""
    dtype = jnp.dtype(dtype)
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return jnp.iinfo(dtype).bits if is_integer else 8 * dtype.itemsize


def compute_registers(memory_registers: int, num_compute_wgs: int) -> int:
    """Registers for each lane of a compute thread: an equal share of what the memory thread leaves.

    A multiple of 8 up to 256, which PTX's `setmaxnreg` accepts.

    Raises:
      ValueError: the block would have more than 1,024 lanes, or `setmaxnreg` does not accept
        `memory_registers`.
    """
    if not 1 <= num_compute_wgs <= 7:
        raise ValueError(
            f"{num_compute_wgs=} is not 1 to 7: {num_compute_wgs} + 1 memory thread = "
            f"{num_compute_wgs + 1} threads of 128 lanes, but a block has at most 1,024 lanes."
        )
    if memory_registers % 8 or not 24 <= memory_registers <= 256:
        raise ValueError(
            f"{memory_registers=} is not a multiple of 8 from 24 to 256, so setmaxnreg would not"
            " compile."
        )
    threads = num_compute_wgs + 1
    pool = threads * begin_registers(threads)
    return min(256, (pool - memory_registers) // num_compute_wgs) // 8 * 8


def begin_registers(threads: int) -> int:
    """Registers that each lane has when a block of this many Pallas threads begins.

    A multiple of 8. Threads can only redistribute these: a thread that asks for more than the
    others have given up waits for ever (PTX ISA, `setmaxnreg`).
    """
    return min(256, REGISTERS // threads) // 8 * 8


@dataclasses.dataclass(frozen=True)
class Threads:
    """The Pallas threads of a block.

    Attributes:
      axis: the name of the kernel's thread axis.
      compute: how many threads compute.
      memory_thread: the index of the thread that loads.
      memory_registers, compute_registers: registers for each lane of these threads.
    """

    axis: str
    compute: int
    memory_thread: int
    memory_registers: int
    compute_registers: int

    @classmethod
    def of(
        cls, axis: str, compute: int, memory_thread: int | None, memory_registers: int
    ) -> "Threads":
        """Checks the arguments; by default the last thread is the memory thread.

        Raises:
          ValueError, TypeError: for numbers that are wrong, or not integers.
        """
        memory_registers = integer("memory_registers", memory_registers)
        compute = integer("num_compute_wgs", compute)
        registers = compute_registers(memory_registers, compute)
        if memory_thread is None:
            memory_thread = compute
        memory_thread = integer("memory_thread_idx", memory_thread)
        if not 0 <= memory_thread <= compute:
            raise ValueError(
                f"memory_thread_idx={memory_thread} is not 0 to num_compute_wgs={compute}: nothing"
                " would be loaded."
            )
        return cls(axis, compute, memory_thread, memory_registers, registers)

    @property
    def first_compute_thread(self) -> int:
        """The index of the compute thread that stores for all."""
        return int(self.memory_thread == 0)

    def check_kernel(self, *, exact: bool) -> None:
        """Raises ValueError if the kernel has too few threads, or (if `exact`) too many."""
        try:
            size = lax.axis_size(self.axis)
        except NameError:
            raise ValueError(
                f"wg_axis={self.axis!r} is not an axis of this kernel, so no thread would know its"
                " role: give the kernel's thread_name."
            ) from None
        if size < (threads := self.compute + 1) or (exact and size > threads):
            raise ValueError(
                f"num_compute_wgs={self.compute} + 1 memory thread = {threads} threads, but the"
                f" axis {self.axis!r} has {size}: a slot is released by {self.compute}"
                " arrivals, so fewer deadlock and more release it early."
            )


def _gpu_spec(name: str, spec: object, is_output: bool) -> plgpu.BlockSpec:
    """Checks one BlockSpec; a plain one becomes the GPU kind."""
    if not isinstance(spec, pl.BlockSpec):
        raise ValueError(f"{name}: {spec!r} is not a BlockSpec; use pl.BlockSpec(shape, map).")
    if spec.pipeline_mode is not None:
        raise NotImplementedError(
            f"{name}: pipeline_mode= is not supported: all operands have equally many slots."
        )
    space, block = spec.memory_space, spec.block_shape
    if space not in _SMEM + _GMEM:
        raise ValueError(
            f"{name}: memory_space={space} is not SMEM or GMEM, so no copy reaches the block."
        )
    if spec.index_map is not None and block is None:
        raise ValueError(
            f"{name}: an index_map but no block_shape, so the blocks that it indexes have no size."
        )
    for axis, dim in enumerate(block or ()):
        size = _block_size(dim, name)
        if size is not None and size < 1:
            raise ValueError(
                f"{name}: a block of {block} has a side of {size} on axis {axis}, so it has no"
                " elements to copy: give each side 1 or more, or None for an index alone."
            )
    if not isinstance(spec, plgpu.BlockSpec):
        return plgpu.BlockSpec(block, spec.index_map, memory_space=space)
    if spec.collective_axes and (is_output or len(spec.collective_axes) > 1):
        fact = "Only a single collective axis supported in input BlockSpecs"
        if is_output:
            fact = "Output BlockSpecs cannot have collective_axes, since a store has one source"
        raise ValueError(f"{name}: {fact}, but got {spec.collective_axes}.")
    return spec


def _block_size(dim: object, name: str = "block_shape") -> int | None:
    """The size of one dimension of a block; None if it is squeezed away."""
    match dim:
        case None | pl.Squeezed():
            return None
        case int():
            return dim
        case pl.Element(padding=padding) if tuple(padding) != (0, 0):
            raise NotImplementedError(
                f"{name}: Element dim with padding not supported: the padding {padding} would be"
                " ignored."
            )
        case pl.Blocked() | pl.Element():
            return dim.block_size
        case _:
            pass
    raise NotImplementedError(
        f"{name}: Unsupported block dimension type {type(dim)}, whose size is not known: use an"
        " int, None, pl.Element or pl.Blocked."
    )


def _uses_grid(name: str, spec: plgpu.BlockSpec, rank: int) -> bool:
    """Whether the results of an index map depend on its arguments, by its jaxpr.

    Raises:
      ValueError: the map cannot be called with `rank` indices, or gives more or fewer indices than
        the block has dimensions.
    """
    if spec.index_map is None or spec.block_shape is None:
        return False
    try:
        index = jax.ShapeDtypeStruct((), jnp.int32)
        jaxpr = jax.make_jaxpr(spec.index_map)(*[index] * rank).jaxpr
    except TypeError as e:
        raise ValueError(
            f"{name}: the index_map fails for {rank} grid indices: {e}. It takes one index for each"
            " axis of the grid."
        ) from e
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


def wrong_type(name: str, value: object, because: str) -> TypeError:
    """The error for an argument of a wrong type; `because` says what was expected and why."""
    given = f"{name}={reprlib.repr(value)} has type {type(value).__name__}"
    return TypeError(f"{given}, but {because}.")


def integer(name: str, value: object) -> int:
    """The value as an int, if it is an integer of Python, NumPy or JAX.

    Raises:
      TypeError: it is not an integer, or is traced and so known only at run time.
    """
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        because = "a kernel is compiled for it, so it must be an integer that is known before"
        raise wrong_type(name, value, because) from None


def is_integer(value: object) -> bool:
    """Whether the value is an integer scalar, known or traced, and not a bool."""
    if isinstance(value, (int, np.integer)):
        return not isinstance(value, bool)
    if not isinstance(value, _ARRAYS):
        return False
    array = cast(jax.Array, value)
    return array.shape == () and jnp.issubdtype(array.dtype, jnp.integer)


def flag(name: str, value: object) -> bool:
    """The value as a bool, if it is one of Python, NumPy or JAX.

    Raises:
      TypeError: it is not a bool, or is traced and so known only at run time.
    """
    try:
        is_flag = value in (False, True)
    except (TypeError, ValueError):  # traced; an array of several
        is_flag = False
    if not is_flag:
        because = "what is computed depends on it, so it must be True or False, known before"
        raise wrong_type(name, value, because)
    return bool(value)


def check_carry(carry: Tree) -> None:
    """Raises TypeError or ValueError for a first carry of anything but arrays and numbers."""
    for leaf in jax.tree.leaves(carry):
        if not isinstance(leaf, (int, float)) and not hasattr(leaf, "dtype"):
            because = "steps hand on arrays and numbers"
            raise wrong_type("init_carry", leaf, because)
        if isinstance(leaf, int) and not -(2**31) <= leaf < 2**31:
            raise ValueError(f"init_carry={leaf} is no int32, as which a step would hand it on.")


def check_function(name: str, value: object) -> None:
    """Raises TypeError unless the value can be called."""
    if not callable(value):
        raise wrong_type(name, value, "it is called while a kernel is traced: give a function")


def maybe_beyond(start: Int, size: Int) -> pl.Slice:
    """A slice for a copy that may end behind the array, where the copy ends.

    JAX refuses a start that is a number if the slice ends there; the barrier makes it no number.
    """
    if is_integer(start):
        start = lax.optimization_barrier(jnp.int32(start))  # pyright: ignore[reportUnknownMemberType]
    return pl.ds(start, size)


def maybe_longer(index: Index | EllipsisType, length: int) -> Index | EllipsisType:
    """The index of a copy along an axis; from 0.12 on JAX refuses a block longer than its array."""
    if not isinstance(index, pl.Slice) or not isinstance(index.start, (int, np.integer)):
        return index
    if index.start + index.size <= length:
        return index
    beyond = maybe_beyond(index.start, index.size)
    # A tiled axis asks for a start that is seen to be a multiple of the tile.
    start = pl.multiple_of(cast(jax.Array, beyond.start), math.gcd(index.start, index.size))
    return pl.ds(start, index.size)


def check_array(name: str, value: object) -> None:
    """Raises TypeError unless the value has a shape and a dtype, as a list has not."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise wrong_type(name, value, "a kernel copies arrays: make one, with jnp.asarray")


def check_ref(name: str, value: object) -> None:
    """Raises TypeError unless the value is a ref, as an array is not."""
    if isinstance(value, _ARRAYS) or not hasattr(value, "at"):
        raise wrong_type(name, value, "blocks are copied from and to refs of a kernel: give one")
