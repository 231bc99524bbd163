"""Software pipelining for GPU kernels in JAX Pallas (Mosaic GPU, Hopper).

``emit_pipeline`` and ``emit_pipeline_warp_specialized`` are drop-in supersets of
the functions of the same names in ``jax.experimental.pallas.mosaic_gpu``.
"""

from pipelib.pipeline import emit_pipeline
from pipelib.warp_specialized import emit_pipeline_warp_specialized

__all__ = ["emit_pipeline", "emit_pipeline_warp_specialized"]
