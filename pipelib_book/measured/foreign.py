"""The checker on kernels that others wrote: what `tests/foreign` recorded, as tables.

The model. The record has, for each source of kernels, how many configurations were traced, and the
findings in groups, each with the verdict of a person who read the kernel. A source is a part of a
project at a version. A configuration is a kernel with the types and the integers of its operands. A
finding counts once for each configuration that has it.
"""

import json
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelib_book.measured.results import table

_KIT = pathlib.Path(__file__).resolve().parents[1]
#: In the repository, and in the installed package.
PLACES = _KIT.parent / "tests" / "foreign" / "results.json", _KIT / "results" / "foreign.json"
#: The verdicts, gravest first, and the heads of their columns.
VERDICTS = {
    "fault": "faults",
    "fault by the letter of PTX": "by PTX's letter",
    "true, and harmless": "harmless",
    "fault that the test plants": "planted",
    "false alarm": "false alarms",
}
#: The columns of `counts`, but for a first one.
HEAD = "configurations", "traced", "refused", *VERDICTS.values()

type Sources = dict[str, dict[str, Any]]


def read(places: tuple[pathlib.Path, ...] = PLACES) -> Sources:
    """The record; FileNotFoundError if the package came without it."""
    for path in places:
        if path.exists():
            return json.loads(path.read_text("utf-8"))
    raise FileNotFoundError(
        f"There is no {' or '.join(map(str, places))}, so there is nothing to say on kernels that"
        " others wrote: use a checkout of the repository, or a wheel built from one."
    )


def counts(sources: list[dict[str, Any]]) -> list[str]:
    """The counts of some sources together: a row of `HEAD`."""
    total, by_verdict = Counter[str](), Counter[str]()
    for source in sources:
        total += Counter(source["counts"])
        for group in source["findings"]:
            by_verdict[group["verdict"]] += group["count"]
    numbers = [total["lowered"], total["traced"], total["refused"]]
    return [f"{number:,}" for number in (*numbers, *(by_verdict[v] for v in VERDICTS))]


def projects_table(sources: Sources) -> str:
    """A row for each project at a version: what was traced, and what the findings are."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in in_order(sources):
        found.setdefault(_project(name), []).append(sources[name])
    rows = [[project, *_brief(counts(parts))] for project, parts in found.items()]
    return table(["project", *_brief(HEAD)], rows)


def _brief(row: Sequence[str]) -> list[str]:
    """A row of `HEAD` without what was not traced."""
    return [cell for head, cell in zip(HEAD, row) if head not in ("configurations", "refused")]


def places_table(sources: Sources) -> str:
    """Where the faults stand that are in no test: a row for each file and verdict."""
    found: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for name in in_order(sources):
        for group in sources[name]["findings"]:
            # A fault of a whole kernel has no lines: it stands where the kernel begins.
            place = next(iter(group["lines"]), group["kernel"])
            path = pathlib.PurePosixPath(place.partition(":")[0])
            if group["verdict"].startswith("fault") and path.parts[0] != "tests":
                by_project = found.setdefault((path.name, group["verdict"]), {})
                kinds = by_project.setdefault(_project(name), Counter())
                kinds[group["kind"]] += group["count"]
    rows = [
        [f"`{file}`", verdict, "; ".join(map(_words, by_project, by_project.values()))]
        for (file, verdict), by_project in found.items()
    ]
    return table(["file", "it is a", "findings"], rows, words=(0, 1, 2))


def _words(project: str, kinds: Counter[str]) -> str:
    return f"{project}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"


def in_order(sources: Sources) -> list[str]:
    """The names of the sources: other projects, then JAX by version and part."""
    return sorted(sources, key=lambda name: (name.startswith("JAX "), name))


def _project(name: str) -> str:
    """A source's project and version."""
    return name.partition(",")[0]
