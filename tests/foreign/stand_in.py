"""Makes other projects' code believe that the machine has a Hopper GPU, in a process of its own.

What is replaced: what code asks of the device (its kind, its number of SMs), the conditions by
which tests of JAX and of tokamax skip without a GPU, and what such tests compute on the CPU beside
their kernels. Numbers do not matter here, so random floats are ones and matrix products zeros.
Integers are left alone: kernels branch on them.

These replacements use private names of both projects, and last until the process ends.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import lib
from jax._src import test_util as jtu
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops import gpu as ops
from jax.extend import backend
from jax.interpreters import mlir

# What JAX's tests believe of the device. Those of the interpreter want a CPU.
GPU, CPU = frozenset({"gpu", "cuda"}), frozenset({"cpu"})
_tags = set(GPU)


class Hopper:
    """What code asks of an H100."""

    platform = "gpu"
    compute_capability = "9.0"
    device_kind = "NVIDIA H100 80GB HBM3"
    core_count = 132
    shared_memory_per_block_optin = 232_448
    id = 0


class Cuda:
    """What code asks of its CUDA."""

    cuda_runtime_get_version = staticmethod(lambda: 13_000)
    cuda_runtime_build_version = staticmethod(lambda: 13_000)
    cuda_driver_get_version = staticmethod(lambda: 13_000)


def install() -> None:
    """Replaces all of it."""
    lib.cuda_versions = Cuda
    backend.get_default_device = Hopper
    _modules_of_jax()
    _tests_of_jax()
    _arithmetic()
    if importlib.util.find_spec("tokamax"):
        _tokamax()


def believe(tags: frozenset[str]) -> None:
    """From now on JAX's tests take the device for this."""
    _tags.clear()
    _tags.update(tags)


def _modules_of_jax() -> None:
    """Kernels that keep a name of their own for what they ask."""

    class Jax:
        __getattr__ = staticmethod(functools.partial(getattr, jax))
        devices = staticmethod(lambda: [Hopper()])

    for name in ("attention_mgpu", "collective_matmul_mgpu", "transposed_ragged_dot_mgpu"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"{ops.__name__}.{name}")
            if name == "attention_mgpu":
                vars(module).update(cuda_versions=Cuda)
            else:
                vars(module).update(jax=Jax())


def _tests_of_jax() -> None:
    def version(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    def skip(self: Any) -> None:
        raise unittest.SkipTest("for Blackwell")

    jtu.cuda_versions = Cuda
    jtu.is_device_cuda = lambda: "cuda" in _tags
    jtu._get_device_tags = lambda: _tags
    jtu.is_cuda_compute_capability_at_least = lambda text: version(text) <= (9, 0)
    jtu.is_cuda_compute_capability_equal = lambda text: version(text) == (9, 0)
    jtu.is_running_under_pytest = lambda: False
    jtu.CudaArchSpecificTest.skip_unless_sm90a = lambda self: None
    jtu.CudaArchSpecificTest.skip_unless_tcgen05 = skip
    jtu.CudaArchSpecificTest.skip_unless_tcgen05_int8 = skip


def _arithmetic() -> None:
    def ones(key: Any, shape: Any = (), dtype: Any = None, *_: Any, **__: Any) -> jax.Array:
        return jnp.ones(shape, dtype or jnp.float32)

    def zeros(ctx: Any, *args: Any, **_: Any) -> Any:
        make = lambda *_: [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out]
        return mlir.lower_fun(make, multiple_results=True)(ctx, *args)

    jax.random.normal = jax.random.uniform = ones
    for name in ("dot_general_p", "ragged_dot_general_p"):
        if hasattr(lax, name):
            mlir.register_lowering(getattr(lax, name), zeros, platform="cpu")


def _tokamax() -> None:
    from tokamax._src import gpu_utils

    gpu_utils._compute_capability = lambda device=None: 9.0
    gpu_utils.has_mosaic_gpu_support = lambda device=None: True
    gpu_utils.has_triton_support = lambda device=None: False


def names_of_guides() -> dict[str, Any]:
    """What the cells of a guide take for granted."""
    return dict(
        dataclasses=dataclasses, functools=functools, jax=jax, jnp=jnp, lax=lax, np=np, pl=pl,
        plgpu=plgpu,
    )  # fmt: skip


@contextlib.contextmanager
def old_names() -> Any:
    """Guides say `out_shape` and `scratch_shapes`, which `plgpu.kernel` calls types now."""
    new = {"out_shape": "out_type", "scratch_shapes": "scratch_types"}
    kernel = plgpu.kernel

    def renaming(*args: Any, **options: Any) -> Any:
        return kernel(*args, **{new.get(key, key): value for key, value in options.items()})

    plgpu.kernel = renaming
    try:
        yield
    finally:
        plgpu.kernel = kernel
