"""Parts of rows that stations pass around in a ring, counted by one semaphore for each station.

After `all_gather_lhs_matmul` of JAX's `collective_matmul_mgpu.py`, whose stations are devices; here
they are blocks of one grid. In each step the blocks of a station send their parts to the station
on the left, and wait until it has all parts of the step from the right. In `wrong` one semaphore
counts the signals of all steps, so that a fast block's second signal may stand for the first of a
slow one. In `right` each step has a semaphore of its own.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

STATIONS, PARTS, WIDTH = 3, 2, 128


def wrong(x: jax.Array) -> jax.Array:
    """Of x, float32[3, 2, 128], the sum over its first axis, for each index on that axis."""
    return sums(x, fixed=False)


def right(x: jax.Array) -> jax.Array:
    """The same, with a semaphore for each step."""
    return sums(x, fixed=True)


def sums(x: jax.Array, *, fixed: bool) -> jax.Array:
    """The kernel, with its fault or mended."""

    def kernel(x_gmem, o_gmem, board):
        station, part = lax.axis_index("station"), lax.axis_index("part")
        left = lax.rem(station + STATIONS - 1, STATIONS)
        arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((STATIONS, STATIONS - 1)))
        mine = x_gmem[station, part]
        total = mine
        for step in range(STATIONS - 1):
            board[left, step, part] = mine
            of_step, count = (step, PARTS) if fixed else (0, (step + 1) * PARTS)
            pl.semaphore_signal(arrived.at[left, of_step])
            pl.semaphore_wait(arrived.at[station, of_step], count, decrement=False)
            mine = board[station, step, part]
            total = total + mine
        o_gmem[station, part] = total

    shape = jax.ShapeDtypeStruct((STATIONS, PARTS, WIDTH), jnp.float32)
    slots = jax.ShapeDtypeStruct((STATIONS, STATIONS - 1, PARTS, WIDTH), jnp.float32)
    call = plgpu.kernel(
        kernel, out_type=(shape, slots), grid=(STATIONS, PARTS), grid_names=("station", "part")
    )
    return call(x)[0]
