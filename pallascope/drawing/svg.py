"""`draw`: a `Picture` as SVG text for the player's page, which has the styles.

The model. The names of the lanes are one SVG, the time another one that can be scrolled. Every x is
in percent of the width: the figure is as wide as the page lets it be, at any zoom, and its text
keeps its size. Classes say what a thing is: `b` a box, `l` its label, both with their kind,
`arrow`, `steady` the bracket over the steady state, and `narrow` for what has no room at the width
that is supposed here; the script looks again. A label that has a shorter form has both in
`data-long` and `data-short`. Not covered: a file of its own, which `plot` writes. Source: this
project's own.
"""

import html

from pallascope.drawing.picture import (
    BRACKET_END,
    BRACKET_LINE,
    BRACKET_TEXT,
    STEADY,
    Picture,
    headline,
)

# What a figure is made for until a script sees the page: pixels of the time's width.
_WIDTH = 640
_LINES = 12, 27  # how far below the axis the numbers stand, in each unit


def draw(drawn: Picture) -> str:
    """The labels' column and the drawing; every x in percent, so that it takes any width."""
    lanes = [*drawn.lanes()]
    names = [
        f'<text x="100%" y="{(top + bottom) / 2:g}">{html.escape(name)}</text>'
        for name, top, bottom in lanes
    ]
    height = drawn.height
    for y, unit in zip(_LINES, drawn.units):
        names.append(f'<text x="100%" y="{height + y}">{unit}</text>')
    parts = [_steady(drawn), _axis(drawn), *(_box(drawn, i) for i in range(len(drawn.boxes)))]
    parts += [_arrow(drawn, i) for i in range(len(drawn.arrows))]
    parts.append(f'<line class="head" y1="0" y2="{height}"/>')
    label = f"{drawn.timeline.name}, {headline(drawn.timeline)}"
    if drawn.steady is not None:
        label += f", {STEADY} from cycle {drawn.steady.start:,.0f} to {drawn.steady.stop:,.0f}"
    longest = max(len(name) for name, _, _ in lanes)
    return (
        f'<svg class="names" height="{height + 36}" style="width:{max(3.6, longest * 0.5):.1f}em"'
        f' aria-hidden="true">{"".join(names)}</svg>'
        '<div class="scroll" tabindex="0" role="group" aria-label="Drawing, wider than its place">'
        f'<svg class="time" role="img" aria-label="{html.escape(label)}"'
        f' height="{height + 36}">{"".join(parts)}</svg></div>'
    )


def _percent(drawn: Picture, cycles: float) -> str:
    return f"{100 * (cycles - drawn.start) / (drawn.stop - drawn.start):.5g}%"


def _axis(drawn: Picture) -> str:
    bottom = drawn.height
    parts = [f'<line class="axis" x1="0" x2="100%" y1="{bottom}" y2="{bottom}"/>']
    for at, numbers in drawn.ticks():
        x = _percent(drawn, at)
        share = (at - drawn.start) / (drawn.stop - drawn.start)
        end = ' class="first"' if share < 0.03 else ' class="last"' if share > 0.97 else ""
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{bottom + 4}"/>')
        words = [
            f'<text{end} x="{x}" y="{bottom + y}">{number}</text>'
            for y, number in zip(_LINES, numbers)
        ]
        parts.append(f'<g class="tick">{"".join(words)}</g>')
    return "".join(parts)


def _box(drawn: Picture, i: int) -> str:
    box = drawn.boxes[i]
    row, kind = drawn.rows[box.row], box.span.kind
    x, width = _percent(drawn, box.start), _percent(drawn, drawn.start + box.stop - box.start)
    text = f'<rect class="b {kind}" x="{x}" y="{row.top}" width="{width}" height="{row.height}"/>'
    if box.labels:
        middle = _percent(drawn, (box.start + box.stop) / 2)
        shown, short = drawn.label(box, _WIDTH), html.escape(box.labels[-1])
        narrow = "" if shown else " narrow"
        both = f' data-long="{html.escape(box.labels[0])}" data-short="{short}"'
        other = both if len(box.labels) > 1 else ""
        y = row.top + row.height / 2
        text += (
            f'<text class="l {kind}{narrow}"{other} x="{middle}" y="{y:g}">'
            f"{html.escape(shown) or short}</text>"
        )
    return text


def _steady(drawn: Picture) -> str:
    """The bracket over the steady state, open where the window cuts it."""
    bracket = drawn.steady
    if bracket is None:
        return ""
    left, right = _percent(drawn, bracket.start), _percent(drawn, bracket.stop)
    width = _percent(drawn, drawn.start + bracket.stop - bracket.start)
    place, align = bracket.label_at(drawn)
    end = {"left": ' class="first"', "right": ' class="last"'}.get(align, "")
    lines = [(left, right, BRACKET_LINE, BRACKET_LINE)]
    lines += [(left, left, BRACKET_LINE, BRACKET_END)] * bracket.begins
    lines += [(right, right, BRACKET_LINE, BRACKET_END)] * bracket.ends
    drawing = "".join(
        f'<line x1="{x0}" x2="{x1}" y1="{y0}" y2="{y1}"/>' for x0, x1, y0, y1 in lines
    )
    return (
        f'<g class="steady"><rect x="{left}" y="{BRACKET_END}" width="{width}"'
        f' height="{drawn.height - BRACKET_END}"/>{drawing}'
        f'<text{end} x="{_percent(drawn, place)}" y="{BRACKET_TEXT}">{STEADY}</text></g>'
    )


def _arrow(drawn: Picture, i: int) -> str:
    """A line and its head; `data-wait` is the number of the wait's box."""
    arrow = drawn.arrows[i]
    narrow = "" if drawn.shows_arrow(arrow, _WIDTH) else " narrow"
    x0, y0, x1, y1 = drawn.ends(arrow)
    point = "-3 -6L3 -6" if y1 > y0 else "-3 6L3 6"
    x0, x1 = _percent(drawn, x0), _percent(drawn, x1)
    return (
        f'<g class="arrow{narrow}" data-wait="{arrow.wait}">'
        f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>'
        f'<svg x="{x1}" y="{y1}"><path d="M0 0L{point}z"/></svg></g>'
    )
