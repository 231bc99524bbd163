"""The chapters by their headings: what stands below each, as text and as code.

The code below a heading is that of its cells, and what these show with `book.show_code` and
`book.show_hazard`, as it was recorded.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tools import notebooks
from tools.headings import anchor


class Section(NamedTuple):
    """What stands below a heading: its chapter's file and title, itself, its text and its code."""

    chapter: str
    title: str
    heading: str
    text: str
    code: str

    def link(self) -> str:
        """A link to the heading, in Markdown."""
        return f"[{self.heading.replace('`', '')}]({self.chapter}.ipynb#{anchor(self.heading)})"

    def says(self, name: str) -> bool:
        """Whether the text has a name as code."""
        spans = re.findall("`([^`]+)`", self.text)
        return any(name in re.findall(r"[\w.]+", span) for span in spans)


@functools.cache
def sections() -> tuple[Section, ...]:
    """Those of all chapters, in the book's order."""
    found = []
    for md in notebooks.chapters():
        headings: list[tuple[str, dict[str, str]]] = []
        for kind, part in _parts(notebooks.read_published(md.with_suffix(".ipynb"))):
            if kind == "heading":
                headings.append((part, {"text": "", "code": ""}))
            elif headings:
                headings[-1][1][kind] += f"{part}\n"
        title = headings[0][0]
        found += [Section(md.stem, title, heading, **below) for heading, below in headings]
    return tuple(found)


@functools.cache
def titles() -> dict[str, str]:
    """The title of each chapter."""
    return {section.chapter: section.title for section in sections()}


def links(found: Iterable[Section], most: int | None = None) -> str:
    """Links to headings, by chapter; where a chapter has more than `most`, to the chapter."""
    parts = []
    for (chapter, title), group in itertools.groupby(found, key=lambda section: section[:2]):
        here = [section.link() for section in group]
        if most is not None and len(here) > most:
            parts.append(f"[{title}]({chapter}.ipynb) in {len(here)} sections")
        else:
            parts.append(f"{title}: {', '.join(here)}")
    return "; ".join(parts)


def _parts(notebook) -> Iterator[tuple[str, str]]:
    """Headings, text and code in order."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield "code", cell.source
            yield from (("code", shown) for shown in _shown(cell))
        else:
            for block in re.split(r"^(#+ .*)$", cell.source, flags=re.MULTILINE):
                is_heading = re.match(r"#+ ", block)
                yield ("heading", block.lstrip("# ")) if is_heading else ("text", block)


def _shown(cell) -> Iterator[str]:
    for output in cell.outputs:
        text = output.get("data", {}).get("text/markdown", "")
        yield from re.findall(r"````python\n(.*?)````", text, re.DOTALL)
