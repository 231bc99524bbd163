"""`plot`: the trials of a search as a matplotlib figure.

The model. Where something was measured, a point is a configuration, its predicted time across and
its measured time up, and the line is where both are the same. Elsewhere a bar is a configuration,
the fastest first. In a notebook the figure shows itself as a timeline's does, in the page's own
text colour; it is not one of pyplot's figures, so no window opens, and none needs to be closed.
"""

# Parts of the signatures of matplotlib's functions have no types.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pallascope.drawing.plot import COLOURS, TimelineFigure
from pallascope.tuning.spaces import label
from pallascope.tuning.trials import Trial

#: The bars of a figure, so that each has room for its name.
_BARS = 20


def plot(trials: Sequence[Trial]) -> Figure:
    """The figure.

    Args:
      trials: the best first.

    Raises:
      ValueError: none has a time.
    """
    predicted = [trial for trial in trials if trial.predicted_us is not None]
    measured = [trial for trial in predicted if trial.measured_us is not None]
    if not predicted:
        raise ValueError(
            f"None of the {len(trials)} configurations has a predicted time, so there is nothing to"
            " draw: print the results, which have the reasons."
        )
    figure = TimelineFigure(figsize=(7.0, 4.0), layout="constrained")
    figure.description = f"the times of {len(predicted)} configurations"
    with matplotlib.rc_context(COLOURS):
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        _points(axes, measured) if measured else _bars(axes, predicted[:_BARS])
    return figure


def _points(axes: Axes, trials: Sequence[Trial]) -> None:
    """Measured against predicted times."""
    across = [trial.predicted_us or 0.0 for trial in trials]
    up = [trial.measured_us or 0.0 for trial in trials]
    both = [0.0, 1.05 * max(*across, *up)]
    axes.plot(both, both, color="#999999", linewidth=1)
    axes.scatter(across, up)
    axes.annotate(label(trials[0].config), (across[0], up[0]))
    axes.set(xlabel="predicted, us", ylabel="measured, us", xlim=both, ylim=both)


def _bars(axes: Axes, trials: Sequence[Trial]) -> None:
    """Predicted times, the fastest on top."""
    names = [label(trial.config) for trial in trials]
    axes.barh(range(len(names)), [trial.predicted_us or 0.0 for trial in trials])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="predicted, us")
