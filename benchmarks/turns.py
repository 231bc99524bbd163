"""`Bench`: functions of the same arrays, timed in turns, each beside its error; a record of groups.

The model. A *problem* is a named tuple of plain data. A *contender* is a function of its arrays.
What is wrong by more than a tolerance, or raises, is not timed: the record has the reason. Samples
are the kernels' own times by CUPTI, added up for a launch: those that XLA makes around a kernel,
too. A script may take them in its own way.

Each group in `results/<gpu>/<part>.json` has its own provenance, its command and every raw sample,
and is written when it is done, in place of an earlier one.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from benchmarks import noting
from benchmarks.matmul import RESULTS, read, rounded, write
from pipelib.bench import timing
from pipelib.bench.provenance import provenance
from pipelib.kernels.matmul import tuned

SEED = 0
#: Kernels one by one, not as graphs, so that each is timed.
XLA_FLAGS = "--xla_gpu_enable_command_buffer="
ROUNDS, LAUNCHES = 10, 5

Contender = Callable[..., Any]
Arrays = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Bench:
    """What a script measures.

    Attributes:
      part: the record's name, and the script's.
      problem: the type of a problem.
      problems: all of them.
      contenders: by name, of a problem.
      operands: the arrays of a problem, which each contender takes.
      error: the relative error of a contender's result; None of one that has no result.
      row: what a reader is told of a contender, by its time and the times of all.
      tolerance: of a relative error; a result that is wrong has a larger one.
      distribution: of the operands, in words.
      times: takes the samples, as `timing.measure` does; None: that.
    """

    part: str
    problem: Callable[..., Any]
    problems: Sequence[Any]
    contenders: Callable[[Any], Mapping[str, Contender]]
    operands: Callable[[Any], Arrays]
    error: Callable[[Any, Arrays, str, Contender], float | None]
    row: Callable[[Any, timing.Samples, Mapping[str, timing.Samples]], Iterable[str]]
    tolerance: float
    distribution: str
    times: Callable[..., dict[str, timing.Samples]] | None = None

    def measure(self, problem: Any, rounds: int, launches: int) -> dict[str, dict[str, Any]]:
        """What the record has of each contender: times and error, or why there are none."""
        args, running = self.operands(problem), dict[str, Contender]()
        found: dict[str, dict[str, Any]] = {}
        for name, contender in self.contenders(problem).items():
            try:
                error = self.error(problem, args, name, contender)
            except Exception as refused:  # of whatever kind others' kernels refuse by
                found[name] = dict(reason=str(refused).partition("\n")[0])
                continue
            own: dict[str, Any] = {} if error is None else dict(relative_error=error)
            found[name] = own
            if error is None or error <= self.tolerance:
                running[name] = contender
            else:
                own["reason"] = f"wrong by more than {self.tolerance}"
        timed = (self.times or timing.measure)(running, args, rounds=rounds, burst=launches)
        for name, samples in timed.items():
            found[name]["burst_microseconds"] = rounded(samples.microseconds)
        return found

    def table(self, group: dict[str, Any]) -> str:
        """A group for a reader, the fastest first."""
        problem, found = self.problem(**group["problem"]), group["contenders"]
        times = {
            name: timing.Samples(tuple(each["burst_microseconds"]))
            for name, each in found.items() if "burst_microseconds" in each
        }  # fmt: skip
        lines = [str(problem)]
        for name in sorted(found, key=lambda name: times[name].median_us if name in times else 1e9):
            columns = [f"  {name:34}"]
            if name in times:
                own = times[name]
                columns += [f"{own.median_us:9.1f} us", *self.row(problem, own, times)]
            if "relative_error" in found[name]:
                columns.append(f"error {found[name]['relative_error']:.1e}")
            lines.append(" ".join([*columns, found[name].get("reason", "")[:100]]).rstrip())
        return "\n".join(lines)

    def main(self, about: str) -> None:
        """Measures, or prints a record; `about` is the script's docstring."""
        parser = argparse.ArgumentParser(description=about.partition("\n")[0])
        parser.add_argument("command", choices=["measure", "table"])
        parser.add_argument("--rounds", type=int, default=ROUNDS, help="bursts of each contender")
        parser.add_argument("--launches", type=int, default=LAUNCHES, help="launches of a burst")
        parser.add_argument("--only", default=":", help="the problems from:to")
        parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
        options = parser.parse_args()
        if options.command == "table":
            for path in sorted(options.results.glob(f"*/{self.part}.json")):
                print(path.parent.name, *map(self.table, read(path)), sep="\n")
            return
        os.environ["XLA_FLAGS"] = XLA_FLAGS  # JAX reads it when it first looks for a GPU
        facts = provenance()
        if facts["gpu"] is None:
            raise SystemExit(
                f"benchmarks.{self.part}: JAX has no GPU here: there is nothing to time."
            )
        command = " ".join(["python", "-m", f"benchmarks.{self.part}", *sys.argv[1:]])
        run = dict(command=command, seed=SEED, distribution=self.distribution, provenance=facts)
        path = options.results / tuned.file_name(facts["gpu"]) / f"{self.part}.json"
        first, _, end = options.only.partition(":")
        for problem in self.problems[int(first or 0) : int(end) if end else None]:
            group: dict[str, Any] = dict(part=self.part, problem=problem._asdict(), run=run)
            group["xla_flags"] = XLA_FLAGS
            group["contenders"] = self.measure(problem, options.rounds, options.launches)
            write(path, group)
            print(self.table(group), flush=True)
        noting.note(path)
