"""Records of searches: JSON files, and the tables of tuned configurations that are made of them.

The model. A record is a list of searches. Each says where and by which code it was made
(`run_facts`), and has all rows with their raw samples.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from pallascope.bench import provenance
from pallascope.tuning.products import SEED, Problem
from pallascope.tuning.rows import Found, Row
from pallascope.tuning.workers import Failed, Workers
from pipelib.kernels.matmul import MatmulConfig
from pipelib.kernels.matmul.tuned import Entry

#: Plain data, as JSON has it.
Facts = dict[str, Any]


def run_facts(workers: Workers, command: str) -> Facts:
    """Where and how a run was made. A worker is asked, because it has the GPU.

    Raises:
      Failed: the worker gave no answer.
    """
    (_, found), *_ = workers.stream([_prepare_provenance])
    if isinstance(found, Failed):
        raise found
    return {
        "command": command,
        "seed": SEED,
        "distribution": "standard normal, rounded to the factors' dtype",
        "provenance": found,
    }


def _prepare_provenance() -> Callable[[], Facts]:
    """A task for `Workers`."""
    return provenance.provenance


def write_search(
    path: pathlib.Path, problem: Problem, found: Found[MatmulConfig], facts: Facts
) -> None:
    """Writes a search into a record; it replaces an earlier search of the same problem.

    Args:
      path: the record; a new one if there is no such file.
      problem, found: the product, and what the search found.
      facts: `run_facts` of the search.
    """
    fields = [field.name for field in dataclasses.fields(MatmulConfig)]
    new = {
        "problem": problem._asdict() | dict(out_dtype=problem.out.dtype.name),
        "run": facts,
        "fields": fields,
        "columns": ["config", "microseconds", "largest error / rms", "reason"],
        "rows": [_plain_row(row, fields) for row in found.rows],
        "finals": [_plain_row(row, fields) for row in found.finals],
    }
    kept = [search for search in _searches(path) if search["problem"] != new["problem"]]
    write_lines(path, "searches", [*kept, new])


def _plain_row(row: Row[MatmulConfig], fields: Sequence[str]) -> list[Any]:
    """A row as a record has it, in the order of its columns."""
    values = [getattr(row.config, name) for name in fields]
    return [values, [round(us, 2) for us in row.us], row.error, row.reason]


def _searches(path: pathlib.Path) -> list[Facts]:
    """The searches of a record; none if there is no such file yet."""
    return json.loads(path.read_text("utf-8"))["searches"] if path.exists() else []


def _part(path: pathlib.Path) -> pathlib.Path:
    """The file that is written first, and then replaces the record."""
    return path.with_suffix(".part")


def write_lines(path: pathlib.Path, name: str, items: Sequence[Any]) -> None:
    """Writes a JSON object of one list, an item on a line; whole, or not at all."""
    lines = ",\n".join(json.dumps(item) for item in items)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    part.write_text(f'{{"{name}": [\n{lines}\n]}}\n', "utf-8")
    part.replace(path)


def check_record(path: pathlib.Path) -> None:
    """Raises ValueError if `write_search` could not read this record, or not write it."""
    try:
        _searches(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path)
        part.touch()
        part.unlink()
    except OSError as error:
        raise ValueError(
            f"tune: path={str(path)!r} cannot be written ({error.strerror}), so the search would be"
            " lost: name a file in a folder of yours."
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"tune: path={str(path)!r} is not a record of searches, so this one cannot be added to"
            " it: name another file."
        ) from error


def table(record: Facts) -> str:
    """The text of the table of tuned configurations that a record gives (`matmul.tuned`).

    A search in which nothing ran gives no entry.
    """
    entries = [entry for search in record["searches"] if (entry := _entry(search)) is not None]
    entries.sort(key=lambda entry: entry[:7])
    lines = ",\n".join(json.dumps(entry.to_json()) for entry in entries)
    return f'{{"entries": [\n{lines}\n]}}\n'


def _entry(search: Facts) -> Entry | None:
    """The configuration that won a search; None if nothing ran."""
    finals: list[list[Any]] = [row for row in search["finals"] if row[1] and not row[3]]
    if not finals:
        return None
    values, us, *_ = min(finals, key=lambda row: median(row[1]))
    keys = "gpu", "driver", "jax", "utc", "code_digest"
    return Entry(
        **search["problem"],
        config=MatmulConfig(**dict(zip(search["fields"], values, strict=True))),
        microseconds=round(median(us), 2),
        measured=len(search["rows"]),
        run={key: search["run"]["provenance"][key] for key in keys},
    )
