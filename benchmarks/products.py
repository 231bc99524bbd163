"""A matrix product: who makes it, its search, its errors and its times.

The model. A `Problem` is a product. A *contender* is a function of `(a, b)` that makes one.
`Measured` compiles a contender, and then measures it in four ways:

===============  ===================================================================================
`check`          compares its result with XLA's, element by element
`float64_error`  compares some rows with a product in float64
`burst`          times a few launches. CUPTI times the kernels, so the host does not count
`sustained`      times a run of seconds by the host's clock. The GPU's queue is never empty, so the
                 GPU lowers its clock, as it does in long use
===============  ===================================================================================

The first and the third are those of a search (`pallascope.tuning.measuring`; `on_gpu`), as are the
factors: normal random numbers, in several sets in rotation, too many for L2.

Not covered: gradients, epilogues, batches.
"""

import collections
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from pallascope.tuning import measuring
from pallascope.tuning.measuring import SEED, Calls, Reference, rotation
from pallascope.tuning.workers import Executor
from pipelib.kernels.matmul import MatmulConfig, matmul

#: Rows that are compared at once.
_COMPARED_ROWS = 2048
#: Rows that `float64_error` compares.
_FLOAT64_ROWS = 32
#: Seconds of work that `sustained` queues at once.
_QUEUED_S = 0.02

#: Makes a product of two factors.
Contender = Callable[[jax.Array, jax.Array], jax.Array]


class Problem(NamedTuple):
    """A product [m, k] x [k, n].

    Attributes:
      m, n, k: its sizes.
      dtype: the factors' dtype, by name.
      transpose_a, transpose_b: whether a is stored as [k, m], and b as [n, k].
      out_dtype: the result's dtype, by name; None for the default of `matmul`.
    """

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    transpose_a: bool = False
    transpose_b: bool = False
    out_dtype: str | None = None

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of the result: by default the factors' dtype, bfloat16 for float8."""
        narrow = jnp.dtype(self.dtype).itemsize == 1
        dtype = self.out_dtype or ("bfloat16" if narrow else self.dtype)
        return jax.ShapeDtypeStruct((self.m, self.n), dtype)

    @property
    def factors(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of `a` and `b` as they are stored."""
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return jax.ShapeDtypeStruct(a, self.dtype), jax.ShapeDtypeStruct(b, self.dtype)

    def __str__(self) -> str:
        letters = "NT"[self.transpose_a] + "NT"[self.transpose_b]
        out = "" if self.out_dtype is None else f" to {self.out_dtype}"
        return f"{self.m}x{self.n}x{self.k} {self.dtype} {letters}{out}"


def ours(problem: Problem, config: MatmulConfig | None) -> Contender:
    """`matmul` of a problem, as a function of its factors."""
    transposed = dict(transpose_a=problem.transpose_a, transpose_b=problem.transpose_b)
    return functools.partial(matmul, config=config, out_dtype=problem.out.dtype, **transposed)


def dot(a: jax.Array, b: jax.Array, problem: Problem, dtype: DTypeLike | None = None) -> jax.Array:
    """The product by XLA, accumulated in float32.

    Args:
      a, b: the factors as they are stored.
      problem: which product of them.
      dtype: the dtype of the result; by default `problem.out`'s.
    """
    contracted = (0 if problem.transpose_a else 1,), (1 if problem.transpose_b else 0,)
    return lax.dot_general(
        a, b, (contracted, ((), ())), preferred_element_type=dtype or problem.out.dtype
    )


def on_gpu(
    executor: Executor,
    problem: Problem,
    contender: Callable[[Any], Any] | None = None,
    samples: int = 10,
    is_checked: bool = True,
) -> Calls:
    """What measures configurations of a product.

    Args:
      executor: runs them.
      problem: the product.
      contender: makes the function of `(a, b)` from a configuration; by default `matmul`.
      samples, is_checked: as `Calls` takes them.
    """
    return Calls(
        executor,
        contender or functools.partial(ours, problem),
        problem.factors,
        Product(problem),
        samples=samples,
        sets=rotation(problem.factors),
        is_checked=is_checked,
    )


class Product(Reference):
    """XLA's product in float32, some rows at a time."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(functools.partial(dot, problem=problem))
        self._problem = problem

    def comparing(self, args: tuple[Any, ...]) -> Callable[[Any, tuple[Any, ...]], float]:
        """A function of a product and its factors, to the largest error of an element."""
        del args
        problem, compare = self._problem, _compare(self._problem)
        rows = min(_COMPARED_ROWS, problem.m)

        def error(out: jax.Array, factors: tuple[Any, ...]) -> float:
            worst, squares = 0.0, 0.0
            for first in range(0, problem.m, rows):
                # The last part begins earlier where the rows are not a multiple.
                start = np.int32(min(first, problem.m - rows))
                most, square = map(float, compare(out, *factors, start))
                worst, squares = max(worst, most), squares + square
            return worst / math.sqrt(squares / out.size)

        return error


@functools.cache
def _compare(problem: Problem) -> Callable[..., Any]:
    """A compiled function: compares some rows of a result with XLA's product.

    It takes the result, the factors, and the first row, and returns the largest difference and the
    sum of squares of XLA's product.
    """
    rows = min(_COMPARED_ROWS, problem.m)

    def compare(
        out: jax.Array, a: jax.Array, b: jax.Array, start: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        part = lax.dynamic_slice_in_dim(a, start, rows, axis=int(problem.transpose_a))
        # As bfloat16, which holds every float8: not all versions of XLA multiply those.
        part, b = (x.astype(jnp.bfloat16) if x.dtype.itemsize == 1 else x for x in (part, b))
        expected = dot(part, b, problem, jnp.float32)
        out = lax.dynamic_slice_in_dim(out, start, rows).astype(jnp.float32)
        off = jnp.abs(out - expected)
        off = jnp.where(jnp.isfinite(off), off, jnp.inf)  # a maximum may pass over a NaN
        return jnp.max(off), jnp.sum(expected**2)

    start = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(compare).lower(problem.out, *problem.factors, start).compile()


class Measured(measuring.Measured):
    """A contender, compiled for a problem.

    Args:
      contender: the `Contender` to measure; a subclass may take something else.
      problem: the product.
      sets: how many sets of factors are in rotation; by default as many as exceed L2.
    """

    def __init__(self, contender: Any, problem: Problem, sets: int | None = None) -> None:
        self.problem = problem
        factors = problem.factors
        super().__init__(contender, factors, Product(problem), sets or rotation(factors))

    def _result_of(self, function: Any) -> Any:
        del function
        return self.problem.out

    def float64_error(self) -> dict[str, Any]:
        """The error of some rows against the product in float64.

        Returns:
          `rows`, their number; `relative`, the norm of the error over the norm of the product.
        """
        out, (a, b) = self._compiled(self._sets)[0], self._sets[0]
        rows = jax.random.choice(
            jax.random.key(SEED), self.problem.m, (min(_FLOAT64_ROWS, self.problem.m),), False
        )
        part = a[:, rows] if self.problem.transpose_a else a[rows]
        wide = [np.asarray(x).astype(np.float64) for x in (part, b)]
        left = wide[0].T if self.problem.transpose_a else wide[0]
        expected = left @ (wide[1].T if self.problem.transpose_b else wide[1])
        off = np.linalg.norm(np.asarray(out[rows]).astype(np.float64) - expected)
        return dict(rows=len(rows), relative=float(off / np.linalg.norm(expected)))

    def _launch(self) -> Any:
        """Starts all products once; what it returns can be waited for."""
        return self._compiled(self._sets)

    def _wait(self, launched: Any) -> None:
        """Waits for what `_launch` returned."""
        jax.block_until_ready(launched)

    def sustained(self, seconds: float) -> dict[str, Any]:
        """Times products without a pause.

        Two parts of `_QUEUED_S` each wait in the GPU's queue while a third one runs.

        Args:
          seconds: how long.

        Returns:
          `us`, the microseconds of a product, averaged over each part of the run; `products`, how
          many products a part has.
        """
        burst = max(1, round(_QUEUED_S / self._seconds()))
        queued: collections.deque[Any] = collections.deque()
        ends: list[float] = []
        start = time.monotonic()
        while not ends or ends[-1] - start < seconds:
            last = self._launch()
            for _ in range(burst - 1):
                last = self._launch()
            queued.append(last)
            if len(queued) > 2:
                self._wait(queued.popleft())
                ends.append(time.monotonic())
        for last in queued:
            self._wait(last)
        each, pairs = burst * self.sets, itertools.pairwise(ends)
        return dict(us=[1e6 * (y - x) / each for x, y in pairs], products=each)

    def _seconds(self) -> float:
        """About how many seconds one rotation takes."""
        self._wait(self._launch())
        start = time.monotonic()
        self._wait(self._launch())
        return time.monotonic() - start


def prepare(contender: Contender, problem: Problem, sets: int | None = None) -> Callable[..., Any]:
    """A task for `Workers`, with the arguments of `Measured`.

    Returns:
      A function of the name of one of `Measured`'s methods, and of the method's arguments.
    """
    measured = Measured(contender, problem, sets)
    return lambda method, *args: getattr(measured, method)(*args)
