"""Software pipelining for GPU kernels in JAX Pallas (Mosaic GPU, Hopper).

``emit_pipeline`` and ``emit_pipeline_warp_specialized`` are, on Hopper, drop-in
supersets of the functions of the same names in
``jax.experimental.pallas.mosaic_gpu``. The first also runs on GPUs before Hopper
that have ``cp.async``; ``target`` names the GPU that a kernel is compiled for.
``trace`` lists what a kernel's threads do, without a GPU; ``check`` finds the races
and deadlocks in it; ``simulate`` gives it times, and a timeline to draw. ``compiled``
says what ptxas and the machine code say of it, without a GPU too.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "B200",
    "H100",
    "H200",
    "check",
    "compiled",
    "emit_pipeline",
    "emit_pipeline_warp_specialized",
    "explore",
    "player",
    "predict",
    "simulate",
    "sweep",
    "target",
    "trace",
]

if TYPE_CHECKING:
    from pipelib.compiling import compiled
    from pipelib.pipeline import emit_pipeline
    from pipelib.schedule import (
        B200,
        H100,
        H200,
        check,
        explore,
        player,
        predict,
        simulate,
        sweep,
        trace,
    )
    from pipelib.targets import target
    from pipelib.warp_specialized import emit_pipeline_warp_specialized
else:
    # A module is imported when a name of it is asked for: pipelines need none of
    # `pipelib.schedule`, and pytest, which loads `pipelib.pytest_plugin`, not even JAX.
    _HOMES = {
        "compiled": "pipelib.compiling",
        "emit_pipeline": "pipelib.pipeline",
        "emit_pipeline_warp_specialized": "pipelib.warp_specialized",
        "target": "pipelib.targets",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES.get(name, "pipelib.schedule")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
