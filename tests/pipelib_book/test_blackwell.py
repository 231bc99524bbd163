"""`pipelib_book.blackwell`: kernels for Blackwell, interpreted and lowered."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib_book as book
from pallascope import verifying
from pipelib_book import blackwell, blackwell_ladder

TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
X = jnp.ones((128, 64), jnp.float16)
Y = jnp.ones((64, 64), jnp.float16)
PRODUCT = X.astype(jnp.float32) @ Y.astype(jnp.float32)


def product(waits, begins, change, a_gmem, b_gmem, o_gmem, a_smem, b_smem, o_smem, acc, *barriers):
    produced, finished = barriers
    plgpu.copy_gmem_to_smem(a_gmem, a_smem, produced)
    plgpu.copy_gmem_to_smem(b_gmem, b_smem, produced)
    plgpu.barrier_wait(produced)
    plgpu.tcgen05_mma(acc, a_smem, b_smem, finished, accumulate=not begins)
    if waits:
        plgpu.barrier_wait(finished)
    if change is None:
        o_smem[...] = plgpu.async_load_tmem(acc)
    else:
        o_smem[...] = change(plgpu.async_load_tmem(acc))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem)
    plgpu.wait_smem_to_gmem(0)
    if not waits:
        plgpu.barrier_wait(finished)


def kernel(waits=True, begins=True, change=None):
    def tiled(*shape):
        return plgpu.SMEM(shape, jnp.float16, transforms=TILED)

    return plgpu.kernel(
        functools.partial(product, waits, begins, change),
        out_type=jax.ShapeDtypeStruct((128, 64), jnp.float32),
        scratch_types=[
            tiled(128, 64),
            tiled(64, 64),
            plgpu.SMEM((128, 64), jnp.float32),
            plgpu.TMEM((128, 64), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(orders_tensor_core=True),
        ],
    )


def test_a_right_kernel_passes_and_is_lowered():
    grade = blackwell.grade(kernel(), X, Y, expected=PRODUCT, tolerance=1e-6)
    assert grade.lines[:2] == ("The checker finds nothing.", "The interpreter reports no race.")
    assert grade.passed and grade.lines[-2] == "JAX lowers it for a GPU."
    assert grade.lines[-1] == "Its kernel makes the result, of the arguments."
    assert (blackwell.run(kernel(), X, Y) == PRODUCT).all()
    names = blackwell.instructions(kernel(), X, Y)
    assert {"`tcgen05.mma`", "`tcgen05.ld`"} <= {*names.split(", ")}


def test_what_xla_or_a_refused_primitive_makes_fails():
    def added(a, b):
        return kernel()(a, b) + 1.0

    grade = blackwell.grade(added, X, Y, expected=PRODUCT + 1.0, tolerance=1e-6)
    assert not grade.passed and "XLA does `add` beside the kernel" in grade.lines[-1]
    grade = blackwell.grade(
        kernel(), X, Y, expected=PRODUCT, tolerance=1e-6, without=("async_load",)
    )
    assert not grade.passed and "computes `async_load` of a tile" in grade.lines[-1]


def test_what_the_checker_finds_is_not_run(monkeypatch):
    """So an answer that waits for ever does not wait here."""
    monkeypatch.setattr(blackwell, "interpret", None)
    for answer, fault in ((kernel(waits=False), "race"), (kernel(begins=False), "uninitialized")):
        grade = blackwell.grade(answer, X, Y, expected=PRODUCT, tolerance=1e-6)
        assert not grade.passed
        assert grade.lines[0].startswith(f"The checker found a fault, so it was not run. {fault}")


@pytest.fixture
def no_check(monkeypatch):
    """The interpreter's verdict alone, as where the checker did not see a fault."""
    monkeypatch.setattr(verifying, "check", lambda program, strict: pallascope.Report(program))


def test_a_race_is_told_by_its_lines_and_fails(no_check):
    ((one, other),) = blackwell.interpret(kernel(waits=False), X, Y).races
    assert re.match(r"read  o_smem\[\.\.\.\] = plgpu\.async_load_tmem", one)
    assert re.match(r"write plgpu\.tcgen05_mma", other)
    grade = blackwell.grade(kernel(waits=False), X, Y, expected=PRODUCT, tolerance=1e-6)
    accesses = "a read by `async_load_tmem`, and a write by `tcgen05_mma`"
    assert not grade.passed
    assert grade.lines[1:] == (f"The interpreter reports a race: {accesses}.",)
    with pytest.raises(AssertionError, match="async_load_tmem"):
        blackwell.run(kernel(waits=False), X, Y)


def test_sums_that_nobody_set_are_a_wrong_result(no_check):
    grade = blackwell.grade(kernel(begins=False), X, Y, expected=PRODUCT, tolerance=1e-6)
    assert not grade.passed and grade.lines[1] == "The interpreter reports no race."
    assert "wrong" in grade.lines[2]


def test_a_kernel_that_stops_fails_in_a_sentence(capsys):
    def half(a, b):
        return kernel()(a[:64], b)

    grade = blackwell.grade(half, X, Y, expected=PRODUCT, tolerance=1e-6)
    assert not grade.passed and len(grade.lines) == 1
    assert grade.lines[0].startswith("It cannot be traced: ")
    assert capsys.readouterr().out == f"{grade}\n"


def test_races_are_shown(capsys):
    blackwell.show_races(kernel(waits=False), X, Y)
    blackwell.show_races(kernel(), X, Y)
    shown = capsys.readouterr().out
    assert "write plgpu.tcgen05_mma" in shown and "no race reported" in shown


SHAPES = 256, 128, 128
FACTORS = tuple(jnp.ones(x.shape, x.dtype) for x in blackwell_ladder.operands(*SHAPES))
MADE = jnp.zeros(SHAPES[:2], jnp.float16)
RUNG_3 = functools.partial(blackwell_ladder.rung_3, tile=blackwell_ladder.Tile(n=128, slots=2))


def test_what_the_interpreter_cannot_run_is_graded_by_its_schedule():
    asks = [book.asks.multiplies(2 * 256 * 128 * 128)]
    grade = blackwell.grade_unrun(RUNG_3, *FACTORS, makes=MADE, asks=asks)
    assert grade.passed
    assert grade.lines[:2] == (
        "The checker finds nothing in any order of the threads.",
        "JAX lowers it for a GPU.",
    )
    assert "It reads each element of its arguments." in grade.lines
    assert grade.lines[-1] == "It was not run, so its values are compared with nothing."


def test_a_schedule_that_is_not_as_asked_fails():
    def graded(answer, *args, makes=MADE, asks=()):
        grade = blackwell.grade_unrun(answer, *args, makes=makes, asks=asks)
        assert not grade.passed
        return grade.lines[-1]

    said = graded(kernel(waits=False), X, Y, makes=PRODUCT)
    assert said.startswith("The checker found a fault. race")
    assert "cannot be traced" in graded(RUNG_3, FACTORS[0][0], FACTORS[1])
    asks = [book.asks.multiplies(2 * 256 * 128 * 128 + 1)]
    assert "operations in products" in graded(RUNG_3, *FACTORS, asks=asks)
    said = graded(RUNG_3, *FACTORS, makes=MADE[:128])
    assert said == "It returns float16[256,128], not float16[128,128]."
    after = lambda a, b: RUNG_3(a, b) + jnp.float16(1)
    assert "XLA makes its result, by `add`" in graded(after, *FACTORS)


def test_a_refused_primitive_is_found_in_arrays_of_any_type_and_axes():
    for change in (
        lambda sums: (sums.reshape(1, 128, 64) + 2.0).reshape(128, 64),
        lambda sums: (sums.astype(jnp.int32) + 2).astype(jnp.float32),
    ):
        answer, expected = kernel(change=change), PRODUCT + 2.0
        grade = blackwell.grade(answer, X, Y, expected=expected, tolerance=1e-6, without=("add",))
        assert not grade.passed and "computes `add` of a tile" in grade.lines[-1]


def test_one_thread_that_does_it_all():
    asks = [blackwell.products_apart()]
    grade = blackwell.grade(kernel(), X, Y, expected=PRODUCT, tolerance=1e-6, asks=asks)
    said = "not as asked: A thread that starts products reads the sums itself."
    assert not grade.passed and grade.lines[-1].endswith(said)


def answer_of(kernel, *args):
    program = pallascope.trace(kernel, *args)
    return book.asks.Answer(program, args, pallascope.B200, kernel=kernel)


def test_tiles_that_are_read_and_where_their_sums_go():
    fit, (a, b) = blackwell.tiles_fit("a_gmem", "b_gmem", "o_gmem"), FACTORS
    assert blackwell.reads_all()(answer_of(RUNG_3, a, b)).holds
    assert fit(answer_of(tile_of(), a, b)).holds
    said = blackwell.reads_all()(answer_of(tile_of(), a, b)).text
    assert said == "It never reads 24,576 elements of `a_gmem`."
    said = "Block 0 of the cluster loads rows [(0, 128)] of `a_gmem`, and stores rows [(128, 256)]"
    assert fit(answer_of(tile_of(stored=128), a, b)).text == f"{said} of `o_gmem`."
    said = "Block 0 of the cluster loads other columns of `a_gmem` than rows of `b_gmem`."
    assert fit(answer_of(tile_of(b_begins=64), a, b)).text == said


def tile_of(stored=0, b_begins=0):
    """A kernel that copies parts of its factors, and stores some rows."""

    def copies(a_gmem, b_gmem, o_gmem, a_smem, b_smem, loaded):
        plgpu.copy_gmem_to_smem(a_gmem.at[pl.ds(0, 128), pl.ds(0, 64)], a_smem, loaded)
        plgpu.copy_gmem_to_smem(b_gmem.at[pl.ds(b_begins, 64)], b_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(a_smem, o_gmem.at[pl.ds(stored, 128), pl.ds(0, 64)])
        plgpu.wait_smem_to_gmem(0)

    tiles = [plgpu.SMEM((128, 64), jnp.float16), plgpu.SMEM((64, 128), jnp.float16)]
    scratch = [*tiles, plgpu.Barrier(num_arrivals=2)]
    return plgpu.kernel(copies, out_type=MADE, scratch_types=scratch)
