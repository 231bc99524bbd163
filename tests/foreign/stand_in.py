"""Makes other projects' code believe that the machine has a GPU, in a process of its own.

What is replaced: what code asks of the device (its kind, its number of SMs), the conditions by
which tests of these projects skip without a GPU, and what such tests compute on the CPU beside
their kernels. Numbers do not matter here, so random floats are ones and matrix products zeros.
Integers are left alone: kernels branch on them.

These replacements use private names of all projects, and last until the process ends.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import pkgutil
import unittest
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Gpu:
    """What code asks of its GPU."""

    compute_capability: str
    device_kind: str
    core_count: int
    shared_memory_per_block_optin: int = 232_448
    platform: str = "gpu"
    id: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its compute capability, as numbers."""
        return _numbers(self.compute_capability)


#: The GPUs that a source may want, by their compute capability.
GPUS = {
    gpu.compute_capability: gpu
    for gpu in (Gpu("9.0", "NVIDIA H100 80GB HBM3", 132), Gpu("10.0", "NVIDIA B200", 148))
}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


class Cuda:
    """What code asks of its CUDA."""

    cuda_runtime_get_version = staticmethod(lambda: 13_000)
    cuda_runtime_build_version = staticmethod(lambda: 13_000)
    cuda_driver_get_version = staticmethod(lambda: 13_000)


def install(gpu: Gpu) -> None:
    """Replaces all of it."""
    lib.cuda_versions = Cuda
    backend.get_default_device = lambda: gpu
    _modules_of_jax(gpu)
    _tests_of_jax(gpu)
    _arithmetic()
    if importlib.util.find_spec("tokamax"):
        _tokamax()
    if importlib.util.find_spec("jla"):
        _jla(gpu)


def believe(tags: frozenset[str]) -> None:
    """From now on JAX's tests take the device for this."""
    _tags.clear()
    _tags.update(tags)


def _modules_of_jax(gpu: Gpu) -> None:
    """Kernels that keep a name of their own for what they ask."""

    for name in (
        "attention_mgpu",
        "blackwell_ragged_dot_mgpu",
        "collective_matmul_mgpu",
        "transposed_ragged_dot_mgpu",
    ):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"{ops.__name__}.{name}")
            if name == "attention_mgpu":
                vars(module).update(cuda_versions=Cuda)
            else:
                vars(module).update(jax=_jax_of(gpu))


def _jax_of(gpu: Gpu) -> Any:
    """JAX, on a machine that has this GPU."""

    class Jax:
        __getattr__ = staticmethod(functools.partial(getattr, jax))
        devices = local_devices = staticmethod(lambda: [gpu])
        default_backend = staticmethod(lambda: gpu.platform)

    return Jax()


def _tests_of_jax(gpu: Gpu) -> None:
    def only_of(major: int) -> Any:
        def skip(self: Any) -> None:
            if gpu.numbers[0] != major:
                raise unittest.SkipTest(f"for compute capability {major}")

        return skip

    jtu.cuda_versions = Cuda
    jtu.is_device_cuda = lambda: "cuda" in _tags
    jtu._get_device_tags = lambda: _tags
    jtu.is_cuda_compute_capability_at_least = lambda text: _numbers(text) <= gpu.numbers
    jtu.is_cuda_compute_capability_equal = lambda text: _numbers(text) == gpu.numbers
    jtu.is_running_under_pytest = lambda: False
    jtu.CudaArchSpecificTest.skip_unless_sm90a = only_of(9)
    jtu.CudaArchSpecificTest.skip_unless_tcgen05 = only_of(10)
    jtu.CudaArchSpecificTest.skip_unless_tcgen05_int8 = only_of(10)


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


def _jla(gpu: Gpu) -> None:
    """Its modules of kernels and layers each ask their own name of JAX."""
    import jla

    for each in pkgutil.walk_packages(jla.__path__, "jla."):
        if each.name.startswith(("jla.ops", "jla.layers")):
            module = importlib.import_module(each.name)
            if hasattr(module, "jax"):
                vars(module).update(jax=_jax_of(gpu))


def names_of_guides() -> dict[str, Any]:
    """What the cells of a guide take for granted."""
    return dict(
        dataclasses=dataclasses,
        functools=functools,
        jax=jax,
        jnp=jnp,
        lax=lax,
        np=np,
        pl=pl,
        plgpu=plgpu,
    )


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
