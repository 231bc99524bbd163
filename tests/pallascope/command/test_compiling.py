"""`python -m pallascope compile`: what it prints, and what it exits with."""

import json

import pytest

from pallascope.command import compiling
from tests.pallascope.compiling.results import made
from tests.pallascope.schema import validate

CALL = "compile", "grid_kernels.py:right", "f32[32,64]"


@pytest.fixture
def kernels(monkeypatch):
    """What the command finds instead of compiling: a list to fill."""
    found = []
    monkeypatch.setattr(compiling, "compiled_all", lambda function, *args: iter(found))
    monkeypatch.setattr(compiling, "compiled", lambda function, *args, call: found[call])
    return found


def of_command(out):
    """What is printed, but for what the kernels print."""
    return out.removeprefix("loaded\n")


def test_every_kernel_is_told(run, kernels):
    kernels += [made(), made(kernel="sum")]
    status, out, err = run(*CALL)
    assert (status, err) == (0, "")
    assert of_command(out) == (
        f"{made()}\n\n{made(kernel='sum')}\n\n"
        "2 kernels compiled, none with serialized products or spilled registers\n"
    )


def test_spills_exit_with_1_and_say_so(run, kernels):
    spilling = made(spill_stores=8, spill_loads=16)
    kernels += [made(), spilling]
    status, out, _ = run(*CALL)
    assert status == 1
    assert out.endswith(
        f"\n\n{spilling.faults[0]}\n"
        "2 kernels compiled, 1 with serialized products or spilled registers: exit status 1\n"
    )
    status, out, _ = run(*CALL, "--call", "0")
    assert status == 0 and "1 kernel compiled, none" in out


def test_machine_code(run, kernels):
    kernels.append(made(sass="HGMMA R24"))
    assert "\nHGMMA R24\n" in run(*CALL, "--sass")[1]
    assert "HGMMA R24" not in run(*CALL)[1]


def test_json(run, kernels):
    kernels.append(made(spill_stores=8, sass="HGMMA R24"))
    status, out, _ = run(*CALL, "--json")
    document = json.loads(out)
    validate(document, "compile")
    (found,) = document["functions"]
    assert status == 1 and not document["ok"] and not found["ok"] and found["error"] is None
    assert (found["function"], found["args"]) == (CALL[1], [CALL[2]])
    assert found["kernels"] == [made(spill_stores=8).fields()]
    document = json.loads(run(*CALL, "--json", "--sass")[1])
    validate(document, "compile")
    assert document["functions"][0]["kernels"][0]["sass"] == "HGMMA R24"


PROJECT = """
[[tool.pallascope.compile]]
function = "grid_kernels.py:nowhere"

[[tool.pallascope.compile]]
function = "grid_kernels.py:right"
args = ["f32[32,64]"]
call = 1
"""


def test_the_kernels_of_a_project(run, kernels, folder, monkeypatch):
    kernels += [made(), made(kernel="sum"), made(kernel="last", spill_stores=8)]
    (folder / "pyproject.toml").write_text(PROJECT, "utf-8")
    (folder / "within").mkdir()
    monkeypatch.chdir(folder / "within")
    status, out, err = run("compile")
    said = "grid_kernels.py has no 'nowhere': it is not defined there."
    assert (status, err) == (2, f"pallascope compile: {said}\n")
    lines = out.splitlines()
    assert "== grid_kernels.py:nowhere" in lines and "== grid_kernels.py:right f32[32,64]" in lines
    assert f"\n{made(kernel='sum')}\n" in out and lines[-1].startswith("1 kernel compiled, none")
    document = json.loads(run("compile", "--json", "--call", "2")[1])
    validate(document, "compile")
    nowhere, right = document["functions"]
    assert (nowhere["ok"], nowhere["error"], nowhere["kernels"]) == (False, said, [])
    assert [kernel["kernel"] for kernel in right["kernels"]] == ["last"]


def test_what_is_missing_is_told(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PALLASCOPE_CUDA", "nowhere")
    status, out, err = run(*CALL)
    assert (status, of_command(out).removeprefix("traced\n")) == (2, "")
    assert err == (
        "pallascope compile: PALLASCOPE_CUDA is 'nowhere', which is not a folder, so nothing is"
        " found there: name the folder that pip install --target filled, or unset it.\n"
    )


@pytest.mark.compiler
def test_a_kernel_of_a_file(run):
    status, out, _ = run(*CALL)
    assert (status, "copy: " in out, "1 kernel compiled, none" in out) == (0, True, True)
    validate(json.loads(run(*CALL, "--json", "--sass")[1]), "compile")
