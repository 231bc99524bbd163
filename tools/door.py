"""The book's front page: its picture, its numbers, the map of its parts, and the picture to share.

The model. `book/intro.md` says what the book is, and has places for what is made here when the book
is built. The picture is one tile of the ladder's matrix product (`pipelib_book.matmul_ladder`),
traced, checked and simulated with each number of `SLOTS`; the laboratory opens in its place. The
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
from pallascope.drawing.picture import LOOKS
from pallascope.drawing.picture import picture as drawn
from pallascope.spans import SpanKind
from pallascope.timeline import Timeline, Unit
from pipelib.kernels import matmul
from pipelib_book.laboratory import Subject
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import attention, foreign, ladder, model
from tools import parts

#: What the picture is of.
NAME = "A tile of a matrix product"
#: How many slots the picture's slider offers, and how many steps the tile has.
SLOTS, STEPS = (1, 2, 4), 8
#: The product whose rungs the front page compares.
PRODUCT = {"m": 8192, "n": 8192, "k": 8192, "dtype": "bfloat16"}
#: What of a timeline the picture to share shows.
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
        f"of cuBLAS's speed: a product of two {dtype} matrices of {size} x {size} with one buffer,"
        f" and at the top of {where}",
    )
    groups = attention.groups("forward")
    shares = [share for g in groups if (share := g.share(g.fastest(attention.OURS)))]
    yield (
        f"{min(shares):.2f}x to {max(shares):.2f}x",
        f"the speed of the fastest of {_others(groups)}: attention, forward, on {len(shares)}"
        f" problems, in {_link('attention')}",
    )
    rows = model.held_out(model.rows())
    yield (
        f"{model.mean_error(rows):.1%}",
        f"off, on average: the predicted times of {len(rows)} launches, none of them used to fit"
        f" the model, at the clock that was measured. {_link('seeing_time')}",
    )
    others = _foreign()
    yield (
        f"{others['false alarms']} of {others['traced']:,}",
        "checks of other people's kernels (JAX's and those of two more projects) raised a false"
        f" alarm; {others['faults']} findings in them are faults: {_link('in_the_wild')}",
    )


def _others(groups: Sequence[attention.Group]) -> str:
    """Whose kernels attention was measured beside."""
    kinds = [kind for kind in attention.OTHERS if any(group.fastest(kind) for group in groups)]
    *some, last = dict.fromkeys(attention.OTHERS[kind].partition(",")[0] for kind in kinds)
    return f"those of {', '.join(some)} and {last}"


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
    boxes = [box for box in drawn(setting.timeline).boxes if box.span.kind in SHOWN]
    rows = sorted({box.row for box in boxes}, reverse=True)
    height = len(rows) * ROW
    axes = figure.add_axes((0.05, top - height, 0.9, height))
    for box in boxes:
        bar, row = (box.start, box.stop - box.start), rows.index(box.row)
        fill = LOOKS[box.span.kind].fill
        axes.broken_barh([bar], (row + 0.05, 0.9), facecolor=fill, edgecolor=GROUND)
    slots = setting.values["slots"]
    words = f"{slots} slot{'s' * (slots > 1)}: {setting.outcome}"
    axes.set_title(words, loc="left", fontsize=17, color=INK)
    axes.set(xlim=(0, cycles), ylim=(0, len(rows)))
    axes.set_axis_off()
    return top - height
