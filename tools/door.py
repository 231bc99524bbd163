"""The book's front page: claim, numbers, picture, the map of its parts, and the picture to share.

The model. `book/intro.md` says what the book is, and has places for what is made here when the book
is built. The picture is one tile of the ladder's matrix product (`pipelib_book.matmul_ladder`),
traced, checked and simulated with each number of `SLOTS`; the laboratory opens in its place. The
claim is what can be seen at once: the copies and products with least slots and with most. The
numbers come from the records by the code that the chapters read them with, so that what changes in
a record changes here. The map is that of `parts`.

Not covered: which numbers are worth a front page; how they look, which `book/_static/book.css` has.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
from matplotlib.figure import Figure

import pallascope
from pallascope import Program, Setting
from pallascope.drawing.picture import LOOKS, Box
from pallascope.drawing.picture import picture as drawn
from pallascope.spans import SpanKind
from pallascope.timeline import Timeline, Unit
from pipelib.kernels import matmul
from pipelib_book.laboratory import Subject
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import attention, foreign, ladder, model
from pipelib_book.wild import WILD
from tools import parts

#: What the picture is of.
NAME = "A tile of a matrix product"
#: How many slots the picture's slider offers, and how many steps the tile has.
SLOTS, STEPS = (1, 2, 4), 8
#: The product whose rungs the front page compares.
PRODUCT = {"m": 8192, "n": 8192, "k": 8192, "dtype": "bfloat16"}
#: What of a timeline the claim and the picture to share show.
SHOWN = SpanKind.LOAD, SpanKind.WGMMA
#: Pixels of the picture to share, as Open Graph's readers want them; the height of a row in it, of
#: the whole; its colours.
SHARED, ROW, GROUND, INK = (1200, 630), 0.042, "#12161c", "#f2f4f7"


# ---- The picture ---------------------------------------------------------------------------------


@functools.cache
def settings() -> tuple[Setting, ...]:
    """The tile with each number of slots, and how busy its tensor core is."""
    return tuple(map(_in_a_word, pallascope.sweep(_tile, slots=SLOTS)))


def _tile(slots: int) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]:
    config = dataclasses.replace(RUNGS[1].config, slots=slots)
    depth = STEPS * config.tile_k
    a = jax.ShapeDtypeStruct((config.tile_m, depth), jnp.float16)
    b = jax.ShapeDtypeStruct((depth, config.tile_n), jnp.float16)
    return functools.partial(matmul, config=config), (a, b)


def _in_a_word(setting: Setting) -> Setting:
    """A setting that says one thing: how busy the tensor core is, where nothing was found."""
    if setting.timeline is None or not setting.ok:
        raise ValueError(
            f"The tile of the front page with {dict(setting.values)} came to {setting.outcome!r},"
            f" and the page shows sound kernels only: {setting.details}"
        )
    timeline = dataclasses.replace(setting.timeline, name=NAME)
    return dataclasses.replace(setting, timeline=timeline, outcome=busy(timeline), details="")


def busy(timeline: Timeline) -> str:
    """How busy the tensor core is, in words."""
    (use,) = (use for use in timeline.units() if use.unit is Unit.TENSOR_CORE)
    return f"{use} of {timeline.interval().name}"


def picture() -> str:
    """The player, for the page, and the laboratory that takes its place."""
    player = f"```{{raw}} html\n{pallascope.player(settings())}\n```"
    return f"{player}\n\n```{{laboratory}} {subject().name}\n```"


def subject() -> Subject:
    """The tile for the laboratory."""

    def trace(slots: int) -> Program:
        kernel, args = _tile(slots)
        return pallascope.trace(kernel, *args)

    summary = "A thread loads tiles of both matrices into slots, and multiplies them."
    return Subject("tile", NAME, summary, trace, SLOTS)


def claim() -> str:
    """The tile with least slots and with most, on one scale of time, as a figure in HTML."""
    first, *_, last = settings()
    assert first.timeline
    strips = "".join(_strip(setting, first.timeline.cycles) for setting in (first, last))
    words = {SpanKind.LOAD: "copies into slots", SpanKind.WGMMA: "products"}
    legend = ", ".join(
        f'<i style="background: {LOOKS[kind].fill}"></i> {words[kind]}' for kind in SHOWN
    )
    said = f"{NAME} on an {pallascope.H200.name}, simulated; busy in the steady state: {legend}."
    made = f'<figure class="claim">{strips}<figcaption>{said}</figcaption></figure>'
    return f"```{{raw}} html\n{made}\n```"


def _strip(setting: Setting, cycles: float) -> str:
    """A setting in a line of words, and its copies and products as bars."""
    assert setting.timeline
    rows, words = _rows(setting.timeline), _words(setting).partition(" of ")[0]
    bars = "".join(
        f'<rect x="{box.start:.0f}" y="{y}" width="{box.stop - box.start:.0f}" height="0.85"'
        f' fill="{LOOKS[box.span.kind].fill}"/>'
        for y, row in enumerate(rows)
        for box in row
    )
    return (
        f"<p><strong>{words}</strong> <span>{setting.timeline.cycles:,.0f} cycles</span></p>"
        f'<svg viewBox="0 0 {cycles:.0f} {len(rows)}" preserveAspectRatio="none" role="img"'
        f' aria-label="Copies and products, {words}" style="--rows: {len(rows)}">{bars}</svg>'
    )


def _words(setting: Setting) -> str:
    """How many slots, and what comes of it."""
    slots = setting.values["slots"]
    return f"{slots} slot{'s' * (slots > 1)}: {setting.outcome}"


def _rows(timeline: Timeline) -> list[list[Box]]:
    """The boxes of the kinds in `SHOWN`, by their rows from the top."""
    boxes = [box for box in drawn(timeline).boxes if box.span.kind in SHOWN]
    return [[b for b in boxes if b.row == row] for row in sorted({box.row for box in boxes})]


# ---- The numbers ---------------------------------------------------------------------------------


def numbers() -> str:
    """What was measured, in a few numbers, as Markdown: a list of definitions."""
    return "\n\n".join(f"{number}\n: {said}" for number, said in _numbers())


def _numbers() -> Iterator[tuple[str, str]]:
    (product,) = (g for g in ladder.groups("ladder") if g.problem.items() >= PRODUCT.items())
    first, last = product.share("rung 0"), product.share(ladder.TUNED)
    assert first and last
    where, size, dtype = _link("matmul_ladder"), PRODUCT["m"], PRODUCT["dtype"]
    yield (
        f"{first:.0%} → {last:.0%}",
        f"of cuBLAS's speed, from one buffer to the top of {where}: a product of two {dtype}"
        f" matrices of {size} x {size}",
    )
    groups = attention.groups("forward")
    shares = [share for g in groups if (share := g.share(g.fastest(attention.OURS)))]
    yield (
        f"{min(shares):.2f}x to {max(shares):.2f}x",
        f"the speed of the fastest of {_others(groups)}, on each of {len(shares)} problems: our"
        f" {_link('attention')}, forward",
    )
    rows = model.held_out(model.rows())
    yield (
        f"{model.mean_error(rows):.1%}",
        f"mean error of predicted times, at the clock that was measured: {len(rows)} launches"
        f" that the model was not fitted to. {_link('seeing_time')}",
    )
    others = _foreign()
    yield (
        f"{others['false alarms']} of {others['traced']:,}",
        "checks of other people's kernels (JAX's at two versions) end in a false alarm; those of"
        f" earlier checks are mended. {others['faults']} findings are real: they and a closer look"
        f" led to {len(WILD)} faults of kernels, and to some of tests: {_link('in_the_wild')}",
    )


def _others(groups: Sequence[attention.Group]) -> str:
    """Whose kernels attention was measured beside."""
    kinds = [kind for kind in attention.OTHERS if any(group.fastest(kind) for group in groups)]
    *some, last = dict.fromkeys(attention.OTHERS[kind].partition(",")[0] for kind in kinds)
    return f"{', '.join(some)} and {last}"


def _foreign() -> dict[str, int]:
    """Kernels of others: how many were traced, and what findings in them are, by `HEAD`."""
    counts = foreign.counts([*foreign.read().values()])
    return {head: int(count.replace(",", "")) for head, count in zip(foreign.HEAD, counts)}


def _link(name: str) -> str:
    """A link to the chapter of a name, by its title."""
    return parts.named(name).link()


# ---- The map -------------------------------------------------------------------------------------


def map_of_parts() -> str:
    """The parts and their chapters with reading times, as lists in Markdown."""
    return "\n".join(line for part in parts.parts() for line in _part(part))


def _part(part: parts.Part) -> Iterator[str]:
    yield f"- **{part.caption}** *{parts.duration(part.minutes)}*\n"
    for each in part.chapters:
        yield f"  {each.number}. {each.link()} *{parts.duration(each.minutes)}*"
    yield ""


# ---- The picture to share ------------------------------------------------------------------------


def share(path: pathlib.Path, title: str) -> None:
    """Writes the PNG that others show beside a link: the tile with least slots and with most."""
    first, *_, last = settings()
    assert first.timeline
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "text.color": INK}):
        width, height = SHARED
        figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=GROUND)
        figure.text(0.05, 0.845, title, fontsize=34, weight="bold")
        figure.text(0.05, 0.765, "GPU kernels that load and compute at the same time", fontsize=20)
        top = 0.65
        for setting in (first, last):
            top = _draw(figure, top, setting, first.timeline.cycles) - 0.12
        figure.savefig(path, metadata={"Software": None})


def _draw(figure: Figure, top: float, setting: Setting, cycles: float) -> float:
    """A timeline below `top`, copies in above products; returns where it ends."""
    assert setting.timeline
    rows = _rows(setting.timeline)[::-1]
    height = len(rows) * ROW
    axes = figure.add_axes((0.05, top - height, 0.9, height))
    for y, row in enumerate(rows):
        for box in row:
            bar, fill = (box.start, box.stop - box.start), LOOKS[box.span.kind].fill
            axes.broken_barh([bar], (y + 0.05, 0.9), facecolor=fill, edgecolor=GROUND)
    axes.set_title(_words(setting), loc="left", fontsize=17, color=INK)
    axes.set(xlim=(0, cycles), ylim=(0, len(rows)))
    axes.set_axis_off()
    return top - height
