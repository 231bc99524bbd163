"""The checker on kernels that others wrote, as tables: what `tests/foreign` recorded.

The model is that of `pipelib_book.measured.foreign`, which reads the record; these are the tables
of the page on the checker. `tests/foreign/readings.py` has the verdicts.
"""

import re
from typing import Any

from pipelib_book.measured import foreign
from pipelib_book.measured.foreign import HEAD, VERDICTS, counts
from pipelib_book.measured.results import table


def tables() -> str:
    """A row for each project; folded away, one for each source, and one for each reading."""
    results = foreign.read()
    return "\n\n".join(
        [
            foreign.projects_table(results),
            ":::{admonition} Each source\n:class: dropdown",
            table(
                ["source", *HEAD],
                [[name, *counts([results[name]])] for name in foreign.in_order(results)],
            ),
            ":::",
            ":::{admonition} Each reading\n:class: dropdown",
            table(
                ["it is", "findings", "kind", "seen in", "why"],
                _readings(results),
                words=(0, 2, 3, 4),
            ),
            ":::",
        ]
    )


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
    """A test's function without its case; a guide's file."""
    *files, test = name.split("::")
    if test == "cells":
        return files[0].rpartition("/")[2]
    return re.sub(r"\d+$|\[.*", "", test)
