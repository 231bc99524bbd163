"""What ptxas prints of a kernel, as recorded: registers, spills, remarks."""

import pytest

from pallascope.compiling import assembling
from tests.pallascope.compiling.results import SERIALIZED

# Of CUDA 13.0.
CLEAN = """\
ptxas info    : (C7519) warpgroup.arrive is injected in around line 211 by compiler to allow use of\
 registers in GMMA in function 'kernel_mosaic_gpu_kernel'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kernel_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for kernel_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 58 registers, used 16 barriers, 1 bytes smem
ptxas info    : Compile time = 104.968 ms
"""
SPILLS = """\
ptxas warning : Registers are spilled to local memory in function 'attention_dkv', 224 bytes spill\
 stores, 168 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attention_dkv' for 'sm_90a'
ptxas info    : Function properties for attention_dkv
    136 bytes stack frame, 224 bytes spill stores, 168 bytes spill loads
ptxas info    : Used 255 registers, used 16 barriers, 136 bytes cumulative stack size, 1 bytes smem
ptxas info    : Compile time = 115.624 ms
"""


def test_a_clean_report():
    found = assembling.report(CLEAN)
    assert (found.registers, found.stack, found.spill_stores, found.spill_loads) == (58, 0, 0, 0)
    (remark,) = found.warnings
    assert remark.startswith("(C7519) warpgroup.arrive is injected in around line 211")


def test_spills_are_numbers_and_a_warning():
    found = assembling.report(SPILLS)
    assert (found.registers, found.stack) == (255, 136)
    assert (found.spill_stores, found.spill_loads) == (224, 168)
    assert found.warnings == (
        "Registers are spilled to local memory in function 'attention_dkv', 224 bytes spill"
        " stores, 168 bytes spill loads",
    )


@pytest.mark.parametrize("kind", ["info    ", "warning "])
def test_serialized_products_are_a_warning(kind):
    """ptxas says it as information or as a warning, by its version."""
    assert assembling.report(f"ptxas {kind}: {SERIALIZED}\n{CLEAN}").warnings[0] == SERIALIZED


def test_a_report_in_other_words_is_refused():
    with pytest.raises(ValueError) as error:
        assembling.report("ptxas info : all is well\n")
    assert str(error.value) == (
        "ptxas printed no number of registers or of spilled bytes where others print them, so"
        " nothing is known of the kernel: use ptxas of CUDA 12.9 to 13.3. It printed: ptxas info :"
        " all is well\n"
    )


def test_what_ptxas_refuses_is_an_error_in_its_words(tmp_path, monkeypatch):
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text("#!/bin/sh\necho 'fatal   : Unsupported .version 9.0' >&2\nexit 255\n")
    ptxas.chmod(0o755)
    monkeypatch.setenv("PALLASCOPE_CUDA", str(tmp_path))
    with pytest.raises(ValueError) as error:
        assembling.assembled(".version 9.0", "add_one")
    assert str(error.value) == (
        "ptxas makes no machine code of add_one, so it cannot run: fatal   : Unsupported .version"
        " 9.0"
    )
