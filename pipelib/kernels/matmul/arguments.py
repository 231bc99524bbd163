"""The arguments of `matmul`: which are refused, and which the kernel can address.

The model. Each check says the fact and its consequence in a sentence that names the argument. None
looks at the numbers in an array, so that they work on tracers, and on `jax.ShapeDtypeStruct`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pipelib import specs
from pipelib.kernels.hopper import PIECE_ROWS, SWIZZLE
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.kernels.matmul.epilogues import check_epilogue
from pipelib.kernels.matmul.product import Epilogue, Product

FLOAT8 = (jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e5m2))
_INPUTS = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16), *FLOAT8)
_OUTPUTS = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))


def check_types(a: Any, b: Any, config: Any, epilogue: Any, operands: Any) -> None:
    """Raises TypeError for arguments whose types are not as `matmul` says."""
    specs.check_array("matmul: a", a)
    specs.check_array("matmul: b", b)
    if config is not None and not isinstance(config, MatmulConfig):
        raise specs.wrong_type("matmul: config", config, "a MatmulConfig says how it is divided")
    if epilogue is not None:
        specs.check_function("matmul: epilogue", epilogue)
    if not isinstance(operands, (tuple, list)):
        because = "the epilogue's operands come in a tuple or a list, a single one too"
        raise specs.wrong_type("matmul: operands", operands, because)


def stored_dtype(a: Any, asked: Any) -> Any:
    """The dtype of the result; `asked` is None for the default."""
    if asked is None:
        asked = jnp.bfloat16 if a.dtype in FLOAT8 else a.dtype
    try:
        asked = jnp.dtype(asked)
    except TypeError:
        because = f"{_names(_OUTPUTS)} can be stored"
        raise specs.wrong_type("matmul: out_dtype", asked, because) from None
    if asked not in _OUTPUTS:
        raise TypeError(
            f"matmul: out_dtype={asked} is none of {_names(_OUTPUTS)}, which it stores."
        )
    return asked


def check_dtypes(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> None:
    """Refuses dtypes of factors that `wgmma` does not multiply, or not as they are stored."""
    dtypes = jnp.dtype(a.dtype), jnp.dtype(b.dtype)
    for name, dtype in zip("ab", dtypes):
        if dtype not in _INPUTS:
            raise TypeError(
                f"matmul: {name} is {dtype}, but wgmma multiplies here {_names(_INPUTS)}."
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


def check_shapes(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> None:
    """Refuses shapes of factors that cannot be multiplied."""
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


def operand_matrix(i: int, operand: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """An operand of the epilogue, with two axes."""
    m, n = shape
    fits = [(m, n), (1, n), (m, 1), (1, 1), (n,), (1,), ()]
    try:
        operand = jnp.asarray(operand)
    except (TypeError, ValueError):
        because = "the epilogue reads arrays and numbers"
        raise specs.wrong_type(f"matmul: operands[{i}]", operand, because) from None
    if operand.dtype not in _OUTPUTS:
        raise TypeError(
            f"matmul: operand {i} of the epilogue is {operand.dtype}, but it reads"
            f" {_names(_OUTPUTS)}."
        )
    if operand.shape not in fits:
        raise ValueError(
            f"matmul: operand {i} of the epilogue has shape {operand.shape}, but for an output of"
            f" {shape} it must be {shape}, {(1, n)}, {(n,)}, {(m, 1)} or a number."
        )
    return operand.reshape((1,) * (2 - operand.ndim) + operand.shape)


def matrix_dtypes(operands: Sequence[Any], shape: tuple[int, int]) -> list[Any]:
    """The dtypes of the operands that are as large as the output."""
    return [operand.dtype for operand in operands if operand.shape == shape]


def check_finish(epilogue: Epilogue | None, operands: Sequence[jax.Array]) -> None:
    """Refuses an epilogue that cannot be called part by part, and operands without an epilogue."""
    if epilogue is not None:
        check_epilogue(epilogue, len(operands))
    elif operands:
        raise ValueError(f"matmul: {len(operands)} operands but no epilogue, which would use them.")


def is_addressable(a: Any, b: Any, operands: Sequence[Any], product: Product) -> bool:
    """Whether the kernel's copies can address the factors, the output and matrices of its shape."""
    shape = product.sizes(a, b)[:2]
    arrays = [(*x.shape, x.dtype) for x in (a, b)]
    arrays += [(*shape, dtype) for dtype in (product.out_dtype, *matrix_dtypes(operands, shape))]
    for rows, columns, dtype in arrays:
        if columns * jnp.dtype(dtype).itemsize % SWIZZLE:
            return False
        if rows > PIECE_ROWS and rows % PIECE_ROWS:
            return False
    return True


def _names(dtypes: Sequence[Any]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)
