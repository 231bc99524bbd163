"""`lab`: a page on which one block's operations can be edited, checked and simulated anew."""

import pathlib

from pallascope.command.targets import Target, tracer
from pipelib_book.laboratory import pyodide
from pipelib_book.laboratory.page import page


def lab(target: Target, output: str, folder: pathlib.Path | None) -> int:
    """Writes the page; returns the exit status.

    Args:
      target: a kernel; or, as its function, a file that `Program.save` wrote.
      output: the page's file.
      folder: where Pyodide is, or is to be kept; by default the user's cache.

    Raises:
      ValueError: the file's name ends otherwise than a page's, or there is no program to read.
      OSError: Pyodide is not there and cannot be brought, or a file cannot be read or written.
    """
    path, folder = pathlib.Path(output), folder or pyodide.cache()
    if path.suffix.lower() != ".html":
        raise ValueError(f"{path.name} ends with {path.suffix!r}, but a page is named .html.")
    made = made_of(target)
    pyodide.bring(folder)
    path.write_text(page(made, folder), "utf-8")
    print(f"{path}: open it in a browser. It needs no server and no network.")
    return 0


def made_of(target: Target) -> str:
    """The program's text: of the file, or of the kernel's block."""
    if target.function.endswith(".json"):
        return pathlib.Path(target.function).read_text("utf-8")
    assert not isinstance(target.block, str), "a page is of one block"
    return tracer(target)(target.block).to_json(with_sources=True)
