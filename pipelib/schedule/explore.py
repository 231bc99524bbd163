"""`sweep` and `explore`: a kernel at every position of some sliders, worked out before or live.

The model. A kernel factory is a function of the sliders' values, by name, that returns
`(kernel, args)`: what `trace` takes. A slider that is named like a field of the machine is not the
factory's but changes the machine. At each position the kernel is traced, checked and simulated;
what goes wrong on the way (the factory, the trace or the simulation raises) is that position's
outcome, and never an exception in a slider's callback. `sweep` does so for all positions, for a
static page: `player(sweep(...))`. `explore` does so whenever a slider moves, in a notebook with a
kernel, and shows the same figure.

Not covered: anything of a kernel that `trace` refuses. Source: this project's own.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipelib.schedule.player import Setting, player

if TYPE_CHECKING:
    from pipelib.schedule.machine import Machine

KernelFactory = Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]


def sweep(
    kernel_factory: KernelFactory,
    machine: "Machine | None" = None,
    *,
    max_steps: int | None = None,
    **ranges: Iterable[Any],
) -> list[Setting]:
    """The settings of all combinations of the ranges' values, for `player`.

    Args:
      kernel_factory: called with a value for each range that is not the machine's; returns
        `(kernel, args)`.
      machine: the `Machine` to simulate on; by default `H100`.
      max_steps: as in `trace`.
      **ranges: the values of each slider, in order; the first of each is shown first. A name of a
        field of `machine` changes that instead of the kernel.

    Raises:
      ValueError: a range is empty.
    """
    values = _values(ranges)
    return [
        _setting(kernel_factory, machine, max_steps, dict(zip(values, combination)))
        for combination in itertools.product(*values.values())
    ]


def explore(
    kernel_factory: KernelFactory,
    machine: "Machine | None" = None,
    *,
    max_steps: int | None = None,
    **ranges: Iterable[Any],
) -> Any:
    """Sliders that trace, check and simulate the kernel anew whenever they move.

    Args:
      kernel_factory, machine, max_steps, **ranges: as in `sweep`.

    Returns:
      An `ipywidgets.VBox`: a notebook's cell shows it.

    Raises:
      ImportError: ipywidgets is not installed.
      ValueError: a range is empty.
    """
    try:
        import ipywidgets
    except ImportError as error:
        raise ImportError(
            "explore() needs ipywidgets, which is not installed: `pip install ipywidgets`, or use"
            " player(sweep(...)), which needs nothing."
        ) from error
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(str(value), value) for value in values],
            description=name.replace("_", " "),
            style={"description_width": "9rem"},
        )
        for name, values in _values(ranges).items()
    }
    figure = ipywidgets.Output()

    def redraw(_: Any = None) -> None:
        values = {name: slider.value for name, slider in sliders.items()}
        setting = _setting(kernel_factory, machine, max_steps, values)
        # Not by printing into it: this needs no display, and so no flicker.
        figure.outputs = (_output(setting),)

    for slider in sliders.values():
        slider.observe(redraw, "value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), figure])


def _values(ranges: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    values = {name: [*found] for name, found in ranges.items()}
    for name, found in values.items():
        if not found:
            raise ValueError(f"The range {name} has 0 values: a slider needs 1 at least.")
    return values


def _setting(
    kernel_factory: KernelFactory,
    machine: "Machine | None",
    max_steps: int | None,
    values: dict[str, Any],
) -> Setting:
    """Traces, checks and simulates at one position; never raises an Exception."""
    from pipelib import schedule

    try:
        machine, rest = _apply(machine or schedule.H100, values)
        kernel, args = kernel_factory(**rest)
        program = schedule.trace(kernel, *args, max_steps=max_steps)
        findings = [*schedule.check(program)]
    except Exception as error:
        return Setting(values, None, f"{type(error).__name__}", False, str(error))
    outcome = ", ".join(dict.fromkeys(finding.kind for finding in findings))
    details = "\n".join(str(finding) for finding in findings[:3])
    try:
        timeline = schedule.simulate(program, machine)
    except Exception as error:
        outcome, details = outcome or type(error).__name__, details or str(error)
        return Setting(values, None, outcome, False, details)
    return Setting(values, timeline, outcome or "no finding", not findings, details)


def _apply(machine: "Machine", values: dict[str, Any]) -> tuple["Machine", dict[str, Any]]:
    """The machine with those values that are its fields; the rest of the values."""
    changes = {name: value for name, value in values.items() if name in machine._fields}
    rest = {name: value for name, value in values.items() if name not in machine._fields}
    return machine._replace(**changes), rest


def _output(setting: Setting) -> dict[str, Any]:
    """One display of the setting's figure, without sliders of its own."""
    try:
        figure = player([setting._replace(values={})])
    except ValueError as error:
        failed = Setting({}, None, "too much to draw", False, str(error))
        figure = player([failed])
    data = {"text/html": str(figure), "text/plain": repr(figure)}
    return {"output_type": "display_data", "data": data, "metadata": {}}
