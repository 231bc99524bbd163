"""`pipelib_book.whose`: another project's `pipelib` is told from this one."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from pipelib_book import whose

ROOT = pathlib.Path(__file__).parents[2]


def test_this_one_is_this_one():
    whose.require_this_pipelib()


@pytest.mark.parametrize("there", ["alone", "over ours", ""])
def test_another_one_or_none_is_an_error_that_says_what_to_do(tmp_path, there):
    """The kit beside a `pipelib` that is a stub, alone or over ours; or beside none."""
    shutil.copytree(ROOT / "pipelib_book", tmp_path / "pipelib_book")
    said = "`pipelib`, and it is not installed here. On PyPI another project has that name"
    if there:
        if there == "over ours":
            shutil.copytree(ROOT / "pipelib", tmp_path / "pipelib")
        (tmp_path / "pipelib").mkdir(exist_ok=True)
        (tmp_path / "pipelib" / "__init__.py").write_text("")
        said = f"`pipelib` here is another project that has the name on PyPI ({tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", "import pipelib_book"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("ImportError: ") and said in last and last.endswith(whose.INSTALL)
    assert ("pip uninstall --yes pipelib pallas-pipelib; " in last) is bool(there)
