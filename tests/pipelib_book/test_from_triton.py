"""Idioms of Pallas's Triton backend: each form runs, is right, and compiles as far as no GPU is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AbstractMesh

import pallascope
from pipelib_book import from_triton
from pipelib_book.from_triton import IDIOMS
from tests.emitters.contract import interpreted

#: JAX's interpreter has no atomic addition of floats.
NOT_INTERPRETED = {"atomics"}
ABSENT = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))
each_idiom = pytest.mark.parametrize("name", IDIOMS)


def form(name, which):
    return getattr(from_triton, f"{name}_{which}")


def off(name, which):
    """How far a result is from plain JAX's, at most."""
    normal = lambda i, x: jax.random.normal(jax.random.key(i), x.shape, x.dtype)
    args = [normal(i, x) for i, x in enumerate(IDIOMS[name].args)]
    expected = IDIOMS[name].expected(*(x.astype(jnp.float32) for x in args))
    found = jax.jit(form(name, which))(*args)
    assert found.shape == expected.shape
    return np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max()


def lowered(name, which):
    traced = jax.jit(form(name, which)).trace(*IDIOMS[name].args)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@each_idiom
def test_before_is_right_in_plain_jax_and_triton_takes_it(name, monkeypatch):
    with jax.sharding.use_abstract_mesh(ABSENT), pytest.warns(DeprecationWarning, match="Triton"):
        assert "triton" in lowered(name, "before")
    interpreting = functools.partial(pl.pallas_call, interpret=True)
    monkeypatch.setattr(from_triton.pl, "pallas_call", interpreting)
    assert off(name, "before") < 1e-4


@each_idiom
def test_after_is_right_verified_and_mosaic_gpu_takes_it(name):
    assert "mosaic_gpu" in lowered(name, "after")
    verdict = pallascope.verify(form(name, "after"), *IDIOMS[name].args)
    assert verdict.ok, str(verdict)
    if name not in NOT_INTERPRETED:
        with interpreted():
            assert off(name, "after") < 1e-4


@pytest.mark.parametrize(("name", "left_out"), [("masks", "barrier_wait"), ("dot", "wgmma_wait")])
def test_an_after_without_its_wait_is_found(name, left_out, monkeypatch):
    monkeypatch.setattr(plgpu, left_out, lambda *_: None)
    verdict = pallascope.verify(functools.partial(form(name, "after")), *IDIOMS[name].args)
    assert not verdict.ok and "race" in str(verdict)


def test_there_are_ten_idioms_of_two_forms():
    forms = {f"{name}_{which}" for name in IDIOMS for which in ("before", "after")}
    assert forms == {n for n in vars(from_triton) if n.endswith(("_before", "_after"))}
    assert len(IDIOMS) == 10


@pytest.mark.gpu
@each_idiom
def test_after_is_right_on_the_gpu(name):
    assert off(name, "after") < 1e-4
