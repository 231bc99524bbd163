"""`Results`: what a search found, as a table, a figure, and values.

The model. Measuring a configuration gives a `Row`, and all of a search's rows are `Found`. A
`Trial` is what is known of a configuration, measured or not: how far it came (`Outcome`). It goes
through these outcomes in this order, and stops at the first that ends it::

    does not fit, not traced, finding      ends it: it is never run
    predicted                              it waits to be measured, or was not among the best
    does not run, wrong                    ends it: it has no time that counts
    measured                               it has one

A row of the table is a `Trial`: those with a measured time first, then those with a predicted one,
each in the order of their times, then the rest. The columns on the left are the values that differ
within the space. Below the table are the reasons of what ended early, each once, and what the
reader must know to trust the times.

In the figure, where something was measured, a point is a configuration, its predicted time across
and its measured time up, and the line is where both are the same. Elsewhere a bar is a
configuration, the fastest first. In a notebook the figure shows itself as a timeline's does, in the
page's own text colour; it is not one of pyplot's figures, so no window opens, and none needs to be
closed.
"""

# What it asks of JAX has no types.
# pyright: basic

# Parts of the signatures of matplotlib's functions have no types.

import enum
import html
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pallascope.tuning.spaces import fields, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The rows of a table, without which a reader of a large space would find none.
_ROWS = 40
#: The bars of a figure, so that each has room for its name.
_BARS = 20
_TIMES = "predicted us", "measured us"


class Row[C: Hashable](NamedTuple):
    """What came of one configuration.

    Attributes:
      config: the configuration.
      us: the times of single products, in microseconds.
      error: the largest error of an element, in root mean squares of the result.
      reason: why the row does not count; empty if it counts.
    """

    config: C
    us: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""

    @property
    def median_us(self) -> float:
        """Infinite if the row does not count."""
        return median(self.us) if self.us and not self.reason else math.inf


class Measurer[C: Hashable](Protocol):
    """Measures configurations: on a GPU, or a test's stand-in."""

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Yields a row for each configuration, in any order."""
        ...

    def in_turn(self, configs: Sequence[C]) -> list[Row[C]]:
        """A row for each configuration, in this order; their samples are taken in turn."""
        ...


class Found[C: Hashable](NamedTuple):
    """What a search found.

    Attributes:
      rows: a row for each configuration that was measured.
      finals: the rows of its last round, in which the best were measured again.
    """

    rows: tuple[Row[C], ...]
    finals: tuple[Row[C], ...]

    @property
    def best(self) -> Row[C] | None:
        """The fastest of the last round; None if nothing counted."""
        counted = [row for row in self.finals if row.median_us < math.inf]
        return min(counted, key=lambda row: row.median_us, default=None)


#: Of a search that measured nothing.
NOTHING: Found[Hashable] = Found((), ())


class Outcome(enum.StrEnum):
    """How far a configuration came; equal to its words.

    Example:
      >>> [outcome.value for outcome in Outcome]
      ['does not fit', 'not traced', 'does not lower', 'finding', 'predicted', 'slow code',
       'does not run', 'wrong', 'measured']
    """

    REFUSED = "does not fit"
    UNTRACED = "not traced"
    UNLOWERED = "does not lower"
    FINDING = "finding"
    PREDICTED = "predicted"
    SLOW = "slow code"
    FAILED = "does not run"
    WRONG = "wrong"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a search found of one configuration.

    Attributes:
      config: the configuration: a dict, or what the space had.
      outcome: how far it came.
      reason: a sentence, if it ended early: the builder's refusal with its sum, the checker's
        finding with its remedy, the error; or what ptxas says that costs time.
      predicted_us: the time of the launch by the simulator, in microseconds; None if unknown.
      off: how far predictions of calls like it were off, a fraction in the mean; None if unknown.
      bound: what bounds the kernel in the simulation.
      us: the times of single launches, in microseconds, in the order taken.
      error: the largest error of an element, in root mean squares of the expected result.
      digest: the digest of what JAX traced for it (`pallascope.bench.jaxprs`).

    Example:
      >>> trial = Trial({"slots": 2}, Outcome.MEASURED, predicted_us=9.0, us=(10.0, 12.0, 11.0))
      >>> trial.measured_us, trial.outcome == "measured"
      (11.0, True)
    """

    config: Any  # a dict or what the space had: whoever wrote that knows the type
    outcome: Outcome
    reason: str = ""
    predicted_us: float | None = None
    bound: str = ""
    us: tuple[float, ...] = ()
    error: float | None = None
    digest: str = ""
    off: float | None = None

    @property
    def measured_us(self) -> float | None:
        """The median of its times; None if none counts."""
        return median(self.us) if self.outcome is Outcome.MEASURED else None

    @property
    def rank(self) -> tuple[int, float]:
        """What trials are sorted by: measured, predicted, slow by what ptxas says, the rest."""
        if self.measured_us is not None:
            return 0, self.measured_us
        predicted = math.inf if self.predicted_us is None else self.predicted_us
        return {Outcome.PREDICTED: 1, Outcome.SLOW: 2}.get(self.outcome, 3), predicted

    def measured(self, row: Row[Hashable]) -> "Trial":
        """This trial with what measuring gave."""
        outcome = Outcome.MEASURED
        if row.reason:
            outcome = Outcome.FAILED if row.error is None else Outcome.WRONG
        return replace(self, outcome=outcome, reason=row.reason, us=row.us, error=row.error)


@dataclass(frozen=True, slots=True)
class Results:
    """What a search found.

    Attributes:
      trials: one for each configuration that the search got to, the best first.
      notes: what to know about them, a sentence each.
      found: the rows of the measuring, with all samples; those of the last round are `finals`.

    Example:
      >>> print(Results((Trial({"slots": 2}, Outcome.PREDICTED, "", 9.0, "memory latency"),)))
      slots  predicted us  measured us  bound           outcome
          2           9.0            .  memory latency  predicted
      Best: slots=2, by prediction: 9.0 us.
    """

    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()
    found: Found[Hashable] = NOTHING

    @property
    def best(self) -> Trial | None:
        """The fastest that was measured, or else the fastest by prediction; None if there is none.

        The times of the last round count before earlier ones.
        """
        first = next(iter(self.trials), None)
        return first if first is not None and first.rank[0] < 3 else None

    def __str__(self) -> str:
        return "\n".join([*_aligned(self._cells()), *self._below()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        head, *rows = self._cells()
        lines = [_html(head, "th"), *(_html(row, "td") for row in rows)]
        below = "".join(f"<p>{html.escape(line)}</p>" for line in self._below())
        return f"<table>{''.join(lines)}</table>{below}"

    def plot(self) -> "Figure":
        """A figure: measured against predicted times, or the predicted ones in their order.

        Returns:
          A matplotlib figure, which a notebook shows.

        Raises:
          ImportError: matplotlib is not installed.
          ValueError: no configuration has a time.
        """
        try:
            import matplotlib

            from pallascope.drawing.plot import COLOURS, TimelineFigure
        except ImportError as error:
            raise ImportError(
                "Results.plot() needs matplotlib, which is not installed: pip install"
                " 'pallascope[draw]', or print the results, which needs nothing."
            ) from error
        predicted = [trial for trial in self.trials if trial.predicted_us is not None]
        measured = [trial for trial in predicted if trial.measured_us is not None]
        if not predicted:
            raise ValueError(
                f"None of the {len(self.trials)} configurations has a predicted time, so there is"
                " nothing to draw: print the results, which have the reasons."
            )
        figure = TimelineFigure(figsize=(7.0, 4.0), layout="constrained")
        figure.description = f"the times of {len(predicted)} configurations"
        with matplotlib.rc_context(COLOURS):
            axes = figure.add_subplot()
            axes.set_facecolor("none")
            _points(axes, measured) if measured else _bars(axes, predicted[:_BARS])
        return figure

    def _cells(self) -> list[list[str]]:
        """The table: its head, then a row for each of the first trials."""
        values = [fields(trial.config) for trial in self.trials]
        names = list(dict.fromkeys(name for each in values for name in each))
        differing = [n for n in names if len({repr(each.get(n)) for each in values}) > 1]
        names = differing or names
        rows = [
            [
                *(str(each.get(name, ".")) for name in names),
                _us(trial.predicted_us),
                _us(trial.measured_us),
                trial.bound.partition(":")[0] or ".",
                str(trial.outcome),
            ]
            for trial, each in zip(self.trials[:_ROWS], values)
        ]
        return [[*names, *_TIMES, "bound", "outcome"], *rows]

    def _below(self) -> list[str]:
        """Lines under the table: how many rows are left out, the best, reasons, notes."""
        hidden = len(self.trials) - _ROWS
        lines = [f"... and {hidden} more, slower or without a time."] if hidden > 0 else []
        apart = _apart(self.best, self.trials)
        return [*lines, _verdict(self.best), *apart, *_reasons(self.trials), *self.notes]


def _html(cells: Iterable[str], tag: str) -> str:
    """A row of an HTML table."""
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _us(us: float | None) -> str:
    return "." if us is None else f"{us:.1f}"


def _verdict(best: Trial | None) -> str:
    if best is None:
        return "No configuration can be run."
    if best.measured_us is None and best.predicted_us is None:
        return f"Best: {label(best.config)}, by the order of the space."
    if best.measured_us is None:
        return f"Best: {label(best.config)}, by prediction: {_us(best.predicted_us)} us."
    return f"Best: {label(best.config)}, measured: {_us(best.measured_us)} us."


def _apart(best: Trial | None, trials: Iterable[Trial]) -> list[str]:
    """How many the prediction does not tell from the best, where it alone says which that is."""
    if best is None or best.outcome is not Outcome.PREDICTED or not (us := best.predicted_us):
        return []
    if best.off is None:
        return []
    near = [trial for trial in trials if (trial.predicted_us or math.inf) <= us * (1 + best.off)]
    others = f"so it does not tell {len(near)} of them apart: measure these."
    others = "and all others are further behind." if len(near) == 1 else others
    return [f"The prediction of calls like these is {best.off:.0%} off in the mean, {others}"]


def _reasons(trials: Iterable[Trial]) -> list[str]:
    """Each reason once, with its first configuration and how many others have the same."""
    found: dict[tuple[Outcome, str], list[Trial]] = {}
    for trial in trials:
        if trial.reason:
            found.setdefault((trial.outcome, trial.reason), []).append(trial)
    lines: list[str] = []
    for (outcome, reason), same in found.items():
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(f"{label(same[0].config)}{others}: {outcome}: {reason}")
    return lines


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table with columns of equal width: numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    words = {len(widths) - 2, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


def _points(axes: "Axes", trials: Sequence[Trial]) -> None:
    """Measured against predicted times."""
    across = [trial.predicted_us or 0.0 for trial in trials]
    up = [trial.measured_us or 0.0 for trial in trials]
    both = [0.0, 1.05 * max(*across, *up)]
    axes.plot(both, both, color="#999999", linewidth=1)
    axes.scatter(across, up)
    axes.annotate(label(trials[0].config), (across[0], up[0]))
    axes.set(xlabel="predicted, us", ylabel="measured, us", xlim=both, ylim=both)


def _bars(axes: "Axes", trials: Sequence[Trial]) -> None:
    """Predicted times, the fastest on top."""
    names = [label(trial.config) for trial in trials]
    axes.barh(range(len(names)), [trial.predicted_us or 0.0 for trial in trials])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="predicted, us")
