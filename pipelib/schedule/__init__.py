"""A kernel's schedule as plain values: trace it here, read it anywhere.

`trace` makes a `Program` of a kernel; nothing behind it needs JAX. `check` looks for races,
deadlocks and misused barriers in a program, for every schedule of its threads. `simulate` runs it
on a `Machine`, which gives a `Timeline` to draw: as a figure, or as a `player` to step through.
`explore` does all of this anew as a kernel's parameters change, and `sweep` does it beforehand, for
pages without a kernel. `predict` says how long a whole launch takes.

The rooms. An arrow points from who imports to what is imported; there are no others, and
`tests/schedule/test_imports.py` holds the modules to it.

    sliders -> tracing, checking, simulating, drawing
    predicting -> tracing, simulating
    tracing, checking, simulating, drawing -> arguments -> the values
    the values: program, report, timeline, machine
"""

import importlib
from typing import TYPE_CHECKING

__all__ = [
    "B200",
    "H100",
    "H200",
    "Finding",
    "Launch",
    "Machine",
    "Op",
    "Prediction",
    "Program",
    "Report",
    "Setting",
    "Span",
    "Timeline",
    "check",
    "explore",
    "player",
    "predict",
    "simulate",
    "sweep",
    "trace",
]

if TYPE_CHECKING:
    from pipelib.schedule.checking.check import check
    from pipelib.schedule.drawing.player import Setting, player
    from pipelib.schedule.machine import B200, H100, H200, Machine
    from pipelib.schedule.predicting import Launch, Prediction, predict
    from pipelib.schedule.program import Op, Program
    from pipelib.schedule.report import Finding, Report
    from pipelib.schedule.simulating.simulate import simulate
    from pipelib.schedule.sliders import explore, sweep
    from pipelib.schedule.timeline import Span, Timeline
    from pipelib.schedule.tracing.trace import trace
else:
    # A module is imported when a name of it is asked for: only `tracing` needs JAX, and a program
    # that was saved is checked, simulated and drawn where there is none.
    _HOMES = {
        "check": "checking.check",
        "Setting": "drawing.player",
        "player": "drawing.player",
        "B200": "machine",
        "H100": "machine",
        "H200": "machine",
        "Machine": "machine",
        "Launch": "predicting",
        "Prediction": "predicting",
        "predict": "predicting",
        "Op": "program",
        "Program": "program",
        "Finding": "report",
        "Report": "report",
        "simulate": "simulating.simulate",
        "explore": "sliders",
        "sweep": "sliders",
        "Span": "timeline",
        "Timeline": "timeline",
        "trace": "tracing.trace",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
