"""float8 in the forward kernel: how V lies, and how probabilities become operands in registers.

The model. `wgmma` reads operands of 8 bits along the contracted axis only. So V comes transposed,
[head_dim, keys]: plain JAX does that, once, before the kernel.

Probabilities stay in registers. An accumulator and a first operand of 8 bits lie in lanes
differently. In 16 columns, lane q of a quad has the accumulator's columns 2q, 2q + 1, 8 + 2q and
9 + 2q, and is to have the operand's columns 4q to 4q + 3. A product does not change if both its
operands have the contracted axis in another order. So each lane's four numbers are said to be the
four columns that it should have, no lane passes anything on, and V's keys have the same order.

Probabilities are at most 1, and most are small: float8_e4m3fn has 2^-9 as its smallest. So they are
multiplied by 2^`SHIFT`, and so are their sums. The largest is then 256, of at most `LARGEST`. The
schedule "optimistic" asks that sums are no larger than that. Those of a lane have 16 probabilities,
which are multiplied by 2^`OPTIMISTIC_SHIFT`: 256 if they are all 1.

Source of V's order within a step: FlashAttention-3 (J. Shah et al., 2024), section 3.3, which
reorders V in the kernel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import fragmented_array
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.config import AttentionConfig
from pipelib.tiles import SWIZZLE

#: The power of 2 that probabilities are multiplied by; that of "optimistic"; the largest float8.
SHIFT, OPTIMISTIC_SHIFT, LARGEST = 8.0, 4.0, 448.0
#: Columns in which an accumulator and an operand of 8 bits differ.
GROUP = 16


#: Keys of a step are a multiple of this: V's rows are one piece, of 128 bytes.
KEYS = SWIZZLE


def check(config: AttentionConfig, head_dim: int) -> None:
    """Raises ValueError for a configuration that float8 cannot have with heads of this size."""
    if config.block_kv % KEYS:
        raise ValueError(
            f"attention: {config.block_kv=} in float8, but a step must have a multiple of {KEYS}"
            f" keys, whose numbers fill V's rows of {SWIZZLE} bytes."
        )
    config.check(head_dim, dtype=jnp.float8_e4m3fn)


def turned(v: jax.Array, multiple: int, in_registers: bool) -> jax.Array:
    """V as the kernel reads it: [batch, kv_heads, head_dim, keys].

    Args:
      v: [batch, keys, kv_heads, head_dim].
      multiple: zeros fill the keys up to a multiple of this, which is one of `GROUP`.
      in_registers: whether keys are in the order of probabilities in registers.
    """
    missing = -v.shape[1] % multiple
    v = jnp.pad(v, ((0, 0), (0, missing), (0, 0), (0, 0)))  # pyright: ignore[reportUnknownMemberType]
    v = v.transpose(0, 2, 3, 1)
    if not in_registers:
        return v
    *others, keys = v.shape
    return v.reshape(*others, keys // GROUP, 2, 4, 2).swapaxes(-3, -2).reshape(v.shape)


def as_operand(p: jax.Array) -> jax.Array:
    """Probabilities of 8 bits in an accumulator's layout as an operand, in `turned`'s order."""
    kind = plgpu.ShapeDtypeStruct(p.shape, p.dtype, layout=plgpu.Layout.WGMMA_8BIT)

    def four_of_each_lane(_: Any, p: Any) -> Any:
        from jaxlib.mlir.dialects import vector  # pyright: ignore[reportMissingTypeStubs]

        layout = fragmented_array.WGMMA_LAYOUT_8BIT
        pairs = p.registers.reshape(p.registers.shape[0], -1, 2, 2)  # [64 rows, 16 columns, ...]
        registers = np.empty(layout.registers_shape(p.shape), dtype=object)
        flat = registers.reshape(pairs.shape[0], -1, 2)
        for place in np.ndindex(*flat.shape):
            rows, group, half = place
            first, second = pairs[rows, group, :, half]
            flat[place] = vector.shuffle(first, second, [0, 1, 2, 3])  # pyright: ignore[reportUnknownMemberType]
        return fragmented_array.FragmentedArray(
            _registers=registers, _layout=layout, _is_signed=None
        )

    make: Any = plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA,), return_type=kind)
    return make(four_of_each_lane)(p)
