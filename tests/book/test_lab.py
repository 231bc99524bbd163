"""`make lab` as a reader has it: in a browser, from a clone, with `.venv-lab`."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from playwright.sync_api import expect

from tools import notebooks
from tools.execution import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # one browser at a time

LAB = ROOT / ".venv-lab"
STAMP = LAB / "installed.txt"
LOCK = ROOT / "requirements-lab.txt"
CHAPTERS = [md.with_suffix(".ipynb") for md in notebooks.chapters()]
SOURCE = notebooks.chapters()[0]
FIRST = CHAPTERS[0].name
WITH_A_PLAYER = next(path.name for path in CHAPTERS if "pipelib-player" in path.read_text("utf-8"))
SECONDS = 60


@pytest.fixture
def clone(tmp_path):
    """A repository of its own with all files of this one, as they are now."""
    if not STAMP.exists() or STAMP.read_text() != LOCK.read_text():
        pytest.skip(
            f"No JupyterLab here: `tools/make_env.sh {LAB.name} {LOCK.name}` installs it, to test"
            " `make lab` in a browser."
        )
    folder = tmp_path / "clone"
    for name in filter(None, git(ROOT, "ls-files", "-zco", "--exclude-standard").split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / LAB.name).symlink_to(LAB)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "All")
    assert git(folder, "status", "--porcelain") == ""
    return folder


def git(folder, *words):
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, check=True, env=without_git()
    )
    return done.stdout


def without_git():
    """The environment without what a hook of git puts there: it would name another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


@contextlib.contextmanager
def make_lab(folder, home):
    """Runs `make lab`; gives the address that JupyterLab prints for chapter 1."""
    home.mkdir()
    env = {name: value for name, value in without_git().items() if not name.startswith("MAKE")}
    env |= {f"JUPYTER_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    env |= {"JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "JAX_PLATFORMS": "cpu"}
    log = home / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["make", "lab", "ARGS=--no-browser --port=0"],
            cwd=folder,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield first_address(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def first_address(process, log):
    """What JupyterLab says to open, as soon as it does."""
    end = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        if found := re.search(r"http://127\.0\.0\.1:\S+token=\w+", log.read_text()):
            return found[0]
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")


def test_chapters_open_with_their_players_run_and_are_saved_and_git_is_clean(
    clone, chromium, tmp_path
):
    copy = clone / "lab" / FIRST
    with make_lab(clone, tmp_path / "home") as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * SECONDS)
        page.goto(address)
        before = copy.read_text("utf-8")
        run_the_first_cell_and_save(page)
        see_a_folded_solution(page)
        see_a_player(page, address)
        page.close()
    assert copy.read_text("utf-8") != before
    assert git(clone, "status", "--porcelain") == ""
    assert not copy.with_suffix(".md").exists()  # it is not paired


def run_the_first_cell_and_save(page):
    page.wait_for_url(f"**/lab/tree/{FIRST}*")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()  # before that, it runs nothing
    setup = page.locator(".jp-CodeCell").first
    setup.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    setup.get_by_text("No Hopper GPU here (cpu)").wait_for()
    page.keyboard.press("Control+S")
    page.locator(".jp-mod-dirty").wait_for(state="detached")


def see_a_folded_solution(page):
    """Its code is out of sight until the reader asks for it; an exercise's own is not."""
    tags = [cell.metadata.get("tags", []) for cell in notebooks.read_source(SOURCE).cells]
    cells = page.locator(".jp-Notebook .jp-Cell")
    expect(cells).to_have_count(len(tags))
    solution, exercise = (
        cells.nth(next(i for i, each in enumerate(tags) if tag in each))
        for tag in ("solution", "exercise")
    )
    expect(exercise.locator(".jp-InputArea-editor")).to_be_visible()
    expect(solution.locator(".jp-InputArea-editor")).to_be_hidden()
    expect(solution.locator(".jp-OutputArea")).to_be_hidden()
    solution.locator(".jp-InputPlaceholder").click()
    expect(solution.locator(".jp-InputArea-editor")).to_be_visible()


def see_a_player(page, address):
    """What an untrusted notebook does not show: the script has run, and the picture is there."""
    page.goto(address.replace(FIRST, WITH_A_PLAYER))
    player = page.locator(".jp-Notebook .pipelib-player").first
    player.locator(":scope[data-ready]").wait_for()
    expect(player.locator(".stage svg.time")).to_be_visible()
