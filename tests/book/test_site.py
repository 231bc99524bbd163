"""The built site: complete, no dead links, nothing loaded from elsewhere."""

import json
import pathlib
import re
import urllib.parse

import pytest

from tools import notebooks
from tools.public_names import public_names

# One worker builds the site, once.
pytestmark = pytest.mark.xdist_group("site")

# What a browser loads by itself when it shows a page.
LOADED = [
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("embed", "src"),
    ("audio", "src"),
    ("video", "src"),
    ("source", "src"),
    ("object", "data"),
    ("image", "href"),
    ("use", "href"),
]
LINKS_THAT_LOAD = {
    "stylesheet",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "icon",
    "manifest",
}
FOREIGN_IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?\s*((?:https?:)?//[^"')\s]+)""")


def loaded_addresses(page):
    for name, attribute in LOADED:
        for node in page.find_all(name):
            for key in (attribute, f"xlink:{attribute}"):
                if node.get(key):
                    yield node[key]
    for link in page.find_all("link"):
        if LINKS_THAT_LOAD & set(link.get("rel", [])):
            yield link["href"]


def is_foreign(address):
    return bool(urllib.parse.urlsplit(address).netloc)


def test_every_chapter_has_a_page_and_the_index_leads_to_the_first(site):
    for md in notebooks.chapters():
        assert (site / "book" / f"{md.stem}.html").is_file()
    assert "book/01_introduction.html" in (site / "index.html").read_text()


def test_chapters_have_the_book_s_looks(site, pages):
    for md in notebooks.chapters():
        page = pages[site / "book" / f"{md.stem}.html"]
        assert any("book.css" in link for link in loaded_addresses(page))


def test_pages_load_nothing_from_elsewhere(pages):
    foreign = [
        (path.name, address)
        for path, page in pages.items()
        for address in loaded_addresses(page)
        if is_foreign(address)
    ]
    assert foreign == []


def test_no_script_is_waited_for(pages):
    """The first paint comes before any script that is loaded."""
    waited = [
        (path.name, node["src"])
        for path, page in pages.items()
        for node in page.find_all("script", src=True)
        if not {"defer", "async"} & node.attrs.keys() and node.get("type") != "module"
    ]
    assert waited == []


def test_what_may_scroll_is_reached_by_keyboard_before_any_script(pages):
    found = [
        (path.name, node.name)
        for path, page in pages.items()
        for node in page.select("pre, div.cell_output, div.math")
        if node.get("tabindex") != "0"
    ]
    assert found == []


def test_styles_load_nothing_from_elsewhere(site, pages):
    styles = {path: path.read_text("utf-8") for path in site.rglob("*.css") if path.is_file()}
    styles |= {
        path: "\n".join(node.get_text() for node in page.find_all("style"))
        for path, page in pages.items()
    }
    foreign = [
        (path.name, address)
        for path, text in styles.items()
        for address in FOREIGN_IN_CSS.findall(text)
    ]
    assert foreign == []


def test_links_anchors_and_assets_resolve(site, pages):
    dead = []
    anchors = {
        path.resolve(): {node["id"] for node in page.find_all(id=True)}
        | {node["name"] for node in page.find_all("a", attrs={"name": True})}
        for path, page in pages.items()
    }
    for path, page in pages.items():
        links = [a["href"] for a in page.find_all("a", href=True)]
        for address in [*links, *loaded_addresses(page)]:
            if not resolves(address, path, anchors):
                dead.append((path.relative_to(site).as_posix(), address))
    assert dead == []


def resolves(address, page, anchors):
    """Whether a page's address leads to a file, and to an anchor in it."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme or parts.netloc:
        return True
    target = page
    if parts.path:
        target = page.parent / urllib.parse.unquote(parts.path)
    if not target.is_file():
        return False
    anchor = urllib.parse.unquote(parts.fragment)
    known = anchors.get(pathlib.Path(target).resolve())
    return not anchor or known is None or anchor in known


def test_pages_show_the_outputs_of_their_notebooks(site, pages):
    for md in notebooks.chapters():
        ipynb = md.with_suffix(".ipynb")
        cells = json.loads(ipynb.read_text("utf-8"))["cells"]
        with_output = [c for c in cells if c.get("outputs")]
        page = pages[site / "book" / f"{md.stem}.html"]
        shown = page.select("div.cell_output")
        assert len(shown) == len(with_output), md.stem


def test_each_chapter_opens_in_colab(site, pages):
    for md in notebooks.chapters():
        page = pages[site / "book" / f"{md.stem}.html"]
        links = [a["href"] for a in page.find_all("a", href=True)]
        assert any(
            link.startswith("https://colab.research.google.com/github/")
            and link.endswith(f"/main/book/{md.stem}.ipynb")
            for link in links
        ), md.stem


def test_the_reference_has_every_public_name(site, pages):
    """Each has an anchor of its full name, with its example below it."""
    found = {}
    for path, page in pages.items():
        if path.name.startswith("api"):
            for node in page.select("dt[id^='pipelib']"):
                found[node["id"]] = node.find_next_sibling("dd")
    for public in public_names():
        assert public.name in found, public.name
        assert ">>> " in found[public.name].get_text(), public.name


def test_docstrings_leave_no_markup_on_the_page(pages):
    """No backtick of a docstring stands where code should."""
    for path, page in pages.items():
        if path.name.startswith("api"):
            for code in page.select("pre"):
                code.extract()
            assert "`" not in page.select_one("article").get_text(), path.name


def test_the_sidebar_has_chapters_and_reference_and_no_page_is_missing(site, pages):
    page = pages[site / "book" / "03_buffering.html"]
    captions = [node.get_text(strip=True) for node in page.select("p.caption")]
    assert captions == ["Chapters", "Reference"]
    linked = {a["href"].partition("#")[0] for a in page.select("nav a[href]")}
    written = {md.with_suffix(".html").name for md in notebooks.BOOK.glob("*.md")}
    assert written - {"03_buffering.html"} <= linked  # its own link is "#"


def test_lists_of_definitions_have_terms_and_no_script_stands_twice(pages):
    for path, page in pages.items():
        for definitions in page.select("article dl"):
            assert definitions.find("dt", recursive=False), path.name
        scripts = [node.get("src") or node.get_text() for node in page.select("head script")]
        declared = [text for text in scripts if text.startswith(("const ", "let "))]
        assert len(declared) == len({*declared}), path.name


def test_pages_are_light(site):
    for path in (site / "book").glob("*.html"):
        assert path.stat().st_size < 1_500_000, path.name


def test_each_chapter_opens_in_jupyterlab_and_can_be_taken_along(site, pages):
    for md in notebooks.chapters():
        page = pages[site / "book" / f"{md.stem}.html"]
        links = {a.get_text(strip=True): a["href"] for a in page.select("a.dropdown-item")}
        assert links["JupyterLab"].endswith(f":8888/lab/tree/book/{md.stem}.ipynb")
        copies = [site / "book" / links[kind] for kind in (".ipynb", ".md")]
        assert copies[0].read_bytes() == md.with_suffix(".ipynb").read_bytes()
        text = notebooks.read_all(copies[1])  # without wrong answers
        assert notebooks.alike(text.cells, notebooks.read_source(md).cells)
