"""Software pipelining for GPU kernels in JAX Pallas (Mosaic GPU, Hopper).

``emit_pipeline`` and ``emit_pipeline_warp_specialized`` are, on Hopper, drop-in
supersets of the functions of the same names in
``jax.experimental.pallas.mosaic_gpu``. The first also runs on GPUs before Hopper
that have ``cp.async``; ``target`` names the GPU that a kernel is compiled for.
``pipelib.kernels`` has finished kernels. The package ``pallascope`` checks, simulates,
draws, compiles and tunes a kernel, these or your own.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["emit_pipeline", "emit_pipeline_warp_specialized", "target"]

if TYPE_CHECKING:
    from pipelib.pipeline import emit_pipeline
    from pipelib.targets import target
    from pipelib.warp_specialized import emit_pipeline_warp_specialized
else:
    # A module is imported when a name of it is asked for: whoever wants to know the version, or
    # the target, need not wait for Pallas.
    _HOMES = {
        "emit_pipeline": "pipeline",
        "emit_pipeline_warp_specialized": "warp_specialized",
        "target": "targets",
    }
    #: What was here until it became a package of its own.
    _MOVED = {
        "B200", "H100", "H200", "bench", "check", "compiled", "compiling", "explore", "launches",
        "player", "predict", "schedule", "simulate", "sweep", "testing", "trace", "tuning",
    }  # fmt: skip

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        missing = f"module {__name__!r} has no attribute {name!r}"
        if name in _MOVED:
            now = "pallascope" if name == "schedule" else f"pallascope.{name}"
            raise AttributeError(
                f"{missing}: the instruments have a package of their own now, and this is {now};"
                ' write `import pallascope`, which `pip install "pallascope @ git+https://github.com/'
                'pallas-pipelib/pipelib#subdirectory=pallascope"` installs.'
            )
        raise AttributeError(missing)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
