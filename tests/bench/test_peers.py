"""`benchmarks/peers.py`: peers are contenders where a folder is given; what PyTorch's CUPTI saw."""

import contextlib
import functools
import json
import re

import pytest

from benchmarks import attention, attention_problems, matmul, peers, records
from benchmarks.in_torch import Seen, by_call, prepare
from benchmarks.products import Problem
from pallascope.bench.cupti import Kernel
from pallascope.tuning.measuring import tolerance
from pallascope.tuning.workers import Workers
from pipelib_book.measured.attention import BUILDS, FA3
from pipelib_book.measured.ladder import BUILDS as PRODUCTS
from pipelib_book.measured.ladder import DEEPGEMM

PROBLEM = attention_problems.Problem(4096, 128, True)
VERSIONS = {FA3: "somebody/flash 0123", DEEPGEMM: "somebody/gemm 4567"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERS", str(tmp_path))
    (tmp_path / "peers.py").write_text("NAME = 'built'\n")
    (tmp_path / "versions.json").write_text(json.dumps(VERSIONS))
    return tmp_path


def test_without_a_folder_there_are_none(monkeypatch):
    monkeypatch.delenv("PEERS", raising=False)
    assert peers.folder() is None and not {FA3, DEEPGEMM} & peers.versions().keys()
    assert FA3 not in attention.baselines(PROBLEM)
    with pytest.raises(ValueError, match="PEERS names no folder, so there is no fa3 to measure"):
        peers.load()


def test_a_folder_s_module_is_loaded(folder):
    assert VERSIONS.items() <= peers.versions().items()
    assert peers.load().NAME == "built"


@pytest.mark.parametrize(
    ("lost", "said"), [("peers.py", "no peers.py, so"), ("versions.json", "no versions.json, so")]
)
def test_a_folder_must_be_whole(folder, lost, said):
    (folder / lost).unlink()
    with pytest.raises(ValueError, match=re.escape(said)):
        peers.versions()


def test_they_are_contenders(folder):
    assert attention.baselines(PROBLEM)[FA3] == peers.Fa3(causal=True)
    assert FA3 in attention.SUITE.parts["ladder"].contenders(PROBLEM, [])
    groups = records.read(records.RESULTS / "nvidia-h200" / "matmul.json")
    shapes = matmul.SUITE.parts["shapes"].contenders
    assert shapes(Problem(4096, 4096, 4096), groups)[DEEPGEMM] == peers.DeepGemm()
    assert DEEPGEMM not in shapes(Problem(4096, 4096, 4096, "float16"), groups)


def test_only_what_is_there_is_a_contender(folder):
    (folder / "versions.json").write_text(json.dumps({DEEPGEMM: "x"}))
    assert FA3 not in attention.baselines(PROBLEM)


def test_products_of_jax_are_measured_as_ever():
    problem = Problem(64, 48, 32, "float16")
    assert prepare(lambda a, b: a @ b, problem)("check") < tolerance("float16")


def test_what_ran_is_told_by_call():
    seen = [Seen(30.0, "b", 5.0), Seen(10.0, "a", 2.0), Seen(13.0, "b", 4.0), Seen(25.0, "a", 3.0)]
    assert by_call(seen, 2) == [
        [Kernel("a", 0.002), Kernel("b", 0.004)],
        [Kernel("a", 0.003), Kernel("b", 0.005)],
    ]


@pytest.mark.parametrize("count", [0, 3])
def test_calls_that_cannot_be_told_apart_have_no_times(count):
    seen = [Seen(float(i), "a", 1.0) for i in range(count)]
    with pytest.raises(RuntimeError, match=f"CUPTI saw {count} kernels in 2 calls, which do not"):
        by_call(seen, 2)


@pytest.fixture
def hold():
    """Holds a task in a process of its own, since CUPTI would serve no JAX in this one any more."""
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(1))

        def begin(prepared, *args):
            (held,) = stack.enter_context(workers.hold([functools.partial(prepared, *args)]))
            return held

        yield begin


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_flash_attention_is_right_and_timed(build, causal, backward, hold):
    problem = attention_problems.Problem(1280, 128, causal, "bfloat16", backward, heads=2)
    made = attention.baselines(problem).get(build) or pytest.skip(f"{build} is not here")
    run = hold(attention_problems.prepare, made, problem)
    assert run("check") < tolerance("bfloat16")
    found = run("burst", 3)
    assert len(found["us"]) == 3 and min(found["us"]) > 0.0


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("build", PRODUCTS)
def test_deepgemm_is_right_and_timed(build, turned, hold):
    made = peers.DeepGemm(build) if peers.has(build) else pytest.skip(f"{build} is not here")
    run = hold(prepare, made, Problem(256, 512, 384, "bfloat16", *turned))
    assert run("check") < tolerance("bfloat16")
    assert len(run("burst", 3)["us"]) >= 3
    assert min(run("sustained", 0.1)["us"]) > 0.0
