"""What the record of `benchmarks/search.py` says: the search beside brute force.

The model. A group is a kernel and a space: what `pallascope.tuning.search` measured of it, what
brute force did, and the best of both, measured in turn. A record that is not there gives no groups
and a sentence in place of a table.
"""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from pipelib_book.measured import results


def groups(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[dict[str, Any]]:
    """The groups of the record; none if there is no record."""
    return [
        group
        for each in results.read(f"{results.GPU}/search.json", folders)
        for group in each["groups"]
    ]


def table(found: Sequence[dict[str, Any]]) -> str:
    """The record for a reader: how much each measured, in what time, and how near the search is."""
    compared = [group for group in found if group.get("contenders")]
    if not compared:
        return results.missing("search beside brute force")
    head = [
        "kernel", "configurations", "search: measured", "s", "brute force: measured", "s",
        "best, µs", "the search's, µs", "search / best",
    ]  # fmt: skip
    return results.table(head, map(_row, compared))


def _row(group: dict[str, Any]) -> list[str]:
    count = lambda part: sum(bool(row[3]) for row in group[part]["rows"])
    best = group["contenders"].items()
    us = {name: statistics.median(each["burst_microseconds"]) for name, each in best}
    tail = "" if group["complete"] else ", not all"
    return [
        group["problem"]["kernel"],
        f"{group['searched']} of {group['space']}",
        f"{count('search')}",
        f"{group['search']['seconds']:.0f}",
        f"{count('brute')}{tail}",
        f"{group['brute']['seconds']:.0f}",
        f"{us['brute']:.1f}",
        f"{us['search']:.1f}",
        f"{us['search'] / us['brute']:.3f}",
    ]
