"""Two loops that begin at different steps: a compute thread waits for what nothing loads.

After tokamax's attention for Hopper, which has `is_causal` and `k_start`. A block sums the tiles
from `START` up to its own, as a causal mask with a first key does. The memory thread begins at
`START`. The compute thread takes its last tile, which has to be masked, in a loop of its own. In
`wrong` that loop begins there even where `START` is beyond it.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

START, SLOTS, TILE = 4, 2, 128


def wrong(x: jax.Array) -> jax.Array:
    """Sums of tiles of x, float32[blocks * 128]: a float32[blocks, 128]."""
    return sums(x, fixed=False)


def right(x: jax.Array) -> jax.Array:
    """The same, with one start for both."""
    return sums(x, fixed=True)


def sums(x: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""
    blocks = x.size // TILE

    def kernel(x_gmem, o_gmem, x_smem, produced, consumed):
        block = lax.axis_index("block")
        end = block + 1

        @pl.when(lax.axis_index("thread") == 0)
        def _compute():
            def step(i, total):
                slot = lax.rem(i - START, SLOTS)
                plgpu.barrier_wait(produced.at[slot])
                total += x_smem[slot]
                plgpu.commit_smem()
                plgpu.barrier_arrive(consumed.at[slot])
                return total

            masked = lax.max(block, START) if fixed else block  # where the mask begins
            total = lax.fori_loop(START, masked, step, jnp.zeros(TILE, jnp.float32))
            o_gmem[block] = lax.fori_loop(masked, end, step, total)

        @pl.when(lax.axis_index("thread") == 1)
        def _load():
            @pl.loop(START, end)
            def _(i):
                slot = lax.rem(i - START, SLOTS)
                pl.when(i - START >= SLOTS)(lambda: plgpu.barrier_wait(consumed.at[slot]))
                tile = x_gmem.at[pl.ds(i * TILE, TILE)]
                plgpu.copy_gmem_to_smem(tile, x_smem.at[slot], produced.at[slot])

            @pl.loop(lax.max(START, end - SLOTS), end)
            def _(i):
                plgpu.barrier_wait(consumed.at[lax.rem(i - START, SLOTS)])

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
