"""How contenders are measured in processes of their own, and how configurations are searched.

The model. Contenders compile in processes (`pallascope.tuning.workers`), are checked, and then run
in turn: first *bursts* of a few launches each, round after round in changing order, so that what
drifts drifts for all; then some of them each for seconds without a pause (*sustained*), with the
clock that the driver reports. Under such load the GPU lowers its clock to keep to its power limit,
so that a sustained rate is below a burst's. A burst begins after a rest, for the same reason: what
ran before it would be in its clock.

A contender may have a pool of its own, of the contender's name: XLA keeps what it picked for as
long as a process lasts, and CUPTI serves JAX or PyTorch. All others share the pool `OTHERS`.
"""

import contextlib
import dataclasses
import functools
import itertools
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from benchmarks.records import Group, rounded
from benchmarks.suite import OTHERS, Call, Fields, Part
from pallascope.bench import timing
from pallascope.tuning.results import Found, Row
from pallascope.tuning.spaces import label
from pallascope.tuning.workers import Failed, Held, Run, Workers

#: A run that brings the GPU to the clock of long use, before the first that counts.
WARM_S = 0.5
#: The first launches of a burst, which do not count.
UNCOUNTED_LAUNCHES = 2
#: What a line of `driver_log` has: MHz, W, degrees C, bits.
DRIVER_LOG = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"


@dataclasses.dataclass(frozen=True)
class InProcesses:
    """Contenders that are held in processes, and run in turn.

    Attributes:
      prepare: the task of a contender and a problem: it gives a function of the name of a method
        (`check`, `float64_error`, `burst`, `sustained`) and its arguments.
      most_error: the largest error of a right element of a problem, in root mean squares.
      xla_flags: of each pool, as the record has them.
    """

    prepare: Callable[[Any, Any], Run]
    most_error: Callable[[Any], float]
    xla_flags: Any

    def __call__(
        self, call: Call, part: Part, problem: Any, made: Mapping[str, Any]
    ) -> Iterator[Fields]:
        """What was found of each contender."""
        seconds = getattr(call.options, "sustained", 0.0)
        tasks = {
            name: functools.partial(self.prepare, each, problem) for name, each in made.items()
        }
        found = _Held(tasks, call.pools).measured(part, self.most_error(problem), seconds)
        yield dict(xla_flags=self.xla_flags, contenders=found)


class _Held:
    """The contenders of one problem, held in processes, and what was found about each."""

    def __init__(self, tasks: Mapping[str, Any], pools: Mapping[str, Workers]) -> None:
        self._tasks, self._pools = tasks, pools
        self._found: dict[str, dict[str, Any]] = {name: {} for name in tasks}
        self._held: dict[str, Held] = {}

    def measured(self, part: Part, most_error: float, sustained_s: float) -> dict[str, Any]:
        """Takes all measurements. Pools compile one after the other: XLA times kernels then."""
        with contextlib.ExitStack() as stack:
            for key, pool in self._pools.items():
                names = self._names(key)
                held = stack.enter_context(pool.hold([self._tasks[name] for name in names]))
                for name, run in zip(names, held):
                    self._note(name, "held", run)
            self._check(most_error)
            for turn in range(part.rounds):
                self._burst(turn, part.launches)
            if sustained_s > 0:
                lasting = map(self._fastest, part.sustained)
                self._sustain([name for name in lasting if name in self._held], sustained_s)
        return self._found

    def _names(self, key: str) -> list[str]:
        """The contenders of a pool."""
        return [name for name in self._found if (name if name in self._pools else OTHERS) == key]

    def _fastest(self, kind: str) -> str | None:
        """The fastest contender of a kind, whose name begins so; None if none was timed."""
        us = {
            name: median(found["burst_microseconds"])
            for name, found in self._found.items()
            if name.partition(",")[0] == kind and found.get("burst_microseconds")
        }
        return min(us, key=us.__getitem__, default=None)

    def _note(self, name: str, what: str, result: Any) -> Any:
        """Keeps a result, or the reason why there is none, and then asks for no other."""
        if isinstance(result, Failed):
            self._held.pop(name, None)
            self._found[name]["reason"] = str(result)
        elif what == "held":
            self._held[name] = result
        else:
            self._found[name][what] = result

    def _check(self, most_error: float) -> None:
        """All at once, since nothing is timed; what is wrong is not timed later either."""
        for key, method in (("largest_error_rms", "check"), ("float64", "float64_error")):
            for pool_key, pool in self._pools.items():
                names = [name for name in self._names(pool_key) if name in self._held]
                results = pool.at_once([self._held[name] for name in names], method)
                for name, result in zip(names, results):
                    self._note(name, key, result)
        for name, found in self._found.items():
            if not found.get("largest_error_rms", 0.0) <= most_error:
                self._held.pop(name, None)
                found["reason"] = f"wrong by more than {most_error:.3g} root mean squares"
                if found.get("largest_error_rms") == float("inf"):
                    found["reason"] = "has elements that are not finite"

    def _burst(self, turn: int, launches: int) -> None:
        """One of each, in another order in each turn."""
        for name in random.Random(turn).sample(list(self._held), len(self._held)):
            time.sleep(timing.REST_S)
            result = self._run(name, "burst", UNCOUNTED_LAUNCHES + launches)
            if isinstance(result, Failed):
                self._note(name, "burst", result)
                continue
            earlier = self._found[name].get("burst_microseconds", [])
            self._found[name]["burst_microseconds"] = earlier + rounded(result["us"][-launches:])
            self._found[name]["kernels"] = result["kernels"]

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
            self._found[name] |= {
                "sustained_microseconds": rounded(result["us"]),
                "sustained_products_a_sample": result["products"],
                "driver": lines,
            }

    def _run(self, name: str, *args: Any) -> Any:
        try:
            return self._held[name](*args)
        except Failed as error:
            return error


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


# Searches.


class Work(Protocol):
    """What configurations are searched for: a product, or another kernel's problem."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        ...


def progress(problem: Work, say: Callable[[str], None]) -> Callable[[Row[Any], float], None]:
    """Makes a search's log: a line with the configuration, its rate and the best rate so far."""
    count = itertools.count(1)

    def rate(us: float) -> str:
        return f"{problem.flops / us / 1e6:.1f}"

    def line(row: Row[Any], best: float) -> None:
        said = row.reason or f"{rate(row.median_us)} TFLOP/s (best {rate(best)})"
        say(f"{problem} {next(count)}. {label(row.config)}: {said}")

    return line


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for the configurations of a kernel, and the kernels of those that it found.

    Attributes:
      part: the name of the part.
      search: finds configurations of a problem.
      plain: a configuration as JSON has it.
      config: the configuration of what `plain` made, and of the group that has it.
      made: the contender of a problem and a configuration; None if it is not ours.
      fields: what a group has besides.
    """

    part: str
    search: Callable[[Call, Any], Found[Any]]
    plain: Callable[[Any], Any]
    config: Callable[[Any, Group], Any]
    made: Callable[[Any, Any], Any] | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def contenders(self, problem: Any, groups: Sequence[Group]) -> dict[str, Any]:
        """The configurations that ran in turn at the end of the record's search for a problem."""
        if self.made is None:
            return {}
        here = [g for g in groups if g["part"] == self.part and _is_of(problem, g)]
        configs = [self.config(row[0], group) for group in here for row in group["finals"]]
        return {label(each): self.made(problem, each) for each in configs}

    def __call__(
        self, call: Call, part: Part, problem: Any, made: Mapping[str, Any]
    ) -> Iterator[Fields]:
        """All rows; nothing of a search in which no configuration ran."""
        found = self.search(call, problem)
        if found.best is None:
            call.say(f"{problem}: none of {len(found.rows)} ran; {found.rows[0].reason}")
            return
        rate = problem.flops / found.best.median_us / 1e6
        best = label(found.best.config)
        call.say(f"{problem}: {rate:.1f} TFLOP/s of {len(found.rows)}: {best}")
        yield dict(
            self.fields,
            best=self.plain(found.best.config),
            columns=["config", "microseconds", "largest error / rms", "reason"],
            rows=list(map(self._row, found.rows)),
            finals=list(map(self._row, found.finals)),
            contenders={label(row.config): {} for row in found.finals if self.made},
        )

    def _row(self, row: Row[Any]) -> list[Any]:
        return [self.plain(row.config), rounded(row.us), row.error, row.reason]


def _is_of(problem: Any, group: Group) -> bool:
    """Whether a group is of a problem."""
    kind = type(problem)
    return kind(**{k: v for k, v in group["problem"].items() if k in kind._fields}) == problem
