"""The README's kernel does what it says, here and on a GPU."""

import pathlib
import re
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"


def run(folder):
    """Runs the program as a reader would, from a file and in a process of its own."""
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    file = folder / "kernel.py"
    file.write_text(program + "assert (y == x + 1).all()\nprint(\"right\")\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(file)!r})"],
        capture_output=True, text=True, cwd=README.parent,
    )  # fmt: skip
    assert done.stdout == "right\n", done.stdout + done.stderr


def test_the_kernel_in_the_interpreter(tmp_path):
    run(tmp_path)


@pytest.mark.gpu
def test_the_kernel_on_the_gpu(tmp_path):
    run(tmp_path)
