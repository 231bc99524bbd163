"""Measures how near `pallascope.tuning.search` comes to the best that brute force finds.

    python -m benchmarks.search matmul attention chapter    on the GPU: writes the record
    python -m benchmarks.search chapter --seconds 60        begins no measurement later
    python -m benchmarks.search table                       prints the record

The model. A part is a kernel, its arguments and a space. First comes the search, as a user calls
it, with a budget of `--budget` seconds. Then comes brute force: every configuration of the space
that the checker lets through is measured. At last the best of the search and the best of brute
force run in turn, since only times of one round are compared. The parts are a product by
`pipelib.kernels.matmul`, `pipelib.kernels.attention`, and chapter 7's warp-specialized product.

Spaces. `--every N` takes each N-th configuration. That of the product is so large that it is 20 by
default, 1 elsewhere.

Resuming. What is measured is kept in `--cache`, a folder, one file for each part: after an
interruption, or when `--seconds` are over, the same command goes on. How long the search took is
then that of its first run. A record of a part says whether brute force is `complete`.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import kernels, records, suite
from benchmarks.products import Problem, dot, ours
from benchmarks.records import Group, rounded
from benchmarks.suite import Call, Fields, Part, Suite, Traced
from pallascope.tuning.measuring import SEED, Calls
from pallascope.tuning.results import Outcome, Results
from pallascope.tuning.searching import INTERRUPTED, search
from pallascope.tuning.spaces import Values, configurations, fields
from pallascope.tuning.workers import search_workers
from pipelib.kernels import AttentionConfig, MatmulConfig, attention, matmul_space
from pipelib_book import attention_forms
from pipelib_book.attention_forms import RungConfig
from pipelib_book.measured.searches import table

CACHE = records.ROOT / ".search-cache"
BUDGET_S, MEASURED = 600.0, 16
PARTS = "matmul", "attention", "chapter"
PRODUCT = Problem(4096, 4096, 4096)
QUERIES = jax.ShapeDtypeStruct((1, 4096, 16, 128), "bfloat16")


class Case(NamedTuple):
    """A kernel to search: its name, `search`'s arguments, and how to read a configuration.

    `every` says which configurations of the space are taken if nobody says: each N-th.
    """

    name: str
    kernel_of: Callable[..., Any]
    space: Sequence[Any]
    args: tuple[Any, ...]
    expected: Callable[..., Any]
    config_of: Callable[..., Any]
    every: int = 1

    def kernel(self, config: dict[str, Any]) -> Callable[..., Any]:
        """The kernel of a configuration of the record."""
        made = self.config_of(**config)
        return self.kernel_of(**made) if isinstance(made, Values) else self.kernel_of(made)


def case(part: str) -> Case:
    """What a part searches."""
    if part == "matmul":
        made, expected = functools.partial(ours, PRODUCT), functools.partial(dot, problem=PRODUCT)
        args = PRODUCT.factors
        configs = matmul_space(**PRODUCT._asdict()).configs
        return Case(f"matmul {PRODUCT}", made, configs, args, expected, MatmulConfig, 20)
    if part == "attention":
        batch, seq, heads, head_dim = QUERIES.shape
        name = f"attention of {batch} x {seq} x {heads} x {head_dim} {QUERIES.dtype}"
        space = attention_forms.space(head_dim)
        args = (QUERIES,) * 3
        return Case(name, _attention, space, args, _plain_attention, RungConfig)
    space = dict(slots=[1, 2, 3, 4, 5], delay=[0, 1], rows=[64, 128], alone=[True, False])
    square = (kernels.like(kernels.SIZE, kernels.SIZE),) * 2
    return Case(
        f"warp-specialized product of {kernels.SIZE}x{kernels.SIZE}, float16",
        _specialized,
        configurations(_specialized, space),
        square,
        _product,
        Values,
    )


def _attention(config: AttentionConfig) -> Callable[..., Any]:
    return functools.partial(attention, config=config)


def _plain_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(q, k, v, implementation="xla")


def _specialized(slots: int, delay: int, rows: int, alone: bool) -> Callable[..., Any]:
    return kernels.specialized(slots, delay, rows, alone, stamped=False)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot(a, b, preferred_element_type=jnp.float32).astype(a.dtype)


# Running.


class Named(NamedTuple):
    """The problem of a part: the kernel that is searched, in words."""

    kernel: str

    def __str__(self) -> str:
        return self.kernel


def measure(
    part: str, call: Call, of: Part, problem: Named, made: Mapping[str, Any]
) -> Iterator[Fields]:
    """Searches a part, then measures all of it; the group is written after each of these."""
    del of, problem, made
    this, options = case(part), call.options
    every = options.every or this.every
    space = this.space[::every]
    searched = functools.partial(
        _search,
        this.kernel_of,
        space,
        *this.args,
        expected=this.expected,
        jobs=options.jobs,
        cache=options.cache / f"{part}.db",
    )
    start = time.monotonic()
    found = searched(measure=options.measure, seconds=options.budget)
    kept = _kept(found, time.monotonic() - start)
    if (earlier := _same(records.read(call.path), part, every, kept["rows"])) is not None:
        kept["seconds"] = earlier["search"]["seconds"]
    yield dict(every=every, space=len(this.space), searched=len(space), search=kept)
    left = max(1.0, options.seconds - (time.monotonic() - start))
    everything = searched(measure=len(space), seconds=left)
    left_out = sum(trial.outcome is Outcome.PREDICTED for trial in everything.trials)
    yield dict(
        brute=_kept(everything, time.monotonic() - start),
        complete=len(everything.trials) == len(space) and not left_out,
        contenders=_in_turn(this, options.jobs, found, everything),
    )


def _in_turn(this: Case, jobs: int, *found: Results) -> dict[str, Any]:
    """The best of the search and of brute force, measured in turn."""
    best = [each.best.config for each in found if each.best is not None]
    with search_workers(jobs) as workers:
        calls = Calls(workers, this.kernel_of, this.args, this.expected)
        rows = {row.config: row for row in calls.in_turn(list(dict.fromkeys(best)))}
    return {
        name: dict(config=plain(config), burst_microseconds=rounded(rows[config].us))
        for name, config in zip(("search", "brute"), best)
    }


def _search(*args: Any, **options: Any) -> Results:
    """`search`, whose interruption ends this script."""
    found = search(*args, **options)
    if INTERRUPTED in found.notes:
        raise KeyboardInterrupt
    return found


def _same(groups: Sequence[Group], part: str, every: int, rows: list[Any]) -> Group | None:
    """The earlier group whose search found the same; None if there is none."""
    key = lambda group: (group["part"], group["every"], group["search"]["rows"])
    return next((old for old in groups if key(old) == (part, every, rows)), None)


def _kept(found: Results, seconds: float) -> dict[str, Any]:
    """What a search found, with every sample."""
    return dict(
        seconds=round(seconds, 1),
        columns=["config", "outcome", "predicted us", "microseconds", "reason"],
        rows=[
            [
                plain(trial.config),
                str(trial.outcome),
                trial.predicted_us,
                rounded(trial.us),
                trial.reason,
            ]
            for trial in found.trials
        ],
        finals=[[plain(row.config), rounded(row.us)] for row in found.found.finals],
    )


def plain(config: Any) -> dict[str, Any]:
    """A configuration's values as JSON has them; others are the defaults of forward kernels."""
    values = fields(config)
    return {name: value for name, value in values.items() if not dataclasses.is_dataclass(value)}


def _recorded(part: str, problem: Named, groups: Sequence[Group]) -> dict[str, Any]:
    """The kernels of the configurations that a part's group has, by what found them."""
    del problem
    here = [group["contenders"].items() for group in groups if group["part"] == part]
    return {name: case(part).kernel(kept["config"]) for found in here for name, kept in found}


def _traced(part: str, problem: Named, name: str, contender: Any) -> Traced:
    del problem, name
    return contender, case(part).args


def _part(part: str) -> Part:
    bound = functools.partial
    return Part(
        bound(_recorded, part),
        bound(measure, part),
        bound(_traced, part),
        [Named(case(part).name)],
        Named,
    )


SUITE = Suite(
    "search",
    {part: _part(part) for part in PARTS},
    facts=dict(seed=SEED, distribution="standard normal, rounded to the dtype"),
    options={
        "--budget": dict(type=float, default=BUDGET_S, help="seconds of each search"),
        "--measure": dict(type=int, default=MEASURED, help="how many a search measures"),
        "--every": dict(type=int, help="take each N-th configuration of a space"),
        "--cache": dict(type=pathlib.Path, default=CACHE, help="a folder"),
    },
    shown=lambda group: table([group]),
    shares=True,
)

if __name__ == "__main__":
    suite.main("search")
