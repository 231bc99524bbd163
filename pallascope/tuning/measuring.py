"""`Calls`: measures the kernels of a search, and says what came of each.

The model. A *call* is a kernel, compiled for its arguments (`Measured`). It is checked before it is
timed: its result is compared with what is expected, element by element. It is timed by CUPTI, which
times the kernels, so the host does not count. Each configuration becomes a `Row`: its times and its
error, or the reason why it does not count.

Arguments that have a shape alone are drawn: normal random numbers. Arguments that fit L2 could stay
there from one launch to the next. So one compiled call can take several *sets* of arguments in
rotation, too many for L2 (`rotation`).

What is expected is an array (or a tree of arrays), a function of the arguments, or, if nobody says,
the result of the first of a few configurations that runs. That one may be wrong too: then the
others differ from it, and the search says how many do.

Before a call memory is filled with NaN and freed, since the result may get memory that holds an
earlier result, where the kernel writes nothing.

Not covered: sets of arguments whose values the caller gives, which are all the same.
"""

# What it asks of JAX has no types.
# pyright: basic

import contextlib
import dataclasses
import functools
import itertools
import math
import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallascope.bench.cupti import Kernel, kernel_times
from pallascope.tuning.ranking import verified
from pallascope.tuning.results import Row
from pallascope.tuning.spaces import Config, KernelOf, kernel, label
from pallascope.tuning.workers import Executor, Failed, Run, Task

#: The number of the way of measuring, a part of each result's key in a cache.
MEASURING = 1
#: The seed of the arguments that are drawn.
SEED = 0
#: L2 of an H100 and an H200. Source: their data sheets.
L2_BYTES = 50 << 20
#: A rotation has `L2_TIMES` times the bytes of L2 or more, but at most `MOST_SETS` sets.
L2_TIMES, MOST_SETS = 3, 8
#: The most bytes of results in a burst: JAX's `Cupti` holds all results until the burst ends.
BURST_BYTES = 8 << 30

#: One set of arguments.
Args = tuple[Any, ...]


class Burst(TypedDict):
    """Single calls in turn: the microseconds of each, and the names of the kernels that ran."""

    us: list[float]
    kernels: list[str]


class Tried(TypedDict):
    """What came of a kernel: its error and the most that is right, the microseconds of calls."""

    error: float
    us: list[float]
    most_error: float


class OnGpu[C: Hashable]:
    """Measures configurations by an executor.

    Args:
      executor: `Here()`, or the processes of `Workers`.
      prepare: called with a configuration where its kernel is to run: compiles it, and returns a
        function of a number of launches, which gives a `Tried`. `pickle` sends it to processes.
      samples: launches of each configuration; in turn, five times as many.
    """

    def __init__(
        self, executor: Executor, prepare: Callable[[C], Run[Tried]], samples: int = 10
    ) -> None:
        self._executor, self._prepare, self._samples = executor, prepare, samples

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Rows, in the order in which they are done."""
        tasks = map(self._task, configs)
        for number, result in self._executor.stream(tasks, self._samples):
            yield _row(configs[number], [result])

    def in_turn(self, configs: Sequence[C]) -> list[Row[C]]:
        """Rows of samples that were taken in turn."""
        found: dict[C, list[Tried | Failed]] = {config: [] for config in configs}
        with self._executor.hold(list(map(self._task, configs))) as held:
            for _, (config, run) in itertools.product(range(5), zip(configs, held)):
                try:
                    result = run if isinstance(run, Failed) else run(self._samples)
                except Failed as error:
                    result = error
                found[config].append(result)
        return [_row(config, results) for config, results in found.items()]

    def _task(self, config: C) -> Task[Tried]:
        return functools.partial(self._prepare, config)


class Calls(OnGpu[Config]):
    """Measures configurations of a kernel by calls of one function on the same arguments.

    Args:
      executor: as `OnGpu`'s. `pickle` must be able to send all that follows to processes.
      kernel_of: makes the kernel of a configuration.
      args: its arguments.
      expected: a `Reference`, or what one is made of.
      most_error: the largest error that a right element has; None for what its dtype rounds.
      samples: launches of each configuration; in turn, five times as many.
      sets: how many sets of arguments are in rotation.
      is_checked: whether a kernel is traced and checked first; with a finding it is not run.
    """

    def __init__(
        self,
        executor: Executor,
        kernel_of: KernelOf,
        args: Args,
        expected: object,
        most_error: float | None = None,
        samples: int = 10,
        *,
        sets: int = 1,
        is_checked: bool = False,
    ) -> None:
        reference = expected if isinstance(expected, Reference) else Reference(expected)
        prepare = functools.partial(
            _prepare,
            kernel_of=kernel_of,
            args=args,
            reference=reference,
            most_error=most_error,
            sets=sets,
            is_checked=is_checked,
        )
        super().__init__(executor, prepare, samples)


def _prepare(
    config: Config,
    *,
    kernel_of: KernelOf,
    args: Args,
    reference: "Reference",
    most_error: float | None,
    sets: int,
    is_checked: bool,
) -> Run[Tried]:
    """Compiles a call; returns a function that checks and times it.

    Raises:
      ValueError: the kernel has a finding.
    """
    function = kernel(kernel_of, config)
    if is_checked and not (verdict := verified(function, *args)).ok:
        raise ValueError(f"it has a finding, so it is not run: {verdict}")
    call = Measured(function, args, reference, sets)
    most = call.rounding if most_error is None else most_error

    def run(samples: int) -> Tried:
        return Tried(error=call.check(), us=call.burst(samples)["us"], most_error=most)

    return run


def _row[C: Hashable](config: C, results: Sequence[Tried | Failed]) -> Row[C]:
    """The row of a configuration, from what its runs answered."""
    runs: list[Tried] = []
    for result in results:
        if isinstance(result, Failed):
            return Row(config, reason=str(result))
        runs.append(result)
    us = tuple(us for run in runs for us in run["us"])
    error, most = max(run["error"] for run in runs), runs[0]["most_error"]
    wrong = f"wrong: an element is off by {error:.3g} root mean squares, over {most:.3g}"
    return Row(config, us, error, "" if error <= most else wrong)


class Measured:
    """A call: a kernel, compiled for sets of arguments.

    Args:
      function: the kernel; a subclass that has its own `_compile` may take something else.
      args: its arguments.
      reference: what its result is compared with.
      sets: how many sets of arguments are in rotation.
    """

    def __init__(self, function: Any, args: Args, reference: "Reference", sets: int = 1) -> None:
        self._args, self.sets = args, sets
        self._compiled = self._compile(function)
        self._result = self._result_of(function)
        self._draw, self._compare = drawing(args), reference.comparing(args)

    def _compile(self, function: Any, /) -> Callable[[list[Args]], list[Any]]:
        """A function of all sets of arguments, to their results."""
        one = jax.jit(function)

        def run(sets: list[Args]) -> list[Any]:
            return [one(*args) for args in sets]

        return jax.jit(run).lower([self._args] * self.sets).compile()

    def _result_of(self, function: Any, /) -> Any:
        """The shapes of a result."""
        return jax.eval_shape(function, *self._args)

    @functools.cached_property
    def _sets(self) -> list[Args]:
        """All sets of arguments, on the GPU."""
        return jax.block_until_ready([self._draw(i) for i in range(self.sets)])

    @property
    def rounding(self) -> float:
        """The largest error of a right element by the dtypes of the result."""
        return max((tolerance(x.dtype) for x in _floats(self._result)), default=0.0)

    def check(self) -> float:
        """The largest difference of an element from what is expected, in root mean squares.

        It is infinite if an element of the result is not finite, and should be.
        """
        poison = [jnp.full(x.shape, jnp.nan, x.dtype) for x in _floats(self._result)]
        jax.block_until_ready(poison)
        del poison
        result = jax.block_until_ready(self._compiled(self._sets)[0])
        return self._compare(result, self._sets[0])

    def burst(self, launches: int = 5) -> Burst:
        """Times single calls, one set of arguments after the other.

        Args:
          launches: at least so many calls, if their results have no more than `BURST_BYTES`.

        Returns:
          `us`, the microseconds of each call; `kernels`, the names of the kernels that ran.

        Raises:
          RuntimeError: the calls did not all launch equally many kernels.
        """
        size = max(1, self.sets * _bytes(self._result))
        rounds = max(1, min(math.ceil(launches / self.sets), BURST_BYTES // size))
        runs = self._kernel_times(rounds)
        names = {kernel.name for kernel in runs[0]}
        return Burst(us=_per_call(runs, self.sets), kernels=sorted(names))

    def _kernel_times(self, rounds: int) -> list[list[Kernel]]:
        """The kernels of each of so many launches of all calls."""
        return kernel_times(self._compiled, self._sets, calls=rounds)


def _per_call(runs: Sequence[Sequence[Kernel]], sets: int) -> list[float]:
    """The microseconds of each call. In a run, each set launches equally many kernels."""
    found: list[float] = []
    for run in runs:
        if len(run) % sets:
            raise RuntimeError(f"{len(run)} kernels ran for {sets} calls: whose are they?")
        each = len(run) // sets
        parts = [run[i * each : (i + 1) * each] for i in range(sets)]
        found += [1e3 * sum(ms for _, ms in part) for part in parts]
    return found


# Arguments.


def rotation(args: Args) -> int:
    """How many sets of arguments exceed L2 `L2_TIMES` times: one if a set does, or `MOST_SETS`."""
    return min(MOST_SETS, math.ceil(L2_TIMES * L2_BYTES / max(1, _bytes(args))))


def drawing(args: Args) -> Callable[[int], Args]:
    """A function of a set's number, to the arguments, with numbers for those without values.

    They are normal random numbers, of which each set has others; the function that draws them is
    compiled here.

    Raises:
      ValueError: an argument without values is of integers, which nobody can guess.
    """
    leaves, tree = jax.tree.flatten(args)
    lacking = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.ShapeDtypeStruct)}
    for i, leaf in lacking.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"search: argument {i} is {leaf.dtype}{list(leaf.shape)} without values, and a"
                " kernel may go where integers say, so no random ones are drawn: give the array."
            )
    drawn = _drawing(tuple((i, x.shape, jnp.dtype(x.dtype)) for i, x in lacking.items()))

    def draw(number: int) -> Args:
        values = dict(zip(lacking, drawn(np.int32(number))))
        return jax.tree.unflatten(tree, [values.get(i, leaf) for i, leaf in enumerate(leaves)])

    return draw


@functools.cache
def _drawing(
    lacking: tuple[tuple[int, tuple[int, ...], Any], ...],
) -> Callable[[np.int32], list[jax.Array]]:
    """A compiled function of a set's number, to the arrays of these places, shapes and dtypes."""

    def draw(number: jax.Array) -> list[jax.Array]:
        key = jax.random.key(SEED + number)
        return [
            jax.random.normal(jax.random.fold_in(key, i), shape, jnp.float32).astype(dtype)
            for i, shape, dtype in lacking
        ]

    return jax.jit(draw).lower(jax.ShapeDtypeStruct((), jnp.int32)).compile()


def check_sendable(*things: object) -> None:
    """Raises ValueError if processes could not get what a search is made of."""
    remedy = "define what it is made of in a module, by name, or leave jobs= out"
    try:
        sent = pickle.dumps(things)
    except Exception as error:
        raise ValueError(
            f"search: jobs= needs kernel_of, args and expected that pickle can send to processes,"
            f" and it cannot send these ({error}): {remedy}."
        ) from error
    if b"__main__" in sent:
        raise ValueError(
            "search: jobs= needs kernel_of and expected of a module, and these are of this script"
            f" or notebook, which other processes do not have: {remedy}."
        )


# Results.


@dataclasses.dataclass(frozen=True)
class FirstThatRuns:
    """The kernels of a few configurations as a reference: the result of the first that runs."""

    kernel_of: KernelOf
    configs: tuple[Config, ...]

    def __call__(self, *args: object) -> Any:
        """The result; ValueError if none of them runs."""
        for config in self.configs:
            with contextlib.suppress(Exception):
                return jax.block_until_ready(jax.jit(kernel(self.kernel_of, config))(*args))
        raise ValueError(f"none of {self} runs, so there is no result to compare with")

    def __str__(self) -> str:
        return " or else ".join(map(label, self.configs))


class Reference:
    """What results are compared with; a subclass may compare them in another way.

    Args:
      expected: an array or a tree of arrays, or a function of the arguments.
    """

    def __init__(self, expected: object) -> None:
        self._expected, self._value = expected, None

    def of(self, args: Sequence[object]) -> object:
        """The expected result."""
        if self._value is None:
            function, self._value = self._expected, self._expected
            if callable(function):
                is_ours = isinstance(function, FirstThatRuns)
                self._value = (function if is_ours else jax.jit(function))(*args)
        return self._value

    def comparing(self, args: Args) -> Callable[[object, Args], float]:
        """A function of a result and of its arguments, to the largest error of an element.

        Args:
          args: shapes as those of the arguments, for what can be compiled before there are any.
        """
        del args
        return lambda result, drawn: error_of(result, self.of(drawn))


def tolerance(dtype: DTypeLike, factors: DTypeLike = jnp.bfloat16) -> float:
    """The largest error of a right element, in root mean squares of the result.

    Elements reach 6 root mean squares, and each is rounded to half a unit in the last place. Tensor
    cores truncate sums, which gives errors of at most 1e-3; sums of float8 to some 14 bits, which
    gave 0.067 with a K of 16,384, the most that was seen. A kernel that loses one step of 64 in a K
    of 8192 has an error of 0.3 or more.

    Args:
      dtype: the dtype of the result.
      factors: that of the factors.
    """
    return 0.1 if jnp.dtype(factors).itemsize == 1 else max(2e-3, 6 * float(jnp.finfo(dtype).eps))


def error_of(result: object, expected: object) -> float:
    """The largest difference of an element, in root mean squares of the expected array.

    It is infinite where an element is not finite and should be, and where integers differ.

    Raises:
      ValueError: the results have other shapes than what is expected.
    """
    if _shapes(result) != _shapes(expected):
        raise ValueError(f"it returns shapes {_shapes(result)}, not {_shapes(expected)}")
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(expected))
    return max((float(_error(*pair)) for pair in pairs), default=0.0)


@jax.jit
def _error(result: jax.Array, expected: jax.Array) -> jax.Array:
    result, expected = jnp.asarray(result), jnp.asarray(expected)
    if not jnp.issubdtype(result.dtype, jnp.floating):
        return jnp.where(jnp.all(result == expected), 0.0, jnp.inf)
    result, expected = result.astype(jnp.float32), expected.astype(jnp.float32)
    is_same = (result == expected) | (jnp.isnan(result) & jnp.isnan(expected))
    off = jnp.where(is_same, 0.0, jnp.abs(result - expected))
    off = jnp.where(jnp.isfinite(off), off, jnp.inf)  # a maximum may pass over a NaN
    size = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(expected), expected, 0.0) ** 2))
    most = jnp.max(off, initial=0.0)
    return jnp.where(most == 0.0, 0.0, most / jnp.where(size == 0.0, 1.0, size))


def _shapes(tree: object) -> list[tuple[int, ...]]:
    return [jnp.shape(x) for x in jax.tree.leaves(tree)]


def _floats(shapes: object) -> list[Any]:
    return [x for x in jax.tree.leaves(shapes) if jnp.issubdtype(x.dtype, jnp.floating)]


def _bytes(tree: object) -> int:
    """The bytes of the arrays and shapes of a tree."""
    sized = (x for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))
    return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in sized)
