"""The collection of foreign kernels, on kernels that come with JAX; and how it is summed up."""

import json
import pathlib
import sys
import types

import pytest

from tests.foreign import collecting, readings, running, sources, table

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = json.loads(pathlib.Path(__file__).with_name("results.json").read_text())


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """What is collected of the sample, in a process of its own: its JAX is fit for nothing else."""
    out = tmp_path_factory.mktemp("foreign")
    running.run(pathlib.Path(sys.executable), ROOT, sources.SAMPLE, out, 8, "0")
    return table.sum_up(out, ROOT, sources.SAMPLE)


def test_every_kernel_of_the_sample_is_lowered_and_traced(sample):
    assert sample["counts"]["configurations"] == 5
    assert sample["counts"]["lowered"] == sample["counts"]["traced"] == 5, sample["refused"]


def test_the_faults_in_it_are_found_and_nothing_else(sample):
    """Causal attention loads a step that it never waits for; the ragged dot refills too early."""
    found = {
        (group["kernel"].split("/")[-1].split(":")[0], group["kind"])
        for group in sample["findings"]
    }
    assert found == {
        ("attention_mgpu.py", "barrier-misuse"),
        ("ragged_dot_mgpu.py", "race"),
    }
    assert sample["counts"]["with findings"] == 2


def row(**fields):
    return {
        "digest": "a",
        "kernel": "body",
        "file": "/x/site-packages/jax/k.py",
        "line": 3,
        "operands": [],
        "beyond": [],
        "others": [],
        "lowered": None,
        "first": {"findings": [], "strict": []},
    } | fields


def summed(tmp_path, *rows):
    line = {"test": "t.py::test", "outcome": "passed", "why": "", "rows": list(rows)}
    (tmp_path / "main.jsonl").write_text(json.dumps(line) + "\n")
    return table.sum_up(tmp_path, tmp_path, sources.SAMPLE)


RACE = {"kind": "race", "cause": "it races", "where": "x", "count": 2, "lines": ["k.py:4", None]}


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, {"lowered": 1, "traced": 1}),
        ({"lowered": "ValueError: no"}, {"not lowered": 1}),
        ({"beyond": ["tcgen05_mma"]}, {"Blackwell's": 1}),
        ({"last": {"refused": "ValueError: k.py:3: no"}}, {"lowered": 1, "refused": 1}),
        ({"last": {"findings": [RACE], "strict": []}}, {"traced": 1, "with findings": 1}),
        ({"first": {"unchecked": "TimeoutError: late"}}, {"traced": 1, "not checked in time": 1}),
        ({"first": {"findings": [], "strict": [RACE]}}, {"with strict findings only": 1}),
    ],
)
def test_how_a_configuration_counts(tmp_path, fields, counts):
    found = summed(tmp_path, row(**fields), row(**fields))["counts"]  # the same one, twice
    assert found["configurations"] == 1 and counts.items() <= found.items()
    assert not any(found.get(key, 0) for key in {"with findings", "refused"} - counts.keys())


def test_what_is_alike_is_one_line(tmp_path):
    reasons = [f"ValueError: k.py:{n}: {n} bytes are too many" for n in (3, 5)]
    rows = [row(digest=str(n), first={"refused": text}) for n, text in enumerate(reasons)]
    (refused,) = summed(tmp_path, *rows)["refused"]
    assert refused["count"] == 2 and refused["kernel"] == "jax/k.py:3 body"


def test_a_path_does_not_say_which_environment_it_was(tmp_path):
    file = str(ROOT / ".venv-other/lib/python3.12/site-packages/jax/k.py")
    refusal = f"ValueError: .venv-other/lib/python3.12/site-packages/jax/k.py:3: {file}: no"
    (refused,) = summed(tmp_path, row(file=file, first={"refused": refusal}))["refused"]
    assert refused["kernel"] == "jax/k.py:3 body"
    assert refused["said"] == "ValueError: jax/k.py:3: jax/k.py: no"


def test_at_most_so_many_cases_of_a_test_function():
    items = [types.SimpleNamespace(nodeid=f"a.py::test_{i}") for i in range(10)]
    items.append(types.SimpleNamespace(nodeid="a.py::other[x]"))
    kept = [item.nodeid for item in collecting.spread(items, 4)]
    assert kept == [
        "a.py::test_0",
        "a.py::test_2",
        "a.py::test_5",
        "a.py::test_7",
        "a.py::other[x]",
    ]


def test_results_are_of_the_sources_that_there_are():
    assert RESULTS.keys() <= sources.SOURCES.keys()
    for results in RESULTS.values():
        counts = results["counts"]
        assert counts["lowered"] == counts.get("traced", 0) + counts.get("refused", 0)


def test_each_finding_has_been_read():
    unread = [
        (group["test"], group["kind"], group["said"])
        for results in RESULTS.values()
        for group in results["findings"]
        if "verdict" not in group
    ]
    assert unread == []


@pytest.mark.parametrize(
    ("test", "kind", "verdict"),
    [
        (
            "a.py::A::test_copy_gmem_to_smem_predicate",
            "missing-commit",
            "fault by the letter of PTX",
        ),
        ("a.py::A::test_copy_gmem_to_smem1", "uninitialized-read", "true, and harmless"),
        ("a.py::A::test_copy_gmem_to_smem1", "deadlock", None),
        ("docs/gpu/pipelining.md::cells", "race", "fault"),
        ("a.py::RaggedDotTestCase::test_ragged_dot0", "race", "fault by the letter of PTX"),
        ("a.py::RaggedDotTCGen05TestCase::test_ragged_dot0", "race", "fault"),
    ],
)
def test_a_reading_is_of_one_kind_and_the_longest_name_that_fits(test, kind, verdict):
    assert getattr(readings.reading_of(test, kind), "verdict", None) == verdict


@pytest.mark.parametrize(("line", "verdict"), [(374, "fault"), (223, "fault by the letter of PTX")])
def test_a_reading_may_be_of_one_kernel_of_a_test(line, verdict):
    test = "tests/test_mosaic_gpu_ragged_dot.py::test_forward_matches_naive[wide-ws]"
    assert readings.reading_of(test, "race", f"jla/ragged_dot.py:{line}").verdict == verdict


def test_a_source_distribution_that_is_there_is_not_fetched(tmp_path):
    folder = tmp_path / "a_project-1.0"
    folder.mkdir()
    assert sources.Source((), sdist="a-project==1.0").root(tmp_path) == folder.resolve()
