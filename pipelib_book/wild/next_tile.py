"""Tiles one after another, whose first loads may overwrite the last operands of the tile before.

After JAX's `emit_pipeline_warp_specialized` with `delay_release=1`, as `all_gather_lhs_matmul` of
its `collective_matmul_mgpu.py` uses it: slots and barriers are allocated once, for all tiles of a
block. The compute thread never says that it is done with a tile's last slot, and the memory thread
does not ask. In `right` each tile allocates its own, and all threads meet in between.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE, DEPTH, SLOTS = 64, 64, 2
_TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def wrong(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of a, float16[tiles * 64, k], and b, float16[k, 64]."""
    return product(a, b, fixed=False)


def right(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same, with slots and barriers of each tile's own."""
    return product(a, b, fixed=True)


def product(a: jax.Array, b: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""
    tiles, steps = a.shape[0] // TILE, a.shape[1] // DEPTH

    def kernel(a_gmem, b_gmem, o_gmem):
        def step(_, a_smem, b_smem, acc):
            plgpu.wgmma(acc, a_smem, b_smem)
            plgpu.wgmma_wait(1)
            return acc

        def tile_of(rows):
            def compute(run):
                def scope(acc):
                    run(acc)
                    o_gmem[rows] = acc[...]

                pl.run_scoped(scope, plgpu.ACC((TILE, TILE), jnp.float32))

            return plgpu.emit_pipeline_warp_specialized(
                step,
                grid=(steps,),
                in_specs=[
                    plgpu.BlockSpec(
                        (TILE, DEPTH), lambda k: (0, k), transforms=_TILED, delay_release=1
                    ),
                    plgpu.BlockSpec(
                        (DEPTH, TILE), lambda k: (k, 0), transforms=_TILED, delay_release=1
                    ),
                ],
                max_concurrent_steps=SLOTS,
                memory_registers=40,
                wg_axis="thread",
                num_compute_wgs=1,
                compute_context=compute,
            )

        def all_tiles(**slots):
            @pl.loop(0, tiles)
            def _(i):
                rows = pl.ds(i * TILE, TILE)
                allocations = None if fixed else slots
                tile_of(rows)(a_gmem.at[rows], b_gmem, allocations=allocations)

        if fixed:
            all_tiles()
        else:
            slots = tile_of(pl.ds(0, TILE)).get_allocations(a_gmem, b_gmem)
            pl.run_scoped(all_tiles, **slots, collective_axes="thread")

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((a.shape[0], TILE), jnp.float32),
        num_threads=2,
        thread_name="thread",
    )(a, b)
