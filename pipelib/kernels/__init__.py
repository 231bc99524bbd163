"""Kernels made with this package's emitters, to be called as any JAX function."""

from pipelib.kernels.matmul import MatmulConfig, matmul

__all__ = ["MatmulConfig", "matmul"]
