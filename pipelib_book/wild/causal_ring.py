"""A ring that is filled up front, and a block that has fewer steps than the ring has slots.

After `attention_mgpu` of JAX, with a causal mask. The memory thread of `wrong` fills all slots
before it looks at how many steps the block has. The first block waits for one of its two loads, and
ends while the other may be on its way. `right` loads what the block needs.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

SLOTS, TILE = 2, 128


def wrong(x: jax.Array) -> jax.Array:
    """Sums of the tiles of x, float32[blocks * 128], up to each: a float32[blocks, 128]."""
    return sums(x, fixed=False)


def right(x: jax.Array) -> jax.Array:
    """The same, with the loads that the block has steps for."""
    return sums(x, fixed=True)


def sums(x: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""
    blocks = x.size // TILE

    def kernel(x_gmem, o_gmem, x_smem, produced, consumed):
        block = lax.axis_index("block")
        steps = block + 1

        def load(i, slot):
            tile = x_gmem.at[pl.ds(i * TILE, TILE)]
            plgpu.copy_gmem_to_smem(tile, x_smem.at[slot], produced.at[slot])

        @pl.when(lax.axis_index("thread") == 0)
        def _compute():
            def step(i, total):
                slot = lax.rem(i, SLOTS)
                plgpu.barrier_wait(produced.at[slot])
                total += x_smem[slot]
                plgpu.commit_smem()
                plgpu.barrier_arrive(consumed.at[slot])
                return total

            o_gmem[block] = lax.fori_loop(0, steps, step, jnp.zeros(TILE, jnp.float32))

        @pl.when(lax.axis_index("thread") == 1)
        def _load():
            for i in range(SLOTS):
                if fixed:
                    pl.when(i < steps)(lambda i=i: load(i, i))
                else:
                    load(i, i)

            @pl.loop(0, steps)
            def _(i):
                slot = lax.rem(i, SLOTS)
                plgpu.barrier_wait(consumed.at[slot])
                pl.when(i + SLOTS < steps)(lambda: load(i + SLOTS, slot))

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((blocks, TILE), jnp.float32),
        scratch_types=[
            plgpu.SMEM((SLOTS, TILE), jnp.float32),
            plgpu.Barrier(num_barriers=SLOTS),
            plgpu.Barrier(num_barriers=SLOTS),
        ],
        grid=(blocks,),
        grid_names=("block",),
        num_threads=2,
        thread_name="thread",
    )(x)
