"""Measures how near `pipelib.tuning.search` comes to the best that brute force finds.

    python -m benchmarks.search matmul attention chapter    on the GPU: writes the record
    python -m benchmarks.search chapter --seconds 60        begins no measurement of a part later
    python -m benchmarks.search table                       prints the record

The model. A part is a kernel, its arguments and a space. First comes the search, as a user calls
it, with a budget of `--budget` seconds. Then comes brute force: every configuration of the space
that the checker lets through is measured. At last the best of the search and the best of brute
force run in turn, since only times of one round are compared. The parts are a product by
`pipelib.kernels.matmul`, `pipelib.kernels.attention`, and chapter 7's warp-specialized product.

Spaces. `--every N` takes each N-th configuration. That of the product is so large that it is 20 by
default, 1 elsewhere.

Resuming. What is measured is kept in `--cache`, a folder, one file for each part: after an
interruption, or when `--seconds` are over, the same command goes on. How long the search took is
then that of its first run. A record of a part says whether brute force is `complete`.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import noting
from benchmarks.searched import PARTS, Case, case
from pipelib.bench.provenance import PACKAGE, provenance
from pipelib.kernels.hopper import default_device
from pipelib.kernels.matmul import tuned
from pipelib.tuning.calls import Calls
from pipelib.tuning.on_gpu import search_workers
from pipelib.tuning.products import SEED
from pipelib.tuning.record import write_lines
from pipelib.tuning.results import Results
from pipelib.tuning.rows import Row
from pipelib.tuning.searching import INTERRUPTED, search
from pipelib.tuning.spaces import fields
from pipelib.tuning.trials import Outcome
from pipelib_book.measured.searches import table

RESULTS = PACKAGE.parent / "benchmarks" / "results"
CACHE = PACKAGE.parent / ".search-cache"
BUDGET_S, MEASURED = 600.0, 16


# Running.


class Session:
    """One call of this script: its options, and the record that it writes."""

    def __init__(self, options: argparse.Namespace):
        if default_device().platform != "gpu":
            raise SystemExit("benchmarks.search: JAX has no GPU here: there is nothing to time.")
        self.options, facts = options, provenance()
        self.path = options.results / tuned.file_name(default_device().device_kind) / "search.json"
        command = " ".join(["python", "-m", "benchmarks.search", *sys.argv[1:]])
        text = "standard normal, rounded to the dtype"
        self.run = dict(command=command, seed=SEED, distribution=text, provenance=facts)

    def measure(self, part: str) -> dict[str, Any]:
        """Searches a part, then measures all of it; the group is written after each of these."""
        this = case(part)
        every = self.options.every or this.every
        space = this.space[::every]
        searched = functools.partial(
            _search, this.kernel_of, space, *this.args, expected=this.expected,
            jobs=self.options.jobs, cache=self.options.cache / f"{part}.json",
        )  # fmt: skip
        start = time.monotonic()
        found = searched(measure=self.options.measure, seconds=self.options.budget)
        group = dict(part=part, problem=dict(kernel=this.name), run=self.run, every=every)
        group |= dict(space=len(this.space), searched=len(space))
        group["search"] = _kept(found, time.monotonic() - start)
        if (earlier := _same(read(self.path), group)) is not None:
            group["search"]["seconds"] = earlier["search"]["seconds"]
        self._write(group)
        left = max(1.0, self.options.seconds - (time.monotonic() - start))
        everything = searched(measure=len(space), seconds=left)
        group["brute"] = _kept(everything, time.monotonic() - start)
        left_out = sum(trial.outcome is Outcome.PREDICTED for trial in everything.trials)
        group["complete"] = len(everything.trials) == len(space) and not left_out
        group["in_turn"] = self._in_turn(this, found, everything)
        self._write(group)
        noting.note(self.path)
        return group

    def _in_turn(self, this: Case, *found: Results) -> dict[str, Any]:
        """The best of the search and of brute force, measured in turn."""
        best = [each.best.config for each in found if each.best is not None]
        with search_workers(self.options.jobs) as workers:
            calls = Calls(workers, this.kernel_of, this.args, this.expected)
            rows = {row.config: row for row in calls.in_turn(list(dict.fromkeys(best)))}
        return {
            name: dict(config=plain(config), us=_rounded(rows[config]))
            for name, config in zip(("search", "brute"), best)
        }

    def _write(self, group: dict[str, Any]) -> None:
        others = [old for old in read(self.path) if old["part"] != group["part"]]
        write_lines(self.path, "groups", [*others, group])


def _search(*args: Any, **options: Any) -> Results:
    """`search`, whose interruption ends this script."""
    found = search(*args, **options)
    if INTERRUPTED in found.notes:
        raise KeyboardInterrupt
    return found


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The groups of a record; none if there is no record."""
    return json.loads(path.read_text("utf-8"))["groups"] if path.exists() else []


def _same(groups: Sequence[dict[str, Any]], group: dict[str, Any]) -> dict[str, Any] | None:
    """The earlier group whose search found the same; None if there is none."""
    key = lambda group: [group["part"], group["every"], group["search"]["rows"]]
    return next((old for old in groups if key(old) == key(group)), None)


def _kept(found: Results, seconds: float) -> dict[str, Any]:
    """What a search found, with every sample."""
    return dict(
        seconds=round(seconds, 1),
        columns=["config", "outcome", "predicted us", "microseconds", "reason"],
        rows=[
            [
                plain(trial.config), str(trial.outcome), trial.predicted_us,
                [round(us, 3) for us in trial.us], trial.reason,
            ]
            for trial in found.trials
        ],
        finals=[[plain(row.config), _rounded(row)] for row in found.found.finals],
    )  # fmt: skip


def plain(config: Any) -> dict[str, Any]:
    """A configuration's values as JSON has them; others are the defaults of forward kernels."""
    values = fields(config)
    return {name: value for name, value in values.items() if not dataclasses.is_dataclass(value)}


def _rounded(row: Row[Any]) -> list[float]:
    return [round(us, 3) for us in row.us]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs some parts, or prints the records."""
    # This process compiles nothing that is large, and must leave the memory to the workers.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "table"])
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each search")
    parser.add_argument("--measure", type=int, default=MEASURED, help="how many a search measures")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of a part: begin no later")
    parser.add_argument("--every", type=int, help="take each N-th configuration of a space")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE, help="a folder")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.parts == ["table"]:
        for path in sorted(options.results.glob("*/search.json")):
            print(path.parent.name, table(read(path)), sep="\n")
        return
    session = Session(options)
    for part in options.parts:
        print(table([session.measure(part)]), flush=True)


if __name__ == "__main__":
    main()
