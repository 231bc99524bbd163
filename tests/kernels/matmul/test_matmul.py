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
from pipelib.kernels.matmul.tuned import nearest_config
from pipelib_book.matmul_ladder import IDEAS, RUNGS
from tests.emitters.contract import interpreted
from tests.kernels.devices import NO_FORWARD_MODE, pretend
from tests.kernels.matmul.products import (
    ALONE,
    BRAIN,
    CLUSTER,
    E4M3,
    E5M2,
    FLOAT,
    HALF,
    MANY,
    ONE,
    RING,
    SHARED,
    TWO,
    check_close,
    factors,
    reference,
    uses_kernel,
)

ODD = MatmulConfig(64, 192, 64, slots=4, compute_threads=1, delay_release=2, order="m", blocks=1)
SQUARE = dataclasses.replace(ONE, cluster_m=2, cluster_n=2, blocks=4, form="persistent")
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


def finish(acc, residual, bias, scale, number):
    return jnp.maximum(acc * scale + bias, 0.0) * number + residual


def epilogue_operands(m, n):
    """A matrix, a row, a column and a number, of three dtypes."""
    draw = np.random.default_rng(m * n).standard_normal
    kinds = ((m, n), HALF), ((n,), FLOAT), ((m, 1), BRAIN), ((), FLOAT)
    return tuple(jnp.asarray(draw(shape), dtype) for shape, dtype in kinds)


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
    out = matmul(a, b, config=ONE, epilogue=lambda acc: acc + 1.0, **transposed)
    check_close(out, reference(a, b, **transposed) + 1.0, HALF)


# Traced and checked, and the arithmetic of what it takes.

CONFIGS = {
    "one": ONE,
    "two": TWO,
    "odd": ODD,
    "default": None,
    "large": MatmulConfig(256, 128, 64, slots=3, delay_release=2, epilogue_n=128),
    "three": MatmulConfig(192, 192, 64, slots=3, compute_threads=3),
    **FORMS,
    **{rung.name: rung.config for rung in RUNGS},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("transposed", [False, True])
def test_check_finds_nothing(config, transposed):
    m, n, k = 640, 768, 512
    options = dict(transpose_a=transposed, transpose_b=transposed)
    a, b = factors(m, n, k, **options)
    program = pallascope.trace(lambda a, b: matmul(a, b, config=config, **options), a, b)
    assert list(pallascope.check(program, strict=True)) == []
    config = config or nearest_config(m, n, k, HALF, out_dtype=HALF, **options)
    config = config or default_config(m, n, k, HALF, HALF)
    assert program.smem_bytes == config.smem_bytes(HALF, HALF)


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


@pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)
def test_check_finds_nothing_in_an_epilogue(config):
    """A staging slot of the residual is loaded again while others are read."""
    m, n = 640, 768
    config = dataclasses.replace(config, tile_n=256, slots=2, delay_release=1)
    (a, b), operands = factors(m, n, 512), epilogue_operands(m, n)
    fused = lambda *args: matmul(*args[:2], config=config, epilogue=finish, operands=args[2:])
    program = pallascope.trace(fused, a, b, *operands)
    assert list(pallascope.check(program, strict=True)) == []
    assert program.smem_bytes == config.smem_bytes(HALF, HALF, [HALF])


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


@pytest.mark.both_jax
@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((4096, 4096, 4096), HALF, {}),
        ((1000, 1088, 1152), BRAIN, {"out_dtype": FLOAT, "epilogue": jnp.tanh}),
        ((3, 4096, 4096), HALF, {"transpose_b": True}),
        ((192, 64, 64), HALF, BOTH),
        ((4096, 4096, 4096), E5M2, {"transpose_b": True}),
    ],
)
def test_lowers(shape, dtype, options):
    (m, n, k), transposed = shape, options.get("transpose_a", False)
    a = jax.ShapeDtypeStruct((k, m) if transposed else (m, k), dtype)
    b = jax.ShapeDtypeStruct((n, k) if options.get("transpose_b") else (k, n), dtype)
    traced = jax.jit(lambda a, b: matmul(a, b, **options)).trace(a, b)
    assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_threads": 4}, "compute_threads=4 is not 1 to 3, as form='chained' has."),
        (
            {"compute_threads": 3, "form": "ring"},
            "compute_threads=3 is not 1 to 2, as form='ring' has.",
        ),
        ({"compute_threads": 0}, "compute_threads=0 is not 1 to 3, as form='chained' has."),
        (
            {"tile_m": 192},
            "tile_m=192 is not a multiple of 64 x 2 rows = 128, which the compute threads divide.",
        ),
        (
            {"tile_n": 320},
            "tile_n=320 is not a multiple of 64 up to 256, the most columns of a wgmma.",
        ),
        ({"tile_k": 32}, "tile_k=32 is not a multiple of 64."),
        (
            {"epilogue_n": 192},
            "epilogue_n=192 is not a multiple of 64 that divides tile_n=256.",
        ),
        (
            {"slots": 2, "delay_release": 2},
            "delay_release=2 is not 0 to slots=2 - 1, so no slot would be loaded.",
        ),
        ({"blocks": 0}, "slots=4, width=8, splits=1 and blocks=0 are not all at least 1."),
        ({"slots": 33}, "slots=33 is over 32, the most barriers of one array."),
        ({"order": "k"}, "order='k' is not 'm' or 'n'."),
        ({"form": "loop"}, "form='loop' is none of ring, specialized, persistent, chained."),
        (
            {"cluster_m": 3},
            "cluster_m=3 and cluster_n=1 are not 1, 2 or 4, and at most 8 together, which a GPU"
            " schedules as a cluster.",
        ),
        (
            {"cluster_m": 4, "cluster_n": 4},
            "cluster_m=4 and cluster_n=4 are not 1, 2 or 4, and at most 8 together, which a GPU"
            " schedules as a cluster.",
        ),
        (
            {"form": "ring", "cluster_m": 2},
            "form='ring' has no memory thread, so cluster_m=2 x cluster_n=1 blocks could not tell"
            " each other which slots are free.",
        ),
        (
            {"form": "specialized", "blocks": 4},
            "form='specialized' has a block for each tile, so blocks=4 would leave some out.",
        ),
        ({"blocks": 3, "cluster_m": 2}, "blocks=3 is not a multiple of clusters of 2."),
    ],
)
def test_configuration_errors(options, message):
    with pytest.raises(ValueError) as error:
        MatmulConfig(**options)
    assert str(error.value) == f"MatmulConfig: {message}"


# A field, a value of another type, and that type's name; whole numbers, too.
@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("tile_m", 128.0, "float"), ("tile_n", "256", "str"), ("tile_k", None, "NoneType"),
        ("slots", 2.5, "float"), ("compute_threads", (2,), "tuple"), ("blocks", 2.0, "float"),
        ("delay_release", [1], "list"), ("width", "8", "str"), ("epilogue_n", 64.0, "float"),
        ("cluster_m", 2.0, "float"), ("cluster_n", {}, "dict"),
    ],
)  # fmt: skip
def test_configuration_types(field, value, kind):
    with pytest.raises(TypeError) as error:
        MatmulConfig(**{field: value})
    assert str(error.value) == (
        f"MatmulConfig: {field}={value!r} has type {kind}, but a kernel is compiled for it, so it"
        " must be an integer that is known before."
    )


def test_a_configuration_of_numpy_s_integers():
    fields = dataclasses.asdict(dataclasses.replace(CLUSTER, blocks=2))
    turned = {k: np.int64(v) if isinstance(v, int) else v for k, v in fields.items()}
    config = MatmulConfig(**turned)
    assert config == MatmulConfig(**fields)
    assert not any(isinstance(v, np.integer) for v in dataclasses.asdict(config).values())


def check_error(kind, message, a, b, **options):
    with pytest.raises(kind) as error:
        matmul(a, b, **options)
    assert str(error.value) == message


def test_too_little_shared_memory():
    check_error(
        ValueError,
        "MatmulConfig: slots of a 6 x 16,384 B + slots of b 6 x 32,768 B + staging 2 x 16,384 B +"
        " barriers 12 x 8 B = 327,776 B of shared memory, but a block has 232,448 B, so the kernel"
        " could not start.",
        *factors(64, 64, 64), config=MatmulConfig(slots=6),
    )  # fmt: skip
    assert MatmulConfig().smem_bytes(HALF, HALF) <= specs.SMEM_BYTES == 232_448


def test_too_few_registers():
    check_error(
        ValueError,
        "MatmulConfig: an accumulator of 128 x 256 takes 128 x 256 / 128 lanes = 256 registers of a"
        " lane, but each of 2 compute threads has 232, and needs some for the rest.",
        *factors(64, 64, 64), config=MatmulConfig(tile_m=256, slots=2),
    )  # fmt: skip


def test_too_few_registers_for_an_instruction():
    """As ptxas has it; whether it is right for narrower tiles, compiling shows on the GPU."""
    config = MatmulConfig(tile_m=192, compute_threads=3, slots=2)
    check_error(
        ValueError,
        "MatmulConfig: a wgmma of 64 x 256 takes 64 x 256 / 128 lanes + 26 = 154 registers of a"
        " lane, but a block of 4 threads begins with 128 for each, the most that ptxas gives an"
        " instruction, so it does not compile.",
        *factors(64, 64, 64), config=config,
    )  # fmt: skip
    dataclasses.replace(config, tile_n=192).check(HALF, HALF)


def test_half_a_swizzled_row():
    check_error(
        ValueError,
        "MatmulConfig: tile_k=64 of float8_e4m3fn is 64 x 1 = 64 B, not a multiple of the 128 B of"
        " a swizzled row.",
        *factors(64, 64, 64, E4M3, transpose_b=True), config=ONE, transpose_b=True,
    )  # fmt: skip


def test_shapes():
    a, b = factors(64, 32, 16)
    check_error(
        ValueError,
        "matmul: a (16, 32) with transpose_a=False has K = 32, and b (64, 16) with"
        " transpose_b=False has K = 64; they must be equal.",
        b, a,
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: a has shape (1, 64, 16) and b (16, 32), but both must have 2 axes; use jax.vmap"
        " for a batch.",
        a[None], b,
    )  # fmt: skip
    check_error(
        ValueError, "matmul: a (0, 16) or b (16, 32) is empty; M, N, K must be 1 or more.", a[:0], b
    )


def test_dtypes():
    a, b = factors(64, 64, 64)
    check_error(
        TypeError,
        "matmul: b is float32, but wgmma multiplies here float16, bfloat16, float8_e4m3fn,"
        " float8_e5m2.",
        a, b.astype(FLOAT),
    )  # fmt: skip
    check_error(
        TypeError,
        "matmul: a is float16 and b is bfloat16, but wgmma takes one dtype: cast one.",
        a, b.astype(BRAIN),
    )  # fmt: skip
    check_error(
        TypeError,
        "matmul: out_dtype=int32 is none of float16, bfloat16, float32, which it stores.",
        a, b, out_dtype=jnp.int32,
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: transpose_a=False and transpose_b=False in float8, but wgmma reads float8 only"
        " with K as the last axis of both: a [M, K], and b [N, K] with transpose_b=True.",
        a.astype(E4M3), b.astype(E4M3),
    )  # fmt: skip


def test_epilogues():
    a, b = factors(64, 64, 64)
    bias = jnp.ones(5)
    check_error(
        ValueError,
        "matmul: the epilogue makes ShapeDtypeStruct(shape=(3,), dtype=float32) of parts of shape"
        " (3, 5); it must work on each element alone and keep the shape.",
        a, b, epilogue=lambda acc: acc.sum(1),
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: the epilogue captures arrays of shapes [(5,)], which a kernel cannot read; pass"
        " them as operands=, or use numbers of Python.",
        a, b, epilogue=lambda acc: acc + bias,
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: 1 operands but no epilogue, which would use them.", a, b, operands=(a,)
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: operand 1 of the epilogue has shape (64, 5), but for an output of (64, 64) it must"
        " be (64, 64), (1, 64), (64,), (64, 1) or a number.",
        a, b, epilogue=finish, operands=(a, jnp.ones((64, 5))),
    )  # fmt: skip
    check_error(
        TypeError,
        "matmul: operand 0 of the epilogue is int32, but it reads float16, bfloat16, float32.",
        a, b, epilogue=jnp.add, operands=(jnp.int32(3),),
    )  # fmt: skip
    check_error(
        ValueError,
        "matmul: the epilogue makes ShapeDtypeStruct(shape=(1, 5), dtype=float32) of parts of shape"
        " (1, 1); it must work on each element alone and keep the shape.",
        a, b, epilogue=lambda acc: acc * jnp.arange(5.0),
    )  # fmt: skip
    wide = jnp.ones(64)
    check_error(
        ValueError,
        "matmul: the epilogue fails on the product and 0 operands, parts of shape (3, 5) each:"
        " Incompatible shapes for broadcasting: shapes=[(3, 5), (3, 5), (64,)]. It captures no"
        " arrays of the result's size: those come as operands=, of which it is given the parts.",
        a, b, epilogue=lambda acc: jnp.where(acc > 0.0, acc, wide),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"config": {"slots": 3}},
            "config={'slots': 3} has type dict, but a MatmulConfig says how it is divided.",
        ),
        (
            {"epilogue": "relu"},
            "epilogue='relu' has type str, but it is called while a kernel is traced: give a"
            " function.",
        ),
        (
            {"operands": 2.0},
            "operands=2.0 has type float, but the epilogue's operands come in a tuple or a list, a"
            " single one too.",
        ),
        (
            {"operands": ("bias",), "epilogue": jnp.add},
            "operands[0]='bias' has type str, but the epilogue reads arrays and numbers.",
        ),
        (
            {"out_dtype": 32},
            "out_dtype=32 has type int, but float16, bfloat16, float32 can be stored.",
        ),
    ],
)
def test_types(options, message):
    a, b = factors(64, 64, 64)
    check_error(TypeError, f"matmul: {message}", a, b, **options)


def test_factors_that_are_no_arrays():
    a, b = factors(64, 64, 64)
    message = "matmul: {} has type {}, but a kernel copies arrays: make one, with jnp.asarray."
    check_error(TypeError, message.format("a=[[1.0]]", "list"), [[1.0]], b)
    check_error(TypeError, message.format("b=None", "NoneType"), a, None)


def test_another_gpu(monkeypatch):
    pretend(monkeypatch, "NVIDIA A100", "8.0")
    check_error(
        ValueError,
        "matmul: NVIDIA A100 has compute capability 8.0, but wgmma needs 9.x, a Hopper GPU.",
        *factors(64, 128, 192),
    )


def test_forward_mode_is_refused_by_jax():
    a, b = factors(17, 64, 64)  # plain JAX computes it, with the kernel's rules
    with pytest.raises(TypeError) as error:
        jax.jvp(matmul, (a, b), (a, b))
    assert str(error.value) == NO_FORWARD_MODE


# On a Hopper GPU.


def check_rows(out, a, b, dtype, transpose_a=False, transpose_b=False, rows=64):
    """A sample of rows, the first and the last among them, against float64."""
    m = out.shape[0]
    sample = np.unique(np.linspace(0, m - 1, min(rows, m)).round().astype(int))
    a = np.asarray(a[:, sample] if transpose_a else a[sample])
    expected = reference(a, b, transpose_a, transpose_b)
    check_close(np.asarray(out)[sample], expected, dtype)


SHAPES = [
    (4096, 4096, 4096),
    (1000, 1088, 1152),
    (3, 4096, 4096),
    (16, 40, 24),
    (136, 320, 64),
    (136, 320, 8),
    (1000, 1000, 1000),
    (17, 4096, 4096),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_gpu(shape, dtype):
    a, b = factors(*shape, dtype)
    check_rows(matmul(a, b), a, b, dtype)


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
