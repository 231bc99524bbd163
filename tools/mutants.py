"""How much the checker finds, as tables: what `tests/pallascope/checking/survey.py` recorded.

A row for each class of fault: its mutants, how many of those that do harm are found, and what shows
each verdict. Then those that do no harm as far as chance can tell, in groups, each with its reason.
"""

import json
import pathlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from pipelib_book.measured.results import table

RECORD = pathlib.Path(__file__).parents[1] / "tests" / "pallascope" / "checking" / "survey.json"
#: The verdicts of what is found, and of what does no harm, with the words of their columns.
FOUND = {
    "explored": "by all states", "shown": "by an order", "met": "by chance", "ruled": "by a rule",
}  # fmt: skip
HARMLESS = {"harmless": "by all states", "argued": "by an argument", "wandered": "by chance"}
_MISSED = "missed", "not shown"
#: Why those do no harm that chance alone judges, by what their names have; the first that fits.
WHY = {
    r" wait (?:produced|loaded|k_barriers|v_barriers)": (
        "another compute thread waits for the same copy, and this one for that thread"
    ),
    r" wait consumed| arrive consumed": (
        "another release, which comes later, is waited for before the slot is used again"
    ),
    r" arrive written| (?:fence|commit_group),": (
        "both compute threads meet at `written` once more before anything is stored"
    ),
    r" scope_begin": "what passes the meeting is the thread's own, or handed over by a barrier",
    r" (?:arrive|wait) (?:turns?|args|schedule_barrier|q_barriers)| arrivals on (?:args|sched)": (
        "the barrier takes turns on the tensor core, and guards no memory"
    ),
    r" acc_read": "nothing overwrites the operands of the last product",
    r" load": "the slot was released to both blocks of the pair before",
}

type Rows = list[dict[str, Any]]


def read() -> Rows:
    """The rows of the record, one for each kernel."""
    return json.loads(RECORD.read_text("utf-8"))["kernels"]


def counts(kernels: Rows) -> dict[str, Counter[str]]:
    """For each class, the most numerous first, how many mutants have each verdict."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in kernels:
        for text, count in row["counts"].items():
            of, _, verdict = text.rpartition(": ")
            found[of][verdict] += count
    return dict(sorted(found.items(), key=lambda item: -harmful(item[1])))


def harmful(verdicts: Counter[str]) -> int:
    """How many do harm."""
    return sum(verdicts[each] for each in (*FOUND, *_MISSED))


def tables() -> str:
    """The classes; how much chance would see; what chance alone says is harmless, and why it is."""
    kernels = read()
    seen = sum((Counter(row["power"]) for row in kernels), Counter[str]())
    chance = (
        f"Of {seen.total():,} mutants that are shown to do harm by an order, the orders that are"
        f" drawn by chance show it in {seen['seen']:,}."
    )
    summed = {of: _summed(verdicts) for of, verdicts in counts(kernels).items()}
    return "\n\n".join(
        [
            table(
                ["they do harm", "mutants", "found", *FOUND.values()],
                _rows(summed, ["harmful", "found", *FOUND]),
            ),
            chance,
            table(
                ["they do none", "mutants", *HARMLESS.values()], _rows(summed, ["none", *HARMLESS])
            ),
            ":::{admonition} What chance alone says is harmless\n:class: dropdown",
            table(["mutation", "mutants", "why"], _left(kernels), words=(0, 2)),
            ":::",
        ]
    )


def _summed(verdicts: Counter[str]) -> Counter[str]:
    """The verdicts, and sums of them."""
    found, none = (sum(verdicts[each] for each in group) for group in (FOUND, HARMLESS))
    return verdicts + Counter(harmful=harmful(verdicts), found=found, none=none)


def _rows(classes: dict[str, Counter[str]], names: Iterable[str]) -> Iterator[list[str]]:
    """For each class, and for all: how many mutants have each of these verdicts."""
    total = sum(classes.values(), Counter[str]())
    for of, verdicts in (*classes.items(), ("all", total)):
        yield [of, *(f"{verdicts[each]:,}" for each in names)]


def _left(kernels: Rows) -> Iterator[list[str]]:
    """Each group of what is harmless as far as chance tells: its mutations, how many, and why."""
    groups = Counter[str]()
    mutations: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in kernels:
        for name, verdict in row["left"]:
            if verdict == "wandered":
                groups[why(name)] += 1
                mutations[why(name)][re.sub(r"[@.]\d+|,.*| at \d+|, barrier.*", "", name)] += 1
    for reason, count in groups.most_common():
        yield [
            ", ".join(name for name, _ in mutations[reason].most_common(3)),
            f"{count:,}",
            reason,
        ]


def why(name: str) -> str:
    """Why a mutant of this name does no harm, as a person has read it in the kernels."""
    return next(reason for pattern, reason in WHY.items() if re.search(pattern, name))
