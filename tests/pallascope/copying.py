"""A kernel that copies tiles of a grid, right or faulty."""

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def copies(rows=16, step=16, reads=None):
    """Copies tiles of a grid, each `step` rows behind the one before."""

    def copy(x, o, s, landed):
        i = lax.axis_index("i")
        plgpu.copy_gmem_to_smem(x.at[pl.ds(i * rows, rows)], s, landed)
        pl.when(True if reads is None else i != reads)(lambda: plgpu.barrier_wait(landed))
        plgpu.copy_smem_to_gmem(s, o.at[pl.ds(i * step, rows)])
        plgpu.wait_smem_to_gmem(0)

    def kernel(x):
        grid = dict(grid=(x.shape[0] // rows,), grid_names=("i",))
        scratch = [plgpu.SMEM((rows, x.shape[1]), x.dtype), plgpu.Barrier()]
        return plgpu.kernel(copy, out_type=x, scratch_types=scratch, **grid)(x)

    return kernel
