"""`Timeline`: who was busy when, in cycles; simulated or measured, drawn by the same code.

The model. A timeline has spans (`spans`) on lanes. Spans of one thread do not overlap and are in
order; copies of the TMA lane may overlap. A thread without a span is idle. A wait's `cause` is the
span whose end let it go on.

Words. At each moment a lane is one of three things:

=========  =========================================================================================
busy       it does anything but wait; the TMA lanes are busy while any copy is in flight
waiting    it is a thread that waits, and does nothing else
bubble     it has nothing to do
=========  =========================================================================================

A **step** is one turn of the innermost loop in which a thread waits. The **steady state** is the
middle of a run, as the computing thread with the most steps sees it: without as many steps at both
ends as the rings have slots (or without a quarter of the steps at each end, if there are too few).
It is from the start of a step to the start of a later one, so it has whole steps, and whole turns
of the ring if there is room for one.

One **interval** is what all of this is said of, by `uses`, `units`, `bound` and `summary`, in the
headlines of sliders and in figures: the steady state, or the whole where there is none. Each text
says which of the two, and a drawing has a bracket over the steady state.

A **unit** is what threads keep busy together. There are two: the tensor core, which has a lane, and
the SM's way to GMEM, the **GMEM port**, which has none. The port is busy while it moves bytes: of
loads, of stores, of ordinary accesses, and of other blocks on the SM. A load is longer in flight
than its bytes take at the port, so the TMA lanes may be busy where the port has nothing to do.

Cycles a step are a rate, the slope of time over steps (Theil and Sen's): the median, over pairs of
steps, of elapsed time per step. The steps of a pair are a whole number of the ring's turns apart,
if there are enough steps, so that steps that differ by their slot cost their mean. They are 32
steps apart at most. The median ignores what is left of the prologue or the drain. Both steps of a
pair are in the same tile of a persistent kernel, so the time between two tiles does not count: the
rate is the rate within a tile, though the steady state goes over many tiles. (Tiles of one or two
steps have no rate of their own; there, all steps count as steps of one tile.) A
timeline of one block does not have the waves of the grid.

What bounds it. Where the simulated steady state has a critical cycle (`critical_cycle`), that does:
it says by how much a step would be shorter if a part of it were. If one unit or one thread does all
of it, that bounds the kernel; else `bound` says, too, what the busiest of them needs for a step: no
order of the same work is faster. Where there is no such cycle, as in what was measured, a unit
bounds a kernel if it is busy 90 % of the interval; of two such units, the busier one does. If
neither is so busy, the kernel is bound by what the thread of the steady state waits for most, or by
that thread's own work if it works more than it waits for any one thing. Waits for loads are a
matter of bandwidth if most loads start later than they were asked for, and the port is busy for
half of the interval at least, as far as that is known. Else they are one of latency.

Source: this project's own.
"""

import enum
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from pallascope.critical_cycle import Critical, Slack, critical, slack
from pallascope.spans import ENGINES, Span, SpanKind


class Source(enum.StrEnum):
    """Where a timeline's times are from; equal to its name.

    A timeline of one ORDER of ops has no times: each op is one step long.
    """

    SIMULATED = "simulated"
    MEASURED = "measured"
    ORDER = "order"

    __repr__ = str.__repr__

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(
            f"{value!r} is not where times are from, so scopes could not be told from work: give"
            f" one of {', '.join(cls)}."
        )


_LOADS = "TMA loads"  # how the lane of an SM's loads ends


class _Step(NamedTuple):
    """What a thread does in a step of a loop; `outer` are the counters of the loops around it."""

    outer: tuple[int, ...]
    spans: list[Span]

    @property
    def start(self) -> float:
        return self.spans[0].start


@dataclass(frozen=True, slots=True)
class LaneUse:
    """What fractions of an interval a lane is busy, waiting and in a bubble; they sum to 1."""

    lane: str
    busy: float
    waiting: float
    bubble: float


class Unit(enum.StrEnum):
    """What the threads of a block keep busy together; equal to its name."""

    TENSOR_CORE = "tensor core"
    GMEM_PORT = "GMEM port"

    __repr__ = str.__repr__


class UnitUse(NamedTuple):
    """The fraction of an interval that a unit is busy.

    In a cluster each block has units of its own, and `name` says whose: "block 1 GMEM port".
    """

    name: str
    unit: Unit
    busy: float

    def __str__(self) -> str:
        return f"{self.name} busy {percent(self.busy)}"


class Interval(NamedTuple):
    """From `start` to `stop`, in cycles; `name` is "the steady state" or "the whole"."""

    start: float
    stop: float
    name: str


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady state: the thread it is seen from (a lane), its ends and its cycles a step.

    The module's docstring says how they are found.
    """

    lane: int
    start: float
    stop: float
    cycles_per_step: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans on lanes; `cycles` is the whole's length at `clock_hz`.

    `source` says where the times are from; the name of a source becomes that `Source`, and any
    other text raises a ValueError. `machine` is the name of what the kernel ran on. `truncated`
    says that the end is missing, `stuck` that there is none because threads wait for ever. `notes`
    say what else the reader of a figure must know. `gmem` has, for each simulated SM, the uses of
    its way to GMEM by all its blocks: (start, stop) in cycles of each copy or ordinary access. A
    use stops when its bytes have moved, and is as long as they take at the SM's share of the card's
    bandwidth. Uses overlap where an SM catches up on bandwidth that it did not use before. `gmem`
    is empty where this is not known, as in a measured timeline.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> timeline = pallascope.simulate(program, pallascope.H200)
      >>> timeline.uses()[0]
      LaneUse(lane='thread 0', busy=..., waiting=..., bubble=...)
      >>> pallascope.to_perfetto(timeline, "softmax.json")  # for ui.perfetto.dev
    """

    name: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    cycles: float
    clock_hz: float
    source: Source
    machine: str
    truncated: bool = False
    notes: tuple[str, ...] = ()
    stuck: bool = False
    gmem: tuple[tuple[tuple[float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if type(self.source) is not Source:
            object.__setattr__(self, "source", Source(self.source))

    @property
    def is_timed(self) -> bool:
        """Whether it has times; else each of its ops is one step long, in the order given."""
        return self.source is not Source.ORDER

    @property
    def microseconds(self) -> float:
        """The whole's length at `clock_hz`."""
        return self.cycles / self.clock_hz * 1e6

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """How long, how long a step, what bounds it, and the lanes' and the port's use, as text."""
        if not self.is_timed:
            return "\n".join([f"{self.name}, an order of {duration(self)}", *self.notes])
        steady, (start, stop, where) = self.steady(), self.interval()
        clock = "" if self.stuck else f" at {self.clock_hz / 1e9:.2f} GHz"
        lines = [f"{self.name}, {self.source} on {self.machine}: {duration(self)}{clock}"]
        if steady is not None:
            lines.append(f"{steady.cycles_per_step:,.1f} cycles a step in the steady state")
        lines += [self.bound(), *self.notes, f"Of {where}, cycles {start:,.0f} to {stop:,.0f}:"]
        ports = [use for use in self.units() if use.unit is Unit.GMEM_PORT]
        uses = [
            use for lane, use in enumerate(self.uses()) if any(s.lane == lane for s in self.spans)
        ]
        width = max([len(use.lane) for use in uses] + [len(use.name) for use in ports], default=0)
        lines += [
            f"{use.lane.ljust(width)}  busy {use.busy:6.1%}  waiting {use.waiting:6.1%}"
            f"  bubble {use.bubble:6.1%}"
            for use in uses
        ]
        lines += [
            f"{use.name.ljust(width)}  busy {use.busy:6.1%}  moving bytes in or out"
            for use in ports
        ]
        return "\n".join(lines)

    def interval(self) -> Interval:
        """What all texts are said of: the steady state if there is one, else the whole."""
        steady = self.steady() if self.is_timed else None
        if steady is None:
            return Interval(0.0, self.cycles, "the whole")
        return Interval(steady.start, steady.stop, "the steady state")

    def uses(self, start: float | None = None, stop: float | None = None) -> tuple[LaneUse, ...]:
        """Each lane's fractions of the interval; with `start` or `stop`, of a window in cycles.

        `uses(0)` has those of the whole.
        """
        for name, end in (("start", start), ("stop", stop)):
            if not isinstance(end, Real | None):
                raise TypeError(
                    f"Timeline.uses takes a number of cycles for {name}=, not a value of type"
                    f" {type(end).__name__}: leave both out for the steady state."
                )
        if start is None and stop is None:
            start, stop, _ = self.interval()
        start, stop = start or 0.0, self.cycles if stop is None else stop
        length = max(stop - start, 0.0)
        done: list[list[tuple[float, float]]] = [[] for _ in self.lanes]
        waited: list[list[tuple[float, float]]] = [[] for _ in self.lanes]
        for span in self.spans:
            piece = max(span.start, start), min(span.stop, stop)
            # A measured timeline has scopes only; in a simulated one they frame other spans.
            counts = self.source == Source.MEASURED or span.kind != SpanKind.SCOPE
            if counts and piece[0] < piece[1]:
                (waited if span.kind == SpanKind.WAIT else done)[span.lane].append(piece)
        uses: list[LaneUse] = []
        for lane, busy, waiting in zip(self.lanes, done, waited):
            wait = _covered(waiting) / length if length else 0.0
            work = _covered(busy + waiting) / length - wait if length else 0.0
            uses.append(LaneUse(lane, work, wait, max(0.0, 1 - work - wait)))
        return tuple(uses)

    def units(self) -> tuple[UnitUse, ...]:
        """How busy the units of the kernel are in the interval: those that it uses."""
        start, stop, _ = self.interval()
        if stop <= start:
            return ()
        uses = self.uses()
        multiplies = sorted({span.lane for span in self.spans if span.kind == SpanKind.WGMMA})
        cores = (uses[lane] for lane in multiplies)
        found = [UnitUse(core.lane, Unit.TENSOR_CORE, core.busy) for core in cores]
        for owner, moved in zip(self._owners(), self.gmem):
            if moved:
                name = f"{owner}{Unit.GMEM_PORT}"
                found.append(UnitUse(name, Unit.GMEM_PORT, _used(moved, start, stop)))
        return tuple(found)

    def _owners(self) -> list[str]:
        """What the lanes of each SM's block begin with: each has one for loads."""
        loads = (lane for lane in self.lanes if lane.endswith(_LOADS))
        return [lane.removesuffix(_LOADS) for lane in loads] if len(self.gmem) > 1 else [""]

    def steady(self) -> Steady | None:
        """The steady state, or None where no thread does three steps."""
        nothing: tuple[int, list[_Step]] = 0, []
        found, computing = self._steps(), self._computing()
        found = {lane: found[lane] for lane in found if lane in computing} or found
        lane, steps = max(found.items(), key=lambda item: len(item[1]), default=nothing)
        if len(steps) < 3:
            return None
        slots = 1 + max((s.slot for s in self.spans if s.slot is not None), default=0)
        skip = slots if len(steps) > 3 * slots else len(steps) // 4
        kept = steps[skip : len(steps) - skip]
        rate = _cycles_per_step(kept, slots)
        if rate is None:
            return None
        count = len(kept) - 1
        whole = count - count % slots or count  # turns of the ring, if there is one
        return Steady(lane, kept[count - whole].start, kept[count].start, rate)

    def _computing(self) -> set[int]:
        """The lanes of threads that compute, access memory or wait for products."""
        of_products = {i for i, span in enumerate(self.spans) if span.kind == SpanKind.WGMMA}
        own = SpanKind.COMPUTE, SpanKind.ACCESS
        return {s.lane for s in self.spans if s.kind in own or s.cause in of_products}

    def _steps(self) -> dict[int, list[_Step]]:
        """The steps of each thread's innermost loop that waits, in order."""
        found: defaultdict[int, list[Span]] = defaultdict(list)
        for span in sorted(self.spans, key=_in_order):
            drawn_only = span.kind == SpanKind.SCOPE and self.source == Source.SIMULATED
            if span.step and span.kind not in ENGINES and not drawn_only:
                found[span.lane].append(span)
        steps: dict[int, list[_Step]] = {}
        for lane, spans in found.items():
            waits = [span for span in spans if span.kind == SpanKind.WAIT]
            depth = max(len(span.step) for span in waits or spans)
            inside = [span for span in spans if len(span.step) >= depth]
            # Loops within a step are part of it.
            groups = itertools.groupby(inside, lambda span: span.step[-depth:])
            each = [_Step(counters[1:], [*group]) for counters, group in groups]
            # A prologue only issues, the steps after it also wait.
            steps[lane] = [s for s in each if any(span.kind != SpanKind.ISSUE for span in s.spans)]
        return steps

    def critical(self) -> Critical | None:
        """The critical cycle of the simulated steady state; None where there is none.

        Example:
          >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
          >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
          >>> print(pallascope.simulate(program, pallascope.H200).critical())
          load ... -> ... cycles for ...
        """
        steady = self.steady() if self.source is Source.SIMULATED else None
        if steady is None:
            return None
        return critical(self.spans, steady.lane, steady.stop, steady.cycles_per_step)

    def slack(self) -> tuple[Slack, ...]:
        """How much longer each thing of the simulated steady state may take; empty without one.

        Example:
          >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
          >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
          >>> found = pallascope.simulate(program, pallascope.H200).slack()
          >>> min(each.cycles for each in found)
          0.0
        """
        steady = self.steady() if self.source is Source.SIMULATED else None
        if steady is None:
            return ()
        return slack(self.spans, steady.start, steady.stop, steady.cycles_per_step)

    def bound(self) -> str:
        """A sentence on what bounds it: the critical cycle, or else a unit or what it waits for."""
        found = self.critical()
        if found is None:
            return self._bound_of_shares()
        lanes = {self.lanes[lane] for lane in found.lanes}
        if found.kinds <= {SpanKind.LOAD, SpanKind.STORE}:
            return f"memory bandwidth: {found}"
        if len(lanes) == 1 and (found.kinds == {SpanKind.WGMMA} or not found.kinds & {*ENGINES}):
            return f"{lanes.pop()}: {found}"
        most, share = self._busiest()
        if share >= _ALWAYS:  # also with what other blocks on the SM do
            return self._bound_of_shares()
        return f"latency: {found}; {most} alone needs {share * found.cycles_per_step:,.0f} a step"

    def _busiest(self) -> tuple[str, float]:
        """The thread or unit that is busiest, and for which fraction of the interval."""
        threads = {self.lanes[span.lane] for span in self.spans if span.kind not in ENGINES}
        busy = {use.lane: use.busy for use in self.uses() if use.lane in threads}
        busy |= {f"the {use.name}".replace("the block", "block"): use.busy for use in self.units()}
        return max(busy.items(), key=lambda item: item[1])

    def _bound_of_shares(self) -> str:
        """A sentence on the unit that is nearly always busy, or on what a thread waits for most."""
        start, stop, where = self.interval()
        if stop <= start:
            return "nothing: no time passes"
        busiest = max(self.units(), default=None, key=lambda use: use.busy)
        if busiest is not None and busiest.busy >= 0.9:
            return f"{_LIMITS[busiest.unit]} busy {percent(busiest.busy)} of {where}"
        steady, uses = self.steady(), self.uses()
        lane = self._busiest_thread(uses) if steady is None else steady.lane
        waits, use = self._waits(lane, start, stop), uses[lane]
        if waits:
            (kind, text), cycles = max(waits.items(), key=lambda item: item[1])
            fraction = cycles / (stop - start)
            if fraction >= use.busy:
                what = _CAUSES.get(kind, "waiting")
                if kind == SpanKind.LOAD:
                    what += " bandwidth" if self._loads_queue(start, stop) else " latency"
                return f"{what}: {percent(fraction)} of {where} {use.lane} {text}"
        return f"{use.lane}: busy {percent(use.busy)} of {where} with its own work"

    def _busiest_thread(self, uses: tuple[LaneUse, ...]) -> int:
        """The lane of the thread that works most."""
        threads = {span.lane for span in self.spans if span.kind not in ENGINES}
        return max(threads, key=lambda lane: uses[lane].busy, default=0)

    def _waits(self, lane: int, start: float, stop: float) -> "dict[_Reason, float]":
        """Cycles of a window that a lane waits, by cause's kind and by text."""
        waits: defaultdict[_Reason, float] = defaultdict(float)
        for span in self.spans:
            inside = min(span.stop, stop) - max(span.start, start)
            if span.kind == SpanKind.WAIT and inside > 0 and span.lane == lane:
                text, kind = span.text.partition("[")[0], None
                if self.source == Source.MEASURED:
                    text = f"is in the scope {span.scope}"
                if span.cause is not None:
                    cause = self.spans[span.cause]
                    kind = cause.kind
                    text += f" ({cause.text.partition(',')[0]}, {self.lanes[cause.lane]})"
                waits[kind, text] += inside
        return waits

    def _loads_queue(self, start: float, stop: float) -> bool:
        """Whether most loads of an interval start later than asked for, at a port that is busy."""
        ports = [use.busy for use in self.units() if use.unit is Unit.GMEM_PORT]
        asked = {(s.thread, s.op): s.stop for s in self.spans if s.kind == SpanKind.ISSUE}
        loads = [s for s in self.spans if s.kind == SpanKind.LOAD and start <= s.start < stop]
        late = sum(s.start > asked.get((s.thread, s.op), s.start) for s in loads)
        return 2 * late > len(loads) and max(ports, default=1.0) >= 0.5


def duration(timeline: Timeline, microseconds: str = "us") -> str:
    """How long a timeline is, in cycles and microseconds; if it is stuck, when it stops."""
    if not timeline.is_timed:
        return f"{timeline.cycles:,.0f} step{'s' * (timeline.cycles != 1)}"
    cycles = f"{timeline.cycles:,.0f} cycles"
    if timeline.stuck:
        return f"stops at {cycles}"
    return f"{cycles}, {timeline.microseconds:,.2f} {microseconds}"


def percent(fraction: float) -> str:
    """A fraction in percent; 100 % is nothing less, so that no gap is rounded away."""
    rounded = round(100 * fraction)
    return f"{rounded if rounded < 100 or fraction > 0.9995 else 99}%"


# What a unit that is always busy limits.
_LIMITS = {
    Unit.TENSOR_CORE: f"{Unit.TENSOR_CORE}:",
    Unit.GMEM_PORT: f"memory bandwidth: the {Unit.GMEM_PORT} is",
}
_ALWAYS = 0.99  # the fraction of an interval that is as good as all of it
_FARTHEST = 32  # steps between the two that make a slope
# Why a thread waits: the kind of span that ends its wait, and what the wait is called.
_Reason = tuple[SpanKind | None, str]
# What a thread waits for, by the kind of span that ends its wait.
_CAUSES: dict[SpanKind | None, str] = {
    SpanKind.LOAD: "memory",
    SpanKind.STORE: "stores",
    SpanKind.WGMMA: "tensor core",
    SpanKind.ISSUE: "synchronisation",
    SpanKind.WAIT: "synchronisation",
}


def _in_order(span: Span) -> tuple[int, float, int, float]:
    """What a lane's spans are sorted by: of those that begin at once, the first op's is first."""
    return span.lane, span.start, 0 if span.op is None else span.op, -span.stop


def _used(uses: Iterable[tuple[float, float]], start: float, stop: float) -> float:
    """The fraction of a window that uses take, 1 at most."""
    inside = (min(end, stop) - max(begin, start) for begin, end in uses)
    return min(1.0, sum(length for length in inside if length > 0) / (stop - start))


def _covered(pieces: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(pieces):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


def _cycles_per_step(steps: list[_Step], slots: int) -> float | None:
    """The median of the slopes between two steps of a run, over all things that steps do."""
    runs = [[*run] for _, run in itertools.groupby(steps, lambda step: step.outer)]
    if max(map(len, runs)) < 3:
        runs = [steps]
    starts = [[_starts(step.spans) for step in run] for run in runs]
    counts = Counter(key for run in starts for step in run for key in step)
    most = max(counts.values())
    usual = [key for key, count in counts.items() if count == most]
    slopes: list[float] = []
    for run, key in itertools.product(starts, usual):
        times = [step[key] for step in run if key in step]
        turn = slots if len(times) > slots else 1
        farthest = min(len(times) - 1, max(turn, _FARTHEST))
        for distance in range(turn, farthest + 1, turn):
            slopes += [(b - a) / distance for a, b in zip(times, times[distance:])]
    return statistics.median(slopes) if slopes else None


# What a step does: the span's kind, line and scope, and its number among equals of the step.
_Thing = tuple[SpanKind, str | None, str, int]


def _starts(step: list[Span]) -> dict[_Thing, float]:
    """When each thing that a step does starts."""
    starts: dict[_Thing, float] = {}
    seen: Counter[tuple[SpanKind, str | None, str]] = Counter()
    for span in step:
        key = span.kind, span.line, span.scope
        starts[*key, seen[key]] = span.start
        seen[key] += 1
    return starts
