"""The record of compute-sanitizer: it has all cases, and no problem but the control's."""

import os

import pytest

from benchmarks import records, sanitized

RECORDS = sorted(records.RESULTS.glob("*/sanitized.json"))

SAID = """\
========= COMPUTE-SANITIZER
case: a
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x10
case: b
case: end
========= ERROR SUMMARY: 1 error
"""


def test_what_a_tool_says_is_of_the_case_before():
    assert sanitized.problems(SAID) == {"a": ["Invalid __global__ read of size 4 bytes"], "b": []}


def test_a_case_in_which_the_process_ends_has_a_problem():
    said = SAID.replace("case: end", f"{sanitized._ENDED}-11")
    assert sanitized.problems(said)["b"] == ["the process ended: -11"]


@pytest.mark.parametrize(
    ("then", "seconds", "found"),
    [
        ("echo case: end", 600, {"a": ["Barrier error"], "b": []}),
        ("sleep 600", 10, {"a": ["Barrier error"]}),
        ("exit 3", 600, {"a": ["Barrier error"], "b": ["the process ended: 3"]}),
    ],
    ids=["ends", "takes too long", "ends in a case"],
)
def test_cases_count_that_came_to_their_end(monkeypatch, tmp_path, then, seconds, found):
    tool = tmp_path / "compute-sanitizer"
    lines = "case: a", "========= Barrier error", "case: b"
    tool.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines), then]), "utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert sanitized.of_all("memcheck", ["a", "b"], jobs=1, seconds=seconds) == found


def test_without_the_tool_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install the CUDA toolkit"):
        sanitized.sanitizer()


@pytest.mark.skipif(not RECORDS, reason="there is no record: make benchmark writes it on a Hopper")
def test_no_kernel_has_a_problem_and_the_control_has():
    for path in RECORDS:
        (record,) = records.read(path)
        assert record["control"], "a read behind the end was not reported"
        assert record["contenders"].keys() == sanitized.cases().keys()
        for case in record["contenders"].values():
            assert {tool: case[tool] for tool in sanitized.TOOLS} == {
                tool: [] for tool in sanitized.TOOLS
            }
