"""`rms_norm` and `softmax`: their cases."""

import functools
import math

import jax
import jax.numpy as jnp

from pipelib.kernels import rms_norm, softmax
from tests.kernels.contract import BOTH_JAX, CHECKED, LOWERED, Call, case, refused, refuses

#: One pass whole and padded, kept whole and padded, two passes whole and padded, and several slots:
#: shapes, and slots.
SHAPES = [(8192, None), (8200, None), (32768, None), (40968, None), (128000, None), (151936, None)]
SHAPES = [((20, length), slots) for length, slots in SHAPES] + [((4000, 8192), 3)]
KERNELS = {
    "rms_norm": (rms_norm, None),
    "softmax": (softmax, None),
    "rms_norm, a weight": (rms_norm, "float32"),
}


@case("rows", CHECKED, LOWERED, marks=BOTH_JAX, call=KERNELS, which=SHAPES)
def at_real_sizes(call, which):
    (function, weight), (shape, slots) = call, which
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    weights = [jax.ShapeDtypeStruct(shape[1:], weight)] if weight else []
    return Call(functools.partial(function, slots=slots), (x, *weights), is_hopper=False)


X = jnp.ones((3, 256))
refuses(
    softmax,
    refused("x of shape (3, 256) and int32 has no rows that the", X.astype(jnp.int32)),
    refused("slots=0 is not 1 to 32, the most that one array of barriers has.", slots=0),
    refused("The pipeline needs in_specs[0] 16 x", jnp.tile(X, 256), slots=20),
    refused("softmax: x=[[1.0]] has type list, but a kernel", [[1.0]], kind=TypeError),
    refused("softmax: slots=2.0 has type float, but a kernel", slots=2.0, kind=TypeError),
    arrays=(X,),
)
refuses(
    rms_norm,
    refused("x of shape () and float32 has no rows that the kernel takes", X[0, 0]),
    refused("a weight of shape (128,) and float32 cannot scale rows of 256", X, X[0, :128]),
    *(
        refused(f"eps={eps} is not 0 to 3.4e+38, float32's largest, so rows would", eps=eps)
        for eps in (-1.0, math.nan, math.inf, 1e39)
    ),
    refused("rms_norm: rows=257 is not 1 to 256, the most that one copy takes.", rows=257),
    refused("rows=1, but rows of 200 elements are padded to 640, so", X[:, :200], rows=1),
    refused("rms_norm: x=None has type NoneType, but a kernel", None, kind=TypeError),
    refused("rms_norm: weight=2.0 has type float, but a kernel", X, 2.0, kind=TypeError),
    refused("eps=None has type NoneType, but a kernel is compiled", eps=None, kind=TypeError),
    refused("eps='tiny' has type str, but a kernel is compiled", eps="tiny", kind=TypeError),
    refused("rms_norm: rows='2' has type str, but a kernel is", rows="2", kind=TypeError),
    arrays=(X,),
)
