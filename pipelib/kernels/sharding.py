"""`varying_alike`: casts that a kernel needs under `jax.shard_map`.

The model. `jax.shard_map` keeps in the type of each array along which axes of the mesh it varies
(`check_vma=True`, the default). The result of a kernel varies wherever one of its arrays does, but
Pallas gives it a type that varies nowhere. So all arrays, and the result, are cast to vary along
the same axes. `jax.lax.pcast` then also adds up the gradient of an array over the axes that it did
not vary along. For an array that is right, and for a result it would be wrong: its gradient varies,
too. So a result is cast within the function whose gradient is defined, not where that is called.
Outside of `shard_map` no array varies, and nothing happens here.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

from typing import cast

import jax


def varying_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each cast to vary along all axes that any of them varies along."""
    axes = set[str]().union(*(_varying(array) for array in arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return tuple(_cast(array, more) if more else array for array, more in zip(arrays, missing))


def _cast(array: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The array, cast to vary along these axes too."""
    return cast(jax.Array, jax.lax.pcast(array, axes, to="varying"))


def _varying(array: jax.Array) -> frozenset[str]:
    """The axes of the mesh along which an array varies."""
    return frozenset(jax.typeof(array).manual_axis_type.varying)
