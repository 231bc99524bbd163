"""A pair's sums: the first block multiplies again while the second may still read.

After `blackwell_ragged_dot_mgpu` of JAX. Two blocks make each product together: the first one
issues it, and each has half of the sums in its tensor memory. In `wrong` a block says on its own
barrier that its sums have been read, and the first block waits on its own barrier only. In `right`
both blocks arrive on the barrier of the first. For Blackwell: compute capability 10.0.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILES, ROWS, COLUMNS, DEPTH = 2, 128, 64, 64
_TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def wrong(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of a, float16[512, 64], and b, float16[64, 128]: float16[512, 128]."""
    return product(a, b, fixed=False)


def right(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same, with a barrier of both blocks."""
    return product(a, b, fixed=True)


def product(a: jax.Array, b: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, o_smem, sums, loaded, finished, read):
        rank = lax.axis_index("rank")

        def load_part(source, target, barrier, axis):
            part = plgpu.CopyPartition.PARTITIONED(axis)
            plgpu.copy_gmem_to_smem(
                source, target, barrier, collective_axes="rank", leader_tracked=part
            )

        @pl.when(lax.axis_index("thread") == 0)
        def _():
            for tile in range(TILES):
                rows, here = pl.ds(tile * 2 * ROWS, 2 * ROWS), loaded.at[tile]
                load_part(a_gmem.at[rows], a_smem.at[tile], here, 0)
                load_part(b_gmem, b_smem.at[tile], here, 1)

            @pl.when(rank == 0)
            def _():
                for tile in range(TILES):
                    plgpu.barrier_wait(loaded.at[tile])
                    if tile > 0:
                        plgpu.barrier_wait(read)
                    plgpu.tcgen05_mma(
                        sums, a_smem.at[tile], b_smem.at[tile], finished.at[tile],
                        accumulate=False, collective_axis="rank",
                    )  # fmt: skip

        @pl.when(lax.axis_index("thread") == 1)
        def _():
            for tile in range(TILES):
                plgpu.barrier_wait(finished.at[tile])
                o_smem[...] = plgpu.async_load_tmem(sums).astype(jnp.float16)
                plgpu.wait_load_tmem()
                if tile + 1 < TILES:
                    plgpu.barrier_arrive(read)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[pl.ds((tile * 2 + rank) * ROWS, ROWS)])
                plgpu.wait_smem_to_gmem(0)

    own = plgpu.Barrier(orders_tensor_core=True)
    shared = plgpu.ClusterBarrier(
        collective_axes=("rank",), leader_tracked=True, orders_tensor_core=True
    )
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float16),
        scratch_types=[
            plgpu.SMEM((TILES, ROWS, DEPTH), jnp.float16, transforms=_TILED),
            plgpu.SMEM((TILES, DEPTH, COLUMNS), jnp.float16, transforms=_TILED),
            plgpu.SMEM((ROWS, 2 * COLUMNS), jnp.float16, transforms=_TILED),
            plgpu.TMEM((ROWS, 2 * COLUMNS), jnp.float32, collective=True),
            plgpu.Barrier(num_arrivals=2, num_barriers=TILES),
            plgpu.Barrier(num_barriers=TILES, orders_tensor_core=True),
            shared if fixed else own,
        ],
        cluster=(2,), cluster_names=("rank",), num_threads=2, thread_name="thread",
    )(a, b)  # fmt: skip
