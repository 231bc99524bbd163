"""The site in a browser: whole without network, for everybody, and light.

Headless Chromium, by Playwright's sync interface; where there is none these tests are skipped.
Each page is visited once in each of two looks (`LOOKS`), and what was found is kept (`visits`):
the theme changes colours and the width changes places, so that two looks have all of both.

Accessibility is judged by axe-core, every rule of it. Its contrast rule is slow, and two texts of
one kind (of the same tags, classes and styles up to the root) have the same answer: it is given
one of each kind on a page. It is spared what has no more to say: the insides of pictures, which
are one thing with a name to whoever does not see them, and the other tokens of code. Not covered:
rules on style sheets as such (`preload`).
"""

import pathlib
from typing import NamedTuple

import pytest
from fontTools.ttLib import TTFont
from playwright.sync_api import expect

import pallascope
from pallascope import Setting
from tests.book.conftest import A4, AXE, LOOKS, PHONE, WAITS, is_foreign
from tools import notebooks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

MAX_BYTES = 1_000_000
FRONT = "index.html"
CHAPTERS = [f"book/{md.stem}.html" for md in notebooks.chapters()]


class Visit(NamedTuple):
    """What a page did: what the console was told, what was asked of whom, and axe's violations."""

    errors: list[str]
    foreign: list[str]
    files: set[str]
    sideways: int
    violations: list[str]


@pytest.fixture(scope="session")
def visits(chromium, site, address):
    """A `Visit` for each look and page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    names = [
        path.relative_to(site).as_posix()
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    ]
    found = {}
    for look, options in LOOKS.items():
        context = chromium.new_context(**options)
        for name in names:
            found[look, name] = visit(context, f"{address}/{name}", axe)
        context.close()
    return found


def visit(context, url, axe):
    page, errors, asked = context.new_page(), [], set()
    page.on("console", lambda said: said.type in ("error", "warning") and errors.append(said.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.add(request.url))
    page.route(lambda other: is_foreign(other, url), lambda route: route.abort())
    page.goto(url, wait_until="networkidle")
    sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.evaluate(axe.axe_script)
    violations = page.evaluate(AXE)
    page.close()
    root = "/".join(url.split("/")[:3])
    foreign = sorted(each for each in asked if is_foreign(each, url))
    files = {each.removeprefix(root).partition("?")[0] for each in asked if each.startswith(root)}
    return Visit(errors, foreign, files, sideways, violations)


# ---- Every page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["errors", "foreign", "violations"])
def test_no_page_has(visits, field):
    found = {at: getattr(seen, field) for at, seen in visits.items()}
    assert {at: words for at, words in found.items() if words} == {}


def test_no_page_is_wider_than_the_window(visits):
    assert {at: seen.sideways for at, seen in visits.items() if seen.sideways > 0} == {}


def test_every_page_is_light(visits, site):
    weights = {
        name: sum((site / file.lstrip("/")).stat().st_size for file in seen.files)
        for (look, name), seen in visits.items()
        if look == "wide light"
    }
    assert weights["index.html"] > 100_000  # the theme, at least: files were counted
    assert {name: size for name, size in weights.items() if size > MAX_BYTES} == {}


def test_the_heaviest_page_is_painted_before_its_scripts_come(chromium, site, address):
    """Of the others `test_site` knows that no script is waited for."""
    heaviest = max(CHAPTERS, key=lambda name: (site / name).stat().st_size)
    page, held = chromium.new_page(), []
    page.route("**/*.js*", lambda route: held.append(route))
    page.goto(f"{address}/{heaviest}", wait_until="commit")
    painted = "performance.getEntriesByName('first-contentful-paint').length > 0"
    page.wait_for_function(painted, timeout=WAITS)
    page.wait_for_selector("article h1", timeout=WAITS)
    assert held
    for route in held:
        route.abort()
    page.close()


def test_an_article_does_not_move_when_the_contents_beside_it_come(chromium, site, address):
    """They are the last thing on a page; before, all stands where it will stand."""
    context, places = chromium.new_context(**LOOKS["wide light"], java_script_enabled=False), {}

    def place(name, text):
        page = context.new_page()
        answer = lambda route: route.fulfill(body=text, content_type="text/html; charset=utf-8")
        page.route(f"{address}/{name}", answer)
        page.goto(f"{address}/{name}")
        box = page.locator(".bd-article-container").bounding_box()
        page.close()
        return box["x"], box["width"]

    for name in [*CHAPTERS, "book/api_kernels.html", "book/glossary.html", FRONT]:
        text = (site / name).read_text("utf-8")
        begun = text.partition('<div id="pst-secondary-sidebar"')[0]
        places[name] = place(name, text), place(name, begun)
    context.close()
    assert {name: at for name, at in places.items() if at[0] != at[1]} == {}


@pytest.mark.parametrize("name", [FRONT, *CHAPTERS])
def test_without_scripts_pictures_are_there(tab, address, name):
    page = tab(f"{address}/{name}", java_script_enabled=False)
    pictures = ":is(.pipelib-player .stage svg.time, .cell_output img, math)"
    for picture in page.locator(f"{pictures}:not(.fold:not([open]) *)").all():
        box = picture.bounding_box()
        assert box and box["width"] > 0 and box["height"] > 0


# ---- Players -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FRONT, *CHAPTERS])
def test_players_play(tab, address, name):
    page = tab(f"{address}/{name}")
    for player in page.locator(".pipelib-player").all():
        player.locator(":scope[data-ready]").wait_for()
        steps_by_button_and_keyboard(page, player)
        plays(page, player)
        slides(player)


def steps_by_button_and_keyboard(page, player):
    said = player.locator(".what")
    seen = [said.inner_text()]
    player.get_by_role("button", name="Next operation").click()
    seen.append(said.inner_text())
    player.locator(".stage").focus()
    page.keyboard.press("ArrowRight")
    seen.append(said.inner_text())
    assert len({*seen}) == 3
    page.keyboard.press("ArrowLeft")
    expect(said).to_have_text(seen[1], use_inner_text=True)
    player.get_by_role("button", name="Previous operation").focus()
    expect(player.locator(".stage .b.chosen")).to_have_count(1)


def plays(page, player):
    clock = player.locator(".clock")
    before = clock.inner_text()
    player.get_by_role("button", name="Play", exact=True).click()
    moved = "([node, words]) => node.innerText !== words"
    page.wait_for_function(moved, arg=[clock.element_handle(), before])
    player.get_by_role("button", name="Pause").click()
    expect(player.get_by_role("button", name="Play", exact=True)).to_have_count(1)


def slides(player):
    """Each slider changes the picture, and together they change the outcome."""
    sliders = player.locator(".sliders input").all()
    outcomes = set()
    for slider in sliders:
        pictures = set()
        for key in ("Home", "End"):
            slider.press(key)
            pictures.add(player.locator(".stage").inner_html())
            outcomes.add(player.locator(".result").inner_text())
        assert len(pictures) == 2
    assert len(outcomes) > 1 or not sliders


@pytest.mark.parametrize("look", LOOKS)
def test_a_slider_s_words_keep_clear_of_the_outcome(chromium, tmp_path, look):
    words = ["each for itself", "a", "straight from the registers"]
    settings = [Setting({"slots": 1, "way": way}, None, "race", ok=False) for way in words]
    pallascope.player(settings).save(tmp_path / "player.html")
    page = chromium.new_page(**LOOKS[look])
    page.goto((tmp_path / "player.html").as_uri())
    page.locator("[data-ready]").wait_for()
    box = lambda selector: page.locator(selector).last.bounding_box()
    slider, widths = page.locator(".sliders input"), set()
    for key in ("Home", "End"):
        slider.press(key)
        said, outcome = box(".sliders output"), box(".result")
        beside = said["x"] + said["width"] <= outcome["x"]
        assert beside or said["y"] + said["height"] <= outcome["y"]
        widths.add(box(".sliders input")["width"])
    assert len(widths) == 1 and widths.pop() >= 80
    page.close()


def test_a_drawing_wider_than_a_phone_is_scrolled_by_keyboard(tab, address):
    (attention,) = [name for name in CHAPTERS if name.endswith("_attention.html")]
    page = tab(f"{address}/{attention}", viewport=PHONE)
    page.locator(".pipelib-player[data-ready]").first.wait_for()
    drawing = page.locator(".pipelib-player .scroll").first
    drawing.focus()
    page.keyboard.press("ArrowRight")
    moved = "(node) => node.scrollLeft > 0"
    page.wait_for_function(moved, arg=drawing.element_handle())
    # Whoever points at an operation steps on from there.
    drawing.locator(".b").nth(1).click()
    before = page.locator(".what").first.inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".what").first).not_to_have_text(before, use_inner_text=True)


def test_an_operation_and_its_line_of_code_lead_to_each_other(tab, address):
    (chapter,) = [name for name in CHAPTERS if "warp_specialization" in name]
    page = tab(f"{address}/{chapter}")
    player = page.locator(".pipelib-player[data-ready]").first
    player.wait_for()
    lit = "() => [...(CSS.highlights.get('source-line') ?? [])].map((range) => range.toString())"
    for _ in range(12):
        player.get_by_role("button", name="Next operation").click()
        if lines := page.evaluate(lit):
            break
    assert lines and lines[0].strip() in player.locator(".sentence code").inner_text()
    place = page.evaluate("""() => {
        const [range] = CSS.highlights.get("source-line");
        range.startContainer.parentElement.scrollIntoView({ block: "center", behavior: "instant" });
        const { x, y, width, height } = range.getBoundingClientRect();
        return [x + width / 2, y + height / 2];
    }""")
    page.mouse.move(*place)
    player.locator(".b.same").first.wait_for(state="attached")


def test_some_chapter_has_players(tab, address):
    (ladder,) = [name for name in CHAPTERS if "matmul_ladder" in name]
    page = tab(f"{address}/{ladder}")
    assert page.locator(".pipelib-player .sliders input").count() > 0


# ---- The front page and the header ---------------------------------------------------------------


@pytest.mark.parametrize("look", LOOKS)
def test_the_front_page_s_claim_is_above_the_fold_and_on_a_wide_screen_its_numbers(
    tab, address, look
):
    page, height = tab(f"{address}/{FRONT}", **LOOKS[look]), LOOKS[look]["viewport"]["height"]
    parts = [".claim svg:last-of-type", *([".numbers"] if look.startswith("wide") else [])]
    for part in ("h1", ".start a", *parts):
        box = page.locator(f"article {part}").first.bounding_box()
        assert box["y"] + box["height"] <= height, part
    page.locator(".pipelib-player[data-ready]").wait_for()
    drawing = page.locator(".pipelib-player .scroll").first
    assert drawing.evaluate("(node) => node.scrollWidth <= node.clientWidth")


def test_on_a_phone_a_player_draws_on_most_of_the_width_and_fits_if_asked_to(tab, address):
    widest = next(name for name in CHAPTERS if "across_gpus" in name)  # its rows have long names
    page = tab(f"{address}/{widest}", viewport={"width": 390, "height": 844})
    player = page.locator(".pipelib-player[data-ready]").last
    drawing, fit = player.locator(".stage .scroll"), player.get_by_role("button", name="Fit")
    assert drawing.bounding_box()["width"] >= 250
    left = page.locator(".pipelib-player .names text").evaluate_all(
        "(names) => Math.min(...names.map((name) => name.getBoundingClientRect().left))"
    )
    assert left >= 0
    scrolls = "(node) => node.scrollWidth > node.clientWidth"
    assert drawing.evaluate(scrolls)
    fit.click()
    assert not drawing.evaluate(scrolls)
    fit.click()
    assert drawing.evaluate(scrolls)


def test_the_front_page_s_picture_has_one_scale_of_time(tab, address):
    page = tab(f"{address}/{FRONT}")
    page.locator('[data-do="scale"][aria-pressed="true"]').wait_for()
    slider, products, ends = page.locator(".sliders input"), page.locator(".stage .b.wgmma"), []
    for key in ("Home", "End"):
        slider.press(key)
        box = products.last.bounding_box()
        ends.append(box["x"] + box["width"])
    assert ends[1] < 0.7 * ends[0]


def test_a_phone_s_header_has_the_book_s_name_and_then_the_chapter_s(tab, address):
    page = tab(f"{address}/{CHAPTERS[7]}", viewport=PHONE)
    name = page.locator(".book-name")
    expect(name).to_have_text("Software pipelining in JAX Pallas", use_inner_text=True)
    header, box = page.locator(".bd-header-article").bounding_box(), name.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= header["height"]
    page.locator("#exercises").scroll_into_view_if_needed()
    page.locator("html[data-below-heading]").wait_for()
    expect(name).to_have_text("8 Consumed barriers", use_inner_text=True)
    name.click()
    page.wait_for_url(f"**/{FRONT}")


def test_where_the_sidebar_is_the_header_has_no_name(tab, address):
    expect(tab(f"{address}/{CHAPTERS[0]}").locator(".book-name")).to_be_hidden()


# ---- The theme -----------------------------------------------------------------------------------


@pytest.fixture(params=["http", "file"])
def root(request, site, address):
    """Where the site is, with a server and without."""
    return address if request.param == "http" else site.as_uri()


def found(page):
    """What the search shows: headings, and what is said of each."""
    page.locator(".book-results li").first.wait_for()
    items = page.locator(".book-results li").all()
    return [(each.locator("a").inner_text(), each.locator("p").inner_text()) for each in items]


def test_search_finds_sections_while_the_reader_types(tab, root):
    page = tab(f"{root}/{CHAPTERS[2]}")
    page.keyboard.press("Control+k")
    page.keyboard.type("bank conf")
    (heading, said), *_ = found(page)
    assert heading == "bank conflict" and said.startswith("SMEM lies in 32 banks.")
    page.locator(".book-results a").first.click()
    page.wait_for_url("**/book/glossary.html#term-bank-conflict")
    expect(page.locator("#term-bank-conflict")).to_be_visible()


@pytest.mark.parametrize(
    ("query", "heading"),
    [
        ("ring of slots", "A ring of slots"),  # also in a table that is found
        ("stores without commit_smem", "A store without commit_smem"),  # whatever their endings
        ("arithmetic intensities", "arithmetic intensity"),
        ("pallascope.simulate", "pallascope.simulate"),
        ("simulates", "pallascope.simulate"),
        ("swizzled unicorns", "swizzle"),  # no section has both
    ],
)
def test_what_is_searched_for_is_among_the_first(tab, site, query, heading):
    page = tab(f"{site.as_uri()}/{FRONT}")
    page.keyboard.press("Control+k")
    page.keyboard.type(query)
    page.locator(".book-results [role=status]", has_text=f"“{query}”").wait_for()
    assert heading in [each for each, _ in found(page)][:3]
    status = page.locator(".book-results [role=status]").inner_text()
    assert status.startswith("No section has all of") == ("unicorns" in query)


#: What learners ask for, by the page that the first answer is to be on.
ASKED = {
    "01_introduction": "lanes and warps",
    "02_memory_wall": "bandwidth, latency hiding, occupancy",
    "03_buffering": "double buffering, num_stages, pipeline stages, multistage, prefetch",
    "04_barriers": "mbarrier, synchronization",
    "06_async_tensor_core": "product in flight",
    "07_warp_specialization": "producer consumer, warp specialization",
    "08_consumed_barriers": "who says that a slot is free",
    "09_carries": "row sum layout, which lane has what, reduction",
    "10_persistent_kernels": "persistent kernel, grouped gemm, mixture of experts",
    "11_clusters": "multicast cluster",
    "12_what_can_go_wrong": "race condition, why my kernel hangs, debugging, wrong result",
    "13_seeing_time": "why is my kernel slow, profiler, Nsight",
    "14_matmul_ladder": "gemm, matmul, autotune, power limit",
    "15_attention": "FlashAttention, pingpong",
    "16_attention_further": "fp8, kv cache, causal mask, gradient",
    "17_your_own_kernel": "your own kernel",
    "18_compatibility": "BlockSpec",
    "19_beyond_hopper": "beyond Hopper",
    "20_in_the_wild": "what a language model writes",
    "21_blackwell_ladder": "Blackwell ladder",
    "22_across_gpus": "multi-GPU, all-gather",
    "frameworks": "CUTLASS, Gluon, CUDA C++",
    "from_triton": "Triton, coming from Triton, num_warps",
    "glossary": "SMEM, shared memory, tensor memory accelerator, TMA, deadlock, swizzle,"
    " bank conflict,"
    " thread block, CTA, register spill, the roofline, data race, warpgroup, wgmma, barrier,"
    " memory thread",
    "how_to_read": "install, pip, T4, Colab, no GPU",
    "in_your_ci": "check my kernel in CI, GitHub actions, pytest",
    "other_gpus": "A100",
    "related_work": "racecheck",
}


def test_what_learners_ask_for_is_found_first(tab, site):
    page, first = tab(f"{site.as_uri()}/{FRONT}"), {}
    page.keyboard.press("Control+k")
    page.keyboard.type("slot")  # which loads the index
    page.locator(".book-results li").first.wait_for()
    asked = {query: name for name, queries in ASKED.items() for query in queries.split(", ")}
    for query in asked:
        found = page.evaluate("query => bookSearch.find(query)[0]?.address ?? ''", query)
        first[query] = pathlib.PurePath(found).stem
    assert len(asked) >= 60 and first == asked


def test_a_search_goes_on_on_its_page(tab, root):
    page = tab(f"{root}/{CHAPTERS[0]}")
    page.keyboard.press("Control+k")
    page.keyboard.type("deadlock")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=deadlock")
    assert "deadlock" in [heading for heading, _ in found(page)]
    page.locator(".bd-search-container input").fill("zzz")
    page.get_by_text("No section has “zzz”.").wait_for()
    expect(page.locator(".book-results li")).to_have_count(0)


def test_the_search_s_index_is_not_loaded_before_a_search(visits):
    asked = {at for at, seen in visits.items() if "/_static/search_index.js" in seen.files}
    assert {name for _, name in asked} <= {"search.html"}  # its box has the focus


def test_light_and_dark(tab, address):
    page = tab(f"{address}/{CHAPTERS[0]}")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(shade)
    page.locator(".theme-switch-button:visible").click()
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)
    dark = page.evaluate(shade)
    assert dark != light
    page.reload()
    assert page.evaluate(shade) == dark


def test_a_dark_page_is_dark_from_the_first(chromium, address):
    page = chromium.new_page(color_scheme="dark")
    page.route("**/*.js*", lambda route: route.abort())
    page.goto(f"{address}/{CHAPTERS[0]}")
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)
    page.close()


def test_the_menu_of_a_phone(tab, address):
    page = tab(f"{address}/{CHAPTERS[0]}", viewport=PHONE)
    last = page.locator(f'.bd-links a[href$="{CHAPTERS[-1].rpartition("/")[2]}"]')
    expect(last).to_be_hidden()
    page.locator(".primary-toggle:visible").click()
    last.click()
    page.wait_for_url(f"**/{CHAPTERS[-1]}")


def test_what_scrolls_is_reached_by_keyboard_and_shows_that_there_is_more(tab, address):
    page = tab(f"{address}/{CHAPTERS[-1]}", viewport=PHONE)
    boxes = page.locator(".bd-article pre[data-more]:visible")
    boxes.first.wait_for()
    for box in boxes.all():
        assert box.get_attribute("tabindex") == "0"
    boxes.first.evaluate("node => { node.dataset.seen = 1; node.scrollLeft = node.scrollWidth; }")
    page.locator("pre[data-seen]:not([data-more])").wait_for()


def test_a_chapter_s_buttons_have_names(tab, address):
    page = tab(f"{address}/{CHAPTERS[0]}")
    menus = {
        "Launch interactive content": ["Colab", "JupyterLab"],
        "Download this page": [".ipynb", ".md"],
    }
    for menu, links in menus.items():
        page.get_by_role("button", name=menu).click()
        for link in links:
            expect(page.get_by_role("link", name=link).first).to_be_visible()


def test_what_is_folded_opens_without_scripts(tab, address):
    page = tab(f"{address}/{CHAPTERS[2]}", java_script_enabled=False)
    titles = {each.inner_text().strip() for each in page.locator(".fold > summary").all()}
    told = {"Answer", "What to expect", "What the grade says before you begin"}
    assert titles == {"Setup", "Code", "Hint", "Solution", *told}
    hint = page.locator(".fold:has(> summary:text-is('Hint'))").first
    words = hint.locator(":scope > :not(summary)").first
    expect(words).to_be_hidden()
    hint.locator("summary").click()
    expect(words).to_be_visible()


@pytest.mark.parametrize("name", [CHAPTERS[2], "book/api.html", "genindex.html"])
def test_the_icons_shown_are_in_the_fonts(tab, site, address, name):
    page = tab(f"{address}/{name}")
    shown = page.evaluate("""() => [...document.querySelectorAll("body *")]
        .filter((node) => node.checkVisibility())
        .flatMap((node) => ["::before", "::after"].map((part) => getComputedStyle(node, part)))
        .filter(({ fontFamily }) => fontFamily.includes("Awesome"))
        .map(({ content }) => content.replaceAll('"', ""))""")
    fonts = site.glob("_static/vendor/fontawesome/webfonts/*.ttf")
    there = {chr(code) for path in fonts for code in TTFont(path).getBestCmap()}
    icons = {icon for icon in shown if len(icon) == 1}
    assert icons and icons <= there


# ---- Paper ---------------------------------------------------------------------------------------


def test_paper_is_light_without_buttons_and_folded_as_the_reader_left_it(tab, address):
    (chapter,) = [name for name in CHAPTERS if "warp_specialization" in name]
    page = tab(f"{address}/{chapter}", color_scheme="dark")
    page.locator(".pipelib-player[data-ready]").first.wait_for()
    theme = page.locator("html").get_attribute("data-theme")
    pressed = page.locator(".pipelib-player :is(button, input)")
    folded = page.locator("article details:not([open])")
    opened = page.locator("article details").nth(1)
    opened.locator("summary").click()
    count = folded.count()
    assert theme == "dark" and pressed.count() and count
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(pressed.filter(visible=True)).to_have_count(0)
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert folded.count() == count and opened.get_attribute("open") is not None
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("html").get_attribute("data-theme") == theme


def test_code_is_not_cut_off_on_paper(tab, address):
    page = tab(f"{address}/{CHAPTERS[11]}", viewport=A4)
    page.emulate_media(media="print")
    wide = "(nodes) => nodes.filter((node) => node.scrollWidth > node.clientWidth).length"
    assert page.locator(".bd-article pre").evaluate_all(wide) == 0


BROKEN = """(cells) => cells.filter((cell) => {
  const line = parseFloat(getComputedStyle(cell).lineHeight);
  return cell.firstElementChild.getBoundingClientRect().height > 1.9 * line;
}).map((cell) => cell.innerText)"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_numbers_do_not_break_in_tables(tab, address, media):
    (ladder,) = [name for name in CHAPTERS if "matmul_ladder" in name]
    page = tab(f"{address}/{ladder}", viewport=PHONE if media == "screen" else A4)
    page.emulate_media(media=media)
    cells = page.locator("article td.number")
    assert cells.count() > 100 and cells.evaluate_all(BROKEN) == []


@pytest.mark.parametrize("name", [*CHAPTERS, "book/checker_method.html", "book/measurements.html"])
def test_tables_are_not_cut_off_on_paper(tab, address, name):
    page = tab(f"{address}/{name}", viewport=A4)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    right = page.locator("article").evaluate("(node) => node.getBoundingClientRect().right")
    cut = "(nodes, right) => nodes.filter((node) => node.getBoundingClientRect().right > right)"
    assert page.locator("article table").evaluate_all(f"{cut}.length", right) == 0
