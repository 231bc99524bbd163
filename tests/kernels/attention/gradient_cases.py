"""`attention`'s gradients: what their tests share (cotangents, a comparison), and their cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pipelib.kernels import AttentionConfig, GradientConfig, attention
from pipelib.kernels.attention.config import ALL
from tests.kernels.attention.cases import (
    BRAIN,
    HALF,
    MASKS,
    OF_TANH,
    PROBLEMS,
    config_of,
    exact_gradients,
    ids,
    operands,
    spread_over,
)
from tests.kernels.contract import (
    BOTH_JAX,
    CHECKED,
    LOWERED,
    ON_GPU,
    Call,
    case,
    wrong_configurations,
)

FUSED = AttentionConfig(fused=True)
# Of the norm of a gradient: dS is rounded to the dtype, as P is and as the result, which delta is
# made of. One block of 64 columns lost of 200 gives over 0.1.
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}


def cotangents(q):
    """Of a result like q and of its log-sum-exp."""
    draw = np.random.default_rng(q.size).standard_normal
    lse_shape = q.shape[0], q.shape[2], q.shape[1]
    return jnp.asarray(draw(q.shape), q.dtype), jnp.asarray(draw(lse_shape), jnp.float32)


def gradients(arrays, d_out, d_lse, sinks=None, **options):
    """Those of the arrays, and of sinks, if there are any."""

    def call(q, k, v, *sinks):
        given = dict(zip(["sinks"], sinks)) | options
        return attention(q, k, v, return_residuals=True, **given)

    return jax.vjp(call, *arrays, *[sinks] * (sinks is not None))[1]((d_out, d_lse))


def check(arrays, **options):
    compare(gradients(arrays, *cotangents(arrays[0]), **options), arrays, **options)


def compare(found, arrays, config=None, **options):
    """Gradients by `cotangents` beside those of float64."""
    del config
    expected = exact_gradients(*arrays, *cotangents(arrays[0]), **options)
    limit = TOLERANCE[arrays[0].dtype.name] + (OF_TANH if "soft_cap" in options else 0.0)
    if "sinks" in options:
        arrays = *arrays, options["sinks"]
    for one, other, array in zip(found, expected, arrays, strict=True):
        assert one.dtype == array.dtype and one.shape == array.shape
        error = np.linalg.norm(np.asarray(one).astype(np.float64) - other)
        assert error <= limit * np.linalg.norm(other)


def call_of(config, **options):
    """The gradients as a function of q, k and v."""
    return lambda *arrays: gradients(arrays, *cotangents(arrays[0]), config=config, **options)


# What every kernel is asked.

KINDS = [(128, "registers", mask) for mask in MASKS]
KINDS += [(64, "registers", "causal"), (128, "interpreted", "segments")]
KINDS += [(256, "registers", "dense"), (256, "registers", "causal")]


def blocks(number, *blocks):
    """The first and the last block of the backward pass's kernel of this number, from 1."""
    return tuple(dict(block=(0, 1, block), call=number) for block in blocks)


def kernels_of(head_dim, probabilities, mask):
    """(head_dim, probabilities, mask, the number of a kernel) of all kernels."""
    count = len(config_of(head_dim, probabilities=probabilities).gradients(head_dim))
    return [(head_dim, probabilities, mask, number) for number in range(1, count + 1)]


@case("gradients", CHECKED, kind=[each for kind in KINDS for each in kernels_of(*kind)])
def first_and_last_block(kind):
    head_dim, probabilities, mask, number = kind
    config = config_of(head_dim, probabilities=probabilities)
    made, kernel = [*config.gradients(head_dim).items()][number - 1]
    last = 512 // (kernel.rows * kernel.compute_threads) - 1
    return Call(
        call_of(config, **MASKS[mask]),
        operands(512, 512, 4, 2, head_dim),
        smem_bytes=kernel.smem_bytes(made, head_dim, not config.in_place),
        is_exact=False,
        blocks=blocks(number, 0, last),
        is_hopper=False,
    )


ONE_KERNEL = [(64, "registers"), (128, "registers"), (128, "interpreted")]


@case("gradients", CHECKED, kind=ONE_KERNEL, mask=list(MASKS))
def one_kernel(kind, mask):
    head_dim, probabilities = kind
    config = AttentionConfig(fused=True, probabilities=probabilities)
    (kernel,) = config.gradients(head_dim).values()
    return Call(
        call_of(config, **MASKS[mask]),
        operands(512, 512, 4, 2, head_dim),
        smem_bytes=kernel.smem_bytes(ALL, head_dim, not config.in_place),
        is_exact=False,
        blocks=blocks(1, 0, 3),
        is_hopper=False,
    )


@case(
    "gradients",
    LOWERED,
    marks=BOTH_JAX,
    kind=[kind for kind in KINDS if kind[2] != "window" and kind != (128, "registers", "causal")],
)
def kernels(kind):
    head_dim, probabilities, mask = kind
    dtype = BRAIN if head_dim == 128 else HALF
    config = config_of(head_dim, probabilities=probabilities)
    arrays = operands(512, 512, 2, 1, head_dim, dtype)
    return Call(call_of(config, **MASKS[mask]), arrays, is_hopper=False)


@case("gradients", LOWERED, dtype={"bfloat16": BRAIN, "float16": HALF}, causal=[False, True])
def one_kernel_of_ragged_ends(dtype, causal):
    """Dense, the last block's place is known when the kernel is traced."""
    arrays = operands(520, 200, 2, 1, 128, dtype)
    return Call(call_of(FUSED, causal=causal), arrays, is_hopper=False)


@case("gradients", CHECKED, size=[64, 96], mask=["dense", "causal"])
def parts_by_rows(size, mask):
    """Copies see rows, as no length divides into pieces; blocks share the heads of a head of K."""
    arrays = operands(201, 201, 4, 1, size)
    return Call(call_of(None, **MASKS[mask]), arrays, is_exact=False, blocks=blocks(1, 0, 1))


@case(
    "gradients",
    LOWERED,
    ON_GPU,
    size=[40, 64, 96, 128, 200, 256],
    options={
        "dense": {},
        "causal": {"causal": True},
        "segments": {"causal": True, "segment_ids": ids(1, 300, 477)},
    },
)
def of_any_size(size, options):
    """The same; heads of 200 are filled up to 256, which have more pieces."""
    arrays = operands(777, 777, 8, 1, size, BRAIN)
    right = functools.partial(compare, arrays=arrays, **options)
    return Call(call_of(None, **options), arrays, right)


def on_gpu(head_dim, dtype, problem, config=None):
    """The call of a problem, of two sequences."""
    shape, options = PROBLEMS[problem]
    arrays = operands(*shape, head_dim, dtype, batch=2)
    right = functools.partial(compare, arrays=arrays, **options)
    return Call(call_of(config, **options), arrays, right)


@case("gradients", ON_GPU, which=spread_over(PROBLEMS, (64, 128, 256)))
def default(which):
    problem, head_dim, dtype = which
    return on_gpu(head_dim, dtype, problem)


@case("gradients", ON_GPU, kind=[(128, HALF), (128, BRAIN), (64, HALF)], problem=list(PROBLEMS))
def one_kernel_on_gpu(kind, problem):
    return on_gpu(*kind, problem, FUSED)


wrong_configurations(
    GradientConfig, ({"rows": 96}, "rows=96 is not a multiple of 64, the rows of a wgmma.")
)
BOTH_WAYS = dict(fused=GradientConfig(), dkv=GradientConfig())
wrong_configurations(
    AttentionConfig,
    (BOTH_WAYS, "fused= is instead of dq= and dkv=, so one of these would do nothing."),
)
