"""A matrix product to be measured: its operands, its error, its times.

The model. A `Problem` is a product, and a *contender* is a function of `(a, b)` that makes it.
`Measured` compiles a contender, and then measures it in four ways:

===============  ===================================================================================
`check`          compares its result with XLA's, element by element
`float64_error`  compares some rows with a product in float64
`burst`          times a few launches. CUPTI times the kernels, so the host does not count
`sustained`      times a run of seconds by the host's clock. The GPU's queue is never empty, so the
                 GPU lowers its clock, as it does in long use
===============  ===================================================================================

Operands are normal random numbers. If two factors fit L2, they could stay there from one launch to
the next. So one compiled function takes several *sets* of factors in rotation, too many for L2.

Not covered: gradients, epilogues, batches.
"""

import collections
import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from pallascope.bench.cupti import Kernel, kernel_times

#: L2 of an H100 and an H200. Source: their data sheets.
L2_BYTES = 50 << 20
#: A rotation has `L2_TIMES` times the bytes of L2 or more, but at most `MOST_SETS` sets of factors.
L2_TIMES, MOST_SETS = 3, 8
#: The most bytes of results in a burst: JAX's `Cupti` holds all results until the burst ends.
BURST_BYTES = 8 << 30
#: The seed of the factors.
SEED = 0
#: Rows that `check` compares at once, and rows that `float64_error` compares.
_CHECKED_ROWS, _FLOAT64_ROWS = 2048, 32
#: Seconds of work that `sustained` queues at once.
_QUEUED_S = 0.02

#: Makes a product of two factors.
Contender = Callable[[jax.Array, jax.Array], jax.Array]


#: Sets of factors: `a` and `b` each.
Sets = list[tuple[jax.Array, jax.Array]]


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

    @property
    def sets(self) -> int:
        """How many sets of factors a rotation has: one if a set has `L2_TIMES` the bytes of L2."""
        size = sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in self.factors)
        return min(MOST_SETS, math.ceil(L2_TIMES * L2_BYTES / size))

    def __str__(self) -> str:
        letters = "NT"[self.transpose_a] + "NT"[self.transpose_b]
        out = "" if self.out_dtype is None else f" to {self.out_dtype}"
        return f"{self.m}x{self.n}x{self.k} {self.dtype} {letters}{out}"


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


class Measured:
    """A contender, compiled for a problem.

    Args:
      contender: the `Contender` to measure; a subclass may take something else.
      problem: the product.
      sets: how many sets of factors are in rotation; by default `problem.sets`.
    """

    def __init__(self, contender: Any, problem: Problem, sets: int | None = None) -> None:
        self.problem, self.sets = problem, sets or problem.sets
        self._compiled = self._compile(contender)
        self._draw, self._compare = _draw(problem), _compare(problem)

    def _compile(self, contender: Any) -> Callable[[Sets], list[jax.Array]]:
        """A function of all sets of factors, to their products."""
        one = jax.jit(contender)

        def run(factors: Sets) -> list[jax.Array]:
            return [one(*pair) for pair in factors]

        return jax.jit(run).lower([self.problem.factors] * self.sets).compile()

    @functools.cached_property
    def _factors(self) -> Sets:
        """All sets of factors, on the GPU."""
        return jax.block_until_ready([self._draw(np.int32(i)) for i in range(self.sets)])

    def check(self) -> float:
        """The largest difference of an element from XLA's, in root mean squares of the result.

        It is infinite if an element of the result is not finite.
        """
        # The result may get memory that holds an earlier result, where the kernel writes nothing.
        # So memory is filled with NaN, and freed.
        poison = jax.block_until_ready(jnp.full(self.problem.out.shape, jnp.nan, "bfloat16"))
        del poison
        out, (a, b) = self._compiled(self._factors)[0], self._factors[0]
        worst, squares = 0.0, 0.0
        for first in range(0, self.problem.m, rows := min(_CHECKED_ROWS, self.problem.m)):
            # The last part begins earlier where the rows are not a multiple.
            start = np.int32(min(first, self.problem.m - rows))
            most, square = map(float, self._compare(out, a, b, start))
            worst, squares = max(worst, most), squares + square
        return worst / math.sqrt(squares / out.size)

    def float64_error(self) -> dict[str, Any]:
        """The error of some rows against the product in float64.

        Returns:
          `rows`, their number; `relative`, the norm of the error over the norm of the product.
        """
        out, (a, b) = self._compiled(self._factors)[0], self._factors[0]
        rows = jax.random.choice(
            jax.random.key(SEED), self.problem.m, (min(_FLOAT64_ROWS, self.problem.m),), False
        )
        part = a[:, rows] if self.problem.transpose_a else a[rows]
        wide = [np.asarray(x).astype(np.float64) for x in (part, b)]
        left = wide[0].T if self.problem.transpose_a else wide[0]
        expected = left @ (wide[1].T if self.problem.transpose_b else wide[1])
        off = np.linalg.norm(np.asarray(out[rows]).astype(np.float64) - expected)
        return dict(rows=len(rows), relative=float(off / np.linalg.norm(expected)))

    def burst(self, launches: int = 5) -> dict[str, Any]:
        """Times single products, one set of factors after the other.

        Args:
          launches: at least so many products, if their results have no more than `BURST_BYTES`.

        Returns:
          `us`, the microseconds of each product; `kernels`, the names of the kernels that ran.

        Raises:
          RuntimeError: the products did not all launch equally many kernels.
        """
        size = self.sets * math.prod(self.problem.out.shape) * self.problem.out.dtype.itemsize
        rounds = max(1, min(math.ceil(launches / self.sets), BURST_BYTES // size))
        runs = self._kernel_times(rounds)
        names = {kernel.name for kernel in runs[0]}
        return dict(us=_per_product(runs, self.sets), kernels=sorted(names))

    def _kernel_times(self, rounds: int) -> list[list[Kernel]]:
        """The kernels of each of so many launches of all products."""
        return kernel_times(self._compiled, self._factors, calls=rounds)

    def _launch(self) -> Any:
        """Starts all products once; what it returns can be waited for."""
        return self._compiled(self._factors)

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


@functools.cache
def _draw(problem: Problem) -> Callable[..., Any]:
    """A compiled function: makes the factors of a set, normal random numbers, from its number."""

    def draw(number: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(SEED), number))
        return tuple(
            jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype)
            for key, x in zip(keys, problem.factors)
        )

    return jax.jit(draw).lower(jax.ShapeDtypeStruct((), jnp.int32)).compile()


@functools.cache
def _compare(problem: Problem) -> Callable[..., Any]:
    """A compiled function: compares some rows of a result with XLA's product.

    It takes the result, the factors, and the first row, and returns the largest difference and the
    sum of squares of XLA's product.
    """
    rows = min(_CHECKED_ROWS, problem.m)

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


def _per_product(runs: Sequence[Sequence[Kernel]], sets: int) -> list[float]:
    """The microseconds of each product. In a run, each set launches equally many kernels."""
    found: list[float] = []
    for run in runs:
        if len(run) % sets:
            raise RuntimeError(f"{len(run)} kernels ran for {sets} products: whose are they?")
        each = len(run) // sets
        parts = [run[first : first + each] for first in range(0, len(run), each)]
        found += [1e3 * sum(ms for _, ms in part) for part in parts]
    return found
