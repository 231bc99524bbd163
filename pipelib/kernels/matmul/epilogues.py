"""`check_epilogue`: whether a function can finish a product part by part.

The model. A kernel calls an epilogue with parts of the result, as its configuration divides it. The
fallback calls it with the whole result. So an epilogue must give the same values however the result
is divided, down to single elements. We run it on a small random array that contains one NaN, once
whole and once element by element, and compare. A sum along a row, a softmax, a cumulative sum, an
`iota`, a number made from the shape, a guard such as `isfinite(x).all()`: each shows as a
difference.

The NaN finds epilogues that look at other elements only to see whether they are finite. Not
covered: epilogues that look at other elements only if these are large (a guard against a maximum of
1e6, say).
"""

import concurrent.futures
import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

#: The shape of the array that an epilogue is tried on: unequal sizes show a change of shape.
PART = 3, 5


def check_epilogue(epilogue: Callable[..., jax.Array], operands: int) -> None:
    """Refuses an epilogue, of the product and this many operands, that is not elementwise.

    Args:
      epilogue: the function.
      operands: how many arrays it takes beside the product.

    Raises:
      ValueError: it fails on parts, changes their shape, captures arrays, or mixes elements.
    """
    for shape in (PART, (1, 1)):
        part = jax.ShapeDtypeStruct(shape, jnp.float32)
        try:
            closed, out = jax.make_jaxpr(epilogue, return_shape=True)(*[part] * (1 + operands))
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"matmul: the epilogue fails on the product and {operands} operands, parts of shape"
                f" {shape} each: {error}. It captures no arrays of the result's size: those come"
                " as operands=, of which it is given the parts."
            ) from error
        if closed.consts:
            shapes = list(map(jnp.shape, closed.consts))
            raise ValueError(
                f"matmul: the epilogue captures arrays of shapes {shapes}, which a kernel cannot"
                " read; pass them as operands=, or use numbers of Python."
            )
        if getattr(out, "shape", None) != shape:
            raise ValueError(
                f"matmul: the epilogue makes {out} of parts of shape {shape}; it must work on each"
                " element alone and keep the shape."
            )
    if difference := _difference(epilogue, operands):
        place, together, alone = difference
        raise ValueError(
            f"matmul: the epilogue gives {together:.3g} for element {place} of a part of shape"
            f" {PART}, but {alone:.3g} for that element alone: it looks at other elements, its"
            " place or the part's shape, so what it gives would depend on how the kernel divides"
            " the result."
        )


@functools.lru_cache(maxsize=256)
def _difference(
    epilogue: Callable[..., jax.Array], operands: int
) -> tuple[tuple[int, int], float, float] | None:
    """The first element whose value differs in a part and alone: its place, and both values."""
    numbers = np.random.default_rng(0).standard_normal((1 + operands, *PART), np.float32)
    numbers[:, 1, 2] = np.nan

    def both(*parts: jax.Array) -> tuple[jax.Array, jax.Array]:
        single = jax.vmap(epilogue)(*(part.reshape(-1, 1, 1) for part in parts))
        return epilogue(*parts), single

    # In another thread no transformation of the caller's is under way: its numbers are numbers.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        together, alone = thread.submit(_evaluated, both, numbers).result()
    alone = alone.reshape(PART)
    # Compilers make the same function of one element and of several to within some last bits.
    size = np.max(np.abs(alone), where=np.isfinite(alone), initial=0.0)
    is_same = np.isclose(together, alone, rtol=1e-4, atol=1e-6 * size, equal_nan=True)
    if is_same.all():
        return None
    row, column = map(int, np.argwhere(~is_same)[0])
    place = row, column
    return place, float(together[place]), float(alone[place])


def _evaluated(
    function: Callable[..., tuple[jax.Array, ...]], arrays: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """The results of a function of these arrays, compiled, in float32."""
    with jax.debug_nans(False):
        results = cast("tuple[jax.Array, ...]", jax.jit(function)(*arrays))
        return [np.asarray(x, np.float32) for x in results]
