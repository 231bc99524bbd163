"""Records are of the kernels as they are; what makes one stale, and what does not."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks import compiled, noting, profile, records, suite
from pallascope.bench import jaxprs
from tests.bench.stand_ins import with_parts

pytestmark = pytest.mark.slow

RECORDS = sorted(
    path for path in records.RESULTS.glob("*/*.json") if suite.of_record(path) is not None
)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_record_is_of_the_present_kernels(path):
    made_with = compiled.jax_versions(path)
    if made_with != {jax.__version__}:
        pytest.skip(f"of JAX {', '.join(made_with)}, and this is {jax.__version__}")
    assert compiled.stale(path) == [], "Measure these anew on an H100 or H200: `make benchmark`."


def test_every_record_of_a_gpu_is_checked():
    # Of kernels that nothing here changes; what no GPU made.
    others = {"tokamax.json", "predicted.json", "schedule.json"}
    assert {path.name for path in records.RESULTS.glob("*/*.json")} - others == {
        path.name for path in RECORDS
    }
    for path in RECORDS:
        assert [*compiled.measurements(path, json.loads(path.read_text("utf-8")))], path.name


# What makes stale. A copy of the package, and of the benchmarks, is edited.

COPIED = "pipelib", "pallascope", "pipelib_book", "benchmarks"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the code, and of the one record that is asked about."""
    root = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        code = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(noting.ROOT / name, root / name, ignore=code)
    results = root / "benchmarks" / "results" / "nvidia-h200"
    results.mkdir(parents=True)
    shutil.copy(records.RESULTS / "nvidia-h200" / "memory_bound.json", results)
    return root


def stale_in(copy: pathlib.Path) -> list[str]:
    """What the copy's own check says of the copy's record."""
    record = copy / "benchmarks" / "results" / "nvidia-h200" / "memory_bound.json"
    command = [sys.executable, "-m", "benchmarks.compiled", "stale", str(record)]
    env = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def edited(copy: pathlib.Path, file: str, *edits: tuple[str, str]) -> list[str]:
    """What is stale with one file edited, which is put back."""
    path = copy / file
    before = text = path.read_text("utf-8")
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    try:
        return stale_in(copy)
    finally:
        path.write_text(before, "utf-8")


def test_a_docstring_and_a_comment_make_nothing_stale(copy):
    docstring = (copy / "pipelib/pipeline.py").read_text("utf-8").splitlines()[0]
    new = '"""Another sentence.\n\nAnd a second paragraph, so that all lines below move.\n'
    assert edited(copy, "pipelib/pipeline.py", (docstring, f"# A comment.\n{new}")) == []


def test_a_renamed_private_function_makes_nothing_stale(copy):
    assert edited(copy, "pipelib/specs.py", ("_block_size", "_length_of")) == []


def test_another_count_of_slots_makes_stale_just_what_uses_it(copy):
    record = copy / "benchmarks/results/nvidia-h200/memory_bound.json"
    slots = "max_concurrent_steps=slots)"
    assert slots in (copy / "benchmarks/memory_bound.py").read_text("utf-8")
    found = edited(copy, "benchmarks/memory_bound.py", (slots, "max_concurrent_steps=slots + 1)"))
    (curve,) = (group for group in records.read(record) if group["part"] == "curve")
    assert [name.partition(", which")[0] for name in found] == [*curve["contenders"]]


# Digests of single kernels: tests/bench/test_jaxprs.py. Here: where they are kept.


def test_noting_gives_digests_to_what_has_none_and_keeps_the_others(tmp_path):
    source = records.RESULTS / "nvidia-h200" / "profile.json"
    path = tmp_path / "nvidia-h200" / "profile.json"
    path.parent.mkdir()
    record = json.loads(source.read_text("utf-8"))
    digest = record.pop(records.KEY)
    path.write_text(json.dumps(record) + "\n", "utf-8")
    assert compiled.stale(path) == ["profile"]
    noting.note(path)
    assert json.loads(path.read_text("utf-8"))[records.KEY] == digest
    path.write_text(path.read_text("utf-8").replace(digest, "0" * 16), "utf-8")
    noting.note(path)
    assert noting.stale(path) == ["profile"]
    assert not noting.is_current(path, "profile")


def test_a_record_of_another_jax_is_stale_as_a_whole(monkeypatch):
    path = records.RESULTS / "nvidia-h200" / "profile.json"
    monkeypatch.setattr(jax, "__version__", "0.10")
    assert compiled.stale(path) == ["profile, which was measured with JAX 0.11.2"]


def test_what_cannot_be_traced_any_more_is_stale(monkeypatch):
    path = records.RESULTS / "nvidia-h200" / "profile.json"
    part = dict(contenders=lambda problem, groups: {"profile": lambda: 1 / 0})
    made = with_parts(profile.SUITE, profile=part | dict(traced=lambda p, n, made: (made, ())))
    monkeypatch.setattr(profile, "SUITE", made)
    said = "profile, which cannot be traced any more (ZeroDivisionError: division by zero)"
    assert compiled.stale(path) == [said]


@pytest.mark.parametrize(
    ("name", "current"),
    [
        ("fp8 8192x8192x8192 float8 NT", False),
        ("fp8 8192x8192x8192 float8 N", True),
        ("tune 64x64x64 bfloat16 NN", False),
        ("shapes 64x64x64 bfloat16 NN", True),
    ],
)
def test_a_group_with_a_stale_measurement_is_not_current(monkeypatch, name, current):
    names = ["fp8 8192x8192x8192 float8 NT, tuned", "tune 64x64x64 bfloat16 NN MatmulConfig()"]
    asked = []
    monkeypatch.setattr(noting, "stale", lambda path: asked.append(path) or names)
    path = pathlib.Path(name)  # one of its own, since a process asks once
    assert noting.is_current(path, name) is noting.is_current(path, name) is current
    assert asked == [path]


def test_shapes_are_what_is_traced():
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    one, two = lambda x: x + 1, lambda x: x + 2
    assert jaxprs.digest(one, x) == jaxprs.digest(lambda other: other + 1, x)
    assert jaxprs.digest(one, x) != jaxprs.digest(two, x)
