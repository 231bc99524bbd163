"""`Front`: what every kernel does between its caller's arrays and its launch, once for all.

The model. A public function looks at what only it knows: its shapes and its options. The rest is
alike for all kernels, and is here::

    the public function            check_arrays, check_config     TypeErrors in its own name
                                   call                           the arrays vary alike; a CPU that
                                                                  interprets nothing is explained
    JAX's rule of its gradients    `differentiable`, or `Front.without_gradient`
    its body                       plain JAX where copies cannot address the arrays, or else
                                   require_gpu, and the launch

All that a call asks for beside its arrays is one hashable value (`asked`), so that JAX compiles
each function once for each value.

GPU or interpreter. `wgmma` exists on Hopper only (compute capability 9.x); Blackwell has other
instructions in its place. TMA, and the barriers that count its bytes, exist on Hopper and newer
GPUs. A device that is not a GPU is never refused before the call: JAX's interpreter may run the
kernel there, and whoever traces or lowers it for a GPU runs nothing. If a call on a CPU ends with
Pallas's error, `Front.call` says what to do. Within `jax.jit`, JAX compiles after the kernel's
function has returned, so there the error stays Pallas's.

`jax.shard_map` keeps in the type of each array along which axes of the mesh it varies
(`check_vma=True`, the default). The result of a kernel varies wherever one of its arrays does, but
Pallas gives it a type that varies nowhere. So all arrays, and the result, are cast to vary along
the same axes. `jax.lax.pcast` then also adds up the gradient of an array over the axes that it did
not vary along. For an array that is right, and for a result it would be wrong: its gradient varies,
too. So a result is cast within the function whose gradient is defined, not where that is called.
Outside of `shard_map` no array varies, and nothing happens.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.kernels.hopper import default_device
from pipelib.refs import Dtype, Shaped

#: Dtypes of 16 bits, which `wgmma` multiplies in any order; of 8 bits, which it reads along K only.
HALVES = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16))
FLOAT8 = (jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e5m2))
#: Dtypes that products are stored in.
OUTPUTS = (*HALVES, jnp.dtype(jnp.float32))
#: Pallas's error for a kernel that JAX compiles for a CPU (JAX 0.11.2 and 0.12.0.1).
_ONLY_INTERPRETED = "Only interpret mode is supported on CPU backend."


class Front(NamedTuple):
    """The front door of one kernel.

    Attributes:
      name: the public function's name, with which all errors begin.
      plain: what gives the same result in plain JAX, by its name.
      config: the class of its configuration; None if it has none.
      is_interpreted: whether JAX's interpreter can run the kernel.
      or_newer: whether GPUs newer than Hopper can run it too, because it uses TMA but no `wgmma`.
    """

    name: str
    plain: str
    config: type | None = None
    is_interpreted: bool = True
    or_newer: bool = False

    def check_arrays(self, **arrays: object) -> None:
        """Raises TypeError for arguments, by their names, that are not arrays."""
        for name, array in arrays.items():
            specs.check_array(f"{self.name}: {name}", array)

    def check_config(self, config: object) -> None:
        """Raises TypeError for a configuration of another class; None is no configuration."""
        if config is not None and self.config and not isinstance(config, self.config):
            kind = self.config.__name__
            because = f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind} says how it is divided"
            raise specs.wrong_type(f"{self.name}: config", config, because)

    def refuse_unused(self, config: object, because: str | None) -> None:
        """Raises ValueError for a configuration that was asked for, if no kernel would use it.

        Args:
          config: None if the caller asked for none.
          because: why there is no kernel; None if there is one.
        """
        if config is not None and because is not None:
            raise ValueError(
                f"{self.name}: {because}, so JAX makes the result without the kernel, and {config}"
                " would go unused: leave config out, or give arrays that the kernel takes."
            )

    def check_halves(self, lhs: Shaped, rhs: Shaped) -> None:
        """Raises TypeError for factors that are not of one dtype of 16 bits."""
        dtypes = jnp.dtype(lhs.dtype), jnp.dtype(rhs.dtype)
        if dtypes[0] not in HALVES or dtypes[0] != dtypes[1]:
            raise TypeError(
                f"{self.name}: lhs is {dtypes[0]} and rhs {dtypes[1]}, but both must be float16, or"
                " both bfloat16, which wgmma multiplies: cast them."
            )

    def stored_dtype(self, a: Shaped, asked: DTypeLike | None) -> Dtype:
        """The dtype of a product.

        Args:
          a: the first factor, whose dtype is the default, or bfloat16 for float8.
          asked: the argument `out_dtype`; None for the default.

        Raises:
          TypeError: `asked` is not a dtype, or none that can be stored.
        """
        if asked is None:
            asked = jnp.bfloat16 if a.dtype in FLOAT8 else a.dtype
        try:
            dtype = jnp.dtype(asked)
        except TypeError:
            because = f"{names(OUTPUTS)} can be stored"
            raise specs.wrong_type(f"{self.name}: out_dtype", asked, because) from None
        if dtype not in OUTPUTS:
            raise TypeError(
                f"{self.name}: out_dtype={dtype} is none of {names(OUTPUTS)}, which it stores."
            )
        return dtype

    def flag(self, name: str, value: object) -> bool:
        """The value of an argument as a bool, if it is one of Python, NumPy or JAX.

        Raises:
          TypeError: it is not a bool, or is traced and so known only at run time.
        """
        return specs.flag(f"{self.name}: {name}", value)

    def number(self, name: str, value: object) -> float:
        """The value of an argument as a float.

        Raises:
          TypeError: it is not a number, or is traced and so known only at run time.
        """
        try:
            return float(cast(float, value))
        except (TypeError, ValueError):
            because = "a kernel is compiled for it, so it must be a number that is known before"
            raise specs.wrong_type(f"{self.name}: {name}", value, because) from None

    def require_gpu(self) -> None:
        """Raises ValueError if the default device is a GPU that cannot run the kernel.

        That is one of another compute capability than 9.x (or, if `or_newer`, an older one).
        """
        device = default_device()
        capability = str(getattr(device, "compute_capability", ""))
        major = capability.partition(".")[0]
        is_newer = major.isdigit() and int(major) > 9  # GPUs of other makers have words here
        if device.platform != "gpu" or major == "9" or (self.or_newer and is_newer):
            return
        needs = (
            "TMA needs 9.0 or more, Hopper or newer"
            if self.or_newer
            else "wgmma needs 9.x, a Hopper GPU"
        )
        raise ValueError(
            f"{self.name}: {device.device_kind} has compute capability {capability}, but {needs}."
        )

    @contextlib.contextmanager
    def explained(self) -> Generator[None]:
        """A context in which a CPU without an interpreter is refused in words that say what to do.

        Raises:
          ValueError: in place of Pallas's error. All other errors pass.
        """
        try:
            yield
        except ValueError as error:
            if str(error) != _ONLY_INTERPRETED:
                raise
            interpreter = (
                "call it under plgpu.force_gpu_interpret_mode(), or " if self.is_interpreted else ""
            )
            raise ValueError(
                f"{self.name}: there is no Hopper GPU here (JAX's backend is cpu), so nothing can"
                f" run the kernel: {interpreter}call {self.plain}."
            ) from None

    def call[R](self, made: Callable[..., R], arrays: Sequence[Any], asked: Hashable) -> R:
        """Calls a kernel's function of checked arguments.

        Args:
          made: what `differentiable` or `without_gradient` gives.
          arrays: arrays, and tuples of them.
          asked: all that the call asks for beside its arrays.
        """
        leaves, tree = jax.tree.flatten(arrays)
        alike = jax.tree.unflatten(tree, varying_alike(*leaves))
        with self.explained():
            return made(*alike, asked)

    def without_gradient[R](self, make: Callable[..., R], instead: str) -> Callable[..., R]:
        """A kernel's function, which refuses to be differentiated.

        Args:
          make: makes the results of arrays, and of what is asked for, its last argument.
          instead: ends the error: what has no gradient, and what to do.
        """
        made: Any = jax.custom_jvp(_compiled(make), nondiff_argnums=(_arrays_of(make),))  # pyright: ignore[reportUnknownVariableType]

        def refuse(*arguments: object) -> NoReturn:
            del arguments
            raise NotImplementedError(f"{self.name} has no gradient{instead}.")

        made.defjvp(refuse)
        return cast("Callable[..., R]", made)


def differentiable[R](
    make: Callable[..., R],
    backward: Callable[..., tuple[Any, ...]],
    *,
    keeps_result: bool = False,
    is_compiled: bool = True,
) -> Callable[..., R]:
    """A kernel's function, with its rule for gradients.

    Args:
      make: makes the results of arrays, and of what is asked for, its last argument.
      backward: takes what was asked for, the cotangents, the arrays, and then the results if they
        are kept. It gives the gradient of each array, None for integers.
      keeps_result: whether the backward pass needs the results.
      is_compiled: whether JAX compiles the function by itself, if its caller does not.
    """
    inner = _compiled(make) if is_compiled else _varying_results(make)
    made: Any = jax.custom_vjp(inner, nondiff_argnums=(_arrays_of(make),))  # pyright: ignore[reportUnknownVariableType]

    def forward(*arguments: Any) -> tuple[R, tuple[Any, ...]]:
        result = cast(R, made(*arguments))
        return result, (*arguments[:-1], *[result] * keeps_result)

    @functools.wraps(backward)
    def gradients(asked: Hashable, kept: tuple[Any, ...], cotangents: R) -> tuple[Any, ...]:
        return _alike(backward(asked, cotangents, *kept), kept)

    made.defvjp(forward, gradients)
    return cast("Callable[..., R]", made)


def _arrays_of(make: Callable[..., object]) -> int:
    """How many arguments a kernel's function has before the last, which is what is asked for."""
    return len(inspect.signature(make).parameters) - 1


def _compiled[R](make: Callable[..., R]) -> Callable[..., R]:
    """The function as JAX compiles it, once for each value that is asked for."""
    made: Any = jax.jit(_varying_results(make), static_argnums=_arrays_of(make))
    return cast("Callable[..., R]", made)


def _varying_results[R](make: Callable[..., R]) -> Callable[..., R]:
    """The function, whose results vary along all axes that its arrays vary along."""

    @functools.wraps(make)
    def varying(*arguments: Any) -> R:
        return _alike(make(*arguments), arguments[:-1])

    return varying


def _alike[T](values: T, arrays: Sequence[Any]) -> T:
    """Values cast to vary along all axes that arrays vary along; both are trees.

    The arrays vary alike, so the first one stands for all.
    """
    leaves, tree = jax.tree.flatten(values)
    first = jax.tree.leaves(arrays)[0]
    return jax.tree.unflatten(tree, varying_alike(*leaves, first)[:-1])


def varying_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each cast to vary along all axes that any of them varies along."""
    axes = set[str]().union(*(_varying(array) for array in arrays))
    missing = [tuple(sorted(axes - _varying(array))) for array in arrays]
    return tuple(_cast(array, more) if more else array for array, more in zip(arrays, missing))


def _cast(array: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The array, cast to vary along these axes too."""
    return jax.lax.pcast(array, axes, to="varying")


def _varying(array: jax.Array) -> frozenset[str]:
    """The axes of the mesh along which an array varies."""
    return frozenset(jax.typeof(array).manual_axis_type.varying)


def named[F: Callable[..., None]](name: str, body: F) -> F:
    """The body of a kernel with this name, as a profiler shows it."""
    setattr(body, "__name__", name)  # noqa: B010, since `functools.partial` declares no name
    return body


def names(dtypes: Sequence[Dtype]) -> str:
    """The names of dtypes, with commas."""
    return ", ".join(dtype.name for dtype in dtypes)
