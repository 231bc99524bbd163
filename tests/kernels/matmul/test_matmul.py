"""`pipelib.kernels.matmul` against float64: interpreted, traced and checked, lowered; on a GPU."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import pallascope
from pipelib import specs
from pipelib.kernels import MatmulConfig, matmul
from pipelib.kernels.matmul import default_config
from pipelib_book.matmul_ladder import IDEAS, RUNGS
from tests.emitters.contract import interpreted
from tests.kernels.matmul.cases import CONFIGS
from tests.kernels.matmul.products import (
    ALONE,
    BOTH,
    BRAIN,
    E4M3,
    E5M2,
    EPILOGUE,
    FLOAT,
    FORMS,
    HALF,
    ODD,
    ONE,
    SHARED,
    SQUARE,
    TWO,
    check_close,
    check_rows,
    epilogue_operands,
    factors,
    finish,
    reference,
    uses_kernel,
)

# Interpreted, with race detection.


@pytest.mark.parametrize(
    ("shape", "config", "dtype", "options"),
    [
        pytest.param((192, 64, 256), ONE, HALF, {}, id="3 tiles, 2 blocks"),
        pytest.param((384, 128, 192), TWO, BRAIN, {"transpose_b": True}, id="2 compute threads"),
        pytest.param((64, 384, 64), ODD, BRAIN, EPILOGUE, id="3 parts, 1 step, epilogue"),
        pytest.param((136, 64, 256), TWO, HALF, {}, id="edges of all three"),
        pytest.param((128, 64, 192), ONE, HALF, BOTH, id="both transposed"),
        pytest.param((5, 64, 64), ONE, HALF, {}, id="within a piece"),
    ],
)
def test_product(shape, config, dtype, options):
    transposed = {key: value for key, value in options.items() if "transpose" in key}
    a, b = factors(*shape, dtype, **transposed)
    assert uses_kernel(a, b, config=config, **options)
    with interpreted():
        out = matmul(a, b, config=config, **options)
    expected = options.get("epilogue", lambda acc: acc)(reference(a, b, **transposed))
    check_close(out, expected, options.get("out_dtype", dtype))


# In JAX's interpreter each block loads for itself all that it multiplies, so nothing but barriers
# holds the blocks of a cluster together. In a cluster of two axes they are too few: a block that
# shares no load with another is released by two arrivals of a third, and the slots of the slow one
# are overwritten. On a GPU the third waits for that one's part of the load, which `check` follows.
INTERPRETED = {name: config for name, config in FORMS.items() if config is not SQUARE}


@pytest.mark.parametrize("config", INTERPRETED.values(), ids=INTERPRETED)
def test_form(config):
    """Tiles beyond the output, for a cluster too; more steps than slots."""
    a, b = factors(192, 128, 256)
    with interpreted():
        out = matmul(a, b, config=config)
    check_close(out, reference(a, b), HALF)


def finished(acc, operands):
    residual, bias, scale, number = (np.asarray(x).astype(np.float64) for x in operands)
    return np.maximum(acc * scale + bias, 0.0) * number + residual


@pytest.mark.parametrize("config", [SHARED, ALONE], ids=["ring", "specialized"])
def test_operands(config):
    """Each tile, and each part of it, gets its own of all of them; also at the edges.

    Clusters have their turn on the GPU. JAX's interpreter hands the work of each thread to a pool
    of as many as the machine has cores: of four threads, two that wait can occupy two cores.
    """
    config = dataclasses.replace(config, tile_n=128)
    m, n = 136, 192
    (a, b), operands = factors(m, n, 64), epilogue_operands(m, n)
    with interpreted():
        out = matmul(a, b, config=config, epilogue=finish, operands=operands, out_dtype=FLOAT)
    check_close(out, finished(reference(a, b), operands), FLOAT)


def test_operands_of_the_fallback():
    (a, b), operands = factors(17, 23, 29), epilogue_operands(17, 23)
    out = matmul(a, b, epilogue=finish, operands=operands, out_dtype=FLOAT)
    check_close(out, finished(reference(a, b), operands), FLOAT)


def test_vmap_of_operands():
    a, b = factors(8, 64, 64, batch=(2,))
    bias = jnp.arange(128.0).reshape(2, 64)
    fused = lambda a, bias: matmul(a, b, config=ONE, epilogue=jnp.add, operands=(bias,))
    with interpreted():
        out = jax.vmap(fused)(a, bias)
    expected = [reference(x, b) + np.asarray(y) for x, y in zip(a, bias)]
    check_close(out, np.stack(expected), HALF)


def test_float8():
    config = dataclasses.replace(ONE, tile_k=128)
    a, b = factors(64, 64, 256, E5M2, transpose_b=True, dtype_b=E4M3)
    with interpreted():
        out = matmul(a, b, config=config, transpose_b=True)
    check_close(out, reference(a, b, transpose_b=True), BRAIN)


def test_jit_with_the_default_configuration():
    a, b = factors(64, 64, 64)
    with interpreted():
        out = jax.jit(matmul)(a, b)
    check_close(out, reference(a, b), HALF)


def test_vmap_of_a_shared_factor():
    """Tiles of 64 rows, of which each matrix has 8: none of the next one's may be read."""
    a, b = factors(8, 64, 64, batch=(2,))
    with interpreted():
        out = jax.vmap(lambda a: matmul(a, b, config=ONE))(a)
    check_close(out, np.stack([reference(a[0], b), reference(a[1], b)]), HALF)


# Gradients. Those of the fallback's sizes are made by the same rule.


def check_gradients(m, n, k, transpose_a, transpose_b, config=None):
    options = dict(transpose_a=transpose_a, transpose_b=transpose_b)
    a, b = factors(m, n, k, **options)
    g, _ = factors(m, k, n, FLOAT)

    def loss(a, b):
        return jnp.sum(matmul(a, b, config=config, out_dtype=FLOAT, **options) * g)

    da, db = jax.grad(loss, (0, 1))(a, b)
    g64 = np.asarray(g).astype(HALF).astype(np.float64)
    a64, b64 = (np.asarray(x).astype(np.float64) for x in (a, b))
    expected_a = g64 @ (b64 if transpose_b else b64.T)
    expected_b = (a64 if transpose_a else a64.T) @ g64
    check_close(da, expected_a.T if transpose_a else expected_a, HALF)
    check_close(db, expected_b.T if transpose_b else expected_b, HALF)


def test_gradients_of_the_kernel():
    with interpreted():
        check_gradients(64, 64, 128, False, True, ONE)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_gradients_in_every_order(transpose_a, transpose_b):
    check_gradients(17, 23, 29, transpose_a, transpose_b)


def test_vmap_of_gradients():
    a, b = factors(9, 11, 13, batch=(3,))
    loss = lambda a, b: jnp.sum(matmul(a, b, out_dtype=FLOAT))
    da, db = jax.vmap(jax.grad(loss, (0, 1)), (0, None))(a, b)
    b64, a64 = np.asarray(b).astype(np.float64), np.asarray(a).astype(np.float64)
    check_close(da, np.broadcast_to(b64.sum(1), a.shape), HALF)
    check_close(db, np.broadcast_to(a64.sum(1)[:, :, None], (3, 13, 11)), HALF)


def test_gradients_of_an_epilogue():
    """Of the factors and of each operand, against plain JAX in float32."""
    m, n, k = 17, 24, 31
    (a, b), operands = factors(m, n, k), epilogue_operands(m, n)
    a, b = a / 4.0, b / 4.0

    def fused(a, b, operands):
        return matmul(a, b, epilogue=finish, operands=operands, out_dtype=FLOAT).sum()

    def plain(a, b, operands):
        acc = jnp.matmul(a, b, precision="highest")
        return finish(acc, *(x.astype(FLOAT) for x in operands)).sum()

    found = jax.grad(fused, (0, 1, 2))(a, b, operands)
    expected = jax.grad(plain, (0, 1, 2))(a.astype(FLOAT), b.astype(FLOAT), operands)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(FLOAT), other.astype(FLOAT), atol=0.05, rtol=0.01)


def test_gradients_of_float8():
    """Those of the factors in bfloat16, rounded to float8."""
    a, b = factors(17, 23, 29, E4M3, transpose_b=True, dtype_b=E5M2)
    loss = lambda a, b: jnp.sum(matmul(a, b, transpose_b=True, out_dtype=FLOAT) * 0.125)
    da, db = jax.grad(loss, (0, 1))(a, b)
    wider = jax.grad(loss, (0, 1))(a.astype(BRAIN), b.astype(BRAIN))
    assert (da.dtype, db.dtype) == (E4M3, E5M2)
    np.testing.assert_array_equal(da, wider[0].astype(E4M3))
    np.testing.assert_array_equal(db, wider[1].astype(E5M2))


# The fallback.


@pytest.mark.parametrize(
    ("shape", "options", "kernel"),
    [
        ((64, 64, 64), {}, True),
        ((7, 64, 64), {}, True),
        ((9, 64, 64), {}, False),
        ((8, 72, 64), {}, False),
        ((8, 64, 72), {}, False),
        ((8, 60, 64), {}, False),
        ((8, 56, 64), {}, False),
        ((8, 40, 64), {"out_dtype": FLOAT}, False),
        ((8, 64, 64), {"out_dtype": FLOAT}, True),
        ((72, 64, 64), {"transpose_a": True}, False),
        ((8, 64, 20), {"transpose_a": True}, False),
        ((8, 64, 24), {"transpose_a": True}, False),
        ((64, 64, 24), {"transpose_a": True}, True),
    ],
)
def test_fallback(shape, options, kernel):
    """The kernel takes rows of whole 128 bytes, in eights or fewer, of all three matrices."""
    transposed = {key: value for key, value in options.items() if "transpose" in key}
    a, b = factors(*shape, **transposed)
    assert uses_kernel(a, b, config=ONE, **options) == kernel


@pytest.mark.parametrize("transposed", [{}, BOTH], ids=["plain", "transposed"])
def test_product_of_the_fallback(transposed):
    a, b = factors(17, 23, 29, **transposed)
    out = matmul(a, b, epilogue=lambda acc: acc + 1.0, **transposed)
    check_close(out, reference(a, b, **transposed) + 1.0, HALF)


# Traced and checked, and the arithmetic of what it takes.


@pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
def test_ideas_of_the_ladder(idea):
    """Each fits, is sound, and lowers at the size at which it is measured."""
    idea.config.check(BRAIN, BRAIN)
    multiply = lambda a, b: matmul(a, b, config=idea.config)
    program = pallascope.trace(multiply, *factors(768, 1024, 512, BRAIN))
    assert list(pallascope.check(program, strict=True)) == []
    assert program.smem_bytes == idea.config.smem_bytes(BRAIN, BRAIN)
    square = jax.ShapeDtypeStruct((8192, 8192), BRAIN)
    lowered = jax.jit(multiply).trace(square, square).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


def test_ideas_differ():
    """From each other and from every rung."""
    configs = [idea.config for idea in IDEAS] + [rung.config for rung in RUNGS]
    assert len(set(configs)) == len(configs)
    assert len({idea.name for idea in IDEAS}) == len(IDEAS)


@pytest.mark.usefixtures("traced_anew")
def test_check_finds_a_slot_released_early(monkeypatch):
    """What the test above would see if the product were left in flight too long."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    wait = plgpu.wgmma_wait
    monkeypatch.setattr(plgpu, "wgmma_wait", lambda n: wait(n + 1))
    a, b = factors(640, 768, 512)
    program = pallascope.trace(lambda a, b: matmul(a, b, config=TWO), a, b)
    assert list(pallascope.check(program))


@pytest.mark.parametrize("out_dtype", [HALF, FLOAT])
@pytest.mark.parametrize("dtype", [HALF, E4M3])
@pytest.mark.parametrize("shape", [(1, 8), (16, 4096), (1024, 1024), (4096, 4096), (8192, 28672)])
def test_default_configuration_fits(shape, dtype, out_dtype):
    config = default_config(*shape, 512, dtype, out_dtype)
    config.check(dtype, out_dtype)
    assert config.slots >= 2


@given(
    shape=st.tuples(*[st.integers(1, 20000)] * 2),
    cluster=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]),
    sms=st.integers(8, 160),
)
def test_blocks_go_through_the_tiles_in_as_few_rounds(shape, cluster, sms):
    """In as many rounds as with a block for each SM, and with one block fewer in more."""
    config = MatmulConfig(cluster_m=cluster[0], cluster_n=cluster[1])
    size, blocks = config.cluster_size, config.resident_blocks(*shape, sms)
    tiles = math.prod(config.tiles(*shape))
    rounds = math.ceil(tiles / (sms // size * size))
    assert blocks % size == 0 and 1 <= blocks <= max(sms, size)
    assert math.ceil(tiles / blocks) == rounds
    assert blocks == size or math.ceil(tiles / (blocks - size)) > rounds


def test_default_configuration_is_as_large_as_leaves_no_multiprocessor_idle():
    shape = lambda *sizes: default_config(*sizes, HALF, HALF)
    large, few, small = shape(4096, 4096, 4096), shape(64, 8192, 8192), shape(1024, 1024, 1024)
    assert (large.tile_m, large.tile_n, large.form) == (128, 256, "chained")
    assert (few.tile_m, few.tile_n, few.form) == (64, 64, "specialized")
    assert (small.tile_m, small.tile_n, small.form) == (128, 64, "specialized")


# Lowered for a GPU that is not there: layouts, registers and copies, short of PTX.


def test_instructions_of_fewer_registers():
    """As ptxas has it; whether it is right for narrower tiles, compiling shows on the GPU."""
    MatmulConfig(192, 192, compute_threads=3, slots=2).check(HALF, HALF)
    assert MatmulConfig().smem_bytes(HALF, HALF) <= specs.SMEM_BYTES == 232_448


# On a Hopper GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposed_on_gpu(transpose_a, transpose_b):
    options = dict(transpose_a=transpose_a, transpose_b=transpose_b)
    a, b = factors(1088, 2112, 1152, HALF, **options)
    check_rows(matmul(a, b, **options), a, b, HALF, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "default"])
def test_configurations_on_gpu(name):
    """Many tiles for each block, and edges of all three axes."""
    config = CONFIGS[name]
    if config.form in ("persistent", "chained"):
        config = dataclasses.replace(config, blocks=None)
    for m, n, k in ((2048, 2048, 1024), (1000, 1088, 1152)):
        a, b = factors(m, n, k, BRAIN)
        check_rows(matmul(a, b, config=config), a, b, BRAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMS)
def test_operands_on_gpu(name):
    (m, n), config = (1000, 1088), dataclasses.replace(FORMS[name], tile_n=128)
    if config.form in ("persistent", "chained"):
        config = dataclasses.replace(config, blocks=None)
    (a, b), operands = factors(m, n, 512), epilogue_operands(m, n)
    out = matmul(a, b, config=config, epilogue=finish, operands=operands, out_dtype=FLOAT)
    check_close(out, finished(reference(a, b), operands), FLOAT)


def sharded(devices):
    """Rows of `a` on one device each and `b` on all; and K divided, the parts added up."""
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    deep = lambda a, b: jax.lax.psum(matmul(a, b, out_dtype=FLOAT), "x")
    return (
        jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")),
        jax.shard_map(deep, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P()),
    )


def check_shards(m, n, k, devices):
    (a, b), (rows, deep) = factors(m, n, k), sharded(devices)
    check_rows(jax.jit(rows)(a, b), a, b, HALF)
    check_rows(jax.jit(deep)(a, b), a, b, FLOAT)
    total = lambda a, b: jnp.sum(rows(a, b).astype(FLOAT))
    da, db = jax.jit(jax.grad(total, (0, 1)))(a, b)
    a64, b64 = (np.asarray(x).astype(np.float64) for x in (a, b))
    check_close(da, np.broadcast_to(b64.sum(1), a.shape), HALF)
    check_close(db, np.broadcast_to(a64.sum(0)[:, None], b.shape), HALF)


def test_shard_map():
    check_shards(17, 23, 29, devices=1)


@pytest.mark.both_jax
def test_shard_map_lowers():
    """With the kernel, and its gradients: they vary over the mesh as their shards do."""
    a, b = (jax.ShapeDtypeStruct(shape, HALF) for shape in ((1024, 2048), (2048, 768)))
    for product in sharded(devices=1):
        total = lambda a, b: jnp.sum(product(a, b).astype(FLOAT))
        traced = jax.jit(jax.grad(total, (0, 1))).trace(a, b)
        assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.gpu
def test_shard_map_on_two_gpus():
    if len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    check_shards(1024, 768, 2048, devices=2)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "dtype_b"), [(E4M3, E4M3), (E5M2, E4M3)])
def test_float8_on_gpu(dtype, dtype_b):
    a, b = factors(1024, 1024, 1024, dtype, transpose_b=True, dtype_b=dtype_b)
    check_rows(matmul(a, b, transpose_b=True), a, b, BRAIN, transpose_b=True)


@pytest.mark.gpu
def test_epilogue_on_gpu():
    a, b = factors(1024, 1024, 64)
    out = matmul(a, b, epilogue=lambda acc: jnp.tanh(acc / 8.0))
    expected = np.tanh(reference(a[:64], b) / 8.0)
    check_close(out[:64], expected, HALF)


def test_approximate_epilogue():
    """It is told to the kernel, and not to the gradients'."""
    a, b = factors(64, 128, 64)
    for approx_math in (False, True):
        product = functools.partial(
            matmul, config=ONE, epilogue=jnp.tanh, out_dtype=FLOAT, approx_math=approx_math
        )
        shown = str(jax.make_jaxpr(jax.value_and_grad(lambda a: product(a, b).sum()))(a))
        assert shown.count("approx_math=True") == approx_math


@pytest.mark.gpu
def test_approximate_epilogue_on_gpu():
    """`tanh.approx` is right to 2^-11 (PTX ISA), here to 2^-17; the other one is better."""
    a, b = factors(1024, 1024, 64)
    expected = np.tanh(reference(a[:64], b) / 8.0)
    errors = {}
    for approx_math in (False, True):
        out = matmul(
            a, b, epilogue=lambda acc: jnp.tanh(acc / 8.0), out_dtype=FLOAT, approx_math=approx_math
        )
        errors[approx_math] = np.abs(np.asarray(out[:64]) - expected).max()
    assert 2 * errors[False] < errors[True] < 2**-11


@pytest.mark.gpu
def test_vmap_and_gradients_on_gpu():
    a, b = factors(264, 320, 512, batch=(3,))
    for config in (None, MatmulConfig(cluster_m=2)):
        out = jax.vmap(lambda a: matmul(a, b, config=config))(a)
        check_close(out, np.stack([reference(x, b) for x in a]), HALF)
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            check_gradients(512, 320, 768, transpose_a, transpose_b)


@pytest.mark.gpu
def test_many_launches_agree():
    """A race would show as a difference, now and then."""
    a, b = factors(2048, 2048, 2048)
    first = matmul(a, b)
    assert all(bool(jnp.array_equal(matmul(a, b), first)) for _ in range(50))
