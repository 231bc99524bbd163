"""A loop that takes tiles over, and does not know of its cluster: both blocks ask.

After `blackwell_matmul_mgpu` of JAX, with `collective=True`. A cluster that has done its tile asks
the hardware for the tile of a cluster that has not begun. The answer lands in all of its blocks, so
one of them is to ask: `plgpu.dynamic_scheduling_loop` lets the first one ask if it is told
`cluster_axes`, and else each. For Blackwell: compute capability 10.0.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS, COLUMNS = 64, 64


def wrong(x: jax.Array) -> jax.Array:
    """A copy of x, float16[1024, 64]."""
    return copied(x, fixed=False)


def right(x: jax.Array) -> jax.Array:
    """The same, by a loop that knows of the cluster."""
    return copied(x, fixed=True)


def copied(x: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(x_gmem, o_gmem, x_smem, loaded):
        axes = ("rank",) if fixed else ()

        @plgpu.dynamic_scheduling_loop(("tile",), cluster_axes=axes)
        def one_tile(info):
            rows = pl.ds((info.index[0] * 2 + lax.axis_index("rank")) * ROWS, ROWS)
            plgpu.copy_gmem_to_smem(x_gmem.at[rows], x_smem, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[rows])
            plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM((ROWS, COLUMNS), jnp.float16), plgpu.Barrier()],
        grid=(x.shape[0] // (2 * ROWS),),
        grid_names=("tile",),
        cluster=(2,),
        cluster_names=("rank",),
    )(x)
