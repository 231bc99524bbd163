"""`grade`: each way in which an answer can fall short, and the right one."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope import verifying
from pipelib.kernels import attention
from pipelib.kernels.attention.config import AttentionConfig
from pipelib_book import asks, grade, grading

STEPS, ROWS, COLUMNS = 8, 64, 64
X = jnp.arange(STEPS * ROWS * COLUMNS, dtype=jnp.float32).reshape(ROWS, -1)


@pytest.fixture(autouse=True)
def interpreted():
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        yield


def adding(slots=1, added=1.0, reads=1, first=0):
    """An answer: `x + added`, by a pipeline, which may read from another column of tiles on."""

    def kernel(x_gmem, o_gmem):
        block = pl.BlockSpec((ROWS, COLUMNS), lambda k: (0, k))

        def body(_, x_smem, *others):
            others[-1][...] = x_smem[...] + added

        read = pl.BlockSpec((ROWS, COLUMNS), lambda k: (0, first + k))
        inputs = dict(in_specs=[read] * reads, max_concurrent_steps=slots)
        pipelib.emit_pipeline(body, grid=(STEPS,), out_specs=[block], **inputs)(
            *[x_gmem] * reads, o_gmem
        )

    return lambda x: plgpu.kernel(kernel, out_type=x, grid=(1,), grid_names=("i",))(x)


def copying(waits: bool, arrives: bool = True):
    """An answer by hand, which may lack the wait, or wait for what nobody starts."""

    def kernel(x_gmem, o_gmem, x_smem, landed):
        if arrives:
            plgpu.copy_gmem_to_smem(x_gmem, x_smem, landed)
        if waits:
            plgpu.barrier_wait(landed)
        plgpu.copy_smem_to_gmem(x_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    def scratch(x):
        return dict(x_smem=plgpu.SMEM(x.shape, jnp.float32), landed=plgpu.Barrier())

    return lambda x: plgpu.kernel(
        kernel, out_type=x, grid=(1,), grid_names=("i",), scratch_types=scratch(x)
    )(x)


def test_a_right_answer_passes():
    got = grade(adding(), X, expected=X + 1)
    assert got.passed
    exact = "Its result: relative error 0.0e+00, within 0e+00."
    assert str(got) == f"Passed.\n- The checker finds nothing.\n- {exact}"
    assert got._repr_markdown_().startswith("**Passed.**\n\n- The checker")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (copying(waits=False), "found a fault, so it was not run. race: "),
        (copying(waits=True, arrives=False), "found a fault, so it was not run. deadlock: "),
        (adding(added=2.0), "Its result is wrong: relative error "),
        (lambda x: x + 1, "It cannot be traced: ValueError: "),
        (lambda x: adding()(y), "It cannot be traced: NameError: name 'y' is not defined"),  # noqa: F821
        (
            lambda x: lax.fori_loop(0, 2, lambda i, y: y[None], adding()(x)),
            "but they differ: The input carry component loop_carry[1] has type float32[64,512] but",
        ),
        (lambda x: adding()(x)[:, 1:], "it is float32[64,511] where float32[64,512] is expected, "),
        (lambda x: (adding()(x),), "is expected."),
        (lambda x: adding()(x).at[0, 0].set(jnp.nan), "wrong: relative error nan, over 0e+00."),
    ],
    ids=["race", "deadlock", "wrong", "no kernel", "error", "two lines", "shape", "tree", "nan"],
)
def test_what_is_wrong_is_said(answer, said):
    one = X[:, :COLUMNS] if "not run" in said else X
    got = grade(answer, one, expected=one if "not run" in said else X + 1)
    assert not got.passed
    assert str(got).startswith("Not yet.\n- ")
    assert said in got.lines[-1]


def test_what_fails_to_run_is_said():
    def answer(x):
        if isinstance(x, jax.core.Tracer):
            return adding()(x)
        raise OSError("no GPU")

    assert grade(answer, X, expected=X + 1).lines[-1] == (
        'It cannot be run: OSError: no GPU, at `raise OSError("no GPU")`.'
    )


def test_a_faulty_answer_is_never_run():
    ran = []

    def answer(x):
        if not isinstance(x, jax.core.Tracer):
            ran.append(x)
        return copying(waits=False)(x)

    one = X[:, :COLUMNS]
    assert not grade(answer, one, expected=one).passed
    assert not ran


def test_a_finding_s_remedy_is_not_said():
    one = X[:, :COLUMNS]
    finding = pallascope.check(pallascope.trace(copying(waits=False), one))[0]
    assert "Call barrier_wait" in finding.remedy
    [line] = grade(copying(waits=False), one, expected=one).lines
    assert f"race: {finding.cause}" in line and finding.remedy not in line


def writes_again(idle=None, stores=True):
    """An answer that copies row by row, and at last writes to SMEM what nothing reads.

    With `idle`, only the block of this number does.
    """

    def kernel(x_gmem, o_gmem, o_smem):
        i = lax.axis_index("i")
        o_smem[...] = x_gmem[i]
        plgpu.commit_smem()
        if stores:
            plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[i])
            plgpu.wait_smem_to_gmem(0)
        else:
            o_gmem[i] = o_smem[...] + 1.0

        @pl.when(True if idle is None else i == idle)
        def again():
            o_smem[...] = x_gmem[i]

    return lambda x: plgpu.kernel(
        kernel,
        out_type=x,
        grid=(4,),
        grid_names=("i",),
        scratch_types=[plgpu.SMEM((128,), jnp.float32)],
    )(x)


@pytest.mark.parametrize("idle", [None, 0, 3])
def test_a_write_that_nothing_reads_does_no_harm(idle):
    x = jnp.arange(4.0 * 128).reshape(4, 128)
    got = grade(writes_again(idle), x, expected=x)
    said = "The checker finds only writes that nothing reads: they do no harm."
    assert got.passed and got.lines[0] == said, got


def test_a_wrong_result_has_the_write_that_nothing_reads():
    x = jnp.arange(4.0 * 128).reshape(4, 128)
    (line,) = grade(writes_again(stores=False), x, expected=x).lines
    assert line.startswith("Its result is wrong: "), line
    start = "The checker found a fault, which may be why. lost-store: "
    assert start in line and "nothing reads it before" in line, line
    assert line.count("lost-store") == 1 and "more finding" not in line, line


def test_other_faults_come_before_writes_that_nothing_reads(monkeypatch):
    x = jnp.arange(4.0 * 128).reshape(4, 128)
    check = verifying.check

    def with_a_resource(program, **options):
        (lost,) = check(program, **options)
        over = replace(lost, kind="resource", cause="It takes too much.")
        return pallascope.Report(program, (lost, over), ())

    monkeypatch.setattr(verifying, "check", with_a_resource)
    (line,) = grade(writes_again(), x, expected=x).lines
    start = "The checker found a fault, so it was not run. resource: It takes too much."
    assert line == f"{start} (1 more finding)", line


def test_a_store_that_is_never_waited_for_is_a_fault():
    def kernel(x_gmem, o_gmem, o_smem):
        o_smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem)

    x = jnp.ones((128,))
    answer = lambda x: plgpu.kernel(
        kernel, out_type=x, scratch_types=[plgpu.SMEM((128,), jnp.float32)]
    )(x)
    (line,) = grade(answer, x, expected=x).lines
    assert line.startswith("The checker found a fault, so it was not run. lost-store: "), line


def test_where_nothing_shows_what_a_line_gives_the_grade_is_printed(monkeypatch, capsys):
    monkeypatch.delattr(sys, "ps1", raising=False)
    got = grade(adding(), X, expected=X + 1)
    assert capsys.readouterr().out == f"{got}\n"
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    grade(adding(), X, expected=X + 1)
    assert capsys.readouterr().out == ""


def test_an_error_of_the_interpreter_s_threads_is_said_with_what_the_checker_noted(caplog):
    """The last phase of `done`, which nobody waits for: JAX 0.11's interpreter stops."""

    def kernel(x_gmem, o_gmem, done):
        for _ in range(2):
            plgpu.barrier_arrive(done)
            plgpu.barrier_wait(done)
        plgpu.barrier_arrive(done)
        o_gmem[...] = x_gmem[...]

    x = jnp.ones((ROWS, COLUMNS))
    answer = lambda x: plgpu.kernel(
        kernel, out_type=x, grid=(1,), grid_names=("i",), scratch_types=[plgpu.Barrier()]
    )(x)
    got = grade(answer, x, expected=x)
    if got.passed:
        pytest.skip("this JAX's interpreter does not mind")
    assert "It cannot be run: ValueError: When a barrier was deallocated, " in got.lines[-1]
    assert "completed up to phase" in got.lines[-1] and "Traceback" not in got.lines[-1]
    note = "The checker notes: nobody waits for the last 1 phase of `done`"
    assert note in got.lines[-1], got
    assert not caplog.records


def test_other_arrays_are_traced_checked_and_compared():
    wide = jnp.tile(X, (1, 2))
    got = grade(adding(), X, expected=X + 1, again=[((X + 1,), X + 2)])
    more = "Its result with arrays of (64, 512): relative error 0.0e+00, within 0e+00."
    assert got.passed and got.lines[-1] == more
    got = grade(adding(), X, expected=X + 1, again=[((wide,), wide + 1)])
    where = "Its result with arrays of (64, 1024) is wrong: relative error "
    assert not got.passed and got.lines[-1].startswith(where)

    def races_if_wide(x):
        return copying(waits=x.shape[1] == COLUMNS)(x) if len(x) == ROWS else x

    one, two = X[:, :COLUMNS], X[:, : 2 * COLUMNS]
    got = grade(races_if_wide, one, expected=one, again=[((two,), two)])
    said = "The checker found a fault with arrays of (64, 128), so it was not run. race: "
    assert not got.passed and got.lines[-1].startswith(said)
    got = grade(races_if_wide, one, expected=one, again=[((X[1:],), X[1:])])
    assert got.lines[-1].startswith("It cannot be traced with arrays of (63, 512): ")


def test_a_tolerance_and_trees():
    both = lambda x: dict(y=adding()(x))
    near = X + 1 + 1e-5 * np.linalg.norm(X) / X.size**0.5
    assert not grade(both, X, expected=dict(y=near)).passed
    got = grade(both, X, expected=dict(y=near), tolerance=1e-4)
    assert got.passed and ", within 1e-04." in got.lines[-1]


def test_another_kernel_that_cannot_be_traced_is_an_error():
    with pytest.raises(ValueError, match="kernel"):
        grade(adding(), X, expected=X + 1, asks=[asks.faster_than(lax.neg)])


def test_a_notebook_s_cells_are_named_as_such(monkeypatch):
    check, cell = verifying.check, "/".join(["", "tmp", "ipykernel_12", "345.py"])

    def of_a_cell(program, **options):
        report = check(program, **options)
        finding = replace(report[0], cause=f"It is read at {cell}:7.")
        return type(report)(program, (finding,), ())

    monkeypatch.setattr(verifying, "check", of_a_cell)
    one = X[:, :COLUMNS]
    [line] = grade(copying(waits=False), one, expected=one).lines
    assert "It is read at cell:7." in line


def starts_late(block):
    """An answer that copies row by row, and does not wait for the load in one of its blocks."""

    def kernel(x_gmem, o_gmem, x_smem, landed):
        i = lax.axis_index("i")
        plgpu.copy_gmem_to_smem(x_gmem.at[i], x_smem, landed)
        pl.when(i != block)(lambda: plgpu.barrier_wait(landed))
        plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[i])
        plgpu.wait_smem_to_gmem(0)

    scratch = dict(x_smem=plgpu.SMEM((128,), jnp.float32), landed=plgpu.Barrier())
    return lambda x: plgpu.kernel(
        kernel, out_type=x, grid=(4,), grid_names=("i",), scratch_types=scratch
    )(x)


def test_a_fault_in_one_block_is_found():
    x = jnp.arange(4.0 * 128).reshape(4, 128)
    assert grade(starts_late(block=9), x, expected=x).passed
    got = grade(starts_late(block=2), x, expected=x)
    assert "The checker found a fault, so it was not run. race: " in got.lines[0], got


def test_blocks_that_write_one_place_do_not_pass():
    """The same numbers, so that the result is right whichever block comes last."""

    def kernel(x_gmem, o_gmem):
        o_gmem[...] = x_gmem[...]

    answer = lambda x: plgpu.kernel(kernel, out_type=x, grid=(2,), grid_names=("i",))(x)
    x = jnp.ones((128,))
    (line,) = grade(answer, x, expected=x).lines
    assert "found a fault, so it was not run. race: `o_gmem` is written" in line


def test_what_the_interpreter_sees_of_a_race_fails_and_is_folded_away(monkeypatch, capsys):
    """Where the checker did not see it."""
    no_check = lambda program, strict: pallascope.Report(program)
    monkeypatch.setattr(verifying, "check", no_check)
    one = X[:, :COLUMNS]

    def answer(x):
        print("by hand")
        return copying(waits=False)(x)

    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        got = grade(answer, one, expected=one)
    assert got.lines[-1] == (
        "The interpreter reports a race: a read by `copy_smem_to_gmem`, and a write by"
        " `copy_gmem_to_smem`."
    )
    shown = got._repr_markdown_()
    assert "<summary>What the interpreter printed</summary><pre>RACE DETECTED" in shown
    printed = capsys.readouterr().out
    assert "by hand" in printed and "RACE DETECTED" not in printed


def test_several_kernels_are_not_graded():
    got = grade(lambda x: adding()(adding()(x)), X, expected=X + 2)
    assert got.lines == ("It calls 2 Mosaic GPU kernels: one is graded.",)


def test_what_jax_does_not_lower_does_not_pass():
    """The interpreter runs it."""

    def kernel(x_gmem, o_gmem, x_smem, landed):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, landed)
        plgpu.barrier_wait(landed)
        o_gmem[...] = x_smem[...]

    x = jnp.ones((384, 128))
    scratch = [plgpu.SMEM(x.shape, jnp.float32), plgpu.Barrier()]
    (line,) = grade(plgpu.kernel(kernel, out_type=x, scratch_types=scratch), x, expected=x).lines
    assert "not-lowered: JAX does not lower the kernel of tests/pipelib_book/test_grading" in line
    assert "<=256 elements along each dimension, got (384, 128)" in line
    assert line.endswith(" No GPU can run it, though the interpreter may.")


def test_an_error_of_jax_s_without_words_has_its_function():
    power = lambda x_gmem, o_gmem: o_gmem.__setitem__(..., x_gmem[...] ** 1)
    answer = lambda x: plgpu.kernel(power, out_type=x)(x)
    (line,) = grade(answer, jnp.ones((ROWS, COLUMNS)), expected=X[:, :COLUMNS]).lines
    assert "NotImplementedError: no words, raised in `_integer_pow_lowering_rule`. " in line


@pytest.mark.filterwarnings("ignore:Using pl.program_id")
def test_a_program_id_is_said_to_be_why_a_result_is_wrong():
    def kernel(x_gmem, o_gmem):
        rows = pl.ds(pl.program_id(0) * 32, 32)
        o_gmem[rows] = x_gmem[rows]

    answer = lambda x: plgpu.kernel(kernel, out_type=x, grid=(2,), grid_names=("i",))(x)
    x = X[:, :COLUMNS]
    line = grade(answer, x, expected=x).lines[-1]
    assert line.startswith("Its result is wrong: ")
    assert " It calls `pl.program_id`, which JAX's interpreter takes for 0 in each block, " in line


# Compiled.


def squared(x, operand=lambda a_smem: a_smem):
    """A product of 64 x 64 with itself, or of an operand from registers with it."""

    def kernel(x_gmem, o_gmem, a_smem, b_smem, barrier):
        plgpu.copy_gmem_to_smem(x_gmem, a_smem, barrier)
        plgpu.copy_gmem_to_smem(x_gmem, b_smem, barrier)
        plgpu.barrier_wait(barrier)

        def scope(acc):
            plgpu.wgmma(acc, operand(a_smem), b_smem)
            return acc[...]

        o_gmem[...] = pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    transforms = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    tile = plgpu.SMEM((64, 64), jnp.float16, transforms=transforms)
    out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    scratch = (tile, tile, plgpu.Barrier(num_arrivals=2))
    return plgpu.kernel(kernel, out_type=out, scratch_types=scratch)(x)


SQUARE = jnp.eye(64, dtype=jnp.float16)
UNIT = jnp.eye(64, dtype=jnp.float32)


@pytest.mark.parametrize("factor", [1, 2])
def test_an_operand_from_registers_is_interpreted(monkeypatch, factor):
    monkeypatch.setattr(grading, "lacking", lambda: "nothing is compiled here")
    whole = lambda a_smem: plgpu.layout_cast(factor * a_smem[...], plgpu.Layout.WGMMA)
    got = grade(lambda x: squared(x, whole), SQUARE, expected=UNIT, tolerance=1e-3)
    assert got.passed is (factor == 1), got


def test_products_that_ptxas_finds_fault_with_do_not_pass(monkeypatch):
    monkeypatch.setattr(grading, "lacking", lambda: None)
    monkeypatch.setattr(grading, "_faults", lambda *args: ("ptxas serializes products of it.",))
    got = grade(squared, SQUARE, expected=UNIT)
    assert not got.passed
    assert got.lines[-1] == "It is right, but it wastes time: ptxas serializes products of it."
    monkeypatch.setattr(grading, "_faults", lambda *args: ())
    assert grade(squared, SQUARE, expected=UNIT).passed


def test_what_fails_before_is_not_compiled(monkeypatch):
    monkeypatch.setattr(grading, "lacking", lambda: None)
    monkeypatch.setattr(grading, "_faults", None)
    refuses = lambda _: (False, "It is not what the task asks.")
    got = grade(squared, SQUARE, expected=UNIT, asks=[refuses])
    assert got.lines[-1] == "It is not what the task asks."


def test_without_a_compiler_nothing_is_said_of_it(monkeypatch):
    monkeypatch.setattr(grading, "lacking", lambda: "JAX's CUDA plugin is not installed.")
    monkeypatch.setattr(grading, "_faults", None)
    assert grade(squared, SQUARE, expected=UNIT).passed


@pytest.mark.compiler
@pytest.mark.usefixtures("traced_anew")
def test_serialized_products_are_found(monkeypatch):
    heads = jax.ShapeDtypeStruct((2, 512, 2, 128), jnp.float16)
    config = AttentionConfig(schedule="overlap", probabilities="registers", persistent=False)
    call = lambda *qkv: attention(*qkv, config=config)
    assert grading._faults(call, heads, heads, heads) == ()
    monkeypatch.setattr(AttentionConfig, "rounds_late", False)  # over a factor that is still read
    jax.clear_caches()  # or JAX would take the kernel that it has traced
    (fault,) = grading._faults(lambda *qkv: call(*qkv), heads, heads, heads)
    assert "ptxas serializes products" in fault
