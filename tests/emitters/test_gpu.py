"""The contract on a Hopper GPU, in both lowering semantics, and kernels at size."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.emitters import contract

pytestmark = pytest.mark.gpu

LANE, WARPGROUP = (
    plgpu.CompilerParams(lowering_semantics=semantics)
    for semantics in (plgpu.LoweringSemantics.Lane, plgpu.LoweringSemantics.Warpgroup)
)


def compiled(emitters, params, suffix=""):
    """The emitters, with kernels compiled in this way."""
    return [
        dataclasses.replace(emitter, name=emitter.name + suffix, compiler_params=params)
        for emitter in emitters
    ]


PLAIN, _, SPECIALIZED = contract.PIPELIB

# A kernel takes a second or more to compile. So: pipelib's emitters in all cases; the other
# semantics, which change how a kernel is lowered but not what it does, and upstream's, which check
# the suite, in one case of each function.
EMITTERS = compiled([PLAIN, SPECIALIZED], LANE, "-lane")
OTHERS = compiled([PLAIN, SPECIALIZED], WARPGROUP, "-warpgroup") + compiled(
    contract.UPSTREAM, LANE, "-lane"
)


@pytest.mark.parametrize(
    ("case", "emitter"),
    contract.pairs(EMITTERS) + contract.pairs(OTHERS, every_value=False),
)
def test_contract(case, emitter):
    case.function(emitter)


# Kernels at size.

SIZE = 4096
# Of the norm. The rounding of a float16's or a bfloat16's 11 or 8 bits alone gives 0.0002 and
# 0.0017. One block of 64 lost in 4096 gives 0.12, a slot overwritten while wgmma reads it 0.07.
TOLERANCE = {"float16": 5e-4, "bfloat16": 4e-3}
TILE_N, TILE_K = 128, 64
ROWS_OF_A_THREAD = 128
TRANSFORMS = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))

DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
SEMANTICS = pytest.mark.parametrize("params", [LANE, WARPGROUP], ids=["lane", "warpgroup"])


@functools.cache
def factors(dtype):
    """Two matrices, and their product in float32."""
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (SIZE, SIZE), jnp.float32).astype(dtype) for key in keys)
    return a, b, jnp.dot(a, b, preferred_element_type=jnp.float32)


def check_product(kernel, dtype):
    a, b, expected = factors(dtype)
    difference = kernel(a, b).astype(jnp.float32) - expected
    error = float(jnp.linalg.norm(difference) / jnp.linalg.norm(expected))
    assert error <= TOLERANCE[dtype]


def product_specs(tile_m, m, n, delay):
    """The blocks of both factors at each step, for the tile at (m, n) of the product."""
    options = dict(transforms=TRANSFORMS, delay_release=delay)
    return (
        contract.spec(lambda k: (m, k), (tile_m, TILE_K), **options),
        contract.spec(lambda k: (k, n), (TILE_K, TILE_N), **options),
    )


def store_tile(acc, staging, tile):
    """Brings an accumulator to its place in GMEM; the staging memory is free again after it."""
    staging[...] = acc[...].astype(staging.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staging, tile)
    plgpu.wait_smem_to_gmem(0)


def product(emitter, function, dtype, tile_m, **options):
    """A kernel that has a tile of the product to stage."""
    staging = plgpu.SMEM((tile_m, TILE_N), jnp.dtype(dtype), transforms=TRANSFORMS)
    output = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.dtype(dtype))
    return emitter.kernel(function, output, scratch_types=[staging], **options)


# Few slots, each released at once; more, each released when wgmma reads the next.
@pytest.mark.parametrize(("slots", "delay"), [(2, 0), (4, 1)])
@DTYPES
@SEMANTICS
def test_matmul(dtype, slots, delay, params):
    (emitter,) = compiled([PLAIN], params)
    tile_m = ROWS_OF_A_THREAD

    def kernel(a, b, o, staging):
        m, n = lax.axis_index("m"), lax.axis_index("n")

        def scope(acc):
            def body(_, indices, a_smem, b_smem):
                plgpu.wgmma(acc, a_smem, b_smem)
                plgpu.wgmma_wait(delay)

            in_specs = product_specs(tile_m, m, n, delay)
            options = dict(in_specs=in_specs, ordinary_reads=False)
            emitter.pipeline(body, slots, grid=(SIZE // TILE_K,), **options)(a, b)
            tile = o.at[pl.ds(m * tile_m, tile_m), pl.ds(n * TILE_N, TILE_N)]
            store_tile(acc, staging, tile)

        pl.run_scoped(scope, plgpu.ACC((tile_m, TILE_N), jnp.float32))

    grid = (SIZE // tile_m, SIZE // TILE_N)
    check_product(product(emitter, kernel, dtype, tile_m, grid=grid, grid_names=("m", "n")), dtype)


# One pipeline for each block, with all the slots that fit; and chains of 4, in which the next
# tile's first blocks are loaded while this tile is stored, with a number of slots that divides the
# steps. Slots released at once, or when wgmma reads the next.
@pytest.mark.parametrize(("tiles", "slots"), [(1, 3), (4, 2)])
@pytest.mark.parametrize("delay", [0, 1])
@DTYPES
@SEMANTICS
def test_specialized_matmul(dtype, slots, delay, params, tiles):
    (emitter,) = compiled([SPECIALIZED], params)
    tile_m = 2 * ROWS_OF_A_THREAD
    tiles_n = SIZE // TILE_N
    blocks = SIZE // tile_m * tiles_n // tiles
    place = plgpu.PipelinePipeline

    def kernel(a, b, o, staging):
        mine = emitter.share()

        def body(mine, _, a_smem, b_smem, acc):
            plgpu.wgmma(acc, mine(a_smem), b_smem)
            plgpu.wgmma_wait(delay)
            return acc

        def make(turn, state):
            index = turn * blocks + lax.axis_index("block")
            m, n = lax.div(index, tiles_n), lax.rem(index, tiles_n)
            tile = o.at[pl.ds(m * tile_m, tile_m), pl.ds(n * TILE_N, TILE_N)]

            def context(pipeline):
                def scope(acc):
                    pipeline(acc)
                    store_tile(acc, mine(staging), mine(tile))

                pl.run_scoped(scope, plgpu.ACC((ROWS_OF_A_THREAD, TILE_N), jnp.float32))

            return emitter.pipeline(
                body,
                slots,
                grid=(SIZE // TILE_K,),
                in_specs=product_specs(tile_m, m, n, delay),
                compute_context=context,
                pipeline_state=state,
                ordinary_reads=False,
            )

        if tiles == 1:
            make(0, None)(a, b)
            return

        def scope(allocations):
            @pl.loop(0, tiles)
            def _(turn):
                state = jnp.where(turn == 0, place.START, place.STEADY)
                state = jnp.where(turn == tiles - 1, place.STOP, state)
                make(turn, state)(a, b, allocations=allocations)

        allocations = make(0, None).get_allocations(a, b)
        pl.run_scoped(scope, allocations, collective_axes="wg")

    options = dict(grid=(blocks,), grid_names=("block",))
    check_product(product(emitter, kernel, dtype, tile_m, **options), dtype)


# 1 GiB in whole blocks; and about as much that ends amid blocks on both sides.
@pytest.mark.parametrize("shape", [(65536, 4096), (65533, 4076)], ids=["whole", "ragged"])
@pytest.mark.parametrize("emitter", EMITTERS, ids=lambda emitter: emitter.name)
def test_streaming(emitter, shape):
    block = 64, 64
    rows, cols = (-(-size // n) for size, n in zip(shape, block))

    def kernel(x, o):
        row = lax.axis_index("row")
        spec = contract.spec(lambda col: (row, col), block)
        specs = dict(in_specs=(spec,), out_specs=(spec,))
        emitter.pipeline(contract.add_one, 4, grid=(cols,), **specs)(x, o)

    x = jax.random.normal(jax.random.key(0), shape, jnp.float32)
    output = jax.ShapeDtypeStruct(shape, jnp.float32)
    out = emitter.kernel(kernel, output, grid=(rows,), grid_names=("row",))(x)
    assert np.asarray(jnp.array_equal(out, x + 1.0))
