"""The lines of source that a program's ops stand on, saved with it and shown where it is loaded.

The model. An op names its line as "file:line". The text is read from the file by `linecache`, as
Python's tracebacks do it, when a report or a figure shows it. Where a program is saved, the texts
of its lines are saved beside it (`texts`). Where it is looked at and its files are not, `remember`
gives these texts to `linecache`, so that all that shows a line finds it.
"""

import linecache
from collections import defaultdict
from collections.abc import Mapping

from pipelib.schedule.program import Program


def texts(program: Program) -> dict[str, str]:
    """The text of each line that ops of the program stand on, by "file:line"; of those found."""
    lines = {op.line for ops in program.threads for op in ops if op.line}
    found = {line: linecache.getline(*_place(line)).strip() for line in sorted(lines)}
    return {line: text for line, text in found.items() if text}


def remember(saved: Mapping[str, str]) -> None:
    """Gives `linecache` these texts, by "file:line"; files that are there keep their own."""
    files: dict[str, dict[int, str]] = defaultdict(dict)
    for line, text in saved.items():
        path, number = _place(line)
        files[path][number] = text
    for path, numbered in files.items():
        if not linecache.getlines(path):
            lines = [f"{numbered.get(i + 1, '')}\n" for i in range(max(numbered))]
            linecache.cache[path] = len("".join(lines)), None, lines, path


def _place(line: str) -> tuple[str, int]:
    """The file and the number in it; 0 for what has none."""
    path, _, number = line.rpartition(":")
    return path, int(number) if number.isdecimal() else 0
