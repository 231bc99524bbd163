"""`search`: ranks the configurations of a kernel, and measures the best few.

The model. A search has a rank, and then measures. The rank is by simulation, unless the space comes
in an order: every configuration is looked at without running it (`ranking`): built, traced,
checked, simulated. One that does not fit, or in which the checker finds a fault, ends there: **it
is never run**. In a space that is `Ranked`, which may be too large to simulate, the checker looks
at those that are measured, where they are compiled.

Where a GPU is, the best few are measured (`measuring`), then neighbours of the best three so far, a
few at a time, until there is nothing new, or the limit or the time is reached (`climb`): a rank may
be wrong, and a neighbour of a good configuration is often good. A configuration counts by its
median time if it compiled, ran in time and was right; otherwise its row has the reason. The GPU's
clock drifts over a search, so the best few are measured once more, in turn, and the fastest of
these wins. Where no GPU is, the ranking is the answer.

Where kernels run. In this process, by default: then the kernel may be a closure, as in a notebook,
and what hangs, hangs this process, which the check is there for. With `jobs=` they compile and run
in processes of their own, which are ended when a kernel hangs.

Interruptions. A `KeyboardInterrupt` ends the search, which returns what it has, and says so. With
`cache=` the next search goes on from there, and does nothing twice that was done with the same
kernel on the same GPU.

Progress. What shows it is tqdm's bar; where tqdm is not installed, a printed line for each
configuration; or a function of the caller's, which gets that line; or nothing.

Not covered: blocks beside the grid's diagonal; several kernels in one function; other programs on
the same GPU; neighbourhoods with several valleys, of which the first configurations must have one
each.
"""

import contextlib
import functools
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral, Real

import jax

from pallascope import compiling
from pallascope.arguments import MACHINE, expect, expect_flags, expect_range
from pallascope.bench.jaxprs import digest, digest_of
from pallascope.machine import H200, Machine
from pallascope.progress import Progress, steps
from pallascope.tuning.cache import Cache, FromCache
from pallascope.tuning.measuring import MEASURING, Calls, FirstThatRuns, check_sendable
from pallascope.tuning.ranking import look, weeded
from pallascope.tuning.results import NOTHING, Found, Measurer, Outcome, Results, Row, Trial
from pallascope.tuning.spaces import (
    Config,
    KernelOf,
    Ranked,
    Space,
    configurations,
    kernel,
    label,
    neighbours,
    starts,
)
from pallascope.tuning.workers import Here, search_workers
from pipelib.targets import default_device

#: How many configurations are measured on a Hopper GPU, if nobody says.
MEASURED = 8
INTERRUPTED = "The search was interrupted: with a cache=, the next one goes on from here."


def search(
    kernel_of: KernelOf,
    space: Space,
    *args: object,
    machine: Machine = H200,
    expected: object = None,
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
        that can be hashed, as frozen dataclasses, as `kernel_of(config)`; or `spaces.Ranked`, such
        values in an order of yours, in place of the simulation's.
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
      cache: a file with what was found, a SQLite database; the next search with it does none of
        this again. Several searches can share it at the same time.
      progress: True for tqdm's bar (the extra `tune`), or printed lines without tqdm; a function
        that gets the lines; False for none.

    Returns:
      `Results`: print them for a table, `plot()` them, take `best`.

    Raises:
      TypeError: no function, no space, a name that `kernel_of` does not take, no machine.
      ValueError: a space without configurations, a number out of its range, a cache that is no
        cache or cannot be written; something to measure where no GPU is; something that `jobs`
        cannot be sent.

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
      The prediction of calls like these is ...% off in the mean, ...
      slots=300, rows=1 and 1 more: does not fit: softmax: slots=300 is not 1
      to 32, the most that one array of barriers has.
    """
    start = time.monotonic()
    configs = configurations(kernel_of, space)
    expect("search", machine, *MACHINE)
    limit = _limit(measure, seconds, jobs)
    expect_range("search", 0, math.inf, "as an error has", kind=Real, tolerance=tolerance)
    if not callable(progress):
        expect_flags("search", progress=progress)
    if jobs is not None and limit:
        check_sendable(kernel_of, args, expected)
    with Cache(cache) as kept:
        if isinstance(space, Ranked):
            ranked = space._replace(configs=configs)
            measurer, notes = functools.partial(Calls, is_checked=True), list[str]()
            trials = [Trial(config, Outcome.PREDICTED) for config in configs]
        else:
            looking = functools.partial(look, kernel_of, args=args, machine=machine, cache=kept)
            trials, notes = _look_at(configs, looking, progress, start + seconds / 2)
            if not limit and not compiling.lacking():  # what is measured needs no other judge
                trials = sorted(weeded(kernel_of, trials, args), key=lambda trial: trial.rank)
            may_run = [trial.config for trial in trials if trial.outcome is Outcome.PREDICTED]
            ranked, measurer = Ranked(may_run), Calls
        if not (limit and ranked.configs) or INTERRUPTED in notes:
            return results_of(trials, NOTHING, notes)
        if expected is None:
            expected = FirstThatRuns(kernel_of, tuple(ranked.configs[:3]))
            notes.append(f"No expected= was given: results were compared with {expected}'s.")
        key_of = _keys(kernel_of, trials, args, expected, tolerance)
        with (
            search_workers(jobs) if jobs else contextlib.nullcontext(Here()) as executor,
            steps(progress, "measuring", min(limit, len(ranked.configs))) as step,
        ):
            calls = measurer(executor, kernel_of, args, expected, tolerance)
            try:
                found = measured(
                    ranked,
                    FromCache(calls, kept, key_of),
                    limit=limit,
                    log=functools.partial(_tell, step),
                    deadline=start + seconds,
                    at_once=max(8, jobs or 1),
                )
            except Interrupted as interrupted:
                found = interrupted.found
                notes.append(INTERRUPTED)
    return results_of(trials, found, notes)


def measured[C: Hashable](
    space: Ranked,
    measurer: Measurer[C],
    *,
    limit: int,
    log: Callable[[Row[C], float], None] = lambda row, best: None,
    deadline: float = math.inf,
    at_once: int = 8,
) -> Found[C]:
    """Measures the likeliest configurations of a space, and neighbours of the best.

    Args:
      space: the configurations, the likeliest first.
      measurer: measures them.
      limit: the most configurations that are measured.
      log, deadline, at_once: as in `climb`.

    Raises:
      Interrupted: in place of a `KeyboardInterrupt`.
    """
    is_all = limit >= len(space.configs) and not space.groups
    near = nothing if is_all else functools.partial(neighbours, space=space)
    begin: list[C] = starts(space)
    return climb(begin, near, measurer, limit=limit, log=log, deadline=deadline, at_once=at_once)


def nothing[C: Hashable](config: C) -> Sequence[C]:
    """The neighbours of a configuration, where only the first ones are to be measured."""
    del config
    return ()


class Interrupted(KeyboardInterrupt):
    """A `KeyboardInterrupt` with what had been `found` by then."""

    def __init__(self, found: Found[Config]) -> None:
        super().__init__("the search was interrupted")
        self.found = found


def climb[C: Hashable](
    first: Sequence[C],
    near: Callable[[C], Iterable[C]],
    measurer: Measurer[C],
    *,
    limit: int = 60,
    at_once: int = 8,
    finalists: int = 6,
    log: Callable[[Row[C], float], None] = lambda row, best: None,
    deadline: float = math.inf,
) -> Found[C]:
    """Measures the first configurations, then neighbours of the best three, until none is new.

    Args:
      first: the configurations to begin with, at most half of `limit` if they have neighbours; the
        others come when no neighbour is new.
      near: gives the neighbours of a configuration.
      measurer: measures configurations.
      limit: the most configurations that are measured.
      at_once: how many neighbours are measured before the next ones are picked.
      finalists: how many of the best are measured again, in turn.
      log: called with each row and the best median so far.
      deadline: of `time.monotonic`; after it nothing begins but the last round.

    Raises:
      Interrupted: in place of a `KeyboardInterrupt`.
    """
    rows: dict[C, Row[C]] = {}
    batch, best = list(dict.fromkeys(first))[:limit], math.inf
    if any(True for config in batch for _ in near(config)):
        batch = batch[: max(1, limit // 2)]
    part = None if math.isinf(deadline) else at_once
    try:
        while batch and time.monotonic() < deadline:
            now, batch = batch[:part], batch[part:] if part else []
            for row in measurer.each(now):
                rows[row.config], best = row, min(best, row.median_us)
                log(row, best)
            if batch:
                continue
            around = [config for row in _ranked(rows.values())[:3] for config in near(row.config)]
            new = (config for config in dict.fromkeys([*around, *first]) if config not in rows)
            batch = list(itertools.islice(new, min(at_once, limit - len(rows))))
        finals = measurer.in_turn([row.config for row in _ranked(rows.values())[:finalists]])
    except KeyboardInterrupt:
        raise Interrupted(Found(tuple(rows.values()), ())) from None
    return Found(tuple(rows.values()), tuple(finals))


def _ranked[C: Hashable](rows: Iterable[Row[C]]) -> list[Row[C]]:
    """The rows that count, the fastest first."""
    return sorted((row for row in rows if row.median_us < math.inf), key=lambda row: row.median_us)


def results_of(trials: Sequence[Trial], found: Found[Config], notes: Sequence[str]) -> Results:
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
    configs: list[Config],
    looking: Callable[[Config], Trial],
    progress: Progress,
    deadline: float,
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
    kernel_of: KernelOf,
    trials: Sequence[Trial],
    args: tuple[object, ...],
    expected: object,
    tolerance: float | None,
) -> Callable[[Config], str]:
    """A function of a configuration: the digest of all that its measurement depends on.

    It is empty for a configuration whose kernel cannot be traced.
    """
    known = {trial.config: trial.digest for trial in trials if trial.digest}

    def compiled(config: Config) -> str:
        if config not in known:
            known[config] = ""
            with contextlib.suppress(Exception):
                known[config] = digest(kernel(kernel_of, config), *args)
        return known[config]

    if isinstance(expected, FirstThatRuns):
        compared: object = [compiled(config) for config in expected.configs]
    else:
        compared = digest(expected, *args) if callable(expected) else jax.tree.leaves(expected)
    where = default_device().device_kind, jax.__version__, MEASURING
    same = digest_of((where, args, compared, tolerance))
    return lambda config: digest_of((compiled(config), same)) if compiled(config) else ""


def _limit(measure: int | None, seconds: float, jobs: int | None) -> int:
    """How many configurations are measured; refuses numbers out of their range."""
    expect("search", seconds, Real, "a number for seconds=", "leave it out for no end")
    if not seconds > 0:
        raise ValueError(f"search: {seconds=} is not above 0, so nothing could begin.")
    for name, number in dict(measure=measure, jobs=jobs).items():
        if number is not None:
            expect("search", number, Integral, f"an integer for {name}=", "leave it out, or count")
    if jobs is not None and jobs < 1:
        raise ValueError(f"search: {jobs=} is less than 1, so nothing would be compiled.")
    device = default_device()
    if measure is None:
        return MEASURED if getattr(device, "compute_capability", "").startswith("9.") else 0
    if measure < 0:
        raise ValueError(f"search: {measure=} is less than 0: 0 is for the ranking alone.")
    if measure and device.platform != "gpu":
        raise ValueError(
            f"search: {measure=}, but JAX runs on {device.platform}, where kernels are interpreted:"
            " their times would say nothing about a GPU, so leave measure= out for the ranking."
        )
    return measure


def _tell(step: Callable[[str], None], row: Row[Config], best: float) -> None:
    """Shows progress with a configuration that was measured."""
    said = row.reason or f"{row.median_us:.1f} us (best {best:.1f})"
    step(f"{label(row.config)}: {said}")
