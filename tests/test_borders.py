"""Who may import whom: ARCHITECTURE.md's table, held over the whole repository.

The model. A *room* is a row of the table, its modules those of the first column's paths; a module
belongs to the row with the longest matching path. An *arrow* is an import of one module by another,
wherever it stands: at the top, in a function, for types. Within a room arrows are free; from room
to room they go where the row's last column says, and all arrows together have no circle.

Not covered: modules that are imported by names made at run time, as the front doors do.
"""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ROW = re.compile(r"^\| (`.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


@functools.cache
def rooms():
    """(number of its row, what it may import) of each path of the table."""
    table = {}
    for row, (paths, _, imports) in enumerate(
        ROW.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    ):
        allowed = [each.rstrip("/") for each in re.findall(r"`([^`]+)`", imports)]
        table |= {path.rstrip("/"): (row, allowed) for path in re.findall(r"`([^`]+)`", paths)}
    return table


@functools.cache
def sources():
    """The source of each module of the repository, by its path."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "--", "*.py"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        path: (ROOT / path).read_text("utf-8")
        for path in done.stdout.split()
        if (ROOT / path).is_file()
    }


def room_of(path):
    """The path of the table that a module belongs to; None if there is none."""
    inside = [room for room in rooms() if is_in(path, room)]
    return max(inside, key=len, default=None)


def is_in(path, folder):
    """Whether a path is this one, or below it."""
    return path == folder or path.startswith(f"{folder}/")


def imported(source, modules):
    """The paths of the repository's modules that a module imports."""
    for name in imported_names(source):
        found = name.replace(".", "/")
        above = found.rpartition("/")[0]
        # A module, a package, or a name that one of these has.
        places = f"{found}.py", f"{found}/__init__.py", f"{above}.py", f"{above}/__init__.py"
        if hits := [place for place in places if place in modules]:
            yield hits[0]


@functools.cache
def imported_names(source):
    """What a source imports, in full."""
    return [*_imported_names(source)]


def _imported_names(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import that begins with a dot"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(modules):
    """(importer, imported) for all imports within the repository."""
    return {
        (path, other)
        for path, source in modules.items()
        for other in imported(source, modules)
        if other != path
    }


def wrong(modules):
    """The arrows that the table does not allow."""
    found = set()
    for path, other in arrows(modules):
        row, allowed = rooms()[room_of(path)]
        there = room_of(other)
        if row != rooms()[there][0] and not any(is_in(there, each) for each in allowed):
            found.add((path, other))
    return found


def circle(modules):
    """A circle of arrows, as a list of modules; None if there is none."""
    graph = {path: set() for path in modules}
    for path, other in arrows(modules):
        graph[path].add(other)
    try:
        [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_each_module_has_a_room_and_each_room_is_there():
    assert [path for path in sources() if room_of(path) is None] == []
    assert [room for room in rooms() if not (ROOT / room).exists()] == []
    assert len(rooms()) > 30


def test_arrows_go_where_the_table_says():
    assert sorted(wrong(sources())) == []


def test_there_is_no_circle():
    assert circle(sources()) is None


def test_no_test_imports_a_test():
    found = [
        (path, other)
        for path, other in arrows(sources())
        if pathlib.Path(other).name.startswith("test_")
    ]
    assert found == []


def tools_for_the_second_jax(modules):
    """The arrows to `tools` of what the Makefile runs with JAX 0.12."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (folders,) = re.findall(r"^BOTH_JAX := (.*)", makefile, re.MULTILINE)
    return {
        (path, other)
        for path, other in arrows(modules)
        if is_in(other, "tools") and any(is_in(path, folder) for folder in folders.split())
    }


def test_what_the_second_jax_runs_needs_no_tool():
    """Tools want the book's packages, and that environment has none of them."""
    assert tools_for_the_second_jax(sources()) == set()
    path, line = "tests/kernels/contract.py", "from tools import notebooks"
    planted = sources() | {path: f"{sources()[path]}\n{line}\n"}
    assert tools_for_the_second_jax(planted) == {(path, "tools/notebooks.py")}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("pallascope/tuning/searching.py", "import pipelib_book.floors"),
        ("pallascope/tracing/pure.py", "from pipelib.kernels import hopper"),
        ("pallascope/drawing/svg.py", "from pallascope.tracing.trace import trace"),
        ("pallascope/simulating/simulate.py", "from pallascope.checking import order"),
        ("pallascope/program.py", "from pallascope.report import Report"),
        ("pallascope/timeline.py", "def late():\n    from pallascope.drawing.plot import plot"),
        ("pipelib/ring.py", "import pallascope"),
        ("benchmarks/nvlink.py", "from tools import notebooks"),
    ],
)
def test_an_import_that_the_table_does_not_allow_is_found(path, line):
    modules = sources() | {path: f"{sources()[path]}\n{line}\n"}
    (found,) = wrong(modules) - wrong(sources())
    importer, other = found
    assert importer == path and other.split("/")[0] in line


def test_a_circle_is_found():
    path = "pallascope/checking/order.py"
    line = "from pallascope.checking.memory import Memory\n"
    assert path in circle(sources() | {path: f"{sources()[path]}\n{line}"})
