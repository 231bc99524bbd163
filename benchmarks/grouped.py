"""Measures `pipelib.kernels.ragged_dot` and its gradients beside JAX's, on one GPU.

    python -m benchmarks.grouped          each problem by all contenders
    python -m benchmarks.grouped table    prints the record

The model. A *problem* is a layer of a mixture of experts, and a distribution of its rows over the
experts. Ten distributions are of the same number of rows: they differ in how many tiles are cut
short, and in how many rows share a matrix. Of gradients there are two: that of the rows is the same
product with the matrices transposed; that of the matrices sums over the rows of a group, and is
called "weights" here.

JAX's contenders are `jax.lax.ragged_dot`, and the kernels of Pallas's operations for Hopper with
the best of a few configurations, each of which has a name of its own. Samples and records are those
of `turns`. Errors are relative, by norms, of sampled columns of the first and the last rows (of
weights: of the first matrix that has any), against float64.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu

from benchmarks import suite
from benchmarks.suite import SEED
from benchmarks.turns import Arrays, Contender, InTurns, float64, normal, off, suite_in_turns
from pipelib.kernels import MatmulConfig, ragged_dot
from pipelib.kernels.ragged.call import default_config, weights_of
from pipelib_book.measured import grouped as recorded

OURS, XLA, UPSTREAM = recorded.OURS, recorded.XLA, recorded.UPSTREAM
#: Of a relative error; a result that is wrong has a larger one.
TOLERANCE = 2e-2
#: Of a result these first and last rows are checked, and of those each so many-th column: an odd
#: step, so that it meets all places of a tile. In float64 a whole matrix takes a CPU half a second.
SAMPLED, STEP = 64, 37
#: Layers: rows, K, N and experts. Of Mixtral (8 experts), DeepSeek-V3's on one of 8 GPUs, Qwen3's.
LAYERS = ((8192, 4096, 14336, 8), (8192, 7168, 2048, 32), (16384, 2048, 768, 128))


class Problem(NamedTuple):
    """Rows of groups in a distribution; `weights`: the gradient of the matrices."""

    rows: int
    k: int
    n: int
    groups: int
    distribution: str
    weights: bool = False
    dtype: str = "bfloat16"

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.k * self.n

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each group has."""
        divide = DISTRIBUTIONS[self.distribution]
        return np.asarray(divide(np.random.default_rng(SEED), self.rows, self.groups), np.int32)

    @property
    def args(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the rows, of what they are multiplied with, and of the sizes."""
        shape = (self.rows, self.n) if self.weights else (self.groups, self.k, self.n)
        like = jax.ShapeDtypeStruct
        sizes = like((self.groups,), jnp.int32)
        return like((self.rows, self.k), self.dtype), like(shape, self.dtype), sizes

    def __str__(self) -> str:
        kind = "weights" if self.weights else "rows"
        return (
            f"{kind}: {self.rows} x {self.k} x {self.n} in {self.groups}, {self.distribution},"
            f" {self.dtype}"
        )


# Distributions.


def _whole(shares: np.ndarray, rows: int) -> np.ndarray:
    """So many rows in these shares; the first group gets what is left."""
    found = np.floor(rows * shares / shares.sum()).astype(int)
    found[0] += rows - found.sum()
    return found


def _cut(rng: np.random.Generator, rows: int, groups: int) -> np.ndarray:
    return np.diff([0, *np.sort(rng.integers(0, rows, groups - 1)), rows])


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "even": lambda rng, rows, groups: _whole(np.ones(groups), rows),
    "even but one row": lambda rng, rows, groups: (
        _whole(np.ones(groups), rows) + np.eye(groups, dtype=int)[0] - np.eye(groups, dtype=int)[-1]
    ),
    "multinomial": lambda rng, rows, groups: rng.multinomial(rows, np.full(groups, 1 / groups)),
    "cut at random": _cut,
    "1 / rank": lambda rng, rows, groups: _whole(1 / np.arange(1, groups + 1), rows),
    "log-normal": lambda rng, rows, groups: _whole(rng.lognormal(0, 1, groups), rows),
    "half of them": lambda rng, rows, groups: _whole(np.arange(groups) % 2 + 0.0, rows),
    "one": lambda rng, rows, groups: _whole(np.eye(groups)[groups // 2], rows),
    "one and singles": lambda rng, rows, groups: np.array([rows - groups + 1] + [1] * (groups - 1)),
    "from few to many": lambda rng, rows, groups: _whole(np.arange(1.0, groups + 1), rows),
}

PROBLEMS = tuple(
    Problem(*layer, distribution, weights)
    for layer in LAYERS
    for weights in (False, True)
    for distribution in DISTRIBUTIONS
)


# Contenders.


def contenders(problem: Problem) -> dict[str, Contender]:
    """All of a problem; ours also with other tiles for the first distribution."""
    found = _of_layer(problem._replace(distribution="even"))
    if problem.distribution == "even":
        return found
    return {name: each for name, each in found.items() if not name.startswith(f"{OURS}, ")}


@functools.cache
def _of_layer(problem: Problem) -> dict[str, Contender]:
    """All of a layer: the same functions for each distribution, so that JAX compiles them once."""
    return _of_weights(problem) if problem.weights else _of_rows(problem)


_TILES = (
    MatmulConfig(128, 128, 64, slots=5),
    MatmulConfig(128, 256, 64, slots=4, width=4),
    MatmulConfig(256, 128, 64, slots=4),
    MatmulConfig(64, 256, 64, slots=4, compute_threads=1),
)
#: Of upstream's: tiles, slots, and the width of the order; N must be a multiple of the product.
_THEIRS = ((128, 128, 5, 8), (128, 128, 5, 2), (64, 256, 4, 1), (128, 192, 4, 4))


def _of_rows(problem: Problem) -> dict[str, Contender]:
    found: dict[str, Contender] = {OURS: ragged_dot, XLA: jax.lax.ragged_dot}
    mine = default_config(problem.rows, problem.groups)
    for config in (config for config in _TILES if config != mine):
        name = f"{OURS}, {config.tile_m} x {config.tile_n}, width {config.width}"
        found[name] = functools.partial(ragged_dot, config=config)
    return found | dict(_upstream(problem, ragged_dot_mgpu.ragged_dot))


def _of_weights(problem: Problem) -> dict[str, Contender]:
    def xla(lhs: jax.Array, g: jax.Array, sizes: jax.Array) -> jax.Array:
        numbers = jax.lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(((0,), (0,)), ((), ())),
            lhs_ragged_dimensions=[0],
            rhs_group_dimensions=[],
        )
        return jax.lax.ragged_dot_general(lhs, g, sizes, numbers)

    kernel = transposed_ragged_dot_mgpu.transposed_ragged_dot
    return {OURS: weights_of, XLA: xla} | dict(_upstream(problem, kernel))


def _upstream(problem: Problem, kernel: Callable[..., Any]) -> Iterator[tuple[str, Contender]]:
    """JAX's kernel, with each configuration that divides the matrices."""
    for block_m, block_n, slots, width in _THEIRS:
        if problem.n % (block_n * width) == 0:
            options = dict(
                block_m=block_m,
                block_n=block_n,
                block_k=64,
                max_concurrent_steps=slots,
                grid_block_n=width,
            )
            name = f"{UPSTREAM}, {block_m} x {block_n}, width {width}"
            yield name, functools.partial(_theirs, kernel=kernel, **options)


def _theirs(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, *, kernel: Callable[..., Any], **options: int
) -> jax.Array:
    return kernel(lhs, rhs, group_sizes=sizes, **options)


# Arrays and errors.


def operands(problem: Problem) -> Arrays:
    """Normal random numbers, and the sizes."""
    keys = jax.random.split(jax.random.key(SEED))
    lhs, rhs = map(normal, problem.args, keys)
    return lhs, rhs, jnp.asarray(problem.sizes)


def error(problem: Problem, args: Arrays, name: str, contender: Contender) -> float:
    """The relative error of sampled columns of some rows, or of some rows of a matrix."""
    del name
    out = jax.jit(contender)(*args)
    return off(*_sampled(problem, args, out))


def _sampled(problem: Problem, args: Arrays, out: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """What a result has there, and what it should have."""
    lhs, rhs, _ = args
    stops = np.cumsum(problem.sizes)
    if problem.weights:
        group = int(np.argmax(problem.sizes > 0))
        rows = slice(stops[group] - problem.sizes[group], stops[group])
        wanted = float64(lhs[rows, :SAMPLED]).T @ float64(rhs[rows, ::STEP])
        return float64(out[group, :SAMPLED, ::STEP]), wanted
    picked = np.array([*range(SAMPLED), *range(problem.rows - SAMPLED, problem.rows)])
    groups = np.searchsorted(stops, picked, side="right")
    wanted = np.concatenate(
        [
            float64(lhs[picked[groups == group]]) @ float64(rhs[int(group), :, ::STEP])
            for group in np.unique(groups)
        ]
    )
    return float64(out[picked, ::STEP]), wanted


SUITE = suite_in_turns(
    "grouped",
    PROBLEMS,
    contenders,
    InTurns(operands, error, TOLERANCE),
    (suite.tflops, suite.beside("{:6.3f} of JAX's fastest", XLA, UPSTREAM)),
    (UPSTREAM,),
)

if __name__ == "__main__":
    suite.main("grouped")
