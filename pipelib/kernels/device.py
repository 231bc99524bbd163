"""The device that a kernel's grid is sized for."""

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
