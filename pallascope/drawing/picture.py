"""What every drawing of a `Timeline` shows: rows, boxes, arrows, colours and words.

The model. A lane takes as many rows as it has spans at one time: a thread takes one, the TMA engine
one for each copy in flight (the first row that is free), and named scopes take rows of their own
above. A lane without spans is left out. A span within the window is a box on its row. A wait has an
arrow from the end of its cause, unless the cause was over when the wait began or the arrow has no
room. A box's label is its buffer and its slot, or the slot alone where there is less room. Accesses
and arithmetic that follow each other at once, each too short to be told apart, are one box, with
the colour of the kind that took longest. Above all rows a bracket marks the steady state, if the
window has a part of it: what texts say of the steady state, they say of this time. Heights are in
CSS pixels, times in cycles; `plot` and `svg` only turn them into ink.

Colours. Light and dark pages have one palette, by M. Okabe and K. Ito, "Color Universal Design"
(jfly.uni-koeln.de/color, 2008), whose colours colour-blind readers can tell apart. Its lighter
colours are faint on white and its darker ones on black. So each box has an `EDGE` that stands out
from both, and a label in black or white, whichever reads better on it. Waits, scopes, text and axes
have the page's own text colour. Not covered: lanes of other meaning than `timeline` lists.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import NamedTuple, assert_never

from pallascope.arguments import TIMELINE, expect
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Timeline

EDGE = "#777777"
ROW, SCOPE_ROW, LANE_GAP = 20, 14, 8
# The strip for the steady state's bracket: its height, and where in it the text and the line are.
BRACKET, BRACKET_TEXT, BRACKET_LINE, BRACKET_END = 22, 8, 17, 22
STEADY = "steady state"
MAX_BOXES = 4000
# A box is at least this fraction of the window wide, about a pixel, so that it can be seen.
_LEAST_WIDTH = 1 / 1200
# Nobody can tell work shorter than this fraction of the window from its neighbours.
_LEAST_WORK = 1 / 200
# Within this fraction of the window's end, centred words would be cut.
_NEAR_AN_END = 0.1
# Sums of fractions are not exact.
_CYCLES_OF_NO_MATTER = 1e-3


class Look(NamedTuple):
    """How spans of a kind look; without a `fill` they have the page's text colour, thinned out."""

    words: str
    fill: str | None = None
    label: str | None = None


def _look(kind: SpanKind) -> Look:
    match kind:
        case SpanKind.LOAD:
            return Look("copy in", "#56B4E9", "#000000")
        case SpanKind.STORE:
            return Look("copy out", "#0072B2", "#FFFFFF")
        case SpanKind.WGMMA:
            return Look("wgmma", "#D55E00", "#000000")
        case SpanKind.COMPUTE:
            return Look("arithmetic", "#E69F00", "#000000")
        case SpanKind.ACCESS:
            return Look("read, write", "#009E73", "#000000")
        case SpanKind.ISSUE:
            return Look("issue, arrive", "#CC79A7", "#000000")
        case SpanKind.WAIT:
            return Look("wait")
        case SpanKind.SCOPE:
            return Look("named scope")
        case _:
            assert_never(kind)


LOOKS = {kind: _look(kind) for kind in SpanKind}  # in the legend's order


class Row(NamedTuple):
    """A strip of a lane, `height` pixels high from `top` on."""

    lane: int
    top: int
    height: int


@dataclass(frozen=True, slots=True)
class Box:
    """A span as drawn: cut at the window's ends, and wide enough to be seen.

    `labels` are what may stand in it, the longest first: the first that fits does.
    """

    index: int
    span: Span
    row: int
    start: float
    stop: float
    labels: tuple[str, ...]


class Arrow(NamedTuple):
    """From the end of a cause to the end of the wait for it, both numbers of boxes."""

    cause: int
    wait: int


class Bracket(NamedTuple):
    """The part of the steady state that a window has, and whether it begins and ends there."""

    start: float
    stop: float
    begins: bool
    ends: bool

    def label_at(self, drawn: "Picture") -> tuple[float, str]:
        """Where its words stand, in cycles, and their alignment: "left", "center" or "right"."""
        middle, length = (self.start + self.stop) / 2, drawn.stop - drawn.start
        if middle < drawn.start + _NEAR_AN_END * length:
            return self.start, "left"
        if middle > drawn.stop - _NEAR_AN_END * length:
            return self.stop, "right"
        return middle, "center"


class Picture(NamedTuple):
    """A drawing of `timeline` between the cycles `start` and `stop`; `boxes` go by start."""

    timeline: Timeline
    start: float
    stop: float
    rows: tuple[Row, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    height: int
    steady: Bracket | None = None

    def kinds(self) -> tuple[SpanKind, ...]:
        """The kinds that are seen, in the legend's order."""
        seen = {box.span.kind for box in self.boxes}
        return tuple(kind for kind in LOOKS if kind in seen)

    def lanes(self) -> Iterator[tuple[str, int, int]]:
        """Each lane's name, and where it begins and ends, in pixels."""
        for lane, name in enumerate(self.timeline.lanes):
            if rows := [row for row in self.rows if row.lane == lane]:
                yield name, rows[0].top, rows[-1].top + rows[-1].height

    def ends(self, arrow: Arrow) -> tuple[float, float, float, float]:
        """Where an arrow begins and ends: cycles and pixels of its begin, then of its end."""
        cause, wait = self.boxes[arrow.cause], self.boxes[arrow.wait]
        above, below = self.rows[cause.row], self.rows[wait.row]
        if above.top < below.top:
            return cause.stop, above.top + above.height, wait.stop, below.top
        return cause.stop, above.top, wait.stop, below.top + below.height

    def label(self, box: Box, width: float) -> str:
        """The longest of the box's labels that fits into it, if the window is `width` pixels wide;
        empty if none does."""
        pixels = width * (box.stop - box.start) / (self.stop - self.start)
        return next((text for text in box.labels if pixels >= 6.5 * len(text) + 4), "")

    def shows_arrow(self, arrow: Arrow, width: float) -> bool:
        """Whether the wait is long enough for its arrow to be told from its neighbours'."""
        wait = self.boxes[arrow.wait]
        return width * (wait.stop - wait.start) / (self.stop - self.start) >= 9

    @property
    def units(self) -> tuple[str, ...]:
        """What the numbers of a tick count."""
        return ("cycles", "µs") if self.timeline.is_timed else ("steps",)

    def ticks(self, most: int = 8) -> list[tuple[float, tuple[str, ...]]]:
        """Round numbers: where, and the number in each of the units."""
        step = _round_step((self.stop - self.start) / most)
        if not self.timeline.is_timed:
            step = max(1, step)
        us = 1e6 / self.timeline.clock_hz
        digits = max(0, 1 - math.floor(math.log10(step * us)))
        first = math.ceil(self.start / step)
        places = [i * step for i in range(first, math.floor(self.stop / step) + 1)]
        numbers = [(at, (f"{at:,.10g}", f"{at * us:.{digits}f}")) for at in places]
        return [(at, texts[: len(self.units)]) for at, texts in numbers]


def picture(
    timeline: Timeline,
    *,
    start: float | None = None,
    stop: float | None = None,
    steps: Iterable[int] | None = None,
) -> Picture:
    """Lays out a timeline, or a window of it.

    Args:
      timeline: what to draw.
      start, stop: the window's ends in cycles; by default the timeline's.
      steps: draws the window of all spans whose innermost loop is at one of these steps.

    Raises:
      TypeError: `timeline` is not a Timeline, `start` or `stop` is not a number, or `steps` are not
        numbers.
      ValueError: an empty window, more spans than can be seen, or a lane that does not exist.
    """
    expect("A figure", timeline, *TIMELINE)
    _check(timeline)
    low, high = _window(timeline, start, stop, steps)
    seen = [
        (index, span)
        for index, span in enumerate(timeline.spans)
        if (span.start < high and span.stop > low) or low <= span.start == span.stop <= high
    ]
    seen = _merged(seen, _LEAST_WORK * (high - low))
    if len(seen) > MAX_BOXES:
        raise ValueError(
            f"There are {len(seen)} spans from cycle {low:,.0f} to {high:,.0f}, but more than"
            f" {MAX_BOXES} are too small to be seen: draw a window with steps=range(...) or start="
            " and stop=, or trace fewer steps with max_steps=."
        )
    steady = _bracket(timeline, low, high)
    rows, row_of, height = _rows(timeline, seen, LANE_GAP // 2 + (BRACKET if steady else 0))
    boxes = _boxes(seen, row_of, low, high)
    number = {box.index: i for i, box in enumerate(boxes)}
    arrows = tuple(
        Arrow(number[cause], i)
        for i, box in enumerate(boxes)
        if (cause := box.span.cause) is not None
        and cause in number
        and _has_waited(box.span, timeline.spans[cause])
        and box.span.stop <= high
    )
    return Picture(timeline, low, high, rows, boxes, arrows, height, steady)


def _merged(seen: list[tuple[int, Span]], least: float) -> list[tuple[int, Span]]:
    """The spans, with one span for each run of short work, at the place of its first."""
    causes = {span.cause for _, span in seen}
    runs: list[list[tuple[int, Span]]] = []
    open_runs: dict[int, list[tuple[int, Span]]] = {}  # of each lane, the last if it can go on
    for index, span in sorted(seen, key=lambda pair: (pair[1].start, pair[0])):
        is_short = span.stop - span.start < least
        is_work = is_short and span.kind in (SpanKind.ACCESS, SpanKind.COMPUTE)
        if not is_work or index in causes:
            if span.kind != SpanKind.SCOPE:
                open_runs.pop(span.lane, None)
            runs.append([(index, span)])
            continue
        run = open_runs.get(span.lane)
        if run and abs(run[-1][1].stop - span.start) <= _CYCLES_OF_NO_MATTER:
            run.append((index, span))
        else:
            open_runs[span.lane] = [(index, span)]
            runs.append(open_runs[span.lane])
    return [(run[0][0], _one([span for _, span in run])) for run in runs]


def _one(spans: list[Span]) -> Span:
    """One span for several that follow each other."""
    if len(spans) == 1:
        return spans[0]
    cycles: defaultdict[SpanKind, float] = defaultdict(float)
    for span in spans:
        cycles[span.kind] += span.stop - span.start
    text = f"{len(spans)} operations: reads, writes and arithmetic; the first: {spans[0].text}"
    slots = {span.slot for span in spans if span.slot is not None}
    buffers = {span.buffer for span in spans if span.buffer}
    return replace(
        spans[0],
        stop=spans[-1].stop,
        kind=max(cycles, key=lambda kind: cycles[kind]),
        text=text,
        slot=slots.pop() if len(slots) == 1 else None,
        buffer=buffers.pop() if len(buffers) == 1 else "",
    )


def _has_waited(wait: Span, cause: Span) -> bool:
    """Whether a wait began before its cause was over."""
    return wait.start < cause.stop <= wait.stop


def headline(timeline: Timeline) -> str:
    """Where the times are from, as every figure says it."""
    if not timeline.is_timed:
        return "one order of the ops, a step each"
    return f"{timeline.source} on {timeline.machine}"


def remarks(timeline: Timeline) -> list[str]:
    """What the reader of a figure must know of the timeline, as sentences."""
    said = any(note.lower().startswith("truncated") for note in timeline.notes)
    cut = ["Truncated: the kernel goes on after the end of this timeline."]
    return [*(cut if timeline.truncated and not said else []), *timeline.notes]


def _check(timeline: Timeline) -> None:
    for index, span in enumerate(timeline.spans):
        if not 0 <= span.lane < len(timeline.lanes):
            raise ValueError(
                f"Span {index} is on lane {span.lane}, but there are {len(timeline.lanes)} lanes:"
                " it would be drawn nowhere."
            )


def _window(
    timeline: Timeline,
    start: float | None,
    stop: float | None,
    steps: Iterable[int] | None,
) -> tuple[float, float]:
    for name, value in (("start", start), ("stop", stop)):
        if value is not None:
            expect("A figure", value, Real, f"a number of cycles for {name}=", "give one, or none")
            if math.isinf(value):
                raise ValueError(
                    f"A figure ends, but {name}={value}: give cycles, or leave it out."
                )
    if steps is not None:
        expect("A figure", steps, Iterable, "several steps for steps=", "give range(first, last)")
        if start is not None or stop is not None:
            raise ValueError("steps= and start=, stop= each choose the window: pass one of them.")
        wanted = steps if isinstance(steps, range) else set(steps)  # a range may be long
        found = [s for s in timeline.spans if s.step and s.step[0] in wanted]
        if not found:
            some = [*wanted[:3]] if isinstance(wanted, range) else sorted(wanted)[:3]
            raise ValueError(f"No span is of the steps {some}...: there is nothing to draw.")
        start, stop = min(s.start for s in found), max(s.stop for s in found)
    low = 0.0 if start is None else start
    high = timeline.cycles if stop is None else stop
    if not low < high:
        raise ValueError(f"The window from cycle {low:g} to {high:g} is empty: nothing to draw.")
    return low, high


def _bracket(timeline: Timeline, low: float, high: float) -> Bracket | None:
    """The steady state within a window; None if the window has nothing of it."""
    steady = timeline.steady() if timeline.is_timed and not timeline.stuck else None
    if steady is None or not max(low, steady.start) < min(high, steady.stop):
        return None
    start, stop = max(low, steady.start), min(high, steady.stop)
    return Bracket(start, stop, start == steady.start, stop == steady.stop)


def _rows(
    timeline: Timeline, seen: list[tuple[int, Span]], top: int
) -> tuple[tuple[Row, ...], dict[int, int], int]:
    """The rows below `top`, the row of each span by its index, and the height of all."""
    rows: list[Row] = []
    row_of: dict[int, int] = {}
    for lane in sorted({span.lane for span in timeline.spans}):
        here = [(index, span) for index, span in seen if span.lane == lane]
        for is_scope, height in ((True, SCOPE_ROW), (False, ROW)):
            packed = pack([pair for pair in here if (pair[1].kind == SpanKind.SCOPE) == is_scope])
            count = max(packed.values(), default=-1 if is_scope else 0) + 1
            row_of |= {index: len(rows) + row for index, row in packed.items()}
            rows += [Row(lane, top + i * height, height - 2) for i in range(count)]
            top += count * height
        top += LANE_GAP
    return tuple(rows), row_of, top - LANE_GAP // 2


def pack(spans: list[tuple[int, Span]]) -> dict[int, int]:
    """For each span by its index, the first row on which it overlaps no earlier span."""
    free: list[float] = []
    found: dict[int, int] = {}
    for index, span in sorted(spans, key=lambda pair: _order(pair[1])):
        rows = (i for i, until in enumerate(free) if until <= span.start + _CYCLES_OF_NO_MATTER)
        row = next(rows, len(free))
        free[row : row + 1] = [span.stop]
        found[index] = row
    return found


def _order(span: Span) -> tuple[float, bool, float]:
    """What spans are sorted by: their start; among equals, no length first, then the longest."""
    return span.start, span.stop > span.start, -span.stop


def _boxes(
    seen: list[tuple[int, Span]], row_of: dict[int, int], low: float, high: float
) -> tuple[Box, ...]:
    least = (high - low) * _LEAST_WIDTH
    boxes: list[Box] = []
    for index, span in sorted(seen, key=lambda pair: (pair[1].start, row_of[pair[0]])):
        start = min(max(span.start, low), high - least)
        stop = max(min(span.stop, high), start + least)
        boxes.append(Box(index, span, row_of[index], start, stop, _labels(span)))
    return tuple(boxes)


def _labels(span: Span) -> tuple[str, ...]:
    """What may stand in a span's box; a number in a box is always a slot."""
    if span.kind == SpanKind.SCOPE:
        return (span.scope,) if span.scope else ()
    slot = "" if span.slot is None else str(span.slot)
    return tuple(dict.fromkeys(filter(None, (f"{span.buffer} {slot}".strip(), slot))))


def _round_step(least: float) -> float:
    """The first of 1, 2, 5, 10, 20, ... that is not under `least`."""
    power = 10 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
