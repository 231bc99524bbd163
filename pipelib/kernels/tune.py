"""`tune`: searches for the fastest `MatmulConfig` of a product.

The model. A search measures the likeliest configuration of each shape of tile and cluster
(`candidates`); then, a few at a time, what differs in one thing from the best three so far; until
there is nothing new, or `limit` of them were measured. What compiled, ran in time and agrees with
XLA's product (`products`) counts by its median time; anything else is a row with its reason. The
best few are then measured once more, in turn, since the GPU's clock drifts over a search, and the
fastest of these wins.

A record is a JSON file of searches. Each says where it was made and by which code (`run_facts`),
and has all rows with their raw samples. The tables of `tuned` are made of it.

Not covered: epilogues, which change what a tile costs at its end; gradients and batches.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from pipelib import specs
from pipelib.bench import provenance
from pipelib.kernels.candidates import candidates, neighbours, starts
from pipelib.kernels.matmul import matmul
from pipelib.kernels.matmul_arguments import check_dtypes, is_addressable, stored_dtype
from pipelib.kernels.matmul_blocks import Product
from pipelib.kernels.matmul_config import PIECE_ROWS, SWIZZLE, MatmulConfig
from pipelib.kernels.products import SEED, Measured, Problem, tolerance
from pipelib.kernels.workers import Failed, Task, Workers

_NAMES = "kernels/matmul_blocks", "kernels/matmul_config", "kernels/products"
_NAMES += "pipeline", "ring", "specs", "warp_specialized"
#: What the time of a product of a given configuration depends on.
SOURCES = tuple(provenance.PACKAGE / f"{name}.py" for name in _NAMES)
#: For XLA's products: kernels one by one, not as graphs, so that each is timed; by cuBLAS; and, if
#: `UNTIMED_FLAGS`, the kernel that cuBLAS chooses, with no others timed beside it.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_enable_triton_gemm=false"
UNTIMED_FLAGS = f"{XLA_FLAGS} --xla_gpu_autotune_level=0"


class Row(NamedTuple):
    """What came of a configuration: times of single products, or the reason why they are none."""

    config: Any
    us: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""

    @property
    def median_us(self) -> float:
        """Infinite if the row does not count."""
        return median(self.us) if self.us and not self.reason else math.inf


class Measurer(Protocol):
    """What a search asks for times: a GPU, or a test's stand-in."""

    def each(self, configs: Sequence[Any]) -> Iterator[Row]:
        """A row for each configuration, in any order."""

    def in_turn(self, configs: Sequence[Any]) -> list[Row]:
        """A row for each, in this order, of samples that were taken in turn."""


class Found(NamedTuple):
    """All rows of a search, and those of its last round."""

    rows: tuple[Row, ...]
    finals: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The fastest of the last round; None if nothing counted."""
        counted = [row for row in self.finals if row.median_us < math.inf]
        return min(counted, key=lambda row: row.median_us, default=None)


def tune(
    m: int,
    n: int,
    k: int,
    dtype: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: Any = None,
    configs: Sequence[MatmulConfig] | None = None,
    limit: int = 60,
    samples: int = 10,
    jobs: int | None = None,
    path: str | os.PathLike | None = None,
    log: Callable[[str], None] = print,
) -> MatmulConfig:
    """The fastest configuration found for the product [m, k] x [k, n] on this machine's GPU.

    The GPU must have nothing else to do meanwhile.

    Args:
      m, n, k, dtype, transpose_a, transpose_b, out_dtype: the product, as `matmul`'s.
      configs: what to measure, all of it. By default a search among `candidates`.
      limit: the most configurations that are measured, 1 or more.
      samples: launches of each, 1 or more; of the best ones, five times as many.
      jobs: processes that compile, 1 or more. By default one less than the CPUs.
      path: a record to write the search to, beside others that it has.
      log: called with a line for each configuration.

    Raises:
      TypeError: dtypes that `matmul` does not multiply or store; arguments of other types.
      ValueError: a product that `matmul` refuses, or makes without its kernel; numbers that are not
        as above; no configuration to measure; a `path` that cannot be written.
      RuntimeError: none of them ran and was right; says why the first did not.

    Example:
      On a Hopper GPU this searches and returns a `MatmulConfig`, to be given to `matmul` as
      `config=`. Elsewhere nothing can be measured:

      >>> tune(512, 512, 512, jnp.bfloat16, limit=1, log=lambda line: None)
      Traceback (most recent call last):
      RuntimeError: tune: none of 1 configurations ran and was right for
      512x512x512 bfloat16 ...
    """
    problem = _problem((m, n, k), dtype, bool(transpose_a), bool(transpose_b), out_dtype)
    _check_search(configs, limit=limit, samples=samples, jobs=jobs)
    if path is not None:
        _check_record(pathlib.Path(path))
    with search_workers(jobs) as workers:
        on_gpu = OnGpu(workers, problem, functools.partial(ours, problem), samples)
        found = tune_with(on_gpu, problem, configs=configs, limit=limit, log=log)
        if path is not None:
            facts = run_facts(workers, f"pipelib.kernels.tune({problem})")
            write_search(pathlib.Path(path), problem, found, facts)
    if found.best is None:
        raise RuntimeError(
            f"tune: none of {len(found.rows)} configurations ran and was right for {problem}; the"
            f" first, {found.rows[0].config}: {found.rows[0].reason}."
        )
    return found.best.config


def _problem(
    sizes: Sequence[Any], dtype: Any, transpose_a: bool, transpose_b: bool, out_dtype: Any
) -> Problem:
    """The product that is asked for, which must be one that the kernel makes."""
    m, n, k = (specs.integer(f"tune: {name}", size) for name, size in zip("mnk", sizes))
    if min(m, n, k) < 1:
        raise ValueError(f"tune: {m=}, {n=} and {k=} must be 1 or more: what is empty has no time.")
    try:
        dtype = jnp.dtype(dtype).name
    except TypeError:
        raise specs.wrong_type("tune: dtype", dtype, "it is that of the factors") from None
    problem = Problem(m, n, k, dtype, transpose_a, transpose_b)
    a, b = problem.factors
    # What `matmul` would say in each worker is said in its own words, before there is one.
    check_dtypes(a, b, transpose_a, transpose_b)
    stored = stored_dtype(a, out_dtype)
    product = Product(transpose_a, transpose_b, None, None, stored)
    if not is_addressable(a, b, (), product):
        raise ValueError(
            f"tune: a {a.shape}, b {b.shape} and the output {(m, n)} must all have rows of a"
            f" multiple of {SWIZZLE} bytes, and at most {PIECE_ROWS} rows or a multiple of them;"
            " since they do not, matmul makes this product without its kernel, and no configuration"
            " applies."
        )
    return problem if out_dtype is None else problem._replace(out_dtype=stored.name)


def _check_search(configs: Any, **numbers: Any) -> None:
    """Raises for what is no list of configurations, and for a number below 1."""
    for name, number in numbers.items():
        if number is not None and specs.integer(f"tune: {name}", number) < 1:
            raise ValueError(f"tune: {name}={number} is less than 1, so nothing would be measured.")
    if configs is None:
        return
    if not isinstance(configs, Sequence):
        because = "what is to be measured comes in a list, a single one too"
        raise specs.wrong_type("tune: configs", configs, because)
    for i, config in enumerate(configs):
        if not isinstance(config, MatmulConfig):
            because = "a MatmulConfig says how a product is divided"
            raise specs.wrong_type(f"tune: configs[{i}]", config, because)


def _check_record(path: pathlib.Path) -> None:
    """Raises ValueError if `write_search` could not read and write here in the end."""
    try:
        _searches(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path)
        part.touch()
        part.unlink()
    except OSError as error:
        raise ValueError(
            f"tune: path={str(path)!r} cannot be written ({error.strerror}), so the search would be"
            " lost: name a file in a folder of yours."
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"tune: path={str(path)!r} is no record of searches, to which this one could be added:"
            " name another file."
        ) from error


def tune_with(
    measurer: Measurer,
    problem: Problem,
    *,
    configs: Sequence[MatmulConfig] | None = None,
    limit: int = 60,
    log: Callable[[str], None] = print,
) -> Found:
    """`tune` with a measurer; returns all that it found."""
    space = candidates(problem) if configs is None else configs
    if not space:
        raise ValueError(f"tune: there is no configuration to measure for {problem}.")
    first, near = list(space), lambda _: ()
    if configs is None:
        first, near = starts(space), functools.partial(neighbours, configs=space)
    return search(first, near, measurer, limit=limit, log=progress(problem, log))


def search(
    first: Sequence[Any],
    near: Callable[[Any], Iterable[Any]],
    measurer: Measurer,
    *,
    limit: int = 60,
    at_once: int = 8,
    finalists: int = 6,
    log: Callable[[Row, float], None] = lambda row, best: None,
) -> Found:
    """Measures the first ones, then those near the best three, as long as there are any.

    Args:
      first: configurations to begin with; half of `limit` at most, if one has neighbours.
      near: the neighbours of one.
      measurer: gives their times.
      limit: the most configurations that are measured.
      at_once: how many neighbours are measured before the next ones are picked.
      finalists: how many of the best are measured again, in turn.
      log: called with each row and the best median until then.
    """
    rows: dict[Any, Row] = {}
    batch, best, ranked = list(dict.fromkeys(first))[:limit], math.inf, []
    if any(True for config in batch for _ in near(config)):
        batch = batch[: max(1, limit // 2)]
    while batch:
        for row in measurer.each(batch):
            rows[row.config], best = row, min(best, row.median_us)
            log(row, best)
        counted = (row for row in rows.values() if row.median_us < math.inf)
        ranked = sorted(counted, key=lambda row: row.median_us)
        around = (config for row in ranked[:3] for config in near(row.config))
        new = (config for config in dict.fromkeys(around) if config not in rows)
        batch = list(itertools.islice(new, min(at_once, limit - len(rows))))
    finals = measurer.in_turn([row.config for row in ranked[:finalists]])
    return Found(tuple(rows.values()), tuple(finals))


def progress(problem: Problem, log: Callable[[str], None]) -> Callable[[Row, float], None]:
    """A search's log of lines: the configuration, its rate, the best rate so far."""
    count = itertools.count(1)
    rate = lambda us: f"{problem.flops / us / 1e6:.1f}"

    def line(row: Row, best: float) -> None:
        said = row.reason or f"{rate(row.median_us)} TFLOP/s (best {rate(best)})"
        log(f"{problem} {next(count)}. {short(row.config)}: {said}")

    return line


def short(config: Any) -> str:
    """A configuration's fields that are not the defaults."""
    fields = dataclasses.fields(config)
    changed = [f for f in fields if getattr(config, f.name) != f.default]
    return ", ".join(f"{f.name}={getattr(config, f.name)}" for f in changed) or "the default"


# On a GPU.


def search_workers(jobs: int | None = None) -> Workers:
    """Processes for a search; by default one less than the CPUs."""
    return Workers(jobs or max(1, (os.cpu_count() or 2) - 1), env=dict(XLA_FLAGS=UNTIMED_FLAGS))


class OnGpu:
    """Measures contenders in worker processes.

    Args:
      workers: the processes.
      problem: the product.
      contender: makes the function of `(a, b)` from a configuration; `pickle` sends it.
      samples: launches of each configuration; in turn, five times as many.
    """

    def __init__(
        self, workers: Workers, problem: Problem, contender: Callable[[Any], Any], samples: int = 10
    ):
        self._workers, self._problem = workers, problem
        self._contender, self._samples = contender, samples

    def each(self, configs: Sequence[Any]) -> Iterator[Row]:
        """Rows, in the order in which they are done."""
        tasks = map(self._task, configs)
        for number, result in self._workers.stream(tasks, self._samples):
            yield self._row(configs[number], [result])

    def in_turn(self, configs: Sequence[Any]) -> list[Row]:
        """Rows of samples that were taken in turn."""
        found: dict[Any, list[Any]] = {config: [] for config in configs}
        with self._workers.hold(list(map(self._task, configs))) as held:
            for _, (config, run) in itertools.product(range(5), zip(configs, held)):
                try:
                    result = run if isinstance(run, Failed) else run(self._samples)
                except Failed as error:
                    result = error
                found[config].append(result)
        return [self._row(config, results) for config, results in found.items()]

    def _task(self, config: Any) -> Task:
        return functools.partial(_prepare, self._contender, config, self._problem)

    def _row(self, config: Any, results: list[Any]) -> Row:
        for result in results:
            if isinstance(result, Failed):
                return Row(config, reason=str(result))
        us = tuple(us for result in results for us in result["us"])
        error, most = max(r["error"] for r in results), tolerance(self._problem.out.dtype)
        wrong = f"wrong: an element is off by {error:.3g} root mean squares, over {most:.3g}"
        return Row(config, us, error, "" if error <= most else wrong)


def _prepare(contender: Any, config: Any, problem: Problem) -> Callable[[int], dict[str, Any]]:
    measured = Measured(contender(config), problem)
    return lambda samples: dict(error=measured.check(), us=measured.burst(samples)["us"])


def ours(problem: Problem, config: MatmulConfig | None) -> Callable[..., Any]:
    """`matmul` of a problem, as a contender."""
    transposed = dict(transpose_a=problem.transpose_a, transpose_b=problem.transpose_b)
    return functools.partial(matmul, config=config, out_dtype=problem.out.dtype, **transposed)


# Records.


def run_facts(workers: Workers, command: str, sources: Sequence[pathlib.Path] = SOURCES) -> dict:
    """Where and how a run was made, as plain data; asks a worker, which has the GPU."""
    (_, found), *_ = workers.stream([_prepare_provenance])
    if isinstance(found, Failed):
        raise found
    return {
        "command": command,
        "sources_digest": provenance.code_digest(*sources),
        "seed": SEED,
        "distribution": "standard normal, rounded to the factors' dtype",
        "provenance": found,
    }


def _prepare_provenance() -> Callable[[], dict[str, Any]]:
    return provenance.provenance


def write_search(path: pathlib.Path, problem: Problem, found: Found, facts: dict) -> None:
    """Writes a search into a record, in place of an earlier one of the same problem."""
    kept = _searches(path)
    fields = [field.name for field in dataclasses.fields(MatmulConfig)]
    values = lambda config: [getattr(config, name) for name in fields]
    rounded = lambda us: [round(t, 2) for t in us]
    rows = lambda rows: [[values(r.config), rounded(r.us), r.error, r.reason] for r in rows]
    new = {
        "problem": problem._asdict() | dict(out_dtype=problem.out.dtype.name),
        "run": facts,
        "fields": fields,
        "columns": ["config", "microseconds", "largest error / rms", "reason"],
        "rows": rows(found.rows),
        "finals": rows(found.finals),
    }
    kept = [search for search in kept if search["problem"] != new["problem"]]
    write_lines(path, "searches", [*kept, new])


def _searches(path: pathlib.Path) -> list[dict]:
    """Those of a record; none if it is to be written first."""
    return json.loads(path.read_text("utf-8"))["searches"] if path.exists() else []


def _part(path: pathlib.Path) -> pathlib.Path:
    """What stands beside a record while it is written."""
    return path.with_suffix(".part")


def write_lines(path: pathlib.Path, name: str, items: Sequence[Any]) -> None:
    """Writes a JSON object of one list, an item on a line; whole, or not at all."""
    lines = ",\n".join(json.dumps(item) for item in items)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    part.write_text(f'{{"{name}": [\n{lines}\n]}}\n', "utf-8")
    part.replace(path)
