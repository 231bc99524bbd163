"""Copies of the chapters for JupyterLab: readers run and save these, and the book stays as it is.

The model. `lab/` has a copy of each file of `book/` that a reader opens, and `lab/.book/` has the
book's file as it was when the copy was made. A reader's work is a difference between these two:

| the reader's copy | the book's file | then                                             |
| ----------------- | --------------- | ------------------------------------------------ |
| is missing        |                 | it is made                                       |
| is as it was made | has changed     | it is made anew                                  |
| has changed       | is as it was    | it stays                                         |
| has changed       | has changed     | it stays, and a sentence says how to get the new |

What Sphinx fills in and JupyterLab does not, the copies have filled in: citations, and links that
have no text. JupyterLab shows players only in notebooks that it trusts, so this tool signs each
copy that is still the book's.
"""

import contextlib
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary

from tools.headings import anchor

ROOT = pathlib.Path(__file__).resolve().parents[1]
BOOK, LAB = ROOT / "book", ROOT / "lab"


def files(book: pathlib.Path) -> list[pathlib.Path]:
    """What is copied: all files of the folder but the chapters' .md."""
    is_source = lambda path: path.suffix == ".md" and path.with_suffix(".ipynb").exists()
    return sorted(path for path in book.iterdir() if path.is_file() and not is_source(path))


def update(book: pathlib.Path = BOOK, lab: pathlib.Path = LAB) -> Iterator[str]:
    """Makes and renews copies; yields a sentence for each that is the reader's and outdated."""
    originals = lab / ".book"
    originals.mkdir(parents=True, exist_ok=True)
    for source in files(book):
        copy, original, new = lab / source.name, originals / source.name, filled_in(source)
        if not copy.exists() or same(copy, original):
            for path in (copy, original):
                path.write_bytes(new)
            trust(copy)
        elif not original.exists() or original.read_bytes() != new:
            yield (
                f"{lab.name}/{source.name} stays as you saved it, but the book's has changed since:"
                " to get the book's, rename yours and run `make lab` again."
            )
    for original in originals.iterdir():
        copy = lab / original.name
        if not (book / original.name).exists() and same(copy, original):
            copy.unlink()
            original.unlink()


def same(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether both files are there, with the same content."""
    return one.exists() and other.exists() and content(one) == content(other)


def content(path: pathlib.Path) -> Any:
    """A file's bytes; of a notebook what its cells say, as JupyterLab changes all metadata."""
    if path.suffix != ".ipynb":
        return path.read_bytes()
    cells = nbformat.read(path, as_version=4).cells
    return [(cell.cell_type, cell.source, cell.get("outputs")) for cell in cells]


def trust(path: pathlib.Path) -> None:
    """Signs a notebook, so that JupyterLab runs the scripts in its outputs."""
    if path.suffix == ".ipynb":
        notary = NotebookNotary()
        with contextlib.closing(notary.store):
            notary.sign(nbformat.read(path, as_version=4))


# ---- What is filled in ---------------------------------------------------------------------------


def filled_in(path: pathlib.Path) -> bytes:
    """A file of the book, with the names of works that it cites and of pages that it leads to."""
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = with_names(cell.source, path.parent)
        return f"{nbformat.writes(notebook)}\n".encode()
    if path.suffix == ".md":
        return with_names(path.read_text("utf-8"), path.parent).encode()
    return path.read_bytes()


def with_names(text: str, book: pathlib.Path) -> str:
    """Markdown in which citations and links without a text have one."""
    cited = lambda found: ", ".join(works(book)[key] for key in re.split(", *", found[1]))
    text = re.sub(r"\{cite\}`([^`]+)`", cited, text)
    return re.sub(r"\[\]\(([^)]+)\)", lambda found: link(found[1], book), text)


@functools.cache
def works(book: pathlib.Path) -> dict[str, str]:
    """The title of each work of the bibliography, by its key: a link, if the work is on the web."""
    text = (book / "references.bib").read_text("utf-8")
    named = {}
    for key, fields in re.findall(r"^@\w+\{(.+?),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        (title,) = re.findall(r"^  title = \{(.*?)\},\n", fields, re.MULTILINE | re.DOTALL)
        title = " ".join(re.sub("[{}]", "", title).split())
        where = dict(re.findall(r"^  (url|doi) = \{(.*)\},$", fields, re.MULTILINE))
        address = where.get("url") or ("doi" in where and f"https://doi.org/{where['doi']}")
        named[key] = f"[{title}]({address})" if address else title
    return named


def link(target: str, book: pathlib.Path) -> str:
    """A link to a page, a place in it (`#`), or a label, by the heading there."""
    page, _, place = target.partition("#")
    file = (book / page).with_suffix(".md")
    if file.exists():
        headings = re.findall(r"^#+ (.*)", file.read_text("utf-8"), re.MULTILINE)
        heading = next((each for each in headings if anchor(each) == place), headings[0])
        return f"[{heading}]({target})"
    for md in book.glob("*.md"):
        for heading in re.findall(rf"^\({page}\)=\n#+ (.*)", md.read_text("utf-8"), re.MULTILINE):
            return f"[{heading}]({md.stem}.ipynb#{anchor(heading)})"
    raise LookupError(f"A link leads to {target!r}, which no page of {book} is or has as a label.")


if __name__ == "__main__":
    for sentence in update():
        print(sentence)
