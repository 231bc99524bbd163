"""`target`: which GPU kernels are traced and compiled for, and what that GPU has.

The model. A kernel's code depends on the GPU's compute capability. JAX compiles a Mosaic GPU kernel
for the default device, and for Hopper if the default device is no GPU. pipelib's emitters follow
the same rule when they are traced. So a kernel on an A100 is right without a word, and on a CPU it
is Hopper's. `target` puts a device that is not there in the default device's place.

=====================  ============================================================================
compute capability     how an emitter's copies go
=====================  ============================================================================
9.0 and later          TMA, which completes barriers (`ring`)
8.0 to 8.9             `cp.async`, in groups (`cp_async`)
=====================  ============================================================================

What is planned rather than traced, such as which configurations are worth measuring, can be planned
for a GPU that this machine does not have (`assume`).

Source of the bytes: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability",
maximum amount of shared memory per thread block.
"""

import contextlib
import functools
import re
from collections.abc import Generator
from typing import Any, Protocol, cast

import jax
from jax.extend import backend

from pipelib.versions import check_jax

check_jax()  # before anything fails for want of a name

#: Major and minor number of a compute capability.
Capability = tuple[int, int]
HOPPER: Capability = 9, 0
_FIRST: Capability = 8, 0  # with cp.async
_NEWEST: Capability = 12, 1  # of CUDA 13.0
_SMEM_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, HOPPER: 227}
# SMs of one GPU of each: A100, A40, Jetson Orin, L4, H100 and H200, B200. Source: data sheets.
_SMS = {(8, 0): 108, (8, 6): 84, (8, 7): 16, (8, 9): 58, HOPPER: 132, (10, 0): 148}
#: Bytes of shared memory that a block may use on Hopper.
SMEM_BYTES = _SMEM_KIB[HOPPER] * 1024


class Device(Protocol):
    """What is read of one of JAX's devices. Only GPUs have a `core_count`."""

    @property
    def device_kind(self) -> str:
        """The name, as in "NVIDIA H200"."""
        ...

    @property
    def platform(self) -> str:
        """ "gpu" or "cpu"."""
        ...

    @property
    def core_count(self) -> int:
        """The number of SMs."""
        ...


_assumed: Device | None = None


def assume(device: Device | None) -> Device | None:
    """From now on this process plans for this device; None ends it. Returns the one before."""
    global _assumed
    before, _assumed = _assumed, device
    return before


def default_device() -> Device:
    """The device that JAX uses by default, or the one that is assumed."""
    if _assumed is not None:
        return _assumed
    device = cast("Device | str | None", jax.config.jax_default_device)
    if device is None or isinstance(device, str):
        return cast(Device, jax.devices(device)[0])
    return device


def capability() -> Capability:
    """The compute capability that a kernel which is traced now will be compiled for."""
    device = backend.get_default_device()
    return _numbers(getattr(device, "compute_capability", None)) or HOPPER


def has_tma() -> bool:
    """Whether a kernel that is traced now can copy with TMA."""
    return capability() >= HOPPER


def smem_bytes() -> int:
    """Bytes that a block of a kernel which is traced now may use; those of Hopper after it."""
    return _SMEM_KIB.get(capability(), _SMEM_KIB[HOPPER]) * 1024


def described() -> str:
    """What a kernel that is traced now will be compiled for, in words."""
    found = capability()
    return "Hopper" if found == HOPPER else f"compute capability {_text(found)}"


def check_capability() -> None:
    """Raises NotImplementedError if a kernel that is traced now could not copy asynchronously."""
    if (found := capability()) < _FIRST:
        raise NotImplementedError(
            f"The kernel is traced for a GPU of compute capability {_text(found)}, which is less"
            f" than {_text(_FIRST)}, the first with cp.async: nothing there copies while a kernel"
            " computes, so no pipeline could overlap. Take an A100, an L4 or a later GPU."
        )


@contextlib.contextmanager
def target(compute_capability: str) -> Generator[None]:
    """Kernels inside are traced, checked and compiled for a GPU that need not be there.

    Nothing can run inside: the GPU is a name only. Make the arguments before, or describe them by
    `jax.ShapeDtypeStruct`.

    Args:
      compute_capability: as JAX's devices have it: "8.0" is an A100, "8.9" an L4, "9.0" a Hopper
        GPU, and what a machine without a GPU compiles for anyway. There pipelib's own kernels
        choose what Pallas's interpreter can run; within `target("9.0")` they choose what a GPU
        runs.

    Raises:
      ValueError: it is not two numbers with a point, or after the newest of CUDA 13.0.

    Example:
      A kernel of `emit_pipeline` copies with TMA on Hopper, and with `cp.async` on an A100.

      >>> x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
      >>> def add_one(x):
      ...     block = pl.BlockSpec((16, 128), lambda i: (i, 0))
      ...     def body(indices, x_smem, o_smem):
      ...         o_smem[...] = x_smem[...] + 1.0
      ...     pipeline = pipelib.emit_pipeline(
      ...         body, grid=(4,), in_specs=[block], out_specs=[block],
      ...         max_concurrent_steps=2,
      ...     )
      ...     return plgpu.kernel(pipeline, out_type=x)(x)
      >>> with pipelib.target("8.0"):
      ...     program = pallascope.trace(add_one, x)
      >>> pallascope.check(program).ok
      True
      >>> sorted({op.kind.value for op in program.threads[0] if op.kind.engine})
      ['cp_async']
    """
    if not (1, 0) <= (_numbers(compute_capability) or (0, 0)) <= _NEWEST:
        raise ValueError(
            f"target({compute_capability!r}) is not a compute capability, two numbers with a point"
            f' up to {_text(_NEWEST)}, so no GPU is meant: "8.0" is an A100, "8.9" an L4, "9.0" a'
            " Hopper GPU."
        )
    with jax.default_device(_device(compute_capability)):
        yield


def present() -> contextlib.AbstractContextManager[object]:
    """What is inside runs, also within a `target`, on JAX's own default device."""
    is_absent = isinstance(jax.config.jax_default_device, _AbsentDevice)
    return jax.default_device(None) if is_absent else contextlib.nullcontext()  # pyright: ignore[reportUnknownVariableType]


class _AbsentDevice:
    """A GPU that is not there, with what JAX asks of one when it traces and lowers a kernel."""

    # JAX takes any object as its default device whose class is called a Device.
    platform = "gpu"

    def __init__(self, compute_capability: str):
        self.compute_capability = compute_capability
        self.device_kind = f"a GPU of compute capability {compute_capability}"
        self.core_count = _SMS.get(_numbers(compute_capability) or HOPPER, _SMS[HOPPER])
        self.client = jax.devices()[0].client


@functools.cache
def _device(compute_capability: str) -> Any:
    """One for each: JAX keeps what it has traced for a device."""
    return _AbsentDevice(compute_capability)


def _numbers(text: object) -> Capability | None:
    """The two numbers of a compute capability; None if this is none."""
    found = re.fullmatch(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return found and (int(found[1]), int(found[2]))


def _text(numbers: Capability) -> str:
    """A compute capability as JAX writes it."""
    return ".".join(map(str, numbers))
