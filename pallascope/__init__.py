"""Instruments that read a Mosaic GPU kernel: check it, simulate it, draw it, compile it, tune it.

`verify` is the whole verdict on a function that calls kernels. `trace` makes a `Program` of one,
pipelib's or any other; nothing behind it needs JAX. `check` looks for races, deadlocks and misused
barriers in a program, for every schedule of its threads, and `play` shows one. `simulate` runs a
program on a `Machine`, which gives a `Timeline` to draw: as a figure (`plot`), as a `player` to
step through, or for Perfetto; it knows which cycle of waits sets its pace. `explore` does all of
this anew as a kernel's parameters change, and `sweep` does it beforehand, for pages without a
kernel. `advise` tells which edits of a kernel's schedule would make it faster and leave it right.
`predict` says how long a whole launch takes. `compiled` says what ptxas and the machine code say of
a kernel.
`pallascope.tuning` searches for a kernel's configuration, `pallascope.testing` is for tests, and
`python -m pallascope` for a shell. None of them needs a GPU.

The rooms, and what each may import, are in the repository's ARCHITECTURE.md; a test holds them to
it.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pallascope.advising import Advice as Advice
    from pallascope.advising import advise as advise
    from pallascope.checking.check import check as check
    from pallascope.compiling import compiled as compiled
    from pallascope.critical_cycle import Critical as Critical
    from pallascope.drawing.perfetto import to_perfetto as to_perfetto
    from pallascope.drawing.player import Setting as Setting
    from pallascope.drawing.player import player as player
    from pallascope.drawing.plot import plot as plot
    from pallascope.machine import B200 as B200
    from pallascope.machine import H100 as H100
    from pallascope.machine import H200 as H200
    from pallascope.machine import Machine as Machine
    from pallascope.playing import play as play
    from pallascope.predicting import Prediction as Prediction
    from pallascope.predicting import predict as predict
    from pallascope.program import Op as Op
    from pallascope.program import Program as Program
    from pallascope.report import Finding as Finding
    from pallascope.report import Report as Report
    from pallascope.simulating.launch import Launch as Launch
    from pallascope.simulating.simulate import simulate as simulate
    from pallascope.sliders import explore as explore
    from pallascope.sliders import sweep as sweep
    from pallascope.spans import Span as Span
    from pallascope.timeline import Timeline as Timeline
    from pallascope.tracing.trace import trace as trace
    from pallascope.verifying import Verdict as Verdict
    from pallascope.verifying import verify as verify
else:
    # A module is imported when a name of it is asked for: only `tracing` needs JAX, and a program
    # that was saved is checked, simulated and drawn where there is none. pytest, which loads
    # `pallascope.pytest_plugin`, imports nothing.
    # The public names, by the module that has them.
    _NAMES = {
        "advising": "Advice advise",
        "checking.check": "check",
        "compiling": "compiled",
        "critical_cycle": "Critical",
        "drawing.perfetto": "to_perfetto",
        "drawing.player": "Setting player",
        "drawing.plot": "plot",
        "machine": "B200 H100 H200 Machine",
        "playing": "play",
        "predicting": "Prediction predict",
        "program": "Op Program",
        "report": "Finding Report",
        "simulating.launch": "Launch",
        "simulating.simulate": "simulate",
        "sliders": "explore sweep",
        "spans": "Span",
        "timeline": "Timeline",
        "tracing.trace": "trace",
        "verifying": "Verdict verify",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
    __all__ = sorted(_HOMES)

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
