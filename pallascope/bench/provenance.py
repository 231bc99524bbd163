"""Where a recorded result came from: the machine, the versions, the code.

Three kinds of record are committed to this repository: the chapters' outputs, the last run of the
GPU tests, and the benchmarks. All of them hold `provenance()`, with `code_digest()` in it: the
digest tells whether the code is still the code that ran.

The digest is over the *meaning* of code: comments, layout and docstrings may change, and a record
stays valid. It is also the same for every Python from 3.12 on, unlike `ast.dump`.

`python -m pallascope.bench.provenance` prints the provenance as JSON. A process that must not take
the GPU's memory itself runs that.
"""

import ast
import datetime
import hashlib
import json
import pathlib
import platform
import re
import subprocess
from typing import Any, cast

import jax
import jaxlib.version

from pipelib import targets

#: The folder of pipelib, on whose code a kernel's result depends.
PACKAGE = pathlib.Path(targets.__file__).resolve().parent


def on_hopper() -> bool:
    """Whether JAX's default device is a Hopper GPU (compute capability 9.x).

    pipelib's kernels need one: older GPUs have neither `wgmma` nor TMA, and Blackwell has other
    instructions instead of `wgmma`.

    Example:
      >>> on_hopper()  # on a CPU
      False
    """
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return str(capability).startswith("9.")


def provenance() -> dict[str, Any]:
    """The machine, the versions and the code of this process, as plain data.

    `gpu`, `driver` and `cuda` are None where JAX runs on the CPU. `git_commit` is None outside of a
    checkout; it ends with "+" if the checkout has changes that are not committed.

    Example:
      >>> record = {"microseconds": [9.0, 10.0], **provenance()}
      >>> record["jax"] == jax.__version__, record["gpu"]  # on a CPU
      (True, None)
    """
    device = jax.devices()[0]
    on_gpu = device.platform == "gpu"
    return {
        "gpu": device.device_kind if on_gpu else None,
        "compute_capability": getattr(device, "compute_capability", None),
        "driver": _driver_version() if on_gpu else None,
        "cuda": _cuda_version(device.client.platform_version),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "python": platform.python_version(),
        "utc": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        "git_commit": _git_commit(),
        "code_digest": code_digest(),
    }


def code_digest(*sources: pathlib.Path) -> str:
    """SHA-256 of what code means, in hexadecimal digits.

    Args:
      sources: files, and folders whose files all count; by default pipelib. A
        file counts with its path within its folder, or with its name if it is itself a source. A
        file that is not Python counts byte by byte.

    Example:
      >>> file = pathlib.Path("kernel.py")
      >>> _ = file.write_text("x = 1")
      >>> before = code_digest(file)
      >>> _ = file.write_text("x = 1  # a comment")
      >>> code_digest(file) == before
      True
    """
    digest = hashlib.sha256()
    for source in sources or (PACKAGE,):
        folder = source if source.is_dir() else source.parent
        for path in _files(source):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(_meaning_of(path))
    return digest.hexdigest()


def _files(source: pathlib.Path) -> list[pathlib.Path]:
    """The files of a source in order, without caches and hidden files."""
    if not source.is_dir():
        return [source]
    files = (path for path in source.rglob("*") if path.is_file())
    return sorted(path for path in files if not _is_cache(path.relative_to(source)))


def _is_cache(path: pathlib.Path) -> bool:
    """Whether a file, or a folder that it is in, is hidden or Python's cache."""
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def meaning(tree: ast.AST) -> str:
    """What code does, as text: without comments, layout and docstrings.

    Example:
      >>> import ast
      >>> meaning(ast.parse("x = 1")) == meaning(ast.parse("x  =  1  # one"))
      True
    """
    _strip_docstrings(tree)
    return repr(_shape(tree))


def _meaning_of(path: pathlib.Path) -> bytes:
    """The bytes of a file that its digest is over: of Python, the meaning alone."""
    if path.suffix != ".py":
        return path.read_bytes()
    return meaning(ast.parse(path.read_text("utf-8"))).encode()


def _strip_docstrings(tree: ast.AST) -> None:
    """Takes the docstrings out of a syntax tree."""
    for node in ast.walk(tree):
        is_documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if is_documented and ast.get_docstring(node) is not None:
            del node.body[0]


def _shape(node: object) -> object:
    """A syntax tree as nested tuples, without its empty fields.

    Newer Pythons add fields to old nodes; these are empty in old code.
    """
    if isinstance(node, ast.AST):
        fields = [
            (name, _shape(value))
            for name, value in ast.iter_fields(node)
            if value is not None and value != []
        ]
        return (type(node).__name__, *fields)
    if isinstance(node, list):
        return tuple(map(_shape, cast("list[object]", node)))
    return node


def _driver_version() -> str | None:
    """The GPU driver's version, as nvidia-smi says it."""
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    lines = _output_of(["nvidia-smi", *query])
    return lines.splitlines()[0] if lines else None


def _cuda_version(platform_version: str) -> str | None:
    """The version, as in `12.9`, that a client's `... cuda 12090 ...` says."""
    found = re.search(r"cuda (\d+)", platform_version)
    if found is None:
        return None
    number = int(found[1])
    return f"{number // 1000}.{number % 1000 // 10}"


def _git_commit() -> str | None:
    """The commit of the checkout that the package is in, if it is in one of its own."""
    git = ["git", "-C", str(PACKAGE)]
    top = _output_of([*git, "rev-parse", "--show-toplevel"])
    commit = _output_of([*git, "rev-parse", "--short=12", "HEAD"])
    if not commit or pathlib.Path(top) != PACKAGE.parent:
        return None  # installed, perhaps inside a checkout of something else
    changed = _output_of([*git, "status", "--porcelain"])
    return commit + ("+" if changed else "")


def _output_of(command: list[str]) -> str:
    """A command's output; nothing where it is not installed, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(json.dumps(provenance()))
