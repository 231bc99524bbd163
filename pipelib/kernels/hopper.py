"""Hopper GPUs: whether the device at hand is one, and how many SMs it has.

The model. `wgmma` exists on Hopper only (compute capability 9.x); Blackwell has other instructions
in its place. TMA, and the barriers that count its bytes, exist on Hopper and newer GPUs. A device
that is not a GPU is never refused before the call: JAX's interpreter may run the kernel there, and
whoever traces or lowers it for a GPU runs nothing. If a call on a CPU ends with Pallas's error,
`explained` says what to do. Within `jax.jit`, JAX compiles after the kernel's function has
returned, so there the error stays Pallas's.

Kernels can also be traced for a GPU that this machine does not have (`assumed`). Nothing runs then,
but the jaxprs are those that the GPU would get.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import contextlib
from collections.abc import Generator
from typing import NamedTuple, Protocol, cast

import jax

#: SMs of an H100 or H200 (SXM). Kernels are planned for them where there is no GPU.
H100_SMS = 132
#: Pallas's error for a kernel that JAX compiles for a CPU (JAX 0.11.2 and 0.12.0.1).
_ONLY_INTERPRETED = "Only interpret mode is supported on CPU backend."


class Device(Protocol):
    """What kernels read of one of JAX's devices. Only GPUs have a `core_count`."""

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


class Gpu(NamedTuple):
    """The facts of a GPU that kernels are planned by, named as JAX's devices name them."""

    device_kind: str
    compute_capability: str
    core_count: int = H100_SMS
    platform: str = "gpu"


_assumed: Gpu | None = None


def assume(gpu: Gpu | None) -> None:
    """From now on this process plans kernels for this GPU; None ends it."""
    global _assumed
    _assumed = gpu


@contextlib.contextmanager
def assumed(gpu: Gpu) -> Generator[None]:
    """A context in which all threads plan kernels for this GPU, whatever this machine has."""
    before = _assumed
    assume(gpu)
    try:
        yield
    finally:
        assume(before)


def default_device() -> Device:
    """The device that JAX uses by default, or the one that is assumed."""
    if _assumed is not None:
        return _assumed
    device = cast("Device | str | None", jax.config.jax_default_device)
    if device is None or isinstance(device, str):
        return cast(Device, jax.devices(device)[0])
    return device


def num_sms() -> int:
    """SMs (streaming multiprocessors) of the default device; `H100_SMS` where it is no GPU."""
    device = default_device()
    return device.core_count if device.platform == "gpu" else H100_SMS


def require_hopper(kernel: str, *, or_newer: bool = False) -> None:
    """Raises ValueError if the default device is a GPU that cannot run a kernel.

    Args:
      kernel: the name of the kernel; the error begins with it.
      or_newer: whether GPUs newer than Hopper can run it too, because it uses TMA but no `wgmma`.

    Raises:
      ValueError: the GPU has another compute capability than 9.x (or, if `or_newer`, an older one).
    """
    device = default_device()
    capability = str(getattr(device, "compute_capability", ""))
    major = capability.partition(".")[0]
    is_newer = major.isdigit() and int(major) > 9  # GPUs of other makers have words here
    if device.platform != "gpu" or major == "9" or (or_newer and is_newer):
        return
    needs = ("wgmma needs 9.x, a Hopper GPU", "TMA needs 9.0 or more, Hopper or newer")[or_newer]
    raise ValueError(
        f"{kernel}: {device.device_kind} has compute capability {capability}, but {needs}."
    )


@contextlib.contextmanager
def explained(kernel: str, plain: str, *, is_interpreted: bool = True) -> Generator[None]:
    """A context in which a CPU without an interpreter is refused in words that say what to call.

    Args:
      kernel: the name of the kernel; the error begins with it.
      plain: a function that gives the same result in plain JAX, by its name.
      is_interpreted: whether JAX's interpreter can run the kernel.

    Raises:
      ValueError: in place of Pallas's error. All other errors pass.
    """
    try:
        yield
    except ValueError as error:
        if str(error) != _ONLY_INTERPRETED:
            raise
        interpreter = (
            "call it under plgpu.force_gpu_interpret_mode(), or " if is_interpreted else ""
        )
        raise ValueError(
            f"{kernel}: there is no Hopper GPU here (JAX's backend is cpu), so nothing can run the"
            f" kernel: {interpreter}call {plain}."
        ) from None
