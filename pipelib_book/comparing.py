"""Compares a kernel's result with its reference, and functions by their times.

The model. `check` takes the error of `judging`; `compare` and `fastest` take the samples of
`pallascope.bench.timing`, whose median counts and whose quartiles say what can be told apart.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from pallascope.bench import timing
from pipelib_book.judging import judge
from pipelib_book.notebook import pick, say


def check(name: str, actual: Any, expected: Any, *, tolerance: float) -> None:
    """Says how far a kernel's result is from its reference; raises if too far.

    Raises:
      AssertionError: If its `relative_error` exceeds `tolerance`, is not a number, or cannot be
        measured, since shapes or dtypes differ.

    Example:
      >>> x = jnp.arange(4.0)
      >>> book.check("x + 1", x + 1, [1.0, 2.0, 3.0, 4.0], tolerance=1e-6)
      x + 1: relative error 0.0e+00, within 1e-06.
      >>> book.check("x + 1", x, [1.0, 2.0, 3.0, 4.0], tolerance=1e-6)
      Traceback (most recent call last):
      AssertionError: x + 1 is wrong: relative error 3.7e-01, over 1e-06.
    """
    is_right, said = judge(name, [(actual, expected)], tolerance)
    if not is_right:
        raise AssertionError(said)
    say(said)


def compare(
    functions: Mapping[str, Callable[..., Any]],
    *args: Any,
    flops: float | None = None,
    bytes_moved: float | None = None,
) -> dict[str, timing.Samples] | None:
    """Times functions of the same arguments in one run, and shows a table.

    Of each 3 bursts of 20 launches, in turn, each after a rest of 0.1 seconds.

    Args:
      functions: by name; the first is what the others are compared with.
      args: what each is called with.
      flops, bytes_moved: operations, or bytes read and written, of one call;
        one of them, to show a rate.

    Returns:
      The samples by name; None in the interpreter, whose times mean nothing.

    Example:
      On a Hopper GPU this shows a table, a row for each function. Elsewhere:

      >>> _ = book.setup()
      No Hopper GPU here ...
      >>> a = jnp.ones((128, 128))
      >>> functions = {"dot": jnp.dot, "matmul": jnp.matmul}
      >>> book.compare(functions, a, a, flops=2 * 128**3)
      Not timed here: the interpreter's times say nothing about a GPU.
    """
    if not pick(gpu=True, cpu=False):
        say("Not timed here: the interpreter's times say nothing about a GPU.")
        return None
    results = timing.measure(functions, args, rounds=3, rest_s=timing.REST_S)
    work, unit = (flops, "TFLOP/s") if flops else (bytes_moved or math.nan, "TB/s")
    first = next(iter(results.values())).median_us
    rows = [f"| function | µs, median | ± half spread | {unit} | speed |"]
    rows.append("|---|--:|--:|--:|--:|")
    for name, samples in results.items():
        rate, speed = samples.rate(work) / 1e12, first / samples.median_us
        half = samples.spread_us / 2
        rows.append(
            f"| {name} | {samples.median_us:.1f} | {half:.1f} | {rate:.{0 if flops else 2}f}"
            f" | {speed:.2f}x |"
        )
    say("\n".join(rows))
    return results


def fastest(times: Mapping[str, timing.Samples]) -> tuple[str, str]:
    """The fastest of some functions, and a sentence that says whether others may be as fast.

    The fastest has the least median, and is the first of those that have it. Another cannot be told
    apart from it where the ranges between their quartiles overlap or touch: within them lies the
    middle half of the times of each.

    Args:
      times: by name, two samples or more each; what `compare` returns, or a part of it.

    Returns:
      (name of the fastest, sentence in Markdown that begins with this name).

    Raises:
      ValueError: If there are no times.

    Example:
      >>> times = {"1 slot": Samples((20.0, 21.0, 22.0))}
      >>> times["2 slots"] = Samples((10.0, 11.0, 12.0))
      >>> best, said = book.fastest(times)
      >>> print(said)
      **2 slots** is the fastest.
      >>> times["4 slots"] = Samples((11.0, 12.0, 13.0))
      >>> best, said = book.fastest(times)
      >>> print(said)
      **2 slots** is the fastest by its median, but it cannot be told apart
      from **4 slots**: the middle halves of their times overlap.
    """
    if not times:
        raise ValueError("No function was timed, so none is the fastest: give one or more.")
    best = min(times, key=lambda name: times[name].median_us)
    _, slowest = _middle_half(times[best])
    others = [name for name in times if name != best and _middle_half(times[name])[0] <= slowest]
    if not others:
        return best, f"**{best}** is the fastest."
    *first, last = (f"**{name}**" for name in others)
    names = f"{', '.join(first)} and {last}" if first else last
    return best, (
        f"**{best}** is the fastest by its median, but it cannot be told apart from {names}: the"
        f" middle halves of their times overlap{' with its own' if first else ''}."
    )


def _middle_half(samples: timing.Samples) -> tuple[float, float]:
    """The quartiles, in microseconds, between which `Samples.spread_us` is the distance."""
    low, _, high = statistics.quantiles(samples.microseconds, n=4)
    return low, high
