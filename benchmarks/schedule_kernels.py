"""The kernels whose trace and check `benchmarks.schedule` times: products, and loops over tiles."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

TILE_M, TILE_N, TILE_K, SLOTS = 128, 256, 64, 3
TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
ROWS, LANES, TILE_STEPS = 16, 128, 8


def matmul(a: jax.Array, b: jax.Array, cluster: tuple[int, int] = (1, 1)) -> jax.Array:
    """Two compute threads, each with half of the rows of a tile, and a memory thread.

    Blocks along the cluster's first axis share what they load of b, along its second what of a.
    """
    (m, k), (_, n) = a.shape, b.shape
    rows, (high, wide) = TILE_M // 2, cluster
    sizes = {name: size for name, size in (("down", high), ("across", wide)) if size > 1}

    def kernel(a, b, out, out_smem):
        at = lambda name: lax.axis_index(name) if name in sizes else 0
        i, j = lax.axis_index("i") * high + at("down"), lax.axis_index("j") * wide + at("across")
        mine = pl.ds(lax.axis_index("wg") * rows, rows)

        def compute(pipeline):
            def scope(acc):
                pipeline(acc)
                out_smem[mine] = acc[...].astype(out.dtype)
                plgpu.commit_smem()

            pl.run_scoped(scope, plgpu.ACC((rows, TILE_N), jnp.float32))
            top = i * TILE_M + lax.axis_index("wg") * rows
            here = (pl.ds(top, rows), pl.ds(j * TILE_N, TILE_N))
            plgpu.copy_smem_to_gmem(out_smem.at[mine], out.at[here])
            plgpu.wait_smem_to_gmem(0)

        def body(_, a, b, acc):
            plgpu.wgmma(acc, a.at[mine], b)
            plgpu.wgmma_wait(1)
            return acc

        def block(shape, at, shared_along):
            axes = (shared_along,) if shared_along in sizes else None
            return plgpu.BlockSpec(
                shape, at, transforms=TRANSFORMS, delay_release=1, collective_axes=axes
            )

        pipelib.emit_pipeline_warp_specialized(
            body, grid=(k // TILE_K,), memory_registers=40, max_concurrent_steps=SLOTS,
            num_compute_wgs=2, wg_axis="wg", compute_context=compute, ordinary_reads=False,
            in_specs=[
                block((TILE_M, TILE_K), lambda step: (i, step), "across"),
                block((TILE_K, TILE_N), lambda step: (step, j), "down"),
            ],
        )(a, b)  # fmt: skip

    in_cluster: dict[str, Any] = dict(cluster=tuple(sizes.values()), cluster_names=tuple(sizes))
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        num_threads=3,
        thread_name="wg",
        grid=(m // (TILE_M * high), n // (TILE_N * wide)),
        grid_names=("i", "j"),
        **in_cluster,
        scratch_types=[plgpu.SMEM((TILE_M, TILE_N), a.dtype, transforms=TRANSFORMS)],
    )(a, b)


def tiles(x: jax.Array, is_specialized: bool = False) -> jax.Array:
    """A persistent loop over tiles, with a pipeline in it that adds 1 in `TILE_STEPS` steps.

    Each tile allocates slots and barriers anew. A specialised one has two compute threads.
    """
    block = lambda tile: pl.BlockSpec((ROWS, LANES), lambda step: (tile * TILE_STEPS + step, 0))
    half = ROWS // 2

    def kernel(x, out):
        def specialized(_, x, out):
            mine = pl.ds(lax.axis_index("wg") * half, half)
            out[mine] = x[mine] + 1

        def plain(_, x, out):
            out[...] = x[...] + 1

        def one_tile(tile, carry):
            specs: dict[str, Any] = dict(
                in_specs=[block(tile)], out_specs=[block(tile)], grid=(TILE_STEPS,)
            )
            if is_specialized:
                threads: dict[str, Any] = dict(num_compute_wgs=2, wg_axis="wg", memory_registers=40)
                pipelib.emit_pipeline_warp_specialized(specialized, **specs, **threads)(x, out)
            else:
                pipelib.emit_pipeline(plain, max_concurrent_steps=2, **specs)(x, out)
            return carry

        lax.fori_loop(0, x.shape[0] // (ROWS * TILE_STEPS), one_tile, 0)

    threads: dict[str, Any] = dict(num_threads=3, thread_name="wg") if is_specialized else {}
    return plgpu.kernel(kernel, out_type=x, grid=(1,), grid_names=("block",), **threads)(x)
