"""Searches for the configurations that `pipelib.kernels.matmul` takes by default, on a Hopper GPU.

    python -m benchmarks.tune    searches for each product, and makes the package's table anew

The model. `pallascope.tuning.matmul` says how a search goes. The record has all rows of each search
with their raw samples; a configuration is the list of its values, in the order of `fields`. The
table (`pipelib/kernels/matmul/tuned`) has the winners.
"""

import dataclasses
import functools
import pathlib
from typing import Any

from benchmarks import matmul, records, suite
from benchmarks.processes import Search
from benchmarks.records import Group
from benchmarks.suite import OTHERS, Call, Part, Suite
from pallascope.tuning import record
from pallascope.tuning.matmul import tune_with
from pallascope.tuning.on_gpu import OnGpu, ours
from pallascope.tuning.products import Problem
from pallascope.tuning.rows import Found
from pipelib.kernels import MatmulConfig
from pipelib.kernels.matmul import tuned

FIELDS = [field.name for field in dataclasses.fields(MatmulConfig)]


def _search(call: Call, problem: Problem) -> Found[MatmulConfig]:
    on_gpu = OnGpu(call.pools[OTHERS], problem, functools.partial(ours, problem))
    return tune_with(on_gpu, problem, limit=call.options.limit, log=call.say)


def _values(config: MatmulConfig) -> list[Any]:
    return [getattr(config, name) for name in FIELDS]


def _config(values: list[Any], group: Group) -> MatmulConfig:
    return MatmulConfig(**dict(zip(group["fields"], values, strict=True)))


def table(path: pathlib.Path) -> str:
    """The text of the table that a record gives."""
    return record.table(dict(searches=records.read(path)))


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
