"""The player of layouts in a browser, on a small site of its own."""

import pytest
from playwright.sync_api import expect
from sphinx.application import Sphinx

from pipelib_book import layouts
from tests.book.conftest import AXE, LOOKS, served
from tools import sphinx_layouts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

CHOOSE = """wanted => {
  const menus = [...document.querySelectorAll(".menus select")];
  for (const at of [3, 0, 1, 2, 4].filter((at) => menus[at].value !== wanted[at]))
    Object.assign(menus[at], { value: wanted[at] }).dispatchEvent(new Event("change"));
  return [...menus.map(({ value }) => value), document.querySelector(".counted").innerText];
}"""


@pytest.fixture(scope="module")
def address_of_page(tmp_path_factory):
    """A site with one page, in a folder, that has the directive."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    (source / "book").mkdir()
    (source / "index.rst").write_text("Front\n=====\n\n.. toctree::\n\n   book/page\n")
    (source / "book" / "page.rst").write_text("Layouts\n=======\n\n.. layouts::\n")
    settings = {"extensions": ["tools.sphinx_layouts"], "html_theme": "basic", "language": "en"}
    Sphinx(source, None, out, out / "trees", "html", settings, status=None).build()
    with served(out) as url:
        yield f"{url}/book/page.html"


@pytest.fixture
def page(tab, address_of_page, request):
    """The page with its player, in the look that a test is parametrized with."""
    page = tab(address_of_page, **getattr(request, "param", {}))
    page.locator(".pipelib-layouts[data-ready]").wait_for()
    return page


def menu(page, name):
    return page.get_by_role("combobox", name=name, exact=True)


def test_a_reader_picks_a_combination_and_reads_the_count(page):
    count, changed = page.locator(".counted"), page.locator(".changed")
    expect(count).to_contain_text("512 wavefronts; the least for these instructions is 64. Lanes")
    expect(count).to_contain_text("8 different words of bank 0: 8 wavefronts for each")
    menu(page, "Swizzle").select_option("128")
    expect(count).to_contain_text("64 wavefronts; the least for these instructions is 64. No banks")
    menu(page, "Numbers").select_option("32")
    expect(changed).to_have_text("Also changed, to fit: tile.")
    expect(count).to_contain_text("128 wavefronts; the least for these instructions is 64.")
    menu(page, "Layout").select_option("WG_STRIDED")
    expect(changed).to_have_text("Also changed, to fit: swizzle.")
    menu(page, "Access").select_option("read or write, 4 bytes a lane, transposed")
    expect(count).to_contain_text("2,048 wavefronts")


def test_a_lane_has_its_elements_and_wavefronts_are_stepped_through(page):
    has, said, canvas = page.locator(".has"), page.locator(".waved"), page.locator("canvas").first
    menu(page, "Warp").select_option("1")
    page.get_by_role("spinbutton", name="Lane").fill("5")
    columns = "2, 3, 10, 11, 18, 19, 26, 27, 34, 35, 42, 43, 50, 51, 58, 59"
    words = f"Lane 5 of warp 1 holds 32 elements: of rows 17, 25, columns {columns}."
    expect(has).to_have_text(words)
    canvas.hover(position={"x": 3, "y": 3})
    expect(has).to_contain_text("Lane 0 of warp 0 holds 32 elements")
    page.mouse.move(0, 0)
    expect(has).to_have_text(words)
    canvas.click(position={"x": 3, "y": 3})
    assert page.get_by_role("spinbutton", name="Lane").input_value() == "0"
    expect(said).to_contain_text("Wavefront 1 of 8 moves the words with a thick frame, for lanes 0")
    page.get_by_role("button", name="Next wavefront").press("Enter")
    expect(said).to_contain_text("with a thick frame, for lanes 4 to 7")
    slider = page.get_by_role("slider", name="Wavefront")
    slider.press("End")
    expect(said).to_contain_text("Instruction 64 of 64, by warp 3")
    assert slider.get_attribute("aria-valuetext") == "512 of 512"
    assert page.locator(".box").last.evaluate("it => it.scrollTop") > 300  # it is in sight


@pytest.mark.parametrize("page", LOOKS.values(), ids=LOOKS, indirect=True)
def test_every_combination_is_drawn_and_for_everybody(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for c in layouts.combinations():
        made = layouts.numbers(c)
        *chosen, said = page.evaluate(CHOOSE, [*map(str, made["choice"])])
        if chosen != [*map(str, made["choice"])] or f"{made['wavefronts']:,} wavef" not in said:
            wrong.append(f"{c} became {chosen}: {said}")
    assert wrong == []
    player = page.locator(".pipelib-layouts")
    assert player.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    player.evaluate("it => document.body.replaceChildren(it)")  # the theme is another's matter
    page.evaluate(axe.axe_script)
    whole = "landmark", "page-has", "region"  # rules for whole pages
    assert [each for each in page.evaluate(AXE) if not each.startswith(whole)] == []


def test_without_scripts_a_sentence_says_so(tab, address_of_page):
    page = tab(address_of_page, java_script_enabled=False)
    expect(page.get_by_text("The player needs JavaScript")).to_be_visible()
    assert f"<noscript><p>{sphinx_layouts.UNSCRIPTED}</p></noscript>" in page.content()
