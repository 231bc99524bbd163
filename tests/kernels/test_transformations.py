"""All kernels that have gradients, under JAX's transformations: traced, and on two GPUs or more.

`jax.shard_map` knows what varies along the axes of a mesh. It adds up, over the devices, the
gradient of a value that was cast to vary. A kernel's own casts are of what varies already, so of
that nothing is to be added up.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
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
from tests.foreign.examining import primitives

BRAIN, FLOAT = jnp.bfloat16, jnp.float32
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
    **{f"attention, heads of {size}": (attention, heads) for size, heads in HEADS.items()},
    "attention, deterministic": (functools.partial(attention, deterministic=True), HEADS[128]),
    "attention, causal": (functools.partial(attention, causal=True), HEADS[128]),
    "rms_norm": (rms_norm, [(128, 1024), (1024,)]),
    "softmax": (lambda x: softmax(x) ** 2, [(128, 1024)]),
}
#: Also those that need other devices.
GATHERS = functools.partial(collective_matmul, axis_name="x")
ALL = CALLS | {
    "collective_matmul": (GATHERS, [(128, 256), (256, 128)]),
    "collective_matmul, sizes of no copy": (GATHERS, [(9, 64), (64, 64)]),
}
#: Primitives that add up over devices. `collective_matmul` does it in a "reduce_scatter".
ADDS = {"psum", "psum_invariant"}
#: The primitive that launches a kernel.
KERNEL = "mpmd_map"


def summed(function):
    return lambda *arrays: function(*arrays).astype(FLOAT).sum()


def gradients(function, count):
    """The gradients of the sum of a function, by all of its arrays."""
    return jax.grad(summed(function), tuple(range(count)))


def gradients_of_many_first(function, count):
    """The gradients for each of the first array's many, with the others' first ones."""
    many = jax.vmap(gradients(function, count), (0, *(None,) * (count - 1)))
    return lambda first, *others: many(first, *(each[0] for each in others))


def scanned(function):
    """The sum of a function of each of three, one after the other."""
    add = lambda total, arrays: (total + summed(function)(*arrays), None)
    return lambda *many: jax.lax.scan(add, FLOAT(0), many)[0]


#: By name: a function of a function and its number of arrays, and how many of each array there are.
TRANSFORMED = {
    "grad of jit": (lambda f, n: gradients(jax.jit(f), n), ()),
    "grad of vmap": (lambda f, n: gradients(jax.vmap(f), n), (3,)),
    "vmap of grad": (lambda f, n: jax.vmap(gradients(f, n)), (3,)),
    "vmap of vmap": (lambda f, n: jax.vmap(jax.vmap(gradients(f, n))), (2, 3)),
    "vmap of the first": (gradients_of_many_first, (3,)),
    "checkpoint": (lambda f, n: gradients(jax.checkpoint(f), n), ()),
    "scan": (lambda f, n: gradients(scanned(f), n), (3,)),
}
#: What plain JAX computes, as the kernels say: a weight for each of the arrays.
PLAIN = {("rms_norm", how) for how in ("grad of vmap", "vmap of grad", "vmap of vmap")}


@pytest.mark.parametrize("how", TRANSFORMED)
@pytest.mark.parametrize("name", CALLS)
def test_a_transformed_kernel_is_traced(name, how):
    """The gradients have the arrays' shapes, and it is still a kernel."""
    function, shapes = CALLS[name]
    make, many = TRANSFORMED[how]
    types = [jax.ShapeDtypeStruct((*many, *shape), BRAIN) for shape in shapes]
    with assumed(Gpu("NVIDIA H200", "9.0")):
        made, out = jax.make_jaxpr(make(function, len(shapes)), return_shape=True)(*types)
    assert [each.shape for each in out] == [each.shape for each in types]
    is_plain = "no copy" in name or (name, how) in PLAIN
    assert (KERNEL in primitives(made.jaxpr)) != is_plain


# Under `jax.shard_map`.


def total(function, count, mesh, alike=0):
    """The sum of a function of so many arrays, on all devices of a mesh.

    Each device has its own arrays, but for the last few, which are alike on all.
    """
    specs = (P("x"),) * (count - alike) + (P(),) * alike

    def of_device(*arrays):
        own = (array[0] for array in arrays[: count - alike])
        return function(*own, *arrays[count - alike :])[None]

    call = jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=P("x"))
    return summed(call)


def adding(function, shapes, alike=0):
    """The primitives that add up over devices in the gradients of a function, on two devices."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    own = len(shapes) - alike
    both = *((2, *shape) for shape in shapes[:own]), *shapes[own:]
    types = [jax.ShapeDtypeStruct(shape, BRAIN) for shape in both]
    every = tuple(range(len(shapes)))
    with assumed(Gpu("NVIDIA H200", "9.0")):
        made = jax.make_jaxpr(jax.grad(total(function, len(shapes), mesh, alike), every))(*types)
    return primitives(made.jaxpr) & ADDS


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_what_varies_are_not_added_up(name):
    assert not adding(*ALL[name])


@pytest.mark.parametrize("name", ["matmul", "ragged_dot", "rms_norm"])
def test_gradients_of_what_is_alike_are_added_up(name):
    """Weights, of which each device has a copy."""
    assert adding(*ALL[name], alike=1)


# On two GPUs or more of one host.


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_gradients_on_gpus(name):
    function, shapes = CALLS[name]
    if (count := len(jax.devices())) < 2:
        pytest.skip(f"needs two GPUs of one host, and there is {count}")
    mesh = jax.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
    draw = np.random.default_rng(0).standard_normal
    arrays = [jnp.asarray(draw((count, *shape)), BRAIN) for shape in shapes]
    every = tuple(range(len(shapes)))
    found = jax.jit(jax.grad(total(function, len(shapes), mesh), every))(*arrays)
    one = jax.jit(gradients(function, len(shapes)))
    for device in range(count):
        for given, wanted in zip(found, one(*(array[device] for array in arrays))):
            given, wanted = (np.asarray(x).astype(np.float64) for x in (given[device], wanted))
            assert np.linalg.norm(given - wanted) <= 1e-2 * np.linalg.norm(wanted)
