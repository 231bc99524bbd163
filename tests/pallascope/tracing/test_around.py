"""`fusions`: the kernels that XLA makes around those of a function, by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import pallascope
from pallascope.simulating.launch import streamed
from pallascope.tracing.around import Fusion, fusions
from tests.pallascope.kernels import add_one, like

ARRAY = 256 * 64  # elements, of float16
X = like(256, 64)


def summed(x):
    """A sum and what follows it are one kernel."""
    parts = add_one(x).reshape(4, 64, 64)
    return parts.astype(jnp.float32).sum(0)[:32].astype(jnp.bfloat16)


def unused(x):
    """Nobody asks for the product; a reshape moves nothing."""
    out = add_one(x)
    _ = out * 2
    return out.reshape(-1)


def before_and_after(x):
    """XLA makes one kernel before the call, and one after it, though both take `x`."""
    doubled = x * 2
    return add_one(doubled) + doubled


def late(x):
    """What is made of `x` alone is made where it is used, behind the call."""
    wide = x.astype(jnp.float32)
    return add_one(x).astype(jnp.float32) + wide


def filled(x):
    """Zeros are a constant."""
    return add_one(jnp.zeros_like(x)), jnp.ones(7)


def called(x):
    """What a function does that is called is the host's own."""
    return jax.jit(lambda y: y + 1)(add_one(x))


def multiplied(x):
    """XLA's own products are not covered, and neither are loops; what follows them is."""
    y = lax.fori_loop(0, 3, lambda _, y: y * y, add_one(x) @ like_eye())
    return y + 1


def like_eye():
    return jnp.zeros((64, 64), jnp.float16)


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (summed, [(2 * ARRAY, 2 * 32 * 64)]),
        (unused, []),
        (before_and_after, [(2 * ARRAY, 2 * ARRAY), (4 * ARRAY, 2 * ARRAY)]),
        (late, [(4 * ARRAY, 4 * ARRAY)]),
        (filled, []),
        (called, [(2 * ARRAY, 2 * ARRAY)]),
        (multiplied, [(2 * ARRAY, 2 * ARRAY)]),
        (add_one, []),
    ],
)
def test_what_xla_runs_around_a_kernel(function, right):
    assert fusions(jax.make_jaxpr(function)(X)) == [Fusion(*each) for each in right]


def test_it_is_part_of_a_prediction():
    alone, found = (pallascope.predict(each, X) for each in (add_one, summed))
    assert alone.around == () and "around" not in str(alone)
    (us,) = found.around
    assert us == 1e6 * streamed(2 * ARRAY, 2 * 32 * 64, pallascope.H200)
    assert found.us == alone.us + us
    assert str(found).endswith(f"- around them: {us:,.1f} us; kernels that XLA makes: 1")


def test_it_takes_the_time_of_its_bytes():
    """From L2 if they fit there, or if it has them; else from HBM, which reads them faster."""
    machine, size = pallascope.H200, 400_000_000
    seconds = lambda *bytes, **has: streamed(*bytes, machine, **has) - machine.launch_seconds
    latency = machine.hbm_latency_cycles / machine.clock_hz
    reads = machine.hbm_bytes_per_second * machine.hbm_read_gain
    assert seconds(size, 0) == pytest.approx(latency + size / reads)
    assert seconds(size // 2, size // 2) == pytest.approx(
        latency + size / machine.hbm_bytes_per_second
    )
    near = size / machine.l2_bytes_per_second + machine.l2_latency_cycles / machine.clock_hz
    assert seconds(size, 0, l2_hits=1.0) == pytest.approx(near)
    assert seconds(20_000_000, 0) < 20_000_000 / reads
