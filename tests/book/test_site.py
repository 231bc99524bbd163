"""The built site: complete, no dead links, nothing loaded from elsewhere."""

import json
import pathlib
import re
import tomllib
import urllib.parse

import pytest
import yaml

from tools import door, execution, notebooks, parts, sphinx_search
from tools.badge import badge
from tools.public_names import public_names

# One worker builds the site, once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

CONFIG = yaml.safe_load((execution.ROOT / "_config.yml").read_text())
BEGIN = "What the grade says before you begin"
TITLE, BASE = CONFIG["title"], CONFIG["html"]["baseurl"]
# Pages without a text of their own.
GENERATED = {"404.html", "genindex.html", "search.html"}
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


# ---- The door ------------------------------------------------------------------------------------


@pytest.fixture
def front(site, pages):
    return pages[site / "index.html"]


def test_the_index_is_the_front_page_itself(site, front):
    assert not (site / "book" / "intro.html").exists()
    assert front.select_one("meta[http-equiv]") is None
    assert front.select_one("article h1").find(string=True) == TITLE
    assert front.title.get_text() == TITLE


def test_the_front_page_has_a_player_whose_slider_closes_the_bubbles(front):
    (player,) = front.select(".pipelib-player")
    (slider,) = player.select(".sliders input")
    assert json.loads(slider["data-values"]) == ["1", "2", "4"]
    busy = [int(re.findall(r"busy (\d+)%", each.outcome)[0]) for each in door.settings()]
    assert busy == sorted(busy) and busy[-1] > 2 * busy[0]
    assert f"busy {busy[0]}%" in player.select_one(".outcome").get_text()


def test_the_front_page_s_numbers_are_those_of_the_records(front):
    shown = [(dt.get_text(), dt.find_next_sibling("dd")) for dt in front.select(".numbers dt")]
    made = [line for line in door.numbers().splitlines() if line and not line.startswith(":")]
    assert [number for number, _ in shown] == made and len(made) == 4
    assert all(said.select_one("a[href]") for _, said in shown)


def test_the_front_page_begins_with_who_it_is_for_and_where_to_start(front):
    start = front.select_one(".start")
    first, colab = start.select("a[href]")
    assert first["href"] == f"{parts.parts()[0].chapters[0].page}.html"
    assert "colab.research.google.com" in colab["href"]
    assert "You need no GPU" in start.get_text() and "By the pipelib authors" in start.get_text()


def test_the_front_page_s_claim_is_of_the_least_slots_and_the_most(front):
    first, *_, last = door.settings()
    said = [p.strong.get_text() for p in front.select(".claim p")]
    outcomes = [setting.outcome.partition(" of ")[0] for setting in (first, last)]
    assert said == [f"1 slot: {outcomes[0]}", f"4 slots: {outcomes[1]}"]
    products = [svg.select('rect[fill="#D55E00"]') for svg in front.select(".claim svg")]
    ends = [max(float(r["x"]) + float(r["width"]) for r in each) for each in products]
    assert [len(each) for each in products] == [door.STEPS] * 2 and ends[1] < 0.7 * ends[0]


def test_the_front_page_says_how_to_install_as_the_readme_does(front):
    (command,) = (pre.get_text().strip() for pre in front.select("article pre"))
    assert command in (execution.ROOT / "README.md").read_text()


def test_the_map_has_all_parts_and_chapters_with_reading_times(front):
    places = front.select(".map > ul > li")
    assert [place.strong.get_text() for place in places] == [p.caption for p in parts.parts()]
    for place, part in zip(places, parts.parts(), strict=True):
        assert int(place.ol.get("start", 1)) == part.chapters[0].number
        for item, chapter in zip(place.select("ol > li"), part.chapters, strict=True):
            assert item.a["href"] == f"{chapter.page}.html"
            assert item.em.get_text() == parts.duration(chapter.minutes)


def test_chapters_are_numbered_by_their_files_on_their_pages_and_in_the_sidebar(site, pages):
    for part in parts.parts():
        for chapter in part.chapters:
            page = pages[site / f"{chapter.page}.html"]
            assert page.select_one("h1 .section-number").get_text() == f"{chapter.number} "
            here = page.select_one(".bd-docs-nav li.current.active a").get_text()
            assert here == f"{chapter.number} {chapter.title}"
            time = page.select_one("h1 + .reading-time").get_text()
            assert time == f"{part.caption} · {parts.duration(chapter.minutes)} to read"
            origin = page.select_one(".reading-time + .badge-outputs").get_text()
            assert origin == badge(execution.ROOT / f"{chapter.page}.ipynb") != ""


def test_setup_and_what_an_exercise_says_at_first_are_folded_and_a_diagram_has_no_code(site, pages):
    grades = drawings = 0
    for part in parts.parts():
        for chapter in part.chapters:
            page = pages[site / f"{chapter.page}.html"]
            for cell in page.select(".cell"):
                code, folds = cell.get_text(), cell.find_all("details", recursive=False)
                assert "google.colab" not in code or cell.find_parent("details"), chapter
                if "tag_exercise" in cell["class"] and cell.select_one(".cell_output"):
                    assert [f.summary.get_text() for f in folds] == [BEGIN], chapter
                    grades += 1
                if cell.select_one(".pipelib-diagram"):
                    assert not cell.select_one(".cell_input"), chapter
                    drawings += 1
    assert grades > 50 and drawings > 8


def test_titles_are_short_enough_for_a_phone_and_the_book_s_name_is_there(site, pages):
    for part in parts.parts():
        for chapter in part.chapters:
            assert len(chapter.title) <= 20, chapter
            name = pages[site / f"{chapter.page}.html"].select_one(".book-name")
            said = [span.get_text() for span in name.select("span")]
            assert said == [TITLE, f"{chapter.number} {chapter.title}"]
            assert name["href"] == "../index.html"


def test_every_page_says_what_it_is(site, pages):
    descriptions = {}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        assert page.html["lang"] == "en" and page.title.get_text(strip=True), name
        assert page.select_one("link[rel=icon]"), name
        if name in GENERATED:
            continue
        said = {
            node.get("name") or node.get("property"): node["content"]
            for node in page.select("meta[content]")
        }
        assert 20 < len(said["description"]) < 400, name
        assert said["og:description"] == said["description"], name
        descriptions[said["description"]] = name
        own = BASE if name == "index.html" else BASE + name
        assert page.select_one("link[rel=canonical]")["href"] == own == said["og:url"]
        assert TITLE in said["og:title"] and said["twitter:card"] == "summary_large_image"
        assert said["og:image"].startswith(BASE)
        picture = site / said["og:image"].removeprefix(BASE)
        assert f"{said['og:image:width']}x{said['og:image:height']}" == size_of(picture)
    assert len(descriptions) == len(pages) - len(GENERATED)


def size_of(png):
    """Width and height, from the header."""
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG")
    return "x".join(str(int.from_bytes(data[at : at + 4])) for at in (16, 20))


def test_the_site_has_one_address():
    project = tomllib.loads((execution.ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['urls']['Documentation']}/" == BASE


def test_the_sitemap_has_every_page(site, pages):
    found = re.findall(r"<loc>(.*)</loc>", (site / "sitemap.xml").read_text())
    written = {path.relative_to(site).as_posix() for path in pages} - GENERATED
    assert found[0] == BASE and len(found) == len(set(found))
    assert {url.removeprefix(BASE) or "index.html" for url in found} == written


def test_the_page_for_what_is_not_there_needs_no_other_file(site, pages):
    page = pages[site / "404.html"]
    assert [*loaded_addresses(page)] == ["data:,"]
    assert {a["href"] for a in page.select("a")} == {BASE}


def test_the_search_knows_every_section_by_its_anchor(site, pages):
    text = (site / "_static" / "search_index.js").read_text("utf-8")
    index = json.loads(re.fullmatch(r"bookSearch\.take\((.*)\);\n", text, re.DOTALL)[1])
    anchors = {}
    called = {}
    for number, anchor, heading, also, prose, rest in index["entries"]:
        address, title, is_list = index["pages"][number]
        assert heading and title and prose + rest is not None
        assert is_list == (pathlib.PurePath(address).stem in sphinx_search.LISTS)
        anchors.setdefault(address, set()).add(anchor)
        if also:
            called[f"{pathlib.PurePath(address).stem}#{anchor}"] = also
    assert called == sphinx_search.ALSO
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if name not in GENERATED:
            ids = {node["id"] for node in page.find_all(id=True)}
            assert {node["id"] for node in page.select("article section[id]")} <= anchors[name]
            assert anchors[name] <= ids, name


def test_what_is_folded_away_has_one_form(pages):
    for path, page in pages.items():
        for node in page.select("article details"):
            assert [*filter("quiet".__ne__, node["class"])] == ["fold"], path.name
            assert node.find("summary", recursive=False).get_text(strip=True), path.name
        assert not page.select(".dropdown.admonition, .sd-dropdown, [class*=toggle-button]")


# ---- Every page ----------------------------------------------------------------------------------


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


def test_names_in_code_have_the_colour_of_code_and_no_spans(site, pages):
    styles = (site / "_static/pygments.css").read_text()
    for theme in "light", "dark":
        colour = dict(
            re.findall(rf'data-theme="{theme}"\] \.highlight( \.\w+|) {{.*?\bcolor: (#\w+)', styles)
        )
        assert colour[" .k"] != colour[""]
        assert {colour[f" .{kind}"] for kind in "npw"} == {colour[""]}
    for page in pages.values():
        assert not page.select('pre span[class="n"], pre span[class="p"], pre span[class="w"]')


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


def test_the_reference_has_every_public_name(site, pages):
    """Each has an anchor of its full name, with its example below it."""
    found = {}
    for path, page in pages.items():
        if path.name.startswith("api"):
            for node in page.select("dt[id^='pipelib'], dt[id^='pallascope']"):
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
    assert captions == [*(part.caption for part in parts.parts()), "Reference"]
    linked = {a["href"].partition("#")[0] for a in page.select("nav a[href]")}
    written = {md.with_suffix(".html").name for md in notebooks.BOOK.glob("*.md")}
    assert written - {"03_buffering.html", "intro.html"} <= linked  # its own link is "#"
    assert page.select_one("a.navbar-brand")["href"] == "../index.html"


def test_lists_of_definitions_have_terms_and_no_script_stands_twice(pages):
    for path, page in pages.items():
        for definitions in page.select("article dl"):
            assert definitions.find("dt", recursive=False), path.name
        scripts = [node.get("src") or node.get_text() for node in page.select("head script")]
        declared = [text for text in scripts if text.startswith(("const ", "let "))]
        assert len(declared) == len({*declared}), path.name


def test_each_chapter_opens_in_colab_and_jupyterlab_and_can_be_taken_along(site, pages):
    for md in notebooks.chapters():
        page = pages[site / "book" / f"{md.stem}.html"]
        links = {a.get_text(strip=True): a["href"] for a in page.select("a.dropdown-item")}
        assert links["Colab"].startswith("https://colab.research.google.com/github/")
        assert links["Colab"].endswith(f"/main/book/{md.stem}.ipynb")
        assert links["JupyterLab"].endswith(f":8888/lab/tree/{md.stem}.ipynb")
        copies = [site / "book" / links[kind] for kind in (".ipynb", ".md")]
        assert copies[0].read_bytes() == md.with_suffix(".ipynb").read_bytes()
        source, copy = notebooks.read_source(md).cells, notebooks.read_source(copies[1]).cells
        assert notebooks.alike(copy, source)
        assert len(notebooks.read_all(copies[1]).cells) == len(source)  # no wrong answers
