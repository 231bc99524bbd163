"""`critical`: the cycle of waits that sets how long a step of a pipeline takes.

The model. In the steady state every step does the same things, each a *period* later than the step
before. Each thing is late for one other thing (`Span.after`): what its thread did before, what its
unit did before, or, of a wait, the arrival that ended it. Follow that back from a late step. There
are finitely many things in a step, so they come again, some steps earlier: this is the **critical
cycle**. Its time over its steps is the period, and the period is the largest such ratio of all
cycles of the pipeline. So nothing but a change to the critical cycle makes the steps
shorter, and what is not on it may take longer, up to its slack.

It is a timed event graph, whose period is its maximum cycle ratio. Source: F. Baccelli and others,
"Synchronization and Linearity", 1992, chapter 3.

Not covered: what is not periodic, as steps that differ by their masks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pallascope.arguments import TIMELINE, expect
from pallascope.timeline import Source, Span, SpanKind, Timeline

#: How far a cycle's ratio may be from the period of the steady state, since steps are not all
#: alike; and how far at most if no better cycle is looked for. The most steps of a cycle.
_TOLERANCE, _EXACT, _MOST_STEPS = 0.02, 1e-4, 32
#: The most things that a text names.
_MOST_WORDS = 12


class Hop(NamedTuple):
    """A thing on the way: its span's number, and cycles until the next thing."""

    span: int
    cycles: float


@dataclass(frozen=True)
class Critical:
    """The critical cycle of a timeline.

    Attributes:
      timeline: the simulated one.
      hops: the things, in order; the last one is followed by the first, `steps` steps later.
      cycles: of all of them.
      steps: how many steps the cycle goes over.

    Example:
      >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
      >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
      >>> print(pallascope.critical(pallascope.simulate(program, pallascope.H200)))
      load ... -> ... cycles for ...
    """

    timeline: Timeline
    hops: tuple[Hop, ...]
    cycles: float
    steps: int

    @property
    def cycles_per_step(self) -> float:
        """How long a step takes, in cycles."""
        return self.cycles / self.steps

    def __str__(self) -> str:
        """As "load b (780) -> multiply (512) -> arrive (149): 1,441 cycles for 2 steps"."""
        spans = self.timeline.spans
        parts: list[tuple[tuple[int | None, int | None], str, float]] = []
        for number, cycles in self.hops:
            span = spans[number]
            op = span.thread, span.op  # of a load, its issue and its copy
            before = parts.pop()[2] if parts and parts[-1][0] == op else 0.0
            parts.append((op, span.text.partition(",")[0], before + cycles))
        words = [f"{text} ({cycles:,.0f})" for _, text, cycles in parts if cycles >= 0.5]
        if len(words) > _MOST_WORDS:
            words[_MOST_WORDS:] = [f"{len(words) - _MOST_WORDS} more"]
        steps = "a step" if self.steps == 1 else f"{self.steps} steps"
        return f"{' -> '.join(words)}: {self.cycles:,.0f} cycles for {steps}"


def critical(timeline: Timeline) -> Critical | None:
    """The critical cycle of a simulated timeline's steady state; None where there is none.

    Raises:
      TypeError: it is not a Timeline.

    Example:
      >>> a = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
      >>> program = pallascope.trace(pipelib.kernels.matmul, a, a)
      >>> found = pallascope.critical(pallascope.simulate(program, pallascope.H200))
      >>> found.cycles_per_step == found.cycles / found.steps
      True
    """
    expect("A critical cycle", timeline, *TIMELINE)
    steady = timeline.steady()
    if timeline.source is not Source.SIMULATED or steady is None:
        return None
    spans, things = timeline.spans, _things(timeline.spans)
    last = max(
        (i for i, span in enumerate(spans) if span.lane == steady.lane and span.step),
        key=lambda i: (spans[i].start <= steady.stop, spans[i].start),
    )
    path: list[int] = []
    seen: defaultdict[_Thing, list[int]] = defaultdict(list)
    best, least = None, _TOLERANCE
    for number in _before(spans, last):
        thing, turn = things[number]
        for at in reversed(seen[thing][-_MOST_STEPS:]):
            steps, cycles = (
                things[path[at]][1] - turn,
                _moment(spans[path[at]]) - _moment(spans[number]),
            )
            off = abs(cycles / steps / steady.cycles_per_step - 1)
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
    hops = [Hop(i, after - before) for i, before, after in zip(ways, times, times[1:])]
    steps = things[ways[-1]][1] - things[ways[0]][1]
    return Critical(timeline, tuple(hops), times[-1] - times[0], steps)


#: A thing of every step: its thread, kind, line and scope, and its number among equals of a step.
_Thing = tuple[int | None, SpanKind, str | None, str, int]


def _things(spans: tuple[Span, ...]) -> list[tuple[_Thing, int]]:
    """What each span is in every step, and in how many steps it has been before."""
    in_step: Counter[tuple[object, ...]] = Counter()
    turns: Counter[_Thing] = Counter()
    found: list[tuple[_Thing, int]] = []
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
