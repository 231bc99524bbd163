"""`python -m pipelib`: what it prints, and what it exits with."""

import pathlib
import subprocess
import sys

import pytest

from pipelib import __main__ as command

KERNELS = "tests.schedule.kernels"


def run(capsys, *arguments):
    status = command.main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_no_finding_exits_with_0(capsys):
    status, out, err = run(capsys, "check", f"{KERNELS}:add_one", "f16[256,64]")
    assert (status, out, err) == (0, "kernel: no finding (11 ops of 1 thread checked)\n", "")


def test_a_finding_exits_with_1_also_from_a_file(capsys, tmp_path):
    source = pathlib.Path("tests/schedule/kernels.py").read_text("utf-8")
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
        (["jax.numpy:sin", "2.5"], "calls 0 Mosaic GPU kernels"),
    ],
)
def test_what_is_wrong_is_said_and_exits_with_2(capsys, arguments, text):
    status, out, err = run(capsys, "check", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("pipelib check: ") and text in err


def test_a_block_that_is_not_of_numbers(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["check", f"{KERNELS}:add_one", "f16[256,64]", "--block", "a"])
    assert "--block: 'a' is no block: give its index on each axis" in capsys.readouterr().err


def test_what_fails_in_the_caller_s_code_is_no_finding(capsys, tmp_path):
    source = tmp_path / "failing_kernels.py"
    source.write_text("def kernel(x):\n    return x.shape[0] // 0\n", "utf-8")
    status, out, err = run(capsys, "check", f"{source}:kernel", "f16[8]")
    assert (status, out) == (2, "")
    assert "ZeroDivisionError" in err
    assert err.endswith(f"pipelib check: {source}:kernel failed, see above.\n")


def test_a_figure_that_cannot_be_written(capsys, tmp_path):
    for name in ("a.html", "a.json"):
        path = tmp_path / "nowhere" / name
        status, _, err = run(capsys, "draw", f"{KERNELS}:add_one", "f16[256,64]", "-o", str(path))
        assert status == 2
        assert err.startswith("pipelib draw: ") and "No such file or directory" in err
        assert str(path) in err


def test_it_is_a_module_that_runs():
    call = [sys.executable, "-m", "pipelib", "check", f"{KERNELS}:add_one", "f16[256,64]"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no finding" in done.stdout


@pytest.mark.parametrize(
    ("name", "starts"),
    [("a.svg", "<?xml"), ("a.html", "<!doctype html>"), ("a.json", "{"), ("a.png", "\x89PNG")],
)
def test_a_timeline_is_drawn(capsys, tmp_path, name, starts):
    if name.endswith(("svg", "png")):
        pytest.importorskip("matplotlib", reason="matplotlib draws these figures")
    call = ("draw", f"{KERNELS}:matmul", "f16[64,320]", "f16[320,64]", "-o")
    status, out, err = run(capsys, *call, str(tmp_path / name))
    assert (status, err) == (0, "")
    assert out.startswith(f"{tmp_path / name}: kernel, simulated on NVIDIA H100")
    assert (tmp_path / name).read_bytes().startswith(starts.encode("latin-1"))


def test_a_figure_of_no_kind(capsys, tmp_path):
    call = ("draw", f"{KERNELS}:matmul", "f16[64,320]", "f16[320,64]", "-o")
    status, _, err = run(capsys, *call, str(tmp_path / "a.doc"))
    assert status == 2
    assert "a.doc ends with '.doc', which no figure of pipelib's is" in err
    assert not list(tmp_path.iterdir())
