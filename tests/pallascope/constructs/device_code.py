"""Kernels whose threads meet at named barriers, which device code of their own calls."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.pallascope import kernels
from tests.pallascope.kernels import like

ROW = like(128, dtype=jnp.float32)


def bar(verb, number, lanes=256):
    """An instruction on a named barrier, whose number may be a value of the kernel's."""
    if isinstance(number, int):
        text = f"bar.{verb} {number}, {lanes};"
        plgpu.inline_mgpu()(lambda context: mgpu.utils.inline_ptx(text))()
        return

    def with_number(context, number):
        mgpu.utils.inline_ptx(f"bar.{verb} $0, {lanes};", number.registers[()])

    plgpu.inline_mgpu(arg_types=(plgpu.Layout.WG_SPLAT,))(with_number)(number())


def handed_over(wait=("sync", 5, 256), arrive=("arrive", 5, 256), threads=2):
    """Thread 0 writes a row, and thread 1 reads it, after a named barrier."""

    def kernel(o, row):
        def first():
            row[...] = jnp.ones(128, jnp.float32)
            bar(*arrive)

        def second():
            bar(*wait)
            o[...] = row[...]

        lax.switch(lax.axis_index("wg"), [first, second] + [lambda: None] * (threads - 2))

    return kernels.of(
        kernel,
        ROW,
        scratch_types=[plgpu.SMEM((128,), jnp.float32)],
        num_threads=threads,
        thread_name="wg",
    )


def given_back(lanes):
    """As tokamax hands slots back to the warp that loads: 128 lanes arrive, and 32 wait."""

    def kernel(x, o, smem, loaded):
        @pl.when(lax.axis_index("wg") == 0)
        def _():
            plgpu.barrier_wait(loaded)
            o[...] = smem[...]
            bar("arrive", 5, lanes)
            plgpu.barrier_wait(loaded)
            o[...] = smem[...]

        @pl.when(lax.axis_index("wg") == 1)
        def _():
            @plgpu.warp_map
            def _(warp):
                @pl.when(warp == 0)
                def _():
                    plgpu.copy_gmem_to_smem(x, smem, loaded)
                    bar("sync", 5, lanes)
                    plgpu.copy_gmem_to_smem(x, smem, loaded)

    return kernels.of(
        kernel,
        ROW,
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
        num_threads=2,
        thread_name="wg",
    )


def met_by_all():
    """Thread 0 writes a row, and thread 1 reads it, after the barrier of the whole block."""

    def kernel(o, row):
        @pl.when(lax.axis_index("wg") == 0)
        def _():
            row[...] = jnp.ones(128, jnp.float32)

        plgpu.inline_mgpu()(lambda context: mgpu.utils.inline_ptx("bar.sync 0;"))()

        @pl.when(lax.axis_index("wg") == 1)
        def _():
            o[...] = row[...]

    return kernels.of(
        kernel,
        ROW,
        scratch_types=[plgpu.SMEM((128,), jnp.float32)],
        num_threads=2,
        thread_name="wg",
    )
