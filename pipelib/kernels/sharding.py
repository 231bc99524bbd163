"""`varying_alike`: casts that a kernel needs under `jax.shard_map`.

The model. `jax.shard_map` keeps in the type of each array along which axes of the mesh it varies
(`check_vma=True`, the default). The result of a kernel varies wherever one of its arrays does, but
Pallas gives it a type that varies nowhere. So all arrays, and the result, are cast to vary along
the same axes. `jax.lax.pcast` then also adds up the gradient of an array over the axes that it did
not vary along. Outside of `shard_map` no array varies, and nothing happens here.
"""

import jax


def varying_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each cast to vary along all axes that any of them varies along."""
    axes = set().union(*(_varying(array) for array in arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return tuple(
        jax.lax.pcast(array, more, to="varying") if more else array
        for array, more in zip(arrays, missing)
    )


def _varying(array: jax.Array) -> frozenset[str]:
    return frozenset(jax.typeof(array).manual_axis_type.varying)
