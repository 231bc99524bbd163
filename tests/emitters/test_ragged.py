"""A ragged grid: rows of blocks of different lengths, through both emitters."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from tests.emitters.contract import interpreted

ROWS, SIDE = 4, 16


def lower_triangle(slots, x, o, *, specialized):
    """o = x times the length of its row, for the blocks on the diagonal and before it."""

    def body(indices, x, o):
        row, column, length = indices
        o[...] = x[...] * length.astype(jnp.float32) + (row - column).astype(jnp.float32)

    spec = pl.BlockSpec((SIDE, SIDE), lambda row, column, length: (row, column))
    emitter, more = pipelib.emit_pipeline, {}
    if specialized:
        emitter = pipelib.emit_pipeline_warp_specialized
        more = dict(memory_registers=40, wg_axis="thread", num_compute_wgs=1)
    emitter(
        body, grid=(ROWS, lambda row: row + 1), in_specs=[spec], out_specs=[spec],
        max_concurrent_steps=slots, **more,
    )(x, o)  # fmt: skip


def kernel(slots, specialized):
    threads = dict(num_threads=2, thread_name="thread") if specialized else {}
    like = jnp.zeros((ROWS * SIDE, ROWS * SIDE), jnp.float32)
    body = functools.partial(lower_triangle, slots, specialized=specialized)
    return plgpu.kernel(body, out_type=like, **threads)


@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_rows_of_different_lengths(slots, specialized):
    x = jnp.arange((ROWS * SIDE) ** 2, dtype=jnp.float32).reshape(ROWS * SIDE, ROWS * SIDE)
    call = kernel(slots, specialized)
    assert pallascope.check(pallascope.trace(call, x), strict=True).ok
    with interpreted():
        found = np.asarray(call(x))
    for row in range(ROWS):
        for column in range(row + 1):
            block = np.s_[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
            np.testing.assert_array_equal(found[block], x[block] * (row + 1) + row - column)


@pytest.mark.gpu
@pytest.mark.parametrize("specialized", [False, True])
def test_rows_of_different_lengths_on_gpu(specialized):
    x = jnp.ones((ROWS * SIDE, ROWS * SIDE), jnp.float32)
    found = np.asarray(kernel(2, specialized)(x))
    assert (found[-SIDE:, -SIDE:] == ROWS).all() and (found[:SIDE, :SIDE] == 1).all()
