"""`Product`: which product of two arrays `matmul` is to make."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pipelib.kernels.matmul.config import MatmulConfig

#: A function of float32 arrays of one shape: the product and each operand.
Epilogue = Callable[..., jax.Array]


class Product(NamedTuple):
    """Everything about a product but its arrays; hashable, so that JAX compiles each one once."""

    transpose_a: bool
    transpose_b: bool
    config: MatmulConfig | None
    epilogue: Epilogue | None
    out_dtype: Any
    approx_math: bool = False

    def sizes(self, a: Any, b: Any) -> tuple[int, int, int]:
        """M, N and K."""
        (m, k) = a.shape[::-1] if self.transpose_a else a.shape
        return m, b.shape[0 if self.transpose_b else 1], k
