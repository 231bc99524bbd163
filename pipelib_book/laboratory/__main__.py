"""`python -m pallascope lab`: a page with one block's operations, to edit, check and simulate.

    python -m pallascope lab module:function float32[1024] -o kernel.html
    python -m pallascope lab saved.json -o kernel.html

The second takes a file that `Program.save` wrote. The page needs no server. It holds Pyodide, which
is brought once and kept in the user's cache (`--pyodide FOLDER`: elsewhere).
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from pallascope.command.options import WHICH_BLOCK, add_rest, target, told
from pallascope.command.targets import block_of
from pipelib_book.laboratory.command import lab


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page; returns the exit status."""
    text = "Write a page on which the kernel's operations are edited, checked and simulated."
    parser = argparse.ArgumentParser("python -m pallascope lab", description=text)
    parser.set_defaults(command="lab")
    parser.add_argument("function", help="module:function, file.py:function, or a saved .json")
    add_rest(parser, block_of, WHICH_BLOCK)
    parser.add_argument("-o", "--output", required=True, help="the page, .html")
    parser.add_argument("--pyodide", type=pathlib.Path, metavar="FOLDER", help="where Pyodide is")
    return told(
        parser.parse_args(arguments),
        lambda options: lab(target(options), options.output, options.pyodide),
    )


if __name__ == "__main__":
    sys.exit(main())
