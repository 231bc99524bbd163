"""`matmul` of sizes that are no pieces, and of a divided K: traced, checked, compiled; on a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib import tiles
from pipelib.kernels import MatmulConfig, matmul
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.matmul.cases import BY_ROWS, finish_any
from tests.kernels.matmul.products import (
    ALONE,
    BRAIN,
    E4M3,
    FLOAT,
    HALF,
    ONE,
    check_close,
    factors,
    reference,
    uses_kernel,
)

T_B = dict(transpose_b=True)


@pytest.fixture
def on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


# Which arrays are copied by rows.

#: M, N, K, options, and whether the kernel makes the product with tiles of 64 x 128 x 64.
SIZES = [
    ((17, 128, 64), {}, True),  # a and the output, by rows
    ((64, 128, 72), {}, True),  # K of a
    ((64, 128, 24), {}, True),  # less than a piece
    ((64, 72, 64), {}, False),  # b has two pieces beside each other
    ((64, 72, 64), T_B, True),
    ((64, 72, 72), T_B, True),
    ((64, 128, 68), {}, False),  # rows of 136 bytes
    ((64, 128, 68), T_B, False),
    ((64, 66, 64), T_B, False),  # the output's rows
    ((17, 128, 64), {"out_dtype": FLOAT}, False),  # 64 columns are staged: two pieces
    ((17, 128, 64), {"transpose_a": True}, False),  # rows of 34 bytes
    ((24, 128, 24), {"transpose_a": True}, True),  # the tile has 64 rows
]


@pytest.mark.parametrize(("sizes", "options", "kernel"), SIZES, ids=str)
@pytest.mark.usefixtures("on_an_h200")
def test_which_sizes_the_kernel_takes(sizes, options, kernel):
    transposed = {key: value for key, value in options.items() if "transpose" in key}
    a, b = factors(*sizes, **transposed)
    config = dataclasses.replace(ALONE, tile_n=128)
    assert uses_kernel(a, b, config=config, **options) == kernel


@pytest.mark.parametrize(("sizes", "options", "kernel"), SIZES, ids=str)
def test_an_interpreter_has_no_two_refs_of_one_memory(sizes, options, kernel):
    """So there the fallback makes them, and makes them right; a GPU's configuration may stand."""
    transposed = {key: value for key, value in options.items() if "transpose" in key}
    a, b = factors(*sizes, **transposed)
    config = ALONE if kernel else None
    assert not uses_kernel(a, b, config=config, **options)
    with interpreted():
        out = matmul(a, b, config=config, **options)
    check_close(out, reference(a, b, **transposed), options.get("out_dtype", HALF))


@pytest.mark.usefixtures("on_an_h200")
def test_tiles_are_chosen_that_can_copy_b():
    for m in (1, 64, 4096):
        a, b = (jax.ShapeDtypeStruct(shape, BRAIN) for shape in ((m, 4096), (4096, 7688)))
        assert uses_kernel(a, b)


@pytest.mark.usefixtures("on_an_h200", "traced_anew")
def test_a_slot_that_is_loaded_by_rows_too_early_is_found(monkeypatch):
    """The check sees that both refs are of one memory."""
    from pipelib import ring

    monkeypatch.setattr(ring.Channel, "wait_until_released", lambda self, slot: None)
    a, b = factors(199, 200, 264, **T_B)
    call = lambda a, b: matmul(a, b, config=ALONE, transpose_b=True)
    kinds = {finding.kind for finding in pallascope.check(pallascope.trace(call, a, b))}
    assert "race" in kinds


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
def test_copies_by_rows_are_the_same_instructions():
    """A copy of a block is one instruction by rows as in pieces."""

    def loads(m, n, k):
        a, b = factors(m, n, k, **T_B)
        call = lambda a, b: matmul(a, b, config=ALONE, transpose_b=True)
        return pallascope.compiled(call, a, b).instructions["UTMALDG"]

    assert loads(199, 200, 248) == loads(192, 192, 256) > 0


# K in parts.


@pytest.mark.parametrize("splits", [2, 3])
@pytest.mark.parametrize("name", ["one", "two", "ring", "two threads", "alone", "persistent"])
def test_parts_of_k(name, splits):
    """Steps that do not divide by the parts, and rows that are no pieces in the parts."""
    config = dataclasses.replace(BY_ROWS[name], splits=splits)
    a, b = factors(5, 128, 320)
    assert uses_kernel(a, b, config=config)
    with interpreted():
        out = matmul(a, b, config=config)
    check_close(out, reference(a, b), HALF)


def test_parts_of_k_in_all_that_is_asked_of_a_product():
    config, (m, n, k) = dataclasses.replace(ALONE, splits=2), (64, 128, 256)
    a, b = factors(k, n, m, BRAIN)  # a is stored [K, M]
    a, b = a, factors(m, n, k, BRAIN, **T_B)[1]
    matrix, row = jnp.full((m, n), 2.0, FLOAT), jnp.arange(n, dtype=FLOAT)
    options = dict(
        config=config,
        epilogue=lambda acc, x, y: acc * x + y,
        operands=(matrix, row),
        out_dtype=FLOAT,
    )
    a = jnp.asarray(np.random.default_rng(0).standard_normal((k, m)).astype(np.float32), BRAIN)
    with interpreted():
        out = matmul(a, b, transpose_a=True, transpose_b=True, **options)
    check_close(out, 2 * reference(a, b, True, True) + np.arange(n), FLOAT)


def test_vmap_and_gradients_of_parts_of_k():
    config = dataclasses.replace(ONE, splits=2)
    a, b = factors(64, 64, 256, FLOAT, batch=(2,))
    a, b = a.astype(BRAIN), b.astype(BRAIN)
    call = lambda a: matmul(a, b, config=config, out_dtype=FLOAT)
    with interpreted():
        out = jax.jit(jax.vmap(call))(a)
        da = jax.grad(lambda a: call(a).sum())(a[0])
    for i in range(2):
        check_close(out[i], reference(a[i], b), FLOAT)
    whole = np.asarray(b).astype(np.float64).sum(1)
    check_close(da, np.broadcast_to(whole, a[0].shape), BRAIN)


def test_float8_in_parts_of_k():
    config = MatmulConfig(64, 64, 128, slots=2, compute_threads=1, form="specialized", splits=2)
    a, b = factors(64, 64, 512, E4M3, **T_B)
    with interpreted():
        out = matmul(a, b, config=config, transpose_b=True)
    check_close(out, reference(a, b, transpose_b=True), BRAIN)


def test_parts_of_k_are_staged_in_float32():
    """So the same tiles need more memory."""
    config = MatmulConfig(128, 256, 64, slots=4, epilogue_n=64)
    config.check(BRAIN, BRAIN)
    a, b = factors(128, 256, 1024, BRAIN)
    with pytest.raises(ValueError, match="staging 2 x 32,768 B"):
        matmul(a, b, config=dataclasses.replace(config, splits=2))


# On a GPU.

ODD_SIZES = [(1, 72, 136), (17, 4096, 4096), (35, 8192, 2048), (199, 264, 200), (1000, 3008, 1544),
             (2049, 1088, 3000), (4001, 4096, 1096)]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", ODD_SIZES, ids=str)
def test_any_size_on_gpu(sizes, transposed):
    a, b = factors(*sizes, BRAIN, transpose_b=transposed)
    check_close(
        matmul(a, b, transpose_b=transposed), reference(a, b, transpose_b=transposed), BRAIN
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_ROWS)
def test_configurations_by_rows_on_gpu(name):
    config = BY_ROWS[name]
    if config.form in ("persistent", "chained"):
        config = dataclasses.replace(config, blocks=None)
    m, n, k = 1009, 1096, 1032
    a, b = factors(m, n, k, BRAIN, **T_B)
    matrix = jnp.full((m, n), 2.0, BRAIN)
    assert uses_kernel(a, b, config=config, transpose_b=True)
    out = matmul(a, b, config=config, transpose_b=True, epilogue=finish_any, operands=(matrix,))
    check_close(out, reference(a, b, transpose_b=True) + 2.0, BRAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [2, 3, 8])
@pytest.mark.parametrize("name", ["one", "two", "ring", "two threads", "alone", "persistent"])
def test_parts_of_k_on_gpu(name, splits):
    config = dataclasses.replace(BY_ROWS[name], splits=splits)
    if config.form in ("persistent", "chained"):
        config = dataclasses.replace(config, blocks=None)
    a, b = factors(99, 512, 4104, BRAIN)
    check_close(matmul(a, b, config=config), reference(a, b), BRAIN)


# The memory itself.


def test_whole_pieces():
    assert tiles.whole_pieces((1, 1), FLOAT) == (8, 32)
    assert tiles.whole_pieces((9, 33), FLOAT) == (16, 64)
    assert tiles.has_pieces((16, 64), FLOAT)
    assert not tiles.has_pieces((9, 64), FLOAT)
    assert tiles.has_rows((9, 4), FLOAT)
    assert not tiles.has_rows((9, 3), FLOAT)
