"""Plots the rates of kernels over a number of theirs, as slots or bytes, in a chapter.

The model. Times are what `book.compare` returns. A series is a line of the plot: for each place on
the axis the name of a kernel. The rate is work over the median time. Without times, in the
interpreter, nothing is shown.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt

from pallascope.bench.timing import Samples

_MARKERS = "os^D"


def show_rates(
    times: Mapping[str, Samples] | None,
    series: Mapping[str, Mapping[float, str]],
    *,
    work: float,
    unit: str,
    across: str,
    beside: str,
) -> None:
    """Shows a line for each series, and a level for one more function.

    Args:
      times: by name; None shows nothing.
      series: by label: from places on the axis to names.
      work: operations, or bytes, of one call of any of them.
      unit: of the rate, 1e12 a second; written beside the axis.
      across: what the places are.
      beside: the name whose rate is a dotted line over the whole plot.

    Example:
      >>> curves.show_rates(
      ...     None, {"alone": {1: "1 slot"}}, work=1e9, unit="TFLOP/s", across="slots",
      ...     beside="cuBLAS")
    """
    if times is None:
        return
    rate = lambda name: times[name].rate(work) / 1e12
    axes: Any = plt.subplots(figsize=(6, 3.6))[1]
    for (label, names), marker in zip(series.items(), _MARKERS):
        axes.plot([*names], [rate(name) for name in names.values()], f"{marker}-", label=label)
    axes.axhline(rate(beside), color="grey", linestyle=":", label=beside)
    axes.set(xlabel=across, ylabel=unit)
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()
