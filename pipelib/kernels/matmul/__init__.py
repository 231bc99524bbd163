"""`matmul`: a matrix product with its epilogue, its gradients and its batches.

The model. Each module has one part of it:

=============  =============================================================================
`product`      everything about a product but its arrays
`config`       how a product is divided, and what that takes of an SM
`arguments`    which arguments are refused
`epilogues`    which functions may finish a product part by part
`call`         `matmul` itself: it picks a configuration, and makes the gradients' products
`forms`        the kernels: what the blocks and threads of each form do
`result`       the end of a tile: the epilogue, and the stores
`tuned`        the configurations that searches found
`choosing`     the configuration of the least estimated time, where no search was
=============  =============================================================================

The fallback. Pallas copies pieces of 8 rows x 128 bytes, because `wgmma` reads SMEM in this layout.
So each of `a`, `b`, the output and the matrices of the epilogue must, as stored, have rows of a
multiple of 128 bytes (64 elements of 16 bits), and a multiple of 8 rows, or at most 8. For other
shapes (17 rows, say, or 1000 columns) `jax.lax.dot_general` makes the product, accumulated in
float32; no operand is copied, and the configuration is not used. (JAX does not refuse rows of less
than 128 bytes, but 16 x 40 x 24 gave a wrong result on an H200.)

Gradients. With an epilogue f(a @ b, ...), the backward pass makes a @ b once more, in float32,
instead of keeping it, and differentiates f in plain JAX. A cotangent is rounded to the dtype of the
factors before it is multiplied. float8 factors are cast to bfloat16 first: `wgmma` reads float8
only along K, and in a gradient each factor is contracted along its other axis. There is no forward
mode: `jax.jvp`, `jax.jacfwd` and `jax.hessian` end with JAX's TypeError, which names forward-mode
autodiff and custom_vjp.
"""

from pipelib.kernels.matmul.call import matmul
from pipelib.kernels.matmul.choosing import default_config
from pipelib.kernels.matmul.config import MatmulConfig

__all__ = ["MatmulConfig", "default_config", "matmul"]
