"""Constructs beyond rings and pipelines, each in a kernel that is clean and very small."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from tests.pallascope import kernels
from tests.pallascope.kernels import like

X = like(256, 64)


def entered_again(threads):
    """A loop enters a scope with a tile and a barrier; the last of its threads reads the tile."""

    def kernel(x, o):
        wg = lax.axis_index("wg") if threads > 1 else 0

        @pl.loop(0, 2)
        def _(step):
            rows = pl.ds(step * 64, 64)

            def use(tile, loaded):
                @pl.when(wg == 0)
                def _():
                    plgpu.copy_gmem_to_smem(x.at[rows], tile, loaded)

                @pl.when(wg == threads - 1)
                def _():
                    plgpu.barrier_wait(loaded)
                    o[rows] = tile[...]

            shared = dict(collective_axes="wg") if threads > 1 else {}
            tile = plgpu.SMEM((64, 64), jnp.float16)
            pl.run_scoped(use, tile, plgpu.Barrier(), **shared)

    mesh = dict(num_threads=threads, thread_name="wg") if threads > 1 else {}
    return pallascope.trace(kernels.of(kernel, **mesh), X)


def added():
    """Two threads add to one row of the result, and one of the two reads the sum."""

    def kernel(x, o, done):
        wg = lax.axis_index("wg")
        plgpu.atomic_add(o.at[0], x[wg])
        plgpu.barrier_arrive(done)

        @pl.when(wg == 0)
        def _():
            plgpu.barrier_wait(done)
            o[1] = o[0]

    def summed(x):
        o = jax.new_ref(jnp.zeros((2, 128), jnp.float16))
        barrier, mesh = plgpu.Barrier(num_arrivals=2), dict(num_threads=2, thread_name="wg")
        plgpu.kernel(kernel, out_type=(), scratch_types=[barrier], **mesh)(x, o)
        return o[...]

    return pallascope.trace(summed, like(2, 128))


def handed_on():
    """Before Hopper: one thread copies two rows, one after the other; another reads them."""

    def kernel(x, o, row, landed, free):
        wg = lax.axis_index("wg")
        for step in range(2):

            @pl.when(wg == 0)
            def _(step=step):
                if step:
                    plgpu.barrier_wait(free)
                in_bounds = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
                plgpu.copy_gmem_to_smem(x.at[step], row, oob_mode=in_bounds)
                plgpu.wait_gmem_to_smem(0)
                plgpu.barrier_arrive(landed)

            @pl.when(wg == 1)
            def _(step=step):
                plgpu.barrier_wait(landed)
                o[step] = row[...]
                if not step:
                    plgpu.barrier_arrive(free)

    scratch = [plgpu.SMEM((256,), jnp.float16), plgpu.Barrier(), plgpu.Barrier()]
    mesh = dict(num_threads=2, thread_name="wg")
    return plgpu.kernel(kernel, out_type=like(2, 256), scratch_types=scratch, **mesh)


def earlier(kernel, *args):
    """The program of a kernel on a GPU before Hopper."""
    with pipelib.target("8.0"):
        return pallascope.trace(kernel, *args)


def pipelined(case):
    """The program of a pipeline there."""
    return earlier(case.kernel(), *(like(*x.shape, dtype=x.dtype) for x in case.arguments))
