"""Reports for other projects: what they quote is what pallascope prints, and their kernels hold."""

import functools
import pathlib
import re
import sys

import numpy as np
import pytest

from pallascope.command import targets
from pipelib_book.gallery import Gpu
from pipelib_book.wild import WILD
from tools import upstream
from tools.upstream import UPSTREAM

said = functools.cache(upstream.said)
FOLDER = "pipelib_book/wild"
KERNELS = sorted(
    path.name for path in (upstream.ROOT / FOLDER).glob("*.py") if path.name != "__init__.py"
)
REPORTS = {path.name: upstream.quotes(path.read_text("utf-8")) for path in upstream.reports()}
WORDS = sorted({quote.words for quotes in REPORTS.values() for quote in quotes})


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(upstream.ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


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
    together = "--block together" in words
    status, text = said(words)
    verdict = "no finding in all of grid" if together else ": no finding "
    assert (status, verdict in text) == (0, True), text


@pytest.mark.parametrize("words", WORDS)
def test_its_arguments_are_those_of_the_case(words):
    """With these, the tests of the cases compile each version for its GPU."""
    _, name, *args = words.partition(" --")[0].split()
    own = hazard_of(name).arguments(np.random.default_rng(0), 1)
    quoted = [(shape.shape, shape.dtype) for shape in map(targets.argument, args)]
    assert quoted == [(x.shape, x.dtype) for x in own]


def hazard_of(name):
    """The case whose kernel `file.py:function` names."""
    return WILD[pathlib.Path(name.partition(":")[0]).stem.replace("_", "-")]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_on_blackwell_says_that_no_gpu_ran_it(report):
    text = " ".join((UPSTREAM / report).read_text("utf-8").split())
    hazard = hazard_of(REPORTS[report][0].words.split()[1])
    assert ("not run on a Blackwell GPU" in text) is (hazard.gpu is Gpu.BLACKWELL)
    assert ("runs of each version" in text) is (hazard.gpu is Gpu.HOPPER)


def test_each_kernel_is_in_a_report_and_each_report_in_the_list():
    quoted = {words.split()[1].split(":")[0].split("/")[-1] for words in WORDS}
    assert quoted == {*KERNELS}
    listed = re.findall(r"^\| \[(.+?)\]\(\1\)", (UPSTREAM / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(REPORTS)


def test_a_report_links_to_its_kernel_and_names_its_place():
    for name, quotes in REPORTS.items():
        text = (UPSTREAM / name).read_text("utf-8")
        kernel = quotes[0].words.split()[1].split(":")[0].split("/")[-1]
        assert f"[{kernel}](../../{FOLDER}/{kernel})" in text
        for part in ("- Repository: https://", "- File: `", "## What happens", "## On a GPU"):
            assert part in text, (name, part)


# What rewrites them.


def test_a_quote_is_rewritten_and_the_rest_of_a_report_stays():
    words = next(words for words in WORDS if ":right" in words)
    head, tail = "# A report\n\n```console\n$ make\nno\n```\n\n", "\nText.\n"
    old = f"{head}```console\n$ python -m pallascope {words}\nold\n\nlines\n```{tail}"
    new = upstream.rewritten(old)
    assert new == f"{head}```console\n$ python -m pallascope {words}\n{said(words)[1]}```{tail}"
    assert upstream.rewritten(new) == new and upstream.quotes(new) == [(words, said(words)[1])]


def test_the_tool_writes_the_reports_that_have_changed(tmp_path, monkeypatch, capsys):
    name, text = "jax_ragged_dot.md", (UPSTREAM / "jax_ragged_dot.md").read_text("utf-8")
    for file, written in ((name, text.replace("1 thread checked", "9 threads")), ("b.md", "B\n")):
        (tmp_path / file).write_text(written)
    monkeypatch.setattr(upstream, "UPSTREAM", tmp_path)
    upstream.main()
    assert capsys.readouterr().out == f"{name}: rewritten.\n"
    assert (tmp_path / name).read_text() == text
