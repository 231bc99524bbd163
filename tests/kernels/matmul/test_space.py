"""What a search of products tries: configurations that fit, and what is near what."""

import dataclasses
import math

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope.tuning.spaces import Ranked, neighbours, starts
from pipelib.kernels import MatmulConfig, matmul_space
from pipelib.kernels.matmul import choosing

SQUARE = matmul_space(4096, 4096, 4096, "bfloat16")


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 40).map(lambda x: 64 * x),
    st.integers(1, 40).map(lambda x: 64 * x),
    st.integers(1, 80).map(lambda x: 128 * x),
    st.sampled_from(["bfloat16", "float8_e4m3fn"]),
    st.sampled_from(["bfloat16", "float32"]),
)
def test_every_configuration_fits_and_the_likeliest_is_first(m, n, k, dtype, out_dtype):
    found = matmul_space(m, n, k, dtype, transpose_b=True, out_dtype=out_dtype).configs
    assert len(found) == len(set(found)) > 100
    work = choosing.Work(m, n, k, jnp.dtype(dtype).itemsize, jnp.dtype(out_dtype).itemsize)
    estimates = [choosing.estimate_us(config, work) for config in found]
    assert estimates == sorted(estimates) and estimates[0] > 0
    for config in found[:: len(found) // 50]:
        config.check(dtype, out_dtype)
        more = dataclasses.replace(config, slots=config.slots + 1)
        steps = math.ceil(k / config.tile_k)
        if config.slots < 8 and steps % config.slots:
            with pytest.raises(ValueError, match="shared memory"):
                more.check(dtype, out_dtype)


def test_the_estimate_knows_waves_padding_and_the_tensor_cores():
    config = MatmulConfig()
    us = lambda m, n=256, k=4096: choosing.estimate_us(config, choosing.Work(m, n, k, 2, 2))
    assert us(128 * 132) == pytest.approx(us(128), rel=2)
    assert us(128 * 133) > 1.6 * us(128 * 132)
    few = choosing.Work(128, 256, 64 * 9, 2, 2)
    shallow = choosing.estimate_us(dataclasses.replace(config, slots=3), few)
    assert shallow < choosing.estimate_us(config, few), "9 steps are 12"
    # Nothing is faster than the tensor cores: 8192^3 at 990 TFLOP/s, the data sheet's figure.
    best = matmul_space(8192, 8192, 8192, "bfloat16").configs[0]
    assert choosing.estimate_us(best, choosing.Work(*(8192,) * 3, 2, 2)) > 2 * 8192**3 / 1.1e9


def test_starts_have_each_tile_once_and_neighbours_differ_in_one_thing():
    every = SQUARE.configs
    shape = lambda c: (c.tile_m, c.tile_n, c.compute_threads, c.cluster_m, c.cluster_n)
    first = starts(Ranked(*SQUARE))
    assert len(first) == len(set(map(shape, first))) == len(set(map(shape, every)))
    assert first[0] == every[0]
    for other in neighbours(first[0], Ranked(*SQUARE)):
        changed = {
            field.name
            for field in dataclasses.fields(other)
            if getattr(other, field.name) != getattr(first[0], field.name)
        }
        assert changed <= {"tile_m", "tile_n", "compute_threads", "slots"} or (
            changed in ({"order", "width"}, {"order"}, {"width"}, {"delay_release"}, {"form"})
            or changed <= {"cluster_m", "cluster_n"}
        )
        assert changed


def test_a_search_that_ends_early_has_tried_each_thing():
    """Near the ladder's last rung: no cluster, and the other, among the first neighbours."""
    best = MatmulConfig(cluster_m=2, order="m")
    near = neighbours(best, Ranked(*SQUARE))
    assert len(near) == len(set(near)) > 20
    things = "tile", "cluster", "order width", "delay", "form"
    is_new = lambda words: any(
        getattr(other, field.name) != getattr(best, field.name)
        for other in near[:8]
        for field in dataclasses.fields(other)
        if any(field.name.startswith(word) for word in words.split())
    )
    assert [thing for thing in things if not is_new(thing)] == []
    clusters = [(other.cluster_m, other.cluster_n) for other in near[:12]]
    assert {(1, 1), (1, 2)} <= {*clusters}


def refused(*sizes, **options):
    """What `matmul_space` says of a product of 512 x 512 x 512 bfloat16, but for these."""
    with pytest.raises((ValueError, TypeError)) as error:
        matmul_space(*(sizes or (512,) * 3), **dict(dtype="bfloat16") | options)
    return str(error.value)


@pytest.mark.parametrize(
    ("sizes", "options", "text"),
    [
        ((0, 512, 512), {}, "matmul_space: m=0, n=512 and k=512 must be 1 or more: there is noth"),
        (("a", 512, 512), {}, "matmul_space: m='a' has type str, but a kernel is compiled for it"),
        ((512, 512, 64.0), {}, "matmul_space: k=64.0 has type float, but a kernel is compiled"),
        ((), dict(dtype="nonsense"), "matmul_space: dtype='nonsense' has type str, but it is the"),
        ((), dict(dtype="float32"), "matmul: a is float32, but wgmma multiplies here float16, bf"),
        ((), dict(out_dtype="int8"), "matmul: out_dtype=int8 is none of float16, bfloat16, float3"),
        ((), dict(dtype="float8_e4m3fn"), "matmul: transpose_a=False and transpose_b=False in flo"),
    ],
)
def test_what_has_no_space(sizes, options, text):
    assert text in refused(*sizes, **options)


@pytest.mark.parametrize("transposed", [dict(), dict(transpose_a=True), dict(transpose_b=True)])
@pytest.mark.parametrize(("m", "n", "k"), [(500, 500, 500), (17, 512, 512), (512, 512, 65)])
def test_what_matmul_makes_without_its_kernel(m, n, k, transposed):
    a = (k, m) if "transpose_a" in transposed else (m, k)
    b = (n, k) if "transpose_b" in transposed else (k, n)
    assert refused(m, n, k, **transposed) == (
        f"matmul_space: a {a}, b {b} and the output {(m, n)} must all have rows of a multiple of"
        " 128 bytes, and at most 8 rows or a multiple of them; since they do not, most"
        " configurations cannot copy them, and a search would compare few: call matmul without"
        " config."
    )


def test_any_product_that_the_kernel_makes_has_a_space():
    for options in (
        dict(dtype=jnp.float8_e4m3fn, transpose_b=True),
        dict(out_dtype=jnp.float32),
        dict(m=8),
        dict(m=1, transpose_b=True),
        dict(sms=66),
    ):
        assert matmul_space(**dict(m=512, n=512, k=512, dtype="bfloat16") | options).configs
