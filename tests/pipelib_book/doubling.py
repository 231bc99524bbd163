"""A kernel that a test runs in a process of its own."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib_book as book


def run_a_kernel():
    book.setup()

    def double(x_gmem, y_gmem, x_smem, landed):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, landed)
        plgpu.barrier_wait(landed)
        x_smem[...] = x_smem[...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, y_gmem)
        plgpu.wait_smem_to_gmem(0)

    x = jnp.arange(256, dtype=jnp.float32)
    y = plgpu.kernel(
        double,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=dict(x_smem=plgpu.SMEM(x.shape, x.dtype), landed=plgpu.Barrier()),
    )(x)
    np.testing.assert_array_equal(y, 2 * np.asarray(x))
