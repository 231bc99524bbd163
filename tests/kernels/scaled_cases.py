"""`scaled_matmul`: what its tests share (products, results in float64), and its cases."""

import functools

import jax.numpy as jnp
import numpy as np

from pipelib.kernels import MatmulConfig
from pipelib.kernels.scaled import SCALED, ScaledConfig, scaled_matmul
from tests.kernels.contract import CHECKED, ON_GPU, Call, case, refusals
from tests.kernels.matmul.products import check_close

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
BRAIN, FLOAT = jnp.bfloat16, jnp.float32


def operands(m, n, k, dtypes=(E4M3, E4M3)):
    rng = np.random.default_rng(m + n + k)
    a, b = (jnp.asarray(rng.standard_normal(s), t) for s, t in zip(((m, k), (n, k)), dtypes))
    steps = -(-k // SCALED)
    scales = (rng.uniform(0.25, 4, shape) for shape in ((m, steps), (-(-n // SCALED), steps)))
    return a, b, *(jnp.asarray(scale, FLOAT) for scale in scales)


def expected(a, b, a_scales, b_scales):
    a, b, a_scales, b_scales = (
        np.asarray(x).astype(np.float64) for x in (a, b, a_scales, b_scales)
    )
    a_scales = np.repeat(a_scales, SCALED, 1)[:, : a.shape[1]]
    b_scales = np.repeat(np.repeat(b_scales, SCALED, 0), SCALED, 1)[: b.shape[0], : b.shape[1]]
    return (a * a_scales) @ (b * b_scales).T


CONFIGS = [
    ScaledConfig(cluster_m=2),
    ScaledConfig(64, 64, compute_threads=1, cluster_n=2, stagger=False),
    ScaledConfig(tile_k=128, slots=6, delay_release=0),
    ScaledConfig(tile_k=256, delay_release=0, cluster_m=2, stagger=False),
    ScaledConfig(tile_n=192, tile_k=128, slots=4, delay_release=0),
    ScaledConfig(192, 128, 128, compute_threads=3, delay_release=0),
    ScaledConfig(256, 64, 128, slots=4),
]


# What every kernel is asked.

CHECKED_SIZES = [(512, 512, 1024), (200, 264, 1680), (1, 8, 16)]
SIZES_ON_GPU = [(1, 512, 1024), (1009, 1096, 2064), (2048, 2048, 4096)]
OUTPUTS = {"bfloat16": BRAIN, "float32": FLOAT}
A, B, A_SCALES, B_SCALES = operands(8, 128, 256)


@case("scaled_matmul", CHECKED, config=CONFIGS)
def configuration(config):
    return Call(functools.partial(scaled_matmul, config=config), operands(600, 520, 1168))


@case("scaled_matmul", CHECKED, sizes=CHECKED_SIZES, out_dtype=OUTPUTS)
def default(sizes, out_dtype):
    return Call(functools.partial(scaled_matmul, out_dtype=out_dtype), operands(*sizes))


@case("scaled_matmul", ON_GPU, sizes=SIZES_ON_GPU, out_dtype=OUTPUTS)
def product(sizes, out_dtype):
    arrays = operands(*sizes)

    def compare(out):
        if out_dtype == BRAIN:
            return check_close(out, expected(*arrays), out_dtype)
        # Tensor cores of Hopper add up products of float8 with about 14 bits (arXiv 2412.19437,
        # section 3.3.2), so 2^-14 = 6e-5 is lost at each of the few additions of a product of 128.
        error = np.linalg.norm(out - expected(*arrays)) / np.linalg.norm(expected(*arrays))
        assert out.dtype == FLOAT and error <= 1e-3

    return Call(functools.partial(scaled_matmul, out_dtype=out_dtype), arrays, compare)


refusals(
    "scaled_matmul",
    scaled_matmul,
    [
        ((A, B, A_SCALES, [1]), {}, TypeError, "scaled_matmul: b_scales"),
        ((A.astype(BRAIN), B, A_SCALES, B_SCALES), {}, TypeError, "a is bfloat16, but must be flo"),
        ((A, B, A_SCALES.astype(BRAIN), B_SCALES), {}, TypeError, "a_scales is bfloat16, but must"),
        ((A[0], B, A_SCALES, B_SCALES), {}, ValueError, "a has shape .*, but must have 2 axes"),
        ((A, B[:, :128], A_SCALES, B_SCALES), {}, ValueError, "K = 256, and b .* has K = 128"),
        ((A, B[:127], A_SCALES, B_SCALES), {}, ValueError, "K = 256 and N = 127 must be multiples"),
        ((A, B, A_SCALES.T, B_SCALES), {}, ValueError, r"it must be \(8, 2\): one for each 128"),
        ((A, B, A_SCALES, B_SCALES), {"out_dtype": E4M3}, TypeError, "scaled_matmul: out_dtype="),
        (
            (A, B, A_SCALES, B_SCALES),
            {"config": MatmulConfig()},
            TypeError,
            "a ScaledConfig says how it is divided",
        ),
        (
            (A, B, A_SCALES, B_SCALES),
            {"config": ScaledConfig(slots=4)},
            ValueError,
            r"^ScaledConfig: slots of a 4 x .* B of shared memory, but a block has 232,448 B",
        ),
    ],
)
