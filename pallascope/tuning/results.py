"""`Results`: what a search found, as a table, a figure, and values.

The model. A row of the table is a `Trial`: those with a measured time first, then those with a
predicted one, each in the order of their times, then the rest. The columns on the left are the
values that differ within the space. Below the table are the reasons of what ended early, each once,
and what the reader must know to trust the times.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallascope.tuning.rows import Found
from pallascope.tuning.spaces import fields, label
from pallascope.tuning.trials import Outcome, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The rows of a table, without which a reader of a large space would find none.
_ROWS = 40
#: Of a search that measured nothing.
NOTHING: Found[Any] = Found((), ())
_TIMES = "predicted us", "measured us"


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
    found: Found[Any] = NOTHING

    @property
    def best(self) -> Trial | None:
        """The fastest that was measured, or else the fastest by prediction; None if there is none.

        The times of the last round count before earlier ones.
        """
        first = next(iter(self.trials), None)
        return first if first is not None and first.rank[0] < 2 else None

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
            from pallascope.tuning.drawing import plot
        except ImportError as error:
            raise ImportError(
                "Results.plot() needs matplotlib, which is not installed: pip install"
                " 'pallascope[draw]', or print the results, which needs nothing."
            ) from error
        return plot(self.trials)

    def _cells(self) -> list[list[str]]:
        """The table: its head, then a row for each of the first trials."""
        values = [fields(trial.config) for trial in self.trials]
        names = list(dict.fromkeys(name for each in values for name in each))
        differing = [n for n in names if len({repr(each.get(n)) for each in values}) > 1]
        names = differing or names
        rows = [
            [
                *(str(each.get(name, ".")) for name in names),
                _us(trial.predicted_us), _us(trial.measured_us),
                trial.bound.partition(":")[0] or ".", str(trial.outcome),
            ]
            for trial, each in zip(self.trials[:_ROWS], values)
        ]  # fmt: skip
        return [[*names, *_TIMES, "bound", "outcome"], *rows]

    def _below(self) -> list[str]:
        """Lines under the table: how many rows are left out, the best, reasons, notes."""
        hidden = len(self.trials) - _ROWS
        lines = [f"... and {hidden} more, slower or without a time."] if hidden > 0 else []
        return [*lines, _verdict(self.best), *_reasons(self.trials), *self.notes]


def _html(cells: Iterable[str], tag: str) -> str:
    """A row of an HTML table."""
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _us(us: float | None) -> str:
    return "." if us is None else f"{us:.1f}"


def _verdict(best: Trial | None) -> str:
    if best is None:
        return "No configuration can be run."
    if best.measured_us is None:
        return f"Best: {label(best.config)}, by prediction: {_us(best.predicted_us)} us."
    return f"Best: {label(best.config)}, measured: {_us(best.measured_us)} us."


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
