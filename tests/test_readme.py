"""The README: its blocks run as they are written, and its kernel here and on a GPU."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement

from pallascope.compiling import lacking
from pipelib import versions

README = pathlib.Path(__file__).parents[1] / "README.md"


BLOCK = re.compile(r"^```(sh|python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Kind and text of each block, in order."""
    return BLOCK.findall(README.read_text("utf-8"))


def kernel():
    (program,) = [text for kind, text in blocks() if kind == "python"]
    return program


def run(folder):
    """Runs the program as a reader would, from a file and in a process of its own."""
    file = folder / "kernel.py"
    file.write_text(kernel() + 'assert (y == x + 1).all()\nprint("right")\n')
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(file)!r})"],
        capture_output=True,
        text=True,
        cwd=README.parent,
    )
    assert done.stdout == "right\n", done.stdout + done.stderr


# Stand-ins, since other tests execute these: `git clone`, pip's installs (`test_colab`,
# `test_packaging`), and `make`, of which it is asked whether it has the target. (`make test-slow`
# is what runs this.) The compiler's tools come from the folder that it makes.
STAND_INS = {
    "git": '[ "$1" = clone ] && mkdir "${2##*/}"',
    "make": 'exec "$MAKE" --directory="$ROOT" --dry-run "$@" > /dev/null',
    "pip": 'case " $* " in *" --target cuda "*) ln -s "$PALLASCOPE_CUDA" cuda;; esac',
    "python": 'exec "$PYTHON" "$@"',
}


@pytest.fixture
def shell(tmp_path):
    """Runs a block of a shell as it is written, in a folder where `python` has the package."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    values = {"PYTHON": sys.executable, "MAKE": shutil.which("make"), "ROOT": README.parent}
    values |= {"PYTHONPATH": README.parent, "JAX_NUMPY_DTYPE_PROMOTION": "standard"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    env |= {name: str(value) for name, value in values.items()}
    env["PATH"] = f"{commands}{os.pathsep}{env['PATH']}"

    def run_block(text):
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=here, env=env, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    run_block.folder = here
    return run_block


@pytest.mark.slow
def test_every_block_runs_as_written_in_order(shell):
    """Those of Python's prompt in one session, as the text says."""
    session, said = "", []
    for kind, text in blocks():
        if kind == "python":
            (shell.folder / "kernel.py").write_text(text)
        elif kind == "pycon":
            session += text
        elif "pipelib compile" in text and lacking():
            said.append("")
        else:
            code, out, err = shell(text)
            assert code == 0, text + out + err
            said.append(out)
    (printed,) = re.findall(r"^add_one: no finding.*$", session, re.MULTILINE)
    (drawn,) = [out for out in said if "timeline.html" in out]
    assert drawn.startswith(f"{printed}\ntimeline.html: add_one, simulated on NVIDIA H200")
    assert lacking() or "\n1 kernel compiled, none with" in "".join(said)

    (shell.folder / "timeline.html").unlink()
    (shell.folder / "session.txt").write_text(session + SAVE)
    code, out, err = shell("python -m doctest -o ELLIPSIS session.txt")
    assert code == 0, out + err
    assert (shell.folder / "timeline.html").read_text("utf-8").startswith("<!doctype html>")
    values = np.load(shell.folder / "values.npz")
    assert_right({name: values[name].astype(np.float64) for name in values})


SAVE = """
>>> import numpy
>>> names = ["a", "w", "scale", "bias", "y", "q", "k", "v", "o"]
>>> numpy.savez("values.npz", **{name: globals()[name].astype("float32") for name in names})
"""


def assert_right(values):
    """The product and the attention of the README, against NumPy."""
    a, q, k, v = (values[name] for name in "aqkv")
    normed = a / np.sqrt((a**2).mean(1, keepdims=True)) * values["scale"]
    expected = np.maximum(normed @ values["w"] + values["bias"], 0.0) + a
    assert_close(values["y"], expected)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    p = np.exp(np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf))
    p /= p.sum(3, keepdims=True)
    assert_close(values["o"], np.einsum("bhqk,bkhd->bqhd", p, v))


def test_the_book_s_address_is_first():
    project = tomllib.loads(README.with_name("pyproject.toml").read_text("utf-8"))["project"]
    title, first, *_ = re.split(r"\n\n+", README.read_text("utf-8"))
    assert title.startswith("# ") and f"<{project['urls']['Documentation']}/>" in first


def test_the_kernel_in_the_interpreter(tmp_path):
    run(tmp_path)


def assert_close(found, expected):
    off = np.asarray(found).astype(np.float64) - expected
    assert np.linalg.norm(off) < 0.01 * np.linalg.norm(expected)


def without_ids(svg):
    """An SVG without its date, and with its random ids numbered in their order."""
    svg = re.sub(r"<dc:date>.*?</dc:date>", "", svg)
    ids = {name: f"id{n}" for n, name in enumerate(dict.fromkeys(ID.findall(svg)))}
    return ID.sub(lambda found: ids[found[0]], svg)


ID = re.compile(r"\b[a-z][0-9a-f]{10}\b")


def test_the_picture_is_what_its_command_draws(tmp_path):
    (tmp_path / "kernel.py").write_text(kernel())
    contributing = README.with_name("CONTRIBUTING.md").read_text()
    pattern = r"^\.venv/bin/python (-m pallascope draw .*) -o (\S+)$"
    ((command, picture),) = re.findall(pattern, contributing, re.MULTILINE)
    # Absolute, so that it is shown on a package index, too.
    shown = "https://raw.githubusercontent.com/pallas-pipelib/pipelib/main/"
    assert f"({shown}{picture})" in README.read_text()
    done = subprocess.run(
        [sys.executable, *shlex.split(command), "-o", "again.svg"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(README.parent)},
    )
    assert done.returncode == 0, done.stderr
    again, kept = (tmp_path / "again.svg").read_text(), (README.parent / picture).read_text()
    assert without_ids(again) == without_ids(kept), f"Draw it anew: python {command} -o {picture}"
    assert "fill: #ffffff" in kept[:2000]  # a ground of its own: it reads on a dark page


def test_the_introduction_is_ten_lines_at_most():
    first, *_ = README.read_text().split("\n![")
    _, _, badges, introduction = first.strip().split("\n\n")
    assert badges.startswith("[![") and len(introduction.splitlines()) <= 10


def test_the_badges_are_true():
    project = tomllib.loads(README.with_name("pyproject.toml").read_text("utf-8"))["project"]
    repository, home = project["urls"]["Repository"], README.parent
    badges = re.findall(r"^\[!\[(.*)\]\((.*)\)\]\((.*)\)$", README.read_text("utf-8"), re.MULTILINE)
    tests, book, python, licence = badges
    for (_, picture, _), workflow in ((tests, "test"), (book, "pages")):
        assert picture == f"{repository}/actions/workflows/{workflow}.yml/badge.svg"
        assert (home / ".github" / "workflows" / f"{workflow}.yml").exists()
    assert tests[2] == tests[1].removesuffix("/badge.svg")
    assert book[2] == f"{project['urls']['Documentation']}/"
    said = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert re.findall(r"3\.\d+", python[0]) == re.findall(r"3\.\d+", python[1]) == said
    assert licence[0] == f"License: {project['license']}" and (home / licence[2]).exists()
    assert licence[1].replace("--", "-").endswith(f"/License-{project['license']}-blue")


def rows():
    """The table of versions: the cells of each row, by the row's name."""
    (text,) = re.findall(r"^## Versions\n\n(.*?)\n\n", README.read_text("utf-8"), re.M | re.S)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert cells[0] == ["", "JAX", "Python", "system", "GPU"]
    return {name: values for name, *values in cells[2:]}


def test_the_versions_are_those_of_the_code_of_ci_and_of_the_last_gpu_run():
    root = README.parent
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    gpu, cpu, fast, second, expected, refused = rows().values()
    oldest, newest = (".".join(map(str, each)) for each in (versions.OLDEST, versions.NEWEST))

    last = json.loads((root / "tests" / "gpu_record.json").read_text("utf-8"))
    python = last["python"].rpartition(".")[0]
    assert gpu[:2] == [last["jax"], python] == [oldest, python]
    assert last["gpu"].split()[1] in re.findall(r"\w+", gpu[3])
    assert f"CUDA {last['cuda']}, driver {last['driver'].partition('.')[0]}" in gpu[3]

    pins = [(root / f"requirements{name}.txt").read_text("utf-8") for name in ("", "-jax012")]
    assert [f"\njax=={row[0]}\n" in pin for row, pin in zip((cpu, second), pins)] == [True, True]
    assert (cpu[0], fast[0], second[0]) == (oldest, oldest, newest)
    workflow = yaml.safe_load((root / ".github" / "workflows" / "test.yml").read_text("utf-8"))
    jobs = workflow["jobs"]
    (ours,) = {
        step["with"]["python-version"]
        for name in ("slow", "second-jax")
        for step in jobs[name]["steps"]
        if "with" in step
    }
    assert [cpu[1], second[1]] == [ours, ours] == [python, python]
    assert fast[1].split(", ") == jobs["fast"]["strategy"]["matrix"]["python"]
    tested = {job["runs-on"].partition("-")[0] for name, job in jobs.items() if name != "macos"}
    assert tested == {"ubuntu"} and {row[2] for row in (cpu, fast, second)} == {"Linux, x86-64"}
    assert "macOS on Apple silicon" in expected[2]  # until somebody has run that job

    (jax,) = (Requirement(each) for each in project["dependencies"] if each.startswith("jax"))
    assert f"before {oldest}: an ImportError. After {newest}: a warning" in refused[0]
    assert jax.specifier.contains(oldest) and jax.specifier.contains(newest)
    assert not jax.specifier.contains("0.13.0") and "none from 0.13 on" in refused[0]
    assert refused[1] == project["requires-python"].replace(">=", "before ")
    assert expected[1] == f"after {fast[1].split(', ')[-1]}"
    for name in ("cuda12", "cuda13"):
        assert name in project["optional-dependencies"]


def test_without_make_the_lab_has_the_same_options():
    """The lines for Windows beside what `make lab` would run."""
    (block,) = re.findall(r"^```powershell\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    make = ["make", "--dry-run", "--no-print-directory", "lab"]
    done = subprocess.run(make, capture_output=True, text=True, check=True, cwd=README.parent)
    made = done.stdout.replace(f"{README.parent}/", "").split()
    optional = {"--allow-root", "--LabApp.default_url=/lab/tree/01_introduction.ipynb"}
    given = [{word for word in words if word.startswith("--")} for words in (block.split(), made)]
    assert given[0] == given[1] - optional and len(given[0]) == 2
    for word in ("requirements-lab.txt", "tools.copies", ".venv-lab"):
        assert word in made and word in re.split(r"[\s\\]+", block)
    assert "PYTHONPATH" in block and f"PYTHONPATH={README.parent}" in done.stdout


@pytest.mark.gpu
def test_the_kernel_on_the_gpu(tmp_path):
    run(tmp_path)
