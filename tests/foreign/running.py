"""Runs the tests of one source in a process of its own, with the plugin that collects kernels."""

import os
import pathlib
import subprocess

from tests.foreign.sources import Source

ROOT = pathlib.Path(__file__).parents[2]


def run(
    python: pathlib.Path,
    root: pathlib.Path,
    source: Source,
    out: pathlib.Path,
    most: int,
    workers: str,
) -> None:
    """One source's tests. They may fail: their numbers are zeros."""
    for old in out.glob("*.jsonl"):
        old.unlink()
    command = [
        python, "-m", "pytest", "-q", "--tb=no", "--no-header", "-p", "tests.foreign.collecting",
        "--foreign-out", out.absolute(), "--foreign-gpu", source.gpu,
        "--foreign-most", str(min(most, source.most or most)), "-c", os.devnull, "--rootdir", root,
        "--import-mode=importlib", "-p", "no:cacheprovider",
        *(["-n", workers] if workers != "0" else []), *source.options, *source.files,
    ]  # fmt: skip
    folders = [ROOT, root / source.helpers] if source.helpers else [ROOT]
    path = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        list(map(str, command)), cwd=root, env=path, capture_output=True, text=True
    )
    if done.returncode > 1:  # 1 says that tests failed
        said = (done.stdout + done.stderr)[-3000:]
        raise RuntimeError(f"pytest could not run {source.files} in {root}: {said}")
