"""Searches for the configurations that `pipelib.kernels.matmul` takes by default, on a Hopper GPU.

    python -m benchmarks.tune    searches for each product, and makes the package's table anew

The model. It is a search in the order of `matmul_space` (`pallascope.tuning.searching`). The record
has all rows of each search with their raw samples; a configuration is the list of its values, in
the order of `fields`. The table (`pipelib/kernels/matmul/tuned`) has the winners.
"""

import dataclasses
import json
import pathlib
from statistics import median
from typing import Any

from benchmarks import matmul, records, suite
from benchmarks.processes import Search, progress
from benchmarks.products import Problem, on_gpu, ours
from benchmarks.records import Group
from benchmarks.suite import OTHERS, Call, Part, Suite
from pallascope.tuning import Ranked
from pallascope.tuning.results import Found
from pallascope.tuning.searching import measured
from pipelib.kernels import MatmulConfig, matmul_space
from pipelib.kernels.matmul import tuned

FIELDS = [field.name for field in dataclasses.fields(MatmulConfig)]


def _search(call: Call, problem: Problem) -> Found[MatmulConfig]:
    space = Ranked(*matmul_space(**problem._asdict()))
    log = progress(problem, call.say)
    return measured(space, on_gpu(call.pools[OTHERS], problem), limit=call.options.limit, log=log)


def _values(config: MatmulConfig) -> list[Any]:
    return [getattr(config, name) for name in FIELDS]


def _config(values: list[Any], group: Group) -> MatmulConfig:
    return MatmulConfig(**dict(zip(group["fields"], values, strict=True)))


def table(path: pathlib.Path) -> str:
    """The text of the table that a record of searches gives.

    A search in which nothing ran gives no entry.
    """
    entries = [entry for group in records.read(path) if (entry := _entry(group)) is not None]
    entries.sort(key=lambda entry: entry[:7])
    lines = ",\n".join(json.dumps(entry.to_json()) for entry in entries)
    return f'{{"entries": [\n{lines}\n]}}\n'


def _entry(search: Group) -> tuned.Entry | None:
    """The configuration that won a search; None if nothing ran."""
    finals: list[list[Any]] = [row for row in search["finals"] if row[1] and not row[3]]
    if not finals:
        return None
    values, us, *_ = min(finals, key=lambda row: median(row[1]))
    keys = "gpu", "driver", "jax", "utc", "code_digest"
    return tuned.Entry(
        **search["problem"],
        config=MatmulConfig(**dict(zip(search["fields"], values, strict=True))),
        microseconds=round(median(us), 2),
        measured=len(search["rows"]),
        run={key: search["run"]["provenance"][key] for key in keys},
    )


def write_table(path: pathlib.Path) -> None:
    """Makes a GPU's table anew of its record."""
    (tuned.FOLDER / f"{path.parent.name}.json").write_text(table(path), "utf-8")


_TUNE = Search("tune", _search, _values, _config, ours, dict(fields=FIELDS))
SUITE = Suite(
    "tune",
    {
        "tune": Part(
            _TUNE.contenders,
            _TUNE,
            suite.kinds((), lambda problem: problem.factors),
            matmul.TUNED_FOR,
            Problem,
            matmul.plain,
        )
    },
    facts=matmul.SUITE.facts,
    options=matmul.SEARCH_OPTIONS,
    processes=matmul.pools,
    done=write_table,
)

if __name__ == "__main__":
    suite.main("tune")
