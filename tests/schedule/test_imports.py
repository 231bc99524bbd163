"""Who imports whom in `pipelib.schedule`: arrows point down only, and there is no circle."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

from pipelib.schedule import H200, Program, check, simulate
from tests.schedule.strategies import ring

pytestmark = pytest.mark.one_jax

PACKAGE = pathlib.Path(__file__).parents[2] / "pipelib" / "schedule"
NAME = "pipelib.schedule"
VALUES = {
    "program", "report", "timeline", "machine", "frozen", "garbage", "interleaving", "lanes",
}  # fmt: skip
ROOMS = ("tracing", "checking", "simulating", "drawing")
# What the modules of each room may import, besides each other.
ALLOWED = {
    "program": set(),
    "frozen": set(),
    "garbage": set(),
    "timeline": set(),
    "machine": set(),
    "interleaving": set(),
    "lanes": {"program"},
    "editing": {"program"},
    "sources": {"program"},
    "report": {"program", "interleaving", "timeline"},
    "arguments": VALUES,
    "profile": VALUES,
    **{room: {*VALUES, "arguments"} for room in ROOMS},
    "predicting": {*VALUES, "arguments", "tracing", "simulating"},
    "judging": {*VALUES, "checking", "simulating", "drawing"},
    "sliders": {*VALUES, "arguments", "judging", *ROOMS},
    "laboratory": {*VALUES, "editing", "sources", "judging", "checking", "simulating", "drawing"},
    "": {*VALUES, *ROOMS, "sliders", "predicting"},
}
# The only arrows upward, followed when a timeline is drawn or a fault is played: see the docstrings
# of `timeline` and of `report`, or a program is saved. The last two are for types.
LATE = {("timeline", "drawing.plot"), ("timeline", "drawing.player"),
        ("timeline", "drawing.perfetto"), ("report", "checking.playing"),
        ("program", "sources"),
        ("report", "timeline"), ("report", "drawing.player")}  # fmt: skip
# Those that read a jaxpr or call JAX.
OF_JAX = {"tracing"}


def modules(folder=PACKAGE):
    """The source of each module, by its name below the package."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text("utf-8")
    return found


def room_of(module):
    return module.partition(".")[0]


def imports(source, names):
    """(module, whether it is imported late) for each import of a source; late is in a function."""
    tree = ast.parse(source)
    late = {
        id(node)
        for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }  # fmt: skip
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            below = (node.module or "").removeprefix(NAME).lstrip(".")
            inside = [f"{below}.{alias.name}".lstrip(".") for alias in node.names]
            is_ours = (node.module or "").startswith(NAME)
            found = [f"{NAME}.{name}" for name in inside if name in names] if is_ours else []
            found = found or [node.module or ""]
        else:
            continue
        for name in found:
            yield name, id(node) in late or id(node) in for_types


def arrows(sources):
    """(importer, imported, whether late) for all arrows within the package.

    The package itself imports each of its names when it is asked for; those are its arrows.
    """
    for module, source in sources.items():
        for name, is_late in imports(source, sources):
            if name.startswith(NAME):
                yield module, name.removeprefix(NAME).lstrip("."), is_late and module != ""


def wrong_arrows(sources):
    found = set()
    for module, imported, is_late in arrows(sources):
        here, there = room_of(module), room_of(imported)
        allowed = here == there or there in ALLOWED.get(here, set())
        if not allowed and not (is_late and (module, imported) in LATE):
            found.add((module, imported))
    return found


def order_of(sources):
    """The modules, each after those that it imports at once; CycleError if there is a circle."""
    graph = {module: set() for module in sources}
    for module, imported, is_late in arrows(sources):
        if not is_late:
            graph[module].add(imported)
    return [*graphlib.TopologicalSorter(graph).static_order()]


def test_arrows_point_down():
    assert wrong_arrows(modules()) == set()
    assert {room_of(module) for module in modules()} == {*ALLOWED}


def test_there_is_no_circle():
    order = order_of(modules())
    assert order[-1] == "" and order.index("program") < order.index("report")


def test_the_late_arrows_are_those_that_are_known():
    late = {(module, imported) for module, imported, is_late in arrows(modules()) if is_late}
    assert late == LATE


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "numpy", "matplotlib"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

from pipelib.schedule import H200, Program, check, simulate

program = Program.from_json(sys.stdin.read())
timeline = simulate(program, H200)
print(check(program, strict=True), timeline.cycles, timeline.player(), sep="\\n")
"""


@pytest.mark.parametrize("arrivals", [None, 1])  # without a fault, and with one
def test_a_saved_program_is_checked_simulated_and_drawn_without_jax_numpy_and_matplotlib(arrivals):
    saved = ring(2, 8, compute=2, arrivals=arrivals).to_json()
    program = Program.from_json(saved)
    timeline = simulate(program, H200)
    here = check(program, strict=True), timeline.cycles, timeline.player()
    command = [sys.executable, "-c", WITHOUT]
    there = subprocess.run(command, input=saved, text=True, capture_output=True)
    assert (there.stderr, there.stdout) == ("", "\n".join(map(str, here)) + "\n")


def test_only_tracing_knows_jax():
    users = {
        room_of(module)
        for module, source in modules().items()
        for name, _ in imports(source, ())
        if name.partition(".")[0] == "jax"
    }
    assert users == OF_JAX


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("drawing.svg", "from pipelib.schedule.tracing.trace import trace"),
        ("simulating.simulate", "from pipelib.schedule.checking import order"),
        ("program", "from pipelib.schedule.report import Report"),
        ("timeline", "from pipelib.schedule.drawing.plot import plot"),
        ("checking.order", "import pipelib.schedule.sliders"),
    ],
)
def test_an_arrow_upward_or_across_is_found(module, line):
    sources = modules()
    sources[module] = f"{line}\n{sources[module]}"
    ((importer, imported),) = wrong_arrows(sources)
    assert importer == module and imported.rpartition(".")[2] in line


def test_a_circle_is_found():
    sources = modules()
    sources["checking.order"] += "\nfrom pipelib.schedule.checking.memory import Memory\n"
    with pytest.raises(graphlib.CycleError):
        order_of(sources)
