"""Factors of products, their configurations, and what a product has to be."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import pallascope
from pipelib.kernels import MatmulConfig, matmul
from pipelib_book.matmul_forms import RungConfig

HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2

# Of the norm, by the output's dtype: its rounding alone gives 0.0002, 0.0017 and 0.00000003, and
# tensor cores cut off what they add. One step of 64 lost in 4096 gives 0.12.
TOLERANCE = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 3e-5}

# Two blocks go through several tiles each, and not equally many.
ONE = MatmulConfig(64, 64, 64, slots=2, compute_threads=1, delay_release=0, blocks=2)
TWO = MatmulConfig(128, 128, 64, slots=3, compute_threads=2, delay_release=1, width=2, blocks=2)
ODD = MatmulConfig(64, 192, 64, slots=4, compute_threads=1, delay_release=2, order="m", blocks=1)
RING = RungConfig(64, 64, 64, slots=2, compute_threads=1, delay_release=1, form="ring")
SHARED = dataclasses.replace(RING, tile_m=128, slots=3, compute_threads=2)
ALONE = MatmulConfig(64, 64, 64, slots=3, compute_threads=1, form="specialized")
MANY = RungConfig(**dataclasses.asdict(TWO) | dict(form="persistent"))
CLUSTER = dataclasses.replace(ONE, cluster_m=2, slots=3, delay_release=1)
SQUARE = dataclasses.replace(
    MANY, tile_m=64, tile_n=64, slots=2, compute_threads=1, delay_release=0, width=8,
    cluster_m=2, cluster_n=2, blocks=4,
)  # fmt: skip
FORMS = {
    "ring": RING,
    "ring of two threads": SHARED,
    "specialized": ALONE,
    "persistent": MANY,
    "chained": TWO,
    "cluster": CLUSTER,
    "cluster, square": SQUARE,
    "cluster, no loop": dataclasses.replace(ALONE, cluster_n=2),
}

BOTH = dict(transpose_a=True, transpose_b=True)
EPILOGUE = dict(out_dtype=FLOAT, epilogue=lambda acc: 2.0 * acc * acc - 1.0)


def factors(m, n, k, dtype=HALF, transpose_a=False, transpose_b=False, dtype_b=None, batch=()):
    """Normal random factors, stored as asked for."""
    draw = np.random.default_rng(m + n + k).standard_normal
    a = draw((*batch, *((k, m) if transpose_a else (m, k))), np.float32)
    b = draw((n, k) if transpose_b else (k, n), np.float32)
    return jnp.asarray(a.astype(dtype)), jnp.asarray(b.astype(dtype_b or dtype))


def check_close(out, expected, dtype):
    out, expected = np.asarray(out), np.asarray(expected)
    assert out.shape == expected.shape and out.dtype == jnp.dtype(dtype)
    error = np.linalg.norm(out.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[out.dtype.name]


def reference(a, b, transpose_a=False, transpose_b=False):
    a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
    return (a.T if transpose_a else a) @ (b.T if transpose_b else b)


def uses_kernel(*args, **options):
    """Whether such a product is the kernel's; else `trace` finds none."""
    try:
        pallascope.trace(lambda a, b: matmul(a, b, **options), *args)
    except ValueError as e:
        assert "kernel" in str(e)
        return False
    return True


def finish(acc, residual, bias, scale, number):
    return jnp.maximum(acc * scale + bias, 0.0) * number + residual


def epilogue_operands(m, n):
    """A matrix, a row, a column and a number, of three dtypes."""
    draw = np.random.default_rng(m * n).standard_normal
    kinds = ((m, n), HALF), ((n,), FLOAT), ((m, 1), BRAIN), ((), FLOAT)
    return tuple(jnp.asarray(draw(shape), dtype) for shape, dtype in kinds)


def check_rows(out, a, b, dtype, transpose_a=False, transpose_b=False, rows=64):
    """A sample of rows, the first and the last among them, against float64."""
    m = out.shape[0]
    sample = np.unique(np.linspace(0, m - 1, min(rows, m)).round().astype(int))
    a = np.asarray(a[:, sample] if transpose_a else a[sample])
    expected = reference(a, b, transpose_a, transpose_b)
    check_close(np.asarray(out)[sample], expected, dtype)
