"""`report_text`, `first_findings`: what a page of the book says of a report.

The model. A page shows some findings and counts the others, in words that hold for every reader:
files have the names of `relative_paths`, and prose is in short lines. A finding's text is the
caller's choice: all of it, its sentences, or its cause.
"""

import sys
import textwrap
from collections.abc import Iterable

from pallascope.drawing.paths import relative_paths
from pallascope.report import Report, count

WIDTH = 72


def report_text(report: Report, most: int = sys.maxsize) -> str:
    """A report's words in lines: the first findings in full, the notes and the verdict."""
    parts = str(report).split("\n\n")
    findings, others = parts[: len(report)], parts[len(report) :]
    text = "\n\n".join([*first_findings(findings, most), *map(relative_paths, others)])
    return "\n".join(map(_wrapped, text.split("\n")))


def first_findings(texts: Iterable[str], most: int = 1) -> list[str]:
    """The first texts on findings, then how many there are besides."""
    texts = [*texts]
    shown = [relative_paths(text) for text in texts[:most]]
    more = len(texts) - len(shown)
    return [*shown, f"({count(more, 'more finding')})"] if more else shown


def _wrapped(line: str) -> str:
    """Prose in short lines; what is indented deeply is code, and stays."""
    if line.startswith("    "):
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
