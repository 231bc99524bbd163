"""The device that kernels are for: how many SMs it has, and whether it can run them."""

import re
import types

import jax
import pytest

from pipelib.kernels import hopper

#: What JAX says of the forward mode of a function that has only a reverse rule.
NO_FORWARD_MODE = "can't apply forward-mode autodiff (jvp) to a custom_vjp function."


def pretend(monkeypatch, device_kind, compute_capability, platform="gpu"):
    """JAX's only device is another."""
    found = types.SimpleNamespace(
        platform=platform, device_kind=device_kind, compute_capability=compute_capability,
        core_count=108,
    )  # fmt: skip
    monkeypatch.setattr(jax, "devices", lambda *_: [found])


@pytest.mark.parametrize(("platform", "sms"), [("gpu", 114), ("cpu", 132)])
def test_num_sms(platform, sms, monkeypatch):
    found = types.SimpleNamespace(platform=platform, core_count=114)
    monkeypatch.setattr(jax, "devices", lambda *_: [found])
    assert hopper.num_sms() == sms


def test_the_default_device_is_the_one_that_jax_is_told():
    assert hopper.default_device() == jax.devices()[0]
    with jax.default_device("cpu"):
        assert hopper.default_device() == jax.devices("cpu")[0]
    with jax.default_device(jax.devices("cpu")[0]):
        assert hopper.default_device() is jax.devices("cpu")[0]


@pytest.mark.parametrize("or_newer", [False, True])
def test_a_hopper_and_what_is_no_gpu_are_refused_nothing(or_newer, monkeypatch):
    hopper.require_hopper("kernel", or_newer=or_newer)
    pretend(monkeypatch, "NVIDIA H200", "9.0")
    hopper.require_hopper("kernel", or_newer=or_newer)
    pretend(monkeypatch, "Other", "8.0", platform="tpu")
    hopper.require_hopper("kernel", or_newer=or_newer)


WGMMA, TMA = "wgmma needs 9.x, a Hopper GPU.", "TMA needs 9.0 or more, Hopper or newer."


@pytest.mark.parametrize(
    ("device_kind", "capability", "or_newer", "needs"),
    [
        ("NVIDIA A100", "8.0", False, WGMMA), ("NVIDIA B200", "10.0", False, WGMMA),
        ("AMD MI300", "gfx942", False, WGMMA),
        ("NVIDIA L4", "8.9", True, TMA), ("AMD MI300", "gfx942", True, TMA),
    ],
)  # fmt: skip
def test_what_another_gpu_lacks(device_kind, capability, or_newer, needs, monkeypatch):
    pretend(monkeypatch, device_kind, capability)
    message = f"kernel: {device_kind} has compute capability {capability}, but {needs}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hopper.require_hopper("kernel", or_newer=or_newer)


def test_a_gpu_newer_than_hopper_has_tma(monkeypatch):
    pretend(monkeypatch, "NVIDIA B200", "10.0")
    hopper.require_hopper("kernel", or_newer=True)
