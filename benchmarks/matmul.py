"""Measures `pipelib.kernels.matmul` beside cuBLAS (XLA's product), JAX's own kernel and DeepGEMM.

    python -m benchmarks.matmul upstream  searches for configurations of `hopper_matmul_mgpu`
    python -m benchmarks.matmul ladder    every rung, and the slots of rung 1
    python -m benchmarks.matmul shapes    language models' products, configurations by the table
    python -m benchmarks.matmul untuned   sizes drawn by chance (`benchmarks/untuned.py`)
    python -m benchmarks.matmul emitters  pipelib's emitters and JAX's with the same body
    python -m benchmarks.matmul fp8       float8
    python -m benchmarks.matmul scaled    float8, with a scale for each block
    python -m benchmarks.matmul table     prints the record

The model. Contenders are held in processes, and run in turn (`benchmarks.processes`). Operands,
checks and clocks: `products`. XLA picks a kernel of cuBLAS by timing some, for
which the GPU is left to it; its own kernels are switched off (`xla_flags` in the record, which also
names the kernels that ran). DeepGEMM's builds run where these are (`benchmarks/peers.py`), each in
a process of its own.

A contender is a function of `(a, b)`, or `peers.DeepGemm`, which `in_torch` measures.
"""

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import kernels, peers, suite, untuned, upstream
from benchmarks.in_torch import prepare
from benchmarks.processes import InProcesses, Search, progress
from benchmarks.products import Contender, Problem, dot, on_gpu, ours
from benchmarks.records import Group
from benchmarks.suite import OTHERS, Call, Part, Suite
from pallascope.tuning.measuring import SEED, tolerance
from pallascope.tuning.results import Found
from pallascope.tuning.searching import climb
from pallascope.tuning.workers import UNTIMED_FLAGS, XLA_FLAGS, Workers, search_workers
from pipelib.kernels import scaled_matmul
from pipelib_book.matmul_ladder import IDEAS, RUNGS
from pipelib_book.measured import ladder

#: As who reads the record knows them.
CUBLAS, UPSTREAM, TUNED = ladder.CUBLAS, ladder.UPSTREAM, ladder.TUNED
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
    for turned in ((False, True), (True, False))
    for n in (4096, 8192)
)
#: What is searched for in the part "upstream", and besides others for the table of ours (`tune`).
#: Those of float16 run as those of bfloat16.
BOTH = (*LADDER[: len(_SQUARES)], *SHAPES)
TUNED_FOR = (*BOTH, *FP8, *_SMALL, *_TURNED)
_SWEPT_SLOTS = range(1, 7)


def _ladder(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Every rung, rung 1 with other slots, all of `_shapes`; of the first product, the ideas."""
    found = {f"rung {rung.number}": ours(problem, rung.config) for rung in RUNGS}
    if problem[:4] == LADDER[0][:4]:
        found |= {idea.name: ours(problem, idea.config) for idea in IDEAS}
    for slots in _SWEPT_SLOTS:
        config = dataclasses.replace(RUNGS[1].config, slots=slots)
        if config not in {rung.config for rung in RUNGS}:
            found[f"rung 1 with {slots} slots"] = ours(problem, config)
    return found | _shapes(problem, groups)


def _shapes(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """All of `_untuned`, and upstream's by the record's search."""
    theirs = upstream.contender(upstream_config(problem, groups))
    return _untuned(problem, groups) | {UPSTREAM: theirs}


def _untuned(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours by the table, XLA's, and DeepGEMM's builds."""
    found: dict[str, Any] = {
        TUNED: ours(problem, None),
        **dict.fromkeys(BASELINES, functools.partial(dot, problem=problem)),
    }
    return found | (_deepgemm() if problem.dtype == "bfloat16" else {})


def _deepgemm() -> dict[str, Any]:
    """The builds of DeepGEMM that are there."""
    return {name: peers.DeepGemm(name) for name in ladder.BUILDS if peers.has(name)}


def _fp8(problem: Problem, groups: Sequence[Group]) -> dict[str, Contender]:
    """Ours by the table, and XLA's."""
    return {
        TUNED: ours(problem, None),
        **dict.fromkeys(BASELINES, functools.partial(_widened, problem=problem)),
    }


def _scaled(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours with a scale for each block, and without; XLA's without; DeepGEMM's builds."""
    found: dict[str, Any] = {BLOCKS: with_scales} | _fp8(problem, groups)
    return found | _deepgemm()


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


def _emitters(problem: Problem, groups: Sequence[Group]) -> dict[str, Contender]:
    """The rungs that differ by their emitter, by each of the emitters."""
    return {
        f"rung {rung}, {emitter}": functools.partial(kernels.by_emitter, rung=rung, emitter=emitter)
        for rung, emitter in itertools.product((1, 2, 4), kernels.EMITTERS)
    }


def upstream_config(problem: Problem, groups: Sequence[Group]) -> Any:
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


# How they are measured.

#: No compilation, and no check, takes longer.
COMPILE_S = 60.0


def pools(options: argparse.Namespace) -> dict[str, Workers]:
    """Processes: for each pick of XLA's, which lasts as long as a process, and for DeepGEMM."""
    own = [CUBLAS, AGAIN, *_deepgemm()]
    begin = functools.partial(Workers, 1, env=dict(XLA_FLAGS=XLA_FLAGS), prepare_s=COMPILE_S)
    return {name: begin() for name in own} | {OTHERS: search_workers(options.jobs)}


def plain(problem: Problem) -> dict[str, Any]:
    """A problem as plain data, with its result's dtype."""
    return problem._asdict() | dict(out_dtype=problem.out.dtype.name)


def _search_upstream(call: Call, problem: Problem) -> Found[Any]:
    return climb(
        upstream.starts(problem),
        upstream.neighbours,
        on_gpu(call.pools[OTHERS], problem, upstream.contender, is_checked=False),
        limit=call.options.limit,
        log=progress(problem, call.say),
    )


_PRODUCTS: dict[str, Any] = dict(
    traced=suite.kinds((CUBLAS, UPSTREAM, *ladder.BUILDS), lambda problem: problem.factors),
    problem=Problem,
    plain=plain,
)
_UPSTREAM = Search(
    "upstream", _search_upstream, upstream.to_json, lambda plain, group: upstream.from_json(plain)
)
_part = functools.partial(
    Part,
    measure=InProcesses(
        prepare,
        lambda problem: tolerance(problem.out.dtype, problem.dtype),
        {CUBLAS: XLA_FLAGS, AGAIN: XLA_FLAGS, OTHERS: UNTIMED_FLAGS},
    ),
    **_PRODUCTS,
)
_EVERYONE = CUBLAS, UPSTREAM, TUNED, *ladder.BUILDS
_FOR_EMITTERS = (Problem(4096, 4096, 4096),)
SEARCH_OPTIONS = {"--limit": dict(type=int, default=60, help="configurations of one search")}
SUITE = Suite(
    "matmul",
    {
        "upstream": Part(_UPSTREAM.contenders, _UPSTREAM, problems=BOTH, **_PRODUCTS),
        "ladder": _part(_ladder, problems=LADDER, sustained=_EVERYONE),
        "shapes": _part(_shapes, problems=SHAPES, sustained=_EVERYONE),
        "untuned": _part(_untuned, problems=(*untuned.problems(),)),
        "emitters": _part(_emitters, problems=_FOR_EMITTERS, rounds=20, launches=10),
        "fp8": _part(_fp8, problems=FP8, sustained=(CUBLAS, TUNED)),
        "scaled": _part(_scaled, problems=SCALED),
    },
    (suite.tflops, suite.beside("{:.3f}x", CUBLAS)),
    dict(seed=SEED, distribution="standard normal, rounded to the factors' dtype"),
    SEARCH_OPTIONS
    | {"--sustained": dict(type=float, default=2.0, help="seconds without a pause; 0: none")},
    processes=pools,
)

if __name__ == "__main__":
    suite.main("matmul")
