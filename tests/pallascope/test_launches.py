"""Kernels that are called are seen, by whatever name and in whatever way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.mosaic_gpu import kernel as early

from pallascope.launches import distinct, launches

pytestmark = pytest.mark.both_jax

ROW = jax.ShapeDtypeStruct((128,), jnp.float32)


def copy(x, o):
    o[...] = x[...]


# Made before any context: one by the module's name, one by a name of its own.
BY_MODULE = plgpu.kernel(copy, out_type=ROW)
BY_NAME = early(copy, out_type=ROW)


def by_warps(x, o):
    @pl_when_first
    def _(_):
        pass

    o[...] = x[...]


def pl_when_first(body):
    return plgpu.warp_map(body)


def take(x, count, o):
    o[...] = x[...] + count[0].astype(jnp.float32)


X = np.ones(128, np.float32)


def interpreted(kernel):
    with plgpu.force_gpu_interpret_mode():
        kernel(X)


def natively(kernel):
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        kernel(X)


def in_a_loop(kernel):
    return lambda x: lax.fori_loop(0, 2, lambda _, x: kernel(x), x)


WAYS = {
    "natively": natively,
    "interpreted": interpreted,
    "under jit": lambda kernel: jax.eval_shape(jax.jit(kernel), X),
    "in a loop": lambda kernel: jax.eval_shape(in_a_loop(kernel), X),
    "under vmap": lambda kernel: jax.eval_shape(jax.vmap(kernel), X[None]),
}


@pytest.mark.parametrize("kernel", [BY_MODULE, BY_NAME], ids=["plgpu.kernel", "kernel"])
@pytest.mark.parametrize("call", WAYS.values(), ids=WAYS)
def test_a_kernel_is_seen_however_it_is_called(kernel, call):
    with launches() as seen:
        call(kernel)
    assert {launch.name for launch in seen} <= {"copy", "batched_body"} and seen
    assert "float32[128]" in str(seen[0].avals)


def test_a_kernel_is_seen_also_if_jax_had_compiled_it():
    call = jax.jit(BY_MODULE)
    with plgpu.force_gpu_interpret_mode():
        call(X)
        with launches() as seen:
            call(X)
    assert len(distinct(seen)) == 1


def test_nothing_is_seen_outside_and_each_context_sees_its_own():
    with launches() as outer:
        jax.eval_shape(BY_MODULE, X)
        count = len(outer)
        with launches() as inner:
            jax.eval_shape(BY_NAME, X)
        assert len(inner) == count and len(outer) == 2 * count
    jax.eval_shape(BY_MODULE, X)
    assert len(outer) == 2 * count > 0


def test_a_failure_within_ends_it_too():
    with pytest.raises(KeyError), launches() as seen:
        raise KeyError
    jax.eval_shape(BY_MODULE, X)
    assert seen == []


def test_a_kernel_within_a_kernel_is_no_launch():
    with launches() as seen:
        jax.eval_shape(plgpu.kernel(by_warps, out_type=ROW), X)
    assert {launch.name for launch in seen} == {"by_warps"}


def test_launches_are_distinct_by_kernel_types_and_integers():
    kernel = plgpu.kernel(take, out_type=ROW)
    with launches() as seen, plgpu.force_gpu_interpret_mode():
        for count in (1, 2, 2):
            kernel(X, np.array([count], np.int32))
    assert len(seen) > 3  # JAX traces a call before it runs it, and then knows no integer
    assert [launch.args[1].tolist() for launch in distinct(seen)] == [[1], [2]]
    with launches() as traced:
        for dtype in (np.int32, np.int32, np.int16):
            jax.eval_shape(kernel, X, np.array([1], dtype))
    unknown = distinct(traced)
    assert len(unknown) == 2 and not any(launch.is_known for launch in unknown)


def test_a_ref_is_an_operand():
    def fill(ref):
        ref[...] = jnp.zeros((128,), jnp.float32)

    with launches() as seen:
        jax.eval_shape(lambda x: plgpu.kernel(fill)(jax.new_ref(x)), X)
    (launch,) = distinct(seen)
    assert "mpmd_map" in str(jax.make_jaxpr(launch.call)(*launch.args))
