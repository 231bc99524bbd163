"""Asks `benchmarks.compiled` in a process of its own, which leaves the GPU's memory alone.

A process that measures must not trace for this purpose itself: JAX would take most of the GPU's
memory for it, beside the processes that need it.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def note(path: pathlib.Path) -> None:
    """Gives each new measurement of a record the digest of what JAX compiled for it."""
    _ask("note", path)


def stale(path: pathlib.Path) -> list[str]:
    """The names of a record's measurements that were made of other kernels; none if no record."""
    return json.loads(_ask("stale", path)) if path.exists() else []


def is_current(path: pathlib.Path, name: str) -> bool:
    """Whether no measurement of a group was stale when this process first asked about its record.

    Asking traces the whole record, and the code of a process does not change.

    Args:
      path: the record.
      name: the group's part and problem.
    """
    return not any(
        found == name or found.startswith((f"{name},", f"{name} "))
        for found in _stale_at_first(path)
    )


@functools.cache
def _stale_at_first(path: pathlib.Path) -> list[str]:
    return stale(path)


def _ask(command: str, path: pathlib.Path) -> str:
    arguments = [sys.executable, "-m", "benchmarks.compiled", command, str(path.resolve())]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()
