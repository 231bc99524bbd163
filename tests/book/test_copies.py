"""`tools.copies`: what readers run is theirs, and never lost."""

import contextlib

import nbformat
import pytest
import yaml
from nbformat.sign import NotebookNotary

from tools import copies


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A book of one chapter and two other files, and the folder of copies, made once."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    book, lab = tmp_path / "book", tmp_path / "lab"
    book.mkdir()
    write(book / "01_one.ipynb", "x = 1")
    for name in ("01_one.md", "glossary.md", "matplotlibrc"):
        (book / name).write_text(name)
    assert [*copies.update(book, lab)] == []
    return book, lab


def write(path, source):
    cell = nbformat.v4.new_code_cell(source, id="a")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)


def sources(lab):
    return {
        path.name: nbformat.read(path, 4).cells[0].source for path in sorted(lab.glob("*.ipynb"))
    }


def test_the_copies_are_what_a_reader_opens(folders):
    _, lab = folders
    names = {path.name for path in lab.iterdir()}
    assert names == {".book", "01_one.ipynb", "glossary.md", "matplotlibrc"}


def test_they_are_no_pages_of_the_book_and_git_ignores_them():
    config = yaml.safe_load((copies.ROOT / "_config.yml").read_text("utf-8"))
    assert f"{copies.LAB.name}/**" in config["exclude_patterns"]
    assert f"/{copies.LAB.name}/" in (copies.ROOT / ".gitignore").read_text().splitlines()


def test_jupyterlab_trusts_the_book_s_notebooks(folders):
    book, lab = folders
    write(lab / "readers.ipynb", "x = 2")
    assert [*copies.update(book, lab)] == []

    def trusted(name):
        notary = NotebookNotary()
        with contextlib.closing(notary.store):
            return notary.check_signature(nbformat.read(lab / name, 4))

    assert trusted("01_one.ipynb") and not trusted("readers.ipynb")


def test_a_copy_without_a_reader_s_work_follows_the_book(folders):
    book, lab = folders
    write(book / "01_one.ipynb", "x = 2")
    assert [*copies.update(book, lab)] == []
    assert sources(lab) == {"01_one.ipynb": "x = 2"}


def test_what_jupyterlab_changes_by_itself_is_no_work_of_the_reader(folders):
    book, lab = folders
    opened = nbformat.read(lab / "01_one.ipynb", 4)
    opened.metadata["language_info"] = {"name": "python", "version": "3.12.1"}
    nbformat.write(opened, lab / "01_one.ipynb")
    write(book / "01_one.ipynb", "x = 2")
    assert [*copies.update(book, lab)] == []
    assert sources(lab) == {"01_one.ipynb": "x = 2"}


def test_a_reader_s_work_stays(folders):
    book, lab = folders
    write(lab / "01_one.ipynb", "x = 'mine'")
    assert [*copies.update(book, lab)] == []
    write(book / "01_one.ipynb", "x = 2")
    for _ in range(2):  # until the reader has done something about it
        (sentence,) = copies.update(book, lab)
        assert sentence == (
            "lab/01_one.ipynb stays as you saved it, but the book's has changed since:"
            " to get the book's, rename yours and run `make lab` again."
        )
        assert sources(lab) == {"01_one.ipynb": "x = 'mine'"}
    (lab / "01_one.ipynb").rename(lab / "mine.ipynb")
    assert [*copies.update(book, lab)] == []
    assert sources(lab) == {"01_one.ipynb": "x = 2", "mine.ipynb": "x = 'mine'"}


def test_what_a_reader_unfolds_is_no_work_either(folders):
    book, lab = folders
    opened = nbformat.read(lab / "01_one.ipynb", 4)
    opened.cells[0].metadata["jupyter"] = {"source_hidden": False}
    nbformat.write(opened, lab / "01_one.ipynb")
    write(book / "01_one.ipynb", "x = 2")
    assert [*copies.update(book, lab)] == []
    assert sources(lab) == {"01_one.ipynb": "x = 2"}


def test_citations_and_links_without_a_text_are_filled_in(folders):
    book, lab = folders
    (book / "references.bib").write_text(
        "@book{one,\n  title = {{The\n           One}},\n  url = {https://a.b/},\n}\n\n"
        "@book{two,\n  title = {Two},\n  doi = {10/2},\n}\n\n@book{three,\n  title = {Three},\n}\n"
    )
    (book / "01_one.md").write_text("# One\n\n(here)=\n## A place, named\n")
    text = "{cite}`one` {cite}`two, three` [](01_one.ipynb) [](01_one.ipynb#a-place-named) [](here)"
    (book / "notes.md").write_text(text)
    cell = nbformat.v4.new_markdown_cell(text, id="b")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), book / "02_two.ipynb")
    assert [*copies.update(book, lab)] == []
    after = (
        "[The One](https://a.b/) [Two](https://doi.org/10/2), Three [One](01_one.ipynb)"
        " [A place, named](01_one.ipynb#a-place-named) [A place, named](01_one.ipynb#a-place-named)"
    )
    assert (lab / "notes.md").read_text() == after == sources(lab)["02_two.ipynb"]


@pytest.mark.parametrize("path", copies.files(copies.BOOK), ids=lambda path: path.name)
def test_no_citation_and_no_empty_link_is_left_in_the_book_s_copies(path):
    text = copies.filled_in(path).decode()
    assert "{cite}" not in text and "[](" not in text


def test_a_link_that_leads_nowhere_is_said(folders):
    with pytest.raises(
        LookupError, match=r"^A link leads to 'nowhere', which no page of .*book is"
    ):
        copies.link("nowhere", folders[0])


def test_what_the_reader_made_under_a_chapter_s_name_stays(folders):
    book, lab = folders
    write(lab / "02_two.ipynb", "x = 'mine'")
    write(book / "02_two.ipynb", "x = 2")
    (sentence,) = copies.update(book, lab)
    assert "lab/02_two.ipynb stays" in sentence and sources(lab)["02_two.ipynb"] == "x = 'mine'"


@pytest.mark.parametrize("changed", [False, True])
def test_a_chapter_that_the_book_no_longer_has_goes_unless_it_has_work_in_it(folders, changed):
    book, lab = folders
    if changed:
        write(lab / "01_one.ipynb", "x = 'mine'")
    for name in ("01_one.ipynb", "01_one.md"):
        (book / name).unlink()
    assert [*copies.update(book, lab)] == []
    assert sources(lab) == ({"01_one.ipynb": "x = 'mine'"} if changed else {})
