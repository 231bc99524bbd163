"""What `benchmarks/matmul.py` compares: the products, and for each part who makes them.

A contender is a function of `(a, b)` that `pickle` can send to another process, a function of a
module or a partial of one; or `peers.DeepGemm`, which `products_in_torch` measures.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import emitters, peers, untuned, upstream
from pipelib.kernels import scaled_matmul
from pipelib.tuning import rows
from pipelib.tuning.on_gpu import ours
from pipelib.tuning.products import Contender, Problem, dot
from pipelib_book.matmul_ladder import IDEAS, RUNGS
from pipelib_book.measured import ladder

#: As who reads the record knows them.
CUBLAS, UPSTREAM, TUNED = ladder.CUBLAS, ladder.UPSTREAM, ladder.TUNED
DEEPGEMM = ladder.DEEPGEMM
#: XLA times some of cuBLAS's kernels and picks one, not always the same, so it picks twice; with
#: no times it takes cuBLAS's own choice. The fastest of the three is what others are held against.
#: Ours, with a scale for each block.
BLOCKS = "scaled_matmul"
AGAIN, UNTIMED = f"{CUBLAS}, picked again", f"{CUBLAS}, own choice"
BASELINES = CUBLAS, AGAIN, UNTIMED
_SQUARES = (8192, 8192, 8192), (4096, 8192, 4096), (4096, 4096, 4096)
LADDER = tuple(Problem(*shape, dtype) for dtype in ("bfloat16", "float16") for shape in _SQUARES)
#: Rows of a prefill, and the widths of models of 8 and 70 billion parameters; then few rows, and a
#: deep K for few.
SHAPES = tuple(Problem(*shape) for shape in (
    (512, 4096, 4096), (512, 28672, 4096), (512, 4096, 14336), (1024, 8192, 8192),
    (1024, 28672, 4096), (2048, 4096, 4096), (2048, 28672, 8192), (2048, 4096, 14336),
    (4096, 8192, 8192), (4096, 14336, 4096), (4096, 8192, 28672), (8192, 4096, 14336),
    (8192, 28672, 8192), (16384, 8192, 8192), (64, 8192, 8192), (256, 8192, 28672),
))  # fmt: skip
FP8 = tuple(Problem(n, n, n, "float8_e4m3fn", False, True) for n in (8192, 4096))
#: With scales: squares, layers of DeepSeek-V3 with many rows, and with few.
SCALED = (*FP8, *(Problem(*shape, "float8_e4m3fn", False, True) for shape in (
    (4096, 7168, 2048), (4096, 4096, 7168), (4096, 24576, 1536), (8192, 7168, 16384),
    (128, 7168, 2048), (64, 24576, 1536),
)))  # fmt: skip
#: Besides, in the table: small products, and the transpositions of gradients.
_SMALL = tuple(Problem(n, n, n) for n in (512, 1024, 2048))
_TURNED = tuple(
    Problem(n, n, n, "bfloat16", *turned)
    for turned in ((False, True), (True, False)) for n in (4096, 8192)
)  # fmt: skip
#: What is searched for: ours, and upstream's. Those of float16 run as those of bfloat16.
SEARCHED = {
    "tune": (*LADDER[: len(_SQUARES)], *SHAPES, *FP8, *_SMALL, *_TURNED),
    "upstream": (*LADDER[: len(_SQUARES)], *SHAPES),
}
_SWEPT_SLOTS = range(1, 7)


class Work(rows.Work, Protocol):
    """What a group measures: a named tuple, which the record has as a dictionary."""

    @property
    def dtype(self) -> str:
        """Of what is multiplied, by name."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


class Plan[P, C](NamedTuple):
    """How a part measures its problems.

    Attributes:
      problems: the products, or attentions.
      contenders: by name, of a problem and the groups that the record has.
      rounds, launches: bursts of each contender, and launches of a burst.
      sustained: who runs for seconds, too; for `CUBLAS`, the fastest of `BASELINES` does.
    """

    problems: Sequence[P]
    contenders: Callable[[P, Sequence[dict[str, Any]]], dict[str, C]]
    rounds: int = 10
    launches: int = 5
    sustained: tuple[str, ...] = (CUBLAS, UPSTREAM, TUNED, DEEPGEMM)


def _ladder(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every rung, rung 1 with other slots, all of `_shapes`; of the first product, the ideas."""
    found = {f"rung {rung.number}": ours(problem, rung.config) for rung in RUNGS}
    if problem[:4] == LADDER[0][:4]:
        found |= {idea.name: ours(problem, idea.config) for idea in IDEAS}
    for slots in _SWEPT_SLOTS:
        config = dataclasses.replace(RUNGS[1].config, slots=slots)
        if config not in {rung.config for rung in RUNGS}:
            found[f"rung 1 with {slots} slots"] = ours(problem, config)
    return found | _shapes(problem, groups)


def _shapes(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All of `_untuned`, and upstream's by the record's search."""
    theirs = upstream.contender(upstream_config(problem, groups))
    return _untuned(problem, groups) | {UPSTREAM: theirs}


def _untuned(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ours by the table, XLA's, and DeepGEMM, if it is there."""
    found: dict[str, Any] = {
        TUNED: ours(problem, None),
        **dict.fromkeys(BASELINES, functools.partial(dot, problem=problem)),
    }
    has_it = problem.dtype == "bfloat16" and peers.has(DEEPGEMM)
    return found | ({DEEPGEMM: peers.DeepGemm()} if has_it else {})


def _fp8(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Contender]:
    """Ours by the table, and XLA's."""
    return {
        TUNED: ours(problem, None),
        **dict.fromkeys(BASELINES, functools.partial(_widened, problem=problem)),
    }


def _scaled(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ours with a scale for each block, and without; XLA's without; DeepGEMM, if it is there."""
    found: dict[str, Any] = {BLOCKS: with_scales} | _fp8(problem, groups)
    return found | ({DEEPGEMM: peers.DeepGemm()} if peers.has(DEEPGEMM) else {})


def with_scales(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product by `scaled_matmul`, all of whose scales are 1, but for a last bit.

    So they are constants: XLA has a kernel make an array of equal numbers.
    """
    (m, k), n = a.shape, b.shape[0]
    scales = [np.ones((rows, math.ceil(k / 128)), np.float32) for rows in (m, math.ceil(n / 128))]
    for array in scales:
        array[-1, -1] = np.nextafter(np.float32(1), np.float32(2))
    return scaled_matmul(a, b, *map(jnp.asarray, scales))


def _widened(a: jax.Array, b: jax.Array, problem: Problem) -> jax.Array:
    """The form in which XLA finds cuBLAS's product of float8."""
    return dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), problem)


def _emitters(problem: Problem, groups: Sequence[dict[str, Any]]) -> dict[str, Contender]:
    """The rungs that differ by their emitter, by each of the emitters."""
    return {
        f"rung {rung}, {emitter}": functools.partial(emitters.product, rung=rung, emitter=emitter)
        for rung, emitter in itertools.product((1, 2, 4), emitters.EMITTERS)
    }


def upstream_config(problem: Problem, groups: Sequence[dict[str, Any]]) -> Any:
    """The fastest that a search found for the product, or else for the record's nearest one.

    Raises:
      LookupError: there is no such search.
    """
    searches = [group for group in groups if group["part"] == "upstream"]
    if not searches:
        raise LookupError("The record has no search of upstream's grid: run the part `upstream`.")
    apart = lambda group: math.dist(
        *(map(math.log2, (x["m"], x["n"], x["k"])) for x in (group["problem"], problem._asdict()))
    )
    return upstream.from_json(min(searches, key=apart)["best"])


PLANS = {
    "ladder": Plan(LADDER, _ladder),
    "shapes": Plan(SHAPES, _shapes),
    "untuned": Plan((*untuned.problems(),), _untuned, sustained=()),
    "emitters": Plan(
        (Problem(4096, 4096, 4096),), _emitters, rounds=20, launches=10, sustained=()
    ),
    "fp8": Plan(FP8, _fp8, sustained=(CUBLAS, TUNED)),
    "scaled": Plan(SCALED, _scaled, sustained=()),
}  # fmt: skip
