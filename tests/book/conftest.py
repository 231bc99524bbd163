"""The built site, once for all tests that look at it."""

import os
import subprocess

import bs4
import pytest

from tools import execution


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
