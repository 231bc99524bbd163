"""`matmul` as it is called: it picks a configuration, and makes gradients by the same kernels.

The package's docstring says when the kernel is not used, and what gradients cost.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pipelib import tiles
from pipelib.kernels.choosing import H200, fits
from pipelib.kernels.front import FLOAT8, differentiable
from pipelib.kernels.hopper import default_device, num_sms
from pipelib.kernels.keywords import MATMUL, knows
from pipelib.kernels.matmul import arguments, forms
from pipelib.kernels.matmul.arguments import FRONT
from pipelib.kernels.matmul.choosing import default_config
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.kernels.matmul.product import Epilogue, Product
from pipelib.kernels.matmul.tuned import nearest_entry
from pipelib.refs import Dtype, Shaped

#: The epilogue's operands.
_Operands = tuple[jax.Array, ...]


@knows(MATMUL)
def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    config: MatmulConfig | None = None,
    epilogue: Epilogue | None = None,
    operands: Sequence[jax.Array | float] = (),
    out_dtype: DTypeLike | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    approx_math: bool = False,
) -> jax.Array:
    """`epilogue(a @ b, *operands)` on a Hopper GPU, accumulated in float32.

    Works under `jax.jit`, `jax.vmap` (the kernel's grid gets the batch as one more axis; an array
    without one is shared, not copied), `jax.grad` and `jax.shard_map`.

    Args:
      a: [M, K]; [K, M] if `transpose_a`.
      b: [K, N]; [N, K] if `transpose_b`. Both float16 or both bfloat16; or float8_e4m3fn and
        float8_e5m2 in any pair, and then K must be the last axis of both (`transpose_b` only).
        Of shapes that the kernel cannot address, `jax.lax.dot_general` makes the product: see
        "The fallback" in the module.
      config: by default the one that won the search for a product of as many tiles and steps, on
        this GPU or another Hopper (`pipelib.kernels.matmul.tuned`; `tune` finds more), or else the
        one of the least estimated time. `default_choice` says which.
      epilogue: a function of float32 arrays of one shape, the product and each operand. It must be
        elementwise: it is called with parts of the result, in registers (with the whole where the
        kernel is not used). One that looks at other elements (`softmax`, `cumsum`,
        `x - x.max()`), at their places, or at the parts' shape, is refused: it is run once on some
        15 numbers, together and each alone. It captures no arrays, only numbers. JAX compiles anew
        for each function object, so pass the same one. JAX 0.11 compiles no `jax.custom_jvp`: for
        `jax.nn.relu` write `jnp.maximum(x, 0.0)`.
      operands: of the epilogue: a residual [M, N], a bias [N] or [1, N], a scale of rows [M, 1], a
        number []; float32, float16 or bfloat16.
      out_dtype: float16, bfloat16 or float32. By default that of `a`, bfloat16 for float8.
      approx_math: whether an epilogue's `exp`, `tanh` and the like may be the GPU's own
        instructions, of fewer right digits (`plgpu.CompilerParams`); not so in its gradients.

    Returns:
      [M, N] in `out_dtype`.

    Raises:
      TypeError: dtypes, and types of arguments, that are not as above.
      ValueError: shapes; a GPU that is not Hopper, or a CPU where nothing interprets kernels (under
        `jax.jit` in Pallas's words); a configuration that does not fit, with the sum; an epilogue
        that is not elementwise, or captures arrays.

    Example:
      >>> a = jnp.ones((64, 128), jnp.bfloat16)
      >>> b = jnp.ones((128, 64), jnp.bfloat16)
      >>> def finish(acc, bias):
      ...     return jnp.maximum(acc + bias, 0.0)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     c = matmul(a, b, epilogue=finish, operands=(jnp.full(64, -28.0),))
      >>> c.dtype.name, float(c[0, 0])
      ('bfloat16', 100.0)
    """
    arguments.check_types(a, b, config, epilogue, operands)
    approx_math = FRONT.flag("approx_math", approx_math)
    product = _asked(a, b, out_dtype, transpose_a, transpose_b)
    product = product._replace(config=config, epilogue=epilogue, approx_math=approx_math)
    m, n, _ = product.sizes(a, b)
    matrices = [arguments.operand_matrix(i, x, (m, n)) for i, x in enumerate(operands)]
    arguments.check_finish(epilogue, matrices)
    if config is not None:
        if config.splits == 1:
            config.check(a.dtype, product.out_dtype, arguments.matrix_dtypes(matrices, (m, n)))
        else:
            config.check(a.dtype, jnp.float32)
        chosen = product.configured(config)
        because = arguments.unaddressed(a, b, matrices, chosen, by_rows=True)
        FRONT.refuse_unused(config, because)
    return FRONT.call(_product, (a, b, tuple(matrices)), product)


def _asked(
    a: Shaped, b: Shaped, out_dtype: DTypeLike | None, transpose_a: bool, transpose_b: bool
) -> Product[MatmulConfig | None]:
    """The product that arguments of `matmul` ask for; refuses them as it does."""
    transpose_a = FRONT.flag("transpose_a", transpose_a)
    transpose_b = FRONT.flag("transpose_b", transpose_b)
    arguments.check_dtypes(a, b, transpose_a, transpose_b)
    arguments.check_shapes(a, b, transpose_a, transpose_b)
    return Product(transpose_a, transpose_b, None, None, FRONT.stored_dtype(a, out_dtype))


def _made(
    a: jax.Array, b: jax.Array, operands: _Operands, product: Product[MatmulConfig | None]
) -> jax.Array:
    """The product by the kernel, or without it; all arguments are checked."""
    config = product.config or pick(a, b, operands, product).config
    chosen = product.configured(config)
    is_gpu = default_device().platform == "gpu"
    if arguments.unaddressed(a, b, operands, chosen, by_rows=is_gpu):
        return _fallback(a, b, operands, product)
    FRONT.require_gpu()
    out = forms.launch_product(a, b, operands, chosen, num_sms())
    if config.splits > 1:
        m, n, _ = product.sizes(a, b)
        out = _finish(out.sum(0)[:m, :n], operands, product).astype(product.out_dtype)
    return out


class Choice(NamedTuple):
    """The configuration that `matmul` takes where it is given none.

    Attributes:
      config: the configuration.
      gpu: the GPU that was measured for it, as JAX names it.
      searched: whether it won a search there; if not, that GPU's rates chose it.
    """

    config: MatmulConfig
    gpu: str
    searched: bool


def default_choice(
    a: Shaped,
    b: Shaped,
    *,
    operands: Sequence[Shaped] = (),
    out_dtype: DTypeLike | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Choice:
    """What `matmul` takes for such arguments without a `config`, unless it falls back.

    Args:
      a, b, operands, out_dtype, transpose_a, transpose_b: as `matmul`'s, or shapes and dtypes.

    Raises:
      TypeError, ValueError: as `matmul`'s.

    Example:
      >>> a = b = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> default_choice(a, b).gpu
      'NVIDIA H200'
    """
    return pick(a, b, operands, _asked(a, b, out_dtype, transpose_a, transpose_b))


def pick(
    a: Shaped, b: Shaped, operands: Sequence[Shaped], product: Product[MatmulConfig | None]
) -> Choice:
    """The configuration of a product that asks for none; its copies may not address the arrays.

    It is the tuned one of a product that is divided alike, or else the formula's: if b is copied by
    rows, one whose threads have 64 of its columns each. An epilogue's matrices are loads beside the
    product's, which the formula does not know: with them, it is the largest tile, which loads least
    of the factors, if there is one for each SM.
    """
    m, n, k = product.sizes(a, b)
    matrices = arguments.matrix_dtypes(operands, (m, n))
    near = nearest_entry(
        m, n, k, a.dtype, transpose_a=product.transpose_a, transpose_b=product.transpose_b,
        out_dtype=product.out_dtype, operands=matrices,
    )  # fmt: skip
    by_rows = not (product.transpose_b or tiles.has_pieces(b.shape, b.dtype))
    if near and not by_rows:
        return Choice(near.config, near.run["gpu"], searched=True)
    if matrices and not by_rows:
        largest = _largest(a.dtype, product.out_dtype, matrices)
        if largest and math.prod(largest.tiles(m, n)) >= num_sms():
            return Choice(largest, H200.gpu, searched=False)
    least = default_config(
        m, n, k, a.dtype, product.out_dtype, matrices, by_rows=by_rows,
        transpose_a=product.transpose_a,
    )  # fmt: skip
    return Choice(least, H200.gpu, searched=False)


def _largest(dtype: Dtype, out_dtype: Dtype, matrices: Sequence[Dtype]) -> MatmulConfig | None:
    """The largest tile, with the most slots that fit beside an epilogue's matrices, if any do."""
    configs = (
        MatmulConfig(tile_k=tiles.piece_columns(dtype), slots=slots) for slots in range(6, 1, -1)
    )
    return next((config for config in configs if fits(config, dtype, out_dtype, matrices)), None)


def _fallback(
    a: jax.Array, b: jax.Array, operands: _Operands, product: Product[MatmulConfig | None]
) -> jax.Array:
    """The product without the kernel; cuBLAS's, where no epilogue needs it in float32."""
    contracted = (0 if product.transpose_a else 1,), (1 if product.transpose_b else 0,)
    dtype = product.out_dtype if product.epilogue is None else jnp.float32
    acc = lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=dtype)  # pyright: ignore[reportUnknownMemberType]
    return _finish(acc, operands, product).astype(product.out_dtype)


def _finish(
    acc: jax.Array, operands: _Operands, product: Product[MatmulConfig | None]
) -> jax.Array:
    """The epilogue of the whole product."""
    if product.epilogue is None:
        return acc
    whole = [jnp.broadcast_to(operand.astype(jnp.float32), acc.shape) for operand in operands]
    return product.epilogue(acc, *whole)


def _backward(
    product: Product[MatmulConfig | None],
    g: jax.Array,
    a: jax.Array,
    b: jax.Array,
    operands: _Operands,
) -> tuple[jax.Array, jax.Array, _Operands]:
    """dA = G B^T and dB = A^T G, each in the order and the transposition that it is stored in."""
    a_t, b_t = product[:2]
    g = g.astype(jnp.float32)
    d_operands: _Operands = ()
    if product.epilogue is not None:
        plain = Product(a_t, b_t, None, None, jnp.dtype(jnp.float32))
        finish = functools.partial(_finish, product=product)
        pull: Callable[[jax.Array], Any]
        _, pull = jax.vjp(finish, _product(a, b, (), plain), operands)
        g, d_operands = pull(g)
    dtypes = a.dtype, b.dtype
    if a.dtype in FLOAT8:
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    g = g.astype(a.dtype)

    def multiply(x: jax.Array, y: jax.Array, x_t: bool, y_t: bool) -> jax.Array:
        return _product(x, y, (), Product(x_t, y_t, None, None, a.dtype))

    da = multiply(b, g, b_t, True) if a_t else multiply(g, b, False, not b_t)
    db = multiply(g, a, True, a_t) if b_t else multiply(a, g, not a_t, False)
    return da.astype(dtypes[0]), db.astype(dtypes[1]), d_operands


_product = differentiable(_made, _backward)
