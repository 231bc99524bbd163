"""`benchmarks.processes`: how contenders are measured in processes, and what is kept of them."""

import dataclasses
import math
from types import SimpleNamespace

from benchmarks import matmul, processes
from benchmarks.matmul import AGAIN, BASELINES, CUBLAS, TUNED, UNTIMED, UPSTREAM
from benchmarks.products import Problem
from benchmarks.suite import OTHERS
from pallascope.tuning.workers import Failed
from tests.bench.stand_ins import Pool, behaviour

SMALL = Problem(64, 64, 64)
MEASURE = matmul.SUITE.parts["ladder"].measure


def group_of(*behaviours, sustained_s=1.0, **changed):
    log = []
    made = {b["name"]: b for b in behaviours}
    pools = {name: Pool(log, name) for name in (CUBLAS, AGAIN, OTHERS)}
    fields = dict(rounds=3, launches=2, sustained=tuple(made)) | changed
    part = dataclasses.replace(matmul.SUITE.parts["ladder"], **fields)
    call = SimpleNamespace(pools=pools, options=SimpleNamespace(sustained=sustained_s))
    (found,) = MEASURE(call, part, SMALL, made)
    return found["contenders"], log


def test_contenders_run_in_turn_and_each_turn_in_another_order():
    found, log = group_of(*(behaviour(name) for name in (TUNED, UPSTREAM, CUBLAS)), sustained_s=0)
    bursts = [entry[0] for entry in log if entry[1] == "burst"]
    assert sorted(bursts) == sorted([TUNED, UPSTREAM, CUBLAS] * 3)
    turns = [bursts[i : i + 3] for i in (0, 3, 6)]
    assert all(set(turn) == {TUNED, UPSTREAM, CUBLAS} for turn in turns)
    assert len(set(map(tuple, turns))) > 1
    for name in found:
        assert found[name]["burst_microseconds"] == [1.0, 3.0] * 3
        assert found[name]["kernels"] == ["k"]
        assert "sustained_microseconds" not in found[name]


def test_a_burst_begins_after_a_rest_and_its_first_launches_do_not_count(monkeypatch):
    rests = []
    monkeypatch.setattr(processes.time, "sleep", rests.append)
    found, log = group_of(behaviour("a", burst=dict(us=[9.0, 8.0, 1.0, 3.0], kernels=["k"])))
    assert found["a"]["burst_microseconds"] == [1.0, 3.0] * 3
    asked = {entry[2] for entry in log if entry[1] == "burst"}
    assert asked == {processes.UNCOUNTED_LAUNCHES + 2}
    assert rests == [processes.timing.REST_S] * 3


def test_xla_picks_twice_alone_and_all_is_checked_before_anything_is_timed():
    _, log = group_of(*map(behaviour, (TUNED, *BASELINES)))
    assert log[:3] == [
        (CUBLAS, "hold", CUBLAS),
        (AGAIN, "hold", AGAIN),
        ("others", "hold", TUNED, UNTIMED),
    ]
    methods = [entry[1] for entry in log[3:]]
    assert methods.index("burst") > max(
        i for i, method in enumerate(methods) if method in ("check", "float64_error")
    )


def test_the_fastest_of_a_kind_is_sustained():
    slow, fast = dict(us=[9.0, 9.0], kernels=[]), dict(us=[2.0, 2.0], kernels=[])
    _, log = group_of(
        behaviour(TUNED),
        behaviour(CUBLAS, burst=slow),
        behaviour(AGAIN, burst=fast),
        behaviour(UNTIMED, held=Failed("no")),
        sustained=(CUBLAS, TUNED),
    )
    assert [entry[0] for entry in log if entry[1] == "sustained"] == [AGAIN, AGAIN, TUNED]


def test_a_sustained_run_follows_the_bursts_and_the_first_is_warmed():
    found, log = group_of(behaviour(TUNED), behaviour(CUBLAS), sustained_s=2.0)
    runs = [entry for entry in log if entry[1] == "sustained"]
    assert runs == [
        (TUNED, "sustained", processes.WARM_S),
        (TUNED, "sustained", 2.0),
        (CUBLAS, "sustained", 2.0),
    ]
    assert found[TUNED]["sustained_microseconds"] == [2.0] * 4
    assert found[TUNED]["sustained_products_a_sample"] == 5
    assert isinstance(found[TUNED]["driver"], list)


def test_what_fails_has_its_reason_and_the_others_go_on():
    hang = Failed("no answer in 20 s")
    found, log = group_of(
        behaviour("a", held=Failed("ValueError: too large")),
        behaviour("b", burst=hang),
        behaviour("c", sustained=hang),
        behaviour("d", check=0.5),
        behaviour("e"),
        behaviour("f", float64_error=hang),
        behaviour("g", check=math.inf),
    )
    assert found["a"] == {"reason": "ValueError: too large"}
    assert found["b"]["reason"] == "no answer in 20 s" and "burst_microseconds" not in found["b"]
    assert sum(entry[:2] == ("b", "burst") for entry in log) == 1, "it is asked once"
    assert found["c"]["reason"] and found["c"]["burst_microseconds"]
    assert "wrong by more than" in found["d"]["reason"] and found["d"]["largest_error_rms"] == 0.5
    assert found["g"]["reason"] == "has elements that are not finite"
    assert not any(entry[0] in "dg" and entry[1] in ("burst", "sustained") for entry in log)
    assert "reason" not in found["e"] and found["e"]["sustained_microseconds"]
    assert found["f"]["reason"] and not any(entry[:2] == ("f", "burst") for entry in log)


def test_a_nan_is_wrong():
    found, _ = group_of(behaviour("a", check=float("nan")))
    assert "wrong" in found["a"]["reason"]
