"""The book's parts and their chapters, as `_toc.yml` has them, and how long each takes to read.

The model. A part is what has a caption in `_toc.yml` and chapters in it: files whose names begin
with a number, which is the chapter's. What has no numbers (the reference) is no part. A chapter's
short title, for side bars and a phone's header, is the entry's `title`, or else its heading. It
takes a minute to read `WORDS` words of text or `LINES` lines of code, and half a minute to look at
a figure. What published cells put out counts as what it is: tables as words, reports as lines. The
sum is told in steps of `STEP`. Not counted are the cell that sets up, what is folded away, and all
from the exercises on: doing them takes as long as it takes.
"""

import functools
import math
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml
from nbformat import NotebookNode

from tools import notebooks
from tools.execution import ROOT

TOC = ROOT / "_toc.yml"
WORDS, LINES, STEP, FIGURE = 150, 20, 5, 0.5
#: Tags of cells that are folded away with what they put out, and of cells whose code alone is.
FOLDED, NO_CODE = {"hide-cell"}, {"hide-cell", "hide-input"}


class Chapter(NamedTuple):
    """A chapter: Sphinx's name of its page, its number, its short title, and minutes to read."""

    page: str
    number: int
    title: str
    minutes: int

    def link(self) -> str:
        """A link to it, in Markdown, for a page beside it."""
        return f"[{self.title}]({self.page.rpartition('/')[2]}.ipynb)"


class Part(NamedTuple):
    """A part of the book: what it is called, and its chapters."""

    caption: str
    chapters: tuple[Chapter, ...]

    @property
    def minutes(self) -> int:
        """How long all of it takes to read."""
        return sum(chapter.minutes for chapter in self.chapters)


@functools.cache
def parts(toc: pathlib.Path = TOC) -> tuple[Part, ...]:
    """The parts, in the order of reading."""
    entries = yaml.safe_load(toc.read_text("utf-8"))["parts"]
    found = [Part(e.get("caption", ""), tuple(_chapters(e["chapters"], toc))) for e in entries]
    return tuple(part for part in found if part.chapters)


def chapter(page: str) -> tuple[Part, Chapter] | None:
    """The chapter of a page, and its part; None if the page is no chapter."""
    pairs = ((part, each) for part in parts() for each in part.chapters)
    return next((pair for pair in pairs if pair[1].page == page), None)


def named(name: str) -> Chapter:
    """The chapter whose file has this name behind its number.

    Raises:
      LookupError: there is none.
    """
    for part in parts():
        for each in part.chapters:
            if re.fullmatch(rf"book/\d+_{name}", each.page):
                return each
    raise LookupError(
        f"_toc.yml has no chapter NN_{name}, but the front page leads to it: name another one in"
        " tools/door.py."
    )


def duration(minutes: int) -> str:
    """Minutes in words: "40 min", "2 h", "1 h 20 min"."""
    hours, rest = divmod(minutes, 60)
    return " ".join([f"{hours} h"] * (hours > 0) + [f"{rest} min"] * (rest > 0 or not hours))


def _chapters(entries: list[dict[str, str]], toc: pathlib.Path) -> Iterator[Chapter]:
    for entry in entries:
        md = (toc.parent / entry["file"]).with_suffix(".md")
        if number := re.match(r"\d+", md.name):
            title = entry.get("title") or _heading(md)
            page = entry["file"].rpartition(".")[0]
            yield Chapter(page, int(number[0]), title, minutes(md))


def _heading(md: pathlib.Path) -> str:
    return re.findall(r"^# (.*)", md.read_text("utf-8"), re.MULTILINE)[0]


def minutes(md: pathlib.Path) -> int:
    """How long a chapter takes to read, with what its published cells put out."""
    cells = (notebooks.read_published(md.with_suffix(".ipynb")) or notebooks.read_source(md)).cells
    set_up = next(i for i, cell in enumerate(cells) if cell.cell_type == "code")
    needed = 0.0
    for i, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            text, *exercises = re.split(r"^## Exercises$", cell.source, flags=re.MULTILINE)
            needed += _words(_unfolded(text)) / WORDS
            if exercises:
                break
        elif i != set_up and not FOLDED & (tags := {*cell.metadata.get("tags", [])}):
            needed += 0 if NO_CODE & tags else _lines(cell.source) / LINES
            needed += sum(map(_of_output, cell.get("outputs", [])))
    return STEP * math.ceil(needed / STEP)


def _of_output(output: NotebookNode) -> float:
    """Minutes for what a cell has put out."""
    shown = output.get("data", {"text/plain": output.get("text", "")})
    if "text/markdown" in shown:
        said = shown["text/markdown"]
        return _lines(said) / LINES if said.startswith("```") else _words(said) / WORDS
    if "text/html" in shown or any(kind.startswith("image/") for kind in shown):
        return FIGURE
    return _lines(shown["text/plain"]) / LINES


def _words(text: str) -> int:
    return len(re.findall(r"\w[\w'’-]*", text))


def _lines(text: str) -> int:
    return sum(map(bool, map(str.strip, text.splitlines())))


def _unfolded(text: str) -> str:
    """Markdown without what is folded away."""
    fold = r"^(:{3,})\{(?:dropdown\}|admonition\}[^\n]*\n:class: dropdown).*?^\1$"
    return re.sub(fold, "", text, flags=re.MULTILINE | re.DOTALL)
