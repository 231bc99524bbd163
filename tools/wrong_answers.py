"""Wrong answers to exercises: what a chapter's cells tagged `wrong` say, applied to the solution.

The model. A wrong answer is a raw cell behind the solution: nothing executes it, and no reader
meets it. It says in words what is wrong, then how its code differs from the solution's, then what
its grade must say:

    It frees the slot of the store that it has just started.
    - plgpu.barrier_arrive(free.at[(k - 1) % 3])
    + plgpu.barrier_arrive(free.at[k % 3])
    says: race

A **change** is a run of lines `- old`, which stand one after another in the solution, and the lines
`+ new` that take their place, if any. Comments of old lines do not count, nor does how far the
first one is indented. New lines are indented as the first old one is, and beyond that as they are
written.
All changes are of the solution as it is, in any order.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FORM = (
    "write what is wrong in words, then lines `- old` of the solution and lines `+ new` in their"
    " place, then a line `says: ` with a piece of the grade"
)


class Change(NamedTuple):
    """Lines of the solution, and those that take their place."""

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class WrongAnswer:
    """An answer that must fail: `why`, how it differs from the solution, what its grade `says`."""

    why: str
    changes: tuple[Change, ...]
    says: str

    def applied(self, solution: str) -> str:
        """The wrong answer's code.

        Raises:
          ValueError: old lines that the solution has not, has twice, or has in another change, too.
        """
        lines = solution.splitlines()
        placed = sorted((_place(change.old, lines), change) for change in self.changes)
        made, end = list[str](), 0
        for start, change in placed:
            if start < end:
                raise ValueError(
                    f"{change.old[0]!r} stands in two changes, so it is not clear what becomes of"
                    " it: write one change for both."
                )
            made += lines[end:start]
            made += _indented(change, lines[start])
            end = start + len(change.old)
        return "\n".join([*made, *lines[end:]])


def parse(text: str) -> WrongAnswer:
    """The wrong answer that a cell describes.

    Raises:
      ValueError: a text without one of the parts.
    """
    lines = text.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if _sign(line)), len(lines))
    *changed, last = lines[first:] or [""]
    why, says = " ".join(lines[:first]), last.removeprefix("says:").strip()
    lacks = [
        part
        for part, is_there in (
            ("words on what is wrong", why),
            ("change of the solution", changed),
            ("line `says: `", last.startswith("says:") and says),
        )
        if not is_there
    ]
    if lacks:
        raise ValueError(f"This wrong answer has no {lacks[0]}: {FORM}.\n{text}")
    return WrongAnswer(why, tuple(_changes(changed)), says)


def without_comment(line: str) -> str:
    """A line of code without the comment at its end."""
    return re.sub(r"\s*(#.*)?$", "", line)


def _sign(line: str) -> str:
    """What a line begins with that is not of the words; empty for words."""
    return next((sign for sign in ("-", "+", "says:") if f"{line} ".startswith(f"{sign} ")), "")


def _changes(lines: Iterable[str]) -> Iterator[Change]:
    """The changes that lines describe."""
    old, new = list[str](), list[str]()
    for line in lines:
        sign, code = _sign(line), line[2:]
        if sign == "-":
            if new:
                yield Change(tuple(old), tuple(new))
                old, new = [], []
            old.append(code)
        elif sign == "+" and old:
            new.append(code)
        else:
            what = {"+": "takes the place of no old line", "says:": "is not the last line"}
            fault = what.get(sign, "is neither old nor new")
            raise ValueError(f"{line!r} {fault}, so it means nothing there: {FORM}.")
    yield Change(tuple(old), tuple(new))


def _place(old: tuple[str, ...], lines: list[str]) -> int:
    """Where old lines begin among the solution's lines."""
    wanted, size = _block(old), len(old)
    found = [i for i in range(len(lines)) if _block(lines[i : i + size]) == wanted]
    if not found:
        raise ValueError(f"{old[0]!r} is not in the solution{_after(old)}: copy its lines.")
    if len(found) > 1:
        raise ValueError(
            f"{old[0]!r} is {len(found)} times in the solution{_after(old)}, so it is not clear"
            " which one is meant: give the line before it, or after it, too."
        )
    return found[0]


def _after(old: tuple[str, ...]) -> str:
    """Which lines have to follow the first."""
    return f" before {', '.join(map(repr, old[1:]))}" if len(old) > 1 else ""


def _block(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Lines of code as far as they count: how much further each is indented than the first."""
    first = _indent(lines[0])
    return [(_indent(line) - first, without_comment(line).strip()) for line in lines]


def _indented(change: Change, first: str) -> list[str]:
    """New lines, indented for the place of the old ones, of which the first stands there so."""
    more = _indent(first) - _indent(change.old[0])
    return [" " * (_indent(line) + more) + line.lstrip() for line in change.new]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
