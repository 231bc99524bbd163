"""Small kernels to trace."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def like(*shape, dtype=jnp.float16):
    return jax.ShapeDtypeStruct(shape, dtype)


def of(kernel, out=None, **options):
    """A kernel with one output."""
    return plgpu.kernel(kernel, out_type=out or like(256, 64), **options)


def add_one(x):
    """Each block: load, wait, compute, store."""

    def kernel(x, o, x_smem, barrier):
        rows = pl.ds(lax.axis_index("i") * 64, 64)
        plgpu.copy_gmem_to_smem(x.at[rows], x_smem, barrier)
        plgpu.barrier_wait(barrier)
        with jax.named_scope("compute"):
            x_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o.at[rows])
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    return of(kernel, grid=(4,), grid_names=("i",), scratch_types=scratch)(x)


def matmul(a, b, waits=0, delay=0):
    """One block, one thread, a ring of two slots."""

    def kernel(a, b, o):
        block = lambda shape, at: plgpu.BlockSpec(
            shape, at, transforms=TRANSFORMS, delay_release=delay
        )
        specs = block((64, 64), lambda k: (0, k)), block((64, 64), lambda k: (k, 0))

        def scope(acc):
            def body(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(waits)

            pipelib.emit_pipeline(
                body, grid=(a.shape[1] // 64,), in_specs=specs, max_concurrent_steps=2,
                ordinary_reads=False,
            )(a, b)  # fmt: skip
            o[...] = acc[...].astype(jnp.float16)

        pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    return of(kernel, like(64, 64))(a, b)


def specialized(x, slots, delay, threads=1):
    """A warp-specialized sum over 64 rows a step, stored by the first compute thread."""

    def kernel(x, o):
        def body(_, x):
            total = x[...] + x[...]
            plgpu.layout_cast(total, plgpu.Layout.WG_STRIDED(total.shape, vec_size=2))

        block = plgpu.BlockSpec((64, 64), lambda i: (i, 0), delay_release=delay)
        pipelib.emit_pipeline_warp_specialized(
            body, grid=(x.shape[0] // 64,), in_specs=(block,), max_concurrent_steps=slots,
            num_compute_wgs=threads, wg_axis="wg", memory_registers=40,
        )(x)  # fmt: skip

    return of(kernel, num_threads=threads + 1, thread_name="wg")(x)
