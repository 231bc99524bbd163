"""Kernels under `jax.shard_map`, whose arrays all vary along an axis of the mesh.

`jax.shard_map` adds up the gradient of a value that was cast to vary, over the devices. A kernel's
own casts are of what varies already, so nothing is to be added up.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pipelib.kernels import (
    attention,
    collective_matmul,
    matmul,
    ragged_dot,
    rms_norm,
    softmax,
)
from pipelib.kernels.hopper import Gpu, assumed

BRAIN = jnp.bfloat16
HEADS = {size: [(2, 256, 4, size)] * 3 for size in (64, 80, 128, 256)}
SIZES = jnp.array([100, 28], jnp.int32)
#: Functions, and the shapes that each device has.
CALLS = {
    "matmul": (matmul, [(128, 256), (256, 128)]),
    "matmul, K in parts": (matmul, [(64, 8192), (8192, 128)]),
    "matmul, an epilogue": (
        lambda a, b, c: matmul(a, b, epilogue=lambda x, y: x * y, operands=(c,)),
        [(128, 256), (256, 128), (128, 128)],
    ),
    "matmul, sizes of no copy": (matmul, [(77, 131), (131, 55)]),
    "ragged_dot": (lambda a, b: ragged_dot(a, b, SIZES), [(128, 128), (2, 128, 128)]),
    "collective_matmul": (
        functools.partial(collective_matmul, axis_name="x"), [(128, 256), (256, 128)],
    ),
    "collective_matmul, sizes of no copy": (
        functools.partial(collective_matmul, axis_name="x"), [(9, 64), (64, 64)],
    ),
    **{f"attention, heads of {size}": (attention, heads) for size, heads in HEADS.items()},
    "attention, deterministic": (functools.partial(attention, deterministic=True), HEADS[128]),
    "attention, causal": (functools.partial(attention, causal=True), HEADS[128]),
    "rms_norm": (rms_norm, [(128, 1024), (1024,)]),
    "softmax": (softmax, [(128, 1024)]),
}  # fmt: skip
#: What adds up over devices; `collective_matmul` adds up in a `reduce_scatter`.
ADDS = {"psum", "psum_invariant", "psum2"}


def primitives(jaxpr):
    """The names of all primitives outside of kernels."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def gradients(function, shapes):
    """The primitives of the gradients of a call on two devices, each with arrays of its own."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def of_device(*arrays):
        return function(*(array[0] for array in arrays))[None]

    call = jax.shard_map(of_device, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    total = lambda *arrays: call(*arrays).astype(jnp.float32).sum()
    types = [jax.ShapeDtypeStruct((2, *shape), BRAIN) for shape in shapes]
    with assumed(Gpu("NVIDIA H200", "9.0")):
        made = jax.make_jaxpr(jax.grad(total, tuple(range(len(types)))))(*types)
    return set(primitives(made.jaxpr))


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_what_varies_are_not_added_up(name):
    assert not gradients(*CALLS[name]) & ADDS


def test_a_cast_of_what_is_alike_adds_up_its_gradient():
    """So the test above can fail."""
    alike = lambda x: jax.lax.pcast(jax.lax.pmean(x, "x"), "x", to="varying")
    assert gradients(alike, [(8,)]) & ADDS
