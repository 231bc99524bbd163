"""Hopper GPUs: the device that kernels are planned for, and how many SMs it has.

The model. Kernels are planned for JAX's default device. They can also be traced for a GPU that this
machine does not have (`assumed`). Nothing runs then, but the jaxprs are those that the GPU would
get.
"""

import contextlib
from collections.abc import Generator
from typing import NamedTuple

from pipelib import targets
from pipelib.targets import default_device

#: SMs of an H100 or H200 (SXM). Kernels are planned for them where there is no GPU.
H100_SMS = 132


class Gpu(NamedTuple):
    """The facts of a GPU that kernels are planned by, named as JAX's devices name them."""

    device_kind: str
    compute_capability: str
    core_count: int = H100_SMS
    platform: str = "gpu"


def assume(gpu: Gpu | None) -> None:
    """From now on this process plans kernels for this GPU; None ends it."""
    targets.assume(gpu)


@contextlib.contextmanager
def assumed(gpu: Gpu) -> Generator[None]:
    """A context in which all threads plan kernels for this GPU, whatever this machine has."""
    before = targets.assume(gpu)
    try:
        yield
    finally:
        targets.assume(before)


def num_sms() -> int:
    """SMs (streaming multiprocessors) of the default device; `H100_SMS` where it is no GPU."""
    device = default_device()
    return device.core_count if device.platform == "gpu" else H100_SMS
