"""`player`: timelines as one HTML figure to step through, with sliders between them.

The model. A `Setting` is a position of the sliders, the timeline that belongs to it and the outcome
in words. Python draws every setting (`svg`) and writes every span's sentence; the script in
`player.js` only turns the pages: it shows a setting, marks a span, moves the playhead. The first
setting's SVG stands in the page as it is, for readers without scripts; the others are JSON,
deflated, in base64. The title is the shown timeline's name. Each timeline fills the width, beside a
bar of its length among the others' (no bar if it stops for ever); a button gives them all one time
scale. What stands between backticks in details and notes is shown as code. Source lines are named
as a reader elsewhere has them (`paths`), with the line's text beside. The legend has the kinds of
the setting that is shown, and a bracket over the drawing marks the steady state.

A button shows the critical cycle of a simulated steady state: one round of it, as a line from box
to box, and what it takes in words.

A reader can keep one setting above the others, to compare them on one scale of time. An address
that ends in `#player-2:1.0@1200` shows the page's second figure with the sliders at 1 and 0, at
cycle 1,200. The page around a figure can follow it: when the figure describes an operation it sends
the event `pipelib-line` with the text of its line, and the event `pipelib-mark` sent to the figure
marks the boxes of a line.

What is stepped to, played and counted are operations. A named scope is one only where nothing
begins within it on its lane, as most of a measured profile; else it frames others. Read out are the
outcome and the operation that is chosen; neither the clock nor what a slider says itself.

The figure needs nothing else: no kernel, no network, no library. Text and lines have the page's
text colour, the boxes `picture`'s palette, so that it follows any theme. Names of the script stay
within it, styles stay below `.pipelib-player`, and it has no ids: a page may have many players. In
JupyterLab its keys are kept from the notebook.

Not covered: browsers without `DecompressionStream` (before 2023), which show the first setting
only. Source: this project's own.
"""

import base64
import functools
import html
import json
import math
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from pallascope.arguments import wrong_type
from pallascope.drawing import svg
from pallascope.drawing.document import document
from pallascope.drawing.paths import relative_paths
from pallascope.drawing.picture import EDGE, LOOKS, Picture, headline, picture, remarks
from pallascope.program import path_of, step_name
from pallascope.sources import text_of
from pallascope.spans import Span
from pallascope.timeline import Timeline, duration, percent

MAX_BYTES = 200_000
# A setting as the script reads it, by the names that the script uses.
type _Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One position of the sliders: `values` by their names, and what came of it.

    `timeline` is None where there is none to draw, as of a kernel that hangs. `outcome` is a few
    words ("no finding", "race"), `ok` whether it is a good one, `details` sentences on it.

    Example:
      >>> stuck = Setting({"slots": 1}, None, "deadlock", ok=False, details="Both threads wait.")
      >>> stuck.values["slots"], stuck.outcome
      (1, 'deadlock')
    """

    values: Mapping[str, Any]
    timeline: Timeline | None
    outcome: str = ""
    ok: bool = True
    details: str = ""


class Player:
    """An HTML figure: notebooks show it, `str` is its HTML, `save` writes a page of its own.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> pallascope.player(pallascope.simulate(program, pallascope.H100))
      <Player of softmax, ... bytes>
    """

    def __init__(self, figure: str, title: str) -> None:
        self._figure, self._title = figure, title

    def __str__(self) -> str:
        return self._figure

    def __repr__(self) -> str:
        return f"<Player of {self._title}, {len(self._figure.encode()):,} bytes>"

    def _repr_html_(self) -> str:
        return self._figure

    def save(self, path: str | pathlib.Path) -> None:
        """Writes a page with this figure alone, in the reader's light or dark."""
        path_of("Player.save", path).write_text(document(self._title, self._figure), "utf-8")


def player(
    settings: Timeline | Iterable[Setting],
    *,
    start: float | None = None,
    stop: float | None = None,
    steps: Iterable[int] | None = None,
) -> Player:
    """A figure to step through a timeline, or through many, with sliders to choose one of them.

    Args:
      settings: a timeline; or one setting for each combination of the sliders' values, in the
        sliders' order. The first is shown first. A name that has one value only has no slider.
      start, stop: the window's ends in cycles; by default all of each timeline.
      steps: draws, in each timeline, the window of all spans at one of these steps.

    Raises:
      TypeError: `settings` is neither a Timeline nor a list of Settings, or as in `plot`.
      ValueError: no settings, settings that do not fill the sliders' grid, an empty window, or a
        figure of more than 200,000 bytes.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> def kernel_factory(rows):
      ...     return functools.partial(softmax, slots=2, rows=rows), (x,)
      >>> figure = pallascope.player(pallascope.sweep(kernel_factory, rows=[2, 4]))
      >>> figure.save("softmax.html")
    """
    settings = _listed(settings)
    sliders = _sliders(settings)
    if isinstance(steps, Iterable) and not isinstance(steps, range):
        steps = [*steps]  # read for each timeline
    pictures = [
        setting.timeline and picture(setting.timeline, start=start, stop=stop, steps=steps)
        for setting in settings
    ]
    ended = [s.timeline.cycles for s in settings if s.timeline and not s.timeline.stuck]
    frames = [
        _frame(setting, drawn, sliders, _title(settings), max(ended, default=1))
        for setting, drawn in zip(settings, pictures)
    ]
    data = base64.b64encode(zlib.compress(_json(_interned(frames, sliders)), 9)).decode()
    figure = _figure(settings, sliders, frames, data)
    size = len(figure.encode())
    if size > MAX_BYTES:
        spans = sum(len(frame["spans"]) for frame in frames)
        raise ValueError(
            f"The figure has {size:,} bytes for {spans:,} spans in {len(settings)} settings, but"
            f" {MAX_BYTES:,} are the most for a page that loads at once: trace fewer steps with"
            " max_steps=, draw a window with steps=range(...), or give the sliders fewer values."
        )
    return Player(figure, _title(settings))


def _listed(settings: object) -> list[Setting]:
    """The settings as a list; TypeError if they are anything else."""
    if isinstance(settings, Timeline):
        return [Setting({}, settings)]
    noun = "a Timeline or a list of Settings"
    remedy = "make one with pallascope.simulate(...), or them with pallascope.sweep(...)"
    if not isinstance(settings, Iterable):
        raise wrong_type("player", settings, noun, remedy)
    found: list[Setting] = []
    for each in cast(Iterable[object], settings):
        if not isinstance(each, Setting):
            raise wrong_type("player", each, noun, remedy)
        found.append(each)
    return found


def _sliders(settings: list[Setting]) -> dict[str, list[object]]:
    """The values of each name, in the order in which they come; they must fill a grid."""
    if not settings:
        raise ValueError("There are 0 settings: a figure needs 1 at least.")
    names = [*settings[0].values]
    for setting in settings:
        if {*setting.values} != {*names}:
            raise ValueError(
                f"One setting has values for {names}, another for {[*setting.values]}: each slider"
                " needs a value in all."
            )
    try:
        sliders = {name: [*dict.fromkeys(s.values[name] for s in settings)] for name in names}
    except TypeError as error:
        raise TypeError(
            f"A slider tells its positions by their values, which must be hashable ({error}): give"
            " tuples for lists, or names."
        ) from error
    places = {tuple(s.values[name] for name in names) for s in settings}
    counts = [len(values) for values in sliders.values()]
    if not math.prod(counts) == len(settings) == len(places):
        product = " x ".join(map(str, counts)) or "1"
        raise ValueError(
            f"There are {len(settings)} settings, {len(places)} of them different, but the sliders"
            f" {', '.join(names)} have {product} = {math.prod(counts)} positions: each needs its"
            " setting, once."
        )
    return sliders


# ---- What the script gets ------------------------------------------------------------------------


def _frame(
    setting: Setting,
    drawn: Picture | None,
    sliders: dict[str, list[object]],
    title: str,
    longest: float,
) -> _Frame:
    """A setting as the script reads it: `spans` has a list for each box, in the SVG's order."""
    frame: _Frame = {
        "at": [sliders[name].index(setting.values[name]) for name in sliders],
        "title": title,
        "outcome": setting.outcome,
        "ok": setting.ok,
        "details": relative_paths(setting.details),
        "source": "",
        "length": "",
        "share": 0,
        "notes": [],
        "kinds": [],
        "svg": "",
        "spans": [],
        "round": [],
        "critical": "",
    }
    if drawn is None:
        return frame
    timeline = drawn.timeline
    numbers = {box.index: i for i, box in enumerate(drawn.boxes)}
    spans = [
        [
            round(box.span.start, 1),
            round(box.span.stop, 1),
            _heading(timeline, box.span),
            box.span.text,
            _line(box.span.line),
            -1 if box.span.cause is None else numbers.get(box.span.cause, -1),
            box.span.lane,
        ]
        for box in drawn.boxes
    ]
    found = timeline.critical()
    ways = found.round_in(timeline.spans, drawn.start, drawn.stop) if found else []
    share = 0 if timeline.stuck else round(timeline.cycles / longest, 4)
    beside = f", {percent(share)} of the longest" if 0 < share < 1 else ""
    return frame | {
        "title": timeline.name,
        "source": headline(timeline),
        "length": duration(timeline, "µs") + beside,
        "share": share,
        "notes": remarks(timeline),
        "kinds": [*drawn.kinds()],
        "svg": svg.draw(drawn),
        "spans": spans,
        "round": [numbers[i] for i in ways if i in numbers],
        "critical": f"Critical cycle: {found}." if found else "",
        "start": drawn.start,
        "stop": drawn.stop,
        "clock": timeline.clock_hz,
    }


def _heading(timeline: Timeline, span: Span) -> str:
    words = [timeline.lanes[span.lane], LOOKS[span.kind].words]
    words += [step_name(span.step)] if span.step else []
    words += [span.buffer] if span.buffer else []
    words += [f"slot {span.slot}"] if span.slot is not None else []
    words += [f"in {span.scope}"] if span.scope else []
    return " · ".join(words)


def _line(place: str | None) -> str:
    """A place in the source, and after a tab what stands there, if that can still be read."""
    if place is None:
        return ""
    text = text_of(place)
    return f"{place}\t{text}" if text else place


def _interned(frames: list[_Frame], sliders: dict[str, list[object]]) -> _Frame:
    """The frames, each text once and by its number; the first's SVG stands in the page already."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    packed: list[_Frame] = []
    for i, frame in enumerate(frames):
        spans = [[*s[:2], *map(number, s[2:5]), *s[5:]] for s in frame["spans"]]
        packed.append(frame | {"spans": spans} | ({} if i else {"svg": ""}))
    counts = [len(values) for values in sliders.values()]
    return {"frames": packed, "texts": [*map(relative_paths, texts)], "counts": counts}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# ---- HTML ----------------------------------------------------------------------------------------


def _figure(
    settings: list[Setting], sliders: dict[str, list[object]], frames: list[_Frame], data: str
) -> str:
    first, escape = frames[0], html.escape
    kinds = {kind for frame in frames for kind in frame["kinds"]}
    legend = "".join(
        f'<li data-kind="{kind}"{"" if kind in first["kinds"] else " hidden"}>'
        f'<svg aria-hidden="true" width="18" height="12"><rect class="b {kind}" x="1" y="1"'
        f' width="16" height="10"/></svg>{LOOKS[kind].words}</li>'
        for kind in LOOKS
        if kind in kinds
    )
    parts: dict[str, str] = {
        "title": escape(first["title"]),
        "source": escape(first["source"]),
        "setting": _setting(frames, sliders),
        "alone": "" if sliders else " hidden",
        "picture": first["svg"],
        "legend": legend,
        "notes": "".join(f"<p>{_prose(note)}</p>" for note in first["notes"]),
        "style": _style(),
        "script": _filled(_file("player.js"), _units(settings)),
        "data": data,
    }
    return _filled(_file("player.html"), parts)


def _filled(text: str, parts: Mapping[str, str]) -> str:
    """A file of the figure, with its parts where it names them."""
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], text)


def _units(settings: list[Setting]) -> dict[str, str]:
    """What the script counts in: cycles and microseconds, or steps where there are no times."""
    is_timed = {setting.timeline.is_timed for setting in settings if setting.timeline}
    if len(is_timed) > 1:
        raise ValueError(
            "Some timelines of this figure have times and others are an order of ops, a step each:"
            " one axis cannot show both. Draw two figures."
        )
    if is_timed == {False}:
        return {"unit": _steps("time"), "length": _steps("stop - start"), "microseconds": ""}
    return {"unit": "cycles", "length": "cycles", "microseconds": "\\n${us.toFixed(2)} µs"}


def _steps(number: str) -> str:
    """`step` or `steps`, in the script, by how many it counts."""
    return f'step${{Math.round({number}) === 1 ? "" : "s"}}'


def _title(settings: list[Setting]) -> str:
    """The first timeline's name: what a setting without one is called, too."""
    return next((s.timeline.name for s in settings if s.timeline), "kernel")


def _prose(text: str) -> str:
    """Text as HTML; the script does the same to the text of the other settings."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text))


def _setting(frames: list[_Frame], sliders: dict[str, list[object]]) -> str:
    """The sliders, and what came of the first setting; nothing for a timeline alone."""
    first = frames[0]
    if not sliders and not first["outcome"]:
        return ""
    rows = "".join(_slider(name, values) for name, values in sliders.items())
    room = " roomy" if any(frame["details"] for frame in frames) else ""
    return (
        f'<div class="setting"><div class="sliders">{rows}</div>'
        f'<div class="result{room}" role="status">'
        f'<p class="outcome {"ok" if first["ok"] else "bad"}">{html.escape(first["outcome"])}</p>'
        f'<p class="length"><i style="width:{100 * first["share"]:g}%"></i></p>'
        f'<p class="total">{first["length"]}</p>'
        f'<p class="details">{_prose(first["details"])}</p></div></div>'
    )


def _slider(name: str, values: list[object]) -> str:
    """A native slider over the values' numbers, its value in words beside it."""
    label, words = html.escape(name.replace("_", " ")), [str(value) for value in values]
    first, width = html.escape(words[0]), f"--longest:{max(map(len, words))}"
    # As wide in each position; not live, for the slider says its own value.
    output = f'<output aria-live="off" style="{width}">{first}</output>'
    if len(values) == 1:
        return f"<p><span>{label}</span> {output}</p>"
    words = html.escape(json.dumps(words))
    return (
        f'<label><span>{label}</span><input type="range" min="0" max="{len(values) - 1}" value="0"'
        f' aria-valuetext="{first}" data-values="{words}" disabled>{output}</label>'
    )


@functools.cache
def _style() -> str:
    colours = [f".pipelib-player .b{{stroke:{EDGE}}}"]
    for name, kind in LOOKS.items():
        if kind.fill:
            colours.append(f".pipelib-player .b.{name}{{fill:{kind.fill}}}")
            colours.append(f".pipelib-player .l.{name}{{fill:{kind.label}}}")
    return _file("player.css") + "".join(colours)


@functools.cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
