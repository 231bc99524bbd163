"""`Suite`: what is measured for one record, how, and of which kernels; and one `main` for all.

The model. The record `NAME.json` is of the suite `SUITE` in `benchmarks/NAME.py`, and
`python -m benchmarks.NAME` measures it. A suite has *parts*. A part has *problems*, named tuples of
plain data, and for each of them *contenders* by name. How samples are taken is the part's
`measure`: `turns` takes them in this process, `processes` in others. Each group is written as soon
as something of it was measured (`records`).

A part also says what JAX traces for a contender, so that `compiled` can tell whether a record is of
the kernels as they are.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks import noting, peers, records
from benchmarks.records import Group
from pallascope.bench import timing
from pallascope.bench.provenance import provenance
from pallascope.tuning.workers import Failed, Workers

#: Kernels one by one, not as graphs, so that each is timed.
XLA_FLAGS = "--xla_gpu_enable_command_buffer="
#: The processes for all contenders that need none of their own.
OTHERS = "others"
SEED = 0

#: A function and what it is called with; None of a kernel that nothing here changes.
type Traced = tuple[Callable[..., Any], Sequence[Any]] | None
#: What a group has besides its part, problem and run; "contenders" by their names.
type Fields = dict[str, Any]


class Whole(NamedTuple):
    """The problem of contenders that need none."""

    def __str__(self) -> str:
        return ""


def provenance_of(workers: Workers) -> dict[str, Any]:
    """The provenance of a run, by one of its processes, because that has the GPU.

    Raises:
      Failed: the process gave no answer.
    """
    (_, found), *_ = workers.stream([_prepare_provenance])
    if isinstance(found, Failed):
        raise found
    return found


def _prepare_provenance() -> Callable[[], dict[str, Any]]:
    """A task for `Workers`."""
    return provenance


class Measurement(NamedTuple):
    """One thing that was measured: its name, what the record says of it, how to trace it."""

    name: str
    kept: dict[str, Any]
    function: Callable[..., Any]
    args: Sequence[Any]


def label(part: str, problem: Any, name: str = "") -> str:
    """What a measurement is called: its part and problem, if there is one, and its name."""
    words = f"{part} {problem}" if str(problem) else ""
    return ", ".join(filter(None, (words, name)))


def kinds(names: Iterable[str], args: Callable[[Any], Sequence[Any]]) -> Callable[..., Traced]:
    """A `Part.traced` of all contenders but those of these kinds, with a problem's arguments.

    A contender's kind is its name up to a comma.
    """
    others = frozenset(names)

    def traced(problem: Any, name: str, contender: Any) -> Traced:
        return None if name.partition(",")[0] in others else (contender, args(problem))

    return traced


class Measured(NamedTuple):
    """A contender that was timed: its problem, its times, and the times of all contenders."""

    problem: Any
    own: timing.Samples
    times: Mapping[str, timing.Samples]


#: A column of a table: what is said of a contender, or None.
type Column = Callable[[Measured], str | None]


def tflops(found: Measured) -> str:
    """The rate of a problem that says how many operations it is."""
    return f"{found.problem.flops / found.own.median_us / 1e6:7.1f} TFLOP/s"


def tb_per_second(found: Measured) -> str | None:
    """The rate of a problem that says how many bytes it moves."""
    moved = getattr(found.problem, "bytes", None)
    return moved and f"{moved / found.own.median_us / 1e6:6.2f} TB/s"


def beside(words: str, *others: str) -> Column:
    """A column of the speed beside the fastest of some kinds, as these words format it."""

    def column(found: Measured) -> str | None:
        kinds = ((name.partition(",")[0], each.median_us) for name, each in found.times.items())
        theirs = [us for kind, us in kinds if kind in others]
        return words.format(min(theirs) / found.own.median_us) if theirs else None

    return column


@dataclasses.dataclass(frozen=True)
class Part:
    """Problems of one kind, their contenders, and how these are measured.

    Attributes:
      contenders: by name, of a problem and the groups that the record has.
      measure: takes samples. It is called with the `Call`, the part, the problem and the
        contenders, and yields fields of the group, as often as something is worth keeping.
      traced: what JAX traces, by problem, name and contender.
      problems: all that are measured.
      problem: makes a problem of its fields.
      plain: makes fields of a problem.
      rounds, launches: bursts of each contender, and launches of a burst.
      sustained: who runs for seconds, too.
      apart: whether contenders are measured one by one. `--resume` then adds those that lack.
    """

    contenders: Callable[[Any, Sequence[Group]], Mapping[str, Any]]
    measure: Callable[["Call", "Part", Any, Mapping[str, Any]], Iterable[Fields]]
    traced: Callable[[Any, str, Any], Traced] = lambda problem, name, contender: (contender, ())
    problems: Sequence[Any] = (Whole(),)
    problem: Callable[..., Any] = Whole
    plain: Callable[[Any], dict[str, Any]] = lambda problem: problem._asdict()
    rounds: int = 10
    launches: int = 5
    sustained: tuple[str, ...] = ()
    apart: bool = False

    def of_group(self, group: Group) -> Any:
        """The problem of a group."""
        known = getattr(self.problem, "_fields", ())
        return self.problem(**{k: v for k, v in group.get("problem", {}).items() if k in known})

    def recorded(
        self, group: Group, groups: Sequence[Group]
    ) -> Iterator[tuple[str, dict[str, Any], Any]]:
        """The contenders of a group that ran: name, what the record has, the contender itself."""
        made = self.contenders(self.of_group(group), groups)
        for name, kept in group["contenders"].items():
            if "reason" not in kept:
                yield name, kept, made.get(name)


@dataclasses.dataclass(frozen=True)
class Suite:
    """What is measured for a record.

    Attributes:
      name: of the module.
      record: its record's, if it has another one.
      parts: by name.
      columns: what a reader is told of a contender, besides its time.
      shown: what a reader is told of a group, in place of a line for each contender.
      facts: of a run: settings, the operands' distribution.
      options: of the script, beside those that all scripts have: what `add_argument` takes.
      commands: of the script, beside its parts: functions of the words that follow.
      processes: begins the processes that measure; None: this one does.
      shares: whether other processes need the GPU's memory.
      xla_flags: of this process.
      done: called when a group is written.
    """

    name: str
    parts: Mapping[str, Part]
    columns: Sequence[Column] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    commands: Mapping[str, Callable[..., None]] = dataclasses.field(default_factory=dict)
    processes: Callable[[argparse.Namespace], Mapping[str, Workers]] | None = None
    shown: Callable[[Group], str] | None = None
    shares: bool = False
    xla_flags: str = ""
    record: str = ""
    done: Callable[[pathlib.Path], None] = lambda path: None

    @property
    def file(self) -> str:
        """The name of the record's file."""
        return f"{self.record or self.name}.json"

    def measurements(self, groups: Sequence[Group]) -> Iterator[Measurement]:
        """All of a record that is of kernels here."""
        for group in groups:
            part = self.parts[group.get("part", self.name)]
            problem = part.of_group(group)
            for name, kept, contender in part.recorded(group, groups):
                if traced := part.traced(problem, name, contender):
                    words = label(group.get("part", self.name), problem, name)
                    yield Measurement(words, kept, *traced)

    def table(self, group: Group) -> str:
        """A group for a reader, the fastest first."""
        kept, problem = group["contenders"], self.parts[group["part"]].of_group(group)
        if self.shown:
            return f"{label(group['part'], problem)}\n{self.shown(group)}"
        times = {
            name: timing.Samples(tuple(each["burst_microseconds"]))
            for name, each in kept.items()
            if "burst_microseconds" in each
        }
        lines = [label(group["part"], problem)]
        for name in sorted(kept, key=lambda name: times[name].median_us if name in times else 1e9):
            columns = [f"  {name:34}"]
            if own := times.get(name):
                spread = own.spread_us / 2 if len(own.microseconds) > 1 else 0.0
                columns.append(f"{own.median_us:9.1f} us +-{spread / own.median_us:.1%}")
                found = Measured(problem, own, times)
                columns += filter(None, (column(found) for column in self.columns))
            columns += _more(kept[name])
            lines.append(" ".join(columns).rstrip())
        return "\n".join(lines)

    def main(self, words: Sequence[str] | None = None) -> None:
        """Runs a command, or measures some parts."""
        words = sys.argv[1:] if words is None else words
        commands = {"table": self._print, **self.commands}
        if words and words[0] in commands:
            return commands[words[0]](*words[1:])
        options = self._parser().parse_args(words)
        if self.processes or self.shares:
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if self.xla_flags:  # JAX reads them when it first looks for a GPU
            os.environ["XLA_FLAGS"] = self.xla_flags
        with contextlib.ExitStack() as stack:
            pools = self.processes(options) if self.processes else {}
            for pool in pools.values():
                stack.enter_context(pool)
            call = Call(self, options, pools)
            for part in options.parts or self.parts:
                call.measure(part)

    def _parser(self) -> argparse.ArgumentParser:
        about = (sys.modules[f"benchmarks.{self.name}"].__doc__ or "").partition("\n")[0]
        parser = argparse.ArgumentParser(prog=f"benchmarks.{self.name}", description=about)
        say = parser.add_argument
        say("parts", nargs="*", help=f"of {', '.join(self.parts)}; all if none is named")
        say("--only", default="", help="of each part's problems, those from:to")
        say("--seconds", type=float, default=math.inf, help="begin nothing later")
        say("--resume", action="store_true", help="leave out what the record has of these kernels")
        say("--rounds", type=int, help="bursts of each contender")
        say("--launches", type=int, help="launches of a burst")
        say("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
        say("--results", type=pathlib.Path, default=records.RESULTS)
        for name, given in self.options.items():
            say(name, **given)
        return parser

    def _print(self, *results: str) -> None:
        """Prints the records in a folder of results, by default those of the repository."""
        for path in sorted(pathlib.Path(*results or [records.RESULTS]).glob(f"*/{self.file}")):
            print(path.parent.name, *map(self.table, records.read(path)), sep="\n")


def _more(kept: Mapping[str, Any]) -> Iterator[str]:
    """What a contender has besides bursts: its sustained time and clock, its error, its reason."""
    if us := kept.get("sustained_microseconds"):
        late = timing.Samples(tuple(us[len(us) // 2 :]))
        clocks = [float(line.split(",")[0]) for line in kept.get("driver", ())]
        at = f" at {median(clocks[len(clocks) // 2 :]):.0f} MHz" if clocks else ""
        yield f"sustained {late.median_us:.1f} us{at}"
    error = kept.get("relative_error", kept.get("float64", {}).get("relative"))
    if error is not None:
        yield f"error {error:.1e}"
    yield kept.get("reason", "")[:120]


class Call:
    """One call of a suite's script: its options, its processes, its run, where it writes.

    Attributes:
      run: what each group says of its run: command, provenance, settings.
      path: the record.
    """

    def __init__(
        self, suite: Suite, options: argparse.Namespace, pools: Mapping[str, Workers]
    ) -> None:
        self.suite, self.options, self.pools = suite, options, pools
        self._start = time.monotonic()
        if unknown := {*options.parts} - suite.parts.keys():
            raise SystemExit(f"benchmarks.{suite.name} has no part {', '.join(unknown)}.")
        words = ["python", "-m", f"benchmarks.{suite.name}", *sys.argv[1:]]
        facts = provenance_of(pools[OTHERS]) if pools else provenance()
        if facts["gpu"] is None:
            raise SystemExit(
                f"benchmarks.{suite.name}: JAX has no GPU here: there is nothing to time."
            )
        command = re.sub(r" --results[ =]\S+", "", " ".join(words))  # a path of this machine
        self.run: dict[str, Any] = dict(command=command, **suite.facts, provenance=facts)
        if built := peers.versions():
            self.run["peers"] = built
        self.path = options.results / records.folder(facts["gpu"]) / suite.file

    def say(self, line: str) -> None:
        """Prints a line, with the seconds since the call began."""
        print(f"{time.monotonic() - self._start:7.1f} s  {line}", flush=True)

    def in_time(self) -> bool:
        """Whether something new may begin."""
        return time.monotonic() - self._start <= self.options.seconds

    def measure(self, name: str) -> None:
        """Measures a part; in the end the new measurements get their digests."""
        part = self.suite.parts[name]
        changed = {key: getattr(self.options, key) for key in ("rounds", "launches")}
        part = dataclasses.replace(part, **{key: n for key, n in changed.items() if n})
        try:
            for problem in self.problems(name, part):
                self._measure(name, part, problem)
        finally:
            if self.path.exists():
                noting.note(self.path)
                self.suite.done(self.path)

    def problems(self, name: str, part: Part) -> Iterator[Any]:
        """The problems of a part that are to be measured now: as chosen, while there is time."""
        first, _, last = self.options.only.partition(":")
        for problem in part.problems[int(first or 0) : int(last) if last else None]:
            if self.options.resume and not part.apart and self._is_current(name, part, problem):
                continue
            if not self.in_time():
                print(f"{name}: no time left for {problem}; --resume goes on there", flush=True)
                continue
            yield problem

    def _earlier(self, name: str, part: Part, problem: Any) -> Group | None:
        """The record's group of a problem; None if it has none."""
        key = name, part.plain(problem)
        groups = records.read(self.path)
        return next((each for each in groups if (each["part"], each["problem"]) == key), None)

    def _is_current(self, name: str, part: Part, problem: Any) -> bool:
        """Whether the record has this problem, measured with the kernels as they are."""
        has_it = self._earlier(name, part, problem) is not None
        return has_it and noting.is_current(self.path, label(name, problem))

    def _measure(self, name: str, part: Part, problem: Any) -> None:
        group: Group = dict(part=name, problem=part.plain(problem), run=self.run, contenders={})
        made = part.contenders(problem, records.read(self.path))
        if part.apart and self.options.resume:
            group = self._earlier(name, part, problem) or group
            is_current = functools.partial(noting.is_current, self.path)
            has = {n for n in group["contenders"] if is_current(label(name, problem, n))}
            made = {n: each for n, each in made.items() if n not in has}
            if has and made:
                more = dict(run=self.run, contenders=[*made])
                group["added"] = [*group.get("added", ()), more]
        for fields in part.measure(self, part, problem, made):
            group |= fields | dict(contenders=group["contenders"] | fields.get("contenders", {}))
            records.put(self.path, group)
        if not part.apart:
            print(self.suite.table(group), flush=True)


def of_record(path: pathlib.Path) -> Suite | None:
    """The suite of a record, by its name; None if there is none.

    A record of one version of JAX has the version in its name: "hazards-jax-0.11.2.json".
    """
    name = f"benchmarks.{path.stem.partition('-jax-')[0]}"
    if importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), "SUITE", None)


def main(name: str) -> None:
    """Runs a suite's script.

    The module is imported by its own name, by which other processes can find its functions too.
    """
    importlib.import_module(f"benchmarks.{name}").SUITE.main()
