"""Kernels made with this package's emitters, to be called as any JAX function.

The model. All public names are here. `matmul/`, `ragged/`, `collective/` and `attention/` are
packages, `scaled` has `scaled_matmul`, `memory_bound` has `rms_norm` and `softmax`, and `chain`,
`front` and `hopper` what the kernels have in common.

`pipelib.kernels.matmul` and `pipelib.kernels.attention` are the functions. Their packages have the
same names, and cannot hide them: this module loads the packages first and binds the functions then,
and Python makes a package an attribute of its parent only when it is first loaded. What is within
is imported from the package, as in `from pipelib.kernels.matmul import forms`.

`tune` is `pipelib.tuning.tune`. It is imported when it is first asked for: who calls a kernel does
not need the search, and with it the machine models.
"""

from typing import TYPE_CHECKING

from pipelib.kernels.attention import (
    AttentionConfig,
    DecodeConfig,
    GradientConfig,
    attention,
    decode_attention,
)
from pipelib.kernels.collective import CollectiveConfig, collective_matmul
from pipelib.kernels.matmul import MatmulConfig, matmul
from pipelib.kernels.memory_bound import rms_norm, softmax
from pipelib.kernels.ragged import ragged_dot
from pipelib.kernels.scaled import ScaledConfig, scaled_matmul

if TYPE_CHECKING:
    from pipelib.tuning import tune

__all__ = [
    "AttentionConfig",
    "CollectiveConfig",
    "DecodeConfig",
    "GradientConfig",
    "MatmulConfig",
    "ScaledConfig",
    "attention",
    "collective_matmul",
    "decode_attention",
    "matmul",
    "ragged_dot",
    "rms_norm",
    "scaled_matmul",
    "softmax",
    "tune",
]


def __getattr__(name: str) -> object:
    if name == "tune":
        from pipelib.tuning import tune

        return tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
