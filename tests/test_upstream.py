"""Reports for other projects: what they quote is what pipelib prints, and their kernels hold."""

import contextlib
import functools
import io
import pathlib
import re
import sys

import jax
import pytest

from pipelib import __main__ as command
from pipelib.command import targets

ROOT = pathlib.Path(__file__).parents[1]
UPSTREAM = ROOT / "docs/upstream"
KERNELS = sorted(path.name for path in (UPSTREAM / "kernels").glob("*.py"))
_QUOTE = re.compile(r"^```console\n\$ python -m pipelib (.+)\n((?:.+\n|\n)*?)```$", re.MULTILINE)
REPORTS = {
    path.name: _QUOTE.findall(path.read_text("utf-8"))
    for path in sorted(UPSTREAM.glob("*.md"))
    if path.name != "README.md"
}
WORDS = sorted({words for quotes in REPORTS.values() for words, _ in quotes})


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


@functools.cache
def said(words):
    """The status and the text of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = command.main(words.split())
    return status, out.getvalue()


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_quotes_the_fault_and_then_the_mended_kernel(report):
    (wrong, _), (right, _) = REPORTS[report]
    assert right == wrong.replace(":wrong", ":right") != wrong
    assert said(wrong)[0] == 1 and said(right)[0] == 0


@pytest.mark.parametrize("report", REPORTS)
def test_what_a_report_quotes_is_what_is_printed(report):
    for words, text in REPORTS[report]:
        assert said(words)[1] == text


@pytest.mark.parametrize("words", [words for words in WORDS if ":right" in words])
def test_a_mended_kernel_is_right_in_every_block(words):
    status, text = said(f"{words} --block all")
    assert (status, "none with findings" in text) == (0, True), text


@pytest.mark.parametrize("words", WORDS)
def test_jax_compiles_it_for_hopper(words):
    _, name, *args = words.split()
    function = targets._function(name)
    shapes = list(map(targets.argument, args))
    assert jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()


def test_each_kernel_is_in_a_report_and_each_report_in_the_list():
    quoted = {words.split()[1].split(":")[0].split("/")[-1] for words in WORDS}
    assert quoted == {*KERNELS}
    listed = re.findall(r"^\| \[(.+?)\]\(\1\)", (UPSTREAM / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(REPORTS)


def test_a_report_links_to_its_kernel_and_names_its_place():
    for name, quotes in REPORTS.items():
        text = (UPSTREAM / name).read_text("utf-8")
        kernel = quotes[0][0].split()[1].split(":")[0].split("/")[-1]
        assert f"[kernels/{kernel}](kernels/{kernel})" in text
        for part in ("- Repository: https://", "- File: `", "## What happens", "## On a GPU"):
            assert part in text, (name, part)
