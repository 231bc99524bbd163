"""Kernels that are really compiled, by JAX's plugin, ptxas and nvdisasm; no GPU needed."""

import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.compiling import compiled_all
from pipelib.kernels import attention, matmul
from pipelib.kernels.attention.config import AttentionConfig
from tests.pallascope import kernels
from tests.pallascope.kernels import add_one, like

SQUARE = like(4096, 4096)
HEADS = like(2, 512, 2, 128)
TWICE = lambda x: add_one(add_one(x))


@pytest.mark.compiler
def test_a_product():
    found = pallascope.compiled(matmul, SQUARE, SQUARE)
    assert found.kernel == "_block" and found.ok and found.serialized == ()
    # The most that a block of 384 lanes leaves each; threads move some of them later.
    assert found.registers == 168
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
    assert ".target sm_90a" in found.ptx and "HGMMA" in found.sass
    # A loop of the memory thread, and one of the compute threads, which share their code.
    loads, products = sorted(found.loops, key=lambda loop: loop.instructions["HGMMA"])
    assert loads.instructions["UTMALDG"] > 0 == loads.instructions["HGMMA"]
    # 64 of K are 4 products; the epilogue is not in the loop.
    assert (products.instructions["HGMMA"], products.instructions["STSM"]) == (4, 0)
    assert products.instructions["UTMALDG"] == 0 < products.instructions["SYNCS"]
    assert products.instructions["all"] < found.instructions["all"]
    assert products.line.partition(":")[0].endswith(".py")


@pytest.mark.compiler
@pytest.mark.usefixtures("traced_anew")
def test_a_product_whose_factor_is_written_over_is_serialized(monkeypatch):
    """So attention rounds the next probabilities late: these registers are still read."""
    config = AttentionConfig(schedule="overlap", persistent=False)
    call = lambda *qkv: attention(*qkv, config=config)
    assert pallascope.compiled(call, HEADS, HEADS, HEADS).ok
    monkeypatch.setattr(AttentionConfig, "rounds_late", False)
    jax.clear_caches()  # or JAX would take the kernel that it has traced
    found = pallascope.compiled(lambda *qkv: call(*qkv), HEADS, HEADS, HEADS)
    (remark,) = found.serialized
    assert "C7513" in remark and remark in found.faults[0] and not found.ok


@pytest.mark.compiler
def test_one_of_several_kernels_and_all():
    first, second = compiled_all(TWICE, like(256, 64))
    assert second.kernel == f"{first.kernel} (2)"
    assert first.instructions == second.instructions
    assert pallascope.compiled(TWICE, like(256, 64), call=1).instructions == first.instructions


@pytest.mark.compiler
def test_a_kernel_without_arguments():
    """No argument says where it runs."""

    def kernel(o):
        o[...] = plgpu.layout_cast(jnp.ones(128, jnp.float32), plgpu.Layout.WG_STRIDED((128,), 1))

    found = pallascope.compiled(kernels.of(kernel, like(128, dtype=jnp.float32)))
    assert found.ok and found.instructions["STG"] > 0


@pytest.mark.compiler
def test_interpreted_by_default_is_compiled_all_the_same():
    with plgpu.force_gpu_interpret_mode():
        assert pallascope.compiled(add_one, like(256, 64)).instructions["UTMASTG"] == 1


@pytest.mark.compiler
def test_what_jax_does_not_compile_is_an_error_in_its_words():
    def kernel(x, o, scratch):
        o[...] = scratch[:64, :64]

    large = plgpu.kernel(
        kernel, out_type=like(64, 64), scratch_types=[plgpu.SMEM((1024, 1024), jnp.float16)]
    )
    with pytest.raises(ValueError) as error:
        pallascope.compiled(large, like(64, 64))
    assert str(error.value).startswith(
        "JAX does not lower kernel for Hopper, so there is nothing to compile: ValueError: "
    )
    assert "2097152" in str(error.value)


@pytest.mark.compiler
def test_what_the_process_says_if_it_prints_no_ptx(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ValueError) as error:
        pallascope.compiled(add_one, like(256, 64))
    assert str(error.value) == (
        "JAX's compiler made no PTX of kernel, so nothing is known of it: it printed nothing"
    )


def test_several_kernels_or_none_are_refused():
    with pytest.raises(ValueError) as error:
        pallascope.compiled(TWICE, like(256, 64))
    assert str(error.value) == (
        "The function calls 2 Mosaic GPU kernels, but one is compiled: say which with call=0 to"
        " call=1."
    )
    with pytest.raises(ValueError, match="calls 0 Mosaic GPU kernels, but one is compiled: pass a"):
        next(compiled_all(jnp.sin, like(8)))


def test_what_is_no_function_or_no_kernel_of_mosaic_gpu_is_refused():
    with pytest.raises(TypeError, match="compiled takes a function, not a value of type int: give"):
        pallascope.compiled(3)
    call = pl.pallas_call(lambda x, o: None, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(NotImplementedError, match=r"a pl\.pallas_call"):
        pallascope.compiled(call, like(8, dtype=jnp.float32))
