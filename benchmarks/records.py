"""Records: where they are, their one layout, how they are read and written.

The model. A record is `results/<gpu>/NAME.json`, and `benchmarks/NAME.py` makes it. It is a list of
*groups*::

    {"groups": [
    {"part": ..., "problem": {...}, "run": {...}, "contenders": {
      "a name": {"burst_microseconds": [...], "compiled": ...},
      "another": {"reason": ...}
    }}
    ]}

A group is one *problem* and what was measured of each of its *contenders*: samples, errors, the
digest of what JAX compiled (`compiled`), or the reason why there are none. `part` says which part
of the suite it is of, and `run` has the command, the provenance and the settings. Where contenders
need no problem (probes, hazards) it is empty. A group may have more fields.

Two records have layouts of their own: `profile.json` is a file of Chrome's trace format, and
`schedule.json` times plain Python.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Where a contender has its digest.
KEY = "compiled"

#: A group, as plain data.
type Group = dict[str, Any]


def folder(gpu: str) -> str:
    """The name of a GPU's folder: "nvidia-h200"."""
    return gpu.lower().replace(" ", "-")


def read(path: pathlib.Path) -> list[Group]:
    """The groups of a record; none if there is no record."""
    return json.loads(path.read_text("utf-8"))["groups"] if path.exists() else []


def put(path: pathlib.Path, group: Group) -> None:
    """Writes a group, in place of an earlier one of the same part and problem."""
    groups, key = read(path), lambda group: (group["part"], group["problem"])
    places = [i for i, old in enumerate(groups) if key(old) == key(group)]
    groups = [old for i, old in enumerate(groups) if i not in places]
    write(path, {"groups": [*groups, group]})


def write(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Writes a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text(record), "utf-8")
    part.replace(path)


def text(record: dict[str, Any]) -> str:
    """A record as JSON, a contender on a line."""
    if "groups" not in record:
        return json.dumps(record) + "\n"
    return '{"groups": [\n' + ",\n".join(map(_text, record["groups"])) + "\n]}\n"


def _text(group: Group) -> str:
    """A group: its head on one line, then its contenders."""
    head = {name: value for name, value in group.items() if name != "contenders"}
    found = group.get("contenders", {}).items()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kept)}" for name, kept in found)
    return f'{json.dumps(head)[:-1]}, "contenders": {{\n{lines}\n}}}}'


def rounded(microseconds: Sequence[float]) -> list[float]:
    """To what a clock of nanoseconds can say."""
    return [round(us, 3) for us in microseconds]
