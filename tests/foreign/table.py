"""Sums up what `collecting` wrote of one source.

A configuration is a kernel with the types and the integers of its operands. It counts as

- Blackwell's, if it uses primitives of Blackwell's and its source is for Hopper;
- not lowered, if JAX does not compile it for its GPU on a machine without one: tests of JAX's
  errors, and kernels that need the mesh of several devices;
- else as lowered: then it is traced or refused, in its first block and in its last. A check that
  takes longer than `examining.SECONDS` is counted apart.

Paths are relative to the checkout or to the packages, and numbers are left out of causes, so that
configurations which differ in sizes are one line.
"""

import collections
import json
import pathlib
import re
from typing import Any

from tests.foreign.readings import reading_of
from tests.foreign.sources import Source

Row = dict[str, Any]
_OURS = pathlib.Path(__file__).parents[2]


def sum_up(folder: pathlib.Path, root: pathlib.Path, source: Source) -> Row:
    """The results of one source: counts, refusals by reason, findings by kernel."""
    rows = list(_rows(folder))
    counts: collections.Counter[str] = collections.Counter()
    refused, found, strict = _Groups(root), _Groups(root), _Groups(root)
    for test, row in rows:
        kind = _kind(row)
        counts["configurations"] += 1
        counts[kind] += 1
        if kind in ("traced", "refused"):
            counts["lowered"] += 1
        blocks = [row[name] for name in ("first", "last") if name in row]
        for reason in {block["refused"] for block in blocks if "refused" in block}:
            refused.add(test, row, reason, {})
        counts["not checked in time"] += any("unchecked" in block for block in blocks)
        findings = _distinct(blocks, "findings")
        counts["with findings"] += bool(findings)
        for each in findings:
            more = {"kind": each["kind"], "lines": each["lines"]}
            if reading := reading_of(test, each["kind"], f"{row['file']}:{row['line']}"):
                more |= {"verdict": reading.verdict, "why": reading.why}
            found.add(test, row, each["cause"], more)
        added = [] if findings else _distinct(blocks, "strict")
        counts["with strict findings only"] += bool(added)
        for each in added:
            strict.add(test, row, each["kind"], {"kind": each["kind"]})
    return {
        "files": list(source.files),
        "counts": dict(counts),
        "refused": refused.listed(),
        "findings": found.listed(),
        "strict": strict.listed(),
    }


def line(results: Row) -> str:
    """One line on one source."""
    counts = collections.Counter(results["counts"])
    return (
        f"{counts['configurations']} configurations, {counts['lowered']} lowered by JAX,"
        f" {counts['traced']} traced, {counts['with findings']} with findings"
    )


def _rows(folder: pathlib.Path) -> Any:
    """Each configuration once, with the first test that launched it."""
    seen: set[str] = set()
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            test = json.loads(text)
            for row in test["rows"]:
                if row["digest"] not in seen:
                    seen.add(row["digest"])
                    yield test["test"], row


def _kind(row: Row) -> str:
    if row["beyond"]:
        return "Blackwell's"
    if row["lowered"] is not None:
        return "not lowered"
    blocks = [row[name] for name in ("first", "last") if name in row]
    return "refused" if any("refused" in block for block in blocks) else "traced"


def _distinct(blocks: list[Row], key: str) -> list[Row]:
    """The findings of both blocks, each kind at the same lines once."""
    found = {(f["kind"], *f["lines"]): f for block in blocks for f in block.get(key, ())}
    return list(found.values())


class _Groups:
    """Things that are said of configurations, those that are alike together."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._found: dict[str, Row] = {}

    def add(self, test: str, row: Row, said: str, more: Row) -> None:
        """One more configuration of which this is said."""
        kernel = f"{self._short(row['file'])}:{row['line']} {row['kernel']}"
        more = {k: [self._short(x) for x in v] if k == "lines" else v for k, v in more.items()}
        alike = re.sub(r"\b\d[\d,]*\b", "#", re.sub(r"\S+\.py:\d+: ", "", said))
        key = json.dumps([alike if "kind" not in more else kernel, more], sort_keys=True)
        new = {"count": 0, "kernel": kernel, "test": test, "said": self._short(said), **more}
        group = self._found.setdefault(key, new)
        group["count"] += 1
        if test < group["test"]:  # tests run in no order, and the example is to stay the same
            group.update(test=test, said=new["said"])

    def _short(self, text: str | None) -> str:
        """Paths without the folders of this machine."""
        text = re.sub(r"(?<![\w.])[\w./-]*/site-packages/", "", text or "")
        return text.replace(f"{self.root}/", "").replace(f"{_OURS}/", "")

    def listed(self) -> list[Row]:
        """The groups, the largest first."""
        return sorted(
            self._found.values(),
            key=lambda group: (-group["count"], group["kernel"], json.dumps(group, sort_keys=True)),
        )
