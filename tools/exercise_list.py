"""All exercises of the book: their numbers and titles, for a page and for the kit.

The model. An exercise's number is its chapter's and its place in it: `7.2`. Its title is the
heading above it, without the heading's own number. `python -m tools.exercise_list` writes both into
`pipelib_book/exercises.json`, from which `book.progress` has them.
"""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from tools import notebooks
from tools.execution import ROOT
from tools.exercises import exercises
from tools.headings import anchor

LIST = ROOT / "pipelib_book" / "exercises.json"


class Listed(NamedTuple):
    """An exercise: its chapter's file name, its number, and the heading above it."""

    chapter: str
    number: str
    heading: str

    @property
    def title(self) -> str:
        """The heading without its own number."""
        title = re.sub(r"^(Exercise )?\d+[.:] ", "", self.heading)
        return title[:1].upper() + title[1:]


def listed(md: pathlib.Path) -> Iterator[Listed]:
    """The exercises of a chapter, in order."""
    notebook = notebooks.read_source(md)
    skeletons = [id(exercise.skeleton) for exercise in exercises(notebook)]
    heading = ""
    for cell in notebook.cells:
        if id(cell) in skeletons:
            place = skeletons.index(id(cell)) + 1
            yield Listed(md.stem, f"{int(md.name[:2])}.{place}", heading)
        elif cell.cell_type == "markdown":
            for line in re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE):
                heading = line


def rows() -> list[tuple[str, str]]:
    """The number and the title of each exercise of the book."""
    return [(each.number, each.title) for md in notebooks.chapters() for each in listed(md)]


def page() -> str:
    """The exercises as Markdown, by chapter, each with a link to it."""
    lines = list[str]()
    for md in notebooks.chapters():
        if found := [*listed(md)]:
            title = notebooks.read_source(md).cells[0].source.partition("\n")[0].lstrip("# ")
            lines += [f"## {int(md.name[:2])} {title}", ""]
            for each in found:
                target = f"{md.stem}.ipynb#{anchor(each.heading)}"
                lines.append(f"- **{each.number}** [{each.title}]({target})")
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Writes the kit's list anew."""
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows())
    LIST.write_text(f"[\n{text}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
