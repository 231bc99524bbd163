"""The device that kernels are for: whether it can run them, and how many SMs a grid is sized for.

The model. `wgmma` is of Hopper alone (compute capability 9.x): Blackwell has other instructions in
its place. TMA and the barriers that count its bytes are of Hopper and what is newer. A device that
is no GPU is refused nothing here: there JAX's interpreter runs kernels, or Pallas says that nothing
does.
"""

from typing import Any

import jax

#: SMs of an H100 or H200 (SXM), for which kernels are planned where there is no GPU.
H100_SMS = 132


def default_device() -> Any:
    """The device that JAX uses by default."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if device is None or isinstance(device, str) else device


def num_sms() -> int:
    """SMs (streaming multiprocessors) of the default device; `H100_SMS` where it is no GPU."""
    device = default_device()
    return device.core_count if device.platform == "gpu" else H100_SMS


def require_hopper(kernel: str, *, or_newer: bool = False) -> None:
    """Refuses a default device that is a GPU which lacks what a kernel is made of.

    Args:
      kernel: its name, with which the error begins.
      or_newer: whether a GPU newer than Hopper has all of it: TMA, but no `wgmma`.

    Raises:
      ValueError: a GPU of another compute capability than 9.x; if `or_newer`, of an older one.
    """
    device = default_device()
    capability = str(getattr(device, "compute_capability", ""))
    major = capability.partition(".")[0]
    is_newer = major.isdigit() and int(major) > 9  # of another maker's GPU it is no number
    if device.platform != "gpu" or major == "9" or (or_newer and is_newer):
        return
    needs = ("wgmma needs 9.x, a Hopper GPU", "TMA needs 9.0 or more, Hopper or newer")[or_newer]
    raise ValueError(
        f"{kernel}: {device.device_kind} has compute capability {capability}, but {needs}."
    )
