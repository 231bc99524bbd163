"""`matmul` that makes the transposed product: interpreted, checked, compiled; on a GPU."""

import numpy as np
import pytest

import pallascope
from pipelib.kernels import MatmulConfig, matmul
from pipelib.kernels.hopper import Gpu, assumed
from tests.emitters.contract import interpreted
from tests.kernels.matmul.cases import SWAPPED, finish_swapped, operands_of, swapped_case
from tests.kernels.matmul.products import HALF, check_close, factors, reference, uses_kernel


@pytest.mark.parametrize("with_epilogue", [False, True])
@pytest.mark.parametrize("name", SWAPPED)
def test_interpreted(name, with_epilogue):
    sizes, config, stored = swapped_case(name)
    arrays = factors(*sizes, **stored)
    options = dict(stored, config=config)
    wanted = reference(*arrays, **stored)
    if with_epilogue:
        matrix, row, column = operands_of(sizes)
        options |= dict(epilogue=finish_swapped, operands=(matrix, row, column))
        wanted = wanted * np.asarray(column) + np.asarray(row) + np.asarray(matrix, np.float32)
    with interpreted():
        check_close(matmul(*arrays, **options), wanted, HALF)


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
