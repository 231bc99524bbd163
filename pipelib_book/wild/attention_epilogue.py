"""Results over operands: thread 0 writes where thread 1's product may still read.

After tokamax's attention for Hopper. Two compute threads take turns on the tensor core. Queries and
keys lie in the same memory as the results (`plgpu.RefUnion`). Thread 0's results cover the queries
of both threads. When thread 1 gives the turn back, its product has begun; `right` also waits until
it is over.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS, KEYS, DEPTH = 64, 128, 64
_TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def wrong(q: jax.Array, k: jax.Array) -> jax.Array:
    """Scores, float16[2, 64, 128], of q, float16[2, 64, 64], and k, float16[128, 64]."""
    return all_scores(q, k, fixed=False)


def right(q: jax.Array, k: jax.Array) -> jax.Array:
    """The same, with the wait."""
    return all_scores(q, k, fixed=True)


def all_scores(q: jax.Array, k: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(q_gmem, k_gmem, o_gmem, memory, loaded, turn, finished):
        (q_smem, k_smem), o_smem = memory
        me = lax.axis_index("thread")

        @pl.when(me == 0)
        def _():
            plgpu.copy_gmem_to_smem(q_gmem, q_smem, loaded)
            plgpu.copy_gmem_to_smem(k_gmem, k_smem, loaded)

        plgpu.barrier_wait(loaded)
        pl.when(me == 1)(lambda: plgpu.barrier_wait(turn.at[1]))

        def product(acc):
            plgpu.wgmma(acc, q_smem.at[me], k_smem.T)
            plgpu.barrier_arrive(turn.at[1 - me])  # begun, not over
            return acc[...]

        scores = pl.run_scoped(product, plgpu.ACC((ROWS, KEYS), jnp.float32))
        if fixed:
            pl.when(me == 1)(lambda: plgpu.barrier_arrive(finished))
        plgpu.barrier_wait(turn.at[me])

        @pl.when(me == 0)
        def _():
            plgpu.barrier_arrive(turn.at[1])
            if fixed:
                plgpu.barrier_wait(finished)

        o_smem[me] = scores.astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem.at[me], o_gmem.at[me])
        plgpu.wait_smem_to_gmem(0)

    operands = (
        plgpu.SMEM((2, ROWS, DEPTH), jnp.float16, transforms=_TILED),
        plgpu.SMEM((KEYS, DEPTH), jnp.float16, transforms=_TILED),
    )
    results = plgpu.SMEM((2, ROWS, KEYS), jnp.float16, transforms=_TILED)
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((2, ROWS, KEYS), jnp.float16),
        scratch_types=[
            plgpu.RefUnion(operands, results),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(num_barriers=2),
            plgpu.Barrier(),
        ],
        num_threads=2,
        thread_name="thread",
    )(q, k)
