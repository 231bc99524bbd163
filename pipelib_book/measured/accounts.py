"""What the record of `benchmarks/accounts.py` says: where the cycles of a launch of attention go.

The model. An account has the counters of a launch, and for each part of a step the cycles that a
warp of a compute thread spends there, of samples of where it stood. The time of a launch is four
*factors*: the clock, the part of all cycles of all multiprocessors in which they have a block, the
part of these in which the tensor core is busy, and how many products it makes. A contender that
could not be profiled has a reason instead.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelib_book.measured import results

#: The parts of a step, in their order.
PARTS = "turn", "products", "scores", "softmax", "result", "rest"
#: The least part of a part of a step that has a row.
_FEW = 0.01
#: Groups of the record by their words.
type Groups = Mapping[str, dict[str, Any] | None]
#: What samples of warps say of a moment, in words. Source: NVIDIA, "Nsight Compute", "Warp
#: Scheduler States".
_STATES = {
    "selected": "issues an instruction",
    "wait": "waits for its last instruction",
    "short_sb": "waits for an exponential, or for SMEM",
    "long_sb": "waits for memory",
    "barrier": "waits for other warps",
    "dispatch": "waits for the dispatcher",
    "math": "waits for a unit",
    "mio": "waits for a queue of instructions",
    "not_selected": "could go on, but another warp does",
}
#: What an account has of a whole launch, and how a table writes it.
_LAUNCH: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "ms": lambda account: f"{1e3 * account['seconds']:.3f}",
    "GHz": lambda account: f"{_clock(account) / 1e9:.3f}",
    "SMs have a block": lambda account: f"{_active(account):.1%}",
    "then the tensor core is busy": lambda account: f"{account['tensor_percent']:.1f}%",
    "the exponentials' unit": lambda account: f"{account['exponentials_percent']:.1f}%",
    "issue slots": lambda account: f"{account['issue_percent']:.1f}%",
    "TB/s from the L2": lambda account: f"{account['to_sms_bytes_per_second'] / 1e12:.2f}",
    "million instructions": lambda account: f"{account['instructions'] / 1e6:,.0f}",
}
_ALL = "all"
OF_A_LAUNCH, OF_A_STEP = (*_LAUNCH,), (*PARTS, _ALL)
_EVERY = *OF_A_LAUNCH, *OF_A_STEP
#: The factors of a launch's speed: of each, more is faster.
_FACTORS: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "the clock": lambda account: _clock(account),
    "the part of the cycles in which an SM has a block": lambda account: _active(account),
    "the part of those in which its tensor core is busy": lambda account: (
        account["tensor_percent"] / 100
    ),
    "results for each cycle of a busy tensor core": lambda account: (
        1 / (account["cycles"] * _active(account) * account["tensor_percent"])
    ),
    "all four: the speed": lambda account: 1 / account["seconds"],
}


def group(
    causal: bool, folders: tuple[pathlib.Path, ...] = results.FOLDERS
) -> dict[str, Any] | None:
    """The accounts of the dense or the causal problem; None if there are none."""
    for record in results.read(f"{results.GPU}/accounts.json", folders):
        for found in record["groups"]:
            if found["problem"]["causal"] == causal:
                return found
    return None


def table(
    found: dict[str, Any] | None,
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] = _EVERY,
) -> str:
    """A row for each account: the launch, then the cycles of each part of a step.

    Args:
      found: a group of the record.
      names: the contenders that are wanted, and what the table calls them; by default all.
      columns: those that are wanted, as `OF_A_LAUNCH` or `OF_A_STEP`.
    """
    if found is None:
        return _MISSING
    wanted = names or {name: name for name in found["contenders"]}
    accounts = [(wanted[name], each) for name in wanted if (each := found["contenders"].get(name))]
    rows: list[list[str]] = []
    for words, each in accounts:
        if "reason" in each:
            rows.append([words, each["reason"]])
        else:
            cells = dict(zip(_EVERY, _row(words, each)[1:], strict=True))
            rows.append([words, *(cells[column] for column in columns)])
    return results.table(["contender", *columns], rows)


def launches(groups: Groups, names: Mapping[str, str]) -> str:
    """A row for each number of a whole launch, a column for each account that was made.

    Args:
      groups: of the record, by their words, as {"dense": group(False)}.
      names: as for `table`.
    """
    made = {
        f"{words}, {kind}": account
        for kind, found in groups.items()
        for words, account in _made(found, names)
    }
    rows = [[name, *map(cell, made.values())] for name, cell in _LAUNCH.items()]
    return results.table(["", *made], rows) if made else _MISSING


def factors(groups: Groups, name: str, other: str) -> str:
    """A row for each factor of a contender's speed over another's, a column for each group."""
    made = {kind: [each for _, each in _made(found, {name: name, other: other})]
            for kind, found in groups.items()}  # fmt: skip
    pairs = {kind: pair for kind, pair in made.items() if len(pair) == 2}
    rows = [
        [words, *(f"{factor(one) / factor(two):.3f}x" for one, two in pairs.values())]
        for words, factor in _FACTORS.items()
    ]
    return results.table(["", *pairs], rows) if pairs else _MISSING


def steps(found: dict[str, Any] | None, names: Mapping[str, str]) -> str:
    """A row for each part of a step, a column for each account that was made."""
    if found is None:
        return _MISSING
    made = _made(found, names)
    columns = [_row(words, account)[1 + len(_LAUNCH) :] for words, account in made]
    return results.table(["", *(words for words, _ in made)], zip(OF_A_STEP, *columns))


def stalls(found: dict[str, Any] | None, name: str, part: str) -> str:
    """What a warp does in a part of a contender's step: a row for each state, the longest first."""
    made = _made(found, {name: name})
    if not made:
        return _MISSING
    cycles = made[0][1]["parts"][part]["stalls"]
    every = sum(cycles.values())
    known = sorted(_STATES, key=lambda state: -cycles.get(state, 0))
    rest = every - sum(cycles.get(state, 0) for state in known)
    pairs = [(_STATES[state], cycles.get(state, 0)) for state in known] + [("other", rest)]
    rows = [[words, f"{of:,.0f}", f"{of / every:.0%}"] for words, of in pairs if of > _FEW * every]
    return results.table(("", "cycles", "of the part"), rows)


def clocks(found: dict[str, Any] | None) -> list[tuple[str, float, float]]:
    """Of each account: its contender, for which part of the launch the tensor core is busy, Hz."""
    names = {name: name for name in found["contenders"]} if found else {}
    return [
        (name, _active(each) * each["tensor_percent"] / 100, _clock(each))
        for name, each in _made(found, names)
    ]


_MISSING = results.missing("part `accounts`", "The record of attention")


def _made(found: dict[str, Any] | None, names: Mapping[str, str]) -> list[tuple[str, Any]]:
    """The words and the account of each contender that has one."""
    of = found["contenders"] if found else {}
    return [(words, of[name]) for name, words in names.items() if "parts" in of.get(name, ())]


def _clock(account: dict[str, Any]) -> float:
    """In Hz."""
    return account["cycles"] / account["seconds"]


def _active(account: dict[str, Any]) -> float:
    """The part of a launch's cycles in which a multiprocessor has a block, in the mean."""
    return account["active_cycles"] / account["cycles"]


def _row(words: str, account: dict[str, Any]) -> list[str]:
    """The cells of an account."""
    cycles = {part: of["cycles"] for part, of in account["parts"].items()}
    return [
        words,
        *(cell(account) for cell in _LAUNCH.values()),
        *(f"{cycles[part]:,.0f}" if part in cycles else "" for part in PARTS),
        f"{sum(cycles.values()):,.0f}",
    ]
