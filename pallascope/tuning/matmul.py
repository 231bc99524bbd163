"""`tune`: searches for the fastest `MatmulConfig` of a product.

The model. It is the search of `searching`, with three things of its own. There are about two
thousand configurations, too many to simulate each, so they are ranked by an estimate
(`candidates`), and the checker looks at those that are measured, in the processes that compile them
(`on_gpu`). The first that are measured are the likeliest of each shape of tile and cluster. Those
near a configuration differ from it in one thing, which may be several fields.

Not covered: epilogues, which change what a tile costs at its end; gradients and batches.
"""

import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Hashable, Sequence
from typing import cast

import jax.numpy as jnp
from jax.typing import DTypeLike

from pallascope.tuning.candidates import candidates, neighbours, starts
from pallascope.tuning.on_gpu import OnGpu, ours, search_workers
from pallascope.tuning.products import Problem
from pallascope.tuning.record import check_record, run_facts, write_search
from pallascope.tuning.rows import Found, Measurer, Row, Work
from pallascope.tuning.searching import measured, nothing
from pallascope.tuning.spaces import label
from pallascope.tuning.trials import Outcome, Trial
from pipelib import specs
from pipelib.kernels.matmul.arguments import check_dtypes, stored_dtype
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.tiles import PIECE_ROWS, SWIZZLE, has_pieces


def tune(
    m: int,
    n: int,
    k: int,
    dtype: DTypeLike,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: DTypeLike | None = None,
    configs: Sequence[MatmulConfig] | None = None,
    limit: int = 60,
    samples: int = 10,
    jobs: int | None = None,
    path: str | os.PathLike[str] | None = None,
    log: Callable[[str], None] = print,
) -> MatmulConfig:
    """The fastest configuration found for the product [m, k] x [k, n] on this machine's GPU.

    The GPU must have nothing else to do meanwhile.

    Args:
      m, n, k, dtype, transpose_a, transpose_b, out_dtype: the product, as `matmul` takes it.
      configs: the configurations to measure; by default a search among `candidates`.
      limit: the most configurations that are measured, 1 or more.
      samples: launches of each configuration, 1 or more; the best ones get five times as many.
      jobs: processes that compile, 1 or more; by default one less than the CPUs.
      path: a record that the search is added to.
      log: called with a line for each configuration.

    Raises:
      TypeError: for dtypes that `matmul` does not multiply or store, and arguments of wrong types.
      ValueError: for a product that `matmul` refuses, or makes without its kernel; numbers that are
        not as above; no configuration to measure; a `path` that cannot be written.
      RuntimeError: if no configuration ran and was right; it says why the first one did not.

    Example:
      On a Hopper GPU this searches and returns a `MatmulConfig`, to be given to `matmul` as
      `config=`. Elsewhere nothing can be measured:

      >>> tuning.tune(512, 512, 512, jnp.bfloat16, limit=1, log=lambda line: None)
      Traceback (most recent call last):
      RuntimeError: tune: none of 1 configurations ran and was right for
      512x512x512 bfloat16 ...
    """
    problem = _problem((m, n, k), dtype, bool(transpose_a), bool(transpose_b), out_dtype)
    _check_search(configs, limit=limit, samples=samples, jobs=jobs)
    if path is not None:
        check_record(pathlib.Path(path))
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
    sizes: tuple[int, int, int],
    dtype: DTypeLike,
    transpose_a: bool,
    transpose_b: bool,
    out_dtype: DTypeLike | None,
) -> Problem:
    """The product [m, k] x [k, n] of the sizes (m, n, k).

    Raises:
      TypeError, ValueError: for a product that the kernel cannot make.
    """
    m, n, k = (specs.integer(f"tune: {name}", size) for name, size in zip("mnk", sizes))
    if min(m, n, k) < 1:
        raise ValueError(f"tune: {m=}, {n=} and {k=} must be 1 or more: there is nothing to time.")
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        raise specs.wrong_type("tune: dtype", dtype, "it is the dtype of the factors") from None
    problem = Problem(m, n, k, name, transpose_a, transpose_b)
    a, b = problem.factors
    # `matmul` would raise these errors in each worker; they are raised here, before there is one.
    check_dtypes(a, b, transpose_a, transpose_b)
    stored = stored_dtype(a, out_dtype)
    arrays = [(a.shape, a.dtype), (b.shape, b.dtype), ((m, n), stored)]
    if not all(has_pieces(*array) for array in arrays):
        raise ValueError(
            f"tune: a {a.shape}, b {b.shape} and the output {(m, n)} must all have rows of a"
            f" multiple of {SWIZZLE} bytes, and at most {PIECE_ROWS} rows or a multiple of them;"
            " since they do not, most configurations cannot copy them, and a search would compare"
            " few: call matmul without config."
        )
    return problem if out_dtype is None else problem._replace(out_dtype=stored.name)


def _check_search(configs: object, **numbers: int | None) -> None:
    """Refuses arguments that leave nothing to measure.

    Raises:
      TypeError: `configs` is not a sequence of configurations, or a number is not an integer.
      ValueError: a number is less than 1.
    """
    for name, number in numbers.items():
        if number is not None and specs.integer(f"tune: {name}", number) < 1:
            raise ValueError(f"tune: {name}={number} is less than 1, so nothing would be measured.")
    if configs is None:
        return
    if not isinstance(configs, Sequence):
        because = "what is to be measured comes in a list, a single one too"
        raise specs.wrong_type("tune: configs", configs, because)
    for i, config in enumerate(cast(Sequence[object], configs)):
        if not isinstance(config, MatmulConfig):
            because = "a MatmulConfig says how a product is divided"
            raise specs.wrong_type(f"tune: configs[{i}]", config, because)


def tune_with(
    measurer: Measurer[MatmulConfig],
    problem: Problem,
    *,
    configs: Sequence[MatmulConfig] | None = None,
    limit: int = 60,
    log: Callable[[str], None] = print,
) -> Found[MatmulConfig]:
    """`tune` with a measurer; returns all rows.

    Raises:
      ValueError: there is no configuration to measure.
    """
    space = candidates(problem) if configs is None else configs
    if not space:
        raise ValueError(f"tune: there is no configuration to measure for {problem}.")
    trials = [Trial(config, Outcome.PREDICTED) for config in space]
    into = functools.partial(measured, trials, measurer, limit=limit, log=progress(problem, log))
    if configs is not None:
        return into(first=configs, near=nothing)
    return into(first=starts(space), near=functools.partial(neighbours, configs=space))


def progress[C: Hashable](
    problem: Work, log: Callable[[str], None]
) -> Callable[[Row[C], float], None]:
    """Makes `search`'s log: a line with the configuration, its rate and the best rate so far."""
    count = itertools.count(1)

    def rate(us: float) -> str:
        return f"{problem.flops / us / 1e6:.1f}"

    def line(row: Row[C], best: float) -> None:
        said = row.reason or f"{rate(row.median_us)} TFLOP/s (best {rate(best)})"
        log(f"{problem} {next(count)}. {label(row.config)}: {said}")

    return line
