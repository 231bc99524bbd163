"""What holds for every file: one address, no machine's own paths."""

import ast
import functools
import pathlib
import re
import subprocess
import tomllib

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
        "attention", "decode", "grouped", "hazards", "machine", "matmul", "memory_bound", "profile",
        "sanitized", "search", "tune", "wild",
    }  # fmt: skip
    for module, word in calls:
        source = ROOT / (module.replace(".", "/") + ".py")
        said = ast.get_docstring(ast.parse(source.read_text("utf-8")))
        assert f"python -m {module} {word}".rstrip() in said


def test_the_map_names_what_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    paths = {name for name in re.findall(r"`([\w./]+/[\w./]*)`", text) if "NN_" not in name}
    assert len(paths) > 20
    homes = ROOT, ROOT / "tests" / "book"
    missing = [name for name in sorted(paths) if not any((home / name).exists() for home in homes)]
    assert missing == []
