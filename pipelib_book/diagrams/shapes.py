"""The named parts of which a diagram is drawn, and the SVG that they make.

The model. A part (`box`, `grid`, `lane`, `arrow`, `brace`, `barrier`, `text`, ...) is a tuple of
marks: a `Rect`, a `Path` or `Words`, at places in the drawing's own units. `drawing` puts parts
together, in the order in which they are painted. A page shows the drawing as wide as there is room
(`PER_UNIT` pixels for a unit at most), and scrolls it sideways before its text is smaller than
`LEAST_PIXELS`. A drawing of `PHONE` units fits a phone's page.

What a look means, the same in all diagrams:

| look    | of a box                       | of an arrow             |
| ------- | ------------------------------ | ----------------------- |
| SOLID   | something happens, in its time | bytes move: broad       |
| TINT    | a place or a unit, in use      |                         |
| PLAIN   | a place that is empty          | an order, a signal      |
| PENDING | a place that is being filled   | what has no order       |
| WAIT    | somebody waits                 |                         |

Colours are those of the figures of schedules, by the same kinds (`SpanKind`): copies in and out,
products, arithmetic, ordinary accesses, barriers. They are custom properties of the figure; all
else has the page's text colour, so that a diagram reads on light and on dark pages. All text has
one size. `width_of` bounds a text's width, so that tests can say whether it fits. Not covered:
text that is turned, and motion, which players have. Source: this project's own.
"""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pallascope.drawing.picture import EDGE, LOOKS
from pallascope.spans import SpanKind

# Units: the size of text, the distance of its lines, the margin on all sides, and a phone's width.
TEXT, LINE, MARGIN = 12, 16, 3
PHONE = 384
# CSS pixels: of a unit where there is room, and of text where there is none.
PER_UNIT, LEAST_PIXELS = 1.3, 11
# Half the breadth of an arrow's head, for a line and for bytes; a head is as long as it is broad.
_HALF_HEAD, _HALF_BROAD = 3.5, 7.0

# The widest advance of these characters in DejaVu Sans, in ems: the widest of the fonts that
# `system-ui` stands for on the usual systems. Any other character is taken to be an em wide.
_ADVANCES = {
    "'ijlIJ": 0.30,
    " .,:;/|-()[]!frt": 0.41,
    "abcdeghknopqsuvxyz0123456789EFKLPSTY_?": 0.66,
    "ABCDGHNOQRUVXZ": 0.79,
    "w+<=>": 0.84,
}
_EM = {character: width for group, width in _ADVANCES.items() for character in group}
_CODE_EM, _BOLDER = 0.61, 1.14

Point = tuple[float, float]


class Shade(StrEnum):
    """How a box is filled."""

    SOLID = "s"
    TINT = "t"
    PLAIN = "p"
    PENDING = "q"
    WAIT = "w"
    PANEL = "n"


SOLID, TINT, PLAIN, PENDING, WAIT = (
    Shade.SOLID,
    Shade.TINT,
    Shade.PLAIN,
    Shade.PENDING,
    Shade.WAIT,
)
LOAD, STORE, WGMMA = SpanKind.LOAD, SpanKind.STORE, SpanKind.WGMMA
COMPUTE, ACCESS, ISSUE = SpanKind.COMPUTE, SpanKind.ACCESS, SpanKind.ISSUE


class Anchor(StrEnum):
    """Which part of a text stands at its place."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


def width_of(words: str, *, bold: bool = False) -> float:
    """No less than the width of a text, in units; between backticks it is code."""
    parts = words.split("`")
    prose = sum(_EM.get(character, 1.0) for part in parts[::2] for character in part)
    code = sum(map(len, parts[1::2]))
    return TEXT * (prose * (_BOLDER if bold else 1) + code * _CODE_EM)


# ---- Marks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; without a kind it has the page's text colour."""

    x: float
    y: float
    width: float
    height: float
    shade: Shade
    kind: SpanKind | None = None
    rounded: bool = True

    def svg(self) -> str:
        """The element."""
        corner = ' rx="3"' if self.rounded else ""
        return (
            f'<rect class="{_classes(self.shade, self.kind)}" x="{self.x:g}" y="{self.y:g}"'
            f' width="{self.width:g}" height="{self.height:g}"{corner}/>'
        )


@dataclass(frozen=True, slots=True)
class Path:
    """A line or an outline; `lines` are the polygonal lines that it keeps near to."""

    d: str
    look: str
    kind: SpanKind | None = None
    lines: tuple[tuple[Point, ...], ...] = ()

    def svg(self) -> str:
        """The element."""
        return f'<path class="{_classes(self.look, self.kind)}" d="{self.d}"/>'


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text whose middle is at height `y`; `room` is the box that it stands in.

    `on` is the kind of the solid box below it, whose label's colour it has.
    """

    x: float
    y: float
    words: str
    anchor: Anchor = Anchor.MIDDLE
    bold: bool = False
    on: SpanKind | None = None
    room: Rect | None = None

    @property
    def width(self) -> float:
        """No less than the width, in units."""
        return width_of(self.words, bold=self.bold)

    @property
    def left(self) -> float:
        """Where the widest form of the text begins."""
        return self.x - self.width * {"start": 0, "middle": 0.5, "end": 1}[self.anchor]

    def svg(self) -> str:
        """The element."""
        names = [*("b" for _ in [0] if self.bold), *([self.on] if self.on else [])]
        names += [self.anchor] if self.anchor is not Anchor.MIDDLE else []
        look = f' class="{" ".join(names)}"' if names else ""
        return f'<text{look} x="{self.x:g}" y="{self.y:g}">{_with_code(self.words)}</text>'


Mark = Rect | Path | Words
Part = tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Marks on a sheet of `width` x `height` units, the later ones on top."""

    width: float
    height: float
    marks: Part

    @property
    def most_pixels(self) -> int:
        """How wide it is on a page that has room."""
        return round((self.width + 2 * MARGIN) * PER_UNIT)

    def svg(self, title: str, description: str) -> str:
        """The drawing as one SVG with its own styles, for any page."""
        width, height = self.width + 2 * MARGIN, self.height + 2 * MARGIN
        least = math.ceil(width * LEAST_PIXELS / TEXT)
        return (
            f'<svg role="img" viewBox="{-MARGIN} {-MARGIN} {width:g} {height:g}"'
            f' style="max-width:{self.most_pixels}px;min-width:{least}px">'
            f"<title>{html.escape(title)}</title><desc>{html.escape(description)}</desc>"
            f"<style>{STYLE}</style>{''.join(mark.svg() for mark in self.marks)}</svg>"
        )


def drawing(width: float, height: float, *parts: Part) -> Drawing:
    """A drawing of these parts."""
    return Drawing(width, height, tuple(mark for part in parts for mark in part))


# ---- Parts ---------------------------------------------------------------------------------------


def text(
    x: float, y: float, *lines: str, anchor: Anchor = Anchor.MIDDLE, bold: bool = False
) -> Part:
    """Lines of text with their middle at `x`, the first one's at height `y`."""
    return tuple(Words(x, y + i * LINE, line, anchor, bold) for i, line in enumerate(lines))


def text_after(x: float, y: float, *lines: str) -> Part:
    """Lines of text that begin at `x`."""
    return text(x, y, *lines, anchor=Anchor.START)


def text_before(x: float, y: float, *lines: str) -> Part:
    """Lines of text that end at `x`."""
    return text(x, y, *lines, anchor=Anchor.END)


def heading(x: float, y: float, words: str) -> Part:
    """A bold line that begins at `x`."""
    return text(x, y, words, anchor=Anchor.START, bold=True)


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    *lines: str,
    kind: SpanKind | None = None,
    shade: Shade = Shade.TINT,
    rounded: bool = True,
) -> Part:
    """A box with lines of text in its middle."""
    rect = Rect(x, y, width, height, shade, kind, rounded)
    first = y + height / 2 - (len(lines) - 1) * LINE / 2
    on = kind if shade is Shade.SOLID else None
    middle = x + width / 2
    words = (
        Words(middle, first + i * LINE, line, on=on, room=rect) for i, line in enumerate(lines)
    )
    return (rect, *words)


def panel(x: float, y: float, width: float, height: float, title: str = "") -> Part:
    """A pale ground for parts that belong together, with a title in its corner."""
    rect = Rect(x, y, width, height, Shade.PANEL)
    words = Words(x + 10, y + 14, title, Anchor.START, bold=True, room=rect)
    return (rect, words) if title else (rect,)


def grid(
    x: float,
    y: float,
    rows: int,
    columns: int,
    width: float,
    height: float,
    marked: Mapping[tuple[int, int], tuple[SpanKind, Shade, str]] | None = None,
) -> Part:
    """A grid of tiles of `width` x `height`; `marked` tiles have a kind, a shade and a word."""
    right, bottom = x + columns * width, y + rows * height
    across = [((x, y + i * height), (right, y + i * height)) for i in range(1, rows)]
    down = [((x + i * width, y), (x + i * width, bottom)) for i in range(1, columns)]
    inside = tuple(
        mark
        for (row, column), (kind, shade, word) in (marked or {}).items()
        for mark in box(
            x + column * width,
            y + row * height,
            width,
            height,
            *([word] if word else []),
            kind=kind,
            shade=shade,
            rounded=False,
        )
    )
    ground = Rect(x, y, right - x, bottom - y, Shade.PLAIN, rounded=False)
    return (*inside, Path(_polygons(*across, *down), "g", None, (*across, *down)), ground)


class Work(NamedTuple):
    """What a lane does from `start` to `stop`, in its units of time."""

    start: float
    stop: float
    word: str = ""
    kind: SpanKind | None = None
    shade: Shade = Shade.SOLID


def wait(start: float, stop: float, word: str = "") -> Work:
    """A time in which a lane waits."""
    return Work(start, stop, word, None, Shade.WAIT)


@dataclass(frozen=True, slots=True)
class Clock:
    """Where times stand in a drawing: time 0 at `x`, `unit` for each unit of time."""

    x: float
    unit: float

    def at(self, time: float) -> float:
        """The place of a time."""
        return self.x + time * self.unit

    def lane(self, y: float, name: str, works: Iterable[Work], height: float = 20) -> Part:
        """A lane: its name, and a box for each thing that it does."""
        label = Words(self.x - 8, y + height / 2, name, Anchor.END)
        boxes = (
            mark
            for start, stop, word, kind, shade in works
            for mark in box(
                self.at(start),
                y,
                (stop - start) * self.unit,
                height,
                *([word] if word else []),
                kind=kind,
                shade=shade,
                rounded=False,
            )
        )
        return (label, *boxes) if name else tuple(boxes)

    def axis(self, y: float, until: float) -> Part:
        """An arrow that says in which direction time goes."""
        shaft = arrow((self.x, y), (self.at(until), y))
        return (*shaft, Words(self.x - 8, y, "time", Anchor.END))

    def brace(self, start: float, stop: float, y: float, *lines: str, above: bool = False) -> Part:
        """A brace over a time, or below it."""
        return brace(self.at(start), self.at(stop), y, *lines, above=above)


def arrow(
    *points: Point,
    label: str = "",
    both: bool = False,
    pending: bool = False,
    bytes_of: SpanKind | None = None,
) -> Part:
    """A line from point to point with a head at its end.

    Args:
      points: the corners of the line.
      label: a text above a horizontal line, or to the right of another one.
      both: whether the begin has a head, too.
      pending: draws it broken.
      bytes_of: draws it broad, in a kind's colour: bytes that move.
    """
    look = _look(pending, bytes_of)
    half = _HALF_BROAD if bytes_of else _HALF_HEAD
    ends = [(points[-2], points[-1])] + ([(points[1], points[0])] if both else [])
    corners = [*points]
    for end, (before, tip) in zip((-1, 0), ends):
        corners[end] = _toward(tip, before, 2 * half)
    heads = " ".join(_head(before, tip, half) for before, tip in ends)
    shaft = Path(_polygons(tuple(corners)), look, bytes_of, (points,))
    words = _beside(points[0], points[1], label) if label else ()
    return (shaft, Path(heads, "h", bytes_of), *words)


def _beside(start: Point, stop: Point, label: str) -> Part:
    x, y = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2
    return text(x, y - 13, label) if start[1] == stop[1] else text_after(x + 9, y, label)


def line(*points: Point, pending: bool = False, bytes_of: SpanKind | None = None) -> Part:
    """A line without a head."""
    return (Path(_polygons(points), _look(pending, bytes_of), bytes_of, (points,)),)


def _look(pending: bool, bytes_of: SpanKind | None) -> str:
    return ("m d" if pending else "m") if bytes_of else "d" if pending else "l"


def dot(x: float, y: float) -> Part:
    """A point on a curve."""
    return (Path(f"M{x - 4:.5g} {y:.5g}a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "h"),)


def brace(x0: float, x1: float, y: float, *lines: str, above: bool = False) -> Part:
    """A brace from `x0` to `x1` whose tips are at `y`, with a text beyond its point."""
    sign, middle = (-1 if above else 1), (x0 + x1) / 2
    r, deep = 5 * sign, 10 * sign
    d = f"M{x0:g} {y:g}q0 {r} 5 {r}H{middle - 5:g}q5 0 5 {r}q0 {-r} 5 {-r}H{x1 - 5:g}q5 0 5 {-r}"
    corners = ((x0, y), (x0, y + r), (x1, y + r), (x1, y)), ((middle, y + r), (middle, y + deep))
    first = y + deep + 9 * sign - (LINE * (len(lines) - 1) if above else 0)
    return (Path(d, "l", None, corners), *text(middle, first, *lines))


def barrier(x: float, y: float, width: float, name: str, bit: int | None = None) -> Part:
    """A barrier, as a pill with its name and, if told, the bit of its phase."""
    room = width - (22 if bit is not None else 0)
    pill = Rect(x, y, width, 24, Shade.TINT, SpanKind.ISSUE)
    words = Words(x + room / 2, y + 12, name, room=Rect(x, y, room, 24, Shade.PLAIN))
    if bit is None:
        return (pill, words)
    cell = Rect(x + room, y, 22, 24, Shade.SOLID, SpanKind.ISSUE)
    digit = Words(x + room + 11, y + 12, str(bit), on=SpanKind.ISSUE, room=cell)
    return (pill, words, cell, digit)


def key(
    x: float, y: float, *lines: str, kind: SpanKind | None = None, shade: Shade = Shade.SOLID
) -> Part:
    """A line of a legend: a small box, and what it stands for."""
    swatch = Rect(x, y - 6, 16, 12, shade, kind, rounded=False)
    return (swatch, *text_after(x + 23, y, *lines))


def sector(
    centre: Point,
    radii: tuple[float, float],
    degrees: tuple[float, float],
    *lines: str,
    kind: SpanKind | None = None,
    shade: Shade = Shade.TINT,
) -> Part:
    """A piece of a ring, between two angles that count clockwise from the top, with its text."""
    (inner, outer), (first, last) = radii, degrees
    places = [_polar(centre, r, a) for r, a in ((outer, first), (outer, last), (inner, last))]
    (x0, y0), (x1, y1), (x2, y2) = places
    x3, y3 = _polar(centre, inner, first)
    d = (
        f"M{x0:.1f} {y0:.1f}A{outer:g} {outer:g} 0 0 1 {x1:.1f} {y1:.1f}"
        f"L{x2:.1f} {y2:.1f}A{inner:g} {inner:g} 0 0 0 {x3:.1f} {y3:.1f}Z"
    )
    x, y = _polar(centre, (inner + outer) / 2, (first + last) / 2)
    first_line = y - (len(lines) - 1) * LINE / 2
    edges = ((places[1], places[2]), ((x3, y3), places[0]))
    return (Path(d, shade, kind, edges), *text(round(x, 1), round(first_line, 1), *lines))


# ---- SVG -----------------------------------------------------------------------------------------


def _classes(look: str, kind: SpanKind | None) -> str:
    return f"{look} {kind}" if kind else look


def _with_code(words: str) -> str:
    """Text as SVG; what stands between backticks is code."""
    parts = html.escape(words, quote=False).split("`")
    return "".join(f"<tspan>{part}</tspan>" if i % 2 else part for i, part in enumerate(parts))


def _polygons(*lines: tuple[Point, ...]) -> str:
    return "".join("M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points) for points in lines)


def _polar(centre: Point, radius: float, degrees: float) -> Point:
    angle = math.radians(degrees)
    return centre[0] + radius * math.sin(angle), centre[1] - radius * math.cos(angle)


def _toward(start: Point, stop: Point, distance: float) -> Point:
    """The point that is `distance` from `start`, on the way to `stop`."""
    length = math.dist(start, stop)
    (x0, y0), (x1, y1) = start, stop
    return x0 + (x1 - x0) * distance / length, y0 + (y1 - y0) * distance / length


def _head(before: Point, tip: Point, half: float) -> str:
    """A triangle that points from `before` to its tip."""
    base = _toward(tip, before, 2 * half)
    length = math.dist(before, tip)
    dx, dy = (tip[0] - before[0]) / length * half, (tip[1] - before[1]) / length * half
    left, right = (base[0] - dy, base[1] + dx), (base[0] + dy, base[1] - dx)
    return _polygons((tip, left, right)) + "Z"


def _style() -> str:
    """The styles of all diagrams, each below `.pipelib-diagram`."""
    solid = {kind: (look.fill, look.label) for kind, look in LOOKS.items() if look.fill}
    properties = [f"--edge:{EDGE}"]
    for kind, (fill, label) in solid.items():
        properties += [f"--{kind}:{fill}", f"--{kind}-label:{label}"]
    kinds = [
        rule
        for kind in solid
        for rule in (
            f".{kind}{{fill:var(--{kind})}}",
            f".m.{kind}{{fill:none;stroke:var(--{kind})}}",
            f"text.{kind}{{fill:var(--{kind}-label)}}",
        )
    ]
    rules = {
        "": f"display:block;width:100%;margin:auto;color:inherit;{';'.join(properties)}",
        "text": f"font:{TEXT}px system-ui,sans-serif;fill:currentColor;text-anchor:middle;"
        "dominant-baseline:central",
        "tspan": "font-family:ui-monospace,monospace",
        "text.b": "font-weight:600",
        "text.start": "text-anchor:start",
        "text.end": "text-anchor:end",
        "rect": "stroke:var(--edge)",
        ":is(.s,.t,.p,.q,.w,.n)": "stroke:var(--edge);fill:currentColor",
        ":is(.t,.q)": "fill-opacity:.12",
        ":is(.q,.w)": "stroke-dasharray:3 2",
        ".p": "fill:none",
        ".w": "fill-opacity:.07",
        ".n": "fill-opacity:.05;stroke:none",
        ":is(.l,.d,.m,.g)": "fill:none;stroke:currentColor",
        ".d": "stroke-dasharray:4 3",
        ".m": "stroke-width:4",
        ".m.d": "stroke-dasharray:8 4",
        ".g": "stroke:var(--edge);stroke-width:.75",
        ".h": "fill:currentColor",
    }
    rules[f":is(.t,.q):is({','.join('.' + kind for kind in solid)})"] = "fill-opacity:.3"
    css = [f".pipelib-diagram svg {name}".rstrip() + f"{{{body}}}" for name, body in rules.items()]
    return "".join([*css, *(f".pipelib-diagram svg {rule}" for rule in kinds)])


STYLE = _style()
