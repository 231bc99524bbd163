"""`tools.rehearsal`: what a chapter does with stand-ins for a GPU, and what makes it stale."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import nbformat
import pytest

from tools import execution, notebooks, rehearsal

pytestmark = pytest.mark.slow

SET_UP = """\
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import pipelib
import pipelib_book as book
device = book.setup()
"""
KERNEL = """\
def add_one(slots):
    def kernel(x_gmem, o_gmem):
        def body(_, x_smem, o_smem):
            o_smem[...] = x_smem[...] + 1.0
        block = pl.BlockSpec((64, 64), lambda i: (i, 0))
        pipelib.emit_pipeline(
            body, grid=(8,), in_specs=[block], out_specs=[block],
            max_concurrent_steps=slots,
        )(x_gmem, o_gmem)
    return lambda x: plgpu.kernel(kernel, out_type=x)(x)
two, four = add_one(2), add_one(4)
x = jnp.ones((512, 64))
"""
RUN = 'book.check("x + 1", two(x), x + 1, tolerance=0)'
COMPARE = 'results = book.compare({"two": two, "four": four}, x, flops=1e9)'
REST = "book.say(f\"{results['two'].median_us:.1f}\"); assert (add_one(3)(x) == x + 1).all()"
AGAIN = "mixed = x.astype(jnp.float16) * x\n" + COMPARE
FAILS = "1 / 0"


@pytest.fixture(scope="module")
def rehearsed():
    sources = SET_UP, KERNEL, RUN, COMPARE, FAILS, REST, AGAIN
    cells = [*map(nbformat.v4.new_code_cell, sources)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    return notebook, rehearsal.rehearse(notebook, "NVIDIA H200", "9.0")


def texts(cell):
    return [output.get("data", {}).get("text/plain", output.get("text")) for output in cell.outputs]


def test_a_rehearsal_finds_the_gpu_of_the_recording(rehearsed):
    notebook, _ = rehearsed
    assert "NVIDIA H200 (compute capability 9.0)" in str(notebook.cells[0].outputs)
    assert "at full size" in str(notebook.cells[0].outputs)


def test_each_cell_has_the_kernels_that_it_compiles(rehearsed):
    _, scenes = rehearsed
    assert [len(scene.kernels) for scene in scenes] == [0, 0, 1, 2, 0, 1, 2]
    assert scenes[2].kernels[0] == scenes[3].kernels[0]
    assert len({digest for scene in scenes for digest in scene.kernels}) == 3


def test_a_cell_s_kernels_are_all_that_it_uses_with_jax_s_defaults(rehearsed):
    """Compiled before or not; and the tests' own strict promotion is not the chapters'."""
    notebook, scenes = rehearsed
    assert os.environ["JAX_NUMPY_DTYPE_PROMOTION"] == "strict"
    assert scenes[6].kernels == scenes[3].kernels
    assert "| four |" in str(notebook.cells[6].outputs)


def test_results_and_times_have_stand_ins(rehearsed):
    notebook, _ = rehearsed
    assert "x + 1: compared." in str(notebook.cells[2].outputs)
    table = str(notebook.cells[3].outputs)
    assert "| two |" in table and "| four |" in table and "TFLOP/s" in table
    assert not any("application/vnd" in str(cell.outputs) for cell in notebook.cells)


def test_after_a_cell_that_fails_the_others_go_on_without_asserts(rehearsed):
    notebook, _ = rehearsed
    (error,) = notebook.cells[4].outputs
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")
    assert notebook.cells[5].outputs[0].output_type == "display_data"


def test_another_take_has_other_numbers():
    drawn = "import jax; float(jax.random.normal(jax.random.key(0), ({},))[0])"
    sources = [SET_UP, KERNEL, RUN, COMPARE, "float(add_one(2)(x)[0, 0])", "2 * 21"]
    sources += [drawn.format("4"), drawn.format("2**21")]
    takes = []
    for take in (0, 1):
        cells = [*map(nbformat.v4.new_code_cell, sources)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        takes.append(rehearsal.rehearse(notebook, "NVIDIA H200", "9.0", take))
    assert [a.kernels for a in takes[0]] == [b.kernels for b in takes[1]]
    same = [a.shown == b.shown for a, b in zip(*takes, strict=True)]
    assert same == [True, True, False, False, False, True, True, False]


def test_scenes_are_kept_as_json(rehearsed):
    _, scenes = rehearsed
    text = json.dumps([scene.to_json() for scene in scenes])
    assert [rehearsal.Scene.from_json(values) for values in json.loads(text)] == scenes


def test_what_is_printed_in_pieces_is_one_text():
    piece = lambda text, name="stdout": nbformat.v4.new_output("stream", name=name, text=text)
    picture = nbformat.v4.new_output("display_data", data={"text/plain": "x"})
    shown = rehearsal.shown
    assert shown([piece("a\n"), piece("w", "stderr"), piece("b\n")]) == shown([piece("a\nb\n")])
    assert shown([piece("a\n"), picture, piece("b\n")]) != shown([piece("a\nb\n"), picture])


def test_addresses_and_warnings_are_not_shown():
    shown = lambda text, name="stdout": rehearsal.shown(
        [nbformat.v4.new_output("stream", text=text, name=name)]
    )
    assert shown("<object at 0x7f12345678>") == shown("<object at 0x7fabcdef01>")
    assert shown("a warning", "stderr") == rehearsal.shown([])
    assert shown("one") != shown("two")


# What makes a recorded chapter stale: in a copy of the code, which is edited.


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of pipelib and its tools, with one chapter, recorded."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("pipelib", "pallascope", "pipelib_book", "tools"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(execution.ROOT / name, root / name, ignore=ignored)
    (root / "book").mkdir()
    cells = "".join(f"```{{code-cell}} ipython3\n{each}\n```\n\n" for each in (SET_UP, KERNEL, RUN))
    (root / "book" / "01_made_up.md").write_text(f"# Made up\n\n{cells}")
    tool(root, "record", "--interpreted")
    tool(root, "sync")
    assert "rehearsal" in notebooks.read_record(root / "book" / "01_made_up.md")
    return root


def tool(root, *arguments, status=0):
    """What a command of the copy's own tool prints."""
    command = [sys.executable, "-m", "tools.notebooks", *arguments]
    env = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == status
    return done.stdout


def edit(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new), "utf-8")


def test_docstrings_comments_and_private_names_make_no_chapter_stale(copy):
    path = copy / "pipelib" / "pipeline.py"
    docstring = path.read_text("utf-8").splitlines()[0]
    edit(path, docstring, f'# A comment.\n"""Other words.\n\n{docstring[3:]}\n')
    edit(copy / "pipelib" / "specs.py", "_block_size", "_length_of")
    assert tool(copy, "check") == ""


def test_another_kernel_makes_its_cell_stale(copy):
    path = copy / "pipelib" / "ring.py"
    before = path.read_text("utf-8")
    edit(path, "min(slots, count)", "min(slots, count) + 1")
    found = tool(copy, "check", status=1)
    path.write_text(before, "utf-8")
    assert found.count("\n") == 1
    assert "code cell 3" in found and "compiles other kernels than were recorded" in found


def out(text, kind="display_data"):
    return nbformat.v4.new_output(kind, data={"text/plain": text})


def stream(text):
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def test_a_figure_beside_what_a_gpu_gave_is_made_anew_and_the_rest_stays():
    before, now = [stream("a"), stream("b"), out("0 us"), out("figure")], [out("0 us"), out("new")]
    published = [stream("ab"), out("7 us"), out("figure")]
    shown = rehearsal.shown
    made = rehearsal.merged(
        published, shown(before), [stream("ab"), *now], shown([stream("ab"), *now])
    )
    assert made == [stream("ab"), out("7 us"), out("new")]
    # What the GPU gave has changed, or there are other parts: neither can be told without one.
    other = [stream("ab"), out("1 us"), out("figure")]
    assert rehearsal.merged(published, shown(before), other, shown(other)) is None
    assert rehearsal.merged(published, shown(before), other[:2], shown(other[:2])) is None
