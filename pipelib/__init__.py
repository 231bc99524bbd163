"""Software pipelining for GPU kernels in JAX Pallas (Mosaic GPU, Hopper).

``emit_pipeline`` and ``emit_pipeline_warp_specialized`` are, on Hopper, drop-in
supersets of the functions of the same names in
``jax.experimental.pallas.mosaic_gpu``.
``trace`` lists what a kernel's threads do, without a GPU; ``check`` finds the races
and deadlocks in it; ``simulate`` gives it times, and a timeline to draw.
"""

from typing import TYPE_CHECKING

from pipelib.pipeline import emit_pipeline
from pipelib.warp_specialized import emit_pipeline_warp_specialized

__version__ = "0.1.0"

__all__ = [
    "H100",
    "H200",
    "check",
    "emit_pipeline",
    "emit_pipeline_warp_specialized",
    "explore",
    "player",
    "simulate",
    "sweep",
    "trace",
]

if TYPE_CHECKING:
    from pipelib.schedule import H100, H200, check, explore, player, simulate, sweep, trace
else:
    # Pipelines need none of `pipelib.schedule`: it is imported when a name of it is asked for.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pipelib import schedule

        return getattr(schedule, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
