"""`attention_space` and `row_space`: what a search can try of attention and of the row kernels.

The model. Each is a space for `pallascope.tuning.search`, as plain data, with a kernel that is made
of a configuration by `functools.partial`. For products there is `matmul_space`, which comes in an
order, since it is too large to simulate.
"""

import contextlib
import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.kernels.attention import AttentionConfig
from pipelib.kernels.attention.config import HEAD_DIMS, SCHEDULES

#: Keys of a step, slots and compute threads of `attention`.
_KEYS, _SLOTS, _THREADS = (64, 128, 192, 256), (2, 3, 4), (2, 3)
#: Slots and rows of `softmax` and `rms_norm`; the most bytes of a step.
_ROW_SLOTS, _ROWS, _STEP_BYTES = (1, 2, 3, 4, 6), (1, 2, 4, 8), 32 << 10


def attention_space(head_dim: int) -> list[AttentionConfig]:
    """The configurations of `pipelib.kernels.attention`, forward, that fit an SM.

    Args:
      head_dim: elements of a head.

    Example:
      >>> space = pipelib.kernels.attention_space(128)
      >>> len(space), space[0].block_kv
      (..., 64)
      >>> def kernel_of(config):
      ...     return functools.partial(attention, config=config)
      >>> q = jax.ShapeDtypeStruct((1, 512, 2, 128), jnp.bfloat16)
      >>> results = pallascope.tuning.search(kernel_of, space[:2], q, q, q, progress=False)
      >>> results.best.outcome
      <Outcome.PREDICTED: 'predicted'>
    """
    head_dim = specs.integer("attention_space: head_dim", head_dim)
    if not 1 <= head_dim <= max(HEAD_DIMS):
        raise ValueError(
            f"attention_space: {head_dim=} is not 1 to {max(HEAD_DIMS)}, the largest head that the"
            " kernel has, so no configuration fits."
        )
    found: list[AttentionConfig] = []
    for block_kv, slots, threads, schedule in itertools.product(_KEYS, _SLOTS, _THREADS, SCHEDULES):
        config = AttentionConfig(
            block_kv=block_kv, slots=slots, compute_threads=threads, schedule=schedule
        )
        with contextlib.suppress(ValueError):
            config.check(head_dim)
            found.append(config)
    return found


def row_space(shape: Sequence[int], dtype: DTypeLike) -> dict[str, list[int]]:
    """Slots and rows of a step of `pipelib.kernels.softmax` and `rms_norm`.

    Args:
      shape, dtype: the array's.

    Example:
      >>> pipelib.kernels.row_space((4096, 4096), jnp.float32)
      {'slots': [1, 2, 3, 4, 6], 'rows': [1, 2]}
    """
    if isinstance(shape, str) or not (hasattr(shape, "__len__") and len(shape)):
        because = "it is the shape of an array of rows, a tuple of one size or more"
        raise specs.wrong_type("row_space: shape", shape, because)
    shape = [specs.integer("row_space: shape", size) for size in shape]
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        raise specs.wrong_type("row_space: dtype", dtype, "it is the rows' dtype") from None
    row_bytes = shape[-1] * jnp.dtype(dtype).itemsize
    most = min(max(1, _STEP_BYTES // max(1, row_bytes)), math.prod(shape[:-1]))
    return dict(slots=[*_ROW_SLOTS], rows=[rows for rows in _ROWS if rows <= most])
