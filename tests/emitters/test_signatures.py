"""Drop-in supersets: each takes what upstream's function of its name takes."""

import inspect

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib


@pytest.mark.parametrize("name", ["emit_pipeline", "emit_pipeline_warp_specialized"])
def test_takes_upstream_s_parameters(name):
    ours = inspect.signature(getattr(pipelib, name)).parameters
    upstream = inspect.signature(getattr(plgpu, name)).parameters
    for parameter in upstream.values():
        assert parameter.name in ours
        same = ours[parameter.name]
        assert (same.kind, same.default) == (parameter.kind, parameter.default)
