"""What a trace knows as it goes: values, refs, a thread's ops, the memory of a cluster.

The model. Threads are traced one after the other: the threads of the cluster's first block, then
the threads of the next, in row-major order of the cluster's axes. When a thread allocates memory,
every block gets the same memory at once, with consecutive numbers. So a block knows its peers'
memory before they run. The n-th allocation of one block is the n-th of each block, if the types
agree; where blocks go different ways, each has some memory that it never uses.

Barriers are kept in a pool, as Mosaic GPU keeps them: it initialises each array once, at the start
of the kernel. A scope takes the first free array of its type (arrivals, length, axes) and gives it
back at its end, with its phases. So a scope that is entered again has the barriers that it had.

A Pallas thread is 4 warps that do the same; each counts its own waits. Where `plgpu.warp_map` lets
them do different things, each becomes a `Thread` of its own, beside the one that they make up.

All blocks share GMEM. A cluster's array of barriers exists in each block. A block arrives on the
arrays of the blocks that differ from it along one of the array's axes only, and they on its own.
"""

import dataclasses
import enum
import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from pallascope.machine import COLUMN_BYTES
from pallascope.program import (
    Barrier,
    BarrierType,
    Buffer,
    Kind,
    Op,
    Program,
    Region,
    Role,
    Single,
    Space,
    Warp,
)
from pallascope.tracing.jaxprs import Aval, Dtype, Eqn, Layout, Mesh, Transforms, Value

_SMEM_ALIGNMENT, _BARRIER_BYTES = 1024, 8
_COLUMN_ALIGNMENT = 4  # of TMEM, in columns: JAX's `TMEM_COL_ALIGNMENT`
MOST_INTEGERS = 2**24  # in an array that the trace knows
_WARPS = 4  # of a Pallas thread, which is a warpgroup


class _Opaque:
    """A value that depends on what tensors hold."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


class Other(enum.StrEnum):
    """Where refs are that are no buffers of a program."""

    BARRIER = "barrier"
    SEMAPHORE = "semaphore"
    REGISTERS = "regs"
    UNKNOWN = "unknown"


class Ended(Exception):
    """A thread reached max_steps."""


class Ref:
    """A buffer or an array of barriers; `value` is what a scalar or a concrete argument holds.

    `ids` has its number in each block of the program, `id` its number in this block. `is_empty`
    says that the host made it without contents.
    """

    __slots__ = ("id", "ids", "is_empty", "shape", "space", "value", "whole")

    def __init__(
        self,
        id: int,
        shape: tuple[int, ...],
        space: Space | Other,
        value: Value = OPAQUE,
        ids: tuple[int, ...] = (),
        is_empty: bool = False,
    ):
        self.is_empty = is_empty
        self.id, self.shape, self.space, self.value = id, shape, space, value
        self.ids = ids or (id,)
        self.whole = Region(id, tuple((0, size) for size in shape))


class Thread:
    """One thread, or a warp of it, as it is traced; the host's thread has no cluster.

    `own` is the index of the Pallas thread that it is or is of. `warps` are those that had a part
    of their own so far: none or all.
    """

    def __init__(self, index: int, block: int, cluster: "Cluster | None", max_steps: int | None):
        self.index, self.block, self.cluster, self.max_steps = index, block, cluster, max_steps
        self.own, self.warps = index, list[Thread]()
        self.ops: list[Op] = []
        self.step: tuple[int, ...] = ()
        self.scope = ""
        self.ways: tuple[tuple[int, int], ...] = ()  # of the branches here that data choose
        self.branches = 0  # how many of these branches it has come to
        self.waits: Counter[Single] = Counter()
        self.arrivals: Counter[Single] = Counter()
        self.allocations: Counter[bool] = Counter()
        self.reserved: Counter[Hashable] = (
            Counter()
        )  # barriers in use, by what the pool knows them by
        self.smem_bytes = self.peak_bytes = 0
        self.tmem_columns = self.peak_columns = 0
        self.claims = 0  # how many answers of cluster launch control it has looked at
        self.registers: int | None = None
        self.axes: dict[Hashable, int] = {}
        self.devices: dict[Hashable, int] = {}  # of the host: the axes of the devices it runs on
        self.kernels: list[Call] = []

    @property
    def home(self) -> "Cluster":
        """The cluster that a kernel's thread is of."""
        assert self.cluster is not None, "the host's thread is of no cluster"
        return self.cluster

    def next_phases(self, place: Single) -> list[int]:
        """The phases that a wait here waits for: one, unless its warps have waited apart."""
        warps = self.warps or [self]
        phases = sorted({warp.waits[place] for warp in warps})
        for warp in warps:
            warp.waits[place] += 1
        return phases

    def next_arrival(self, place: Single) -> int:
        """How many arrivals the thread has made here before this one."""
        before = self.arrivals[place]
        self.arrivals[place] += 1
        return before

    def each_warp(self) -> "list[Thread]":
        """The thread's warps, each as a thread of its own that is where this one is."""
        if not self.warps:
            self.warps = [self.home.warp_of(self, number) for number in range(_WARPS)]
        for warp in self.warps:
            warp.step, warp.scope, warp.ways = self.step, self.scope, self.ways
        return self.warps

    def enter(self, made: "Allocation") -> None:
        """Begins a scope with this memory."""
        self.reserved.update(made.barriers)
        self.smem_bytes += made.size
        self.peak_bytes = max(self.peak_bytes, self.smem_bytes)
        self.tmem_columns += made.columns
        self.peak_columns = max(self.peak_columns, self.tmem_columns)

    def leave(self, made: "Allocation") -> None:
        """Ends the scope."""
        self.reserved.subtract(made.barriers)
        self.smem_bytes -= made.size
        self.tmem_columns -= made.columns

    def reserve_scratch(self) -> int | None:
        """Where the scratch of a reduction begins; None if the kernel gives reductions none."""
        if not self.home.scratch_bytes:
            return None
        self.peak_bytes = max(self.peak_bytes, self.smem_bytes + self.home.scratch_bytes)
        self.home.has_reduction = True
        return self.smem_bytes

    def begin_step(self, index: int, outer: tuple[int, ...]) -> None:
        """Enters a step of a loop within the steps `outer`; raises Ended if it is one too many."""
        if index == self.max_steps:
            raise Ended
        self.step = (index, *outer)


class Allocation(NamedTuple):
    """What one run_scoped gets in one block.

    `size` is that of its buffers in SMEM, in bytes; `barriers` has what the pool knows its arrays
    of barriers by; `columns` are those of TMEM.
    """

    number: int
    refs: list[Ref]
    size: int
    barriers: tuple[Hashable, ...]
    columns: int


class Call(NamedTuple):
    """A kernel that the host calls: its equation, its operands, the axes of its devices.

    `names` are what the host calls the operands, None where it does not say. `name` is the
    kernel's own, of which each call of a function has another.
    """

    eqn: Eqn
    values: list[Value]
    devices: dict[Hashable, int]
    names: Sequence[str | None] = ()
    name: str = ""


class Reserved(NamedTuple):
    """SMEM that Mosaic GPU reserves by itself, in bytes: for a block's `reductions`, if it has any,
    and for each Pallas thread for the `profiler`."""

    reductions: int = 0
    profiler: int = 0


class Cluster:
    """The blocks of a kernel that are traced together, and what their threads share.

    They are those of one cluster of one device, or, if `is_whole`, all blocks of the grid on each
    of the devices: then the axes of the devices and of the grid are taken as the cluster's first.
    `mesh` is the kernel's; `block` the cluster's index on the axes of the grid, or on its only one.
    It claims at most so many `claims` of other clusters.
    `params` say what SMEM is reserved that no scope has, and `auto_barriers` is the program's.
    """

    def __init__(
        self,
        name: str,
        mesh: Mesh,
        block: int | Sequence[int] | None,
        params: Reserved,
        devices: dict[Hashable, int] | None = None,
        is_whole: bool = False,
        auto_barriers: bool = True,
        claims: int = 0,
    ):
        self.most_claims = 0 if is_whole else claims
        self.auto_barriers = auto_barriers
        devices = devices or {}
        self.name, self.mesh_sizes = name, tuple(devices.values())
        self.devices = devices if is_whole else {}
        self.scratch_bytes, self.has_reduction = _aligned(params.reductions), False
        self.grid, self.shape = tuple(mesh.grid), tuple(mesh.cluster)
        self.grid_names, self.names = tuple(mesh.grid_names), tuple(mesh.cluster_names)
        self.threads, self.thread_name = mesh.num_threads or 1, mesh.thread_name
        names = (*self.grid_names, *self.names)
        self.profiler_bytes = params.profiler * self.threads
        self.block = self._checked(block, names)
        self.axes = dict.fromkeys(devices, 0) | dict(zip(names, self.block))
        own = dict(zip(names, self.grid + self.shape))
        self.sizes = devices | own | {self.thread_name: self.threads}
        self.cluster_names = self.names
        if is_whole:
            self.names = (*devices, *names)
        self.places = list(itertools.product(*(range(self.sizes[name]) for name in self.names)))
        self.buffers: list[Buffer] = []
        self.barriers: list[Barrier] = []
        self.num_scopes = 0
        self._made: dict[Hashable, list[Allocation]] = {}
        self._entered: dict[tuple[int, int], tuple[Aval, ...]] = {}
        self._pool: dict[Hashable, list[list[Ref]]] = {}
        self._globals: dict[Hashable, list[Ref]] = {}
        self._named: dict[tuple[int, int], int] = {}
        self.warps: list[tuple[Warp, Thread]] = []

    def _checked(
        self, block: int | Sequence[int] | None, names: Sequence[Hashable]
    ) -> tuple[int, ...]:
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

    def peers(self, block: int, axes: Sequence[Hashable]) -> tuple[int, ...]:
        """The blocks that differ from this one along these axes only, this one among them."""
        free = [name in axes for name in self.names]
        mine = self.places[block]
        return tuple(
            number
            for number, place in enumerate(self.places)
            if all(is_free or at == own for is_free, at, own in zip(free, place, mine))
        )

    def cluster_of(self, block: int) -> tuple[int, ...]:
        """The blocks of the cluster that a block is in."""
        return self.peers(block, self.cluster_names)

    def claimed(self, number: int) -> tuple[int, ...] | None:
        """The indices in the grid of the cluster that the attempt of this number, from 1, claims.

        None if it claims none.
        """
        own = int(np.ravel_multi_index(self.block[: len(self.grid)], self.grid))
        if number > self.most_claims or own + number >= math.prod(self.grid):
            return None
        return tuple(map(int, np.unravel_index(own + number, self.grid)))

    @property
    def num_devices(self) -> int:
        """How many devices the blocks are on."""
        return math.prod(self.devices.values())

    def device_of(self, block: int) -> int:
        """The device that a block is on."""
        return block * self.num_devices // len(self.places)

    def on_device(self, block: int, device: Any) -> int:
        """The block at this one's place on another device, by its index on the devices' axes.

        The index is a number, if there is one axis, a tuple, or has the axes by name.
        """
        if isinstance(device, dict):
            return self.block_at(block, cast(dict[Hashable, int], device))
        indices = jax.tree.leaves(device)
        return self.block_at(block, dict(zip(self.devices, indices, strict=True)))

    def block_at(self, block: int, indices: dict[Hashable, int]) -> int:
        """The block at this one's place, but with these indices."""
        place = tuple(indices.get(name, at) for name, at in zip(self.names, self.places[block]))
        if place not in self.places:
            raise ValueError(
                f"Block {self.places[block]} reaches for the block {place}, but the axes"
                f" {', '.join(map(str, self.names))} have the sizes"
                f" {tuple(self.sizes[name] for name in self.names)}, so there is none: keep each"
                " index below the axis's size."
            )
        return self.places.index(place)

    def warp_of(self, thread: Thread, number: int) -> Thread:
        """A warp of a thread, as a thread of its own, which has waited where its thread has."""
        index = self.threads * len(self.places) + len(self.warps)
        warp = Thread(index, thread.block, self, thread.max_steps)
        warp.own, warp.arrivals, warp.waits = thread.own, thread.arrivals, Counter(thread.waits)
        self.warps.append((Warp(thread.index, number), warp))
        return warp

    def argument(self, name: str, aval: Aval, value: Value, role: Role) -> list[Ref]:
        """A buffer in GMEM that is an operand or a result of the kernel, for each block.

        Or semaphores, which the host allocates.
        """
        if space_of(aval) == Other.SEMAPHORE:
            return self.semaphores(name, tuple(aval.shape))
        return self._gmem(name, tuple(aval.shape), aval.dtype, role, None, value)

    def _gmem(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Dtype,
        role: Role,
        scope: int | None,
        value: Value = OPAQUE,
    ) -> list[Ref]:
        """A ref for each block; the blocks of a device have one buffer."""
        size, first = bytes_of(math.prod(shape), bits_of(dtype)), len(self.buffers)
        for device in range(self.num_devices):
            label = self._on(name, device)
            buffer = Buffer(first + device, label, Space.GMEM, shape, str(dtype), size, role=role)
            self.buffers.append(dataclasses.replace(buffer, scope_id=scope))
        return self._for_blocks(first, shape, Space.GMEM, value)

    def _for_blocks(
        self, first: int, shape: tuple[int, ...], space: Space | Other, value: Value = OPAQUE
    ) -> list[Ref]:
        """A ref for each block to what its device has, numbered from `first` on."""
        numbers = range(first, first + self.num_devices)
        ids = tuple(numbers[self.device_of(block)] for block in range(len(self.places)))
        each = [Ref(number, shape, space, value, ids) for number in numbers]
        return [each[self.device_of(block)] for block in range(len(self.places))]

    def allocate(
        self,
        thread: Thread,
        avals: tuple[Aval, ...],
        names: Sequence[str],
        transforms: Transforms,
        shared: bool = False,
    ) -> Allocation:
        """Memory and barriers of these types, for the thread alone or for all of its block."""
        owner = None if shared else thread.own % self.threads
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
            self._made[key] = self._make(thread, owner, avals, names, transforms)
        return self._made[key][thread.block]

    def _make(
        self,
        thread: Thread,
        owner: int | None,
        avals: tuple[Aval, ...],
        names: Sequence[str],
        transforms: Transforms,
    ) -> list[Allocation]:
        """One allocation for each block."""
        blocks = range(len(self.places))
        first, self.num_scopes = self.num_scopes, self.num_scopes + len(blocks)
        columns: list[list[Ref]] = []
        reserved: list[Hashable] = []
        for name, aval, transform in zip(names, avals, transforms, strict=True):
            if space_of(aval) == Other.BARRIER:
                key = owner, tuple(aval.shape), aval.dtype
                taken = thread.reserved[key] + reserved.count(key)
                columns.append(self._barriers(name, aval, owner, key, taken))
                reserved.append(key)
            else:
                columns.append(self._refs(name, aval, transform, owner, first))
        rows = [[column[block] for column in columns] for block in blocks]
        return [
            Allocation(
                first + block, row, self._smem_bytes(row), tuple(reserved), self._columns(row)
            )
            for block, row in zip(blocks, rows)
        ]

    def _barriers(
        self, name: str, aval: Aval, owner: int | None, key: Hashable, taken: int
    ) -> list[Ref]:
        """The first free array of barriers of this type in each block; `taken` are in use."""
        pool = self._pool.setdefault(key, [])
        if taken < len(pool):
            for block, ref in enumerate(pool[taken]):
                self.barriers[ref.id] = _also_called(self.barriers[ref.id], self._at(name, block))
            return pool[taken]
        first, count = len(self.barriers), len(self.places)
        ids = tuple(range(first, first + count))
        refs = [Ref(id, tuple(aval.shape), Other.BARRIER, ids=ids) for id in ids]
        for block, ref in enumerate(refs):
            thread = self._thread(owner, block) if self.threads > 1 else None
            self.barriers.append(self._barrier(ref, self._at(name, block), aval, thread, block))
        pool.append(refs)
        return refs

    def named_barrier(self, block: int, number: int, arrivals: int) -> Barrier:
        """A named barrier of a block, as whoever uses it first says how many arrivals it takes."""
        key = block, number
        if key not in self._named:
            self._named[key] = len(self.barriers)
            name = self._at(f"named barrier {number}", block)
            kind, id = BarrierType.NAMED, len(self.barriers)
            new = Barrier(id, name, arrivals, 1, block=block, type=kind, number=number)
            self.barriers.append(new)
        return self.barriers[self._named[key]]

    def _at(self, name: str, block: int) -> str:
        """The name of a buffer or an array of barriers in this block's own memory."""
        return name if len(self.places) == 1 else f"{name}@{block}"

    def _on(self, name: str, device: int) -> str:
        """The name of a buffer or an array of semaphores in this device's own memory."""
        return name if self.num_devices == 1 else f"{name}@{device}"

    def _thread(self, owner: int | None, block: int) -> int | None:
        """The number of the thread that is `owner` in its block."""
        return None if owner is None else block * self.threads + owner

    def global_semaphores(self, key: Hashable, shape: tuple[int, ...]) -> list[Ref]:
        """The semaphores of one place in the code, whoever comes to it first, for each block."""
        if key not in self._globals:
            self._globals[key] = self.semaphores(f"semaphore.{len(self._globals)}", shape)
        return self._globals[key]

    def semaphores(self, name: str, shape: tuple[int, ...]) -> list[Ref]:
        """An array of semaphores for each block, which all blocks of a device share."""
        first, count = len(self.barriers), math.prod(shape)
        for device in range(self.num_devices):
            label = self._on(name, device)
            self.barriers.append(
                Barrier(first + device, label, 0, count, type=BarrierType.SEMAPHORE)
            )
        return self._for_blocks(first, shape, Other.SEMAPHORE)

    def _refs(
        self, name: str, aval: Aval, transforms: Transforms, owner: int | None, first: int
    ) -> list[Ref]:
        """A ref of this type in each block."""
        space, shape = space_of(aval), tuple(aval.shape)
        blocks = range(len(self.places))
        if space == Other.SEMAPHORE:
            return self.semaphores(name, shape)
        if space in (Other.REGISTERS, Other.UNKNOWN):
            raise NotImplementedError(
                f"{name!r} is {aval}, in memory that no kernel of Mosaic GPU allocates, so no op on"
                " it could be checked: allocate it in SMEM, GMEM or as an accumulator."
            )
        if space == Space.GMEM:
            return self._gmem(name, shape, aval.dtype, Role.SCRATCH, first)
        ids = tuple(len(self.buffers) + block for block in blocks)
        shape, _ = logical(shape, transforms)
        refs = [Ref(id, shape, space, ids=ids) for id in ids]
        for block, ref in zip(blocks, refs):
            is_own = self.threads > 1 or space == Space.ACC
            thread = self._thread(owner, block) if is_own else None
            label = self._at(name, block)
            self.buffers.append(self._buffer(ref, label, aval, thread, first + block, block))
        return refs

    def _buffer(
        self, ref: Ref, name: str, aval: Aval, thread: int | None, scope: int, block: int
    ) -> Buffer:
        assert isinstance(ref.space, Space), f"{name} is in {ref.space}, where no buffer is"
        size = bytes_of(math.prod(ref.shape), bits_of(aval.dtype))
        if ref.space is Space.TMEM:
            size = columns_of(aval.layout, ref.shape, bits_of(aval.dtype)) * COLUMN_BYTES
        return Buffer(
            ref.id, name, ref.space, ref.shape, str(aval.dtype), size, None, thread, scope, block
        )

    def _barrier(self, ref: Ref, name: str, aval: Aval, thread: int | None, block: int) -> Barrier:
        """An array of barriers; a cluster's also takes arrivals from other blocks, on each axis."""
        axes: tuple[Hashable, ...] = tuple(getattr(aval.dtype, "collective_axes", ()))
        groups = [self.peers(block, _several(axis)) for axis in axes]
        blocks = sorted(set[int]().union(*groups))
        if getattr(aval.dtype, "leader_tracked", False):  # only the axis's first block hears of it
            blocks = blocks[:1]
        peers = tuple(ref.ids[peer] for peer in blocks) if len(groups) else ()
        peers = () if peers == (ref.id,) else peers
        arrivals = aval.dtype.num_arrivals * (1 + sum(len(group) - 1 for group in groups))
        names = tuple("+".join(map(str, _several(axis))) for axis in axes)
        count = math.prod(ref.shape)
        orders = getattr(aval.dtype, "orders_tensor_core", False)
        return Barrier(
            ref.id, name, arrivals, count, names, thread, block, peers, orders_tensor_core=orders
        )

    def _smem_bytes(self, refs: list[Ref]) -> int:
        """The bytes of a block's shared memory that buffers take, each aligned."""
        sizes = (self.buffers[ref.id].bytes for ref in refs if ref.space == Space.SMEM)
        return sum(map(_aligned, sizes))

    def _columns(self, refs: list[Ref]) -> int:
        """The columns of TMEM that buffers take, each aligned."""
        sizes = (self.buffers[ref.id].bytes for ref in refs if ref.space == Space.TMEM)
        return sum(_up(size // COLUMN_BYTES, _COLUMN_ALIGNMENT) for size in sizes)

    def _barrier_bytes(self) -> int:
        """The bytes of shared memory that a block's barriers take, in use or not."""
        memory = (b for b in self.barriers if b.type is BarrierType.MBARRIER and not b.block)
        return _BARRIER_BYTES * sum(barrier.count for barrier in memory)

    def program(self, code: Any, arguments: list[list[Ref]], max_steps: int | None) -> Program:
        """Runs the kernel's code for all threads of all blocks; each block has its arguments."""
        threads: list[Thread] = []
        ended: list[int] = []
        for block, place in enumerate(self.places):
            for local in range(self.threads):
                thread = Thread(len(threads), block, self, max_steps)
                thread.axes = self.axes | dict(zip(self.names, place)) | {self.thread_name: local}
                try:
                    code.run(thread, [refs[block] for refs in arguments])
                except Ended:
                    ended += [thread.index, *(warp.index for warp in thread.warps)]
                threads.append(thread)
        most = max(thread.peak_bytes for thread in threads) + self._barrier_bytes()
        most += self.profiler_bytes
        registers = tuple(thread.registers for thread in threads)
        threads += [thread for _, thread in self.warps]
        ops = tuple(tuple(thread.ops) for thread in threads)
        return Program(
            name=self.name,
            threads=ops,
            buffers=_with_slots(self.buffers, ops),
            barriers=tuple(self.barriers),
            grid=self.grid,
            cluster=self.shape,
            block=self.block,
            smem_bytes=most,
            registers=registers,
            truncated=tuple(ended),
            blocks=len(self.places),
            warps=tuple(warp for warp, _ in self.warps),
            devices=self.mesh_sizes,
            scratch_bytes=self.scratch_bytes if self.has_reduction else 0,
            profiler_bytes=self.profiler_bytes,
            auto_barriers=self.auto_barriers,
            tmem_columns=max(thread.peak_columns for thread in threads),
        )


def _aligned(size: int) -> int:
    """The bytes that an allocation of this size takes in SMEM."""
    return _up(size, _SMEM_ALIGNMENT)


def _up(size: int, unit: int) -> int:
    """A size rounded up to a multiple of the unit."""
    return -(-size // unit) * unit


def columns_of(layout: Layout, shape: tuple[int, ...], bits: int) -> int:
    """The columns of TMEM that an array of this shape takes in a layout of JAX's.

    A column has 32 bits of each of the 128 lanes: one element, or as many as a layout packs.
    """
    return layout.cols_in_shape(shape, bits)


def _several(axis: object) -> tuple[object, ...]:
    """The names in what is one axis of a cluster or several together."""
    return cast(tuple[object, ...], axis) if isinstance(axis, tuple) else (axis,)


def _also_called(barrier: Barrier, name: str) -> Barrier:
    """The array under its names so far and this one."""
    names = barrier.name.split("/")
    return barrier if name in names else dataclasses.replace(barrier, name="/".join([*names, name]))


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


@functools.cache
def bits_of(dtype: Dtype) -> int:
    """The bits of an element; 0 for what is no number, as a barrier."""
    is_number = isinstance(cast(object, dtype), np.dtype)
    return jax.dtypes.itemsize_bits(dtype) if is_number else 0


def bytes_of(elements: int, bits: int) -> int:
    """The bytes that so many elements of `bits` bits take, side by side."""
    return -(-elements * bits // 8)


def space_of(aval: Aval) -> Space | Other:
    """Where a ref of this type is."""
    if "Barrier" in type(aval.dtype).__name__:
        return Other.BARRIER
    if "Semaphore" in type(aval.dtype).__name__:
        return Other.SEMAPHORE
    if "Accumulator" in type(aval).__name__:
        return Space.ACC
    name = str(getattr(aval, "memory_space", None) or Other.REGISTERS).lower()
    return _SPACES.get(name, Other.UNKNOWN)


# What JAX calls a memory space; `any` is where a kernel's arguments are by default.
_SPACES: dict[str, Space | Other] = {
    **{str(space): space for space in Space},
    "any": Space.GMEM,
    "hbm": Space.GMEM,
    "regs": Other.REGISTERS,
}


def logical(shape: tuple[int, ...], transforms: Transforms) -> tuple[tuple[int, ...], int]:
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
