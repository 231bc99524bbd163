"""The kernels that `benchmarks/search.py` searches, each with its space.

They are in a module of their own, since a script's functions cannot be sent to its workers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import kernels
from pipelib.kernels import AttentionConfig, MatmulConfig, attention
from pipelib.tuning.candidates import candidates
from pipelib.tuning.library import attention_space
from pipelib.tuning.on_gpu import ours
from pipelib.tuning.products import Problem, dot
from pipelib.tuning.spaces import Values, configurations

PARTS = "matmul", "attention", "chapter"
PRODUCT = Problem(4096, 4096, 4096)
QUERIES = jax.ShapeDtypeStruct((1, 4096, 16, 128), "bfloat16")


class Case(NamedTuple):
    """A kernel to search: its name, `search`'s arguments, and how to read a configuration.

    `every` says which configurations of the space are taken if nobody says: each N-th.
    """

    name: str
    kernel_of: Callable[..., Any]
    space: Sequence[Any]
    args: tuple[Any, ...]
    expected: Callable[..., Any]
    config_of: Callable[..., Any]
    every: int = 1

    def kernel(self, config: dict[str, Any]) -> Callable[..., Any]:
        """The kernel of a configuration of the record."""
        made = self.config_of(**config)
        return self.kernel_of(**made) if isinstance(made, Values) else self.kernel_of(made)


def case(part: str) -> Case:
    """What a part searches."""
    if part == "matmul":
        made, expected = functools.partial(ours, PRODUCT), functools.partial(dot, problem=PRODUCT)
        args = PRODUCT.factors
        return Case(
            f"matmul {PRODUCT}", made, candidates(PRODUCT), args, expected, MatmulConfig, 20
        )
    if part == "attention":
        batch, seq, heads, head_dim = QUERIES.shape
        name = f"attention of {batch} x {seq} x {heads} x {head_dim} {QUERIES.dtype}"
        space = attention_space(head_dim)
        args = (QUERIES,) * 3
        return Case(name, _attention, space, args, _plain_attention, AttentionConfig)
    space = dict(slots=[1, 2, 3, 4, 5], delay=[0, 1], rows=[64, 128], alone=[True, False])
    square = (kernels.like(kernels.SIZE, kernels.SIZE),) * 2
    return Case(
        f"warp-specialized product of {kernels.SIZE}x{kernels.SIZE}, float16", _specialized,
        configurations(_specialized, space), square, _product, Values,
    )  # fmt: skip


def _attention(config: AttentionConfig) -> Callable[..., Any]:
    return functools.partial(attention, config=config)


def _plain_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(q, k, v, implementation="xla")


def _specialized(slots: int, delay: int, rows: int, alone: bool) -> Callable[..., Any]:
    return kernels.specialized(slots, delay, rows, alone, stamped=False)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot(a, b, preferred_element_type=jnp.float32).astype(a.dtype)
