"""The budget of the fast tier: a test over it fails unless it is marked, and all are told."""

import subprocess
import sys

import pytest

from tests import budget

ROOT = budget.__file__.rpartition("/tests/")[0]

CONFTEST = """
from tests import budget

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: of the slow tier")
    config.pluginmanager.register(budget.Budget(0.2))
"""
TESTS = """
import pytest, subprocess, sys, time

BUSY = "import time\\nwhile time.process_time() < 0.4: pass"

def busy():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass

@pytest.fixture
def prepared():
    busy()

def test_quick(): pass
def test_waits(): time.sleep(0.4)
def test_busy(): busy()
def test_busy_before(prepared): pass
def test_busy_elsewhere(): subprocess.run([sys.executable, "-c", BUSY], check=True)
def test_wrong(): busy(); assert False, "wrong"
@pytest.mark.slow
def test_marked(): busy()
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_works_too_long_fails_unless_it_is_marked(tmp_path, workers):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-n",
        workers,
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ROOT},
    )
    failed = {
        line.partition("::")[2].partition(" ")[0]: line
        for line in done.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed.keys() == {"test_busy", "test_busy_before", "test_busy_elsewhere", "test_wrong"}
    assert "AssertionError: wrong" in failed["test_wrong"]
    assert "more than the 0.2 s" in done.stdout
    assert "CPU seconds of the 10 slowest tests" in done.stdout
    assert "test_them.py::test_marked" in done.stdout.partition("slowest tests")[2]


def test_the_sentence_has_the_arithmetic_and_the_remedy():
    assert budget.over(5.0, 5) is None and budget.over(50.0, None) is None
    said = budget.over(7.25, 5)
    assert "took 7.2 s of CPU time, 2.2 s more than the 5 s" in said and "mark it `slow`" in said
