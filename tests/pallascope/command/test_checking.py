"""`python -m pallascope check`: blocks compared, several kernels, and JSON."""

import json

import pytest

from pallascope.verifying import UNCOMPILED
from tests.pallascope.schema import validate

X = "f32[32,64]"
NAMES = "grid_kernels.py"


def lines_of(out):
    """What is printed, but for what the kernels print."""
    return [line for line in out.splitlines() if line not in ("loaded", "traced")]


def test_blocks_are_compared(run):
    status, out, err = run("check", f"{NAMES}:right", X)
    assert (status, err) == (0, "")
    assert lines_of(out) == [
        "copy: no finding in all 4 blocks of grid (4,), nor between them",
        UNCOMPILED,
    ]
    status, out, err = run("check", f"{NAMES}:overlapping", X)
    assert (status, err) == (1, "")
    assert "race: `o` is written by the store of thread 0 of block (1,), and a part of" in out
    assert "unwritten-output: No block of grid (4,) writes all of the output `o`, at least" in out
    assert lines_of(out)[-2:] == [
        "copy, between blocks: 2 findings in all 4 blocks of grid (4,)",
        "copy: all 4 blocks of grid (4,) checked; none with findings, and between them",
    ]


def test_blocks_in_one_program(run):
    status, out, err = run("check", f"{NAMES}:right", X, "--block", "together")
    assert status == 0 and not err and "copy: no finding in all of grid (4,) (" in out
    status, out, _ = run("check", f"{NAMES}:overlapping", X, "--block", "together")
    assert status == 1 and "the store of block 1, thread 0" in out


def test_a_large_grid_says_that_some_blocks_were_compared(run):
    _, out, _ = run("check", f"{NAMES}:right", "f32[320,64]")
    assert lines_of(out)[0] == "copy: no finding in 3 of 40 blocks of grid (40,), nor between them"


def test_when_to_be_strict_is_said(run):
    status, out, _ = run("check", f"{NAMES}:by_the_letter", X)
    assert status == 0
    assert (
        "note: --strict has 1 finding more, at grid_kernels.py:37: a copy overwrites what a thread"
        " has read with ordinary loads, and no commit_smem stands between. PTX asks for one, though"
        " no GPU has been seen to need it: use --strict for kernels that are to hold by PTX's"
        " letter, and for those that promise ordinary_reads=False to pipelib's emitters." in out
    )
    status, out, _ = run("check", f"{NAMES}:by_the_letter", X, "--strict")
    assert status == 1 and "missing-commit: the load of thread 0 overwrites `s`" in out
    assert "--strict" not in out
    assert "--strict" not in run("check", f"{NAMES}:right", X)[1]


def test_no_block_begins_after_the_seconds(run):
    status, out, _ = run("check", f"{NAMES}:right", X, "--seconds", "1e-9")
    assert status == 0 and "copy: no finding in block (0,) of grid (4,) (" in out
    assert "not looked at: 3 blocks of copy, for which there was no time\n" in out


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan"])
def test_a_number_of_seconds(run, seconds, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("check", f"{NAMES}:right", X, f"--seconds={seconds}")
    assert (
        f"--seconds: {seconds!r} is no number of seconds above 0, so it says no limit: give one."
        in capsys.readouterr().err
    )


def test_a_block_that_cannot_be_traced_is_an_error_after_the_others(run):
    status, out, err = run("check", f"{NAMES}:refused_later", X)
    assert status == 2
    assert "no finding in 2 of 4 blocks of grid (4,), nor between them" in out
    assert err.startswith("pallascope check: grid_kernels.py:57: ")
    assert "depends on what a tensor holds" in err


# Several kernels.

PROJECT = """
[[tool.pallascope.check]]
function = "grid_kernels.py:right"
args = ["f32[32,64]"]

[[tool.pallascope.check]]
function = "grid_kernels.py:unfenced"
args = ["f32[32,64]"]
"""
NOWHERE = '[[tool.pallascope.check]]\nfunction = "grid_kernels.py:nowhere"\n'


def test_the_kernels_of_a_project(run, folder):
    (folder / "pyproject.toml").write_text(PROJECT, "utf-8")
    status, out, err = run("check")
    assert (status, err) == (1, "")
    lines = lines_of(out)
    assert lines[0] == "== grid_kernels.py:right f32[32,64]"
    assert "== grid_kernels.py:unfenced f32[32,64]" in lines
    assert "copy: no finding in all 4 blocks of grid (4,), nor between them" in lines
    assert lines[-1] == "2 kernels: 1 with findings, none that could not be checked"
    assert "in block (3,) of grid (4,)" in run("check", "--block", "3")[1]


def test_the_project_is_found_from_a_folder_in_it(run, folder, monkeypatch):
    (folder / "pyproject.toml").write_text(PROJECT, "utf-8")
    (folder / "within" / "it").mkdir(parents=True)
    monkeypatch.chdir(folder / "within" / "it")
    status, out, err = run("check", "--sarif", "found.sarif")
    assert (status, err) == (1, "") and "== grid_kernels.py:right f32[32,64]" in out
    assert (folder / "within" / "it" / "found.sarif").exists()


def test_a_kernel_that_cannot_be_traced_does_not_stop_the_others(run, folder):
    (folder / "pyproject.toml").write_text(NOWHERE + PROJECT, "utf-8")
    status, out, err = run("check")
    said = "grid_kernels.py has no 'nowhere': it is not defined there."
    assert (status, err) == (2, f"pallascope check: {said}\n")
    assert lines_of(out)[-1] == "3 kernels: 1 with findings, 1 that could not be checked"
    status, out, err = run("check", "--json", "--sarif", "found.sarif")
    assert status == 2
    assert [check["error"] for check in json.loads(out)["checks"]] == [said, None, None]
    (told,) = json.loads((folder / "found.sarif").read_text())["runs"]
    assert told["invocations"] == [
        {
            "executionSuccessful": False,
            "toolExecutionNotifications": [
                {"level": "error", "message": {"text": f"grid_kernels.py:nowhere: {said}"}}
            ],
        }
    ]
    assert {result["ruleId"] for result in told["results"]} == {"missing-commit"}


def test_no_kernel_at_all(run):
    status, out, err = run("check")
    assert (status, out) == (2, "")
    assert err.startswith(
        "pallascope check: there is no pyproject.toml in this folder, nor above, to say what"
    )


# JSON.


def test_one_document_and_nothing_else(run):
    status, out, err = run("check", f"{NAMES}:unfenced", X, "--json")
    found = json.loads(out)
    validate(found, "check")
    assert (status, found["ok"]) == (1, False)
    assert {*err.splitlines()} == {"loaded", "traced"}
    (check,) = found["checks"]
    assert (check["function"], check["args"]) == (f"{NAMES}:unfenced", [X])
    assert [report["program"]["block"] for report in check["reports"]] == [[0], [1], [2], [3]]
    (finding,) = check["reports"][0]["findings"]
    assert (finding["kind"], finding["where"]) == ("missing-commit", "s")
    assert [(op["file"], op["line"]) for op in finding["ops"]] == [
        ("grid_kernels.py", 18),
        ("grid_kernels.py", 15),
    ]
    assert check["grid"]["ok"] and check["grid"]["program"]["compared"] == 4
    assert check["summary"].endswith("all 4 blocks of grid (4,) checked; 4 with findings")


def test_one_block_has_no_summary(run):
    status, out, _ = run("check", f"{NAMES}:right", X, "--block", "2", "--json")
    found = json.loads(out)
    validate(found, "check")
    (check,) = found["checks"]
    assert (status, found["ok"], check["summary"], check["grid"]) == (0, True, None, None)
    assert check["reports"][0]["findings"] == []


def test_an_error_is_in_the_document_too(run):
    status, out, err = run("check", f"{NAMES}:nothing", "--json")
    found = json.loads(out)
    validate(found, "check")
    assert (status, found["ok"], found["checks"][0]["ok"]) == (2, False, False)
    assert err.splitlines()[-1] == f"pallascope check: {found['checks'][0]['error']}"
