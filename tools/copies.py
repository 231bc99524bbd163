"""Copies of the chapters for JupyterLab: readers run and save these, and the book stays as it is.

The model. `lab/` has a copy of each file of `book/` that a reader opens, and `lab/.book/` has the
book's file as it was when the copy was made. A reader's work is a difference between these two:

| the reader's copy | the book's file | then                                             |
| ----------------- | --------------- | ------------------------------------------------ |
| is missing        |                 | it is made                                       |
| is as it was made | has changed     | it is made anew                                  |
| has changed       | is as it was    | it stays                                         |
| has changed       | has changed     | it stays, and a sentence says how to get the new |

JupyterLab shows players only in notebooks that it trusts, so this tool signs each copy that is
still the book's.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary

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
        copy, original = lab / source.name, originals / source.name
        if not copy.exists() or same(copy, original):
            shutil.copyfile(source, copy)
            shutil.copyfile(source, original)
            trust(copy)
        elif not same(source, original):
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
    """A file's bytes; a notebook's cells, as JupyterLab changes the metadata of all it opens."""
    return nbformat.read(path, as_version=4).cells if path.suffix == ".ipynb" else path.read_bytes()


def trust(path: pathlib.Path) -> None:
    """Signs a notebook, so that JupyterLab runs the scripts in its outputs."""
    if path.suffix == ".ipynb":
        notary = NotebookNotary()
        with contextlib.closing(notary.store):
            notary.sign(nbformat.read(path, as_version=4))


if __name__ == "__main__":
    for sentence in update():
        print(sentence)
