"""The workflows of `.github`, the Action, the hook, the forms of issues and the dev container.

They are well formed, and call what there is.
"""

import json
import pathlib
import re
import shlex
import subprocess
import tomllib

import pytest
import yaml

import pipelib
from pallascope.__main__ import _parser
from tools import colab

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WRITES = {
    "publish": {"pages": "write", "id-token": "write"},
    "release": {"contents": "write"},
}


JOBS = {
    f"{path.stem}-{name}": (job, WRITES.get(name))
    for path in FILES
    for name, job in yaml.safe_load(path.read_text("utf-8"))["jobs"].items()
}


def test_one_tests_one_publishes_and_one_releases():
    assert [path.stem for path in FILES] == ["pages", "release", "test"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_no_more(path):
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert {"push"} <= {*workflow[True]}  # YAML 1.1 reads the key `on` so


@pytest.mark.parametrize(("job", "rights"), JOBS.values(), ids=JOBS)
def test_a_job_calls_targets_that_exist_and_pinned_actions(job, rights):
    assert job.get("permissions") == rights
    assert job["timeout-minutes"] <= 60
    called = re.findall(r"\bmake ([\w-]+)", "\n".join(step.get("run", "") for step in job["steps"]))
    assert {*called} <= TARGETS
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


def test_the_jobs_make_what_they_are_for():
    steps = {name: str(job["steps"]) for name, (job, _) in JOBS.items()}
    assert "make env-lab test-slow" in steps["test-slow"]  # so that `make lab` is tested, too
    assert "playwright install --with-deps chromium" in steps["test-slow"]
    assert "'make book'" in steps["pages-build"] and "'_build/html'" in steps["pages-build"]
    assert "deploy-pages" in steps["pages-publish"]


def test_the_jobs_together_are_test_all():
    """Each part of it, and each file of slow tests once."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (recipe,) = re.findall(r"^test-all:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    parts = {*re.findall(r"\b(test[\w-]*)", recipe)}
    runs = [step.get("run", "") for job, _ in JOBS.values() for step in job["steps"]]
    assert parts == {*re.findall(r"\b(test[\w-]*)", " ".join(run for run in runs if "make" in run))}
    slow, _ = JOBS["test-slow"]
    files = []
    for part in slow["strategy"]["matrix"]["part"]:
        words, _, ignored = part.partition(" --ignore ")
        found = [path for word in words.split() for path in ROOT.glob(word)]
        found = [
            p for path in found for p in ([path] if path.is_file() else path.rglob("test_*.py"))
        ]
        files += [path for path in found if not ignored or ROOT / ignored not in path.parents]
    assert sorted(files) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_a_release_has_the_wheels_that_the_chapters_first_cell_installs(tmp_path):
    """Run by bash, with a stand-in for GitHub's command."""
    version = pipelib.__version__
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "gh").chmod(0o755)
    job, _ = JOBS["release-release"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TAG": f"v{version}"}
    upload = ["bash", "-e", "-c", job["steps"][-1]["run"]]
    done = subprocess.run(upload, env=env, capture_output=True, text=True, check=True)
    create, tag, *_ = words = done.stdout.splitlines()[1:]
    assert (create, tag) == ("create", f"v{version}")
    uploaded = {word.removeprefix("dist/") for word in words if word.startswith("dist/")}
    (names,) = re.findall(r"names = (.*)", colab.cell())
    (wheel,) = re.findall(r"\{release\}/\{name\}(\S+?)\"", colab.cell())
    installed = [f"{name}{wheel}" for name in re.findall(r'"(\w+)"', names)]
    assert uploaded == {*installed} and len(uploaded) == 3
    assert any(step.get("run") == "make dist" for step in job["steps"])


def test_they_run_the_python_that_the_package_needs():
    versions = re.findall(r'python-version: "([\d.]+)"', "".join(p.read_text() for p in FILES))
    assert {*versions} == {"3.12"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    said = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert JOBS["test-fast"][0]["strategy"]["matrix"]["python"] == said


# What other repositories call.

ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))


def options_of(text):
    """The options of `python -m pallascope check` that a command has, read by its parser."""
    (words,) = re.findall(r"python -m pallascope (check.*?)(?: \|\| .*)?$", text, re.MULTILINE)
    return _parser().parse_args(shlex.split(words.replace("$ARGUMENTS", "").replace("$", "")))


def test_the_action_installs_checks_and_uploads():
    assert ACTION["runs"]["using"] == "composite"
    install, check, upload = ACTION["runs"]["steps"]
    assert (
        install["run"]
        == 'python -m pip install "$GITHUB_ACTION_PATH" "$GITHUB_ACTION_PATH/pallascope"'
    )
    options = options_of(check["run"])
    assert (options.function, str(options.sarif)) == (None, "SARIF")
    assert upload["with"]["sarif_file"] == check["env"]["SARIF"]
    assert re.fullmatch(r"github/codeql-action/upload-sarif@v\d+", upload["uses"])
    assert f"steps.{check['id']}.outputs.written" in upload["if"] and "!cancelled()" in upload["if"]


def test_the_action_s_steps_take_inputs_that_it_has_and_no_text_becomes_code():
    steps = ACTION["runs"]["steps"]
    used = {*re.findall(r"inputs\.([\w-]+)", str(steps))}
    assert used == {*ACTION["inputs"]}
    for step in steps:
        assert "${{" not in step.get("run", "")  # inputs come as variables
        assert ("uses" in step) != (step.get("shell") == "bash")
    assert all({*each} == {"description", "default"} for each in ACTION["inputs"].values())


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_action_s_step_keeps_the_status_and_the_brackets(tmp_path, status):
    """Run by bash, with a stand-in for Python that writes the file unless it could not check."""
    (_, check, _) = ACTION["runs"]["steps"]
    (tmp_path / "f32a").touch()  # what the pattern f32[a,b] would be
    (tmp_path / "python").write_text(
        '#!/bin/sh\necho "$@"\n'
        + ("" if status == 2 else 'for last in "$@"; do :; done\ntouch "$last"\n')
        + f"exit {status}\n"
    )
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ARGUMENTS": "k.py:f f32[a,b]", "SARIF": "out file"}
    env["GITHUB_OUTPUT"] = str(tmp_path / "outputs")
    done = subprocess.run(
        ["bash", "-e", "-c", check["run"]], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == status
    assert done.stdout == "-m pallascope check k.py:f f32[a,b] --sarif out file\n"
    outputs = tmp_path / "outputs"
    assert (outputs.read_text() if outputs.exists() else "") == "written=true\n" * (status < 2)


def test_the_hook_checks_the_kernels_of_the_project():
    (hook,) = HOOKS
    assert hook["id"] == "pallascope-check" and hook["language"] == "python"
    assert hook["additional_dependencies"] == ["./pallascope", "jax==0.11.2"]
    # What a project gives takes the place of the hook's own list.
    page = (ROOT / "book" / "in_your_ci.md").read_text("utf-8")
    (shown,) = re.findall(r"additional_dependencies: (\[.*\])$", page, re.MULTILINE)
    assert yaml.safe_load(shown) == hook["additional_dependencies"]
    assert options_of(hook["entry"]).function is None and hook["pass_filenames"] is False


# What people fill in, and where they work.

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize(
    "path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem
)
def test_a_form_asks_for_something_and_its_commands_run(path, capsys):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {*form} == {"name", "description", "labels", "body"}
    assert {*form["labels"]} <= {"bug", "documentation"}  # a new repository has these
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len({*ids}) <= 5  # few ask for more than they need
    assert any(field.get("validations") == {"required": True} for field in form["body"])
    for field in form["body"]:
        asked = field["attributes"]
        assert asked["label"] and field["type"] in {"input", "textarea", "dropdown"}
        assert (field["type"] == "dropdown") == ("options" in asked)
    said = re.sub(
        r"\s+", " ", " ".join(field["attributes"].get("description", "") for field in form["body"])
    )
    for code in re.findall(r'`python -c "(.*?)"`', said):
        exec(code, {})
        assert "jaxlib:" in capsys.readouterr().out
    for words in re.findall(r"`python -m pallascope (.*?)`", said):
        if words == "--version":
            with pytest.raises(SystemExit, match="0"):
                _parser().parse_args([words])
        else:
            assert _parser().parse_args(shlex.split(words)).function


def test_the_forms_lead_to_private_reports_and_to_the_book():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert {path.stem for path in FORMS} == {"book", "config", "kernel", "verdict"}
    config = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text("utf-8"))
    private = f"{urls['Repository']}/security/advisories/new"
    links = [link["url"] for link in config["contact_links"]]
    assert links == [private, urls["Documentation"]]
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / name).read_text("utf-8")
        assert f"({private})" in text and "@" not in text  # no address of anybody


def test_the_dev_container_has_the_book_s_python_and_makes_what_make_makes():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert container["image"].endswith("/python:3.12")
    assert container["postCreateCommand"].removeprefix("make ") in TARGETS
    settings = container["customizations"]["vscode"]["settings"]
    folder = re.search(r"^ENV := (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1]
    assert settings["python.defaultInterpreterPath"].endswith(f"}}/{folder}/bin/python")
