"""Kernels of a grid, right and wrong, for the command's tests: written to a file of its own."""

SOURCE = """
import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

print("loaded")

def copy(x, o, s, barrier, *, tile=8, fence=True):
    rows = pl.ds(lax.axis_index("i") * 8, 8)
    plgpu.copy_gmem_to_smem(x.at[rows], s, barrier)
    plgpu.barrier_wait(barrier)
    s[...] = s[...] + 1.0
    if fence:
        plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(s, o.at[pl.ds(lax.axis_index("i") * tile, 8)])
    plgpu.wait_smem_to_gmem(0)

def called(x, body):
    print("traced")
    return plgpu.kernel(body, out_type=x, grid=(x.shape[0] // 8,), grid_names=("i",),
        scratch_types=[plgpu.SMEM((8, x.shape[1]), jnp.float32), plgpu.Barrier()])(x)

def right(x):
    return called(x, copy)

def overlapping(x):
    return called(x, functools.partial(copy, tile=4))

def unfenced(x):
    return called(x, functools.partial(copy, fence=False))

def reader(x_gmem, o_gmem, s, barrier):
    for _ in range(2):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 8)], s, barrier)
        plgpu.barrier_wait(barrier)
        o_gmem[pl.ds(lax.axis_index("i") * 8, 8)] = s[...]

def by_the_letter(x):
    return called(x, reader)

def greedy(x):
    def body(x, o, s, barrier, much):
        copy(x, o, s, barrier)
    return plgpu.kernel(body, out_type=x, grid=(x.shape[0] // 8,), grid_names=("i",),
        scratch_types=[plgpu.SMEM((8, x.shape[1]), jnp.float32), plgpu.Barrier(),
            plgpu.SMEM((64, 1024), jnp.float32)])(x)

def refused_later(x):
    def body(x, o, s, barrier):
        copy(x, o, s, barrier)

        @pl.when(lax.axis_index("i") >= 2)
        def _():
            pl.when(x[0, 0] > 0)(lambda: plgpu.commit_smem())

    return called(x, body)
"""
