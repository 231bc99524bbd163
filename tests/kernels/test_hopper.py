"""The device that kernels are planned for: which it is, and how many SMs it has."""

import types

import jax
import pytest

from pipelib.kernels import hopper


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
