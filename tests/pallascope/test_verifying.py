"""`verify`: lowered, traced, checked and compared; what it says of what it did not look at."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope import failing, verifying
from pallascope.report import FindingKind
from pallascope.verifying import BlockChoice
from pipelib.kernels import attention, matmul, softmax
from pipelib_book.gallery import GALLERY
from tests.pallascope.copying import copies

S = jax.ShapeDtypeStruct
X = S((64, 128), jnp.float32)
TALL = S((384, 128), jnp.float32)


@pytest.fixture(autouse=True)
def no_ptxas(monkeypatch):
    """It takes seconds a kernel; one test asks it."""
    monkeypatch.setattr(verifying.compiling, "lacking", lambda: "not asked")


def summed(x):
    def cumulated(x, o):
        o[...] = jnp.cumsum(x[...])

    return plgpu.kernel(cumulated, out_type=x)(x)


def by_floats(x):
    def pipe(x, o):
        block = plgpu.BlockSpec((16, 128), lambda i: (i, 0))
        halves = plgpu.BlockSpec((16, 128), lambda i: (i / 1, 0))

        def body(_, x_smem, o_smem):
            o_smem[...] = x_smem[...]

        plgpu.emit_pipeline(body, grid=(4,), in_specs=[halves], out_specs=[block])(x, o)

    return plgpu.kernel(pipe, out_type=x)(x)


@pytest.mark.parametrize(
    ("kernel", "file", "x", "words"),
    [
        (
            copies(rows=384),
            "copying",
            S((384, 128), jnp.float32),
            "<=256 elements along each dimension",
        ),
        (copies(), "copying", S((64, 3), jnp.float32), ""),  # rows of 12 bytes
        (summed, "test_verifying", S((128,), jnp.float32), "Unimplemented primitive"),
        (by_floats, "test_verifying", X, "Unsupported index"),
    ],
)
def test_what_jax_does_not_lower_is_a_finding(kernel, file, x, words):
    """The trace takes each of them."""
    assert pallascope.check(pallascope.trace(kernel, x)).ok
    verdict = pallascope.verify(kernel, x)
    (finding,) = verdict.findings
    assert not verdict.ok and finding.kind is FindingKind.NOT_LOWERED and words in finding.cause
    start = f"JAX does not lower the kernel of tests/pallascope/{file}.py:"
    assert finding.cause.startswith(start) and " for Hopper: " in finding.cause
    assert f"not-lowered: {start}" in str(verdict)


def test_a_block_that_does_not_fit_is_told_once():
    verdict = pallascope.verify(copies(rows=512), S((512, 128), jnp.float32))
    assert [finding.kind for finding in verdict.findings] == ["resource"]


def test_what_was_traced_for_the_interpreter_is_lowered_for_a_gpu():
    x, kernel = np.ones((64, 128), np.float32), jax.jit(copies())
    with plgpu.force_gpu_interpret_mode():
        kernel(x)
        assert pallascope.verify(kernel, x).ok


def test_each_block_and_the_blocks_together():
    assert str(pallascope.verify(copies(), X)).splitlines() == [
        "copy: no finding in all 4 blocks of grid (4,), nor between them",
        verifying.UNCOMPILED,
    ]
    verdict = pallascope.verify(copies(reads=2), X)
    assert "race" in {finding.kind for finding in verdict.findings}
    assert "all 4 blocks of grid (4,) checked; 1 with findings" in str(verdict)
    verdict = pallascope.verify(copies(step=8), X)
    assert {finding.kind for finding in verdict.findings} == {"race", "unwritten-output"}
    assert str(verdict).endswith(
        "blocks of grid (4,) checked; none with findings, and between them"
    )


def test_all_kernels_of_a_function():
    verdict = pallascope.verify(lambda x: copies(step=8)(copies()(x)), X)
    assert [kernel.ok for kernel in verdict.kernels] == [True, False]
    assert not verdict.ok and str(verdict).count("blocks of grid (4,)") >= 2
    assert [kernel.name for kernel in verdict.kernels] == ["copy", "copy (2)"]
    assert "copy (2): all 4 blocks of grid (4,) checked" in str(verdict)
    (second,) = pallascope.verify(lambda x: copies(step=8)(copies()(x)), X, call=1).kernels
    assert not second.ok


def test_the_same_fault_of_many_blocks_is_told_once():
    hazard = GALLERY["missing-commit"]
    args = hazard.arguments(np.random.default_rng(0), 1)
    one = pallascope.verify(functools.partial(hazard.kernel, fixed=False), *args)
    assert str(one) == str(pallascope.check(hazard.program(fixed=False)))

    def store(x, o, s):
        s[...] = x[pl.ds(lax.axis_index("i") * 16, 16)]
        plgpu.copy_smem_to_gmem(s, o.at[pl.ds(lax.axis_index("i") * 16, 16)])
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((16, 128), jnp.float32)]
    kernel = plgpu.kernel(store, out_type=X, grid=(4,), grid_names=("i",), scratch_types=scratch)
    text = str(pallascope.verify(kernel, X))
    assert text.count("missing-commit: ") == 1 and "4 with findings" in text


@pytest.mark.parametrize("grid", [(), (1,), (32,), (4, 8), (33,), (7, 5), (2, 2, 9), (100, 1, 64)])
def test_which_blocks_are_all(grid):
    found = BlockChoice.ALL.of(grid)
    every = [*itertools.product(*map(range, grid))]
    assert found[0] == every[0] and found[-1] == every[-1] and len(found) == len({*found})
    if len(every) <= verifying.MOST_BLOCKS:
        assert found == every
        return
    assert len(found) <= 27 and {*found} <= {*every}
    for axis, size in enumerate(grid):
        assert {block[axis] for block in found} == {0, size // 2, size - 1}


def test_other_choices_of_blocks():
    assert BlockChoice.DIAGONAL.of(()) == [()]
    assert BlockChoice.DIAGONAL.of((1, 1)) == [(0, 0)]
    assert BlockChoice.DIAGONAL.of((2, 1)) == [(0, 0), (1, 0)]
    assert BlockChoice.FIRST.of((4, 3)) == [(0, 0)]
    wrong = copies(reads=1)
    assert pallascope.verify(wrong, X, blocks="first").ok
    assert not pallascope.verify(wrong, X, blocks=[(1,)]).ok
    assert not pallascope.verify(wrong, X, blocks="together").ok
    (kernel,) = pallascope.verify(wrong, X, blocks=[(9,)]).kernels
    assert "is not in the grid" in kernel.refusal and not kernel.ok


def test_what_is_left_out_is_said(monkeypatch):
    (kernel,) = pallascope.verify(copies(), X, seconds=1e-9).kernels
    assert len(kernel.reports) == 1 and kernel.ok
    assert kernel.unseen == "3 blocks of copy, for which there was no time"
    monkeypatch.setattr(verifying, "MOST_OPS", 1)
    (kernel,) = pallascope.verify(copies(), X).kernels
    assert str(kernel).endswith("not looked at: 3 blocks of copy, for which there was no room")


def test_a_kernel_that_cannot_be_traced_does_not_stop_the_others():
    def undecided(x, o):
        pl.when(x[0, 0] > 0)(lambda: o.__setitem__(..., x[...]))

    verdict = pallascope.verify(lambda x: copies(step=8)(plgpu.kernel(undecided, out_type=X)(x)), X)
    first, second = verdict.kernels
    assert "depends on what a tensor holds" in first.refusal and not first.reports
    assert second.findings and not verdict.ok
    assert "undecided: not checked: tests/pallascope/test_verifying.py:" in str(verdict)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (dict(blocks="every"), ValueError, "'every' is not a choice of blocks"),
        (dict(max_steps=0), ValueError, "max_steps=0 is less than 1"),
        (dict(max_steps="3"), TypeError, "verify takes an integer for max_steps="),
        (dict(call=1), ValueError, "call=1 is not one of them"),
        (dict(seconds=0), ValueError, "seconds=0 is not above 0, so no block could begin"),
        (dict(seconds=float("nan")), ValueError, "seconds=nan is not above 0"),
    ],
)
def test_what_is_wrong_is_said(options, kind, text):
    with pytest.raises(kind, match="verify: " if "seconds" in options else None) as error:
        pallascope.verify(copies(), X, **options)
    assert text in str(error.value)


def test_a_function_without_a_kernel():
    with pytest.raises(ValueError) as error:
        pallascope.verify(jnp.sin, X)
    assert str(error.value) == (
        "verify: the function calls no Mosaic GPU kernel, so there is nothing to look at: pass one"
        " that calls plgpu.kernel(...); or, if it calls one on a GPU only, as pipelib's own do for"
        ' some shapes, ask within `with pipelib.target("9.0"):`.'
    )


def test_what_ptxas_says_costs_time_and_is_no_fault(monkeypatch):
    class Spilling:
        faults = ("copy spills.",)

    monkeypatch.setattr(verifying.compiling, "lacking", lambda: None)
    monkeypatch.setattr(verifying, "compiled_call", lambda call: Spilling)
    verdict = pallascope.verify(copies(), X)
    assert verdict.ok and verdict.kernels[0].compiled == ("copy spills.",)
    assert "slow: copy spills." in str(verdict)
    assert pallascope.verify(copies(), X, compiler=False).kernels[0].compiled is None
    assert pallascope.verify(copies(step=8), X).kernels[0].compiled is None  # faulty: not asked


def test_what_the_compiler_refuses_is_said_and_is_no_finding(monkeypatch):
    """It may be of another age than the GPU that the kernel is for."""

    def refuses(call):
        raise ValueError("JAX's compiler made no PTX of copy")

    monkeypatch.setattr(verifying.compiling, "lacking", lambda: None)
    monkeypatch.setattr(verifying, "compiled_call", refuses)
    verdict = pallascope.verify(copies(), X)
    assert verdict.ok and verdict.kernels[0].compiled is None
    assert "not looked at: what ptxas makes of it: JAX's compiler made no PTX of" in str(verdict)


@pytest.mark.compiler
def test_ptxas_is_asked(monkeypatch):
    monkeypatch.undo()
    (kernel,) = pallascope.verify(copies(), X).kernels
    assert kernel.compiled == ()


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (softmax, [S((4096, 512), jnp.float32)]),
        (matmul, [S((1024, 1024), jnp.bfloat16)] * 2),
        (functools.partial(attention, causal=True), [S((1, 1024, 2, 128), jnp.bfloat16)] * 3),
    ],
)
def test_pipelib_s_kernels_are_clean(function, args):
    assert pallascope.verify(function, *args).ok


def test_a_kernel_for_another_gpu_is_lowered_for_it():
    block = pl.BlockSpec((16, 128), lambda i: (i, 0))

    def body(_, x_smem, o_smem):
        o_smem[...] = x_smem[...] + 1.0

    def add_one(x):
        pipeline = pipelib.emit_pipeline(body, grid=(4,), in_specs=[block], out_specs=[block])
        return plgpu.kernel(pipeline, out_type=x)(x)

    with pipelib.target("8.0"):
        assert pallascope.verify(add_one, X).ok


def test_what_a_gpu_runs_is_verified_and_predicted_on_a_cpu():
    """Rows of 2,000 bytes: the interpreter has no copies of them, so XLA multiplies on a CPU."""
    a = S((1000, 1000), jnp.bfloat16)
    with pytest.raises(ValueError, match=r'within `with pipelib\.target\("9\.0"\):`'):
        pallascope.verify(matmul, a, a)
    q = S((1, 512, 2, 128), jnp.bfloat16)
    total = lambda *qkv: attention(*qkv).astype(jnp.float32).sum()
    on_cpu = pallascope.predict(attention, q, q, q).us
    with pipelib.target("9.0"):
        assert pallascope.verify(matmul, a, a).ok
        assert len(pallascope.verify(jax.grad(total), q, q, q).kernels) > 1
        assert pallascope.predict(matmul, a, a).us > 0.0
        assert pallascope.predict(attention, q, q, q).us < on_cpu


# ---- Errors of the caller's code -----------------------------------------------------------------


def test_an_error_has_the_caller_s_file_and_line():
    with pytest.raises(TypeError) as error:
        pallascope.verify(lambda x: copies()(x) + "a", X)
    said = failing.in_words(error.value)
    assert said.startswith("tests/pallascope/test_verifying.py:")
    assert ": TypeError: unsupported operand type(s) for +" in said
    assert not failing.is_ours(error.value)


@pytest.mark.parametrize(("file", "is_ours"), [(verifying.__file__, True), (__file__, False)])
def test_a_fault_of_pallascope_s_own_is_raised(monkeypatch, file, is_ours):
    code: dict = {}
    exec(compile("def fails(*_, **__): return {}['nothing']", file, "exec"), code)
    monkeypatch.setattr(verifying.Tracer, "program", code["fails"])
    if is_ours:
        with pytest.raises(KeyError):
            pallascope.verify(copies(), X)
        return
    (kernel,) = pallascope.verify(copies(), X).kernels
    assert kernel.refusal == "tests/pallascope/test_verifying.py:1: KeyError: 'nothing'"
