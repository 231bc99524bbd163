"""The book's parts and their chapters, as `_toc.yml` has them, and how long each takes to read.

The model. A part is what has a caption in `_toc.yml` and chapters in it: files whose names begin
with a number, which is the chapter's. What has no numbers (the reference) is no part. A chapter's
short title, for side bars and a phone's header, is the entry's `title`, or else its heading. It
takes a minute to read `WORDS` words of text or `LINES` lines of code, and so many minutes as are
told, in steps of `STEP`. Not counted are the cell that sets up, what is folded away, and exercises
to be filled in: doing them takes as long as it takes.
"""

import functools
import math
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from tools import notebooks
from tools.execution import ROOT

TOC = ROOT / "_toc.yml"
WORDS, LINES, STEP = 150, 20, 5


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
    """How long a chapter takes to read."""
    words = lines = 0
    notebook = notebooks.read_source(md)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            words += len(re.findall(r"\w[\w'’-]*", _unfolded(cell.source)))
    for cell in notebooks.code_cells(notebook)[1:]:
        if not {"exercise", "solution", "hide-input"} & {*cell.metadata.get("tags", [])}:
            lines += sum(map(bool, map(str.strip, cell.source.splitlines())))
    return STEP * math.ceil((words / WORDS + lines / LINES) / STEP)


def _unfolded(text: str) -> str:
    """Markdown without what is folded away."""
    fold = r"^(:{3,})\{(?:dropdown\}|admonition\}[^\n]*\n:class: dropdown).*?^\1$"
    return re.sub(fold, "", text, flags=re.MULTILINE | re.DOTALL)
