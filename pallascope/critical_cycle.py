"""`Critical`: the cycle of waits that sets how long a step of a pipeline takes.

The model. In the steady state every step does the same things, each a *period* later than the step
before. Each thing is late for one other thing (`Span.after`): what its thread did before, what its
unit did before, or, of a wait, the arrival that ended it. Follow that back from a late step. There
are finitely many things in a step, so they come again, some steps earlier: this is the **critical
cycle**. Its time over its steps is the period, and the period is the largest such ratio of all
cycles of the pipeline. So nothing but a change to the critical cycle makes the steps
shorter.

What is not on it may take longer, up to its **slack** (`slack`). A thing also comes after things
that it was not late for; each of these has **room** (`Span.room`): the cycles by which it could
have been later. Follow any of these ways back until the thing comes again: that is one of the
pipeline's other cycles, and its rooms add up to what it lacks of the period. The least such sum is
the thing's slack, by Dijkstra's algorithm.

It is a timed event graph, whose period is its maximum cycle ratio. Source: F. Baccelli and others,
"Synchronization and Linearity", 1992, chapter 3.

Not covered: what is not periodic, as steps that differ by their masks; a slack beyond which a unit
would do things in another order.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pallascope.spans import Span, SpanKind

#: How far a cycle's ratio may be from the period of the steady state, since steps are not all
#: alike; and how far at most if no better cycle is looked for. The most steps of a cycle.
_TOLERANCE, _EXACT, _MOST_STEPS = 0.02, 1e-4, 32
#: The most things that a text has in their order, and the most that it names of more.
_MOST_IN_ORDER, _MOST_NAMED = 12, 5
#: What is shorter is in no text, and does not say what bounds a kernel.
_LEAST_CYCLES = 0.5


class Hop(NamedTuple):
    """A thing on the way: its span and the span's number, and cycles until the next thing."""

    number: int
    span: Span
    cycles: float

    @property
    def op(self) -> tuple[int | None, int | None]:
        """The thread and the op of the program that it is of."""
        return self.span.thread, self.span.op


@dataclass(frozen=True)
class Critical:
    """The critical cycle of a timeline.

    Attributes:
      hops: the things, in order; the last one is followed by the first, `steps` steps later.
      cycles: of all of them.
      steps: how many steps the cycle goes over.

    Example:
      >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
      >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
      >>> found = pallascope.simulate(program, pallascope.H200).critical()
      >>> found.cycles_per_step == found.cycles / found.steps
      True
    """

    hops: tuple[Hop, ...]
    cycles: float
    steps: int

    @property
    def cycles_per_step(self) -> float:
        """How long a step takes, in cycles."""
        return self.cycles / self.steps

    @property
    def kinds(self) -> set[SpanKind]:
        """The kinds of things that take time on the cycle."""
        return {hop.span.kind for hop in self.hops if hop.cycles >= _LEAST_CYCLES}

    @property
    def lanes(self) -> set[int]:
        """The lanes on which the cycle takes time."""
        return {hop.span.lane for hop in self.hops if hop.cycles >= _LEAST_CYCLES}

    def round_in(self, spans: tuple[Span, ...], start: float, stop: float) -> list[int]:
        """The numbers of the spans of its last round between two moments, in their order.

        It begins with a load, if there is one, and ends where that comes again. In a run that is
        too short for one that is whole, the cycle's own spans that lie there.
        """
        things = [thing for thing, _ in _things(spans)]
        numbers = [hop.number for hop in self.hops]
        loads = (i for i, hop in enumerate(self.hops) if hop.span.kind is SpanKind.LOAD)
        first = next(loads, 0)
        cycle = [things[i] for i in (*numbers[first:], *numbers[:first], numbers[first])]
        for last in range(len(spans) - 1, -1, -1):
            if things[last] == cycle[-1] and spans[last].stop <= stop:
                ways = [*itertools.islice(_before(spans, last), len(cycle))][::-1]
                if [things[i] for i in ways] == cycle and spans[ways[0]].start >= start:
                    return ways
        return [i for i in numbers if start <= spans[i].start and spans[i].stop <= stop]

    def __str__(self) -> str:
        """As "load b (780) -> multiply (512) -> arrive (149): 1,441 cycles for 2 steps".

        Of a cycle of many things, it names those that take most of a step.
        """
        parts = self._parts()
        if len(parts) > _MOST_IN_ORDER:
            each: defaultdict[str, float] = defaultdict(float)
            for text, cycles in parts:
                each[text] += cycles / self.steps
            most = sorted(each.items(), key=lambda item: -item[1])[:_MOST_NAMED]
            words = ", ".join(f"{text} ({cycles:,.0f})" for text, cycles in most)
            return f"{self.cycles_per_step:,.0f} cycles a step, most of them {words}"
        words = " -> ".join(f"{text} ({cycles:,.0f})" for text, cycles in parts)
        steps = "a step" if self.steps == 1 else f"{self.steps} steps"
        return f"{words}: {self.cycles:,.0f} cycles for {steps}"

    def _parts(self) -> list[tuple[str, float]]:
        """The things that take time, in words; an issue and what it starts are one.

        The first is a load, if there is one: what it waits for is told last.
        """
        runs = [[*run] for _, run in itertools.groupby(self.hops, lambda hop: hop.op)]
        if len(runs) > 1 and self.hops[0].op == self.hops[-1].op:
            runs[0] = runs.pop() + runs[0]
        runs = [run for run in runs if sum(hop.cycles for hop in run) >= _LEAST_CYCLES]
        loads = [run[-1].span.kind is SpanKind.LOAD for run in runs]
        starts = (i for i, is_load in enumerate(loads) if is_load and not loads[i - 1])
        first = next(starts, 0)
        return [
            (run[-1].span.text.partition(",")[0], sum(hop.cycles for hop in run))
            for run in runs[first:] + runs[:first]
        ]


def critical(
    spans: tuple[Span, ...], lane: int, stop: float, cycles_per_step: float
) -> Critical | None:
    """The critical cycle of a simulated steady state; None if none is found.

    Args:
      spans: of the timeline.
      lane: of the thread that the steady state is seen from.
      stop: where it ends, in cycles.
      cycles_per_step: how long a step of it takes.
    """
    things = _things(spans)
    last = max(
        (i for i, span in enumerate(spans) if span.lane == lane and span.step),
        key=lambda i: (spans[i].start <= stop, spans[i].start),
    )
    path: list[int] = []
    seen: defaultdict[_Thing, list[int]] = defaultdict(list)
    best, least = None, _TOLERANCE
    for number in _before(spans, last):
        thing, turn = things[number]
        for at in reversed(seen[thing][-_MOST_STEPS:]):
            steps = things[path[at]][1] - turn
            cycles = _moment(spans[path[at]]) - _moment(spans[number])
            off = abs(cycles / steps / cycles_per_step - 1)
            if off < least:
                best, least = (at, len(path)), off
        seen[thing].append(len(path))
        path.append(number)
        if least <= _EXACT:
            break
    if best is None:
        return None
    ways = path[best[0] : best[1] + 1][::-1]
    times = [_moment(spans[i]) for i in ways]
    hops = [Hop(i, spans[i], end - begin) for i, begin, end in zip(ways, times, times[1:])]
    steps = things[ways[-1]][1] - things[ways[0]][1]
    return Critical(tuple(hops), times[-1] - times[0], steps)


class Slack(NamedTuple):
    """A span of the steady state, and how many cycles longer the like of it may take at every step
    before the steps take longer; infinitely many if nothing waits for it.

    Example:
      >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
      >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
      >>> timeline = pallascope.simulate(program, pallascope.H200)
      >>> sorted({each.span.kind for each in timeline.slack() if each.cycles == 0})
      [...wgmma...]
    """

    span: Span
    cycles: float


def slack(
    spans: tuple[Span, ...], start: float, stop: float, cycles_per_step: float
) -> tuple[Slack, ...]:
    """The slack of each thing of a simulated steady state, in the order of its last step.

    Args:
      spans: of the timeline.
      start, stop: of the steady state, in cycles.
      cycles_per_step: how long a step of it takes.
    """
    things = _things(spans)
    steady = [i for i, span in enumerate(spans) if start <= _moment(span) < stop]
    latest = {things[i][0]: i for i in steady if spans[i].step}
    lacks = ((i, _lacks(spans, things, i, cycles_per_step)) for i in sorted(latest.values()))
    return tuple(Slack(spans[i], cycles) for i, cycles in lacks)


def _lacks(
    spans: tuple[Span, ...], things: "list[_Turn]", number: int, cycles_per_step: float
) -> float:
    """The least that a cycle through a span lacks of the period."""
    thing, turn = things[number]
    least, reached, ways = float("inf"), set[int](), [(0.0, number)]
    while ways and ways[0][0] < least:
        room, at = heapq.heappop(ways)
        if at in reached:
            continue
        reached.add(at)
        steps = turn - things[at][1] if things[at][0] == thing else 0
        if steps:
            cycles = _moment(spans[number]) - _moment(spans[at])
            least = min(least, max(0.0, room + steps * cycles_per_step - cycles))
            continue
        span = spans[at]
        before = [*span.room] if span.after is None else [(span.after, 0.0), *span.room]
        for other, more in before:
            if other not in reached:
                heapq.heappush(ways, (room + more, other))
    return least


#: A thing of every step: its thread, kind, line and scope, and its number among equals of a step.
_Thing = tuple[int | None, SpanKind, str | None, str, int]
_Turn = tuple[_Thing, int]


def _things(spans: tuple[Span, ...]) -> list[_Turn]:
    """What each span is in every step, and in how many steps it has been before."""
    in_step: Counter[tuple[object, ...]] = Counter()
    turns: Counter[_Thing] = Counter()
    found: list[_Turn] = []
    for span in spans:
        key = span.thread, span.kind, span.line, span.scope
        thing = *key, in_step[*key, span.step]
        in_step[*key, span.step] += 1
        found.append((thing, turns[thing]))
        turns[thing] += 1
    return found


def _before(spans: tuple[Span, ...], number: int | None) -> Iterator[int]:
    """The numbers of a span, of what it was late for, and so on."""
    while number is not None:
        yield number
        number = spans[number].after


def _moment(span: Span) -> float:
    """When a span goes on to the next on the way: a wait when it ends, others when they begin."""
    return span.stop if span.kind is SpanKind.WAIT else span.start
