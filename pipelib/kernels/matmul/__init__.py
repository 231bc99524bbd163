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

Any size. Pallas copies pieces of 8 rows x 128 bytes, because `wgmma` reads SMEM in this layout. So
arrays that divide into pieces can be copied as they are: with rows of a multiple of 128 bytes (64
elements of 16 bits), and a multiple of 8 rows, or at most 8. For others, on a GPU, a copy sees rows
and not pieces (`pipelib.tiles`), which asks only that rows begin at multiples of 16 bytes. That is
so for blocks that are one piece wide: a step of a [M, K] and of b stored as [N, K], the parts of
the result that are stored, and tiles of 64 columns of b [K, N]; in a transposed product, 64 columns
for each thread. A step of several pieces of K has a copy and a product for each.

The fallback. Of what is left (an odd number of columns; 1000 columns of b, with a configuration
that gives a thread more than 64), `jax.lax.dot_general` makes the product: no operand is copied,
and the configuration is not used. Without an epilogue it is cuBLAS's, rounded there; with one, it
is finished in float32. JAX's interpreter makes all products so whose arrays are no pieces.

Few rows. With `swapped`, the kernel makes the transposed product, and each part of it is transposed
on its way to SMEM. A tile has then as many of the result's rows as there are, in steps of 8, where
it would have 64 or 128: cuBLAS does so, too.

Few tiles. With `splits`, K is divided: each part has blocks of its own, which store float32, and
plain JAX adds them up and finishes them.

Gradients. With an epilogue f(a @ b, ...), the backward pass makes a @ b once more, in float32,
instead of keeping it, and differentiates f in plain JAX. A cotangent is rounded to the dtype of the
factors before it is multiplied. float8 factors are cast to bfloat16 first: `wgmma` reads float8
only along K, and in a gradient each factor is contracted along its other axis. There is no forward
mode: `jax.jvp`, `jax.jacfwd` and `jax.hessian` end with JAX's TypeError, which names forward-mode
autodiff and custom_vjp.
"""

from pipelib.kernels.matmul.call import default_choice, matmul
from pipelib.kernels.matmul.choosing import default_config
from pipelib.kernels.matmul.config import MatmulConfig

__all__ = ["MatmulConfig", "default_choice", "default_config", "matmul"]
