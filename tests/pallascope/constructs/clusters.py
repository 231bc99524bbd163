"""A cluster of two blocks that store to the memory of one of them."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from tests.pallascope import kernels
from tests.pallascope.kernels import like

X = like(256, 64)


def of(kernel, shape=(2,), names=("x",), **options):
    return kernels.of(kernel, cluster=shape, cluster_names=names, **options)


def of_two(atomic):
    """Two blocks store their values to the memory of one, which one of the two reads."""

    def kernel(x, o, total, ready, barrier):
        @pl.when(lax.axis_index("x") == 0)
        def _():
            total[...] = jnp.zeros((64, 64), jnp.float32)
            plgpu.commit_smem()

        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        ones = jnp.ones((64, 64), jnp.float32)
        value = plgpu.layout_cast(ones, plgpu.Layout.WG_STRIDED((64, 64), vec_size=2))
        plgpu.async_store_smem(
            value, total, barrier, cluster_idx=jnp.int32(0), cluster_dim="x", atomic=atomic
        )

        @pl.when(lax.axis_index("x") == 0)
        def _():
            plgpu.barrier_wait(barrier)
            o[0:64] = total[...].astype(jnp.float16)

    tile = plgpu.SMEM((64, 64), jnp.float32)
    barriers = [plgpu.ClusterBarrier(collective_axes=("x",)), plgpu.Barrier(num_arrivals=2)]
    return pallascope.trace(of(kernel, scratch_types=[tile, *barriers]), X)
