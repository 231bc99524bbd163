"""A notebook's functions in a file, and the command line on it: `save` and `command`.

The model. `python -m pallascope` takes kernels from files. `save` writes the functions' source
below the imports that the chapters have. `command` runs the command in another process, with the
same Python, in the file's folder, and shows what it prints. That process sees no GPU, since the
notebook's has its memory, and only the compiler that is installed beside this Python: so a page
shows the same wherever the environment is the same.
"""

import inspect
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pipelib
from pallascope.drawing.paths import relative_paths
from pallascope.verifying import UNCOMPILED
from pipelib_book.notebook import say

_IMPORTS = """\
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
"""
_ROOT = pathlib.Path(pipelib.__file__).parents[1]


def save(name: str, *functions: Callable[..., Any]) -> pathlib.Path:
    """Writes functions into a file of this name, in a new folder, below the usual imports.

    Example:
      >>> path = files.save("own.py", softmax)
      >>> path.name, "import pipelib" in path.read_text()
      ('own.py', True)
    """
    path = pathlib.Path(tempfile.mkdtemp(prefix="pipelib-")) / name
    sources = (inspect.getsource(function) for function in functions)
    path.write_text("\n\n".join([_IMPORTS, *sources]), "utf-8")
    return path


def command(words: str, folder: pathlib.Path) -> None:
    """Runs `python -m pallascope` with these words in a folder; shows them and what comes of them.

    That is what it prints, or else what it says of an error, and its exit status.

    Example:
      >>> files.command("--version", pathlib.Path("."))
      ````text
      $ python -m pallascope --version
      ...
      exit status 0
      ````
    """
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    # A notebook asks all that it starts for colours, which a code block does not show.
    there = os.environ | dict(JAX_PLATFORMS="cpu", PYTHONPATH=path, NO_COLOR="1")
    there.pop("PALLASCOPE_CUDA", None)
    call = [sys.executable, "-m", "pallascope", *shlex.split(words)]
    run = subprocess.run(call, cwd=folder, env=there, capture_output=True, text=True, check=False)
    said = (run.stdout.strip() or run.stderr.strip()).replace(f"{folder}{os.sep}", "")
    said = relative_paths(said.removesuffix(UNCOMPILED).rstrip())  # of the machine, not the kernel
    say(f"````text\n$ python -m pallascope {words}\n{said}\nexit status {run.returncode}\n````")
