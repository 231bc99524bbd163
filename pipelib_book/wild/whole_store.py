"""A tile that two threads make in halves, and each stores whole.

After `matmul_warp_specialized` of JAX's guide on pipelining. In `wrong` each thread stores the
whole tile when it has written its own half, and waits for nobody. In `right` one thread stores it,
when both have written.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS, COLUMNS = 64, 128


def wrong(x: jax.Array) -> jax.Array:
    """Twice x, float16[64, 256]."""
    return doubled(x, fixed=False)


def right(x: jax.Array) -> jax.Array:
    """The same, with one store after both halves."""
    return doubled(x, fixed=True)


def doubled(x: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(x_gmem, o_gmem, o_smem, written):
        me = lax.axis_index("thread")
        half = pl.ds(me * COLUMNS, COLUMNS)
        o_smem[:, half] = x_gmem[:, half] * 2

        def store():
            plgpu.copy_smem_to_gmem(o_smem, o_gmem)
            plgpu.wait_smem_to_gmem(0)

        plgpu.commit_smem()
        if fixed:
            plgpu.barrier_arrive(written)

            @pl.when(me == 0)
            def _():
                plgpu.barrier_wait(written)
                store()
        else:
            store()

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((ROWS, 2 * COLUMNS), jnp.float16),
        scratch_types=[
            plgpu.SMEM((ROWS, 2 * COLUMNS), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        num_threads=2,
        thread_name="thread",
    )(x)
