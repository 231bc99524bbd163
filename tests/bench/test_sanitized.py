"""The record of compute-sanitizer: it has all cases, and no problem but the control's."""

import json

import pytest

from benchmarks import sanitized

RECORDS = sorted(sanitized.RESULTS.glob("*/sanitized.json"))

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


def test_a_process_that_ends_early_is_no_success():
    with pytest.raises(ValueError, match=r"ended in case \['b'\]: ========= ERROR SUMMARY"):
        sanitized.problems(SAID.replace("case: end\n", ""))


def test_without_the_tool_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install the CUDA toolkit"):
        sanitized.sanitizer()


@pytest.mark.skipif(not RECORDS, reason="there is no record: make benchmark writes it on a Hopper")
def test_no_kernel_has_a_problem_and_the_control_has():
    for path in RECORDS:
        record = json.loads(path.read_text("utf-8"))
        assert record["control"], "a read behind the end was not reported"
        assert record["tools"].keys() == set(sanitized.TOOLS)
        for found in record["tools"].values():
            assert found == {name: [] for name in sanitized.cases()}
