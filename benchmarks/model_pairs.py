"""The pairs of kernel and configuration that the simulator's error is measured on.

The model. A `Pair` is a function that launches kernels, arrays to call it with, and a family: the
kernels that a person would choose among. Of matmul and of JAX's `hopper_matmul_mgpu` there are
configurations that a search of the record has measured, so that all of them are right; of
attention those that fit. The hash of their names decides which ones are taken, and whether a pair
is for calibration or held out. A constant of the model may be chosen by what calibration pairs
took, never by what a pair that is held out took.

Steps. Of some pairs there is a longer one: the same kernel and configuration on arrays with twice
as much along the axes that its pipeline goes along, on the same grid. The times of the two differ
by the steps of the steady state, without launch, prologue and end.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import attention, attention_problems, kernels, memory_bound, records, upstream
from benchmarks.products import Problem, ours
from pallascope.tuning.spaces import label
from pipelib.kernels import MatmulConfig
from pipelib.kernels.memory_bound import RmsNorm, Softmax, launch_rows
from pipelib_book.attention_ladder import RUNGS as ATTENTION_RUNGS
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured.model import is_held_out

RESULTS = records.RESULTS / "nvidia-h200"
#: How many products, and configurations of each, of either matmul.
PRODUCTS, CONFIGS = 9, 7
#: How many pairs of a family have a longer one.
LONGER = 10
#: How many configurations of attention, of each size of a head.
ATTENTIONS = 9
#: The family of JAX's own matrix product.
UPSTREAM = "hopper_matmul_mgpu"


class Pair(NamedTuple):
    """A kernel and its configuration.

    Attributes:
      family: the kernels among which one would choose.
      work: what is computed, in words; within it times can be ranked.
      config: how, in words.
      function: launches the kernels.
      args: what it is called with.
      along: for each of `args`, the axis that the pipeline goes along, None if there is none.
      l2_hits: as in `pallascope.predict`; 1 for arrays so small that L2 keeps them between
      launches.
      longer_than: of a longer pair, the name of the other one.
    """

    family: str
    work: str
    config: str
    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    along: tuple[int | None, ...] = ()
    l2_hits: float | None = None
    longer_than: str | None = None

    @property
    def name(self) -> str:
        """All three in one line."""
        return f"{self.family}: {self.work}: {self.config}"

    @property
    def held_out(self) -> bool:
        """Whether no constant may be chosen by it: two thirds of the pairs."""
        return is_held_out(self.name)


@functools.cache
def pairs() -> dict[str, Pair]:
    """All pairs by name."""
    sources = _products, _upstream, _rows, _forward, _backward, _rungs, _chapters
    found = [pair for source in sources for pair in source()]
    return {pair.name: pair for pair in (*found, *_longer(found))}


def _longer(found: Sequence[Pair]) -> Iterator[Pair]:
    """Of some pairs of each family, those with twice the steps."""
    families: dict[str, list[Pair]] = {}
    for pair in found:
        if pair.along:
            families.setdefault(pair.family, []).append(pair)
    for pair in itertools.chain(*(_some(LONGER, of, _name) for of in families.values())):
        args = tuple(map(_doubled, pair.args, pair.along))
        work = f"{pair.work}, twice the steps"
        yield pair._replace(work=work, args=args, longer_than=pair.name)


def _name(pair: Pair) -> str:
    return pair.name


def _doubled(x: jax.ShapeDtypeStruct, axis: int | None) -> jax.ShapeDtypeStruct:
    """The array with twice as much along an axis."""
    shape = tuple(size * 2 if number == axis else size for number, size in enumerate(x.shape))
    return jax.ShapeDtypeStruct(shape, x.dtype)


def _inner(problem: Problem) -> tuple[int, int]:
    """The axes of a product's factors that are summed over."""
    return 0 if problem.transpose_a else 1, 1 if problem.transpose_b else 0


def _rank(name: str) -> int:
    """A number that is as good as random, and always the same."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])


def _some[T](count: int, things: Sequence[T], name: Callable[[T], str]) -> list[T]:
    """So many of them, by the hash of their names."""
    return sorted(things, key=lambda thing: _rank(name(thing)))[:count]


def _searches(
    record: str, part: str = "tune"
) -> Iterator[tuple[records.Group, Problem, list[Any]]]:
    """Some of a record's searches: each with its product, and the configurations that are right."""
    of = {
        Problem(**{key: group["problem"][key] for key in Problem._fields}): group
        for group in records.read(RESULTS / f"{record}.json")
        if group["part"] == part
    }
    for problem in _some(PRODUCTS, [*of], str):
        yield of[problem], problem, [row[0] for row in of[problem]["rows"] if row[1] and not row[3]]


def _products() -> Iterator[Pair]:
    """`pipelib.kernels.matmul`, as searches have measured it."""
    for search, problem, good in _searches("tune"):
        configs = [MatmulConfig(**dict(zip(search["fields"], row))) for row in good]
        for config in _some(CONFIGS, configs, label):
            yield Pair("matmul", str(problem), label(config), ours(problem, config),
                       problem.factors, _inner(problem))  # fmt: skip


def _upstream() -> Iterator[Pair]:
    """JAX's `hopper_matmul_mgpu`, likewise."""
    for _, problem, good in _searches("matmul", "upstream"):
        for fields in _some(CONFIGS, good, str):
            config = upstream.from_json(fields)
            words = ", ".join(f"{key}={value}" for key, value in fields.items())
            yield Pair(UPSTREAM, str(problem), words, upstream.contender(config),
                       problem.factors, _inner(problem))  # fmt: skip


def _rows() -> Iterator[Pair]:
    """`rms_norm`, `softmax` and a copy, of rows of several lengths, with other plans."""
    for shape in ((65536, 1024), (16384, 4096), (8192, 8192), (2048, 32768)):
        operations = RmsNorm(shape[1], memory_bound.EPS), Softmax(approximate=True)
        x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16),)
        named = zip(("rms_norm", "softmax", "copy"), (*operations, memory_bound.Copy()))
        for (name, operation), (slots, rows) in itertools.product(
            named, ((None, None), (2, None), (3, None), (4, None), (None, 2), (2, 2))
        ):
            try:
                plan = memory_bound.plan_of(shape, slots=slots, rows=rows)
            except ValueError:
                continue
            if name == "copy" and plan.block < plan.pieces:
                continue  # a second pass is for statistics, which a copy has not
            run = functools.partial(launch_rows, operation, plan)
            # A plan that keeps its rows says so; one that does not is called as it was before.
            known = {key: value for key, value in plan._asdict().items() if value is not False}
            fields = ", ".join(f"{key}={value}" for key, value in known.items())
            yield Pair(name, f"{shape[0]}x{shape[1]} bfloat16", fields, run, x)


def _attention(family: str, problem: attention_problems.Problem, config: Any, words: str) -> Pair:
    run = attention.ours(problem, config)
    args = (problem.out,) * 3
    if problem.backward:
        forward = run
        run, args = functools.partial(attention.gradients, forward), (problem.out,) * 4
    along = () if problem.causal or problem.backward else (None, 1, 1)
    return Pair(family, str(problem), words, run, args, along)


def _forward() -> Iterator[Pair]:
    """The forward kernel of attention, with configurations of its grid that fit."""
    for head_dim, seq in ((128, 16384), (64, 16384), (256, 8192), (128, 4096)):
        problem = attention_problems.Problem(seq, head_dim, dtype="float16")
        found = attention.space(problem)
        for number, config in enumerate(_some(ATTENTIONS, found, label)):
            causal = problem._replace(causal=number % 3 == 2)
            yield _attention("attention", causal, config, label(config))


def _backward() -> Iterator[Pair]:
    """The gradients of attention, as the record has them."""
    for head_dim, causal in itertools.product((64, 128), (False, True)):
        problem = attention_problems.Problem(8192, head_dim, causal, "float16", backward=True)
        for words, run in attention._backward(problem, ()).items():
            if words.startswith(attention.OURS):
                gradients = functools.partial(attention.gradients, run)
                yield Pair(
                    "attention's gradients", str(problem), words, gradients, (problem.out,) * 4
                )


def _rungs() -> Iterator[Pair]:
    """The rungs of the book's two ladders."""
    for size in (4096, 8192):
        problem = Problem(size, size, size, "bfloat16")
        for rung in RUNGS:
            yield Pair("the ladder of matmul", str(problem), f"rung {rung.number}",
                       ours(problem, rung.config), problem.factors, _inner(problem))  # fmt: skip
    for rung, causal in itertools.product(ATTENTION_RUNGS, (False, True)):
        problem = attention_problems.Problem(16384, rung.head_dim, causal, "float16")
        yield _attention("the ladder of attention", problem, rung.config, f"rung {rung.number}")


def _chapters() -> Iterator[Pair]:
    """Kernels as chapters write them, not by the package's own."""
    for case in kernels.cases():
        along = (1, 0) if case.inputs[0].shape == (kernels.SIZE,) * 2 else ()
        yield Pair("kernels of chapters", case.name.partition(",")[0], case.name, case.build(False),
                   case.inputs, along, case.l2_hits)  # fmt: skip
