"""Kernels made with this package's emitters, to be called as any JAX function."""

from pipelib.kernels.attention import attention
from pipelib.kernels.attention_config import AttentionConfig
from pipelib.kernels.matmul import matmul
from pipelib.kernels.matmul_config import MatmulConfig
from pipelib.kernels.memory_bound import rms_norm, softmax
from pipelib.kernels.tune import tune

__all__ = [
    "AttentionConfig", "MatmulConfig", "attention", "matmul", "rms_norm", "softmax", "tune"
]  # fmt: skip
