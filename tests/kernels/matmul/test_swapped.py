"""`matmul` that makes the transposed product: interpreted, checked, compiled; on a GPU."""

import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from pipelib.kernels import MatmulConfig, matmul
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.matmul.products import (
    FLOAT,
    HALF,
    check_close,
    factors,
    reference,
    uses_kernel,
)

#: M, N, K, a configuration, and how the factors are stored.
CASES = {
    "few rows": ((24, 128, 320), dict(tile_m=64, tile_n=24, compute_threads=1, epilogue_n=24), {}),
    "two tiles of rows": ((40, 256, 256), dict(tile_m=128, tile_n=24, epilogue_n=8), {}),
    "K in parts": (
        (144, 256, 512),
        dict(tile_m=128, tile_n=72, slots=2, compute_threads=1, epilogue_n=72, splits=2,
             form="specialized"), {},
    ),
    "a [K, M]": ((128, 192, 256), dict(tile_m=128, tile_n=64, slots=2), dict(transpose_a=True)),
    "b [N, K]": ((64, 256, 256), dict(tile_m=128, tile_n=64, slots=2), dict(transpose_b=True)),
}  # fmt: skip


def case(name):
    """The sizes, the configuration, and the options of a case."""
    sizes, fields, stored = CASES[name]
    return sizes, MatmulConfig(**dict(slots=3, swapped=True) | fields), stored


def finish(acc, matrix, row, column):
    return acc * column + row + matrix


def operands_of(sizes):
    """A matrix, a row and a column for `finish`."""
    rng, (m, n, _) = np.random.default_rng(1), sizes
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    return draw(m, n).astype(HALF), draw(n), draw(m, 1)


@pytest.mark.parametrize("with_epilogue", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name, with_epilogue):
    sizes, config, stored = case(name)
    arrays = factors(*sizes, **stored)
    options = dict(stored, config=config)
    wanted = reference(*arrays, **stored)
    if with_epilogue:
        matrix, row, column = operands_of(sizes)
        options |= dict(epilogue=finish, operands=(matrix, row, column))
        wanted = wanted * np.asarray(column) + np.asarray(row) + np.asarray(matrix, np.float32)
    with interpreted():
        check_close(matmul(*arrays, **options), wanted, HALF)


@pytest.mark.parametrize("name", CASES)
def test_check_finds_nothing(name):
    sizes, config, stored = case(name)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        function = lambda a, b, *operands: matmul(
            a, b, config=config, epilogue=finish, operands=operands, **stored
        )
        program = pallascope.trace(function, *factors(*sizes, **stored), *operands_of(sizes))
    assert all(finding.kind == "note" for finding in pallascope.check(program, strict=True))


#: Tiles of more than one piece of the columns of b [K, N], of which each thread has one.
WIDE = {
    "two threads": MatmulConfig(128, 136, 64, 3, 2, swapped=True, epilogue_n=136),
    "three": MatmulConfig(192, 104, 64, 3, 3, swapped=True, epilogue_n=104),
    "K in parts": MatmulConfig(
        128, 72, 64, 3, 2, swapped=True, epilogue_n=72, splits=3, form="specialized"
    ),
    "persistent": MatmulConfig(128, 72, 64, 3, 2, swapped=True, epilogue_n=72, form="persistent"),
}


@pytest.mark.parametrize("config", WIDE.values(), ids=WIDE)
def test_each_thread_has_a_piece_of_b(config):
    arrays = factors(272, 264, 520)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        program = pallascope.trace(lambda a, b: matmul(a, b, config=config), *arrays)
    assert all(finding.kind == "note" for finding in pallascope.check(program, strict=True))


@pytest.mark.parametrize("n", [256, 264])
@pytest.mark.parametrize(("tile_k", "delay_release"), [(256, 0), (256, 1), (512, 1)])
def test_rows_in_pieces_along_k(n, tile_k, delay_release):
    """Of rows that are no multiple of 8, each piece of a step has its own copy and product.

    Of 8 products in a step, a wait leaves 7 running: more it cannot.
    """
    config = MatmulConfig(
        64, 40, tile_k, 2, 1, swapped=True, epilogue_n=40, delay_release=delay_release
    )
    arrays = factors(35, n, 1032)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        program = pallascope.trace(lambda a, b: matmul(a, b, config=config), *arrays)
    assert all(finding.kind == "note" for finding in pallascope.check(program, strict=True))


def test_a_thread_of_two_pieces_cannot_copy_b():
    config = MatmulConfig(256, 72, 64, 3, 2, swapped=True, epilogue_n=72)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        assert not uses_kernel(*factors(272, 264, 520), config=config)


@pytest.mark.compiler
def test_few_rows_compile_without_spills():
    arrays = factors(35, 8192, 8192)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        found = pallascope.compiled(matmul, *arrays)
    assert found.spill_stores == 0 and "HGMMA" in found.instructions


def test_columns_of_a_tile_are_a_multiple_of_8():
    with pytest.raises(ValueError, match="tile_n=12 is not a multiple of 8 up to 256"):
        MatmulConfig(tile_n=12, epilogue_n=12, swapped=True)
    with pytest.raises(ValueError, match="tile_n=24 is not a multiple of 64 up to 256"):
        MatmulConfig(tile_n=24, epilogue_n=24)
    with pytest.raises(ValueError, match="epilogue_n=16 is not a multiple of 8 that divides"):
        MatmulConfig(tile_n=24, epilogue_n=16, swapped=True)


@pytest.mark.gpu
@pytest.mark.parametrize("out_dtype", [HALF, FLOAT])
@pytest.mark.parametrize("name", CASES)
def test_on_gpu(name, out_dtype):
    (m, n, k), config, stored = case(name)
    arrays = factors(m, n, 4 * k, **stored)
    out = matmul(*arrays, config=config, out_dtype=out_dtype, **stored)
    check_close(out, reference(*arrays, **stored), out_dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WIDE)
def test_pieces_of_b_on_gpu(name):
    arrays = factors(1272, 1288, 2072)
    check_close(matmul(*arrays, config=WIDE[name]), reference(*arrays), HALF)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [4096, 4040])
@pytest.mark.parametrize("m", [1, 5, 24, 35, 72, 279, 534])
def test_few_rows_on_gpu(m, n):
    arrays = factors(m, n, 2056)
    check_close(matmul(*arrays), reference(*arrays), HALF)
