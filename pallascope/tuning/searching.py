"""`search`: ranks the configurations of a kernel by simulation, and measures the best few.

The model. Every configuration is looked at without running it (`looking`): built, traced, checked,
simulated. One that does not fit, or in which the checker finds a fault, ends there: **it is never
run**. The others are ranked by their predicted times. Where a GPU is, the best few are measured
(`calls`), then configurations that differ in one value from the best so far, then the best of these
once more, in turn (`climbing`): a prediction may be wrong, and a neighbour of a good configuration
is often good. Where no GPU is, the ranking is the answer.

Where kernels run. In this process, by default: then the kernel may be a closure, as in a notebook,
and what hangs, hangs this process, which the check is there for. With `jobs=` they compile and run
in processes of their own, which are ended when a kernel hangs.

Interruptions. A `KeyboardInterrupt` ends the search, which returns what it has, and says so. With
`cache=` the next search goes on from there, and does nothing twice that was done with the same
kernel on the same GPU.

Not covered: other blocks than the first, which are not checked; several kernels in one function;
other programs on the same GPU.
"""

import contextlib
import functools
import math
import os
import random
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax

from pallascope.arguments import MACHINE, expect
from pallascope.bench.jaxprs import digest, digest_of
from pallascope.machine import H200, Machine
from pallascope.tuning.cache import Cache
from pallascope.tuning.calls import MEASURING, Calls, FirstThatRuns, check_sendable
from pallascope.tuning.climbing import Interrupted, climb
from pallascope.tuning.here import Here
from pallascope.tuning.kept import Kept
from pallascope.tuning.looking import look
from pallascope.tuning.on_gpu import search_workers
from pallascope.tuning.progress import Progress, steps
from pallascope.tuning.results import NOTHING, Results
from pallascope.tuning.rows import Found, Measurer, Row
from pallascope.tuning.spaces import KernelOf, Space, configurations, label, neighbours
from pallascope.tuning.trials import Outcome, Trial
from pipelib import specs
from pipelib.kernels.hopper import default_device

#: How many configurations are measured on a Hopper GPU, if nobody says.
MEASURED = 8
INTERRUPTED = "The search was interrupted: with a cache=, the next one goes on from here."


def search(
    kernel_of: KernelOf,
    space: Space,
    *args: Any,
    machine: Machine = H200,
    expected: Any = None,
    tolerance: float | None = None,
    measure: int | None = None,
    seconds: float = math.inf,
    jobs: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress = True,
) -> Results:
    """Searches for the fastest configuration of a kernel; a kernel with a finding is never run.

    Args:
      kernel_of: returns the kernel of a configuration: a function of `args` that calls one Mosaic
        GPU kernel. A ValueError of it says that the configuration does not fit.
      space: a dict of ranges, as `dict(slots=[2, 3], tile=[64, 128])`, of which every combination
        is looked at, as `kernel_of(slots=2, tile=64)`; or an iterable of such dicts, or of values
        that can be hashed, as frozen dataclasses, as `kernel_of(config)`.
      *args: arrays and numbers. A `jax.ShapeDtypeStruct` of floats is as good: where kernels are
        measured, normal random numbers are drawn for it.
      machine: what the simulation is of; by default `pallascope.H200`.
      expected: what results are compared with: an array or a tree of them, or a function of `args`
        that JAX can compile. By default, the result of the best configuration by prediction.
      tolerance: the largest error of a right element, in root mean squares of the expected array;
        by default what its dtype rounds (0.05 in bfloat16, 0.006 in float16).
      measure: how many configurations are measured; by default 8 on a Hopper GPU, none elsewhere.
      seconds: nothing begins after so long, but the last round of measuring. At most half of it
        goes into looking, in a random order.
      jobs: how many processes compile; by default kernels compile and run in this one. `pickle`
        must be able to send `kernel_of`, `args` and `expected` to them, by name.
      cache: a JSON file with what was found; the next search with it does none of this again.
      progress: True for tqdm's bar (the extra `tune`), or printed lines without tqdm; a function
        that gets the lines; False for none.

    Returns:
      `Results`: print them for a table, `plot()` them, take `best`.

    Raises:
      TypeError: no function, no space, a name that `kernel_of` does not take, no machine.
      ValueError: a space without configurations, a number out of its range, a cache that is no
        cache; something to measure where no GPU is; something that `jobs` cannot be sent.

    Example:
      A softmax of rows, in slots and rows of a step:

      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
      >>> def kernel_of(slots, rows):
      ...     return functools.partial(softmax, slots=slots, rows=rows)
      >>> space = dict(slots=[1, 2, 300], rows=[1, 2])
      >>> results = pallascope.tuning.search(kernel_of, space, x, progress=False)
      >>> print(results)
      slots  rows  predicted us  measured us  bound...outcome
      ...
      Best: slots=..., rows=..., by prediction: ... us.
      slots=300, rows=1 and 1 more: does not fit: softmax: slots=300 is not 1
      to 32, the most that one array of barriers has.
    """
    start = time.monotonic()
    configs = configurations(kernel_of, space)
    expect("search", machine, *MACHINE)
    limit = _limit(measure, seconds, jobs)
    if jobs is not None and limit:
        check_sendable(kernel_of, args, expected)
    kept = Cache(cache)
    looking = functools.partial(look, kernel_of, args=args, machine=machine, cache=kept)
    trials, notes = _look_at(configs, looking, progress, start + seconds / 2)
    ranked = [trial for trial in trials if trial.outcome is Outcome.PREDICTED]
    if not (limit and ranked) or INTERRUPTED in notes:
        return results_of(trials, NOTHING, notes)
    if expected is None:
        expected = FirstThatRuns(kernel_of, tuple(trial.config for trial in ranked[:3]))
        notes.append(f"No expected= was given: results were compared with {expected}'s.")
    keys = _keys(ranked, args, expected, tolerance)
    with (
        search_workers(jobs) if jobs else contextlib.nullcontext(Here()) as executor,
        steps(progress, "measuring", min(limit, len(ranked))) as step,
    ):
        calls = Calls(executor, kernel_of, args, expected, tolerance)
        measurer = Kept(calls, kept, keys.__getitem__)
        deadline, log = start + seconds, functools.partial(_tell, step)
        try:
            found = measured(
                trials, measurer, limit=limit, log=log, deadline=deadline, at_once=max(8, jobs or 1)
            )
        except Interrupted as interrupted:
            found = interrupted.found
            notes.append(INTERRUPTED)
    return results_of(trials, found, notes)


def measured[C: Hashable](
    trials: Sequence[Trial],
    measurer: Measurer[C],
    *,
    limit: int,
    first: Sequence[C] | None = None,
    near: Callable[[C], Iterable[C]] | None = None,
    log: Callable[[Row[C], float], None] = lambda row, best: None,
    deadline: float = math.inf,
    at_once: int = 8,
) -> Found[C]:
    """Measures the best of some trials; `search` and `tune` differ in what they know of them.

    Args:
      trials: what is known of the configurations, the best first.
      measurer: measures them.
      limit: the most configurations that are measured.
      first: those to begin with; by default the best by prediction.
      near: the neighbours of a configuration; by default those that differ in one value.
      log, deadline, at_once: as in `climb`.

    Raises:
      Interrupted: in place of a `KeyboardInterrupt`.
    """
    ranked = [trial.config for trial in trials if trial.outcome is Outcome.PREDICTED]
    if near is None:
        every = functools.partial(neighbours, ranked=ranked)
        near = every if limit < len(ranked) else nothing
    begin = ranked if first is None else first
    return climb(begin, near, measurer, limit=limit, log=log, deadline=deadline, at_once=at_once)


def nothing(config: Any) -> Sequence[Any]:
    """The neighbours of a configuration, where only the first ones are to be measured."""
    del config
    return ()


def results_of(trials: Sequence[Trial], found: Found[Any], notes: Sequence[str]) -> Results:
    """The trials with what was measured of them, the best first."""
    rows = {row.config: row for row in (*found.rows, *found.finals)}
    finals = {row.config for row in found.finals}
    merged = [t.measured(rows[t.config]) if t.config in rows else t for t in trials]
    # A time of the last round is compared with others of it only.
    merged.sort(key=lambda trial: (trial.rank[0], trial.config not in finals, trial.rank[1]))
    wrong = sum(trial.outcome is Outcome.WRONG for trial in merged)
    said = [f"{wrong} of {len(rows)} that ran have a wrong result."] if wrong else []
    return Results(tuple(merged), (*notes, *said), found)


def _look_at(
    configs: list[Any], looking: Callable[[Any], Trial], progress: Progress, deadline: float
) -> tuple[list[Trial], list[str]]:
    """Looks at configurations while there is time; the trials, the best first, and notes."""
    trials: list[Trial] = []
    notes: list[str] = []
    order = configs if math.isinf(deadline) else random.Random(0).sample(configs, len(configs))
    with steps(progress, "predicting", len(configs)) as step:
        try:
            for config in order:
                if trials and time.monotonic() > deadline:
                    break
                trials.append(looking(config))
                step(f"{label(config)}: {trials[-1].outcome}")
        except KeyboardInterrupt:
            notes.append(INTERRUPTED)
    if missing := len(configs) - len(trials):
        notes.append(f"{missing} of {len(configs)} configurations were not looked at.")
    return sorted(trials, key=lambda trial: trial.rank), notes


def _keys(
    trials: Sequence[Trial], args: tuple[Any, ...], expected: Any, tolerance: float | None
) -> dict[Any, str]:
    """For each configuration, the digest of all that its measurement depends on."""
    if isinstance(expected, FirstThatRuns):
        compared: Any = [trial.digest for trial in trials[: len(expected.configs)]]
    else:
        compared = digest(expected, *args) if callable(expected) else jax.tree.leaves(expected)
    where = default_device().device_kind, jax.__version__, MEASURING
    same = digest_of((where, args, compared, tolerance))
    return {trial.config: digest_of((trial.digest, same)) for trial in trials}


def _limit(measure: int | None, seconds: float, jobs: int | None) -> int:
    """How many configurations are measured; refuses numbers out of their range."""
    if not seconds > 0:
        raise ValueError(f"search: {seconds=} is not above 0, so nothing could begin.")
    if jobs is not None and specs.integer("search: jobs", jobs) < 1:
        raise ValueError(f"search: {jobs=} is less than 1, so nothing would be compiled.")
    device = default_device()
    if measure is None:
        return MEASURED if getattr(device, "compute_capability", "").startswith("9.") else 0
    if specs.integer("search: measure", measure) < 0:
        raise ValueError(f"search: {measure=} is less than 0: 0 is for the ranking alone.")
    if measure and device.platform != "gpu":
        raise ValueError(
            f"search: {measure=}, but JAX runs on {device.platform}, where kernels are interpreted:"
            " their times would say nothing about a GPU, so leave measure= out for the ranking."
        )
    return measure


def _tell(step: Callable[[str], None], row: Row[Any], best: float) -> None:
    """Shows progress with a configuration that was measured."""
    said = row.reason or f"{row.median_us:.1f} us (best {best:.1f})"
    step(f"{label(row.config)}: {said}")
