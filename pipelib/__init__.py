"""Software pipelining for GPU kernels in JAX Pallas (Mosaic GPU, Hopper).

``emit_pipeline`` and ``emit_pipeline_warp_specialized`` are, on Hopper, drop-in
supersets of the functions of the same names in
``jax.experimental.pallas.mosaic_gpu``.
``trace`` lists what a kernel's threads do, without a GPU; ``check`` finds the races
and deadlocks in it; ``simulate`` gives it times, and a timeline to draw.
"""

from typing import Any

from pipelib.pipeline import emit_pipeline
from pipelib.warp_specialized import emit_pipeline_warp_specialized

_SCHEDULE = ("H100", "H200", "check", "explore", "player", "simulate", "sweep", "trace")

__all__ = ["emit_pipeline", "emit_pipeline_warp_specialized", *_SCHEDULE]


def __getattr__(name: str) -> Any:
    """Imports `pipelib.schedule` when it is first asked for: pipelines need none of it."""
    if name not in _SCHEDULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipelib import schedule

    return getattr(schedule, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
