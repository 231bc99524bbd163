"""One head by two formulas: the loads take the right head, the body another.

After tokamax's gradient of attention for Hopper, `kernel_dkv`. `GROUP` heads of queries share a
head of keys; head `j` of the group of `head` has the number `GROUP * head + j`. `wrong` has the two
the other way round for what the body reads itself. That is a head of another group, and none at all
if a group is larger than there are groups.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

GROUP, ROWS = 4, 128


def wrong(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Sums over each group of heads of x and bias, float32[heads, 128]."""
    return sums(x, bias, fixed=False)


def right(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The same, with one formula."""
    return sums(x, bias, fixed=True)


def sums(x: jax.Array, bias: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""
    groups = len(x) // GROUP

    def kernel(x_gmem, bias_gmem, o_gmem, x_smem, loaded):
        head = lax.axis_index("head")

        def step(j, total):
            loaded_head = GROUP * head + j
            read_head = loaded_head if fixed else GROUP * j + head
            plgpu.copy_gmem_to_smem(x_gmem.at[loaded_head], x_smem.at[j], loaded)
            plgpu.barrier_wait(loaded)
            return total + x_smem[j] + bias_gmem[read_head]

        o_gmem[head] = lax.fori_loop(0, GROUP, step, jnp.zeros(ROWS, jnp.float32))

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((groups, ROWS), jnp.float32),
        scratch_types=[plgpu.SMEM((GROUP, ROWS), jnp.float32), plgpu.Barrier()],
        grid=(groups,),
        grid_names=("head",),
    )(x, bias)
