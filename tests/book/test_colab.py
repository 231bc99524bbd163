"""The cell that installs in Colab: its text, and a run of it in a clean environment."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools import colab, notebooks
from tools.execution import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("md", notebooks.chapters(), ids=lambda md: md.stem)
def test_each_chapter_begins_with_the_cell(md):
    """If not, run `python -m tools.colab` and `make sync`."""
    assert notebooks.code(notebooks.read_source(md))[0] == colab.cell()


def test_the_cell_takes_the_first_s_place_and_leaves_tags_and_all_else():
    before = "Text.\n\n```{code-cell} ipython3\n:tags: [hide-input]\n\nold()\n```\n\nMore.\n"
    before += "\n```{code-cell} ipython3\nx = 1\n```\n"
    after = colab.with_cell(before)
    assert after == before.replace("old()", colab.cell()) == colab.with_cell(after)


def test_the_cell_installs_the_jax_that_the_outputs_were_recorded_with():
    (wanted,) = re.findall(r'%pip install .*"(jax.*?)"', colab.cell())
    for cuda, extras in {"": set(), "[cuda12]": {"cuda12"}}.items():
        requirement = Requirement(wanted.format(cuda=cuda))
        assert (requirement.name, requirement.extras) == ("jax", extras)
        (pin,) = requirement.specifier
        records = [notebooks.read_record(md) for md in notebooks.chapters()]
        assert pin.operator == "==" and {record["jax"] for record in records if record} <= {
            pin.version
        }


def test_the_cell_is_short_and_fits_a_phone():
    lines = colab.cell().splitlines()
    assert len(lines) <= 20 and max(map(len, lines)) <= 80


def test_colab_s_python_is_new_enough():
    """It is 3.13 since August 2026 (github.com/googlecolab/colabtools/issues/6081)."""
    assert SpecifierSet(PROJECT["requires-python"]).contains("3.13.0")


# ---- A run ---------------------------------------------------------------------------------------

# Colab, as far as the cell sees it: a module of its name, and IPython, which runs `%pip`.
NOTEBOOK = """\
import shutil, sys, types
sys.modules["google.colab"] = colab = types.ModuleType("google.colab")
colab.output = None  # JAX imports it
has_gpu = {has_gpu}
which = shutil.which
shutil.which = lambda name, *rest, **more: (
    has_gpu and "found" if name == "nvidia-smi" else which(name, *rest, **more)
)
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
if has_gpu:  # what is asked for, and nothing is installed
    asked = []
    shell.register_magic_function(asked.append, magic_name="pip")
    shell.run_cell({cell!r}.partition("try:")[0]).raise_error()
    print(*asked, sep="\\n")
else:
    shell.run_cell({cell!r}).raise_error()
    import pallascope, pipelib, pipelib_book
    native = shell.user_ns["device"].native
    print(pipelib.__file__, pallascope.__file__, pipelib_book.__file__, native, sep="\\n")
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder in the place of a release: the wheels, at the names that the cell asks for."""
    folder = tmp_path_factory.mktemp("releases")
    out = folder / f"v{PROJECT['version']}"
    for project in (ROOT, ROOT / "pallascope", ROOT / "pipelib_book"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
    return folder


def run_cell(python, release, folder, *, has_gpu=False):
    """A process that ran the cell, where no package index can be reached."""
    assert "{repository}/releases/download" in colab.cell()
    cell = colab.cell().replace("{repository}/releases/download", release.as_uri())
    (folder / "notebook.py").write_text(NOTEBOOK.format(cell=cell, has_gpu=has_gpu))
    keep = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(python), "notebook.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=keep | {"JAX_PLATFORMS": "cpu", "PIP_NO_INDEX": "1", "IPYTHONDIR": str(folder)},
    )


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A new environment with pip and, as Colab has them, JAX and its like: those of this one.

    A file `.pth` adds this environment's packages behind its own. So nothing is downloaded, pip
    finds the pinned JAX installed, and of the wheels nothing is there but what the cell installs.
    """
    folder = tmp_path_factory.mktemp("colab") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    with open(f"{own}/as_in_colab.pth", "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
def test_where_pip_fails_the_cell_installs_nothing_and_says_so(clean, release, tmp_path):
    """One wheel of three is missing. This test comes first: then nothing is installed yet."""
    version = f"v{PROJECT['version']}"
    shutil.copytree(release / version, tmp_path / version)
    next((tmp_path / version).glob("pallascope*")).unlink()
    done = run_cell(clean, tmp_path, tmp_path)
    assert done.returncode == 1 and "ERROR: " in done.stdout + done.stderr
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith(
        "ImportError: No module named 'pipelib_book'. In Colab, pip has said above why it could"
        " not install it: run this cell again."
    )
    listed = subprocess.run([str(clean), "-m", "pip", "list"], capture_output=True, text=True)
    assert "pallas-pipelib" not in listed.stdout.replace("_", "-")


@pytest.mark.slow
def test_the_cell_installs_the_wheels_and_sets_up(clean, release, tmp_path):
    for _ in range(2):  # a reader may run it again
        done = run_cell(clean, release, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        *_, said, package, instruments, kit, native = done.stdout.splitlines()
        assert "No Hopper GPU here (cpu)" in said and native == "False"
        own = str(clean.parents[1])
        assert package.startswith(own) and package.endswith("site-packages/pipelib/__init__.py")
        assert instruments == package.replace("pipelib", "pallascope")
        assert kit.startswith(own) and kit.endswith("site-packages/pipelib_book/__init__.py")


@pytest.mark.slow
def test_where_there_is_a_gpu_the_cell_asks_for_jax_with_cuda(clean, release, tmp_path):
    (asked,) = run_cell(clean, release, tmp_path, has_gpu=True).stdout.splitlines()
    *_, jax, one, two, three = shlex.split(asked)
    assert re.fullmatch(r"jax\[cuda12\]==[\d.]+", jax)
    names = [wheel.removeprefix(release.as_uri()) for wheel in (one, two, three)]
    assert all((release / name.lstrip("/")).is_file() for name in names)
