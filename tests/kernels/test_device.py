"""The device that grids are sized for: asked where it is a GPU, an H100 or H200 elsewhere."""

import types

import jax
import pytest

from pipelib.kernels import device


@pytest.mark.parametrize(("platform", "sms"), [("gpu", 114), ("cpu", 132)])
def test_num_sms(platform, sms, monkeypatch):
    found = types.SimpleNamespace(platform=platform, core_count=114)
    monkeypatch.setattr(jax, "devices", lambda *_: [found])
    assert device.num_sms() == sms


def test_the_default_device_is_the_one_that_jax_is_told():
    assert device.default_device() == jax.devices()[0]
    with jax.default_device("cpu"):
        assert device.default_device() == jax.devices("cpu")[0]
    with jax.default_device(jax.devices("cpu")[0]):
        assert device.default_device() is jax.devices("cpu")[0]
