"""The workflows of `.github`: well formed, with few rights, and calling what there is."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WRITES = {"publish": {"pages": "write", "id-token": "write"}}


JOBS = {
    f"{path.stem}-{name}": (job, WRITES.get(name))
    for path in FILES
    for name, job in yaml.safe_load(path.read_text("utf-8"))["jobs"].items()
}


def test_there_is_one_that_tests_and_one_that_publishes():
    assert [path.stem for path in FILES] == ["pages", "test"]


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
    assert "'make test'" in steps["test-test"]
    assert "playwright install --with-deps chromium" in steps["test-test"]
    assert "'make book'" in steps["pages-build"] and "'_build/html'" in steps["pages-build"]
    assert "deploy-pages" in steps["pages-publish"]


def test_they_run_the_python_that_the_package_needs():
    versions = re.findall(r'python-version: "([\d.]+)"', "".join(p.read_text() for p in FILES))
    assert {*versions} == {"3.12"}
