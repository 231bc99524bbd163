"""The arguments of `matmul`: which are refused, and which the kernel can address.

The model. Each check says the fact and its consequence in a sentence that names the argument. None
looks at the numbers in an array, so that they work on tracers, and on `jax.ShapeDtypeStruct`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pipelib import specs, tiles
from pipelib.kernels.front import FLOAT8, HALVES, OUTPUTS, Front, names
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.epilogues import check_epilogue
from pipelib.kernels.matmul.product import Epilogue, Product
from pipelib.refs import Dtype, Shaped

FRONT = Front("matmul", "jnp.matmul", MatmulConfig)
stored_dtype = FRONT.stored_dtype
_INPUTS = (*HALVES, *FLOAT8)


def check_types(a: object, b: object, config: object, epilogue: object, operands: object) -> None:
    """Raises TypeError for arguments whose types are not as `matmul` says."""
    FRONT.check_arrays(a=a, b=b)
    FRONT.check_config(config)
    if epilogue is not None:
        specs.check_function("matmul: epilogue", epilogue)
    if not isinstance(operands, (tuple, list)):
        because = "the epilogue's operands come in a tuple or a list, a single one too"
        raise specs.wrong_type("matmul: operands", operands, because)


def check_dtypes(a: Shaped, b: Shaped, transpose_a: bool, transpose_b: bool) -> None:
    """Refuses factors that `wgmma` does not multiply.

    Raises:
      TypeError: a dtype that `wgmma` does not multiply here, or two that it does not multiply.
      ValueError: float8 whose last axis is not K.
    """
    dtypes = jnp.dtype(a.dtype), jnp.dtype(b.dtype)
    for name, dtype in zip("ab", dtypes):
        if dtype not in _INPUTS:
            raise TypeError(
                f"matmul: {name} is {dtype}, but wgmma multiplies here {names(_INPUTS)}."
            )
    is_float8 = [dtype in FLOAT8 for dtype in dtypes]
    if dtypes[0] != dtypes[1] and not all(is_float8):
        raise TypeError(
            f"matmul: a is {dtypes[0]} and b is {dtypes[1]}, but wgmma takes one dtype: cast one."
        )
    if any(is_float8) and (transpose_a or not transpose_b):
        raise ValueError(
            f"matmul: {transpose_a=} and {transpose_b=} in float8, but wgmma reads float8 only with"
            " K as the last axis of both: a [M, K], and b [N, K] with transpose_b=True."
        )


def check_shapes(a: Shaped, b: Shaped, transpose_a: bool, transpose_b: bool) -> None:
    """Raises ValueError for factors that have not two axes, do not share K, or are empty."""
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(
            f"matmul: a has shape {a.shape} and b {b.shape}, but both must have 2 axes; use"
            " jax.vmap for a batch."
        )
    k_a, k_b = a.shape[0 if transpose_a else 1], b.shape[1 if transpose_b else 0]
    if k_a != k_b:
        raise ValueError(
            f"matmul: a {a.shape} with {transpose_a=} has K = {k_a}, and b {b.shape} with"
            f" {transpose_b=} has K = {k_b}; they must be equal."
        )
    if 0 in (*a.shape, *b.shape):
        raise ValueError(f"matmul: a {a.shape} or b {b.shape} is empty; M, N, K must be 1 or more.")


def operand_matrix(i: int, given: jax.Array | float, shape: tuple[int, int]) -> jax.Array:
    """An operand of the epilogue, as an array of two axes.

    Args:
      i: its position, for the error.
      given: the operand as the caller has it.
      shape: the shape of the output, [M, N].

    Raises:
      TypeError, ValueError: for a dtype that the epilogue does not read, or another shape than
        `matmul` says.
    """
    m, n = shape
    fits = [(m, n), (1, n), (m, 1), (1, 1), (n,), (1,), ()]
    try:
        operand = jnp.asarray(given)
    except (TypeError, ValueError):
        because = "the epilogue reads arrays and numbers"
        raise specs.wrong_type(f"matmul: operands[{i}]", given, because) from None
    if operand.dtype not in OUTPUTS:
        raise TypeError(
            f"matmul: operand {i} of the epilogue is {operand.dtype}, but it reads"
            f" {names(OUTPUTS)}."
        )
    if operand.shape not in fits:
        raise ValueError(
            f"matmul: operand {i} of the epilogue has shape {operand.shape}, but for an output of"
            f" {shape} it must be {shape}, {(1, n)}, {(n,)}, {(m, 1)} or a number."
        )
    return operand.reshape((1,) * (2 - operand.ndim) + operand.shape)


def matrix_dtypes(operands: Sequence[Shaped], shape: tuple[int, int]) -> list[Dtype]:
    """The dtypes of the operands that are as large as the output."""
    return [operand.dtype for operand in operands if operand.shape == shape]


def check_finish(epilogue: Epilogue | None, operands: Sequence[jax.Array]) -> None:
    """Raises ValueError for an epilogue that is not elementwise, or operands without one."""
    if epilogue is not None:
        check_epilogue(epilogue, len(operands))
    elif operands:
        raise ValueError(f"matmul: {len(operands)} operands but no epilogue, which would use them.")


def unaddressed(
    a: Shaped, b: Shaped, operands: Sequence[Shaped], product: Product[MatmulConfig], by_rows: bool
) -> str | None:
    """Why the kernel's copies cannot address the factors, the output or a matrix of its shape.

    They copy pieces (`tiles`), or else `by_rows`, which a GPU has: rows of blocks that are one
    piece wide, or whose pieces each have another part of K; of a factor that is stored [K, M], one
    piece for each thread.
    """
    config, (m, n, _) = product.config, product.sizes(a, b)
    staged = config.epilogue_n
    if config.swapped:
        product, a, b = product.transposed(a, b)
        staged = STAGED_ROWS
    of_k = tiles.piece_columns(a.dtype)  # what `tile_k` is a multiple of
    widths = (
        (a, config.rows if product.transpose_a else of_k),
        (b, of_k if product.transpose_b else config.tile_n),
    )
    arrays = [(tuple(x.shape), x.dtype, width) for x, width in widths]
    if config.splits == 1:  # else the kernel's output is the parts
        outputs = product.out_dtype, *matrix_dtypes(operands, (m, n))
        arrays += [((m, n), dtype, staged) for dtype in outputs]
    for shape, dtype, width in arrays:
        if tiles.has_pieces(shape, dtype):
            continue
        piece = tiles.piece_columns(dtype)
        if not tiles.has_rows(shape, dtype):
            return (
                f"{shape} {dtype} has rows of {shape[1] * dtype.itemsize} bytes, no multiple of the"
                f" {tiles.TMA_BYTES} at which TMA can begin one"
            )
        if not by_rows or width != piece:
            return (
                f"{shape} {dtype} does not divide into pieces of {tiles.PIECE_ROWS} rows x"
                f" {piece} columns, and rows are copied {piece} columns at a time, not {width}"
            )
    return None
