"""`pallascope.bench.jaxprs`: what changes the digest of a kernel, and what does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.bench.jaxprs import digest

X = jax.ShapeDtypeStruct((128, 128), jnp.float16)


def kernel(
    slots=2, swizzle=128, arrivals=1, name="kernel", grid=2, added=1.0, scope="scope",
    device_code=None, **params,
):  # fmt: skip
    """A kernel that adds a number to a part of an array."""

    def body(x_gmem, o_gmem, x_smem, landed):
        part = pl.ds(0, 64)
        plgpu.copy_gmem_to_smem(x_gmem.at[part], x_smem.at[0], landed)
        plgpu.barrier_wait(landed)
        with jax.named_scope(scope):
            x_smem[0] = x_smem[0] + jnp.float16(added)
        if device_code is not None:
            plgpu.inline_mgpu()(device_code)()
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem.at[0], o_gmem.at[part])
        plgpu.wait_smem_to_gmem(0)

    body.__name__ = name
    tiled = plgpu.TilingTransform((8, swizzle // 2)), plgpu.SwizzleTransform(swizzle)
    x_smem = plgpu.SMEM((slots, 64, 128), jnp.float16, transforms=tiled)
    return plgpu.kernel(
        body,
        out_type=X,
        grid=(grid,),
        grid_names=("i",),
        scratch_types=[x_smem, plgpu.Barrier(num_arrivals=arrivals)],
        compiler_params=plgpu.CompilerParams(**params),
    )


PROFILED = dict(profile_space=8, profile_dir=".")


@pytest.mark.parametrize("options", [{}, dict(name="other"), dict(scope="other")], ids=str)
def test_names_leave_the_digest(options):
    assert digest(kernel(**options), X) == digest(kernel(), X)


@pytest.mark.parametrize(
    "options",
    [
        dict(slots=3),
        dict(swizzle=64),
        dict(arrivals=2),
        dict(grid=3),
        dict(added=2.0),
        dict(approx_math=True),
        PROFILED,
    ],
    ids=str,
)
def test_what_the_gpu_runs_changes_the_digest(options):
    assert digest(kernel(**options), X) != digest(kernel(), X)


def test_scopes_count_where_the_profiler_compiles_them():
    assert digest(kernel(**PROFILED, scope="a"), X) != digest(kernel(**PROFILED, scope="b"), X)
    elsewhere = PROFILED | dict(profile_dir="elsewhere")
    assert digest(kernel(**elsewhere), X) == digest(kernel(**PROFILED), X)


def make_device_code(number):
    """Device code that closes over a number."""

    def code(_):
        return number

    return code


def other_device_code(_):
    """Another function."""
    return 3


def test_device_code_counts_by_its_source_and_what_it_closes_over():
    of = lambda code: digest(kernel(device_code=code), X)
    assert of(make_device_code(1)) == of(make_device_code(1))
    assert of(make_device_code(1)) != of(make_device_code(2))
    assert of(other_device_code) != of(make_device_code(3))


def test_constants_count_by_their_values():
    add = lambda array: digest(lambda x: x + array, jax.ShapeDtypeStruct((4,), jnp.float32))
    assert add(np.ones(4, np.float32)) == add(np.ones(4, np.float32))
    assert add(np.ones(4, np.float32)) != add(np.zeros(4, np.float32))


def test_the_order_of_operands_counts():
    y = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert digest(lambda a, b: a - b, y, y) != digest(lambda a, b: b - a, y, y)
    assert digest(lambda a, b: a - b, y, y) == digest(lambda c, d: c - d, y, y)


def test_types_of_arguments_count():
    half = jax.ShapeDtypeStruct(X.shape, jnp.float16)
    assert digest(jnp.sin, half) != digest(jnp.sin, half.update(shape=(4,)))
    assert digest(jnp.sin, half) != digest(jnp.sin, half.update(dtype=jnp.float32))


def test_functions_for_transformations_do_not_count():
    def plain(x):
        return jnp.sin(x)

    with_rule = jax.custom_vjp(plain)
    with_rule.defvjp(lambda x: (plain(x), x), lambda x, g: (g * 2,))
    other_rule = jax.custom_vjp(plain)
    other_rule.defvjp(lambda x: (plain(x), x), lambda x, g: (g * 3,))
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert digest(with_rule, x) == digest(other_rule, x)
    gradient = functools.partial(lambda f, x: jax.grad(lambda x: f(x).sum())(x))
    assert digest(functools.partial(gradient, with_rule), x) != digest(
        functools.partial(gradient, other_rule), x
    )
