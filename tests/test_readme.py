"""The README's kernel does what it says, here and on a GPU."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from pipelib.compiling import lacking

README = pathlib.Path(__file__).parents[1] / "README.md"


def run(folder):
    """Runs the program as a reader would, from a file and in a process of its own."""
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    file = folder / "kernel.py"
    file.write_text(program + 'assert (y == x + 1).all()\nprint("right")\n')
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(file)!r})"],
        capture_output=True, text=True, cwd=README.parent,
    )  # fmt: skip
    assert done.stdout == "right\n", done.stdout + done.stderr


def test_the_kernel_in_the_interpreter(tmp_path):
    run(tmp_path)


def test_the_commands_and_what_they_print(tmp_path):
    text = README.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "kernel.py").write_text(program)
    commands = re.findall(r"^python (-m pipelib .*)$", text, re.MULTILINE)
    (printed,) = re.findall(r"^add_one: no finding.*$", text, re.MULTILINE)
    assert len(commands) == 3
    first, second, third = (
        subprocess.run(
            [sys.executable, *shlex.split(command)], capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(README.parent)},
        )
        for command in commands
    )  # fmt: skip
    assert (first.returncode, first.stdout) == (0, printed + "\n"), first.stderr
    assert second.stdout.startswith("timeline.html: add_one, simulated on NVIDIA H200")
    assert (tmp_path / "timeline.html").read_text().startswith("<!doctype html>")
    if lacking():
        assert third.returncode == 2
    else:
        assert third.returncode == 0 and "\n1 kernel compiled, none with" in third.stdout


def test_the_kernels_that_are_called():
    pattern = r"```pycon\n(>>> from pipelib.kernels.*?)```"
    (block,) = re.findall(pattern, README.read_text(), re.DOTALL)
    code = re.sub(r"^(>>>|\.\.\.) ", "", block, flags=re.MULTILINE)
    draw = np.random.default_rng(0).standard_normal
    shapes = dict(x=(9, 20), w=(20, 20), bias=(20,), scale=(20,))  # small: plain JAX makes these
    shapes |= dict.fromkeys("qkv", (1, 9, 2, 20))
    names = {name: jnp.asarray(draw(shape), jnp.bfloat16) for name, shape in shapes.items()}
    wide = {name: np.asarray(value).astype(np.float64) for name, value in names.items()}
    exec(code, names := names | {"jnp": jnp})
    normed = wide["x"] / np.sqrt((wide["x"] ** 2).mean(1, keepdims=True)) * wide["scale"]
    expected = np.maximum(normed @ wide["w"] + wide["bias"], 0.0) + wide["x"]
    assert_close(names["y"], expected)
    scores = np.einsum("bqhd,bkhd->bhqk", wide["q"], wide["k"]) / 20**0.5
    p = np.exp(np.where(np.tri(9, dtype=bool), scores, -np.inf))
    p /= p.sum(3, keepdims=True)
    assert_close(names["o"], np.einsum("bhqk,bkhd->bqhd", p, wide["v"]))


def test_the_kernel_that_is_tuned():
    pattern = r"```pycon\n(>>> from pipelib import tuning.*?)```"
    (block,) = re.findall(pattern, README.read_text(), re.DOTALL)
    code = re.sub(r"^(>>>|\.\.\.) ", "", block.partition(">>> print")[0], flags=re.MULTILINE)
    exec(code, names := {"functools": functools, "x": jnp.zeros((256, 512))})
    lines = str(names["results"]).splitlines()
    assert lines[0] in block, "the head of the table"
    best = re.search(r"^Best: .*$", block, re.MULTILINE)[0]
    assert best in lines


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
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "kernel.py").write_text(program)
    contributing = README.with_name("CONTRIBUTING.md").read_text()
    pattern = r"^\.venv/bin/python (-m pipelib draw .*) -o (\S+)$"
    ((command, picture),) = re.findall(pattern, contributing, re.MULTILINE)
    # Absolute, so that it is shown on a package index, too.
    shown = "https://raw.githubusercontent.com/pallas-pipelib/pipelib/main/"
    assert f"({shown}{picture})" in README.read_text()
    done = subprocess.run(
        [sys.executable, *shlex.split(command), "-o", "again.svg"], capture_output=True, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(README.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again, kept = (tmp_path / "again.svg").read_text(), (README.parent / picture).read_text()
    assert without_ids(again) == without_ids(kept), f"Draw it anew: python {command} -o {picture}"
    assert "fill: #ffffff" in kept[:2000]  # a ground of its own: it reads on a dark page


def test_the_introduction_is_ten_lines():
    first, *_ = README.read_text().split("\n![")
    assert len(first.strip().splitlines()[2:]) == 10


@pytest.mark.gpu
def test_the_kernel_on_the_gpu(tmp_path):
    run(tmp_path)
