"""A pipeline whose slot is filled again while a product may read it.

After `ragged_dot_mgpu` of JAX. `delay_release=1` keeps a slot for one more step, in which its
product has to end. The body of `wrong` starts a product and waits for none; `right` waits for the
product of the step before.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE, DEPTH = 64, 64
_TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def wrong(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of a, float16[64, k], and b, float16[k, 64]."""
    return product(a, b, fixed=False)


def right(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same, with the wait."""
    return product(a, b, fixed=True)


def product(a: jax.Array, b: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(a_gmem, b_gmem, o_gmem):
        def scope(acc):
            def step(_, a_smem, b_smem):
                plgpu.wgmma(acc, a_smem, b_smem)
                if fixed:
                    plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                step,
                grid=(a.shape[1] // DEPTH,),
                in_specs=[
                    plgpu.BlockSpec(
                        (TILE, DEPTH), lambda k: (0, k), transforms=_TILED, delay_release=1
                    ),
                    plgpu.BlockSpec(
                        (DEPTH, TILE), lambda k: (k, 0), transforms=_TILED, delay_release=1
                    ),
                ],
                max_concurrent_steps=2,
            )(a_gmem, b_gmem)
            o_gmem[...] = acc[...]

        pl.run_scoped(scope, plgpu.ACC((TILE, TILE), jnp.float32))

    return plgpu.kernel(kernel, out_type=jax.ShapeDtypeStruct((TILE, TILE), jnp.float32))(a, b)
