"""`Program`: what the threads of one block do, as a plain value.

The model. A traced Pallas thread is straight-line code: a tuple of `Op`s in program order. Where
data choose a branch, the ops of all branches follow one another. An op names memory by **regions**
(a buffer's id, and an interval for each of its dimensions) and a barrier by its id and the flat
index in its array. A program does not hold times, the values of tensors, or the order between
threads. This module knows nothing of JAX: a program can be built by hand.

==================  ================================================================================
kind                what the op does; fields of its own
==================  ================================================================================
load                copies GMEM to SMEM asynchronously and arrives once on its barrier. It may be
                    shared along axes of the cluster (`collective`), or write registers to a peer's
                    SMEM (`from_registers`), perhaps adding to what is there (`combines`). It may
                    also bring the answer of cluster launch control (`claims`)
store               copies SMEM to GMEM asynchronously, perhaps adding to what is there (`combines`)
prefetch            copies into the L2 cache (`collective`)
cp_async            copies GMEM to SMEM asynchronously before Hopper, where a thread's lanes copy
                    together: a group of its own, which arrives on no barrier
wait_cp_async       returns once at most `pending` of the thread's `cp_async` are unfinished
commit_group        closes the group of this thread's stores so far
wait_store          returns once at most `pending` groups are unfinished; with `read_only`, once the
                    others have been read
arrive, wait, test  works on a barrier
read, write         accesses GMEM or SMEM ordinarily. The banks of SMEM serve it in `wavefronts` of
                    up to 128 bytes, one after another. An atomic operation (`combines`) is a write
                    that also reads
compute             does arithmetic in registers: `flops` operations, `transcendental` of them
                    transcendental functions, then lanes pass each other `exchanges` words of 32
                    bits, those of several warps by way of the SMEM at `scratch`
wgmma               starts a product on the tensor core
wgmma_wait          returns once at most `pending` products are unfinished
tcgen05_mma         starts a product of Blackwell's tensor core, whose result is in TMEM
tcgen05_copy        starts a copy from SMEM to TMEM, in the tensor core's queue
tcgen05_commit      arrives on a barrier, and on its `peers`, once the products and copies that its
                    thread has started are over
load_tmem           reads TMEM into registers asynchronously
store_tmem          writes registers to TMEM asynchronously
wait_load_tmem      returns once the thread's reads of TMEM are over
wait_store_tmem     is `commit_tmem`: returns once the thread's writes of TMEM are over
acc_init            gives an accumulator its first value
acc_read            reads an accumulator, once at most `pending` products are unfinished
acc_write           gives an accumulator a new value
fence               is `commit_smem`: asynchronous readers see what was written before it
registers           gives the thread this many `registers` from here on (`action` says which way)
scope_begin/_end    begins or ends the memory of scope `scope_id`; a `shared` scope is that of all
                    threads of the block, which meet where it begins
meet                returns once all `members` have come to this meeting of theirs; of one thread,
                    once all of its lanes have
signal, await       adds `amount` to a semaphore, perhaps another device's; waits until it holds
                    `amount`, and takes that off unless it `keeps` it
grid_wait           returns once the kernels before this one have ended, and what they wrote can
                    be seen
grid_signal         lets the kernel after this one start, once each block has done so or ended
skip                is a copy whose predicate is off: what it would read counts as used
opaque              is code that only the device understands (`function`); its regions are whole
                    buffers
==================  ================================================================================

`phase` is a count, not a parity. For a wait or a test it says how many phases of this barrier the
thread has waited for before. For an arrival (`arrive`, `load`) it says how many arrivals the thread
itself has made there before. Not covered: how the arrivals of several threads add up to phases; the
reader finds this out.

Blackwell. TMEM is memory of a block's SM, 128 lanes of 512 columns of 32 bits, which only the
asynchronous kinds above access. PTX orders them between threads only where a barrier
`orders_tensor_core`: then a `tcgen05.fence` comes before each arrival and after each wait of a
thread. A product of two blocks (`collective`) is one op of the first of them, with regions of both.

Parts. A load announces to its barrier how many parts the barrier's phase gets from elsewhere, and
lands one on each of its `peers`. For most loads these are the same number. Where one block tracks
the copies of several (`leader_tracked`), that block's load announces the `parts` of all, and the
others' announce none: they make no arrival, and land on the first block's barrier.

A barrier is an array of mbarriers in SMEM. Mosaic GPU initialises it once, at the start of the
kernel, so it lives as long as the kernel: a scope that a loop enters again, or another scope that
asks for the same kind of array, gets it with the phases that it has been through. `BarrierType` has
the others.

Warps. A Pallas thread is a warpgroup, whose 4 warps do the same ops. Where they do not
(`plgpu.warp_map`), each warp is a thread of its own at the end of `threads`, and `warps` says of
which thread. It meets its thread where its part begins, and again where it ends.

A cluster. The blocks of one cluster are one program: `threads` lists the threads of the first
block, then those of the next. Each block has SMEM and barriers of its own (`block` says whose);
all share GMEM. An arrival on a barrier with `peers` arrives on each of these (its own barrier is
among them), and `arrivals` counts the arrivals from all blocks. A load with `peers` is a multicast:
it writes the regions `writes`, its part in each peer's SMEM, and its bytes count on the barrier of
each peer. The parts of all peers make up its `whole`. The phase of its own barrier is complete when
it has arrived and the corresponding loads of all peers have landed there too.

A grid. A program may also have all blocks of a grid, on one or more devices (`devices`): in the
order of the devices, then of the grid, then within the cluster. Blocks of one device share GMEM.
Where there are several devices, the name of what lies in a device's GMEM ends in its number: `x@1`.
Source: this project's own.
"""

import dataclasses
import enum
import itertools
import json
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pallascope import sources

FORMAT = 7

Single = tuple[int, int]  # one barrier or semaphore: the id of its array, and its index there


class Engine(enum.StrEnum):
    """What works for a thread, which goes on meanwhile; the value is the name of its lane."""

    LOADS = "TMA loads"
    STORES = "TMA stores"
    TENSOR_CORE = "tensor core"
    TMEM = "tensor memory"
    CP_ASYNC = "cp.async loads"


class Name(enum.StrEnum):
    """Names that stand for themselves: equal to their text, and shown in quotes, as in JSON.

    A class says `what` its names are, and the `consequence` of a text that is none of them: the
    ValueError for that text gives both, and the names.
    """

    _what: str
    _consequence: str

    def __init_subclass__(cls, *, what: str, consequence: str) -> None:
        """Keeps what the error says."""
        super().__init_subclass__()
        cls._what, cls._consequence = what, consequence

    def __repr__(self) -> str:
        return str.__repr__(self)

    @classmethod
    def _missing_(cls, value: object) -> None:
        names = cls if all(cls) else map(repr, cls)  # quotes show a name that is empty
        raise ValueError(
            f"{value!r} is not {cls._what}, so {cls._consequence}: give one of {', '.join(names)}."
        )


class Kind(
    Name, what="a kind of op", consequence="neither check nor simulate would know what it does"
):
    """What an op does; equal to its name, so `op.kind == "load"` holds.

    The one table of kinds: `engine` is what works on memory for the thread, None if the thread
    itself does; `is_copy` says whether that engine is TMA, which clips its accesses of GMEM;
    `is_product` whether a tensor core multiplies. Order, simulation and words each have a `match`
    on kinds, which a type checker and `tests/pallascope/test_kinds.py` hold against this list.
    """

    engine: Engine | None
    is_copy: bool
    is_product: bool

    def __new__(cls, name: str, engine: Engine | None = None) -> "Kind":
        """A kind of this name."""
        kind = str.__new__(cls, name)
        kind._value_, kind.engine = name, engine
        kind.is_copy = engine in (Engine.LOADS, Engine.STORES)
        kind.is_product = name in ("wgmma", "tcgen05_mma")
        return kind

    LOAD = "load", Engine.LOADS
    STORE = "store", Engine.STORES
    PREFETCH = "prefetch", Engine.LOADS
    COMMIT_GROUP = "commit_group"
    WAIT_STORE = "wait_store"
    CP_ASYNC = "cp_async", Engine.CP_ASYNC
    WAIT_CP_ASYNC = "wait_cp_async"
    ARRIVE = "arrive"
    WAIT = "wait"
    TEST = "test"
    READ = "read"
    WRITE = "write"
    COMPUTE = "compute"
    WGMMA = "wgmma", Engine.TENSOR_CORE
    WGMMA_WAIT = "wgmma_wait"
    TCGEN05_MMA = "tcgen05_mma", Engine.TENSOR_CORE
    TCGEN05_COPY = "tcgen05_copy", Engine.TENSOR_CORE
    TCGEN05_COMMIT = "tcgen05_commit"
    LOAD_TMEM = "load_tmem", Engine.TMEM
    STORE_TMEM = "store_tmem", Engine.TMEM
    WAIT_LOAD_TMEM = "wait_load_tmem"
    WAIT_STORE_TMEM = "wait_store_tmem"
    ACC_INIT = "acc_init"
    ACC_READ = "acc_read"
    ACC_WRITE = "acc_write"
    FENCE = "fence"
    REGISTERS = "registers"
    SCOPE_BEGIN = "scope_begin"
    SCOPE_END = "scope_end"
    MEET = "meet"
    SKIP = "skip"
    SIGNAL = "signal"
    AWAIT = "await"
    GRID_WAIT = "grid_wait"
    GRID_SIGNAL = "grid_signal"
    OPAQUE = "opaque"


class Space(
    Name,
    what="a space of memory",
    consequence="neither check nor simulate would know who shares it",
):
    """The memory that a buffer is in; equal to its name, so `buffer.space == "smem"` holds.

    GMEM is the card's memory, SMEM is a block's, TMEM is that of a block's tensor core (Blackwell),
    and accumulators (`acc`) are in the registers of a thread.
    """

    GMEM = "gmem"
    SMEM = "smem"
    TMEM = "tmem"
    ACC = "acc"


class Role(Name, what="a role of a buffer", consequence="nothing would know what it means"):
    """What a kernel does with a buffer in GMEM; equal to its name.

    The kernel gets an IN buffer initialised and has to fill an OUT buffer. It does both with an
    IN_OUT buffer, and has a SCRATCH buffer only while it runs. Other memory has the role NONE.
    """

    IN = "in"
    OUT = "out"
    IN_OUT = "in/out"
    SCRATCH = "scratch"
    NONE = ""


class BarrierType(
    Name, what="a type of barrier", consequence="nothing would know what its arrivals do"
):
    """What an array of barriers is; equal to its name.

    An MBARRIER is memory of a block. A NAMED barrier is one of the sixteen that a block has in
    hardware (`bar.sync`). A SEMAPHORE is a counter in GMEM, which blocks and devices share: its ops
    are `signal` and `await`, and it has no phases.
    """

    MBARRIER = "mbarrier"
    NAMED = "named"
    SEMAPHORE = "semaphore"


class Action(Name, what="an action of an op", consequence="nothing would know what it means"):
    """Which way a `registers` op changes a thread's registers; other ops have NONE."""

    INCREASE = "increase"
    DECREASE = "decrease"
    NONE = ""


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A box in a buffer: (start, stop) for each dimension, in elements of its logical shape.

    The box is what the op says, so it may reach beyond the buffer; `check` tells which parts the
    hardware leaves out and which are a fault. What is not a box (every other row, columns of a
    reshaped ref) is several regions of an ordinary access, or else one box around it, which is then
    not exact. Where an index depends on what a tensor holds, the box has the whole axis, and the
    region is not placed. `view` is empty, unless an index leads out of the view that it is an index
    of, as `n` does in `o.at[pl.ds(2 * i, 2)].at[n]` from 2 on: then it is the box of that view.
    """

    buffer: int
    box: tuple[tuple[int, int], ...]
    is_exact: bool = True
    is_placed: bool = True
    view: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """An allocation. `thread` and `scope_id` are None if all threads have it, all the time.

    `block` is the block of the cluster that has this memory, None for GMEM. `slots` is the number
    of equal parts along the first dimension, if the program only ever takes one of these at a time.
    The names of a space and of a role become that `Space` and that `Role`.

    Raises:
      ValueError: a `space` or a `role` that does not exist.
    """

    id: int
    name: str
    space: Space
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    slots: int | None = None
    thread: int | None = None
    scope_id: int | None = None
    block: int | None = None
    role: Role = Role.NONE

    def __post_init__(self) -> None:
        if type(self.space) is not Space:
            object.__setattr__(self, "space", Space(self.space))
        if type(self.role) is not Role:
            object.__setattr__(self, "role", Role(self.role))


@dataclass(frozen=True, slots=True)
class Barrier:
    """An array of `count` barriers; each phase of one takes `arrivals` arrivals.

    `cluster` names the axes along which an arrival is spread, `peers` the barriers that get it.
    `thread` is None if all threads of the block have it. `number` is that of a named barrier, from
    0 to 15. The name of a type becomes that `BarrierType`. Whether it `orders_tensor_core` says if
    accesses of TMEM before an arrival come before those after a wait.

    Raises:
      ValueError: a `type` that does not exist.
    """

    id: int
    name: str
    arrivals: int
    count: int
    cluster: tuple[str, ...] = ()
    thread: int | None = None
    block: int | None = None
    peers: tuple[int, ...] = ()
    type: BarrierType = BarrierType.MBARRIER
    number: int | None = None
    orders_tensor_core: bool = False

    def __post_init__(self) -> None:
        if type(self.type) is not BarrierType:
            object.__setattr__(self, "type", BarrierType(self.type))


@dataclass(frozen=True, slots=True, order=True)
class Warp:
    """One of the 4 warps of the Pallas thread `thread`; `number` is from 0 to 3."""

    thread: int
    number: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a thread; fields that do not apply to its kind are None, 0 or empty.

    Attributes:
      kind: what it does; the name of a kind becomes that `Kind`.
      thread: its number in the program.
      reads, writes: the regions of memory.
      barrier, index, phase: the barrier's array, the flat index there, and the count of phases. The
        latter two mean nothing where `barrier` is None.
      step: the counters of the loops around it, innermost first.
      line: "file:line" of the innermost frame that belongs neither to JAX nor to an emitter.
      caller: where the kernel's own function called the helper that has this line, or one around
        it; None if no helper has it.
      scope: the names of the named scopes.
      bytes: what it moves, or what a scope allocates.
      peers: the barriers of a multicast load, or those that a `tcgen05_commit` arrives on.
      scope_id: the number of the memory's scope that begins or ends.
      shared: whether all threads of the block have that scope together.
      members: the threads that meet, this one among them.
      amount: what a semaphore is given, or has to hold.
      scratch: where the memory begins that warps use to reduce an array together, in bytes from the
        start of the block's SMEM; all its threads share that memory. None if warps do not.
      ways: the branches around it whose way data choose, outermost first: the branch's number in
        the thread, and the number of the way that has this op.
      whole: of a multicast load, the two regions that the peers' parts make up: the tile in GMEM,
        and the place in this block's SMEM.
      parts: how many parts a load or an arrival announces to its barrier, if that is not one for
        each barrier that the load lands on, or none of an arrival.
      flops, transcendental, exchanges: operations of arithmetic, how many of them are
        transcendental functions, and words of 32 bits that lanes pass each other.
      wavefronts: of an access of SMEM; None if they are not known.
      combines: the operation, as "add", by which a store, an atomic write or a load from registers
        combines its value with the value in memory; empty if it overwrites that value.
      from_registers: whether a load copies registers, not GMEM.
      claims: whether a load brings the answer to `try_cluster_cancel`: which cluster of the grid
        this one does instead of its launch, or that there is none.
      collective: axes of the cluster along which blocks share a load or a prefetch.
      pending: how many groups or products may be unfinished when a wait returns; None if the op
        waits for nothing.
      read_only: whether a `wait_store` waits until stores have read their SMEM, not written GMEM.
      registers, action: what a lane has from here on, and whether that is more or less; the name
        of an action becomes that `Action`.
      function: the name of opaque code.
      keeps: whether a wait for a semaphore leaves what it holds.
      layout: of the values that an ordinary access reads or writes, in the lanes' registers; empty
        if it is not known.
      is_sure: false if a layout that is not known decides whether `scratch` is used.
      dtype: of a product's operands; empty for that of the buffer they are in, which differs if the
        buffer is read by another dtype (a union, a bitcast).

    Raises:
      ValueError: a `kind` or an `action` that does not exist.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> load = next(op for op in program.threads[0] if op.kind == "load")
      >>> load.bytes, load.step, program.barriers[load.barrier].name
      (1024, (0,), 'produced')
    """

    # First what differs from op to op of one equation, then what does not: see `Compiler.emitter`.
    kind: Kind
    thread: int
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    barrier: int | None = None
    index: int = 0
    phase: int = 0
    step: tuple[int, ...] = ()
    line: str | None = None
    scope: str = ""
    bytes: int = 0
    peers: tuple[int, ...] = ()
    scope_id: int | None = None
    shared: bool = False
    members: tuple[int, ...] = ()
    amount: int = 0
    scratch: int | None = None
    ways: tuple[tuple[int, int], ...] = ()
    whole: tuple[Region, ...] = ()
    parts: int | None = None
    flops: int = 0
    transcendental: int = 0
    exchanges: int = 0
    wavefronts: int | None = None
    combines: str = ""
    from_registers: bool = False
    claims: bool = False
    collective: tuple[str, ...] = ()
    pending: int | None = None
    read_only: bool = False
    registers: int | None = None
    action: Action = Action.NONE
    function: str = ""
    keeps: bool = False
    layout: str = ""
    is_sure: bool = True
    dtype: str = ""
    caller: str | None = None

    def __post_init__(self) -> None:
        if type(self.kind) is not Kind:
            object.__setattr__(self, "kind", Kind(self.kind))
        if type(self.action) is not Action:
            object.__setattr__(self, "action", Action(self.action))

    @property
    def source(self) -> str | None:
        """The line, and in words the line where the kernel's own function called it."""
        return f"{self.line}, called at {self.caller}" if self.caller else self.line

    @property
    def place(self) -> Single:
        """The single barrier of an op that is on one: the array's id, and the index there."""
        assert self.barrier is not None, f"{self.kind} is on no barrier"
        return self.barrier, self.index


@dataclass(frozen=True, slots=True)
class Program:
    """All that one block, one cluster of blocks, or a whole grid on one or more devices does.

    `threads` has the ops of each Pallas thread of each of the `blocks`, then the ops of single
    warps, whose threads `warps` names in the same order. `smem_bytes` is the most that a block
    allocates at once, with the `scratch_bytes` of its reductions and the `profiler_bytes` of a
    kernel that is compiled to be profiled; `registers` what each Pallas thread asked for last, if
    it did. `truncated` lists the threads whose ops end in the middle of a loop. `devices` has the
    sizes of the axes of the devices that the kernel runs on together, if `jax.shard_map` says so.
    `starts_early` says whether the grid may start before the kernel before it has ended
    (programmatic dependent launch), `auto_barriers` whether a thread's lanes meet before and after
    each ordinary write of the thread, and before each of its loads. `tmem_columns` is the most
    columns of TMEM that a block has at once.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> [(buffer.name, buffer.shape) for buffer in program.buffers]
      [('x', (2, 1, 128)), ('out0', (2, 1, 128)), ('x_smem', (1, 2, 1, 128))]
      >>> Program.from_json(program.to_json()) == program
      True
    """

    name: str
    threads: tuple[tuple[Op, ...], ...]
    buffers: tuple[Buffer, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    grid: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    smem_bytes: int = 0
    registers: tuple[int | None, ...] = ()
    truncated: tuple[int, ...] = ()
    blocks: int = 1
    warps: tuple[Warp, ...] = ()
    devices: tuple[int, ...] = ()
    starts_early: bool = False
    scratch_bytes: int = 0
    profiler_bytes: int = 0
    auto_barriers: bool = True
    tmem_columns: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it has all blocks of the grid on all devices, so that nobody else takes part."""
        return self.blocks == math.prod((*self.devices, *self.grid, *self.cluster))

    @property
    def spans_grid(self) -> bool:
        """Whether it has several clusters or devices, and so all that there are."""
        return self.is_whole and self.blocks > math.prod(self.cluster)

    @property
    def grid_index(self) -> tuple[int, ...]:
        """The index of its block, or of its cluster, on the axes of the grid."""
        return self.block[: len(self.grid)]

    @property
    def num_devices(self) -> int:
        """The number of devices that its blocks are on; 1 unless it has all blocks of several."""
        return math.prod(self.devices) if self.spans_grid else 1

    @property
    def counted(self) -> frozenset[Single]:
        """The semaphores of which it has all signals, each with an amount that is known.

        A semaphore is its array's id, and its index there. There are none where other blocks or
        devices may signal.
        """
        if not self.is_whole:
            return frozenset()
        arrays = (each for each in self.barriers if each.type is BarrierType.SEMAPHORE)
        places = {(array.id, index) for array in arrays for index in range(array.count)}
        for op in self.ops if places else ():
            if op.kind in (Kind.SIGNAL, Kind.AWAIT) and op.amount < 1:  # tensors decide it
                places.discard(op.place)
        return frozenset(places)

    @property
    def ops(self) -> Iterator[Op]:
        """The ops of all threads, one thread after another."""
        return itertools.chain.from_iterable(self.threads)

    def has(self, kind: Kind) -> bool:
        """Whether a thread does an op of this kind."""
        return any(op.kind is kind for op in self.ops)

    @property
    def per_block(self) -> int:
        """How many Pallas threads a block has."""
        return (len(self.threads) - len(self.warps)) // self.blocks

    @property
    def mbarriers(self) -> int:
        """How many mbarriers a block has, all arrays together."""
        own = (b for b in self.barriers if b.type is BarrierType.MBARRIER and not b.block)
        return sum(barrier.count for barrier in own)

    def pallas_thread(self, thread: int) -> int:
        """The Pallas thread that a thread is, or of which it is a warp."""
        first = len(self.threads) - len(self.warps)
        return thread if thread < first else self.warps[thread - first].thread

    def block_of(self, thread: int) -> int:
        """The block of the cluster that a thread is in."""
        return self.pallas_thread(thread) // self.per_block

    def threads_of(self, block: int) -> range:
        """The Pallas threads of a block of the cluster."""
        return range(block * self.per_block, (block + 1) * self.per_block)

    def device_of(self, block: int) -> int:
        """The number of the device that a block is on."""
        return block * self.num_devices // self.blocks

    def home_of(self, name: str) -> int:
        """The number of the device whose GMEM has the buffer or the semaphores of this name."""
        device = name.rpartition("@")[2]
        return int(device) if self.num_devices > 1 and device.isdigit() else 0

    def __str__(self) -> str:
        cut = ", TRUNCATED: the threads' ends are missing" if self.truncated else ""
        lines = [
            f"{self.name}: block {self.block} of grid {self.grid}"
            + (f" x cluster {self.cluster}" if self.cluster else "")
            + f", {len(self.threads)} threads, {sum(map(len, self.threads))} ops,"
            f" {self.smem_bytes} bytes of SMEM{cut}"
        ]
        for thread, ops in enumerate(self.threads):
            counts = ", ".join(f"{n} {kind}" for kind, n in Counter(op.kind for op in ops).items())
            lines += [f"thread {thread}: {counts or 'nothing'}"]
            lines += [f"  {self.describe(op)}" for op in ops]
        return "\n".join(lines)

    def renamed(self, name: str) -> "Program":
        """This program under another name, for a figure's title.

        Example:
          >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
          >>> pallascope.trace(softmax, x).renamed("Two slots").name
          'Two slots'
        """
        return dataclasses.replace(self, name=name)

    def describe(self, op: Op) -> str:
        """An op of this program on one line, with names for numbers."""
        words = [op.kind, *_quantity(op)]
        for verb, regions in (("reads", op.reads), ("writes", op.writes)):
            if regions:
                more = f" and {len(regions) - 2} more" if len(regions) > 4 else ""
                shown = regions[:2] if more else regions
                words += [verb, ", ".join(map(self.index_of, shown)) + more]
        if op.barrier is not None:
            words.append(f"on {self.barriers[op.barrier].name}[{op.index}] #{op.phase}")
        remark = _remark(op)
        words += [f"({remark})"] if remark else []
        words += [step_name(op.step)] if op.step else []
        words += [f"in {op.scope}"] if op.scope else []
        return " ".join(words) + (f"  [{op.source}]" if op.line else "")

    def label(self, op: Op) -> str:
        """An op of this program in a few words, for a figure: what it does to which buffer."""
        regions = op.writes or op.reads
        words = f"{op.kind} {self.buffers[regions[0].buffer].name}" if regions else str(op.kind)
        if op.wavefronts is not None:
            return f"{words}, {op.wavefronts} wavefronts"
        has_size = op.kind in (Kind.LOAD, Kind.STORE, Kind.CP_ASYNC)
        return f"{words}, {op.bytes} bytes" if has_size else words

    def index_of(self, region: Region) -> str:
        """A region of this program as an index of its buffer."""
        box = ", ".join(f"{a}:{b}" if b - a != 1 else f"{a}" for a, b in region.box)
        return f"{self.buffers[region.buffer].name}[{box}]"

    def to_json(self, *, with_sources: bool = False) -> str:
        """The program as JSON text: the fields by their names, without those at their defaults.

        Args:
          with_sources: also the text of each line that an op stands on, for who lacks its file.
        """
        lines = {op.line for op in self.ops if op.line}
        more = {"sources": sources.texts(lines)} if with_sources else {}
        return json.dumps(dict(_saved(self), format=FORMAT) | more)

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """The program that `to_json` wrote; ValueError if the text is anything else."""
        try:
            fields: Json = json.loads(text)
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(
                f"This text is not JSON ({error}), so there is no Program in it: give what to_json"
                " returned or save wrote."
            ) from error
        found = fields.pop("format", None) if isinstance(fields, dict) else None
        if isinstance(fields, dict):
            fields.pop("sources", None)  # for those who show it: `sources`
        if not isinstance(fields, dict) or found != FORMAT:
            raise ValueError(
                f"This JSON has format {found}, but a Program is read from format {FORMAT}: trace"
                " the kernel again and save that."
            )
        try:
            return _program(fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"This JSON has format {FORMAT}, but not the fields of a Program ({error!r}), so it"
                " was changed since: trace the kernel again and save that."
            ) from error

    def save(self, path: str | pathlib.Path) -> None:
        """Writes `to_json` to a file, with the lines of source that its ops stand on.

        `load` reads it again, and the book's laboratory opens it.
        """
        path_of("Program.save", path).write_text(self.to_json(with_sources=True), "utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Program":
        """Reads what `save` wrote."""
        return cls.from_json(path_of("Program.load", path).read_text("utf-8"))


def path_of(function: str, path: str | os.PathLike[str]) -> pathlib.Path:
    """The path that a function was given; TypeError if it is none."""
    try:
        return pathlib.Path(path)
    except TypeError:
        given = type(path).__name__
        raise TypeError(
            f"{function} takes a path, not a value of type {given}: give the name of a file."
        ) from None


def step_name(step: tuple[int, ...]) -> str:
    """What a step is called: `step 2, 0` is the inner loop's 0 in the outer one's 2."""
    return f"step {', '.join(map(str, reversed(step)))}"


def short_name(name: str) -> str:
    """What a buffer holds: `a` for `a_gmem`, `a_smem` and `a_ref`, in whichever block it is."""
    return re.sub(r"_(gmem|hbm|smem|ref)$", "", name.partition("@")[0])


# Words. Every text that shows an op gets them here.


def _quantity(op: Op) -> list[str]:
    """The number that `describe` puts behind the kind, if the kind has one."""
    match op.kind:
        case Kind.WAIT_STORE | Kind.WAIT_CP_ASYNC | Kind.WGMMA_WAIT | Kind.ACC_READ:
            number = op.pending
        case Kind.REGISTERS:
            number = op.registers
        case Kind.SCOPE_BEGIN | Kind.SCOPE_END:
            number = op.scope_id
        case Kind.COMPUTE:
            number = op.transcendental
        case Kind.SIGNAL | Kind.AWAIT:
            number = op.amount
        case _:
            number = None
    return [] if number is None else [str(number)]


def _remark(op: Op) -> str:
    """The remark on an op that `describe` puts in brackets."""
    combines = "reduces by" if op.kind == Kind.STORE else "atomic"
    words = [
        f"collective {', '.join(op.collective)}" if op.collective else "",
        "from registers" if op.from_registers else "",
        "the answer to try_cluster_cancel" if op.claims else "",
        f"{combines} {op.combines}" if op.combines else "",
        "read_only" if op.read_only else "",
        "shared" if op.shared else "",
        "" if op.scratch is None else "across warps" if op.is_sure else "perhaps across warps",
        op.action,
        op.function,
        f"threads {', '.join(map(str, op.members))}" if op.members else "",
    ]
    return ", ".join(filter(None, words))


# JSON.

# What json.loads gives.
type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
_FIELDS: dict[type, list[tuple[str, Any]]] = {
    cls: [(field.name, field.default) for field in dataclasses.fields(cls)]
    for cls in (Program, Op, Region, Buffer, Barrier, Warp)
}


def _saved(value: object) -> Any:
    """A value of this module as JSON has it: fields by name, but for those at their defaults."""
    if isinstance(value, tuple):
        return [_saved(part) for part in cast(tuple[object, ...], value)]
    if (fields := _FIELDS.get(type(value))) is None:
        return value
    pairs = ((name, getattr(value, name), default) for name, default in fields)
    return {name: _saved(held) for name, held, default in pairs if held != default}


def _program(fields: dict[str, Any]) -> Program:
    """The program that has these fields in JSON."""
    parts: dict[str, Any] = {}
    for name, value in fields.items():
        match name:
            case "threads":
                parts[name] = tuple(tuple(map(_op, ops)) for ops in value)
            case "buffers":
                parts[name] = tuple(Buffer(**_tuples(buffer)) for buffer in value)
            case "barriers":
                parts[name] = tuple(Barrier(**_tuples(barrier)) for barrier in value)
            case "warps":
                parts[name] = tuple(Warp(**warp) for warp in value)
            case _:
                parts[name] = _tuples(value)
    return Program(**parts)


def _op(fields: dict[str, Any]) -> Op:
    regions = {
        name: tuple(Region(**_tuples(region)) for region in fields.get(name, ()))
        for name in ("reads", "writes", "whole")
    }
    return Op(**_tuples(fields) | regions)


def _tuples(value: Json) -> Any:
    """A value of JSON with tuples for lists."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
