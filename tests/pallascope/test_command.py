"""`python -m pallascope`: what it prints, and what it exits with."""

import importlib.util
import itertools
import json
import pathlib
import subprocess
import sys

import jax
import pytest

import pallascope
from pallascope import __main__ as command
from pallascope import compiling
from pallascope.command import checking, drawing
from pallascope.command.targets import argument
from pallascope.verifying import UNCOMPILED, BlockChoice

KERNELS = "tests.pallascope.kernels"
FIRST = f"add_one: no finding in all 4 blocks of grid (4,), nor between them\n{UNCOMPILED}\n"


@pytest.fixture(autouse=True)
def _the_same_paths_and_no_compiler(monkeypatch):
    monkeypatch.setattr(compiling, "lacking", lambda: "not asked")  # it takes seconds a kernel
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # as some CI sets it


def run(capsys, *arguments):
    status = command.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_no_finding_exits_with_0(capsys):
    status, out, err = run(capsys, "check", f"{KERNELS}:add_one", "f16[256,64]")
    assert (status, out, err) == (0, FIRST, "")


def test_a_finding_exits_with_1_also_from_a_file(capsys, tmp_path):
    source = pathlib.Path("tests/pallascope/kernels.py").read_text("utf-8")
    broken = tmp_path / "broken_kernels.py"
    broken.write_text(source.replace("plgpu.commit_smem()", "pass"), "utf-8")
    status, out, err = run(capsys, "check", f"{broken}:add_one", "float16[256,64]")
    assert (status, err) == (1, "")
    assert out.startswith("missing-commit: the store of thread 0 reads `x_smem`, which thread 0")
    assert "plgpu.copy_smem_to_gmem(x_smem, o.at[rows])" in out


def test_a_block_and_steps_can_be_picked(capsys):
    call = ("check", f"{KERNELS}:matmul", "f16[64,640]", "f16[640,64]")
    whole, cut = run(capsys, *call), run(capsys, *call, "--max-steps", "3")
    assert (whole[0], cut[0]) == (0, 0)
    assert "truncated: the end of thread 0 is missing" in cut[1]
    status, _, err = run(capsys, "check", f"{KERNELS}:add_one", "f16[256,64]", "--block", "4")
    assert status == 2
    assert "block=(4,) is not in the grid" in err


# A fault in the last block of each axis, which the first block has not.
EDGE = """
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from beside import NAMES

def store(x, o, s):
    at = [pl.ds(lax.axis_index(name) * 16, 16) for name in NAMES]
    s[...] = x[*at]

    @pl.when(sum(lax.axis_index(name) for name in NAMES) < lax.axis_size("m"))
    def _():
        plgpu.commit_smem()

    plgpu.copy_smem_to_gmem(s, o.at[*at])
    plgpu.wait_smem_to_gmem(0)

def edge(x):
    grid = tuple(size // 16 for size in x.shape)
    return plgpu.kernel(store, out_type=x, grid=grid, grid_names=NAMES,
        scratch_types=[plgpu.SMEM((16, 16), jnp.float32)])(x)

def twice(x):
    return edge(edge(x)[:16, :16])
"""


@pytest.fixture
def edge(tmp_path):
    (tmp_path / "beside.py").write_text('NAMES = "m", "n"\n', "utf-8")
    (tmp_path / "edge_kernels.py").write_text(EDGE, "utf-8")
    yield f"{tmp_path / 'edge_kernels.py'}:edge"
    sys.modules.pop("beside", None)


def test_a_fault_at_the_edge_is_in_some_block(capsys, edge):
    """Also: what the file imports from beside it is found, as where Python runs the file."""
    status, out, err = run(capsys, "check", edge, "f32[32,32]", "--block", "0,0")
    assert (status, err) == (0, "")
    assert out.startswith("store: no finding in block (0, 0) of grid (2, 2) (8 ops of 1 thread ")
    status, out, err = run(capsys, "check", edge, "f32[32,32]")
    assert (status, err) == (1, "")
    verdicts = [line for line in out.splitlines() if line.startswith("store: ")]
    assert verdicts == [
        "store: 1 finding in block (1, 1) of grid (2, 2) (7 ops of 1 thread checked)",
        "store: all 4 blocks of grid (2, 2) checked; 1 with findings",
    ]


def test_the_same_fault_in_many_blocks_is_told_once(capsys, edge):
    status, out, _ = run(capsys, "check", edge, "f32[512,32]")
    assert (status, out.count("missing-commit: ")) == (1, 1)
    assert "1 finding in block (31, 1) of grid (32, 2) (7 ops of 1 thread checked)" in out
    source = EDGE.replace('lax.axis_size("m")', "1")
    pathlib.Path(edge.removesuffix(":edge")).write_text(source, "utf-8")
    status, out, _ = run(capsys, "check", edge, "f32[512,32]")
    assert (status, out.count("missing-commit: ")) == (1, 1)
    assert "in block (16, 0)" not in out
    assert out.endswith("store: 6 of 64 blocks of grid (32, 2) checked; 5 with findings\n")


@pytest.mark.parametrize("grid", [(), (1,), (32,), (4, 8), (33,), (7, 5), (2, 2, 9), (100, 1, 64)])
def test_which_blocks_are_all(grid):
    found = BlockChoice.ALL.of(grid)
    every = [*itertools.product(*map(range, grid))]
    assert found[0] == every[0] and found[-1] == every[-1] and len(found) == len({*found})
    if len(every) <= 32:
        assert found == every
        return
    assert len(found) <= 27 and {*found} <= {*every}
    for axis, size in enumerate(grid):
        assert {block[axis] for block in found} == {0, size // 2, size - 1}


def test_one_kernel_of_several(capsys, edge, tmp_path):
    twice = edge.replace(":edge", ":twice")
    status, out, _ = run(capsys, "check", twice, "f32[32,32]")
    assert status == 1 and out.endswith(
        "2 kernels: 1 with findings, none that could not be checked\n"
    )
    for call, grid in (("0", "grid (2, 2)"), ("1", "")):
        status, out, _ = run(capsys, "check", twice, "f32[32,32]", "--call", call)
        assert status == (1 if grid else 0) and grid in out and ("of grid" in out) == bool(grid)
    assert "store (2): no finding (" in out  # the name that it has beside the first
    figure = tmp_path / "b.json"
    status, out, _ = run(capsys, "draw", twice, "f32[32,32]", "--call", "1", "-o", str(figure))
    assert status == 0 and "store (2), simulated" in out and "store (2)" in figure.read_text()
    checks = json.loads(run(capsys, "check", twice, "f32[32,32]", "--json")[1])["checks"]
    assert [check["kernel"] for check in checks] == ["store", "store (2)"]
    assert checks[1]["reports"][0]["verdict"].startswith("store (2): no finding")
    status, _, err = run(capsys, "check", twice, "f32[32,32]", "--call", "2")
    assert status == 2 and "and call=2 is not one of them" in err


def test_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])
    out = capsys.readouterr().out
    assert out == f"pallascope {pallascope.__version__}, JAX {jax.__version__}\n"


@pytest.mark.parametrize("name", ["a.svg", "a.png", "a.html"])
def test_without_matplotlib_a_drawing_is_refused_before_anything_is_traced(
    capsys, monkeypatch, tmp_path, name
):
    found = importlib.util.find_spec
    lacks = lambda module: None if module == "matplotlib" else found(module)
    monkeypatch.setattr(importlib.util, "find_spec", lacks)
    monkeypatch.setattr(drawing, "tracer", lambda target: pytest.fail("traced"))
    if name == "a.html":
        with pytest.raises(pytest.fail.Exception, match="traced"):
            command.main(["draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", name])
        return
    status, _, err = run(capsys, "draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", name)
    assert status == 2
    assert err == (
        f"pallascope draw: {name} is drawn by matplotlib, which is not installed here: install it"
        " with `pip install 'pallascope[draw]'`, or name the file .html or .json, which need"
        " none.\n"
    )


@pytest.mark.parametrize("error", [TypeError("no"), RuntimeError("no"), RecursionError("no")])
@pytest.mark.parametrize(("name", "rest"), [("check", []), ("draw", ["-o", "never.json"])])
def test_a_fault_of_pipelib_s_own_is_not_blamed_on_the_kernel(
    capsys, monkeypatch, error, name, rest
):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(
        *((checking, "_tell") if name == "check" else (pallascope, "simulate")),
        fails,
        raising=False,
    )
    status, out, err = run(capsys, name, f"{KERNELS}:add_one", "f16[256,64]", *rest)
    assert (status, out) == (2, "")
    assert f"{type(error).__name__}: no" in err
    assert err.endswith(
        f"pallascope {name}: pallascope itself failed, see above, after {KERNELS}:add_one had been"
        " traced: please report it.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere:f"], "No module named 'nowhere'"),
        (["nowhere.py:f"], "there is no file nowhere.py."),
        ([KERNELS], "names no function: write module:function, or file.py:function."),
        ([f"{KERNELS}:nothing"], f"{KERNELS} has no 'nothing': it is not defined there."),
        ([f"{KERNELS}:TRANSFORMS"], "is a tuple: name a function that calls a kernel."),
        ([f"{KERNELS}:add_one", "f16(2)"], "'f16(2)' is neither dtype[shape], as bfloat16[4096,"),
        ([":add_one"], "':add_one' names no function: write module:function, or file.py:fun"),
        (["..:add_one"], "'..:add_one' names no function: write module:function, or file.py:fun"),
        ([f"{KERNELS}:add_one", "f17[2]"], "'f17[2]' is of 'float17', which is no dtype: write"),
        ([f"{KERNELS}:add_one", "f16[256,64]", "--max-steps", "0"], "max_steps=0 is less than 1"),
        (["jax.numpy:sin", "2.5"], "verify: the function calls no Mosaic GPU kernel, so there is"),
    ],
)
def test_what_is_wrong_is_said_and_exits_with_2(capsys, arguments, text):
    status, out, err = run(capsys, "check", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("pallascope check: ") and text in err


def test_a_block_that_is_not_of_numbers(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["check", f"{KERNELS}:add_one", "f16[256,64]", "--block", "a"])
    assert "--block: 'a' is no block: give its index on each axis" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):  # a figure is of one block
        command.main(["draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", "a.svg", "--block", "all"])
    assert "--block: 'all' is no block" in capsys.readouterr().err


def test_what_fails_in_the_caller_s_code_is_no_finding(capsys, tmp_path):
    source = tmp_path / "failing_kernels.py"
    source.write_text("def kernel(x):\n    return x.shape[0] // 0\n", "utf-8")
    status, out, err = run(capsys, "check", f"{source}:kernel", "f16[8]")
    assert (status, out) == (2, "")
    assert err == (
        f"pallascope check: {source}:2: ZeroDivisionError: integer division or modulo by zero\n"
    )


def test_a_figure_that_cannot_be_written(capsys, tmp_path):
    for name in ("a.html", "a.json"):
        path = tmp_path / "nowhere" / name
        status, _, err = run(capsys, "draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", str(path))
        assert status == 2
        assert err.startswith("pallascope draw: ") and "No such file or directory" in err
        assert str(path) in err


def test_it_is_a_module_that_runs():
    call = [sys.executable, "-m", "pallascope", "check", f"{KERNELS}:add_one", "f16[256,64]"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no finding" in done.stdout


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("a.svg", "<?xml"),
        ("a.html", "<!doctype html>"),
        ("a.json", "{"),
        ("a.png", "\x89PNG"),
        ("A.SVG", "<?xml"),
        ("A.Html", "<!doctype html>"),
        ("A.JSON", "{"),
    ],
)
def test_a_timeline_is_drawn(capsys, tmp_path, name, starts):
    if name.lower().endswith(("svg", "png")):
        pytest.importorskip("matplotlib", reason="matplotlib draws these figures")
    call = ("draw", f"{KERNELS}:matmul", "f16[64,320]", "f16[320,64]", "-o")
    status, out, err = run(capsys, *call, str(tmp_path / name))
    assert (status, err) == (0, "")
    assert out.startswith(f"{tmp_path / name}: matmul, simulated on NVIDIA H200")
    assert (tmp_path / name).read_bytes().startswith(starts.encode("latin-1"))


def test_a_figure_of_no_kind(capsys, tmp_path):
    call = ("draw", f"{KERNELS}:matmul", "f16[64,320]", "f16[320,64]", "-o")
    status, _, err = run(capsys, *call, str(tmp_path / "a.doc"))
    assert status == 2
    assert "a.doc ends with '.doc', which no figure's name does" in err
    assert not list(tmp_path.iterdir())


def test_each_command_has_an_example_its_statuses_and_its_environment(capsys):
    for name in ("check", "draw", "compile", "tune"):
        with pytest.raises(SystemExit, match="0"):
            command.main([name, "--help"])
        out = capsys.readouterr().out
        assert f"\n  pallascope {name} " in out and "exit status: 0" in out
        assert ("PALLASCOPE_CUDA" in out) == (name != "draw")
        assert ("NO_COLOR: " in out and "FORCE_COLOR: " in out) == (name == "check")


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("f8e4m3fn[2]", "float8_e4m3fn"),
        ("f8_e5m2[2]", "float8_e5m2"),
        ("pred[2]", "bool"),
        ("bf16[2]", "bfloat16"),
        ("s8[2]", "int8"),
        ("u32[2]", "uint32"),
        ("float8_e4m3fn[2]", "float8_e4m3fn"),
    ],
)
def test_a_dtype_as_jax_and_xla_print_it(text, dtype):
    assert str(argument(text).dtype) == dtype


def test_a_reader_who_has_seen_enough_is_no_error():
    call = f"{sys.executable} -m pallascope check {KERNELS}:add_one 'f16[256,64]' --json"
    done = subprocess.run(
        ["sh", "-c", f"{call} | true"], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("machine", drawing.MACHINES)
def test_every_machine_can_be_named(capsys, tmp_path, machine):
    path = str(tmp_path / "a.json")
    call = "draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", path, "--machine", machine
    status, out, _ = run(capsys, *call)
    assert status == 0 and machine in out
    machines = {name for name in dir(pallascope) if name[0] in "ABH" and name[1:].isdigit()}
    assert {*drawing.MACHINES} == machines
