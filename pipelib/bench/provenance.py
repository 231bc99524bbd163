"""Where a recorded result came from: the machine, the versions, the code.

Three kinds of record are committed to this repository: the chapters' outputs,
the last run of the GPU tests, and the benchmarks. All of them hold
`provenance()`, and `code_digest()` tells whether the code is still the one that
was run.

The digest is over the *meaning* of code: comments, layout and docstrings may
change, and a record stays valid. It is also the same for every Python from 3.12
on, which `ast.dump` is not. It leaves out what no GPU result depends on: the
analysis of kernels in `schedule`, and the gallery, whose record has a digest of
its own.

`python -m pipelib.bench.provenance` prints the provenance as JSON. A caller
that must not take the GPU's memory itself asks that way.
"""

import ast
import datetime
import hashlib
import json
import pathlib
import platform
import re
import subprocess
from typing import Any

import jax
import jaxlib.version

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
ANALYSIS = ("__main__.py", "gallery.py", "measured", "schedule")


def on_hopper() -> bool:
    """Whether JAX's default device is a Hopper GPU (compute capability 9.x).

    Only there do Mosaic GPU's wgmma and TMA instructions, as pipelib's kernels
    use them, exist: older GPUs lack them, Blackwell replaced wgmma.

    Example:
      >>> on_hopper()  # on a CPU
      False
    """
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return str(capability).startswith("9.")


def provenance() -> dict[str, Any]:
    """The machine, the versions and the code of this process, as plain data.

    `gpu`, `driver` and `cuda` are None where JAX runs on the CPU, and
    `git_commit` is None outside a checkout (a "+" after it: with changes).

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
    """SHA-256 of what code means: that of these files, and of all under these folders.

    Without sources it is that of pipelib but for `ANALYSIS`. A file counts with its path within its
    folder, one that was named itself with its name. What is not Python counts byte by byte.

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
            name = path.relative_to(folder)
            if sources or name.parts[0] not in ANALYSIS:
                digest.update(name.as_posix().encode())
                digest.update(_meaning_of(path))
    return digest.hexdigest()


def _files(source: pathlib.Path) -> list[pathlib.Path]:
    if not source.is_dir():
        return [source]
    files = (path for path in source.rglob("*") if path.is_file())
    is_cache = lambda part: part.startswith((".", "__pycache__"))
    return sorted(path for path in files if not any(map(is_cache, path.relative_to(source).parts)))


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
    if path.suffix != ".py":
        return path.read_bytes()
    return meaning(ast.parse(path.read_text("utf-8"))).encode()


def _strip_docstrings(tree: ast.AST) -> None:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            del node.body[0]


def _shape(node: Any) -> Any:
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
        return tuple(map(_shape, node))
    return node


def _driver_version() -> str | None:
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    lines = _output_of(["nvidia-smi", *query])
    return lines.splitlines()[0] if lines else None


def _cuda_version(platform_version: str) -> str | None:
    """`12.9` from a client's `... cuda 12090 ...`."""
    found = re.search(r"cuda (\d+)", platform_version)
    if found is None:
        return None
    number = int(found[1])
    return f"{number // 1000}.{number % 1000 // 10}"


def _git_commit() -> str | None:
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
