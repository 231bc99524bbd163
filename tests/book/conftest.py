"""The built site and a browser, once for all tests that look at pages."""

import os
import pathlib
import shutil
import subprocess

import bs4
import pytest

from tools import execution

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder that `make book` writes, built afresh."""
    out = tmp_path_factory.mktemp("site")
    # Make's own variables would be those of the `make test` around us.
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
