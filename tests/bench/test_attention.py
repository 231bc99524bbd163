"""`benchmarks/attention.py`: its contenders, how a group is measured, its errors; its records."""

import argparse
import contextlib
import functools
import json
import math
import pathlib
import pickle

import jax
import numpy as np
import pytest

from benchmarks import attention, matmul
from benchmarks.attention import CUDNN, OURS, PARTS, TUNE, space
from benchmarks.attentions import EMITTER, UPSTREAM, InJax, Problem, Sdpa, exact, operands, prepare
from pipelib.bench import cupti
from pipelib.kernels import AttentionConfig
from pipelib.kernels.attention import attention_reference
from pipelib.kernels.matmul import tuned
from pipelib.tuning.rows import Row
from pipelib.tuning.workers import Failed
from pipelib_book.measured.attention import FA3, OTHERS
from tests.bench.pools import Pool, behaviour

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results"
RECORDS = sorted(RESULTS.glob("*/attention.json"))
SMALL = Problem(40, 16, True, "float16", heads=2)


def reference(q, k, v, causal=True):
    return attention_reference(q, k, v, causal=causal, scale=1.0)


# Measuring one contender.


def fake_cupti(monkeypatch, kernels):
    """CUPTI that launches as often as the true one, and tells of these kernels."""
    counts = []

    class Cupti:
        def __init__(self, finalize):
            assert not finalize

        def measure(self, launch, aggregate, iterations):
            assert isinstance(launch, jax.stages.Wrapped | jax.stages.Compiled)

            def run(*args):
                for _ in range(1 + iterations):
                    launch(*args)
                counts.append(iterations)
                return None, [
                    [(name, ms * (i + 1)) for name, ms in kernels] for i in range(iterations)
                ]

            return run

    monkeypatch.setattr(cupti.profiler, "Cupti", Cupti)
    return counts


def test_a_burst_is_of_compiled_functions(monkeypatch):
    """Any other is traced by CUPTI's wrapper, and nothing is left of one of no arguments."""
    counts = fake_cupti(monkeypatch, [("a", 1.0), ("b", 0.5)])
    for problem in (SMALL, SMALL._replace(backward=True)):
        found = InJax(reference, problem).burst(3)
        assert found["us"] == [1500.0 * i for i in (1, 2, 3)]
        assert found["kernels"] == {"a": 2000.0, "b": 1000.0}
    assert counts == [3, 3]


@pytest.mark.parametrize("backward", [False, True])
def test_errors_are_of_each_result(backward):
    problem = SMALL._replace(backward=backward)
    run = prepare(reference, problem)
    found = run("float64_error")
    assert found["each"].keys() == set(problem.results)
    assert 0.0 < found["relative"] == max(found["each"].values()) < 2e-3
    assert run("check") < matmul.tolerance(problem.out.dtype)
    assert prepare(functools.partial(reference, causal=False), problem)("check") > 0.1


def test_what_is_not_finite_anywhere_is_wrong():
    spoiled = lambda q, k, v: reference(q, k, v).at[0, 20, 1, 3].set(math.nan)
    assert prepare(spoiled, SMALL)("check") == math.inf


def test_exact_rows_are_those_of_the_whole():
    """In chunks of queries, too."""
    problem = SMALL._replace(backward=True)
    rows = np.array([3, 17, 39])
    whole = exact(problem, 1, np.arange(problem.seq))
    for some, every in zip(exact(problem, 1, rows), whole, strict=True):
        np.testing.assert_allclose(some, every[rows], 1e-12, 1e-12)
    out = reference(*operands(problem)[:3])[0, rows, 1]
    expected = exact(problem._replace(backward=False), 1, rows)[0]
    np.testing.assert_allclose(out, expected, 2e-3, 2e-3)


def test_pytorch_is_imported_only_where_it_is_asked_for():
    try:
        import torch
    except ImportError:
        with pytest.raises(ImportError):
            prepare(Sdpa("CUDNN_ATTENTION", True), SMALL)
    else:
        assert torch


def test_operations():
    """Two products forward, five backward, half of them if causal."""
    dense = Problem(16384, 128)
    assert dense.flops == 4 * 16 * 16384**2 * 128
    assert dense._replace(causal=True).flops * 2 == dense.flops
    assert dense._replace(backward=True).flops == dense.flops * 5 // 2


# Contenders.


@pytest.mark.parametrize("part", PARTS)
def test_every_contender_can_be_sent_to_a_process(part):
    for problem in PARTS[part].problems:
        made = PARTS[part].contenders(problem, [])
        assert pickle.loads(pickle.dumps(made)).keys() == made.keys()
        # Names of a script are those of another module there.
        assert attention.__name__.encode() + b"\x94" not in pickle.dumps(made)
        assert CUDNN in made
        for name, contender in made.items():
            if name.partition(",")[0] not in OTHERS:
                contender = contender.keywords.get("contender", contender)  # of bfloat16
                itemsize = 1 if part == "narrow" else 2
                assert contender.keywords["causal"] == problem.causal
                if (config := contender.keywords.get("config")) is not None:
                    config.check(problem.head_dim, itemsize=itemsize)


def test_who_is_compared():
    forward = {problem: PARTS["forward"].contenders(problem, []) for problem in attention.FORWARD}
    for problem, made in forward.items():
        kinds = {name.split(",")[0] for name in made}
        is_half = problem.dtype == "float16"
        assert (UPSTREAM in kinds) == is_half
        assert (EMITTER in kinds) == (is_half and not problem.causal)
        assert {OURS, "PyTorch CUDNN_ATTENTION", "PyTorch FLASH_ATTENTION"} <= kinds
        alone = not problem.causal and problem.seq > 1024 and problem.head_dim < 256
        alone |= problem.causal and (problem.seq, problem.head_dim) == (4096, 128)
        assert (f"{OURS}, not persistent" in made) == alone
    rungs = PARTS["ladder"].contenders(attention.LADDER[0], [])
    in_registers = [f"rung {i} with p in registers" for i in (1, 3)]
    assert {*rungs} == {CUDNN, *(f"rung {i}" for i in (0, 1, 2, 3, 5)), *in_registers}
    assert "rung 4" in PARTS["ladder"].contenders(Problem(16384, 64), [])


def test_the_goals_are_measured():
    """The table of issue 5, in both dtypes."""
    for dtype in ("float16", "bfloat16"):
        for row in ((16384, 128, False), (16384, 128, True), (16384, 64, False),
                    (16384, 256, False), (4096, 128, False), (1024, 128, False)):  # fmt: skip
            assert Problem(*row, dtype) in attention.FORWARD
        assert Problem(8192, 128, False, dtype, backward=True) in attention.BACKWARD


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_search_has_all_schedules(head_dim):
    configs = space(Problem(16384, head_dim))
    assert len(set(configs)) == len(configs) >= 4
    assert {config.schedule for config in configs} == {"plain", "overlap", "pingpong", "both"}
    for config in configs:
        config.check(head_dim)
        assert AttentionConfig(**json.loads(json.dumps(attention.as_json(config)))) == config


def test_what_a_search_found_is_a_contender():
    best = AttentionConfig(block_kv=64, slots=3)
    for problem in (TUNE[0], TUNE[0]._replace(dtype="bfloat16")):
        group = dict(part="tune", problem=TUNE[0].as_json(), best=attention.as_json(best))
        found = PARTS["forward"].contenders(problem, [group])
        assert found[f"{OURS}, tuned"].keywords["config"] == best
    assert f"{OURS}, tuned" not in PARTS["forward"].contenders(TUNE[1], [group])


# Groups, with a fake timer.


def group_of(*behaviours, rounds=3, problem=SMALL):
    log, made = [], {b["name"]: b for b in behaviours}
    pools = {name: Pool(log, name) for name in (CUDNN, matmul.OTHERS)}
    group = attention.Group(problem, made, pools)
    group.measure(PARTS["forward"]._replace(rounds=rounds, launches=2), 0.0)
    return group.found, log


def test_a_group():
    hang = Failed("no answer in 30 s")
    found, log = group_of(
        behaviour(OURS, check=0.001), behaviour(CUDNN, check=0.001),
        behaviour("late", check=0.001, burst=hang), behaviour("wrong", check=0.5),
        behaviour("absent", held=Failed("no module named torch")),
    )  # fmt: skip
    bursts = [entry[0] for entry in log if entry[1] == "burst"]
    assert bursts.count(OURS) == bursts.count(CUDNN) == 3 and bursts.count("late") == 1
    assert found[OURS]["burst_microseconds"] == [1.0, 3.0] * 3
    assert found["late"]["reason"] == "no answer in 30 s"
    assert "wrong by more than" in found["wrong"]["reason"]
    assert found["absent"] == {"reason": "no module named torch"}


@pytest.mark.parametrize(("dtype", "error", "is_right"), [
    ("float8_e4m3fn", 0.2, True), ("float8_e4m3fn", 0.3, False), ("bfloat16", 0.2, False),
])  # fmt: skip
def test_probabilities_of_8_bits_may_be_farther_off(dtype, error, is_right):
    problem = SMALL._replace(dtype=dtype)
    found, _ = group_of(behaviour(OURS, check=error), problem=problem)
    assert ("reason" not in found[OURS]) == is_right


def test_sizes_have_the_peer_only_where_it_was_built(monkeypatch):
    """With one head_dim of 64, 128 or 256; dense, of an even number of 128 keys."""
    monkeypatch.setattr(attention.peers, "has", lambda name: True)
    made = {problem: PARTS["sizes"].contenders(problem, []) for problem in attention.SIZES}
    kinds = {(p.seq, p.head_dim, p.v_head_dim, p.causal) for p in made if FA3 in made[p]}
    assert kinds == {
        (777, 128, None, True), (896, 128, None, True), (4097, 128, None, True),
        (4224, 128, None, True), (2048, 128, None, True),
    }  # fmt: skip
    assert all({OURS, CUDNN} <= found.keys() for found in made.values())


def test_a_table_is_against_the_fastest_of_the_others():
    fast, slow = dict(us=[2.0, 2.0], kernels={}), dict(us=[4.0, 4.0], kernels={})
    found, _ = group_of(
        behaviour(OURS, burst=fast, check=0.001), behaviour(CUDNN, burst=slow, check=0.001),
        behaviour(f"{OURS}, tuned", burst=dict(us=[1.0, 1.0], kernels={}), check=0.001),
        behaviour("x", held=Failed("too large")),
    )  # fmt: skip
    text = attention.table(dict(part="forward", problem=SMALL.as_json(), contenders=found))
    lines = text.splitlines()
    assert lines[1].split()[:2] == [f"{OURS},", "tuned"] and "4.000x" in lines[1]
    assert "2.000x" in lines[2] and "1.000x" in lines[3] and "too large" in lines[4]
    assert f"{SMALL.flops / 2.0 / 1e6:.1f} +-0.0%" in lines[2]


# Sessions.


class Workers(Pool):
    """`Workers` with a GPU, on which all contenders take the same time."""

    def stream(self, tasks):
        yield from enumerate([dict(gpu="NVIDIA H200", jax=jax.__version__)] * len(tasks))

    @contextlib.contextmanager
    def hold(self, tasks):
        answers = dict(
            check=0.001, float64_error=dict(rows=1, relative=0.001, each={}),
            burst=dict(us=[5.0] * 80, kernels={"k": 5.0}),
        )  # fmt: skip
        yield [lambda method, *args: answers[method]] * len(tasks)


def session(tmp_path, **options):
    defaults = dict(
        only="", resume=False, seconds=math.inf, rounds=2, limit=4, results=tmp_path, quiet=True
    )
    pools = {name: Workers([], name) for name in (CUDNN, matmul.OTHERS)}
    return attention.Session(argparse.Namespace(**defaults | options), pools)


def test_a_dry_run_writes_a_record(tmp_path, capsys):
    one = session(tmp_path, only=":1")
    one.compare("backward")
    path = tmp_path / "nvidia-h200" / "attention.json"
    (group,) = matmul.read(path)
    made = PARTS["backward"].contenders(attention.BACKWARD[0], [])
    assert group["contenders"].keys() == made.keys()
    assert {"command", "provenance", "distribution"} <= group["run"].keys()
    assert len(group["contenders"][OURS]["burst_microseconds"]) == 2 * attention.LAUNCHES
    assert str(attention.BACKWARD[0]) in capsys.readouterr().out
    again = session(tmp_path, only=":1", resume=True)
    assert list(again.problems("backward")) == []
    assert list(again.problems("ladder")) == [attention.LADDER[0]]
    assert list(session(tmp_path, only=":1", seconds=-1.0).problems("ladder")) == []


def test_a_search_is_recorded(tmp_path, monkeypatch):
    class Measurer:
        def __init__(self, workers, problem, contender, samples):
            self.samples = samples

        def each(self, configs):
            for i, config in enumerate(configs):
                yield Row(config, (10.0 + i,) * self.samples, 0.001)

        def in_turn(self, configs):
            return list(self.each(configs))

    monkeypatch.setattr(attention, "OnGpu", Measurer)
    session(tmp_path, only=":1", limit=3).tune()
    (group,) = matmul.read(tmp_path / "nvidia-h200" / "attention.json")
    assert AttentionConfig(**group["best"]) == space(TUNE[0])[0]
    assert len(group["rows"]) == 3 and group["problem"] == TUNE[0].as_json()


def test_no_gpu(tmp_path):
    class NoGpu(Workers):
        def stream(self, tasks):
            yield 0, dict(gpu=None)

    pools = {name: NoGpu([], name) for name in (CUDNN, matmul.OTHERS)}
    with pytest.raises(SystemExit, match="there is nothing to time"):
        attention.Session(argparse.Namespace(results=tmp_path, quiet=True), pools)


# Records.


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_groups_of_the_record_are_whole(path):
    groups = matmul.read(path)
    for group in groups:
        problem = Problem(**group["problem"])
        assert tuned.file_name(group["run"]["provenance"]["gpu"]) == path.parent.name
        if group["part"] == "tune":
            AttentionConfig(**group["best"]).check(problem.head_dim)
            continue
        peers = {FA3} & group["run"].get("peers", {}).keys()
        if group["part"] in ("narrow", "sizes"):  # not of all their problems
            peers &= group["contenders"].keys()
        assert group["contenders"].keys() - peers == (
            PARTS[group["part"]].contenders(problem, groups).keys()
        )
        assert peers <= group["contenders"].keys()
        for found in group["contenders"].values():
            assert "reason" in found or len(found["burst_microseconds"]) >= 20
