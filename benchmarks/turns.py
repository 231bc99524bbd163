"""How contenders are measured in this process: in turns of the same arrays, or one by one.

The model. `InTurns` first checks each contender. What is wrong by more than a tolerance, or raises,
is not timed: the record has the reason. Samples are the kernels' own times by CUPTI, added up for a
launch: those that XLA makes around a kernel, too. A suite may take them in its own way.

`OneByOne` is for contenders that are not compared with each other, as probes. All are compiled
first, so that no core compiles while something is measured.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from benchmarks.records import rounded
from benchmarks.suite import SEED, XLA_FLAGS, Call, Column, Fields, Part, Suite, Traced, kinds
from pallascope.bench import timing

Contender = Callable[..., Any]
Arrays = tuple[jax.Array, ...]


@functools.partial(jax.jit, static_argnums=0)
def normal(like: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    """Normal random numbers of a shape and dtype."""
    return jax.random.normal(key, like.shape, like.dtype)


def float64(x: jax.Array) -> np.ndarray:
    """An array on the host, in float64."""
    return np.asarray(x).astype(np.float64)


def off(found: np.ndarray, exact: np.ndarray) -> float:
    """The relative error, by norms."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@dataclasses.dataclass(frozen=True)
class InTurns:
    """Functions of the same arrays, timed in turns, each beside its error.

    Attributes:
      operands: the arrays of a problem, which each contender takes.
      error: the relative error of a contender's result; None of one that has no result.
      tolerance: of a relative error; a result that is wrong has a larger one.
      times: takes the samples, as `timing.measure` does; None: that.
    """

    operands: Callable[[Any], Arrays]
    error: Callable[[Any, Arrays, str, Contender], float | None]
    tolerance: float
    times: Callable[..., dict[str, timing.Samples]] | None = None

    def __call__(
        self, call: Call | None, part: Part, problem: Any, made: Mapping[str, Contender]
    ) -> Iterator[Fields]:
        """What the record has of each contender: times and error, or why there are none."""
        del call
        args, running = self.operands(problem), dict[str, Contender]()
        found: dict[str, dict[str, Any]] = {}
        for name, contender in made.items():
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
        take = self.times or timing.measure
        timed = take(running, args, rounds=part.rounds, burst=part.launches)
        for name, samples in timed.items():
            found[name]["burst_microseconds"] = rounded(samples.microseconds)
        yield dict(xla_flags=XLA_FLAGS, contenders=found)


def suite_in_turns(
    name: str,
    problems: Sequence[Any],
    contenders: Callable[[Any], Mapping[str, Contender]],
    measure: InTurns,
    columns: Sequence[Column],
    others: Iterable[str] = (),
    distribution: str = "standard normal",
) -> Suite:
    """The suite of one part, of its name, whose contenders take the arrays that a problem's `args`
    describe.

    Args:
      others: the kinds of contenders that are not ours.
    """
    part = Part(
        lambda problem, groups: contenders(problem),
        measure,
        kinds(others, lambda problem: problem.args),
        problems,
        type(problems[0]),
    )
    facts = dict(seed=SEED, distribution=distribution)
    return Suite(name, {name: part}, columns, facts, xla_flags=XLA_FLAGS)


def suite_one_by_one(
    name: str,
    contenders: Callable[[], Mapping[str, Any]],
    measure: "OneByOne",
    traced: Callable[[Any], Traced],
    **fields: Any,
) -> Suite:
    """The suite of one part, of its name, without a problem; `fields` are others of the suite."""
    part = Part(
        lambda problem, groups: contenders(),
        measure,
        lambda problem, each, contender: traced(contender),
        apart=True,
    )
    return Suite(name, {name: part}, **fields)


@dataclasses.dataclass(frozen=True)
class OneByOne:
    """Contenders that are measured one after the other.

    Attributes:
      prepare: compiles a contender.
      measure: what the record has of a contender, by it and what it was compiled to.
      words: what is said of a measurement when it is done.
    """

    prepare: Callable[[Any], Any]
    measure: Callable[[Any, Any], dict[str, Any]]
    words: Callable[[dict[str, Any]], str]

    def __call__(
        self, call: Call, part: Part, problem: Any, made: Mapping[str, Any]
    ) -> Iterator[Fields]:
        """Each as soon as it is measured."""
        del part, problem
        with ThreadPoolExecutor() as pool:
            compiled = list(pool.map(self.prepare, made.values()))
        for (name, contender), run in zip(made.items(), compiled):
            if call.in_time():
                found = self.measure(contender, run)
                call.say(f"{name}: {self.words(found)}")
                yield dict(contenders={name: found})
