"""`Calls`: measures the kernels of a search, each as a call of one function on the same arguments.

The model. A *call* is a kernel, compiled for its arguments. It is checked before it is timed: its
result is compared with what is expected, element by element. It is timed by CUPTI, which times the
kernels, so the host does not count. Arguments that have a shape alone are drawn: normal random
numbers.

What is expected is an array (or a tree of arrays), a function of the arguments, or, if nobody says,
the result of the first of a few configurations that runs. That one may be wrong too: then the
others differ from it, and the search says how many do.

Before a call memory is filled with NaN and freed, since the result may get memory that holds an
earlier result, where the kernel writes nothing.

Not covered: caches. Arguments that fit the 50 MB L2 are there from one launch to the next.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import contextlib
import dataclasses
import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallascope.bench.cupti import kernel_times
from pallascope.tuning.on_gpu import Executor, OnGpu
from pallascope.tuning.products import SEED, tolerance
from pallascope.tuning.spaces import KernelOf, kernel, label
from pallascope.tuning.workers import Task

#: The number of the way of measuring, a part of each result's key in a cache.
MEASURING = 1


@dataclasses.dataclass(frozen=True)
class FirstThatRuns:
    """The kernels of a few configurations as a reference: the result of the first that runs."""

    kernel_of: KernelOf
    configs: tuple[Any, ...]

    def __call__(self, *args: Any) -> Any:
        """The result; ValueError if none of them runs."""
        for config in self.configs:
            with contextlib.suppress(Exception):
                return jax.block_until_ready(jax.jit(kernel(self.kernel_of, config))(*args))
        raise ValueError(f"none of {self} runs, so there is no result to compare with")

    def __str__(self) -> str:
        return " or else ".join(map(label, self.configs))


class Reference:
    """What results are compared with.

    Args:
      expected: an array or a tree of arrays, or a function of the arguments.
    """

    def __init__(self, expected: Any) -> None:
        self._expected, self._value = expected, None

    def of(self, args: Sequence[Any]) -> Any:
        """The expected result."""
        if self._value is None:
            function, self._value = self._expected, self._expected
            if callable(function):
                is_ours = isinstance(function, FirstThatRuns)
                self._value = (function if is_ours else jax.jit(function))(*args)
        return self._value


class Calls(OnGpu[Any, Any]):
    """Measures configurations of a kernel.

    Args:
      executor: `Here()`, or the processes of `Workers`, to which `pickle` must be able to send
        `kernel_of`, the arguments and what is expected.
      kernel_of: makes the kernel of a configuration.
      args: its arguments.
      expected: as in `Reference`.
      most_error: the largest error that a right element has; None for what its dtype rounds.
      samples: launches of each configuration; in turn, five times as many.
    """

    def __init__(
        self,
        executor: Executor,
        kernel_of: KernelOf,
        args: tuple[Any, ...],
        expected: Any,
        most_error: float | None = None,
        samples: int = 10,
    ) -> None:
        super().__init__(executor, None, functools.partial(kernel, kernel_of), samples)
        self._args, self._most = args, most_error
        self._reference = Reference(expected)

    def _task(self, config: Any) -> Task:
        return functools.partial(_prepare, self._contender, config, self._args, self._reference)

    def _most_error(self, runs: Sequence[dict[str, Any]]) -> float:
        return runs[0]["rounding"] if self._most is None else self._most


def _prepare(
    made: Callable[[Any], Any], config: Any, args: tuple[Any, ...], reference: Reference
) -> Callable[[int], dict[str, Any]]:
    """Compiles a call; returns a function that checks and times it."""
    drawn = draw(args)
    compiled = jax.jit(made(config)).lower(*drawn).compile()
    shapes = jax.eval_shape(made(config), *drawn)

    def run(samples: int) -> dict[str, Any]:
        poison = [jnp.full(x.shape, jnp.nan, x.dtype) for x in _floats(shapes)]
        del poison
        result = jax.block_until_ready(compiled(*drawn))
        off = error_of(result, reference.of(drawn))
        calls = kernel_times(compiled, *drawn, calls=samples)
        us = [1e3 * sum(kernel.ms for kernel in call) for call in calls]
        rounding = max((tolerance(x.dtype) for x in _floats(shapes)), default=0.0)
        return dict(error=off, us=us, rounding=rounding)

    return run


def check_sendable(*things: Any) -> None:
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


def draw(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with normal random numbers for those that have a shape alone.

    Raises:
      ValueError: one of these is of integers, which nobody can guess.
    """
    leaves, tree = jax.tree.flatten(args)
    return jax.tree.unflatten(tree, [_drawn(i, leaf) for i, leaf in enumerate(leaves)])


def _drawn(number: int, leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f"search: argument {number} is {leaf.dtype}{list(leaf.shape)} without values, and a"
            " kernel may go where integers say, so no random ones are drawn: give the array."
        )
    key = jax.random.fold_in(jax.random.key(SEED), number)
    return jax.random.normal(key, leaf.shape, jnp.float32).astype(leaf.dtype)


def error_of(result: Any, expected: Any) -> float:
    """The largest difference of an element, in root mean squares of the expected array.

    It is infinite where an element is not finite and should be, and where integers differ.

    Raises:
      ValueError: the results have other shapes than what is expected.
    """
    if _shapes(result) != _shapes(expected):
        raise ValueError(f"it returns shapes {_shapes(result)}, not {_shapes(expected)}")
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(expected))
    return max((float(_error(*pair)) for pair in pairs), default=0.0)


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [jnp.shape(x) for x in jax.tree.leaves(tree)]


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


def _floats(shapes: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(shapes) if jnp.issubdtype(x.dtype, jnp.floating)]
