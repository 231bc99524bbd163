"""`launches`: sees each kernel of `plgpu.kernel` when it is called.

How. Whatever name a caller has for it, a kernel that is called becomes one equation of one JAX
primitive, and JAX calls the `bind` of that primitive. A small kernel's jaxpr shows which primitive
it is. While `launches` is active, this `bind` is replaced by a function that notes the call and
hands it on. So it does not matter when `plgpu.kernel` was imported or called, nor whether the call
runs natively, is interpreted, or is only traced (`jax.jit`, `jax.grad`, `jax.vmap`,
`jax.eval_shape`).

What is noted: the kernel's jaxpr and launch, the types of its operands, and the values of integers
(up to 65,536 an operand) where JAX has them, which it has outside of `jax.jit`.

Not covered:

- a call that JAX does not trace, because it did so before: of a function under `jax.jit` that was
  called earlier with such arguments, or that was compiled ahead of time. `launches` empties JAX's
  caches when it begins, so only calls since then count;
- `jax.vmap` of a kernel: JAX also traces the kernel without the new axis, so both are noted;
- kernels of other processes, kernels of `pl.pallas_call`, and Mosaic GPU code without Pallas.

Source: `jax.experimental.pallas.mosaic_gpu.kernel` of JAX 0.11.2 and 0.12.0.1, which calls a kernel
within a `jax.custom_batching.custom_vmap`.
"""

import contextlib
import functools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.bench.jaxprs import digest_of

type Aval = Any  # the type of a value or a ref: has `shape` and `dtype`, except for tokens
#: Integers that decide what a kernel does are few: offsets, sizes of groups, tables of pages.
_MOST_INTEGERS = 65_536


@dataclass(frozen=True, slots=True)
class Called:
    """A kernel that was called: `params` of its equation, and the types and values of its operands.

    A value is None where it is not known, or no integer.
    """

    params: Mapping[str, Any]
    avals: tuple[Aval, ...]
    values: tuple[np.ndarray | None, ...]

    @property
    def name(self) -> str:
        """The name of the kernel's function, or the kernel's own."""
        return self.params["name"]

    @property
    def kernel(self) -> str:
        """A digest of the kernel and of the types of its operands."""
        return digest_of({"params": self.params, "avals": list(map(str, self.avals))})

    @property
    def is_known(self) -> bool:
        """Whether all integers are known on which the kernel's flow can depend."""
        return all(
            value is not None for aval, value in zip(self.avals, self.values) if is_table(aval)
        )

    @property
    def args(self) -> list[jax.ShapeDtypeStruct | np.ndarray]:
        """The arguments to trace `call` with: values where they are known, else types."""
        return [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype) if value is None else value
            for aval, value in zip(self.avals, self.values)
        ]

    def natively(self) -> "Called":
        """The same launch for a GPU, though it was called in the interpreter."""
        return replace(self, params={**self.params, "interpret": None})

    def call(self, *args: object) -> object:
        """Calls the kernel anew; `launches` does not see it."""
        refs = [jax.new_ref(x) if _is_ref(aval) else x for x, aval in zip(args, self.avals)]
        return _bind(primitive(), *refs, **self.params)


@contextlib.contextmanager
def launches() -> Generator[list[Called]]:
    """A list that grows with each kernel that is called, until the context ends."""
    jax.clear_caches()
    seen: list[Called] = []
    kernels = primitive()
    outer = kernels.bind

    def bind(*args: object, **params: Any) -> object:
        if hasattr(params["meshes"][0], "cluster"):  # not one within a kernel, as warp_map makes
            avals = tuple(map(jax.typeof, args))
            seen.append(Called(params, avals, tuple(map(_integers, args, avals))))
        return outer(*args, **params)

    kernels.bind = bind
    try:
        yield seen
    finally:
        if getattr(outer, "__self__", None) is kernels:
            del kernels.bind
        else:  # of a context around this one
            kernels.bind = outer


def distinct(seen: Sequence[Called]) -> list[Called]:
    """Each launch once.

    One whose integers are not known is left out if another of the same kernel has them: JAX traces
    most calls before it runs them.
    """
    known = {launch.kernel for launch in seen if launch.is_known}
    found: dict[tuple[object, ...], Called] = {}
    for launch in seen:
        if launch.is_known or launch.kernel not in known:
            contents = (None if value is None else value.tobytes() for value in launch.values)
            found.setdefault((launch.kernel, *contents), launch)
    return list(found.values())


@functools.cache
def primitive() -> Any:
    """The primitive whose equations are kernels."""
    kernel = plgpu.kernel(lambda *_: None, out_type=jax.ShapeDtypeStruct((128,), jnp.float32))
    (call,) = cast(Any, jax.make_jaxpr)(kernel)().eqns
    (eqn,) = call.params["call"].eqns
    return eqn.primitive


def is_table(aval: Aval) -> bool:
    """Whether an operand holds integers on which a kernel's flow may depend."""
    dtype = getattr(aval, "dtype", None)
    is_integral = isinstance(dtype, np.dtype) and dtype.kind in "biu"
    return is_integral and not _is_ref(aval) and math.prod(aval.shape) <= _MOST_INTEGERS


def _integers(arg: object, aval: Aval) -> np.ndarray | None:
    """The values of an operand, if they are integers and known."""
    return np.asarray(arg) if is_table(aval) and not isinstance(arg, Tracer) else None


def _is_ref(aval: Aval) -> bool:
    return hasattr(aval, "inner_aval")


def _bind(kernels: Any, *args: object, **params: object) -> object:
    """The primitive's own `bind`, whatever stands in its place."""
    return cast(Any, type(kernels)).bind(kernels, *args, **params)
