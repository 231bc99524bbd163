"""`varying_alike`: what a kernel needs under `jax.shard_map`.

The model. `jax.shard_map` keeps, in each array's type, along which axes of the mesh it varies
(`check_vma=True`, the default). A kernel's result varies wherever one of its arrays does, and the
rule by which an array's gradient is added up over the axes that it does not vary along is that of
`jax.lax.pcast`. So all arrays are cast to vary alike before a kernel gets them, and so is its
result, which Pallas types as one that varies nowhere. Outside of `shard_map` nothing does, and
nothing happens here.
"""

import jax


def varying_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each varying along all axes along which one of them does."""
    axes = set().union(*(_varying(array) for array in arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return tuple(
        jax.lax.pcast(array, more, to="varying") if more else array
        for array, more in zip(arrays, missing)
    )


def _varying(array: jax.Array) -> frozenset[str]:
    return frozenset(jax.typeof(array).manual_axis_type.varying)
