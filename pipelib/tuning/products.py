"""A matrix product to be measured: its operands, its error, its times.

The model. A `Problem` is a product, and a *contender* is a function of `(a, b)` that makes it.
`Measured` compiles a contender, and then

- compares its result with XLA's, element by element (`check`), and some rows with a product in
  float64 (`float64_error`);
- times *bursts*: a few launches. CUPTI times each kernel, so launching and the host do not count;
- times a *sustained* run of seconds, by the host's clock. The GPU's queue is never empty, so the
  GPU lowers its clock, as it does in long use.

Operands are normal random numbers. If they could stay in L2 from one launch to the next, several
sets of operands, too many for L2, are used in rotation by one compiled function.

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
from jax.experimental.mosaic.gpu import profiler

#: L2 of an H100 and an H200. Source: their data sheets.
L2_BYTES = 50 << 20
#: A rotation has this many times as many bytes as L2, but at most so many sets of operands.
L2_TIMES, MOST_SETS = 3, 8
#: The most bytes of results in a burst: CUPTI's wrapper holds all of them to its end.
BURST_BYTES = 8 << 30
SEED = 0
_CHECKED_ROWS, _FLOAT64_ROWS = 2048, 32

Contender = Callable[[jax.Array, jax.Array], jax.Array]


class Problem(NamedTuple):
    """A product [m, k] x [k, n]; dtypes by name, transpositions as `matmul`'s."""

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
        """The result, by default in the dtype of the factors, or bfloat16 for float8."""
        narrow = jnp.dtype(self.dtype).itemsize == 1
        dtype = self.out_dtype or ("bfloat16" if narrow else self.dtype)
        return jax.ShapeDtypeStruct((self.m, self.n), dtype)

    @property
    def factors(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """`a` and `b` as they are stored."""
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return jax.ShapeDtypeStruct(a, self.dtype), jax.ShapeDtypeStruct(b, self.dtype)

    @property
    def sets(self) -> int:
        """How many pairs of factors a rotation has: one if a pair exceeds L2 far enough."""
        size = sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in self.factors)
        return min(MOST_SETS, math.ceil(L2_TIMES * L2_BYTES / size))

    def __str__(self) -> str:
        letters = "NT"[self.transpose_a] + "NT"[self.transpose_b]
        out = "" if self.out_dtype is None else f" to {self.out_dtype}"
        return f"{self.m}x{self.n}x{self.k} {self.dtype} {letters}{out}"


def dot(a: jax.Array, b: jax.Array, problem: Problem, dtype: Any = None) -> jax.Array:
    """The product by XLA, accumulated in float32; in the dtype of the result, or in `dtype`."""
    contracted = (0 if problem.transpose_a else 1,), (1 if problem.transpose_b else 0,)
    return lax.dot_general(
        a, b, (contracted, ((), ())), preferred_element_type=dtype or problem.out.dtype
    )


def tolerance(dtype: Any) -> float:
    """The largest error of an element that counts as right, in root mean squares of the result.

    Elements reach 6 root mean squares, and are rounded to half a unit in the last place. Tensor
    cores truncate sums, which gives errors of at most 1e-3. One step of 64 lost in 8192 gives 0.3
    or more.
    """
    return max(2e-3, 6 * float(jnp.finfo(dtype).eps))


class Measured:
    """A contender, compiled for a problem.

    Args:
      contender: the function to measure.
      problem: the product.
      sets: how many pairs of factors are in rotation.
    """

    def __init__(self, contender: Contender, problem: Problem, sets: int | None = None) -> None:
        self.problem, self.sets = problem, sets or problem.sets
        one = jax.jit(contender)
        run = lambda factors: [one(*pair) for pair in factors]
        self._compiled = jax.jit(run).lower([problem.factors] * self.sets).compile()
        self._draw, self._compare = _draw(problem), _compare(problem)

    @functools.cached_property
    def _factors(self) -> list[tuple[jax.Array, jax.Array]]:
        return jax.block_until_ready([self._draw(np.int32(i)) for i in range(self.sets)])

    def check(self) -> float:
        """The largest difference of an element from XLA's, in root mean squares of the result.

        Infinite if the result has anything that is not finite.
        """
        # Elements that the kernel does not write must not happen to hold an earlier result.
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
        """The relative error, by norms, of some rows against the product in float64."""
        out, (a, b) = self._compiled(self._factors)[0], self._factors[0]
        rows = jax.random.choice(
            jax.random.key(SEED), self.problem.m, (min(_FLOAT64_ROWS, self.problem.m),), False
        )
        part = a[:, rows] if self.problem.transpose_a else a[rows]
        wide = [np.asarray(x).astype(np.float64) for x in (part, b)]
        flip = lambda x, turned: x.T if turned else x
        expected = flip(wide[0], self.problem.transpose_a) @ flip(wide[1], self.problem.transpose_b)
        off = np.linalg.norm(np.asarray(out[rows]).astype(np.float64) - expected)
        return dict(rows=len(rows), relative=float(off / np.linalg.norm(expected)))

    def burst(self, launches: int = 5) -> dict[str, Any]:
        """The times of single products, in microseconds, and the kernels that made them.

        There are at least `launches` products, one set of factors after the other.
        """
        size = self.sets * math.prod(self.problem.out.shape) * self.problem.out.dtype.itemsize
        rounds = max(1, min(math.ceil(launches / self.sets), BURST_BYTES // size))
        cupti = profiler.Cupti(finalize=False)
        _, found = cupti.measure(self._compiled, aggregate=False, iterations=rounds)(self._factors)
        runs = [found] if rounds == 1 else found
        return dict(us=_per_product(runs, self.sets), kernels=sorted({k for k, _ in runs[0]}))

    def sustained(self, seconds: float) -> dict[str, Any]:
        """Microseconds of a product, averaged over each short part of a run of these seconds."""
        burst = max(1, round(0.02 / self._seconds()))
        queued: collections.deque[Any] = collections.deque()
        ends, start = [], time.monotonic()
        while not ends or ends[-1] - start < seconds:
            for _ in range(burst):
                last = self._compiled(self._factors)
            queued.append(last)
            if len(queued) > 2:
                jax.block_until_ready(queued.popleft())
                ends.append(time.monotonic())
        jax.block_until_ready(queued)
        each, pairs = burst * self.sets, itertools.pairwise(ends)
        return dict(us=[1e6 * (y - x) / each for x, y in pairs], products=each)

    def _seconds(self) -> float:
        """About how long one rotation takes."""
        jax.block_until_ready(self._compiled(self._factors))
        start = time.monotonic()
        jax.block_until_ready(self._compiled(self._factors))
        return time.monotonic() - start


def prepare(contender: Contender, problem: Problem, sets: int | None = None) -> Callable[..., Any]:
    """A task for `Workers`: a function that calls a method of `Measured` by its name."""
    measured = Measured(contender, problem, sets)
    return lambda method, *args: getattr(measured, method)(*args)


@functools.cache
def _draw(problem: Problem) -> Callable[..., Any]:
    """Compiled: makes the factors of a set from its number, normal random with a fixed seed."""

    def draw(number):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(SEED), number))
        normal = lambda key, x: jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype)
        return tuple(map(normal, keys, problem.factors))

    return jax.jit(draw).lower(jax.ShapeDtypeStruct((), jnp.int32)).compile()


@functools.cache
def _compare(problem: Problem) -> Callable[..., Any]:
    """Compiled: for some rows, the largest difference from XLA's product, its sum of squares."""
    rows = min(_CHECKED_ROWS, problem.m)

    def compare(out, a, b, start):
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


def _per_product(runs: Sequence[Sequence[tuple[str, float]]], sets: int) -> list[float]:
    """The microseconds of each product; in a run, every set has the same number of kernels."""
    found = []
    for run in runs:
        if len(run) % sets:
            raise RuntimeError(f"{len(run)} kernels ran for {sets} products: whose are they?")
        each = len(run) // sets
        found += [1e3 * sum(ms for _, ms in run[i : i + each]) for i in range(0, len(run), each)]
    return found
