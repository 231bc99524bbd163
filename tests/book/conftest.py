"""The built site and a browser, once for all tests that look at pages."""

import contextlib
import functools
import http.server
import os
import pathlib
import shutil
import subprocess
import threading

import bs4
import pytest

from tools import execution

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAITS = 6_000  # milliseconds, on a machine that has other work
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
A4 = {"width": 718, "height": 1000}  # within Chromium's margins, at 96 dots per inch
LOOKS = {
    "wide light": {"viewport": WIDE, "color_scheme": "light"},
    "phone dark": {"viewport": PHONE, "color_scheme": "dark"},
}

# Marks one text of each kind, which axe's contrast rule then looks at, and runs axe.
AXE = """async () => {
  const seen = new Set();
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    let kind = "";
    for (let up = node; up; up = up.parentElement)
      kind += `${up.tagName}.${up.getAttribute("class")}.${up.getAttribute("style")}>`;
    if (!seen.has(kind)) node.dataset.oneOfItsKind = "";
    seen.add(kind);
  }
  for (const picture of document.querySelectorAll("svg[role=img]"))
    picture.replaceChildren(...picture.querySelectorAll(":scope > title, :scope > desc"));
  for (const token of document.querySelectorAll("pre span:not([data-one-of-its-kind])"))
    token.replaceWith(...token.childNodes);
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-one-of-its-kind]" }] });
  const { violations } = await axe.run({ resultTypes: ["violations"], preload: false });
  const words = (rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 200)}`);
  return violations.flatMap(words);
}"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder that `make book` writes, built afresh."""
    out = tmp_path_factory.mktemp("site")
    # Make's own variables would be those of the `make test-slow` around us.
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "book", f"OUT={out}"],
        cwd=execution.ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    html = out / "_build" / "html"
    assert f"Open {html}/index.html in a browser" in done.stdout
    return html


@pytest.fixture(scope="session")
def pages(site):
    return {
        path: bs4.BeautifulSoup(path.read_text("utf-8"), "html.parser")
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.relative_to(site).parts
    }


@pytest.fixture(scope="session")
def chromium():
    """A browser; Playwright's own, or the system's."""
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=WAITS)
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        names = "chromium", "chromium-browser", "google-chrome"
        installed = [path for path in (own, *map(shutil.which, names)) if path]
        found = next((path for path in installed if pathlib.Path(path).exists()), None)
        if found is None:
            pytest.skip(
                "No Chromium here: `playwright install chromium`, or install the system's, to test"
                " the site in a browser."
            )
        browser = started.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address(site):
    """Where the site is served."""
    with served(site) as url:
        yield url


@contextlib.contextmanager
def served(folder):
    """Serves a folder; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tab(chromium):
    """Opens a page of its own for an address; foreign requests get no answer."""
    with contextlib.ExitStack() as stack:

        def open_tab(url, **options):
            context = chromium.new_context(**{**LOOKS["wide light"], **options})
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(WAITS)
            page.route(lambda other: is_foreign(other, url), lambda route: route.abort())
            page.goto(url)
            return page

        yield open_tab


def is_foreign(url, mine):
    """Whether `url` is elsewhere than the page `mine`."""
    return not url.startswith((*("/".join(mine.split("/")[:3]),), "data:", "blob:"))
