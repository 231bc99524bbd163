"""The page "In your CI": its commands print what it shows, its files name what there is."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from tools import notebooks

ROOT = notebooks.BOOK.parent
PAGE = (notebooks.BOOK / "in_your_ci.md").read_text("utf-8")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path):
    """A folder with the page's files."""
    kernels, tests = blocks("python")
    (settings,) = blocks("toml")
    for name, text in (
        ("kernels.py", kernels),
        ("test_kernels.py", tests),
        ("pyproject.toml", settings),
    ):
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def python(project, *words):
    paths = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=project,
        env=os.environ | paths,
    )


def test_the_commands_and_what_they_print(project):
    text, document, sarif = (command.split()[1:] for command in blocks("sh"))
    (shown,) = blocks("text")
    done = python(project, *text)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == shown
    done = python(project, *document)
    (excerpt,) = map(json.loads, blocks("json"))
    assert json.loads(done.stdout)["checks"][0]["reports"][0]["findings"][0] == excerpt
    done = python(project, *sarif)
    assert done.stdout == shown
    (run,) = json.loads((project / sarif[-1]).read_text("utf-8"))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["missing-commit", "unwritten-output"]


def test_the_table_has_every_key():
    from pallascope.command.config import _KEYS

    for command in ("compile", "tune"):
        _, _, said = PAGE.partition(f"- `[[tool.pallascope.{command}]]`: ")
        listed = re.findall("`([a-z-]+)`", said.partition(".\n")[0])
        assert listed == [*_KEYS[command]]
    assert re.findall(r"^\| `([a-z-]+)` \| .* \| [^|]*(?:word|--)", PAGE, re.MULTILINE) == [
        *_KEYS["check"]
    ]


def test_the_tests_fail_with_the_report(project):
    pytest.importorskip("pallascope.testing", reason="pallascope.testing is not here yet")
    plugin = "-p", "pallascope.pytest_plugin"
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin)
    assert done.returncode == 1 and "2 failed" in done.stdout, done.stdout
    assert done.stdout.count("missing-commit: the store of thread 0 reads `x_smem`") >= 2


def test_the_workflow_uses_the_action_of_this_repository():
    workflow, hooks = map(yaml.safe_load, blocks("yaml"))
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    *others, mine = workflow["jobs"]["check"]["steps"]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in others)
    assert mine == {"uses": "pallas-pipelib/pipelib@main"}
    (repository,) = hooks["repos"]
    assert repository["repo"] == "https://github.com/pallas-pipelib/pipelib"
    assert {hook["id"] for hook in repository["hooks"]} <= {hook["id"] for hook in HOOKS}
    inputs = re.findall(r"^\| `([a-z-]+)` \| [^|]* \|$", PAGE, re.MULTILINE)
    assert inputs == [*ACTION["inputs"]]
