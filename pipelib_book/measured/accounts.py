"""What the record of `benchmarks/accounts.py` says: where the cycles of a step of attention go.

The model. An account has the counters of a launch, and for each part of a step the cycles that a
warp of a compute thread spends there, of samples of where it stood. A contender that could not be
profiled has a reason instead.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from pipelib_book.measured import results

#: The parts of a step, in their order.
PARTS = "turn", "products", "scores", "softmax", "result", "rest"


def group(
    causal: bool, folders: tuple[pathlib.Path, ...] = results.FOLDERS
) -> dict[str, Any] | None:
    """The accounts of the dense or the causal problem; None if there are none."""
    for record in results.read(f"{results.GPU}/accounts.json", folders):
        for found in record["groups"]:
            if found["problem"]["causal"] == causal:
                return found
    return None


def table(found: dict[str, Any] | None, names: Mapping[str, str] | None = None) -> str:
    """A row for each account: the launch, then the cycles of each part of a step.

    Args:
      found: a group of the record.
      names: the contenders that are wanted, and what the table calls them; by default all.
    """
    if found is None:
        return _MISSING
    return results.table(_HEAD, _rows(found, names or {name: name for name in found["contenders"]}))


def beside(found: dict[str, Any] | None, names: Mapping[str, str]) -> str:
    """The same with a column for each account, which is narrower where there are few.

    One that was not made has no column.
    """
    if found is None:
        return _MISSING
    rows = [row for row in _rows(found, names) if len(row) == len(_HEAD)]
    head, *columns = zip(_HEAD, *rows)
    return results.table(["", *head[1:]], columns)


_MISSING = results.missing("part `accounts`", "The record of attention")
_HEAD = ["contender", "ms", "GHz", "tensor core", "million instructions", *PARTS, "all"]


def _rows(found: dict[str, Any], names: Mapping[str, str]) -> list[list[str]]:
    """The cells of the accounts that there are."""
    accounts = [(words, found["contenders"].get(name)) for name, words in names.items()]
    return [_row(words, each) for words, each in accounts if each]


def _row(words: str, account: dict[str, Any]) -> list[str]:
    """The cells of an account."""
    if "reason" in account:
        return [words, account["reason"]]
    cycles = {part: of["cycles"] for part, of in account["parts"].items()}
    return [
        words,
        f"{1e3 * account['seconds']:.3f}",
        f"{account['cycles'] / account['seconds'] / 1e9:.3f}",
        f"{account['tensor_percent']:.1f}%",
        f"{account['instructions'] / 1e6:,.0f}",
        *(f"{cycles[part]:,.0f}" if part in cycles else "" for part in PARTS),
        f"{sum(cycles.values()):,.0f}",
    ]
