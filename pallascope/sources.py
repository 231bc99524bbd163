"""The lines of source that a program's ops stand on, saved with it and shown where it is loaded.

The model. An op names its line as "file:line". The text is read from the file by `linecache`, as
Python's tracebacks do it, when a report or a figure shows it. Where a program is saved, the texts
of its lines are saved beside it (`texts`). Where it is looked at and its files are not, `remember`
gives these texts to `linecache`, so that all that shows a line finds it.
"""

import linecache
import os
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Mapping


def texts(lines: Iterable[str]) -> dict[str, str]:
    """The text of each line, by "file:line"; of those found."""
    return {line: text for line in sorted(lines) if (text := text_of(line))}


def place(path: str, number: int | str | None) -> str:
    """ "file:line", with the file's path from the present folder if it is in there."""
    here = os.path.join(os.getcwd(), "")
    return f"{path.removeprefix(here)}:{number}"


def text_of(line: str) -> str:
    """What stands on a line, "file:line"; empty if that cannot be read."""
    return linecache.getline(*_place(line)).strip()


def remember(saved: Mapping[str, str]) -> None:
    """Gives `linecache` these texts, by "file:line"; files that are there keep their own."""
    files: dict[str, dict[int, str]] = defaultdict(dict)
    for line, text in saved.items():
        path, number = _place(line)
        if number > 0:
            files[path][number] = text
    for path, numbered in files.items():
        if pathlib.Path(path).exists():
            continue
        lines = [*linecache.getlines(path)]  # of programs before
        lines += ["\n"] * (max(numbered) - len(lines))
        for number, text in numbered.items():
            lines[number - 1] = f"{text}\n"
        linecache.cache[path] = len("".join(lines)), None, lines, path


def _place(line: str) -> tuple[str, int]:
    """The file and the number in it; 0 for what has none."""
    path, _, number = line.rpartition(":")
    return path, int(number) if number.isdecimal() else 0
