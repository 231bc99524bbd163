"""`Product`: which product of two arrays `matmul` is to make."""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax

from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.refs import Dtype, Ref, Shaped

#: A function of float32 arrays of one shape: the product and each operand.
Epilogue = Callable[..., jax.Array]


class Product[C: MatmulConfig | None](NamedTuple):
    """Everything about a product but its arrays; hashable, so that JAX compiles each one once.

    A kernel takes a `Product[MatmulConfig]`. Before a configuration is picked, it may be None.

    Attributes:
      transpose_a, transpose_b: whether a is stored as [K, M], and b as [N, K].
      config: how the kernel divides the product.
      epilogue: what finishes the product, if anything.
      out_dtype: the dtype of the result.
      approx_math: whether the epilogue may use the GPU's less exact instructions.
    """

    transpose_a: bool
    transpose_b: bool
    config: C
    epilogue: Epilogue | None
    out_dtype: Dtype
    approx_math: bool = False

    def sizes(self, a: Shaped | Ref, b: Shaped | Ref) -> tuple[int, int, int]:
        """M, N and K."""
        (m, k) = a.shape[::-1] if self.transpose_a else a.shape
        return m, b.shape[0 if self.transpose_b else 1], k

    def transposed[A: (jax.Array, Shaped)](self, a: A, b: A) -> "tuple[Product[C], A, A]":
        """The product b^T a^T, and its factors, as they are stored."""
        flags = dict(transpose_a=not self.transpose_b, transpose_b=not self.transpose_a)
        return self._replace(**flags), b, a

    def configured(self, config: MatmulConfig) -> "Product[MatmulConfig]":
        """The same product with this configuration."""
        return cast("Product[MatmulConfig]", self._replace(config=cast(C, config)))
