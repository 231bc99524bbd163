"""The faults of public kernels: found in `wrong`, mended in `right`, run by `benchmarks.wild`."""

import contextlib
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
import pipelib_book as book
from benchmarks import compiled, faults, records, wild
from pallascope import check
from pipelib_book.gallery import GALLERY, Gpu
from pipelib_book.measured import outcomes, results
from pipelib_book.wild import RUN, WILD, many
from tests.emitters import contract
from tests.pipelib_book.workers import RIGHT, Told

EVERY = pytest.mark.parametrize("hazard", WILD.values(), ids=WILD)
EVERY_THAT_RAN = pytest.mark.parametrize("hazard", RUN.values(), ids=RUN)
VERSIONS = "0.11.2", "0.12.0.1"
INTERPRETERS = results.read("interpreter/wild-jax-*.json")


@EVERY
def test_an_entry_is_complete_and_of_its_module(hazard):
    module = hazard.kernel.__module__.rpartition(".")[2]
    assert hazard.name == module.replace("_", "-") and hazard.name not in GALLERY
    for sentence in (hazard.summary, hazard.remedy):
        assert sentence.endswith(".") and "\n" not in sentence
    source = hazard.source()
    assert source.startswith("def ") and "is mended" not in source and '"""' not in source
    assert 2 <= source.count("fixed") <= 3  # in the signature, and at the fault
    assert len(source.splitlines()) <= 60


@EVERY
def test_the_checker_finds_the_fault(hazard):
    """And nothing in the mended kernel: that is quoted in a report (`test_upstream`)."""
    assert {finding.kind for finding in check(hazard.program(fixed=False))} == {hazard.kind}


@EVERY
def test_a_module_s_own_functions_are_both_versions(hazard):
    module = __import__(hazard.kernel.__module__, fromlist=["wrong"])
    shapes = [jax.typeof(jnp.asarray(x)) for x in hazard.arguments(np.random.default_rng(0), 1)]
    for function, fixed in ((module.wrong, False), (module.right, True)):
        version = lambda *args, fixed=fixed: hazard.kernel(*args, fixed=fixed)
        jaxprs = [str(jax.make_jaxpr(each)(*shapes)) for each in (function, version)]
        assert jaxprs[0] == jaxprs[1]


@EVERY_THAT_RAN
@pytest.mark.parametrize("copies", [None, 2])
def test_the_mended_kernel_is_right(hazard, copies):
    if hazard.whole_grid:
        pytest.skip("JAX's interpreter has no semaphores that a grid shares: only a GPU runs it")
    hazard = many(hazard) if copies else hazard
    args = hazard.arguments(np.random.default_rng(1), copies or 1)
    with contract.interpreted():
        result = np.asarray(hazard.kernel(*map(jnp.asarray, args), fixed=True))
    np.testing.assert_array_equal(result, hazard.reference(*args), strict=True)


@EVERY_THAT_RAN
@pytest.mark.parametrize("fixed", [False, True])
def test_jax_compiles_many_copies(hazard, fixed):
    hazard = many(hazard)
    assert hazard.lowered(*hazard.arguments(np.random.default_rng(0), 3), fixed=fixed)


@EVERY
@pytest.mark.parametrize("fixed", [False, True])
def test_jax_compiles_it_for_its_gpu(hazard, fixed):
    assert hazard.lowered(*hazard.arguments(np.random.default_rng(0), 1), fixed=fixed)


def test_there_are_cases_of_both_generations_and_those_for_hopper_ran():
    assert {hazard.gpu for hazard in WILD.values()} == {*Gpu}
    assert all((hazard.gpu is Gpu.HOPPER) is (name in RUN) for name, hazard in WILD.items())


def test_copies_have_arguments_of_their_own():
    hazard = WILD["causal-ring"]
    (x,) = many(hazard).arguments(np.random.default_rng(0), 3)
    assert x.shape == (3, *hazard.arguments(np.random.default_rng(0), 3)[0].shape)
    assert (x[0] != x[1]).any()


def test_a_wrong_head_that_exists_is_not_found():
    """What the chapter says the checker does not see."""
    hazard, rng = WILD["grouped-heads"], np.random.default_rng(0)
    x, bias = (rng.integers(-4, 5, (16, 128)).astype(np.float32) for _ in range(2))
    trace = lambda *args: hazard.kernel(*args, fixed=False)
    assert check(pallascope.trace(trace, x, bias)).ok
    with contract.interpreted():
        result = np.asarray(trace(x, bias))
    assert (result != hazard.reference(x, bias)).any(1).all()


# The benchmark, which shares its code with that of the gallery.


def test_the_benchmark_runs_many_copies():
    hazards = wild.SUITE.parts[faults.HAZARDS].contenders(None, ())
    assert {*hazards} == {*RUN}
    args = hazards["whole-store"].arguments(np.random.default_rng(0), 2)
    assert args[0].shape == (2, 64, 256)


@pytest.fixture
def start(monkeypatch):
    """Starts a process of the benchmark for `whole-store`, on the CPU."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with contextlib.ExitStack() as pipes:

        def started(mode):
            worker = faults.Worker("wild", mode, "whole-store")
            pipes.callback(worker.process.__exit__, None, None, None)
            return worker

        yield started


def test_a_process_of_the_benchmark_tells_what_the_interpreter_gives(start):
    found = faults.in_interpreter(start("--interpret-one"))
    assert found["race"].startswith("write by `o_smem[:, half] =") or "read by" in found["race"]
    assert found["end"] in ("right", "wrong", "raised")


def test_a_process_without_a_gpu_is_one_that_the_compiler_refuses(start):
    """All that a machine without a GPU can say of the GPU's part: both versions are asked for."""
    found = faults.on_gpu(start("--gpu-one"))
    assert [found[version]["outcome"] for version in ("fixed", "faulty")] == ["refused"] * 2


def made_up(outcome="nothing"):
    """A record of a GPU, as the benchmark writes it, in which every fault had this outcome."""
    told = [dict(version="faulty", wrong=int(outcome == "wrong"), error=1.0)] * faults.RUNS
    hangs = outcome == "hang"
    told = Told([*RIGHT, *(told if not hangs else [])], hangs=hangs)
    found = faults.on_gpu(told)
    facts = INTERPRETERS[0]["provenance"] | dict(gpu="NVIDIA H200", compute_capability="9.0")
    run = dict(command="python -m benchmarks.wild", seed=0, runs=faults.RUNS, blocks=256)
    run |= dict(timeout_s=10, provenance=facts)
    return dict(part=faults.HAZARDS, problem={}, run=run, contenders=dict.fromkeys(RUN, found))


# The records.


@pytest.mark.parametrize("record", INTERPRETERS, ids=VERSIONS)
def test_the_interpreter_s_record(record):
    assert list(record["hazards"]) == list(RUN)
    for found in record["hazards"].values():
        assert found["end"] in ("right", "wrong", "hang", "raised")
    assert record["provenance"]["gpu"] is None


@pytest.mark.skipif(not results.find(f"{results.GPU}/wild.json"), reason="no GPU ran them yet")
@pytest.mark.parametrize("name", RUN)
def test_the_mended_kernel_was_right_on_the_gpu(name):
    (gpu,) = results.read(f"{results.GPU}/wild.json")
    assert list(gpu["hazards"]) == list(RUN)
    fixed = gpu["hazards"][name]["fixed"]
    assert fixed["outcome"] == "nothing" and fixed["wrong"] == [0] * gpu["runs"]


@pytest.fixture(params=["not yet run", "nothing seen", "hang", "wrong"])
def seen(request, tmp_path, monkeypatch):
    """What was seen on a GPU, and the records that say so, in place of the committed ones."""
    folder = tmp_path / "results"
    for version, record in zip(VERSIONS, INTERPRETERS, strict=True):
        path = folder / f"interpreter/wild-jax-{version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    if request.param != "not yet run":
        path = folder / results.GPU / "wild.json"
        path.parent.mkdir()
        records.put(path, made_up(request.param.removesuffix(" seen")))
    read = outcomes.Outcomes.read.__func__
    there = lambda cls, suite: read(cls, (folder,), suite)
    monkeypatch.setattr(outcomes.Outcomes, "read", classmethod(there))
    return request.param


def test_a_fault_is_shown_with_what_a_gpu_did_or_that_none_ran_it(seen, capsys):
    book.show_fault("whole-store")
    shown = capsys.readouterr().out
    assert WILD["whole-store"].remedy in shown and "race: `o_smem` is overwritten" in shown
    said = {
        "not yet run": "- **GPU:** not yet run on a GPU.",
        "nothing seen": "- **NVIDIA H200:** nothing seen: right in all of 20 runs.",
        "hang": "- **NVIDIA H200:** a hang (no answer in 10 s), ended from outside.",
        "wrong": "- **NVIDIA H200:** wrong in 20 of 20 runs; the largest error was 1.",
    }
    assert said[seen] in shown
    head, _, *rows = book.fault_table().splitlines()
    assert head.endswith("| GPU |" if seen == "not yet run" else "| NVIDIA H200 |")
    assert len(rows) == len(WILD)
    ends = [seen if name in RUN else "for Blackwell" for name in WILD]
    assert all(row.endswith(f" | {end} |") for row, end in zip(rows, ends, strict=True))
    runs = outcomes.Outcomes.read(suite="wild").runs()
    assert ("20 runs of each version, 256 copies" in runs) is (seen != "not yet run")


def test_a_fault_that_no_gpu_ran_says_so(capsys):
    book.show_fault("copy-order")
    shown = capsys.readouterr().out
    assert WILD["copy-order"].remedy in shown and "race: `sums@1` of block 1" in shown
    assert "- **Blackwell:** not run: no such GPU was at hand" in shown


def test_a_record_of_a_gpu_is_of_the_kernels_that_it_ran(tmp_path):
    path = tmp_path / "nvidia-h200" / "wild.json"
    path.parent.mkdir()
    group = made_up()
    group["run"]["blocks"] = 2
    records.put(path, group)
    compiled.note(path)
    (group,) = records.read(path)
    kept = group["contenders"]["whole-store"]
    assert kept["fixed"][records.KEY] != kept["faulty"][records.KEY]
    if group["run"]["provenance"]["jax"] == jax.__version__:
        assert compiled.stale(path) == []


# The chapter.

BOOK = pathlib.Path(book.__file__).parents[1] / "book"
#: The chapter has those that it reads closely, the page all others.
TEXTS = [(BOOK / name).read_text("utf-8") for name in ("20_in_the_wild.md", "gallery_wild.md")]


@EVERY
def test_it_is_shown_once_under_its_title(hazard):
    found = [re.search(rf"\n###? {hazard.title}\n(.*?)(\n##|$)", text, re.DOTALL) for text in TEXTS]
    (section,) = [each[1] for each in found if each]
    shown = f'book.show_fault("{hazard.name}")', f"<!-- made from the code: fault {hazard.name} -->"
    assert sum(way in section for way in shown) == 1
