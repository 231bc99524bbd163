"""Finds the committed records of `benchmarks/`, for whoever quotes them, and sets them in Markdown.

A record is a list of groups; `benchmarks/records.py` says what is in one. In the repository records
are in `benchmarks/results`; the installed package has a copy, `results`.
"""

import json
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_KIT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = _KIT.parent / "benchmarks" / "results", _KIT / "results"
#: The GPU that records of a GPU are of.
GPU = "nvidia-h200"


def find(pattern: str, folders: tuple[pathlib.Path, ...] = FOLDERS) -> list[pathlib.Path]:
    """The records of a pattern, in the first folder that has any; none if none has.

    They are sorted by name, and those of the book's GPU come first.
    """
    for folder in folders:
        if found := sorted(folder.glob(pattern), key=lambda path: (path.parent.name != GPU, path)):
            return found
    return []


def read(pattern: str, folders: tuple[pathlib.Path, ...] = FOLDERS) -> list[dict[str, Any]]:
    """What the records of a pattern hold, `opened`."""
    return [opened(json.loads(path.read_text("utf-8"))) for path in find(pattern, folders)]


def opened(record: dict[str, Any]) -> dict[str, Any]:
    """A record, in which parts without problems can be asked for by name.

    Of each group that has no problem there is what its run and its other fields say, and under the
    part's name what was measured: `record["probes"]["meet"]`, `record["provenance"]`.
    """
    found = dict(record)
    for group in record.get("groups", ()):
        if not group.get("problem", True):
            own = {name: value for name, value in group.items() if name not in _OF_ALL}
            found |= group["run"] | own | {group["part"]: group["contenders"]}
    return found


#: What every group of a record has.
_OF_ALL = "part", "problem", "run", "contenders"


def missing(what: str, record: str = "The record") -> str:
    """What a page says where a record does not have something, or is not there."""
    return f"({record} has no {what}: `make benchmark` measures it.)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> str:
    """A table in Markdown, of a head and rows of cells; the columns that are `words` to the left.

    The others are numbers, to the right.
    """
    sides = ["---" if column in words else "--:" for column in range(len(head))]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(sides)}|", *lines[1:]])
