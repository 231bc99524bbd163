"""`scaled_matmul` against float64: interpreted, checked, compiled; on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pallascope
from pipelib.kernels import MatmulConfig
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.scaled import SCALED, ScaledConfig, scaled_matmul
from tests.emitters.contract import interpreted
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


@pytest.fixture
def on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


@pytest.mark.parametrize(
    ("sizes", "dtypes", "out_dtype"),
    [
        ((128, 128, 128), (E4M3, E4M3), BRAIN),
        ((200, 264, 400), (E4M3, E5M2), BRAIN),  # edges of all three
        ((5, 8, 1680), (E5M2, E4M3), FLOAT),  # more steps than slots
    ],
)
def test_product(sizes, dtypes, out_dtype):
    arrays = operands(*sizes, dtypes)
    with interpreted():
        out = scaled_matmul(*arrays, out_dtype=out_dtype)
    check_close(out, expected(*arrays), out_dtype)


CONFIGS = [
    ScaledConfig(cluster_m=2),
    ScaledConfig(64, 64, compute_threads=1, cluster_n=2, stagger=False),
    ScaledConfig(tile_k=128, slots=6, delay_release=0),
    ScaledConfig(tile_k=256, delay_release=0, cluster_m=2, stagger=False),
    ScaledConfig(tile_n=192, tile_k=128, slots=4, delay_release=0),
    ScaledConfig(192, 128, 128, compute_threads=3, delay_release=0),
    ScaledConfig(256, 64, 128, slots=4),
]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_configurations(config):
    arrays = operands(200, 264, 1168)  # 10 times 128, of which the last is short
    with interpreted():
        out = scaled_matmul(*arrays, out_dtype=FLOAT, config=config)
    check_close(out, expected(*arrays), FLOAT)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("on_an_h200")
def test_check_of_configurations(config):
    call = functools.partial(scaled_matmul, config=config)
    program = pallascope.trace(call, *operands(600, 520, 1168))
    assert list(pallascope.check(program, strict=True)) == []


def test_vmap_jit_scan_and_shard_map():
    a, b, a_scales, b_scales = operands(40, 128, 256)
    many = jnp.stack([a_scales, 2 * a_scales])
    call = lambda scales: scaled_matmul(a, b, scales, b_scales)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = P("x"), P()
    sharded = jax.shard_map(
        scaled_matmul, mesh=mesh, in_specs=(rows, whole, rows, whole), out_specs=rows
    )
    with interpreted():
        found = jax.jit(jax.vmap(call))(many)
        _, again = jax.lax.scan(lambda _, scales: (None, call(scales)), None, many)
        shards = jax.jit(sharded)(a, b, a_scales, b_scales)
    for out, same, scales in zip(found, again, many):
        check_close(out, expected(a, b, scales, b_scales), BRAIN)
        np.testing.assert_array_equal(out, same)
    np.testing.assert_array_equal(shards, found[0])


def test_it_has_no_gradient():
    a, b, a_scales, b_scales = operands(8, 128, 128)
    total = lambda scales: scaled_matmul(a, b, scales, b_scales).astype(FLOAT).sum()
    with pytest.raises(NotImplementedError, match=r"^scaled_matmul has no gradient: multiply"):
        jax.grad(total)(a_scales)
    with pytest.raises(NotImplementedError, match=r"^scaled_matmul has no gradient: multiply"):
        jax.jvp(total, (a_scales,), (a_scales,))


@pytest.mark.parametrize("sizes", [(512, 512, 1024), (200, 264, 1680), (1, 8, 16)], ids=str)
@pytest.mark.parametrize("out_dtype", [BRAIN, FLOAT])
@pytest.mark.usefixtures("on_an_h200")
def test_check_finds_nothing(sizes, out_dtype):
    call = functools.partial(scaled_matmul, out_dtype=out_dtype)
    program = pallascope.trace(call, *operands(*sizes))
    assert list(pallascope.check(program, strict=True)) == []


@pytest.mark.usefixtures("on_an_h200")
def test_check_finds_a_slot_released_too_early(monkeypatch):
    from pipelib import ring

    monkeypatch.setattr(ring.Channel, "wait_until_released", lambda self, slot: None)
    program = pallascope.trace(scaled_matmul, *operands(201, 264, 1680))  # not traced yet
    assert "race" in {finding.kind for finding in pallascope.check(program)}


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
def test_it_compiles():
    """All that a step adds to its two products: 64 multiplications with an addition for each."""
    shapes = (
        ((2048, 2048), E4M3), ((2048, 2048), E4M3), ((2048, 16), FLOAT), ((16, 16), FLOAT)
    )  # fmt: skip
    found = pallascope.compiled(scaled_matmul, *(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    assert found.kernel == "scaled_matmul" and found.ok and not found.serialized
    assert (found.spill_stores, found.instructions["HGMMA"]) == (0, 8)
    (loop,) = (loop for loop in found.loops if loop.instructions["HGMMA"])
    counts = loop.instructions
    assert (counts["FFMA"], counts["FMUL"], counts["FADD"], counts["BAR"]) == (128, 4, 0, 0)


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
@pytest.mark.parametrize("sizes", [(1009, 1096, 2064), (1, 512, 1024), (100, 264, 400)], ids=str)
def test_it_compiles_for_float32(sizes):
    """Also where the result does not divide into pieces."""
    call = functools.partial(scaled_matmul, out_dtype=FLOAT)
    assert pallascope.compiled(call, *operands(*sizes)).ok


A, B, A_SCALES, B_SCALES = operands(8, 128, 256)


@pytest.mark.parametrize(
    ("args", "options", "kind", "text"),
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
            (A, B, A_SCALES, B_SCALES), {"config": MatmulConfig()}, TypeError,
            "a ScaledConfig says how it is divided",
        ),
        (
            (A, B, A_SCALES, B_SCALES), {"config": ScaledConfig(slots=4)}, ValueError,
            r"^ScaledConfig: slots of a 4 x .* B of shared memory, but a block has 232,448 B",
        ),
    ],
)  # fmt: skip
def test_errors(args, options, kind, text):
    with pytest.raises(kind, match=text):
        scaled_matmul(*args, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("out_dtype", [BRAIN, FLOAT])
@pytest.mark.parametrize("sizes", [(1, 512, 1024), (1009, 1096, 2064), (2048, 2048, 4096)], ids=str)
def test_on_gpu(sizes, out_dtype):
    arrays = operands(*sizes)
    out = scaled_matmul(*arrays, out_dtype=out_dtype)
    if out_dtype == BRAIN:
        return check_close(out, expected(*arrays), out_dtype)
    # Tensor cores of Hopper add up products of float8 with about 14 bits (arXiv 2412.19437, section
    # 3.3.2), so 2^-14 = 6e-5 is lost at each of the few additions of a product of 128.
    error = np.linalg.norm(out - expected(*arrays)) / np.linalg.norm(expected(*arrays))
    assert out.dtype == FLOAT and error <= 1e-3
