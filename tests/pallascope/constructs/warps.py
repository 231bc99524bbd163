"""A kernel whose warps load and store apart from each other, and with one fault each."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.pallascope import kernels
from tests.pallascope.kernels import like

X = like(256, 64)
TILE = plgpu.SMEM((64, 64), jnp.float16)


def rows(step):
    return pl.ds(step * 64, 64)


def loader(fault=""):
    """Warp 0 loads two tiles, warp 1 stores what came of them, with one fault at most."""

    def kernel(x, o, x_smem, o_smem, loaded):
        def apart(warp):
            @pl.when(warp == 0)
            def _():
                for slot in range(2):
                    tile = x_smem.at[0 if fault == "one slot" else slot]
                    plgpu.copy_gmem_to_smem(x.at[rows(slot)], tile, loaded.at[slot])

            @pl.when(warp == 1)
            def _():
                plgpu.copy_smem_to_gmem(o_smem, o.at[rows(0)])
                if fault not in ("no wait for the store", "the thread waits for the store"):
                    plgpu.wait_smem_to_gmem(0)

        o_smem[...] = jnp.zeros_like(o_smem)
        if fault != "no commit":
            plgpu.commit_smem()
        plgpu.warp_map(apart)
        if fault == "the thread waits for the store":
            plgpu.wait_smem_to_gmem(0)
        for slot in range(2):
            if fault != "no wait":
                plgpu.barrier_wait(loaded.at[slot])
            o[rows(1 + slot)] = x_smem[slot]

    scratch = [plgpu.SMEM((2, 64, 64), jnp.float16), TILE, plgpu.Barrier(num_barriers=2)]
    return kernels.of(kernel, scratch_types=scratch)
