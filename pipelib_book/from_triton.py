"""Ten idioms of Pallas's Triton backend, each before and after its move to Mosaic GPU.

The model. An idiom NAME is two functions of the same arrays with the same result: `NAME_before` for
`pl.pallas_call`, which Triton compiles, and `NAME_after` for `plgpu.kernel`. Each is whole, so that
a page can show it alone. `IDIOMS` has for each the arrays that it takes, and plain JAX's result.
"""
# The page shows what a function is for above it.
# ruff: noqa: D103

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt

import pipelib

TILED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)


def grid_before(x):
    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    row = pl.BlockSpec((1, 256), lambda i: (i, 0))
    return pl.pallas_call(body, x, grid=(len(x),), in_specs=[row], out_specs=row)(x)


def grid_after(x):
    def body(x_gmem, o_gmem):
        row = lax.axis_index("row")
        o_gmem[row] = 2 * x_gmem[row]

    return plgpu.kernel(body, out_type=x, grid=(len(x),), grid_names=("row",))(x)


def warps_before(x):
    def body(x_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...])

    rows = pl.BlockSpec((2, 256), lambda i: (i, 0))
    warps = plt.CompilerParams(num_warps=8)
    return pl.pallas_call(
        body, x, grid=(len(x) // 2,), in_specs=[rows], out_specs=rows, compiler_params=warps
    )(x)


def warps_after(x):
    def body(x_gmem, o_gmem):
        row = 2 * lax.axis_index("i") + lax.axis_index("thread")
        o_gmem[row] = jnp.exp(x_gmem[row])

    return plgpu.kernel(
        body, out_type=x, grid=(len(x) // 2,), grid_names=("i",),
        num_threads=2, thread_name="thread",  # of four warps each
    )(x)  # fmt: skip


def masks_before(x):
    def body(x_ref, o_ref):
        first = pl.program_id(0) * 256
        mask = first + jnp.arange(256) < len(x)
        found = plt.load(x_ref.at[pl.ds(first, 256)], mask=mask, other=0.0)
        plt.store(o_ref.at[pl.ds(first, 256)], 2 * found, mask=mask)

    return pl.pallas_call(body, x, grid=(pl.cdiv(len(x), 256),))(x)


def masks_after(x):
    def body(x_gmem, o_gmem, x_smem, landed):
        some = pl.ds(lax.axis_index("i") * 256, 256)
        plgpu.copy_gmem_to_smem(x_gmem.at[some], x_smem, landed)
        plgpu.barrier_wait(landed)
        x_smem[...] = 2 * x_smem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[some])
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((256,), x.dtype), plgpu.Barrier()]
    grid = (pl.cdiv(len(x), 256),)
    return plgpu.kernel(body, out_type=x, grid=grid, grid_names=("i",), scratch_types=scratch)(x)


def loop_before(x):
    def body(x_ref, o_ref):
        step = lambda row, most: jnp.maximum(most, x_ref[row])
        o_ref[...] = lax.fori_loop(1, len(x_ref), step, x_ref[0])

    columns = pl.BlockSpec((len(x), 128), lambda i: (0, i))
    out_type, out = ShapeDtypeStruct(x.shape[1:], x.dtype), pl.BlockSpec((128,), lambda i: (i,))
    return pl.pallas_call(
        body, out_type, grid=(x.shape[1] // 128,), in_specs=[columns], out_specs=out
    )(x)


def loop_after(x):
    def body(x_gmem, o_gmem):
        columns = pl.ds(lax.axis_index("i") * 128, 128)
        step = lambda row, most: jnp.maximum(most, x_gmem[row, columns])
        o_gmem[columns] = lax.fori_loop(1, len(x), step, x_gmem[0, columns])

    out_type = ShapeDtypeStruct(x.shape[1:], x.dtype)
    return plgpu.kernel(body, out_type=out_type, grid=(x.shape[1] // 128,), grid_names=("i",))(x)


def stages_before(x):
    def body(x_ref, o_ref):
        step = lambda k, acc: acc + x_ref[:, pl.ds(k * 64, 64)]
        zeros = jnp.zeros((64, 64), jnp.float32)
        o_ref[...] = lax.fori_loop(0, x.shape[1] // 64, step, zeros)

    rows, out = (pl.BlockSpec((64, n), lambda i: (i, 0)) for n in (x.shape[1], 64))
    out_type = ShapeDtypeStruct((len(x), 64), x.dtype)
    return pl.pallas_call(
        body, out_type, grid=(len(x) // 64,), in_specs=[rows], out_specs=out,
        compiler_params=plt.CompilerParams(num_stages=2),
    )(x)  # fmt: skip


def stages_after(x):
    def body(x_gmem, o_gmem):
        i = lax.axis_index("i")
        tile = plgpu.BlockSpec((64, 64), lambda k: (i, k))
        o_gmem[pl.ds(i * 64, 64)] = pipelib.emit_pipeline(
            lambda _, x_smem, acc: acc + x_smem[...],
            grid=(x.shape[1] // 64,), in_specs=[tile], max_concurrent_steps=2,
            init_carry=jnp.zeros((64, 64), jnp.float32),
        )(x_gmem)  # fmt: skip

    out_type = ShapeDtypeStruct((len(x), 64), x.dtype)
    return plgpu.kernel(body, out_type=out_type, grid=(len(x) // 64,), grid_names=("i",))(x)


def reduction_before(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...].sum(axis=1)

    rows = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    out_type, out = ShapeDtypeStruct(x.shape[:1], x.dtype), pl.BlockSpec((64,), lambda i: (i,))
    return pl.pallas_call(body, out_type, grid=(len(x) // 64,), in_specs=[rows], out_specs=out)(x)


def reduction_after(x):
    def body(x_gmem, o_gmem):
        rows = pl.ds(lax.axis_index("i") * 64, 64)
        tile = plgpu.load(x_gmem.at[rows], layout=plgpu.Layout.WGMMA, optimized=False)
        o_gmem[rows] = tile.sum(axis=1)

    out_type = ShapeDtypeStruct(x.shape[:1], x.dtype)
    return plgpu.kernel(body, out_type=out_type, grid=(len(x) // 64,), grid_names=("i",))(x)


def dot_before(a, b):
    def body(a_ref, b_ref, o_ref):
        def step(k, acc):
            some = pl.ds(k * 64, 64)
            return acc + plt.dot(a_ref[:, some], b_ref[some])

        zeros = jnp.zeros((64, 64), jnp.float32)
        o_ref[...] = lax.fori_loop(0, a.shape[1] // 64, step, zeros)

    return pl.pallas_call(body, ShapeDtypeStruct((64, 64), jnp.float32))(a, b)


def dot_after(a, b):
    a_tile = plgpu.BlockSpec((64, 64), lambda k: (0, k), transforms=TILED)
    b_tile = plgpu.BlockSpec((64, 64), lambda k: (k, 0), transforms=TILED)

    def body(a_gmem, b_gmem, o_gmem):
        def product(acc):
            def step(_, a_smem, b_smem):
                plgpu.wgmma(acc, a_smem, b_smem)
                plgpu.wgmma_wait(0)

            grid = (a.shape[1] // 64,)
            pipelib.emit_pipeline(step, grid=grid, in_specs=[a_tile, b_tile])(a_gmem, b_gmem)
            return acc[...]

        o_gmem[...] = pl.run_scoped(product, plgpu.ACC((64, 64), jnp.float32))

    return plgpu.kernel(body, out_type=ShapeDtypeStruct((64, 64), jnp.float32))(a, b)


def transposed_before(a, b):
    def body(a_ref, b_ref, o_ref):
        o_ref[...] = plt.dot(a_ref[...], b_ref[...], trans_b=True)

    return pl.pallas_call(body, ShapeDtypeStruct((64, 64), jnp.float32))(a, b)


def transposed_after(a, b):
    def body(a_gmem, b_gmem, o_gmem, a_smem, b_smem, landed):
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, landed)
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, landed)
        plgpu.barrier_wait(landed)

        def product(acc):
            plgpu.wgmma(acc, a_smem, b_smem.T)
            return acc[...]

        o_gmem[...] = pl.run_scoped(product, plgpu.ACC((64, 64), jnp.float32))

    tile = plgpu.SMEM((64, 64), a.dtype, transforms=TILED)
    scratch = [tile, tile, plgpu.Barrier(num_arrivals=2)]
    out_type = ShapeDtypeStruct((64, 64), jnp.float32)
    return plgpu.kernel(body, out_type=out_type, scratch_types=scratch)(a, b)


def cast_before(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.bfloat16)

    rows = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    out_type = ShapeDtypeStruct(x.shape, jnp.bfloat16)
    return pl.pallas_call(body, out_type, grid=(len(x) // 64,), in_specs=[rows], out_specs=rows)(x)


def cast_after(x):
    def body(x_gmem, o_gmem):
        rows = pl.ds(lax.axis_index("i") * 64, 64)
        o_gmem[rows] = x_gmem[rows].astype(jnp.bfloat16)

    out_type = ShapeDtypeStruct(x.shape, jnp.bfloat16)
    return plgpu.kernel(body, out_type=out_type, grid=(len(x) // 64,), grid_names=("i",))(x)


def atomics_before(x):
    def body(x_ref, _, o_ref):
        plt.atomic_add(o_ref, (pl.ds(0, 256),), x_ref[0])

    row, zeros = pl.BlockSpec((1, 256), lambda i: (i, 0)), jnp.zeros(x.shape[1:], x.dtype)
    specs, alias = [row, pl.no_block_spec], {1: 0}
    add = pl.pallas_call(body, zeros, grid=(len(x),), in_specs=specs, input_output_aliases=alias)
    return add(x, zeros)


def atomics_after(x):
    def body(x_gmem, o_gmem):
        plgpu.atomic_add(o_gmem.at[...], x_gmem[lax.axis_index("i")])

    total = jax.new_ref(jnp.zeros(x.shape[1:], x.dtype))
    plgpu.kernel(body, out_type=(), grid=(len(x),), grid_names=("i",))(x, total)
    return total[...]


class Idiom(NamedTuple):
    """What an idiom's two functions should give, and the arrays that they take."""

    expected: Callable[..., jax.Array]
    args: list[ShapeDtypeStruct]


_ROWS, _TILES = ShapeDtypeStruct((4, 256), jnp.float32), ShapeDtypeStruct((128, 256), jnp.float32)
_TILE, _LONG = (ShapeDtypeStruct((64, n), jnp.bfloat16) for n in (64, 256))
#: By name, in the order of the page.
IDIOMS = {
    "grid": Idiom(lambda x: 2 * x, [_ROWS]),
    "warps": Idiom(jnp.exp, [_ROWS]),
    "masks": Idiom(lambda x: 2 * x, [ShapeDtypeStruct((1000,), jnp.float32)]),
    "loop": Idiom(lambda x: x.max(0), [_ROWS]),
    "stages": Idiom(lambda x: x.reshape(len(x), -1, 64).sum(1), [_TILES]),
    "reduction": Idiom(lambda x: x.sum(1), [_TILES]),
    "dot": Idiom(jnp.dot, [_LONG, ShapeDtypeStruct((256, 64), jnp.bfloat16)]),
    "transposed": Idiom(lambda a, b: a @ b.T, [_TILE, _TILE]),
    "cast": Idiom(lambda x: x.astype(jnp.bfloat16), [_TILES]),
    "atomics": Idiom(lambda x: x.sum(0), [_ROWS]),
}
