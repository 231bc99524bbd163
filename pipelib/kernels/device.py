"""The GPU that a kernel is for."""

from typing import Any

import jax

#: Multiprocessors (SMs) of an H100 and an H200 (SXM), where JAX has no GPU to ask: interpreted, or
#: traced. A GPU with fewer runs the blocks that are too many afterwards.
SMS = 132


def the_device() -> Any:
    """The device that JAX uses by default."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if device is None or isinstance(device, str) else device


def num_sms() -> int:
    """Its multiprocessors."""
    return getattr(the_device(), "core_count", None) or SMS
