"""Instruments that read a Mosaic GPU kernel: check it, simulate it, draw it, compile it, tune it.

`trace` makes a `Program` of a kernel, pipelib's or any other; nothing behind it needs JAX. `check`
looks for races, deadlocks and misused barriers in a program, for every schedule of its threads, and
`play` shows one. `simulate` runs a program on a `Machine`, which gives a `Timeline` to draw: as a
figure (`plot`), as a `player` to step through, or for Perfetto. `explore` does all of this anew as
a kernel's parameters change, and `sweep` does it beforehand, for pages without a kernel. `predict`
says how long a whole launch takes. `compiled` says what ptxas and the machine code say of a kernel.
`pallascope.tuning` searches for a kernel's configuration, `pallascope.testing` is for tests, and
`python -m pallascope` for a shell. None of them needs a GPU.

The rooms, and what each may import, are in the repository's ARCHITECTURE.md; a test holds them to
it.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

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
    "compiled",
    "explore",
    "play",
    "player",
    "plot",
    "predict",
    "simulate",
    "sweep",
    "to_perfetto",
    "trace",
]

if TYPE_CHECKING:
    from pallascope.checking.check import check
    from pallascope.compiling import compiled
    from pallascope.drawing.perfetto import to_perfetto
    from pallascope.drawing.player import Setting, player
    from pallascope.drawing.plot import plot
    from pallascope.machine import B200, H100, H200, Machine
    from pallascope.playing import play
    from pallascope.predicting import Prediction, predict
    from pallascope.program import Op, Program
    from pallascope.report import Finding, Report
    from pallascope.simulating.launch import Launch
    from pallascope.simulating.simulate import simulate
    from pallascope.sliders import explore, sweep
    from pallascope.timeline import Span, Timeline
    from pallascope.tracing.trace import trace
else:
    # A module is imported when a name of it is asked for: only `tracing` needs JAX, and a program
    # that was saved is checked, simulated and drawn where there is none. pytest, which loads
    # `pallascope.pytest_plugin`, imports nothing.
    _HOMES = {
        "check": "checking.check",
        "compiled": "compiling",
        "to_perfetto": "drawing.perfetto",
        "Setting": "drawing.player",
        "player": "drawing.player",
        "plot": "drawing.plot",
        "B200": "machine",
        "H100": "machine",
        "H200": "machine",
        "Machine": "machine",
        "play": "playing",
        "Launch": "simulating.launch",
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
