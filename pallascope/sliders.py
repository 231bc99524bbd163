"""`sweep` and `explore`: a kernel at every position of some sliders, computed before or live.

The model. A kernel factory is a function of the sliders' values, by name, that returns
`(kernel, args)`: what `trace` takes. A slider that is named like a field of the machine changes the
machine instead. At each position the kernel is traced and `judged`. If the factory, the trace or
the simulation raises an error, the error is that position's outcome, and never an exception in a
slider's callback. `sweep` does this for all positions, for a static page: `player(sweep(...))`.
`explore` does it whenever a slider moves, in a notebook with a kernel, and shows the same figure.

Not covered: anything of a kernel that `trace` refuses. Source: this project's own.
"""

import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from pallascope.arguments import MACHINE, expect, expect_flags, wrong_type
from pallascope.drawing.player import Setting, player
from pallascope.judging import judged
from pallascope.machine import FIELDS, H200, Machine
from pallascope.tracing.trace import expect_integers, trace

#: The most values of a slider.
MOST_VALUES = 1000
KernelFactory = Callable[..., tuple[Callable[..., object], tuple[object, ...]]]


def sweep(
    kernel_factory: KernelFactory,
    machine: Machine = H200,
    *,
    max_steps: int | None = None,
    whole_grid: bool = False,
    **ranges: Iterable[object],
) -> list[Setting]:
    """The settings of all combinations of the ranges' values, for `player`.

    Args:
      kernel_factory: called with a value for each range that is not the machine's; returns
        `(kernel, args)`.
      machine: the `Machine` to simulate on; by default `H200`, which the book's numbers are of.
      max_steps, whole_grid: as in `trace`.
      **ranges: the values of each slider, in order; the first of each is shown first. A name of a
        field of `machine` changes that instead of the kernel.

    Raises:
      TypeError: no function, no machine, or a range that is not a list of values.
      ValueError: a range is empty.

    Example:
      Rows of a step, and a machine with and without its latency of HBM:

      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> def kernel_factory(rows):
      ...     return functools.partial(softmax, slots=2, rows=rows), (x,)
      >>> settings = pallascope.sweep(
      ...     kernel_factory, rows=[2, 4], hbm_latency_cycles=[800, 0])
      >>> [setting.values for setting in settings][:2]
      [{'rows': 2, 'hbm_latency_cycles': 800},
       {'rows': 2, 'hbm_latency_cycles': 0}]
      >>> settings[0].timeline.cycles > settings[1].timeline.cycles
      True
    """
    values = _values("sweep", kernel_factory, machine, max_steps, whole_grid, ranges)
    return [
        _setting(kernel_factory, machine, max_steps, whole_grid, dict(zip(values, combination)))
        for combination in itertools.product(*values.values())
    ]


def explore(
    kernel_factory: KernelFactory,
    machine: Machine = H200,
    *,
    max_steps: int | None = None,
    whole_grid: bool = False,
    **ranges: Iterable[object],
) -> Any:
    """Sliders that trace, check and simulate the kernel anew whenever they move.

    Args:
      kernel_factory, machine, max_steps, whole_grid, **ranges: as in `sweep`.

    Returns:
      An `ipywidgets.VBox`: a notebook's cell shows it.

    Raises:
      ImportError: ipywidgets is not installed.
      TypeError, ValueError: as in `sweep`.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> def kernel_factory(rows):
      ...     return functools.partial(softmax, slots=2, rows=rows), (x,)
      >>> box = pallascope.explore(kernel_factory, rows=[2, 4])
      >>> [type(child).__name__ for child in box.children]
      ['SelectionSlider', 'Output']
    """
    positions = _values("explore", kernel_factory, machine, max_steps, whole_grid, ranges)
    try:
        ipywidgets = importlib.import_module("ipywidgets")
    except ImportError as error:
        raise ImportError(
            "explore() needs ipywidgets, which is not installed: `pip install ipywidgets`, or use"
            " player(sweep(...)), which needs nothing."
        ) from error
    sliders: dict[str, Any] = {
        name: ipywidgets.SelectionSlider(
            options=[(str(value), value) for value in values],
            description=name.replace("_", " "),
            style={"description_width": "9rem"},
        )
        for name, values in positions.items()
    }
    figure = ipywidgets.Output()

    def redraw(_: object = None) -> None:
        values = {name: slider.value for name, slider in sliders.items()}
        setting = _setting(kernel_factory, machine, max_steps, whole_grid, values)
        # Not by printing into it: this needs no display, and so no flicker.
        figure.outputs = (_output(setting),)

    for slider in sliders.values():
        slider.observe(redraw, "value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), figure])


def _values(
    who: str,
    kernel_factory: KernelFactory,
    machine: Machine,
    max_steps: int | None,
    whole_grid: bool,
    ranges: Mapping[str, Iterable[object]],
) -> dict[str, list[object]]:
    """The values of each slider; refuses what `who` can make no settings of."""
    if not callable(kernel_factory):
        remedy = "give one that returns (kernel, args)"
        raise wrong_type(who, kernel_factory, "a function", remedy)
    expect(who, machine, *MACHINE)
    expect_integers(who, max_steps=max_steps)
    expect_flags(who, whole_grid=whole_grid)
    values: dict[str, list[object]] = {}
    for name, found in ranges.items():
        expect(who, found, Iterable, f"a list of values for {name}=", "a slider goes through them")
        values[name] = [*itertools.islice(found, MOST_VALUES + 1)]
        if len(values[name]) > MOST_VALUES:
            raise ValueError(
                f"{who}: {name}= has more than {MOST_VALUES:,} values, of which each takes a trace"
                " and a place on a slider: give fewer."
            )
        if not values[name]:
            raise ValueError(f"The range {name} has 0 values: a slider needs 1 at least.")
    return values


def _setting(
    kernel_factory: KernelFactory,
    machine: Machine,
    max_steps: int | None,
    whole_grid: bool,
    values: dict[str, object],
) -> Setting:
    """Traces, checks and simulates at one position; never raises an Exception."""
    try:
        machine, rest = _apply(machine, values)
        kernel, args = _made(kernel_factory(**rest))
        program = trace(kernel, *args, max_steps=max_steps, whole_grid=whole_grid)
        return judged(program, machine, values, max_steps)
    except Exception as error:
        return Setting(values, None, type(error).__name__, False, str(error))


def _made(made: object) -> tuple[Callable[..., object], Iterable[object]]:
    """What a kernel factory returned; TypeError if it is anything but a function and arguments."""
    if isinstance(made, tuple):
        parts = cast(tuple[Any, ...], made)
        if len(parts) == 2 and isinstance(parts[1], (tuple, list)):
            return parts[0], cast(Iterable[object], parts[1])
    raise TypeError(
        f"The kernel factory returned {made!r:.60}, which is no (kernel, args): return the function"
        " and a tuple of its arguments."
    )


def _apply(machine: Machine, values: dict[str, object]) -> tuple[Machine, dict[str, object]]:
    """The machine with those values that are its fields; the rest of the values."""
    changes = {name: value for name, value in values.items() if name in FIELDS}
    rest = {name: value for name, value in values.items() if name not in FIELDS}
    return machine.changed(**changes), rest


def _output(setting: Setting) -> dict[str, Any]:
    """One display of the setting's figure, without sliders of its own."""
    try:
        figure = player([replace(setting, values={})])
    except ValueError as error:
        failed = Setting({}, None, "too much to draw", False, str(error))
        figure = player([failed])
    data = {"text/html": str(figure), "text/plain": repr(figure)}
    return {"output_type": "display_data", "data": data, "metadata": {}}
