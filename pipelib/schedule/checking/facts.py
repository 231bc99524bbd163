"""What the check finds, as typed facts: one class for each way in which a program can go wrong.

The model. A detector (`bounds`, `multicasts`, `order`, `memory`, `launch`, `reductions`, `lanes`,
`deadlock`, `leftover`, `resources`) says which ops, which memory or which barrier it is about, and
what it counted there; it makes no sentence. A `Fault` becomes a `Finding` and a `Remark` becomes a
note: `words` turns each into text. A barrier is named by the id of its array and its index there.

A fault that some orders of the threads' ops bring out, and others do not, has a `Clash`: which ops
have to be where for it to show. `interleavings` makes an order of that.
"""

from dataclasses import dataclass

from pipelib.schedule.interleaving import Spot
from pipelib.schedule.program import Buffer, Kind, Op, Program, Region


@dataclass(frozen=True, slots=True)
class Clash:
    """A moment at which a fault shows.

    The `done` ops are over, those `in_flight` have been issued and are not, the `coming` are next.
    Of a barrier, by id and index, a phase may have to be `incomplete`. No thread may have come to
    the `later` ops.
    """

    done: tuple[Spot, ...] = ()
    in_flight: tuple[Spot, ...] = ()
    coming: tuple[Spot, ...] = ()
    incomplete: tuple[tuple[int, int], int] | None = None
    later: tuple[Spot, ...] = ()

    @property
    def spots(self) -> tuple[Spot, ...]:
        """All ops that it names."""
        return self.done + self.in_flight + self.coming


# Memory.


@dataclass(frozen=True, slots=True)
class Collision:
    """Two accesses of one buffer that overlap, at least one of them a write."""

    newer: Op
    older: Op
    buffer: Buffer
    newer_writes: bool
    older_writes: bool


@dataclass(frozen=True, slots=True)
class Race(Collision):
    """The two are in no order; or the threads are, but not the tensor core (`is_unfenced`)."""

    clash: Clash
    is_unfenced: bool = False


@dataclass(frozen=True, slots=True)
class MissingCommit(Collision):
    """An ordinary access comes before an asynchronous one, with no fence between the two."""


@dataclass(frozen=True, slots=True)
class Uninitialized:
    """A read of memory that the writes so far do not cover."""

    op: Op
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class LostWrite:
    """A write that nothing reads; `is_useful` if other writes of the same line are read."""

    op: Op
    buffer: Buffer
    is_useful: bool


@dataclass(frozen=True, slots=True)
class Outliving:
    """A copy or a product that may still use its memory when `taker`, or the end, takes it."""

    late: Op
    taker: Op | None
    clash: Clash | None = None


@dataclass(frozen=True, slots=True)
class EarlyAccess:
    """An access of GMEM before the kernels before this one are known to have ended.

    `wait` is the first wait for them of its thread, else of another; None if no thread has one.
    """

    op: Op
    buffer: Buffer
    writes: bool
    wait: Op | None
    clash: Clash


@dataclass(frozen=True, slots=True)
class MixedTile:
    """A multicast load of a part of another tile than the load `older` of a peer, to one place."""

    op: Op
    older: Op


@dataclass(frozen=True, slots=True)
class SharedScratch:
    """Reductions of two threads, in no order, that use the same scratch."""

    newer: Op
    older: Op
    clash: Clash


@dataclass(frozen=True, slots=True)
class LanesRace(Collision):
    """The two are of one thread, by different of its lanes, which do not meet in between.

    The order that shows it has the ops of the thread's fastest lane, the older access among them,
    which its slowest lane has yet to make.
    """

    clash: Clash


# Bounds.


@dataclass(frozen=True, slots=True)
class OutsideBuffer:
    """A region that reaches beyond its buffer on an axis."""

    op: Op
    region: Region
    axis: int


@dataclass(frozen=True, slots=True)
class BeyondArray:
    """A copy whose whole region of GMEM lies outside of its array on an axis, by mistake."""

    op: Op
    region: Region
    axis: int


@dataclass(frozen=True, slots=True)
class OutsideBarriers:
    """An op on a barrier that its array does not have."""

    op: Op


# Barriers.


@dataclass(frozen=True, slots=True)
class EarlyArrival:
    """An arrival for phase `number` that nothing makes wait for the end of the phase before.

    `before` is an arrival of that phase, which takes `expects`; `bytes_missing` if copies that
    belong to it may not have landed.
    """

    arrival: Op
    before: Op
    barrier: int
    index: int
    number: int
    expects: int
    bytes_missing: bool
    clash: Clash


@dataclass(frozen=True, slots=True)
class LappedWait:
    """A wait for a phase that may come only when phase `number`, the next one, is complete too."""

    wait: Op
    last_arrival: Op
    barrier: int
    index: int
    number: int
    clash: Clash


@dataclass(frozen=True, slots=True)
class IncompletePhase:
    """The first arrivals of a phase that stays incomplete: `count` of the `expects` it takes."""

    arrivals: tuple[Op, ...]
    barrier: int
    index: int
    count: int
    expects: int


@dataclass(frozen=True, slots=True)
class UnawaitedLoad:
    """A load, or a commit of products, on a barrier on which nobody waits for it."""

    load: Op
    barrier: int
    index: int


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """An arrival on a barrier of `block`, which may have ended before it."""

    arrival: Op
    barrier: int
    index: int
    block: int
    clash: Clash


@dataclass(frozen=True, slots=True)
class TakenBarrier:
    """An op on a named barrier that Mosaic GPU uses itself: for all threads, or for one of them."""

    op: Op
    number: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """An op that its thread never gets past.

    A wait's phase has `arrivals` of the `expects` it takes, and `coming` are the next ones, which
    stuck threads would make.
    """

    op: Op
    arrivals: int = 0
    expects: int = 0
    coming: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRegisters:
    """A thread that waits for ever for registers, beside others that wait, maybe for it.

    It has `held` a lane and asks for more, and its block has `free` that no thread has.
    """

    op: Op
    held: int
    free: int


@dataclass(frozen=True, slots=True)
class Deadlock:
    """All threads that wait for ever."""

    threads: tuple[Stuck | NoRegisters, ...]
    clash: Clash


# Blocks of a grid.


@dataclass(frozen=True, slots=True)
class BlocksRace(Collision):
    """The two are of different blocks of a grid; `programs` are the newer's and the older's."""

    programs: tuple[Program, Program]


@dataclass(frozen=True, slots=True)
class UnwrittenOutput:
    """A part of an output that no block of the grid writes."""

    region: Region


# Resources.


@dataclass(frozen=True, slots=True)
class TooMuchMemory:
    """A block allocates more shared memory than the `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class TooManyColumns:
    """A block allocates more columns of TMEM than the `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class TooManyRegisters:
    """A block's threads ask for these registers a lane; each begins with `given`."""

    asked: tuple[int, ...]
    given: int


@dataclass(frozen=True, slots=True)
class WrongWay:
    """A request for registers that is less than the thread has and an increase, or more and none.

    The thread has `held` a lane.
    """

    op: Op
    held: int


@dataclass(frozen=True, slots=True)
class TooManyBarriers:
    """An array of more barriers than the `limit`."""

    barrier: int
    limit: int


@dataclass(frozen=True, slots=True)
class Spill:
    """A thread's accumulators take more registers a lane than its `limit`."""

    thread: int
    needed: int
    limit: int


Fault = (
    Race | MissingCommit | Uninitialized | LostWrite | Outliving | EarlyAccess | MixedTile
    | SharedScratch | LanesRace | OutsideBuffer | OutsideBarriers | BeyondArray | EarlyArrival
    | LappedWait | IncompletePhase | UnawaitedLoad | EarlyExit | TakenBarrier | Deadlock
    | BlocksRace | UnwrittenOutput | TooMuchMemory | TooManyColumns | TooManyRegisters | WrongWay
    | TooManyBarriers | Spill
)  # fmt: skip


def clash_of(fault: Fault) -> Clash | None:
    """The moment at which a fault shows; None if it shows in every order, or at no one moment."""
    match fault:
        case (
            Race() | EarlyAccess() | SharedScratch() | LanesRace() | EarlyArrival() | LappedWait()
            | EarlyExit() | Deadlock() | Outliving()
        ):  # fmt: skip
            return fault.clash
        case _:
            return None


# What is told beside the findings.


@dataclass(frozen=True, slots=True)
class Truncated:
    """The ends of some threads are missing."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Some threads are stuck, so what they would do next was not looked at."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """Opaque code, by its names."""

    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """A barrier is tested, which puts nothing in order."""


@dataclass(frozen=True, slots=True)
class Overwritten:
    """Writes of a line to a buffer that the same line overwrites before anyone reads them."""

    line: str | None
    buffer: str
    times: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A part of an output that nothing writes, in a grid without other blocks."""

    region: Region


@dataclass(frozen=True, slots=True)
class Unused:
    """Copies or products of a line that nothing reads; `is_product` says which."""

    line: str | None
    buffer: str
    is_product: bool
    times: int


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Accesses of a line whose place in the buffer depends on what a tensor holds."""

    line: str | None
    buffer: str
    times: int


@dataclass(frozen=True, slots=True)
class Overshoot:
    """Copies of a line from or to tiles behind the end of an array, which it also copies itself."""

    kind: Kind
    line: str | None
    buffer: str
    times: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """Semaphores, by their names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unobserved:
    """An array of barriers of which `count` phases complete and nobody waits for them."""

    barrier: int
    count: int


@dataclass(frozen=True, slots=True)
class BlocksMeet:
    """Accesses of a buffer in GMEM by two blocks that may race, `times`; nobody can tell.

    `is_rounded` if what one of the two accesses was rounded up; else the blocks may wait for each
    other, in a way that the check does not follow.
    """

    lines: tuple[str | None, ...]
    buffer: str
    is_rounded: bool
    times: int


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """A signal at `line` to the kernel after, which a write of a buffer does not come before."""

    line: str | None
    buffer: str
    write: str | None


@dataclass(frozen=True, slots=True)
class SharedScratchPerhaps:
    """Lines with reductions of two threads, in no order, that may use the same scratch."""

    older: str | None
    newer: str | None


@dataclass(frozen=True, slots=True)
class LanesRacePerhaps:
    """Lines with accesses of one thread which race if different of its lanes make them."""

    older: str | None
    newer: str | None
    buffer: str


Remark = (
    Truncated | Unchecked | Trusted | Tested | Overwritten | Unwritten | Unused | Unplaced
    | Signalled | Unobserved | Overshoot | BlocksMeet | EarlySignal
    | SharedScratchPerhaps | LanesRacePerhaps
)  # fmt: skip
