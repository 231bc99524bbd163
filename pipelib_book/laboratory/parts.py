"""What the laboratory's kernels share: sizes, scratch memory, and who does what in a block.

The model. A tile is 64 x 64: float16 where the tensor core reads it, and float32 elsewhere. The
loads of a step are not here, though many kernels have the same: the page shows an operation's line
of source, which should be a line of its kernel.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

#: How many steps most kernels have, and the side of a tile.
STEPS, SIZE = 6, 64
#: How a thread's registers have a tile that no product makes, and how memory has an operand's.
LAYOUT = plgpu.Layout.WG_STRIDED((SIZE, SIZE), vec_size=2)
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def launch(kernel: Callable, out: tuple[int, ...], *args: jax.Array, **options: Any) -> jax.Array:
    """Launches one block of the kernel."""
    return plgpu.kernel(kernel, out_type=jax.ShapeDtypeStruct(out, jnp.float32), **options)(*args)


def two_threads(compute: Callable[[], None], load: Callable[[], None]) -> None:
    """Gives the compute thread and the memory thread their parts."""
    thread = lax.axis_index("thread")
    pl.when(thread == 0)(compute)
    pl.when(thread == 1)(load)


def drain(free: Any, steps: int, slots: int) -> None:
    """The memory thread's waits for each slot's last release; no fewer steps than slots."""

    def wait(k, _):
        plgpu.barrier_wait(free.at[lax.rem(k, slots)])

    lax.fori_loop(steps - slots, steps, wait, None)


def span(step: Any) -> pl.Slice:
    """The rows, or the columns, of a step's tile."""
    return pl.ds(step * SIZE, SIZE)


def zeros() -> jax.Array:
    """Sums to begin with, in registers."""
    return plgpu.layout_cast(jnp.zeros((SIZE, SIZE), jnp.float32), LAYOUT)


def accumulator() -> Any:
    """A product's sums, in registers."""
    return plgpu.ACC((SIZE, SIZE), jnp.float32)


def one_tile() -> Any:
    """A tile in shared memory that stands alone."""
    return plgpu.SMEM((SIZE, SIZE), jnp.float32)


def tile_slots(slots: int) -> Any:
    """Slots of tiles."""
    return plgpu.SMEM((slots, SIZE, SIZE), jnp.float32)


def one_operand() -> Any:
    """One tile that the tensor core reads."""
    return plgpu.SMEM((SIZE, SIZE), jnp.float16, transforms=TILED)


def operand_slots(slots: int) -> Any:
    """Slots of tiles that the tensor core reads."""
    return plgpu.SMEM((slots, SIZE, SIZE), jnp.float16, transforms=TILED)


def product_scratch(slots: int) -> list[Any]:
    """Scratch memory: slots of both operands, a tile beside them, and the slots' barriers."""
    return [
        operand_slots(slots),
        operand_slots(slots),
        one_tile(),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        plgpu.Barrier(num_barriers=slots),
    ]
