"""The packages: wheels of pipelib, of the instruments and of the book's kit; light imports."""

import ast
import json
import pathlib
import pydoc
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement

import pallascope
import pipelib
from pipelib import kernels
from tools import public_names

ROOT = pathlib.Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"][
    "Repository"
]


def python(*arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def built(folder, out):
    """The wheel of a project's folder."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def instruments(tmp_path_factory):
    return built(ROOT / "pallascope", tmp_path_factory.mktemp("instruments"))


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return built(ROOT / "pipelib_book", tmp_path_factory.mktemp("kit"))


def tracked(folder):
    command = ["git", "ls-files", folder]
    return {*subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()}


def test_the_wheel_holds_pipelib_and_nothing_else(wheel):
    assert wheel.name == f"pallas_pipelib-{pipelib.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if name.startswith("pipelib/")}
    assert {name.partition("/")[0] for name in {*names} - inside} == {
        f"pallas_pipelib-{pipelib.__version__}.dist-info"
    }
    assert inside == tracked("pipelib") and "pipelib/py.typed" in inside
    # The tables of tuned configurations apart, no record; nothing of the book.
    data = {name for name in inside if name.endswith(".json")}
    assert all("/tuned/" in name for name in data) and len(data) >= 2
    assert wheel.stat().st_size < 233_500


def test_the_wheel_of_the_instruments_holds_them(instruments):
    assert instruments.name == f"pallascope-{pallascope.__version__}-py3-none-any.whl"
    inside = {name for name in zipfile.ZipFile(instruments).namelist() if ".dist-info/" not in name}
    assert inside == tracked("pallascope") - {"pallascope/pyproject.toml", "pallascope/README.md"}
    assert {"pallascope/py.typed", "pallascope/report.schema.json"} <= inside
    assert instruments.stat().st_size < 414_500


def test_the_wheel_of_the_kit_holds_it_and_the_records_that_chapters_quote(kit):
    assert kit.name == f"pallas_pipelib_book-{pipelib.__version__}-py3-none-any.whl"
    inside = {name for name in zipfile.ZipFile(kit).namelist() if ".dist-info/" not in name}
    results = ROOT / "benchmarks" / "results"
    records = {
        f"pipelib_book/results/{path.relative_to(results).as_posix()}"
        for folder in ("nvidia-h200", "nvidia-h100-80gb-hbm3", "interpreter")
        for path in (results / folder).iterdir()
    }
    assert "pipelib_book/results/nvidia-h200/hazards.json" in records
    records.add("pipelib_book/results/foreign.json")
    project = {"pipelib_book/pyproject.toml", "pipelib_book/README.md"}
    assert inside == tracked("pipelib_book") - project | records


def test_all_have_one_version_and_each_needs_those_below_it():
    folders = ROOT, ROOT / "pallascope", ROOT / "pipelib_book"
    projects = [
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in folders
    ]
    assert {project["version"] for project in projects} == {pipelib.__version__}
    assert pallascope.__version__ == pipelib.__version__
    names = [project["name"] for project in projects]
    for number, project in enumerate(projects):
        needed = {each.name: each for each in map(Requirement, project["dependencies"])}
        assert names[:number] == [name for name in names if name in needed]
        assert all(needed[name].specifier.contains(pipelib.__version__) for name in names[:number])
    assert len({project["urls"]["Repository"] for project in projects}) == 1


def test_the_citation_says_what_the_package_says():
    """In the Citation File Format 1.2.0: it must have a message, a title and authors."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert cited["message"] and cited["title"].startswith("pipelib")
    for key in ("version", "license", "authors", "keywords"):
        assert cited[key] == project[key], key
    urls = project["urls"]
    assert (cited["repository-code"], cited["url"]) == (urls["Repository"], urls["Documentation"])


def test_the_wheel_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
    metadata = archive.read(name).decode()
    for line in (
        "Name: pallas-pipelib",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.12",
        "Requires-Dist: jax<0.13,>=0.11.2",
        "Requires-Dist: numpy",
        *(f"Provides-Extra: {extra}" for extra in ("cuda12", "cuda13", "book", "dev")),
    ):
        assert f"\n{line}\n" in metadata


def test_the_kit_s_readme_is_in_its_wheel_and_does_what_it_says(kit, tmp_path):
    text = (ROOT / "pipelib_book" / "README.md").read_text("utf-8")
    assert f" has {len([*(ROOT / 'book').glob('[0-9]*.md')])} chapters" in text
    archive = zipfile.ZipFile(kit)
    (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
    assert text in archive.read(name).decode()
    (command,) = re.findall(r"```sh\npip install (.*)\n```", text)
    assert all((ROOT / folder / "pyproject.toml").exists() for folder in command.split())
    (session,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    (tmp_path / "session.txt").write_text(session, "utf-8")
    python("-m", "doctest", "-o", "ELLIPSIS", str(tmp_path / "session.txt"))


# JAX and NumPy, and the parts of JAX that any Pallas kernel for GPUs needs.
BASE = "import jax, numpy, jax.extend, jax.experimental.pallas, jax.experimental.pallas.mosaic_gpu"


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (
            "pallascope",
            ("trace", "check", "simulate", "explore", "player", "sweep", "H100", "H200"),
        ),
        ("pipelib", ("emit_pipeline", "emit_pipeline_warp_specialized", "target")),
    ],
)
def test_the_names_that_are_loaded_late_are_listed(package, names):
    """Before they are asked for, as a shell completes them, and in `help`."""
    program = f"import {package}, pydoc; print(dir({package})); print(pydoc.render_doc({package}))"
    listed, text = python("-c", program).stdout.split("\n", 1)
    listed, text = ast.literal_eval(listed), pydoc.plain(text)
    assert {*names, "__all__"} <= {*listed} and listed == sorted({*listed})
    for name in names:
        assert re.search(rf"^    {name}(\(| = )", text, re.MULTILINE), name


def test_importing_a_package_loads_nothing_else():
    """Not even JAX: pytest loads the plugin's module before any test can set JAX's options."""
    program = "import sys, pipelib, pallascope.pytest_plugin; print(*sys.modules)"
    loaded = python("-c", program).stdout.split()
    ours = "pipelib.", "pallascope.", "jax", "numpy"
    assert {name for name in loaded if name.startswith(ours)} == {"pallascope.pytest_plugin"}


@pytest.mark.parametrize("name", ["check", "H200", "tuning", "schedule"])
def test_what_has_moved_says_where_it_is(name):
    now = "pallascope" if name == "schedule" else f"pallascope.{name}"
    with pytest.raises(AttributeError) as error:
        getattr(pipelib, name)
    assert str(error.value) == (
        f"module 'pipelib' has no attribute {name!r}: the instruments have a package of their own"
        f" now, and this is {now}; write `import pallascope`, which `pip install "
        f'"pallascope @ git+{REPOSITORY}#subdirectory=pallascope"` installs.'
    )
    with pytest.raises(AttributeError, match=r"this is pallascope\.tuning\.search over "):
        _ = kernels.tune
    with pytest.raises(AttributeError, match=r"^module 'pipelib' has no attribute 'nothing'$"):
        _ = pipelib.nothing


def test_the_page_for_contributors_lists_the_modules_with_public_names():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (section,) = re.findall(r"^## Public names.*?\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    named, _, other = section.partition("All else may change")
    modules = {module.__name__: hasattr(module, "__all__") for module in public_names.MODULES}
    follow = {name for name in modules if name.startswith("pipelib_book")}
    assert {*re.findall(r"`(p[\w.]+)`", named)} == {*modules} - follow
    assert "`pipelib_book`" in other
    listed, _, whole = named.partition("and the functions\nand classes of")
    for name in {*modules} - follow:
        assert f"`{name}`" in (listed if modules[name] else whole)


def test_the_emitters_load_nothing_else_of_pipelib():
    """The import is light: the kernels are loaded when asked for, and so is the checker."""
    program = (
        f"{BASE}; import sys, json; modules = lambda: sorted(sys.modules); base = modules();"
        "import pipelib, pallascope; pipelib.emit_pipeline, pipelib.emit_pipeline_warp_specialized;"
        "before = modules(); pallascope.check; print(json.dumps([base, before, modules()]))"
    )
    base, before, after = map(set, json.loads(python("-c", program).stdout))
    mine = {name for name in before if name.partition(".")[0] == "pipelib"}
    modules = (
        "cp_async", "pipeline", "refs", "ring", "specs", "targets", "tiles", "versions",
        "warp_specialized",
    )  # fmt: skip
    assert mine == {"pipelib", *(f"pipelib.{module}" for module in modules)}
    named = {name.partition(".")[0] for name in before - base}
    assert (
        named - {"pipelib", "pallascope", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
        == set()
    )
    # What Pallas has for other devices, and what draws.
    heavy = {
        "jax.experimental.pallas.tpu",
        "jax.experimental.pallas.triton",
        "jax.experimental.pallas.ops",
        "matplotlib",
        "IPython",
        "ipywidgets",
    }
    assert not heavy & before
    assert "pallascope.checking.check" in after and not heavy & after


def test_a_kernel_is_not_hidden_by_the_package_of_its_name():
    """Whatever was imported first: the packages, something within them, or their parent."""
    for first in ("pipelib.kernels", "pipelib.kernels.matmul.config", "pallascope.tuning.workers"):
        program = (
            f"import {first}, pipelib.kernels.attention.order, pipelib.kernels.matmul.tuned\n"
            "from pipelib import kernels; from pipelib.kernels.matmul import forms\n"
            "print(*(type(f).__name__ for f in (kernels.matmul, kernels.attention)))"
        )
        assert python("-c", program).stdout.split() == ["function", "function"]
