"""Measures `pipelib.kernels.matmul` beside cuBLAS (XLA's product), JAX's own kernel and DeepGEMM.

    python -m benchmarks.matmul tune      searches for our configurations: tune.json, and the table
    python -m benchmarks.matmul upstream  searches for those of `hopper_matmul_mgpu`
    python -m benchmarks.matmul ladder    every rung, and the slots of rung 1
    python -m benchmarks.matmul shapes    language models' products, configurations by the table
    python -m benchmarks.matmul untuned   sizes drawn by chance (`benchmarks/untuned.py`)
    python -m benchmarks.matmul emitters  pipelib's emitters and JAX's with the same body
    python -m benchmarks.matmul fp8       float8

The model. A *group* is one product and all that are compared on it. Its contenders compile in
processes (`pipelib.tuning.workers`), are checked, and then run in turn: first *bursts* of a few
launches each, round after round in changing order, so that what drifts drifts for all; then each
for two seconds without a pause (*sustained*), with the clock that the driver reports. Under such
load the GPU lowers its clock to keep to its power limit, so that a sustained rate is below a
burst's. A burst begins after a rest, for the same reason: what ran before it would be in its clock.

Operands, checks and clocks: `pipelib.tuning.products`. XLA picks a kernel of cuBLAS by timing
some, for which the GPU is left to it; its own kernels are switched off (`xla_flags` in the record,
which also names the kernels that ran). DeepGEMM runs where a folder of peers is given
(`benchmarks/peers.py`), in a process of its own. Each group in `results/<gpu>/matmul.json` has its
own provenance, its command and every raw sample, and is written when it is done, in place of an
earlier one. `--resume` leaves out groups of the same kernels.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import noting, peers, upstream
from benchmarks.contenders import (
    AGAIN,
    CUBLAS,
    DEEPGEMM,
    PLANS,
    SEARCHED,
    Plan,
    Work,
)
from benchmarks.products_in_torch import prepare
from pipelib.bench import timing
from pipelib.bench.provenance import PACKAGE
from pipelib.kernels.matmul import tuned
from pipelib.tuning import record
from pipelib.tuning.climbing import climb
from pipelib.tuning.matmul import progress, tune_with
from pipelib.tuning.on_gpu import UNTIMED_FLAGS, XLA_FLAGS, OnGpu, ours, search_workers
from pipelib.tuning.products import Problem, tolerance
from pipelib.tuning.record import run_facts, write_lines, write_search
from pipelib.tuning.rows import Found
from pipelib.tuning.workers import Failed, Held, Run, Workers
from pipelib_book.measured import ladder

OTHERS = "others"
RESULTS = PACKAGE.parent / "benchmarks" / "results"
#: A run that brings the GPU to the clock of long use, before the first that counts.
WARM_S = 0.5
#: The first launches of a burst, which do not count.
UNCOUNTED_LAUNCHES = 2
#: No compilation, and no check, takes longer.
COMPILE_S = 60.0
#: What a line of `driver_log` has: MHz, W, degrees C, bits.
DRIVER_LOG = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"


# A group.


class Group[P: Work]:
    """The contenders of one problem, held in processes, and what was found about each.

    Args:
      problem: the product; a subclass with a `prepare` of its own takes other work.
      contenders: by name.
      pools: the processes for those that must have their own, by their names, and for the others.
    """

    #: Makes the task of a contender and a problem.
    prepare: Callable[[Any, Any], Run] = staticmethod(prepare)

    def __init__(self, problem: P, contenders: dict[str, Any], pools: dict[str, Workers]):
        self.problem, self.found = problem, {name: {} for name in contenders}
        self._pools = pools
        task = functools.partial
        self._tasks = {name: task(self.prepare, made, problem) for name, made in contenders.items()}
        self._held: dict[str, Held] = {}

    def measure(self, plan: Plan[Any, Any], sustained_s: float) -> None:
        """All of it; one pool compiles after the other, since XLA times kernels meanwhile."""
        with contextlib.ExitStack() as stack:
            for key, pool in self._pools.items():
                tasks = {name: self._tasks[name] for name in self._names(key)}
                held = stack.enter_context(pool.hold(list(tasks.values())))
                for name, run in zip(tasks, held):
                    self._note(name, "held", run)
            self._check()
            for turn in range(plan.rounds):
                self._burst(turn, plan.launches)
            if sustained_s > 0:
                found = ladder.Group(as_json(self.problem), self.found, {})
                baseline = {CUBLAS: found.baseline}
                names = [baseline.get(name, name) for name in plan.sustained]
                self._sustain([name for name in names if name in self._held], sustained_s)

    @property
    def most_error(self) -> float:
        """The largest error of a right element, in root mean squares."""
        return tolerance(self.problem.out.dtype, self.problem.dtype)

    def _names(self, key: str) -> list[str]:
        """The contenders of a pool."""
        return [name for name in self.found if (name if name in self._pools else OTHERS) == key]

    def _note(self, name: str, what: str, result: Any) -> Any:
        """Keeps a result, or the reason why there is none, and then asks for no other."""
        if isinstance(result, Failed):
            self._held.pop(name, None)
            self.found[name]["reason"] = str(result)
        elif what == "held":
            self._held[name] = result
        else:
            self.found[name][what] = result

    def _check(self) -> None:
        """All at once, since nothing is timed; what is wrong is not timed later either."""
        for key, method in (("largest_error_rms", "check"), ("float64", "float64_error")):
            for pool_key, pool in self._pools.items():
                names = [name for name in self._names(pool_key) if name in self._held]
                results = pool.at_once([self._held[name] for name in names], method)
                for name, result in zip(names, results):
                    self._note(name, key, result)
        most = self.most_error
        for name, found in self.found.items():
            if not found.get("largest_error_rms", 0.0) <= most:
                self._held.pop(name, None)
                found["reason"] = f"wrong by more than {most:.3g} root mean squares"

    def _burst(self, turn: int, launches: int) -> None:
        """One of each, in another order in each turn."""
        for name in random.Random(turn).sample(list(self._held), len(self._held)):
            time.sleep(timing.REST_S)
            result = self._run(name, "burst", UNCOUNTED_LAUNCHES + launches)
            if isinstance(result, Failed):
                self._note(name, "burst", result)
                continue
            earlier = self.found[name].get("burst_microseconds", [])
            self.found[name]["burst_microseconds"] = earlier + rounded(result["us"][-launches:])
            self.found[name]["kernels"] = result["kernels"]

    def _sustain(self, names: Sequence[str], seconds: float) -> None:
        """Each for so long; the GPU is warmed before the first one."""
        if names:
            self._run(names[0], "sustained", min(WARM_S, seconds))
        for name in names:
            with driver_log() as lines:
                result = self._run(name, "sustained", seconds)
            if isinstance(result, Failed):
                self._note(name, "sustained", result)
                continue
            self.found[name] |= {
                "sustained_microseconds": rounded(result["us"]),
                "sustained_products_a_sample": result["products"],
                "driver": lines,
            }

    def _run(self, name: str, *args: Any) -> Any:
        try:
            return self._held[name](*args)
        except Failed as error:
            return error


def rounded(microseconds: Sequence[float]) -> list[float]:
    """To what a clock of nanoseconds can say."""
    return [round(us, 3) for us in microseconds]


@contextlib.contextmanager
def driver_log() -> Iterator[list[str]]:
    """What the driver says of the GPU ten times a second: lines of `DRIVER_LOG`, in the end."""
    command = ["nvidia-smi", f"--query-gpu={DRIVER_LOG}", "--format=csv,noheader,nounits"]
    lines: list[str] = []
    try:
        process = subprocess.Popen([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
    except OSError:  # there is none
        yield lines
        return
    yield lines
    process.terminate()
    lines += process.communicate()[0].splitlines()


# Records.


def read(path: pathlib.Path, name: str = "groups") -> list[dict[str, Any]]:
    """The groups of a record, or the searches; none if there is no record."""
    return json.loads(path.read_text("utf-8"))[name] if path.exists() else []


def write(path: pathlib.Path, group: dict[str, Any]) -> None:
    """Writes a group, in place of an earlier one of the same part and product."""
    key = lambda group: (group["part"], group["problem"])
    write_lines(path, "groups", [*(old for old in read(path) if key(old) != key(group)), group])


def as_json(problem: Work) -> dict[str, Any]:
    """A problem as plain data, with its result's dtype."""
    return problem._asdict() | dict(out_dtype=problem.out.dtype.name)


def is_current(part: str, problem: Problem, folder: pathlib.Path) -> bool:
    """Whether a record has this product, measured with the kernels as they are."""
    file, name = ("tune.json", "searches") if part == "tune" else ("matmul.json", "groups")
    path = folder / file
    has_it = any(
        x["problem"] == as_json(problem) and x.get("part", part) == part for x in read(path, name)
    )
    return has_it and noting.is_current(path, f"{part} {Problem(**as_json(problem))}")


def table(group: dict[str, Any]) -> str:
    """A group for a reader: TFLOP/s, spread, against cuBLAS, sustained with its clock, error."""
    found = ladder.Group(group["problem"], group["contenders"], {})
    lines = [f"{group['part']}: {Problem(**group['problem'])}"]
    for name, contender in found.contenders.items():
        columns = [f"  {name:34}"]
        if rate := found.rate(name):
            columns.append(f"{rate / 1e12:7.1f} +-{found.spread(name):.1%}")
            columns.append(f"{share:.3f}x" if (share := found.share(name)) else "")
        if rate := found.rate(name, "sustained"):
            clock, _ = found.driver(name) or (math.nan, math.nan)
            columns.append(f"sustained {rate / 1e12:.1f} at {clock / 1e6:.0f} MHz")
        if "float64" in contender:
            columns.append(f"error {contender['float64']['relative']:.2e}")
        lines.append(" ".join([*columns, contender.get("reason", "")]))
    return "\n".join(lines)


# Parts.


def chosen(
    part: str,
    every: Sequence[Any],
    options: argparse.Namespace,
    start: float,
    is_done: Callable[[Any], bool],
) -> Iterator[Any]:
    """The problems of a part that `options` ask for, while there is time.

    Args:
      part: its name.
      every: its problems.
      options: `only` (from:to), `resume` (leave out what is done), `seconds` (begin none later).
      start: when the call began, of `time.monotonic`.
      is_done: whether the record has a problem already.
    """
    first, _, last = options.only.partition(":")
    for problem in every[int(first or 0) : int(last) if last else None]:
        if options.resume and is_done(problem):
            continue
        if time.monotonic() - start > options.seconds:
            print(f"{part}: no time left for {problem}; --resume goes on there", flush=True)
            continue
        yield problem


class Session:
    """One call of this script: its options, its processes, where it writes."""

    def __init__(self, options: argparse.Namespace, pools: dict[str, Workers]):
        self.options, self.pools, self.workers = options, pools, pools[OTHERS]
        self.start = time.monotonic()
        gpu = run_facts(self.workers, "")["provenance"]["gpu"]
        if gpu is None:
            raise SystemExit("benchmarks.matmul: JAX has no GPU here, so there is nothing to time.")
        self.folder = options.results / tuned.file_name(gpu)
        self.log = (lambda line: None) if options.quiet else functools.partial(print, flush=True)

    def facts(self, part: str) -> dict[str, Any]:
        """The provenance of a part of this call."""
        command = " ".join(["python", "-m", "benchmarks.matmul", *sys.argv[1:]])
        return run_facts(self.workers, command) | dict(peers=peers.versions())

    def problems(self, part: str) -> Iterator[Problem]:
        """The products of a part that are to be measured now: as chosen, while there is time."""
        every = SEARCHED[part] if part in SEARCHED else PLANS[part].problems
        is_done = lambda problem: is_current(part, problem, self.folder)
        for problem in chosen(part, every, self.options, self.start, is_done):
            began = time.monotonic()
            yield problem
            print(f"{part}: {problem}: {time.monotonic() - began:.1f} s", flush=True)

    def tune(self) -> None:
        """Searches for ours; the table is made anew after each product."""
        path, facts = self.folder / "tune.json", self.facts("tune")
        for problem in self.problems("tune"):
            on_gpu = OnGpu(self.workers, problem, functools.partial(ours, problem))
            found = tune_with(on_gpu, problem, limit=self.options.limit, log=self.log)
            write_search(path, problem, found, facts)
            noting.note(path)
            say(problem, found)
            text = record.table(json.loads(path.read_text("utf-8")))
            (tuned.FOLDER / f"{self.folder.name}.json").write_text(text, "utf-8")

    def upstream(self) -> None:
        """Searches for upstream's."""
        path, facts = self.folder / "matmul.json", self.facts("upstream")
        for problem in self.problems("upstream"):
            found = climb(
                upstream.starts(problem), upstream.neighbours,
                OnGpu(self.workers, problem, upstream.contender, is_checked=False),
                limit=self.options.limit, log=progress(problem, self.log),
            )  # fmt: skip
            say(problem, found)
            if found.best is None:
                continue
            group = {"part": "upstream", "problem": as_json(problem), "run": facts}
            group["best"] = upstream.to_json(found.best.config)
            for name, rows in (("rows", found.rows), ("finals", found.finals)):
                group[name] = [
                    [upstream.to_json(row.config), rounded(row.us), row.error, row.reason]
                    for row in rows
                ]
            write(path, group)

    def compare(self, part: str) -> None:
        """Measures the groups of a part; notes their kernels in the end, since it takes seconds."""
        path, facts, plan = self.folder / "matmul.json", self.facts(part), PLANS[part]
        plan = plan._replace(rounds=self.options.rounds or plan.rounds)
        try:
            self._compare(part, plan, path, facts)
        finally:
            if path.exists():
                noting.note(path)

    def _compare(
        self, part: str, plan: Plan[Any, Any], path: pathlib.Path, facts: dict[str, Any]
    ) -> None:
        """Measures the groups of a part, and writes each."""
        for problem in self.problems(part):
            made = plan.contenders(problem, read(path))
            group = Group(problem, made, self.pools)
            group.measure(plan, self.options.sustained)
            done = {"part": part, "problem": as_json(problem), "run": facts}
            done["xla_flags"] = {CUBLAS: XLA_FLAGS, AGAIN: XLA_FLAGS, OTHERS: UNTIMED_FLAGS}
            done["contenders"] = group.found
            write(path, done)
            print(table(done), flush=True)


def say(problem: Work, found: Found) -> None:
    """Prints what a search came to."""
    if found.best is None:
        print(f"{problem}: none of {len(found.rows)} ran; {found.rows[0].reason}", flush=True)
        return
    rate = problem.flops / found.best.median_us / 1e6
    print(f"{problem}: {rate:.1f} TFLOP/s of {len(found.rows)}: {found.best.config}", flush=True)


def main() -> None:
    """Runs some parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=[*SEARCHED, *PLANS])
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no group later")
    parser.add_argument("--only", default="", help="of each part's products, those from:to")
    parser.add_argument("--resume", action="store_true", help="leave out what the record has")
    parser.add_argument("--sustained", type=float, default=2.0, help="seconds; 0: none")
    parser.add_argument("--rounds", type=int, help="bursts of each contender")
    parser.add_argument("--limit", type=int, default=60, help="configurations of one search")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--quiet", action="store_true", help="no line for each configuration")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        # XLA keeps what it picked for as long as a process lasts.
        env, limit = dict(XLA_FLAGS=XLA_FLAGS), dict(prepare_s=COMPILE_S)
        own = [CUBLAS, AGAIN] + [DEEPGEMM] * peers.has(DEEPGEMM)
        pools = {name: Workers(1, env=env, **limit) for name in own}
        pools[OTHERS] = search_workers(options.jobs)
        for workers in pools.values():
            stack.enter_context(workers)
        session = Session(options, pools)
        runs: dict[str, Callable[[], None]] = dict(tune=session.tune, upstream=session.upstream)
        for part in options.parts:
            runs.get(part, functools.partial(session.compare, part))()


if __name__ == "__main__":
    main()
