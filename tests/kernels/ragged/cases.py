"""`ragged_dot`: what its tests share (products of groups, results in float64), and its cases."""

import functools

import jax.numpy as jnp
import numpy as np

from pipelib.kernels import MatmulConfig, ragged_dot
from pipelib.kernels.ragged.weights import launch_weights
from tests.kernels.contract import CHECKED, ON_GPU, Call, case, refusals
from tests.kernels.matmul.products import check_close

HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
SMALL = MatmulConfig(64, 64, 64, slots=2, compute_threads=1)
TWO = MatmulConfig(128, 128, 64, slots=3, compute_threads=2, width=2)
AT_ONCE = MatmulConfig(128, 192, 64, slots=3, compute_threads=2, delay_release=0)
#: Rows, and sizes of groups: an empty one, one that is cut in the middle of a tile; rows of none.
GROUPS = {
    "cut": (160, [5, 0, 130, 3]),
    "whole": (128, [64, 64]),
    "one": (72, [72]),
    "none": (40, [0, 0]),
    "too many": (96, [90, 40, 20]),
}


def operands(rows, sizes, k=128, n=128, dtype=BRAIN, transpose=False):
    draw = np.random.default_rng(rows + n).standard_normal
    lhs, rhs = draw((rows, k)), draw((len(sizes), *((n, k) if transpose else (k, n))))
    return jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype), jnp.array(sizes, jnp.int32)


def groups_of(rows, sizes):
    """The rows of each group."""
    stops = np.minimum(np.cumsum(sizes), rows)
    return [slice(start, stop) for start, stop in zip([0, *stops], stops)]


def expected(lhs, rhs, sizes, transpose=False):
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    out = np.zeros((len(lhs), rhs.shape[1 if transpose else 2]))
    for matrix, rows in zip(rhs, groups_of(len(lhs), np.asarray(sizes))):
        out[rows] = lhs[rows] @ (matrix.T if transpose else matrix)
    return out


def close(out, wanted, dtype=BRAIN):
    if not np.any(wanted):
        assert not np.any(np.asarray(out))
    else:
        check_close(out, wanted, dtype)


# What every kernel is asked.

BOTH = {"plain": False, "transposed": True}
UNEQUAL = [1, 0, 700, 3, 128, 129, 2000, 127, 1008]
LHS, RHS, SIZES = jnp.ones((8, 64), BRAIN), jnp.ones((2, 64, 64), BRAIN), jnp.array([3, 5])


@case("ragged_dot", CHECKED, group=GROUPS, config={"small": SMALL, "two": TWO}, transpose=BOTH)
def groups(group, config, transpose):
    rows, sizes = group
    lhs, rhs, sizes = operands(rows, sizes, 136, 200 if transpose else 192, transpose=transpose)
    call = lambda lhs, rhs: ragged_dot(lhs, rhs, sizes, config=config, transpose_rhs=transpose)
    return Call(call, (lhs, rhs))


@case("ragged_dot", CHECKED, group=GROUPS)
def gradients_of_matrices(group):
    rows, sizes = group
    lhs, _, sizes = operands(rows, sizes, 192, 192)
    return Call(lambda lhs, g: launch_weights(lhs, g, sizes, TWO, 3), (lhs, lhs))


@case("ragged_dot", ON_GPU, transpose=BOTH)
def unequal_groups(transpose):
    arrays = operands(4100, UNEQUAL, 520, 1088, transpose=transpose)
    call = functools.partial(ragged_dot, transpose_rhs=transpose)
    return Call(call, arrays, lambda out: close(out, expected(*arrays, transpose)))


refusals(
    "ragged_dot",
    ragged_dot,
    [
        ((LHS, RHS, [3, 5]), {}, TypeError, "ragged_dot: group_sizes"),
        ((LHS, RHS, SIZES / 2), {}, TypeError, "ragged_dot: group_sizes are float32, but must be"),
        ((LHS.astype(HALF), RHS, SIZES), {}, TypeError, "lhs is float16 and rhs bfloat16"),
        ((LHS, RHS, SIZES[:1]), {}, ValueError, r"group_sizes \(1,\), but they must be"),
        ((LHS, RHS[0], SIZES), {}, ValueError, r"rhs \(64, 64\) and group_sizes"),
        ((LHS, RHS[:, :32], SIZES), {}, ValueError, "K = 64, and rhs .* has K = 32; they must be"),
        ((LHS[:0], RHS, SIZES), {}, ValueError, "is empty; all sizes must be 1 or more"),
        ((LHS, RHS, SIZES), {"config": 3}, TypeError, "ragged_dot: config"),
        ((LHS, RHS, SIZES), {"out_dtype": "int8"}, TypeError, "ragged_dot: out_dtype=int8"),
        (
            (LHS, RHS, SIZES),
            {"config": MatmulConfig(form="specialized")},
            ValueError,
            "leave them as they are by default",
        ),
    ],
)
