"""The checker on kernels that others wrote, as tables: what `tests/foreign` recorded.

The model. `tests/foreign/results.json` has, for each source of kernels, how many configurations
were traced, and the findings in groups, each with the verdict of a person who read the kernel
(`tests/foreign/readings.py`). A configuration is a kernel with the types and the integers of its
operands. A finding counts once for each configuration that has it.
"""

import json
import re
from collections import Counter
from typing import Any

from pipelib_book.measured.results import table
from tools.execution import ROOT

RESULTS = ROOT / "tests/foreign/results.json"
#: The verdicts, gravest first, and the heads of their columns.
VERDICTS = {
    "fault": "faults",
    "fault by the letter of PTX": "by PTX's letter",
    "true, and harmless": "harmless",
    "fault that the test plants": "planted",
    "false alarm": "false alarms",
}


def tables() -> str:
    """A row for each source; and for each reading, in what opens when it is asked for."""
    results = json.loads(RESULTS.read_text("utf-8"))
    names = sorted(results, key=lambda name: (not name.startswith("tokamax"), name))
    return "\n\n".join(
        [
            table(
                ["source", "configurations", "traced", "refused", *VERDICTS.values()],
                [_row(name, results[name]) for name in names],
            ),
            ":::{admonition} Each reading\n:class: dropdown",
            table(
                ["it is", "findings", "kind", "seen in", "why"],
                _readings(results),
                words=(0, 2, 3, 4),
            ),
            ":::",
        ]
    )


def _row(name: str, source: dict[str, Any]) -> list[str]:
    """The counts of one source."""
    counts = Counter(source["counts"])
    by_verdict = Counter[str]()
    for group in source["findings"]:
        by_verdict[group["verdict"]] += group["count"]
    numbers = [counts["lowered"], counts["traced"], counts["refused"]]
    return [name, *(f"{number:,}" for number in (*numbers, *(by_verdict[v] for v in VERDICTS)))]


def _readings(results: dict[str, Any]) -> list[list[str]]:
    """Each verdict and reason once: how often, on which kinds, in which tests of which project."""
    found: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for name, source in results.items():
        for group in source["findings"]:
            found.setdefault((group["verdict"], group["why"]), []).append((name, group))
    rows: list[list[str]] = []
    for (verdict, why), groups in sorted(found.items(), key=lambda item: _rank(*item[0])):
        times = sum(group["count"] for _, group in groups)
        kinds = sorted({group["kind"] for _, group in groups})
        places = sorted({f"{name.split()[0]}, `{_test(group['test'])}`" for name, group in groups})
        rows.append([verdict, f"{times:,}", ", ".join(kinds), "; ".join(places), why])
    return rows


def _rank(verdict: str, why: str) -> tuple[int, str]:
    return list(VERDICTS).index(verdict), why


def _test(name: str) -> str:
    """A test's function without the number of its case; a guide's file."""
    *files, test = name.split("::")
    if test == "cells":
        return files[0].rpartition("/")[2]
    return re.sub(r"\d+$", "", test)
