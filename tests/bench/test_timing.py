"""Timing: samples by name on a GPU, a clear refusal elsewhere."""

import jax
import jax.numpy as jnp
import pytest

from pallascope.bench import timing


def test_median_spread_and_rate_are_those_of_the_samples():
    samples = timing.Samples((4.0, 1.0, 2.0, 3.0, 10.0))
    assert samples.median_us == 3.0
    assert samples.spread_us == pytest.approx(7.0 - 1.5)  # quartiles 1.5 and 7
    assert samples.rate(6e12) == pytest.approx(6e12 / 3e-6)


def test_nothing_is_timed_where_kernels_are_interpreted():
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU here, so kernels are timed")
    with pytest.raises(RuntimeError) as error:
        timing.measure({"f": jnp.sin}, [1.0])
    assert "JAX runs on cpu" in str(error.value)
    assert "none are taken" in str(error.value)


@pytest.mark.gpu
def test_every_function_gets_its_samples():
    x = jnp.ones((1 << 20,), jnp.float32)
    functions = {"twice": lambda x: x * 2, "sorted": jnp.sort}
    results = timing.measure(functions, [x], rounds=2, burst=3)
    assert list(results) == ["twice", "sorted"]
    for samples in results.values():
        assert len(samples.microseconds) == 6
        assert min(samples.microseconds) > 0
