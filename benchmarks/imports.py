"""What a script imports: the files of this repository that it can load, found from one entry.

The model. Python's own finder says which file a module is; `ast` says which modules a file imports,
at its top and within its functions. From the entry on, every file of the repository's packages is
followed once. A package counts with its `__init__`, and with its data: its files that are not
Python.

Not covered: modules whose names are made at run time (`importlib.import_module`).
"""

import ast
import importlib.util
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]


def sources(entry: str) -> tuple[pathlib.Path, ...]:
    """The files that a module depends on, its own among them, in order of their names.

    Args:
      entry: the module's name, as in "benchmarks.schedule".

    Raises:
      ModuleNotFoundError: there is no such module in the repository.
    """
    first = _file(entry)
    if first is None:
        raise ModuleNotFoundError(f"There is no module {entry!r} under {ROOT.name}.", name=entry)
    found: dict[pathlib.Path, None] = {}
    waiting = [*_with_packages(entry)]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is None or path in found:
            continue
        found[path] = None
        if path.name == "__init__.py":
            found |= dict.fromkeys(_data(path.parent))
        for imported in _imports(path, name):
            waiting += _with_packages(imported)
    return tuple(sorted(found))


def _with_packages(name: str) -> Iterator[str]:
    """A module and the packages that it is in, which are loaded first."""
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _file(name: str) -> pathlib.Path | None:
    """A module's file, if it is one of this repository."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a name within a module, not a module
        return None
    if spec is None or spec.origin is None:
        return None
    path = pathlib.Path(spec.origin)
    inside = path.is_relative_to(ROOT) and not path.relative_to(ROOT).parts[0].startswith(".")
    return path if inside else None


def _imports(path: pathlib.Path, name: str) -> Iterator[str]:
    """The names that a file imports; of `from a import b`, both `a` and `a.b`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if node.level else relative
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _data(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """The files of a package that are not Python."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            yield path
