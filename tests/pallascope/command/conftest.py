"""What the command's tests share: a folder with kernels in it, in which the command runs."""

import linecache
import sys

import pytest

from pallascope import __main__ as command
from pallascope import compiling
from tests.pallascope.command.kernels import SOURCE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder like a repository's, in which kernels.py is."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "grid_kernels.py").write_text(SOURCE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiling, "lacking", lambda: "not asked")  # it takes seconds a kernel
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("grid_kernels", None)


@pytest.fixture
def run(folder, capsys):
    """Runs a command; returns its status, its stdout and its stderr."""

    def run(*arguments):
        linecache.clearcache()  # a test may have changed a file
        status = command.main([*map(str, arguments)])
        return status, *capsys.readouterr()

    return run
