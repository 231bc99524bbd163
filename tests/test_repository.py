"""What holds for every file: one address, no machine's own paths."""

import ast
import datetime
import functools
import os
import pathlib
import re
import subprocess
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = PROJECT["urls"]["Repository"]
REPOSITORY = re.compile(r"https?://github\.com/[\w.-]+/pipelib[\w.-]*")
# A home, a temporary folder, a machine's own file tree.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:root|home/\w+|Users/\w+|tmp|work|mnt|opt)/\w")


@functools.cache
def texts():
    """Every text file that git tracks, or would: name and content."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            found[name] = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
    return found


def test_the_repository_has_one_address():
    other = [
        (name, address)
        for name, text in texts().items()
        for address in REPOSITORY.findall(text)
        if address.removesuffix(".git").rstrip(".") != ADDRESS
    ]
    assert other == []


def test_whoever_needs_the_address_has_it():
    chapters = [n for n in texts() if re.fullmatch(r"book/\d\w+\.md", n)]
    assert chapters
    for name in ["README.md", "_config.yml", *chapters]:
        assert ADDRESS in texts()[name], name


def test_no_file_holds_a_path_of_somebody_s_machine():
    found = [
        (name, match[0]) for name, text in texts().items() for match in MACHINE_PATH.finditer(text)
    ]
    assert found == []


def test_the_package_uses_public_names_of_jax_only():
    private = re.compile(r"\bjax[\w.]*\._[a-z]\w*")
    found = [
        (name, match[0])
        for name, text in texts().items()
        if name.startswith("pipelib/")
        for match in private.finditer(text)
    ]
    assert found == []


def malformed(docstring):
    """What docutils says of the tables of a docstring."""
    core, nodes = map(pytest.importorskip, ("docutils.core", "docutils.nodes"))  # no GPU needs it
    quiet = {"report_level": 3, "halt_level": 5, "warning_stream": False}
    tree = core.publish_doctree(docstring, settings_overrides=quiet)
    said = (message.astext() for message in tree.findall(nodes.system_message))
    return [text for text in said if "Malformed table" in text]


def test_tables_in_docstrings_are_well_formed():
    """The book is built in the slow tier only, and takes no page with such a fault."""
    assert malformed("==  ==\na   b\n==  ==\ncde f\n==  ==\n")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    found, tables = [], 0
    for name, text in texts().items():
        if not re.match(r"(pipelib|pallascope|pipelib_book)/.*\.py$", name):
            continue
        for node in ast.walk(ast.parse(text)):
            said = isinstance(node, documented) and ast.get_docstring(node)
            if said and "==  ==" in said:
                tables += 1
                found += [(name, wrong) for wrong in malformed(said)]
    assert tables > 20 and found == []


def test_the_changelog_has_the_version_days_in_order_and_links():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(.+)\](?: - (\S+))?$", text, re.MULTILINE)
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE)) >= 1
    released = [datetime.date.fromisoformat(day) for name, day in versions if name != "Unreleased"]
    days = [datetime.date.fromisoformat(d) for d in re.findall(r"^### (.+)$", text, re.MULTILINE)]
    assert len(days) > 5
    for dates in (released, days):
        assert dates == sorted({*dates}, reverse=True)
    links = dict(re.findall(r"^\[(.+)\]: (\S+)$", text, re.MULTILINE))
    assert {*links} == {name for name, _ in versions}
    assert all(link.startswith(f"{ADDRESS}/") for link in links.values())
    names = {name for name, _ in versions}
    assert PROJECT["version"] in names or f"version {PROJECT['version']}" in text


def test_locks_hold_exact_versions_and_nothing_else():
    pin = re.compile(r"[a-z0-9.-]+==[^\s;]+( ; .+)?")
    for path in sorted(ROOT.glob("requirements*.txt")):
        for line in path.read_text().splitlines():
            assert pin.fullmatch(line), (path.name, line)


def test_locks_agree():
    def pins(name):
        lines = (ROOT / name).read_text().splitlines()
        return dict(line.partition(" ;")[0].split("==") for line in lines)

    base = pins("requirements.txt")
    assert base["jax"] == "0.11.2"
    assert pins("requirements-jax012.txt")["jax"] == "0.12.0.1"
    assert pins("requirements-compile.txt")["jax-cuda13-plugin"] == base["jax"]
    for kind in ("cuda12", "cuda13", "lab", "lint", "record"):
        other = pins(f"requirements-{kind}.txt")
        shared = base.keys() & other.keys()
        assert shared
        assert {k: other[k] for k in shared} == {k: base[k] for k in shared}


def test_make_benchmark_calls_each_benchmark_as_it_says():
    """The words after a module are a command that its docstring has."""
    make = ["make", "--dry-run", "--no-print-directory", "benchmark", "GPU=nvidia-h200"]
    done = subprocess.run(make, capture_output=True, text=True, check=True, cwd=ROOT)
    calls = re.findall(r"-m (benchmarks\.\w+)(?: ([a-z]\w*))?", done.stdout)
    assert {module.removeprefix("benchmarks.") for module, _ in calls} == {
        "attention", "decode", "frameworks", "grouped", "hazards", "machine", "matmul",
        "memory_bound", "profile", "sanitized", "search", "tools_seen", "tune", "wild",
    }  # fmt: skip
    for module, word in calls:
        source = ROOT / (module.replace(".", "/") + ".py")
        said = ast.get_docstring(ast.parse(source.read_text("utf-8")))
        assert f"python -m {module} {word}".rstrip() in said


@pytest.mark.parametrize("user", [0, 1000])
def test_make_lab_opens_for_root_too(tmp_path, user):
    """JupyterLab stops for root, who runs a container, unless an option says that it is meant."""
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    make = ["make", "--dry-run", "--no-print-directory", "lab", "ARGS=--no-browser"]
    done = subprocess.run(make, capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    command = done.stdout.split()
    assert ("--allow-root" in command) == (user == 0) and command[-1] == "--no-browser"


def test_an_environment_in_a_folder_that_takes_no_files_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()  # no folder can be made in it, not even by root
    command = [str(ROOT / "tools/make_env.sh"), "file/.venv-lab", "requirements-lab.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith(
        f"file/.venv-lab could not be made in {tmp_path}, as no file can be written there: copy"
        " this folder to one of your own, and run the same command in it.\n"
    )


def test_the_map_names_what_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    paths = {name for name in re.findall(r"`([\w./]+/[\w./]*)`", text) if "NN_" not in name}
    assert len(paths) > 20
    homes = ROOT, ROOT / "tests" / "book"
    missing = [name for name in sorted(paths) if not any((home / name).exists() for home in homes)]
    assert missing == []
