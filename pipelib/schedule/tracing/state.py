"""What a trace knows as it goes: values, refs, a thread's ops, the memory of a cluster.

The model. Threads are traced one after the other: the threads of the cluster's first block, then
the threads of the next, in row-major order of the cluster's axes. When a thread allocates memory,
every block gets the same memory at once, with consecutive numbers. So a block knows its peers'
memory before they run. The n-th allocation of one block is the n-th of each block, if the types
agree; where blocks go different ways, each has some memory that it never uses.

All blocks share GMEM. A cluster's array of barriers exists in each block. A block arrives on the
arrays of the blocks that differ from it along one of the array's axes only, and they on its own.
"""

import dataclasses
import enum
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple, cast

from pipelib.schedule.program import Barrier, Buffer, Kind, Op, Program, Region, Role, Space

_SMEM_ALIGNMENT, _BARRIER_BYTES = 1024, 8


class _Opaque:
    """A value that depends on what tensors hold."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


class Other(enum.StrEnum):
    """Where refs are that are no buffers of a program; TMEM is Blackwell's, which is refused."""

    BARRIER = "barrier"
    REGISTERS = "regs"
    TMEM = "tmem"
    UNKNOWN = "unknown"


class Ended(Exception):
    """A thread reached max_steps."""


class Ref:
    """A buffer or an array of barriers; `value` is what a scalar or a concrete argument holds.

    `ids` has its number in each block of the cluster, `id` its number in this block.
    """

    __slots__ = ("id", "ids", "shape", "space", "value", "whole")

    def __init__(
        self, id: int, shape: tuple[int, ...], space: Space | Other, value: Any = OPAQUE,
        ids: tuple[int, ...] = (),
    ):  # fmt: skip
        self.id, self.shape, self.space, self.value = id, shape, space, value
        self.ids = ids or (id,)
        self.whole = Region(id, tuple((0, size) for size in shape))


class Thread:
    """One thread as it is traced; the host's thread has no cluster."""

    def __init__(self, index: int, block: int, cluster: "Cluster | None", max_steps: int | None):
        self.index, self.block, self.cluster, self.max_steps = index, block, cluster, max_steps
        self.ops: list[Op] = []
        self.step: tuple[int, ...] = ()
        self.scope = ""
        self.waits: Counter[tuple[int, int]] = Counter()
        self.arrivals: Counter[tuple[int, int]] = Counter()
        self.allocations: Counter[bool] = Counter()
        self.smem_bytes = self.peak_bytes = 0
        self.registers: int | None = None
        self.axes: dict[Any, int] = {}
        self.kernels: list[tuple[Any, list[Any]]] = []

    @property
    def home(self) -> "Cluster":
        """The cluster that a kernel's thread is of."""
        assert self.cluster is not None, "the host's thread is of no cluster"
        return self.cluster

    def begin_step(self, index: int, outer: tuple[int, ...]) -> None:
        """Enters a step of a loop within the steps `outer`; raises Ended if it is one too many."""
        if index == self.max_steps:
            raise Ended
        self.step = (index, *outer)


class Allocation(NamedTuple):
    """What one run_scoped gets in one block; `size` is in bytes of SMEM."""

    number: int
    refs: list[Ref]
    size: int


class Cluster:
    """The blocks of one cluster of a kernel, and what their threads share.

    `mesh` is the kernel's; `block` the cluster's index on the axes of the grid, or on its only one.
    """

    def __init__(self, name: str, mesh: Any, block: int | Sequence[int] | None):
        self.name = name
        self.grid, self.shape = tuple(mesh.grid), tuple(mesh.cluster)
        self.names = tuple(mesh.cluster_names)
        self.threads, self.thread_name = mesh.num_threads or 1, mesh.thread_name
        names = (*mesh.grid_names, *self.names)
        self.block = self._checked(block, names)
        self.axes = dict(zip(names, self.block))
        self.sizes = dict(zip(names, self.grid + self.shape)) | {self.thread_name: self.threads}
        self.places = list(itertools.product(*map(range, self.shape)))
        self.buffers: list[Buffer] = []
        self.barriers: list[Barrier] = []
        self.num_scopes = 0
        self._made: dict[Any, list[Allocation]] = {}
        self._entered: dict[tuple[int, int], tuple[Any, ...]] = {}

    def _checked(self, block: int | Sequence[int] | None, names: Sequence[Any]) -> tuple[int, ...]:
        """The index of the cluster's first block on all axes."""
        sizes = self.grid + (1,) * len(self.shape)
        if block is None:
            return (0,) * len(sizes)
        indices = tuple(block) if isinstance(block, Iterable) else (block,)
        if not all(isinstance(index, Integral) for index in indices):
            raise TypeError(
                f"{block=} is not of integers, so it is no block of the grid {self.grid}: give one"
                " for each axis."
            )
        block = tuple(map(int, indices))
        if len(block) == len(self.grid):
            block += (0,) * len(self.shape)
        if len(block) != len(sizes):
            raise ValueError(
                f"{block=} has {len(block)} indices, but the grid {self.grid} has"
                f" {len(self.grid)} axes and the cluster {len(self.shape)}: give one for each axis"
                " of the grid."
            )
        for name, index, size in zip(names, block, sizes):
            if name in self.names and index:
                raise ValueError(
                    f"{block=} has {index} on the cluster's axis {name!r}, but the blocks of a"
                    " cluster are traced together: give 0 there, or nothing."
                )
            if not 0 <= index < size:
                raise ValueError(
                    f"{block=} is not in the grid: axis {name!r} has the blocks 0 to {size - 1},"
                    f" and {index} is not one of them."
                )
        return block

    def peers(self, block: int, axes: Sequence[Any]) -> tuple[int, ...]:
        """The blocks that differ from this one along these axes only, this one among them."""
        free = [name in axes for name in self.names]
        mine = self.places[block]
        return tuple(
            number
            for number, place in enumerate(self.places)
            if all(is_free or at == own for is_free, at, own in zip(free, place, mine))
        )

    def block_at(self, block: int, indices: dict[Any, int]) -> int:
        """The block at this one's place, but with these indices."""
        place = tuple(indices.get(name, at) for name, at in zip(self.names, self.places[block]))
        if place not in self.places:
            raise ValueError(
                f"Block {self.places[block]} reaches for the block {place} of its cluster of"
                f" {self.shape}, which has none there: keep each index below the axis's size."
            )
        return self.places.index(place)

    def argument(self, name: str, aval: Any, value: Any, role: Role) -> Ref:
        """A buffer in GMEM that is an operand or a result of the kernel."""
        return self._gmem(name, tuple(aval.shape), aval.dtype, role, None, value)

    def _gmem(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        role: Role,
        scope: int | None,
        value: Any = OPAQUE,
    ) -> Ref:
        number, size = len(self.buffers), math.prod(shape) * dtype.itemsize
        self.buffers.append(
            Buffer(number, name, Space.GMEM, shape, str(dtype), size, scope_id=scope, role=role)
        )
        return Ref(number, shape, Space.GMEM, value, (number,) * len(self.places))

    def allocate(
        self,
        thread: Thread,
        avals: tuple[Any, ...],
        names: Sequence[str],
        transforms: Sequence[Any],
        shared: bool = False,
    ) -> Allocation:
        """Memory and barriers of these types, for the thread alone or for all of its block."""
        owner = None if shared else thread.index % self.threads
        place = thread.allocations[shared]
        thread.allocations[shared] += 1
        if shared:
            others = self._entered.setdefault((thread.block, place), avals)
            if others != avals:
                raise ValueError(
                    f"Thread {thread.index} allocates {list(map(str, avals))} where another"
                    f" allocates {list(map(str, others))}, though together: all threads must"
                    " reach the same run_scoped."
                )
        key = owner, place, avals
        if key not in self._made:
            self._made[key] = self._make(owner, avals, names, transforms)
        return self._made[key][thread.block]

    def _make(
        self,
        owner: int | None,
        avals: tuple[Any, ...],
        names: Sequence[str],
        transforms: Sequence[Any],
    ) -> list[Allocation]:
        """One allocation for each block."""
        blocks = range(len(self.places))
        first, self.num_scopes = self.num_scopes, self.num_scopes + len(blocks)
        columns = [
            self._refs(name, aval, transform, owner, first)
            for name, aval, transform in zip(names, avals, transforms, strict=True)
        ]
        rows = [[column[block] for column in columns] for block in blocks]
        return [Allocation(first + b, row, self._smem_bytes(row)) for b, row in zip(blocks, rows)]

    def _refs(
        self, name: str, aval: Any, transforms: Sequence[Any], owner: int | None, first: int
    ) -> list[Ref]:
        """A ref of this type in each block."""
        space, shape = space_of(aval), tuple(aval.shape)
        blocks = range(len(self.places))
        if space == Other.TMEM:
            raise NotImplementedError(
                f"{name!r} is in TMEM, the memory of Blackwell's tensor core, which a Hopper GPU"
                " lacks: only kernels for Hopper are traced."
            )
        if "Semaphore" in type(aval.dtype).__name__:
            raise NotImplementedError(
                f"{name!r} is a semaphore, by which blocks and devices wait for each other, but a"
                " program is that of one cluster of one device: trace a kernel that needs none."
            )
        if space in (Other.REGISTERS, Other.UNKNOWN):
            raise NotImplementedError(
                f"{name!r} is {aval}, in memory that no kernel of Mosaic GPU allocates, so no op on"
                " it could be checked: allocate it in SMEM, GMEM or as an accumulator."
            )
        if space == Space.GMEM:
            shared = self._gmem(name, shape, aval.dtype, Role.SCRATCH, first)
            return [shared for _ in blocks]
        first_id = len(self.barriers if space == Other.BARRIER else self.buffers)
        ids = tuple(first_id + block for block in blocks)
        if space != Other.BARRIER:
            shape, _ = logical(shape, transforms)
        refs = [Ref(id, shape, space, ids=ids) for id in ids]
        for block, ref in zip(blocks, refs):
            label = name if len(blocks) == 1 else f"{name}@{block}"
            thread = None
            if owner is not None and (self.threads > 1 or space == Space.ACC):
                thread = block * self.threads + owner
            at = thread, first + block, block
            if space == Other.BARRIER:
                self.barriers.append(self._barrier(ref, label, aval, *at))
            else:
                self.buffers.append(self._buffer(ref, label, aval, *at))
        return refs

    def _buffer(
        self, ref: Ref, name: str, aval: Any, thread: int | None, scope: int, block: int
    ) -> Buffer:
        assert isinstance(ref.space, Space), f"{name} is in {ref.space}, where no buffer is"
        size = math.prod(ref.shape) * aval.dtype.itemsize
        return Buffer(
            ref.id, name, ref.space, ref.shape, str(aval.dtype), size, None, thread, scope, block
        )

    def _barrier(
        self, ref: Ref, name: str, aval: Any, thread: int | None, scope: int, block: int
    ) -> Barrier:
        """An array of barriers; a cluster's also takes arrivals from other blocks, on each axis."""
        axes: tuple[Any, ...] = tuple(getattr(aval.dtype, "collective_axes", ()))
        groups = [self.peers(block, _several(axis)) for axis in axes]
        blocks = sorted(set[int]().union(*groups))
        peers = tuple(ref.ids[peer] for peer in blocks) if len(blocks) > 1 else ()
        arrivals = aval.dtype.num_arrivals * (1 + sum(len(group) - 1 for group in groups))
        names = tuple("+".join(map(str, _several(axis))) for axis in axes)
        count = math.prod(ref.shape)
        return Barrier(ref.id, name, arrivals, count, names, thread, scope, block, peers)

    def _smem_bytes(self, refs: list[Ref]) -> int:
        """The bytes of a block's shared memory that refs take, each buffer aligned."""
        total = 0
        for ref in refs:
            if ref.space == Other.BARRIER:
                total += _BARRIER_BYTES * self.barriers[ref.id].count
            elif ref.space == Space.SMEM:
                total += -(-self.buffers[ref.id].bytes // _SMEM_ALIGNMENT) * _SMEM_ALIGNMENT
        return total

    def program(self, code: Any, arguments: list[Ref], max_steps: int | None) -> Program:
        """Runs the kernel's code for all threads of all blocks."""
        threads: list[Thread] = []
        ended: list[int] = []
        for block, place in enumerate(self.places):
            for local in range(self.threads):
                thread = Thread(len(threads), block, self, max_steps)
                thread.axes = self.axes | dict(zip(self.names, place)) | {self.thread_name: local}
                try:
                    code.run(thread, arguments)
                except Ended:
                    ended.append(thread.index)
                threads.append(thread)
        ops = tuple(tuple(thread.ops) for thread in threads)
        return Program(
            self.name, ops, _with_slots(self.buffers, ops), tuple(self.barriers), self.grid,
            self.shape, self.block, max(t.peak_bytes for t in threads),
            tuple(t.registers for t in threads), tuple(ended), len(self.places),
        )  # fmt: skip


def _several(axis: object) -> tuple[object, ...]:
    """The names in what is one axis of a cluster or several together."""
    return cast(tuple[object, ...], axis) if isinstance(axis, tuple) else (axis,)


def _with_slots(buffers: Sequence[Buffer], threads: Sequence[Sequence[Op]]) -> tuple[Buffer, ...]:
    """The buffers, with `slots` where ops only ever take SMEM's first dimension one at a time."""
    rings = {b.id for b in buffers if b.space == Space.SMEM and len(b.shape) > 1}
    for ops in threads:
        for op in ops:
            for region in op.reads + op.writes:
                if region.buffer in rings:
                    start, stop = region.box[0]
                    parts = max(len(op.reads), len(op.writes))
                    is_cut = parts > 1 and op.kind in (Kind.READ, Kind.WRITE)
                    if stop - start != 1 or is_cut:
                        rings.discard(region.buffer)
    return tuple(dataclasses.replace(b, slots=b.shape[0]) if b.id in rings else b for b in buffers)


def space_of(aval: Any) -> Space | Other:
    """Where a ref of this type is."""
    if "Barrier" in type(aval.dtype).__name__:
        return Other.BARRIER
    if "Accumulator" in type(aval).__name__:
        return Space.ACC
    name = str(getattr(aval, "memory_space", None) or Other.REGISTERS).lower()
    return _SPACES.get(name, Other.UNKNOWN)


# What JAX calls a memory space; `any` is where a kernel's arguments are by default.
_SPACES: dict[str, Space | Other] = {
    "any": Space.GMEM, "hbm": Space.GMEM, "gmem": Space.GMEM, "smem": Space.SMEM,
    "acc": Space.ACC, "regs": Other.REGISTERS, "tmem": Other.TMEM,
}  # fmt: skip


def logical(shape: tuple[int, ...], transforms: Sequence[Any]) -> tuple[tuple[int, ...], int]:
    """A ref's shape without tiles, and how many of the transforms say how it is laid out."""
    for done, transform in enumerate(transforms):
        name = type(transform).__name__
        if name == "UntilingTransform":
            shape = untiled(shape, transform.tiling)
        elif name != "UnswizzleRef":
            return shape, done
    return shape, len(transforms)


def untiled(shape: tuple[int, ...], tiling: Sequence[int]) -> tuple[int, ...]:
    """The shape whose last axes were cut into tiles."""
    rank = len(tiling)
    tiles, inner = shape[-2 * rank : -rank], shape[-rank:]
    return shape[: -2 * rank] + tuple(map(operator.mul, tiles, inner))
