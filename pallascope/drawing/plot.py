"""`plot`: a `Timeline` as a matplotlib figure, for pages light and dark.

The model. `picture` says what is where; here it becomes patches of one axes, in cycles across and
pixels down. In a notebook the figure shows itself as SVG within the page, with its lines and text
in the page's own text colour (`currentColor`), so that it reads in any theme; `savefig` writes it
black on matplotlib's own background. It is not one of pyplot's figures: no window opens, and no
figure needs to be closed. Covered: one timeline in one axes. Not covered: stepping through it, see
`player`. Source: this project's own.
"""

# Much of Matplotlib has no types, and what lints has no IPython.
# pyright: basic, reportMissingImports=false

import html
import io
import re
from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from pallascope.arguments import expect
from pallascope.drawing.picture import (
    BRACKET_END,
    BRACKET_LINE,
    BRACKET_TEXT,
    EDGE,
    LOOKS,
    STEADY,
    Picture,
    headline,
    picture,
    remarks,
)
from pallascope.spans import SpanKind
from pallascope.timeline import Timeline

# Stands for the page's text colour until the SVG is written; black to the eye.
_INK = "#010101"
_WIDTH, _ABOVE, _LEGEND_ROW, _BELOW, _RIGHT = 760, 45, 17, 74, 12
_HATCH = "#77777766"
_POINTS = 0.75  # in a CSS pixel
_TEXT: Any = {"fontsize": 9, "color": _INK}
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "pipelib", "hatch.linewidth": 0.5}


#: Colours of axes that `TimelineFigure` turns into the page's own.
COLOURS: Any = {
    f"{name}color": _INK for name in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")
}


class TimelineFigure(Figure):
    """A figure that notebooks show as SVG of the page's text colour."""

    description = ""

    def _repr_svg_(self) -> str:
        text = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            self.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        return _for_pages(text.getvalue(), self.description)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self._repr_svg_()}</div>'

    def _ipython_display_(self) -> None:
        """Shows this and nothing else: matplotlib would add an image that knows no theme."""
        from IPython.display import display

        bundle = {"text/html": self._repr_html_(), "text/plain": self.description}
        display(bundle, raw=True)


def plot(
    timeline: Timeline,
    *,
    start: float | None = None,
    stop: float | None = None,
    steps: Iterable[int] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draws a timeline: a lane for each worker, an arrow from each wait's cause to its end.

    Args:
      timeline: what to draw.
      start, stop: the window's ends in cycles; by default all of it.
      steps: draws the window of all spans whose innermost loop is at one of these steps.
      ax: axes of the caller's to draw into; by default a figure of its own.

    Returns:
      The figure: the cell's last value shows it, `savefig(path)` writes it.

    Raises:
      TypeError: `timeline`, `start`, `stop`, `steps` or `ax` has the wrong type.
      ValueError: an empty window, or more spans than can be seen.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> timeline = pallascope.simulate(pallascope.trace(softmax, x), pallascope.H100)
      >>> pallascope.plot(timeline).savefig("softmax.svg")
    """
    if ax is not None:
        expect("plot", ax, Axes, "matplotlib's Axes for ax=", "leave it out for a new figure")
    drawn = picture(timeline, start=start, stop=stop, steps=steps)
    notes = remarks(timeline)
    if ax is None:
        title = f"{timeline.name}, {headline(timeline)}"
        ax = _axes(drawn, len(notes), ". ".join([title, *notes]))
    with matplotlib.rc_context(_STYLE):
        _draw_axes(ax, drawn)
        _draw_steady(ax, drawn)
        _draw_boxes(ax, drawn)
        _draw_arrows(ax, drawn)
        _draw_words(ax, drawn, notes)
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def _axes(drawn: Picture, notes: int, description: str) -> Axes:
    """The axes of a new figure, with room for the lanes' names and the words around."""
    left = 20 + 7 * max(len(name) for name, _, _ in drawn.lanes())
    bottom = _BELOW + 15 * notes
    height = _ABOVE + _LEGEND_ROW * _legend_rows(drawn) + drawn.height + bottom
    figure = TimelineFigure(figsize=(_WIDTH * _POINTS / 72, height * _POINTS / 72))
    figure.description = description
    across = left / _WIDTH, (_WIDTH - left - _RIGHT) / _WIDTH
    return figure.add_axes((across[0], bottom / height, across[1], drawn.height / height))


def _legend_rows(drawn: Picture) -> int:
    return 2 if len(drawn.kinds()) > 6 else 1


def _pixels(ax: Axes) -> float:
    """How wide the axes are."""
    return ax.get_window_extent().width / ax.figure.dpi * 72 / _POINTS


def _draw_axes(ax: Axes, drawn: Picture) -> None:
    ax.set_xlim(drawn.start, drawn.stop)
    ax.set_ylim(drawn.height, 0)
    ax.set_facecolor("none")
    ticks = drawn.ticks()
    ax.set_xticks([at for at, _ in ticks], [numbers[0] for _, numbers in ticks], **_TEXT)
    lanes = [*drawn.lanes()]
    ax.set_yticks([(top + bottom) / 2 for _, top, bottom in lanes], [n for n, _, _ in lanes])
    ax.tick_params(axis="y", length=0, labelsize=9, labelcolor=_INK)
    ax.tick_params(axis="x", color=_INK, length=3)
    ax.grid(axis="x", color=EDGE, alpha=0.3, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set(color=_INK, linewidth=0.6)
    below: Any = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
    for at, numbers in ticks:
        for us in numbers[1:]:
            ax.annotate(us, (at, 0), (0, -17), ha="center", **below, **_TEXT)
    for y, unit in zip((-6, -17), drawn.units):
        ax.annotate(unit, (drawn.start, 0), (-24, y), ha="right", **below, **_TEXT)


def _draw_boxes(ax: Axes, drawn: Picture) -> None:
    """One collection for each kind: a long timeline is few objects."""
    for kind in drawn.kinds():
        boxes = [box for box in drawn.boxes if box.span.kind == kind]
        corners = []
        for box in boxes:
            top, height = drawn.rows[box.row].top, drawn.rows[box.row].height
            left, right, bottom = box.start, box.stop, top + height
            corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        ax.add_collection(PolyCollection(corners, zorder=2, **_patch(kind)), autolim=False)
    width = _pixels(ax)
    for box in drawn.boxes:
        if label := drawn.label(box, width):
            row, scope = drawn.rows[box.row], box.span.kind == SpanKind.SCOPE
            ax.text(
                (box.start + box.stop) / 2, row.top + row.height / 2, label,
                ha="center", va="center_baseline", fontsize=7 if scope else 8,
                color=LOOKS[box.span.kind].label or _INK, zorder=4, clip_on=True,
            )  # fmt: skip


def _draw_steady(ax: Axes, drawn: Picture) -> None:
    """A bracket over the steady state, open where the window cuts it, and its time shaded."""
    bracket = drawn.steady
    if bracket is None:
        return
    ends = [(bracket.start, BRACKET_END)] * bracket.begins
    ends += [(bracket.start, BRACKET_LINE), (bracket.stop, BRACKET_LINE)]
    ends += [(bracket.stop, BRACKET_END)] * bracket.ends
    ax.plot(*zip(*ends), color=_INK, linewidth=0.8, clip_on=False)
    size = bracket.stop - bracket.start, drawn.height - BRACKET_END
    corner = bracket.start, BRACKET_END
    ax.add_patch(Rectangle(corner, *size, facecolor=_INK, alpha=0.05, linewidth=0, zorder=0))
    place, align = bracket.label_at(drawn)
    ax.text(place, BRACKET_TEXT, STEADY, ha=align, va="center_baseline", **_TEXT)


def _patch(kind: SpanKind) -> dict[str, Any]:
    """The looks of a kind's boxes and of its sample in the legend."""
    fill = LOOKS[kind].fill
    if fill is not None:
        return {"facecolor": fill, "edgecolor": EDGE, "linewidth": 0.6}
    if kind == SpanKind.WAIT:
        hatch = {"hatch": "////", "hatchcolor": _HATCH}
        return {"facecolor": "none", "edgecolor": EDGE, "linewidth": 0.6, **hatch}
    return {"facecolor": "none", "edgecolor": EDGE, "linewidth": 0.8}


def _draw_arrows(ax: Axes, drawn: Picture) -> None:
    style = {"arrowstyle": "-|>", "color": _INK, "linewidth": 0.7, "mutation_scale": 6}
    width = _pixels(ax)
    for arrow in (arrow for arrow in drawn.arrows if drawn.shows_arrow(arrow, width)):
        x0, y0, x1, y1 = drawn.ends(arrow)
        props = {**style, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (x1, y1), (x0, y0), arrowprops=props, zorder=3, annotation_clip=True)


def _draw_words(ax: Axes, drawn: Picture, notes: list[str]) -> None:
    kinds, rows = drawn.kinds(), _legend_rows(drawn)
    pad = 17 + _LEGEND_ROW * _POINTS * rows
    name = drawn.timeline.name
    ax.set_title(name, loc="left", pad=pad, fontsize=11, fontweight="bold", color=_INK)
    ax.set_title(headline(drawn.timeline), loc="right", pad=pad, **_TEXT)
    ax.legend(
        handles=[Patch(label=LOOKS[kind].words, **_patch(kind)) for kind in kinds],
        loc="lower left", bbox_to_anchor=(0, 1), ncols=-(-len(kinds) // rows), frameon=False,
        borderpad=0, borderaxespad=0.8, handlelength=1.6, columnspacing=1.4, labelspacing=0.3,
        fontsize=8, labelcolor=_INK,
    )  # fmt: skip
    for i, note in enumerate(notes):
        ax.annotate(
            note, (0, 0), (0, -36 - 11 * i), xycoords="axes fraction", textcoords="offset points",
            va="top", fontsize=8, color=_INK,
        )  # fmt: skip


def _for_pages(svg: str, description: str) -> str:
    """Matplotlib's SVG as a part of a page: its text colour, its font, no ids of no use."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = svg.replace(_INK, "currentColor")
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # would rule the whole page
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    label = html.escape(description)
    look = f"width: 100%; min-width: 620px; max-width: {_WIDTH}px; height: auto"
    look += "; font-family: system-ui, sans-serif"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}" style="{look}"', 1)
