"""Kernels made with this package's emitters, to be called as any JAX function.

The model. All public names are here. `matmul/`, `ragged/`, `collective/` and `attention/` are
packages, `scaled` has `scaled_matmul`, and `memory_bound` has `rms_norm` and `softmax`. What the
kernels have in common: `front` is their front door, `dividing` says what they take of an SM,
`choosing` how a configuration is chosen, `hopper` for which GPU, and `chain` runs tile after tile.

`pipelib.kernels.matmul` and `pipelib.kernels.attention` are the functions. Their packages have the
same names, and cannot hide them: this module loads the packages first and binds the functions then,
and Python makes a package an attribute of its parent only when it is first loaded. What is within
is imported from the package, as in `from pipelib.kernels.matmul import forms`.
"""

from pipelib.kernels.attention import (
    AttentionConfig,
    DecodeConfig,
    GradientConfig,
    attention,
    attention_reference,
    decode_attention,
    dot_product_attention,
)
from pipelib.kernels.collective import CollectiveConfig, collective_matmul
from pipelib.kernels.matmul import MatmulConfig, matmul
from pipelib.kernels.matmul.space import matmul_space
from pipelib.kernels.memory_bound import rms_norm, softmax
from pipelib.kernels.ragged import ragged_dot
from pipelib.kernels.scaled import ScaledConfig, scaled_matmul
from pipelib.kernels.spaces import attention_space, row_space

__all__ = [
    "AttentionConfig",
    "CollectiveConfig",
    "DecodeConfig",
    "GradientConfig",
    "MatmulConfig",
    "ScaledConfig",
    "attention",
    "attention_reference",
    "attention_space",
    "collective_matmul",
    "decode_attention",
    "dot_product_attention",
    "matmul",
    "matmul_space",
    "ragged_dot",
    "rms_norm",
    "row_space",
    "scaled_matmul",
    "softmax",
]


def __getattr__(name: str) -> object:
    missing = f"module {__name__!r} has no attribute {name!r}"
    if name == "tune":
        raise AttributeError(
            f"{missing}: the search has a package of its own now, and this is"
            " pallascope.tuning.search over pallascope.tuning.Ranked(*matmul_space(...)), as the"
            " docstring of pipelib.kernels.matmul_space shows."
        )
    raise AttributeError(missing)
