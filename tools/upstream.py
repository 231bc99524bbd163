"""Reports for other projects (`docs/upstream`): rewrites what they quote of pallascope.

    python -m tools.upstream  rewrites the quotes of all reports, and what a GPU did

The model. A *quote* is a console block of a report that begins with `$ python -m pallascope ...`:
the words after `pallascope` are a command, the rest of the block is what it prints when it is run
in the repository's root. The section "On a GPU", the last one, says what the records say of the
kernel that the report quotes. Everything else in a report is a person's, and stays as it is.
"""

import contextlib
import functools
import io
import pathlib
import re
import textwrap
from typing import NamedTuple
from unittest import mock

from pallascope import __main__ as command
from pallascope import compiling
from pallascope.verifying import UNCOMPILED
from pipelib_book.gallery import Gpu
from pipelib_book.measured import outcomes
from pipelib_book.wild import WILD

ROOT = pathlib.Path(__file__).resolve().parents[1]
UPSTREAM = ROOT / "docs" / "upstream"
ON_A_GPU = "\n## On a GPU\n\n"
_NOT_RUN = (
    "By the rules of PTX and the checker; not run on a Blackwell GPU, since none was at hand. Both"
    " small kernels compile for one (compute capability 10.0)."
)
_QUOTE = re.compile(
    r"^```console\n\$ python -m pallascope (?P<words>.+)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE
)


class Quote(NamedTuple):
    """A command's words, and what a report says that it prints."""

    words: str
    text: str


def reports() -> list[pathlib.Path]:
    """The reports' files."""
    return sorted(path for path in UPSTREAM.glob("*.md") if path.name != "README.md")


def quotes(report: str) -> list[Quote]:
    """What a report's text quotes, from first to last."""
    return [Quote(match["words"], match["text"]) for match in _QUOTE.finditer(report)]


@functools.cache
def said(words: str) -> tuple[int, str]:
    """The exit status of a command, and what it prints in the repository's root.

    ptxas is not asked: most of the kernels are for other GPUs, and it takes seconds.
    """
    lacking = mock.patch.object(compiling, "lacking", return_value="not asked")
    with lacking, contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as out:
        status = command.main(words.split())
    return status, out.getvalue().removesuffix(f"{UNCOMPILED}\n")


def fault(report: str) -> str:
    """The name in `pipelib_book.wild` of the kernel that a report quotes."""
    file = quotes(report)[0].words.split()[1].partition(":")[0]
    return pathlib.Path(file).stem.replace("_", "-")


def on_a_gpu(name: str) -> str:
    """What the records say of a fault: of the small kernel, and of tokamax itself."""
    if WILD[name].gpu is Gpu.BLACKWELL:
        return textwrap.fill(_NOT_RUN, 96) + "\n"
    seen = outcomes.Outcomes.read(suite="wild")
    parts = [
        f"{seen.runs()} The small kernel, with its fault: {seen.on_gpu(name)} {seen.mended(name)}"
    ]
    if name in outcomes.of_tokamax()["cases"]:
        parts.append(outcomes.in_tokamax(name))
    fill = textwrap.TextWrapper(96, break_long_words=False, break_on_hyphens=False).fill
    return "\n\n".join(map(fill, parts)) + "\n"


def rewritten(report: str) -> str:
    """A report's text, its quotes and its last section as they would be written now."""

    def quote(match: re.Match[str]) -> str:
        words = match["words"]
        return f"```console\n$ python -m pallascope {words}\n{said(words)[1]}```"

    text, heading, _ = _QUOTE.sub(quote, report).partition(ON_A_GPU)
    return text + heading + (on_a_gpu(fault(report)) if heading else "")


def main() -> None:
    """Rewrites the reports that differ, and names them."""
    for path in reports():
        before = path.read_text("utf-8")
        after = rewritten(before)
        if after != before:
            path.write_text(after, "utf-8")
            print(f"{path.name}: rewritten.")


if __name__ == "__main__":
    main()
