"""`python -m pallascope lab`: the page's parts, and what is refused; tests/book opens a page."""

import base64
import importlib.util
import io
import json
import re
import zipfile
import zlib

import pytest

import pallascope.__main__
from pipelib_book.laboratory import pyodide
from pipelib_book.laboratory.__main__ import main
from pipelib_book.laboratory.page import package
from tests.pallascope.command.kernels import SOURCE
from tests.pallascope.strategies import ring


@pytest.fixture
def kept(tmp_path):
    """A folder with files in place of Pyodide's."""
    folder = tmp_path / "kept"
    folder.mkdir()
    for name in pyodide.FILES:
        (folder / name).write_text(name, "utf-8")
    (folder / pyodide.PACKAGE).write_text(json.dumps({"version": pyodide.VERSION}), "utf-8")
    return folder


@pytest.fixture
def never(monkeypatch):
    """No registry can be reached."""

    def refuse(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pyodide.urllib.request, "urlopen", refuse)


@pytest.mark.usefixtures("never")
def test_a_page_holds_all_that_it_needs(kept, tmp_path, capsys):
    program = ring(2, 4).renamed("<ring>")
    program.save(tmp_path / "ring.json")
    out = tmp_path / "ring.html"
    command = [str(tmp_path / "ring.json"), "-o", str(out), "--pyodide", str(kept)]
    assert main(command) == 0
    assert "It needs no server and no network." in capsys.readouterr().out
    page = out.read_text("utf-8")
    assert "<h1>&lt;ring&gt;</h1>" in page and "<ring>" not in page
    (files,) = re.findall(r'id="pipelib-laboratory-files">(.*?)</script>', page)
    held = {
        name: zlib.decompress(base64.b64decode(text)) for name, text in json.loads(files).items()
    }
    assert {*held} == {*pyodide.FILES, "pallascope.zip", "worker.js"}
    assert all(held[name] == name.encode() for name in pyodide.FILES)
    assert not re.search(r'(?:src|href)="', page)


@pytest.mark.usefixtures("never")
def test_a_kernel_is_traced(kept, tmp_path, capsys):
    (tmp_path / "grid_kernels.py").write_text(SOURCE, "utf-8")
    kernel = f"{tmp_path}/grid_kernels.py:right", "float32[32,128]"
    assert main([*kernel, "-o", str(tmp_path / "k.html"), "--pyodide", str(kept)]) == 0
    assert "k.html: open it in a browser." in capsys.readouterr().out
    page = (tmp_path / "k.html").read_text("utf-8")
    assert "plgpu.barrier_wait(barrier)" in page  # a line of its source


def test_the_package_has_what_needs_no_jax():
    names = zipfile.ZipFile(io.BytesIO(package())).namelist()
    assert {"pallascope/__init__.py", "pipelib_book/laboratory/bench.py"} <= {*names}
    assert "pallascope/machines/h200.json" in names
    assert not [name for name in names if "tracing" in name or "kernels" in name]


def test_the_instruments_command_hands_over(tmp_path, capfd):
    """To the kit's own, or it says where that is to be had."""
    assert pallascope.__main__.main(["lab", "k.json", "-o", str(tmp_path / "k.svg")]) == 2
    assert "k.svg ends with '.svg', but a page is named .html." in capfd.readouterr().err


def test_without_the_kit_the_instruments_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert pallascope.__main__.main(["lab", "k.py:f", "-o", "k.html"]) == 2
    assert capsys.readouterr().err == (
        "pallascope lab: The laboratory is in the book's kit, the package pipelib_book, which is"
        " not installed here, so there is no page to write: install it with `pip install"
        " pallas-pipelib-book`.\n"
    )


def test_a_name_that_is_no_page_s_is_refused(tmp_path, capsys):
    assert main(["k.json", "-o", str(tmp_path / "k.svg")]) == 2
    assert "k.svg ends with '.svg', but a page is named .html." in capsys.readouterr().err


@pytest.mark.usefixtures("never")
def test_without_pyodide_it_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ring(2, 4).save(tmp_path / "ring.json")
    assert main([str(tmp_path / "ring.json"), "-o", str(tmp_path / "k.html")]) == 2
    said = capsys.readouterr().err
    assert "could not be brought from https://" in said and "(no network): try again" in said
    assert str(tmp_path / "cache" / "pipelib" / "pyodide") in said
    assert not (tmp_path / "k.html").exists()


def test_what_is_no_program_is_refused(kept, tmp_path, capsys):
    (tmp_path / "ring.json").write_text("{}", "utf-8")
    out = ["-o", str(tmp_path / "k.html"), "--pyodide", str(kept)]
    assert main([str(tmp_path / "ring.json"), *out]) == 2
    assert "This JSON has format None" in capsys.readouterr().err


def test_an_archive_that_is_not_the_pinned_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^The archive of Pyodide [\d.]+ has the digest sha512-"):
        pyodide.unpack(b"another", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_half_of_pyodide_is_none(kept):
    assert pyodide.is_in(kept)
    (kept / pyodide.FILES[0]).unlink()
    assert not pyodide.is_in(kept)


def test_another_version_is_none(kept):
    (kept / pyodide.PACKAGE).write_text('{"version": "0.1"}', "utf-8")
    assert not pyodide.is_in(kept)
