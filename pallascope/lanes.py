"""`Lanes`: the lanes that a program's figures have, and what an op's box in them says.

The model. Each block has a lane for each of its threads, with its warps after it, then one for each
engine: those of Hopper, and those of other GPUs that it uses. What an engine does is on its lane,
all else on the lane of the thread. Where there are several devices or blocks, a lane's name begins
with them: `device 1 block 0 TMA stores`.

Names. A thread of several is called by its role, which `thread_names` tells by its ops:

===================  ===============================================================================
role                 the thread
===================  ===============================================================================
compute thread N     multiplies, does arithmetic, or accesses memory ordinarily without any load;
                     these are numbered from 0 in each block
memory thread        starts loads and does no arithmetic
product thread       starts products of Blackwell's tensor core, and does nothing of the above
store thread         starts stores, and does nothing of the above
===================  ===============================================================================

Several memory or store threads of a block are numbered too. Where no thread computes, or a kernel
has one thread only, threads have their numbers alone: `thread 0`.

Slots. An array in SMEM or of barriers is a **ring** if some op of the source takes one part of it
at each step, and different parts at different steps. Only a ring's parts are slots: an array whose
parts belong to different threads has none. Source: this project's own.
"""

import enum
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from pallascope.program import Engine, Kind, Op, Program, Region, Space, short_name


class Part(NamedTuple):
    """What an op touches: the short name of the one buffer that it is about, and the ring's slot.

    The name is empty where an op is about several buffers or none; the slot is None where there is
    no ring.
    """

    buffer: str = ""
    slot: int | None = None


class Lanes:
    """The `names` of a program's lanes, in the order in which they are drawn.

    Threads are called by their roles; if `by_number`, by their numbers, as reports call them.
    """

    def __init__(self, program: Program, by_number: bool = False) -> None:
        self.names: list[str] = []
        self._program, self._rings = program, _rings(program)
        # By the id of each op, which is kept, so that no other op gets its id.
        self._parts: dict[int, tuple[Op, Part]] = {}
        # Of each block; the lane of None, which no op of an engine has, is not there.
        self._engines: list[dict[Engine | None, int]] = []
        self._threads = [0] * len(program.threads)
        called = _numbered(program) if by_number else thread_names(program)
        engines = _engines(program)
        for block in range(program.blocks):
            prefix = _prefix(program, block)
            for thread in _in_order(program, block):
                self._threads[thread] = len(self.names)
                self.names.append(prefix + called[thread])
            self._engines.append({e: len(self.names) + i for i, e in enumerate(engines)})
            self.names += [prefix + engine for engine in engines]

    def of_thread(self, thread: int) -> int:
        """The lane of a thread, or of a warp."""
        return self._threads[thread]

    def of_engine(self, block: int, op: Op) -> int:
        """The lane of the engine that works for an op."""
        return self._engines[block][op.kind.engine]

    def part(self, op: Op) -> Part:
        """The buffer and the slot that an op is about, or the slot of the barrier it is on."""
        if (found := self._parts.get(id(op))) is None:
            found = self._parts[id(op)] = op, self._part(op)
        return found[1]

    def _part(self, op: Op) -> Part:
        regions, (buffers, barriers) = op.writes + op.reads, self._rings
        touched = [region for region in regions if region.buffer in buffers]
        if touched:
            slots = {region.box[0][0] for region in touched}
            return Part(self._only(touched), slots.pop() if len(slots) == 1 else None)
        if op.barrier in barriers and not regions:
            return Part(slot=op.index)
        if op.kind.engine is Engine.TENSOR_CORE:
            return Part()
        spaces = (Space.SMEM,) if op.kind.is_copy else (Space.SMEM, Space.GMEM)
        own = [r for r in regions if self._program.buffers[r.buffer].space in spaces]
        return Part(self._only(own))

    def _only(self, regions: list[Region]) -> str:
        """The short name of the one buffer that these regions are of; empty if there is none."""
        ids = {region.buffer for region in regions}
        return short_name(self._program.buffers[ids.pop()].name) if len(ids) == 1 else ""


# ---- Names ---------------------------------------------------------------------------------------


def _prefix(program: Program, block: int) -> str:
    """What the lanes of a block begin with: its device and its number there, if there are more."""
    devices, each = program.num_devices, program.blocks // program.num_devices
    device = f"device {program.device_of(block)} " if devices > 1 else ""
    return device + (f"block {block % each} " if each > 1 else "")


class _Role(enum.Enum):
    """The role of a thread among several; the value is the role's name in a figure."""

    COMPUTE = "compute thread"
    MEMORY = "memory thread"
    PRODUCT = "product thread"
    STORE = "store thread"
    OTHER = "thread"


def thread_names(program: Program) -> tuple[str, ...]:
    """What the threads of a program are called within their block, warps included.

    Example:
      >>> program = gallery.GALLERY["late-release"].program(fixed=True)
      >>> thread_names(program)
      ('compute thread 0', 'memory thread')
    """
    roles = _roles(program)
    if program.per_block == 1 or _Role.COMPUTE not in roles:
        return _numbered(program)
    seen: Counter[_Role] = Counter()
    names: list[str] = []
    for number, role in enumerate(roles):
        is_alone = role in _OF_ONE and roles.count(role) == 1
        which = number if role is _Role.OTHER else seen[role]
        names.append(role.value if is_alone else f"{role.value} {which}")
        seen[role] += 1
    return _all(program, names)


def _numbered(program: Program) -> tuple[str, ...]:
    """The names of a program's threads by their numbers: `thread 0`."""
    return _all(program, [f"thread {number}" for number in range(program.per_block)])


def _all(program: Program, names: list[str]) -> tuple[str, ...]:
    """A name for each thread and warp of a program, of those of a block's threads."""
    own = names * program.blocks
    warps = [f"{own[warp.thread]} warp {warp.number}" for warp in program.warps]
    return *own, *warps


def _roles(program: Program) -> list[_Role]:
    """The role of each thread of a block, by what it does in all blocks."""
    kinds: list[set[Kind]] = [set() for _ in range(program.per_block)]
    for thread, ops in enumerate(program.threads):
        kinds[program.pallas_thread(thread) % program.per_block] |= {op.kind for op in ops}
    return list(map(_role, kinds))


_OF_ONE = _Role.MEMORY, _Role.PRODUCT, _Role.STORE  # usually
_ARITHMETIC = {Kind.COMPUTE, Kind.WGMMA}
_ACCESSES = {Kind.READ, Kind.WRITE, Kind.LOAD_TMEM, Kind.STORE_TMEM}
_LOADS = {Kind.LOAD, Kind.CP_ASYNC}


def _role(kinds: set[Kind]) -> _Role:
    """The role of a thread that does ops of these kinds."""
    if kinds & _ARITHMETIC or (kinds & _ACCESSES and not kinds & _LOADS):
        return _Role.COMPUTE
    if kinds & _LOADS:
        return _Role.MEMORY
    if Kind.TCGEN05_MMA in kinds:
        return _Role.PRODUCT
    return _Role.STORE if Kind.STORE in kinds else _Role.OTHER


def _engines(program: Program) -> list[Engine]:
    """The engines of a block: Hopper's, and those of other GPUs that the program uses."""
    used = {op.kind.engine for op in program.ops}
    if any(buffer.space is Space.TMEM for buffer in program.buffers):
        used.add(Engine.TMEM)
    others = {Engine.TMEM, Engine.CP_ASYNC} - used
    return [engine for engine in Engine if engine not in others]


def _in_order(program: Program, block: int) -> Iterator[int]:
    """The numbers of a block's threads, each before its warps."""
    warps = list(enumerate(program.warps, len(program.threads) - len(program.warps)))
    for thread in program.threads_of(block):
        yield thread
        yield from (number for number, warp in warps if warp.thread == thread)


# ---- Slots ---------------------------------------------------------------------------------------


class _Taken:
    """The parts of an array that an op of the source takes, seen step by step.

    `turns` says whether they differ from step to step, `is_single` whether each step takes one.
    """

    __slots__ = ("is_single", "part", "step", "turns")

    def __init__(self, step: tuple[int, ...], part: int) -> None:
        self.step, self.part = step, part
        self.turns: bool = False
        self.is_single: bool = True

    def see(self, step: tuple[int, ...], part: int) -> None:
        """Takes note of a part that is taken at a step."""
        if part != self.part:
            self.turns = True
            self.is_single &= step != self.step
        self.step, self.part = step, part


# An array, and an op of the source: its thread, its kind and its line.
_Site = tuple[int, int, Kind, str | None]


def _rings(program: Program) -> tuple[set[int], set[int]]:
    """The buffers and the barriers that are rings, by their ids."""
    buffers = {buffer.id for buffer in program.buffers if (buffer.slots or 1) > 1}
    barriers = {barrier.id for barrier in program.barriers if barrier.count > 1}
    taken: tuple[dict[_Site, _Taken], dict[_Site, _Taken]] = {}, {}
    for op in program.ops:
        for region in op.reads + op.writes:
            if region.buffer in buffers:
                _see(taken[0], region.buffer, op, region.box[0][0])
        if op.barrier in barriers:
            _see(taken[1], op.barrier, op, op.index)
    buffers, barriers = (
        {array for (array, *_), parts in each.items() if parts.turns and parts.is_single}
        for each in taken
    )
    return buffers, barriers


def _see(taken: dict[_Site, _Taken], array: int, op: Op, part: int) -> None:
    site = array, op.thread, op.kind, op.line
    if (found := taken.get(site)) is None:
        taken[site] = _Taken(op.step, part)
    else:
        found.see(op.step, part)
