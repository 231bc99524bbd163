"""`benchmarks/attention.py`: its contenders, how a group is measured, its errors; its records."""

import dataclasses
import functools
import json
import math
import pickle

import jax
import numpy as np
import pytest

from benchmarks import attention, processes, records
from benchmarks.attention import CUDNN, OURS, TUNE, space
from benchmarks.attention_problems import (
    EMITTER,
    UPSTREAM,
    InJax,
    Problem,
    Sdpa,
    exact,
    operands,
    prepare,
)
from benchmarks.suite import OTHERS
from pallascope.bench import cupti
from pallascope.tuning.measuring import tolerance
from pallascope.tuning.results import Row
from pipelib.kernels import AttentionConfig
from pipelib.kernels.attention import attention_reference
from pipelib.kernels.matmul import tuned
from pipelib_book.attention_forms import RungConfig
from pipelib_book.measured.attention import BUILDS, FA3
from pipelib_book.measured.attention import OTHERS as THEIRS
from tests.bench.stand_ins import Workers, dry_run

RECORDS = sorted(records.RESULTS.glob("*/attention.json"))
PARTS = attention.SUITE.parts
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


@pytest.mark.parametrize("backward, kv_heads", [(False, None), (True, None), (True, 1)])
def test_errors_are_of_each_result(backward, kv_heads):
    problem = SMALL._replace(backward=backward, kv_heads=kv_heads)
    run = prepare(reference, problem)
    found = run("float64_error")
    assert found["each"].keys() == set(problem.results)
    assert 0.0 < found["relative"] == max(found["each"].values()) < 2e-3
    assert run("check") < tolerance(problem.out.dtype)
    assert prepare(functools.partial(reference, causal=False), problem)("check") > 0.1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("option", [{"soft_cap": 0.5}, {"sinks": True}, {"documents": 2}], ids=str)
def test_errors_are_those_of_what_is_asked_for(option, backward):
    problem = SMALL._replace(backward=backward, **option)
    right = functools.partial(attention_reference, **problem.options)
    assert prepare(right, problem)("check") < tolerance(problem.out.dtype)
    assert prepare(reference, problem)("check") > 0.1
    assert str(problem) != str(SMALL._replace(backward=backward))


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


@pytest.mark.parametrize("part", [part for part in PARTS if part != "tune"])
def test_every_contender_can_be_sent_to_a_process(part):
    for problem in PARTS[part].problems:
        made = PARTS[part].contenders(problem, [])
        assert pickle.loads(pickle.dumps(made)).keys() == made.keys()
        assert CUDNN in made or part == "options"  # which is ours beside ours
        for name, contender in made.items():
            if name.partition(",")[0] not in THEIRS:
                contender = contender.keywords.get("contender", contender)  # of bfloat16
                dtype = "float8_e4m3fn" if part == "narrow" else "float16"
                assert contender.keywords["causal"] == problem.causal
                if (config := contender.keywords.get("config")) is not None:
                    config.check(problem.head_dim, dtype=dtype)


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
        for row in (
            (16384, 128, False),
            (16384, 128, True),
            (16384, 64, False),
            (16384, 256, False),
            (4096, 128, False),
            (1024, 128, False),
        ):
            assert Problem(*row, dtype) in attention.FORWARD
        assert Problem(8192, 128, False, dtype, backward=True) in attention.BACKWARD


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_search_has_all_schedules(head_dim):
    configs = space(Problem(16384, head_dim))
    assert len(set(configs)) == len(configs) >= 4
    assert {config.schedule for config in configs} == {"plain", "overlap", "pingpong", "both"}
    for config in configs:
        config.check(head_dim)
        assert RungConfig(**json.loads(json.dumps(attention.as_json(config)))) == config


def test_what_a_search_found_is_a_contender():
    best = AttentionConfig(block_kv=64, slots=3)
    for problem in (TUNE[0], TUNE[0]._replace(dtype="bfloat16")):
        group = dict(
            part="tune", problem=TUNE[0].as_json(), finals=[], best=attention.as_json(best)
        )
        found = PARTS["forward"].contenders(problem, [group])
        assert found[f"{OURS}, tuned"].keywords["config"] == best
    assert f"{OURS}, tuned" not in PARTS["forward"].contenders(TUNE[1], [group])


@pytest.mark.parametrize(
    ("dtype", "error", "is_right"),
    [
        ("float8_e4m3fn", 0.2, True),
        ("float8_e4m3fn", 0.3, False),
        ("bfloat16", 0.2, False),
    ],
)
def test_probabilities_of_8_bits_may_be_farther_off(dtype, error, is_right):
    assert (error <= attention.most_error(SMALL._replace(dtype=dtype))) == is_right


def test_a_table_is_against_the_fastest_of_the_others():
    us = {OURS: 2.0, CUDNN: 4.0, f"{OURS}, tuned": 1.0}
    made = {name: dict(burst_microseconds=[each, each]) for name, each in us.items()}
    made["x"] = dict(reason="too large")
    text = attention.SUITE.table(dict(part="forward", problem=SMALL.as_json(), contenders=made))
    lines = text.splitlines()
    assert lines[1].split()[:2] == [f"{OURS},", "tuned"] and "4.000x" in lines[1]
    assert "2.000x" in lines[2] and "1.000x" in lines[3] and "too large" in lines[4]
    assert f"{SMALL.flops / 2.0 / 1e6:.1f} TFLOP/s" in lines[2] and "+-0.0%" in lines[2]


# A run with stand-ins.


@pytest.fixture
def suite(monkeypatch):
    """The suite whose processes have a GPU on which all contenders are as good."""
    pools = lambda options: {name: Workers() for name in (CUDNN, OTHERS)}
    monkeypatch.setattr(processes.time, "sleep", lambda _: None)
    return dataclasses.replace(attention.SUITE, processes=pools)


def test_a_dry_run_writes_a_record(suite, monkeypatch, tmp_path, capsys):
    path = dry_run(monkeypatch, tmp_path, suite, "backward", "--only", ":1")
    (group,) = records.read(path)
    made = PARTS["backward"].contenders(attention.BACKWARD[0], [])
    assert group["contenders"].keys() == made.keys()
    assert {"command", "provenance", "distribution"} <= group["run"].keys()
    assert len(group["contenders"][OURS]["burst_microseconds"]) == 2 * 3
    assert str(attention.BACKWARD[0]) in capsys.readouterr().out


def test_a_search_is_recorded(suite, tmp_path, monkeypatch):
    class Measurer:
        def __init__(self, workers, prepare, samples):
            self.samples = samples

        def each(self, configs):
            for i, config in enumerate(configs):
                yield Row(config, (10.0 + i,) * self.samples, 0.001)

        def in_turn(self, configs):
            return list(self.each(configs))

    monkeypatch.setattr(attention, "OnGpu", Measurer)
    path = dry_run(monkeypatch, tmp_path, suite, "tune", "--only", ":1", "--limit", "3")
    (group,) = records.read(path)
    assert RungConfig(**group["best"]) == space(TUNE[0])[0]
    assert len(group["rows"]) == 3 and group["problem"] == TUNE[0].as_json()
    made = PARTS["tune"].contenders(TUNE[0], [group])
    assert made.keys() == group["contenders"].keys() and len(made) == len(group["finals"])


# Records.


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_groups_of_the_record_are_whole(path):
    groups = records.read(path)
    for group in groups:
        problem = Problem(**group["problem"])
        assert tuned.file_name(group["run"]["provenance"]["gpu"]) == path.parent.name
        if group["part"] == "tune":
            RungConfig(**group["best"]).check(problem.head_dim)
            continue
        theirs = group["contenders"].keys() - BUILDS.keys()  # which are not here
        assert theirs == PARTS[group["part"]].contenders(problem, groups).keys() - BUILDS.keys()
        if group["part"] not in ("narrow", "sizes"):  # not of all their problems
            assert {FA3} & group["run"].get("peers", {}).keys() <= group["contenders"].keys()
        for found in group["contenders"].values():
            assert "reason" in found or len(found["burst_microseconds"]) >= 20
