"""Kernels of `emit_pipeline` that GPUs before Hopper can run too, each with what it must give.

The model. A `Case` is a kernel, its arguments, and its result by NumPy. Nothing in it says for
which GPU it is traced. `test_before_hopper` interprets, checks, lowers and compiles the cases for
compute capability 8.0, and runs them so on a Hopper GPU, which has all instructions of that one.

All numbers are small integers, which every dtype holds exactly. A run of a block is a multiple of
512 bytes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

ROWS, COLS = 16, 128


class Case(NamedTuple):
    """A kernel, the arrays that it takes, and the array that it gives.

    `kernel(**options)` makes the function, with more options of `plgpu.kernel`.
    """

    name: str
    kernel: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    expected: np.ndarray
    is_interpreted: bool = True


def numbers(*shape, dtype=np.float32):
    """Small integers, different from row to row and from column to column."""
    count = np.arange(np.prod(shape)).reshape(shape)
    return ((count * 7 + count // 128) % 16 - 5).astype(dtype)


def kernel(function, out, **options):
    """What makes a kernel whose output is like the array `out`."""
    out = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return functools.partial(plgpu.kernel, function, out_type=out, **options)


def zeros():
    """A block of zeros, whose layout Lane semantics wants to know."""
    layout = plgpu.Layout.WG_STRIDED((ROWS, COLS), vec_size=2)
    return plgpu.layout_cast(jnp.zeros((ROWS, COLS), jnp.float32), layout)


def spec(shape, index, **options):
    return plgpu.BlockSpec(shape, index, **options)


def doubled(name, x, grid, block, index, slots=2, delay=0):
    """Each block added to itself; `delay` steps after a body its slot is loaded again."""

    def pipeline(x_gmem, o_gmem):
        def body(_, x_smem, o_smem):
            is_byte = x.dtype == np.int8  # with which Mosaic GPU does no arithmetic
            o_smem[...] = x_smem[...] if is_byte else x_smem[...] + x_smem[...]

        pipelib.emit_pipeline(
            body,
            grid=grid,
            max_concurrent_steps=slots,
            in_specs=[spec(block, index, delay_release=delay)],
            out_specs=[spec(block, index)],
        )(x_gmem, o_gmem)

    return Case(name, kernel(pipeline, x), (x,), x if x.dtype == np.int8 else x + x)


def with_delays(delays, slots, steps=6):
    """Inputs that are released after different numbers of steps, added up."""
    inputs = tuple(numbers(steps * ROWS, COLS) + i for i in range(len(delays)))
    block = (ROWS, COLS), lambda i: (i, 0)

    def pipeline(*refs):
        def body(_, *smem):
            *inputs, out = smem
            out[...] = sum(ref[...] for ref in inputs)

        pipelib.emit_pipeline(
            body,
            grid=(steps,),
            max_concurrent_steps=slots,
            in_specs=[spec(*block, delay_release=delay) for delay in delays],
            out_specs=[spec(*block)],
        )(*refs)

    name = f"delays {delays}, {slots} slots, {steps} steps"
    return Case(name, kernel(pipeline, inputs[0]), inputs, sum(inputs))


def built_up(rows=ROWS):
    """Consecutive steps add to one block of the output, which is stored once."""
    x = numbers(2 * rows, 4 * COLS)

    def pipeline(x_gmem, o_gmem):
        def body(indices, x_smem, o_smem):
            @pl.when(indices[1] == 0)
            def _():
                o_smem[...] = jnp.zeros(o_smem.shape, jnp.float32)

            o_smem[...] = o_smem[...] + x_smem[...]

        pipelib.emit_pipeline(
            body,
            grid=(2, 4),
            in_specs=[spec((rows, COLS), lambda i, k: (i, k))],
            out_specs=[spec((rows, COLS), lambda i, k: (i, 0))],
            max_concurrent_steps=3,
        )(x_gmem, o_gmem)

    expected = x.reshape(2 * rows, 4, COLS).sum(1)
    return Case("an output that steps build up", kernel(pipeline, expected), (x,), expected)


def carried():
    """No output: the last carry is written by the kernel."""
    x = numbers(5 * ROWS, COLS)

    def pipeline(x_gmem, o_gmem):
        body = lambda _, x_smem, total: total + x_smem[...]
        o_gmem[...] = pipelib.emit_pipeline(
            body,
            grid=(5,),
            in_specs=[spec((ROWS, COLS), lambda i: (i, 0))],
            max_concurrent_steps=2,
            init_carry=zeros(),
        )(x_gmem)

    expected = x.reshape(5, ROWS, COLS).sum(0)
    return Case("a carry", kernel(pipeline, expected), (x,), expected)


def dynamic(steps):
    """The kernel learns the number of steps when it runs."""
    x = numbers(5 * ROWS, COLS)

    def pipeline(size, x_gmem, o_gmem):
        o_gmem[...] = jnp.zeros(x.shape, jnp.float32)

        def body(_, x_smem, o_smem):
            o_smem[...] = x_smem[...] + 1

        block = spec((ROWS, COLS), lambda i: (i, 0))
        pipelib.emit_pipeline(
            body, grid=(size[0],), in_specs=[block], out_specs=[block], max_concurrent_steps=3
        )(x_gmem, o_gmem)

    expected = np.where(np.arange(len(x))[:, None] < steps * ROWS, x + 1, 0).astype(x.dtype)
    size = np.array([steps], np.int32)
    return Case(f"{steps} steps, as an operand says", kernel(pipeline, x), (size, x), expected)


def ragged():
    """Rows of steps with different lengths."""
    x = numbers(3 * ROWS, 4 * COLS)

    def pipeline(x_gmem, o_gmem):
        def body(indices, x_smem, total):
            return total + x_smem[...] * (indices[0] + 1).astype(jnp.float32)

        o_gmem[...] = pipelib.emit_pipeline(
            body,
            grid=(3, lambda i: i + 1),
            max_concurrent_steps=2,
            in_specs=[spec((ROWS, COLS), lambda i, k, size: (i, k))],
            init_carry=zeros(),
        )(x_gmem)

    tile = lambda i, k: x[i * ROWS : (i + 1) * ROWS, k * COLS : (k + 1) * COLS]
    expected = sum(tile(i, k) * (i + 1) for i in range(3) for k in range(i + 1))
    return Case("a ragged grid", kernel(pipeline, expected), (x,), expected)


def pinned():
    """Operands that stay in GMEM, beside one that is loaded."""
    x, y = numbers(4 * ROWS, COLS), numbers(4 * ROWS, COLS) + 1
    stays = plgpu.BlockSpec(memory_space=plgpu.GMEM)

    def pipeline(*refs):
        def body(indices, x_smem, y_gmem, o_gmem):
            rows = pl.ds(indices[0] * ROWS, ROWS)
            o_gmem[rows] = x_smem[...] + y_gmem[rows]

        pipelib.emit_pipeline(
            body,
            grid=(4,),
            in_specs=[spec((ROWS, COLS), lambda i: (i, 0)), stays],
            out_specs=[stays],
            max_concurrent_steps=2,
        )(*refs)

    return Case("operands that stay in GMEM", kernel(pipeline, x), (x, y), x + y)


TILES = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)


def product(size=256, tile=64, slots=3, dtype=np.float16):
    """Tiles of two factors, which `plgpu.mma` multiplies; the sums are the carry."""
    a, b = numbers(size, size, dtype=dtype), numbers(size, size, dtype=dtype).T.copy()
    of_a, of_b, of_sums = (
        layout(dtype)
        for layout in (plgpu.Layout.MMA_LHS, plgpu.Layout.MMA_RHS, plgpu.Layout.MMA_ACC)
    )

    def block(a_gmem, b_gmem, o_gmem):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def body(_, a_smem, b_smem, sums):
            a = plgpu.load(a_smem, layout=of_a, optimized=False)
            b = plgpu.load(b_smem, layout=of_b, optimized=False)
            return plgpu.mma(sums, a, b)

        zero = plgpu.layout_cast(jnp.zeros((tile, tile), jnp.float32), of_sums)
        o_gmem[pl.ds(i * tile, tile), pl.ds(j * tile, tile)] = pipelib.emit_pipeline(
            body,
            grid=(size // tile,),
            max_concurrent_steps=slots,
            init_carry=zero,
            in_specs=[
                spec((tile, tile), lambda k: (i, k), transforms=TILES),
                spec((tile, tile), lambda k: (k, j), transforms=TILES),
            ],
        )(a_gmem, b_gmem)

    expected = a.astype(np.float32) @ b.astype(np.float32)
    grid = dict(grid=(size // tile,) * 2, grid_names=("i", "j"))
    # The interpreter has no `mma`.
    return Case("a product by mma", kernel(block, expected, **grid), (a, b), expected, False)


CASES = (
    doubled("rows", numbers(64, 128), (4,), (16, 128), lambda i: (i, 0)),
    doubled("columns too", numbers(64, 512), (4, 4), (16, 128), lambda i, j: (i, j), slots=3),
    doubled("a squeezed axis", numbers(4, 16, 128), (4, 2), (None, 8, 128), lambda i, j: (i, j, 0)),
    doubled("squeezed within", numbers(16, 4, 128), (4,), (16, None, 128), lambda i: (0, i, 0)),
    doubled("float16", numbers(64, 256, dtype=np.float16), (4,), (16, 256), lambda i: (i, 0)),
    doubled("int8", numbers(64, 512, dtype=np.int8), (8,), (8, 512), lambda i: (i, 0), slots=4),
    doubled("one slot", numbers(64, 128), (4,), (16, 128), lambda i: (i, 0), slots=1),
    doubled("fewer steps than slots", numbers(32, 128), (2,), (16, 128), lambda i: (i, 0), slots=4),
    doubled("a delay", numbers(96, 128), (6,), (16, 128), lambda i: (i, 0), slots=3, delay=1),
    doubled("all slots delayed", numbers(96, 128), (6,), (16, 128), lambda i: (i, 0), 3, 2),
    with_delays((0, 1), 3),
    with_delays((2, 0, 1), 4),
    with_delays((1, 0), 2, steps=3),
    built_up(),
    carried(),
    dynamic(5),
    dynamic(2),
    dynamic(0),
    ragged(),
    pinned(),
    product(),
)
