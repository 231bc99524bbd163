"""`benchmarks/matmul.py`: how a group is measured, what it keeps; the committed records."""

import argparse
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from benchmarks import contenders, matmul, untuned, upstream
from benchmarks.contenders import (
    AGAIN,
    BASELINES,
    CUBLAS,
    LADDER,
    PLANS,
    SEARCHED,
    TUNED,
    UNTIMED,
    UPSTREAM,
    Plan,
)
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.matmul import tuned
from pipelib.kernels.matmul.arguments import is_addressable
from pipelib.kernels.matmul.call import pick
from pipelib.kernels.matmul.product import Product
from pipelib.tuning import record
from pipelib.tuning.products import Problem
from pipelib.tuning.workers import Failed
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import ladder
from tests.bench.pools import Pool, behaviour

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results"
RECORDS = sorted(RESULTS.glob("*/matmul.json"))
SEARCHES = sorted(RESULTS.glob("*/tune.json"))
SMALL = Problem(64, 64, 64)


def group_of(*behaviours, sustained_s=1.0, **plan):
    log = []
    made = {b["name"]: b for b in behaviours}
    pools = {name: Pool(log, name) for name in (CUBLAS, AGAIN, matmul.OTHERS)}
    group = matmul.Group(SMALL, made, pools)
    names = tuple(made)
    group.measure(Plan((), None, **dict(rounds=3, launches=2, sustained=names) | plan),
                  sustained_s)  # fmt: skip
    return group.found, log


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
    monkeypatch.setattr(matmul.time, "sleep", rests.append)
    found, log = group_of(behaviour("a", burst=dict(us=[9.0, 8.0, 1.0, 3.0], kernels=["k"])))
    assert found["a"]["burst_microseconds"] == [1.0, 3.0] * 3
    asked = {entry[2] for entry in log if entry[1] == "burst"}
    assert asked == {matmul.UNCOUNTED_LAUNCHES + 2}
    assert rests == [matmul.timing.REST_S] * 3


def test_xla_picks_twice_alone_and_all_is_checked_before_anything_is_timed():
    _, log = group_of(*map(behaviour, (TUNED, *BASELINES)))
    assert log[:3] == [
        (CUBLAS, "hold", CUBLAS), (AGAIN, "hold", AGAIN), ("others", "hold", TUNED, UNTIMED)
    ]  # fmt: skip
    methods = [entry[1] for entry in log[3:]]
    assert methods.index("burst") > max(
        i for i, method in enumerate(methods) if method in ("check", "float64_error")
    )


def fastest_baseline(found):
    return ladder.Group(matmul.as_json(SMALL), found, {}).baseline


def test_the_fastest_baseline_is_the_one_that_counts():
    slow, fast = dict(us=[9.0, 9.0], kernels=[]), dict(us=[2.0, 2.0], kernels=[])
    found, log = group_of(
        behaviour(TUNED), behaviour(CUBLAS, burst=slow), behaviour(AGAIN, burst=fast),
        behaviour(UNTIMED, held=Failed("no")), sustained=(CUBLAS, TUNED),
    )  # fmt: skip
    assert fastest_baseline(found) == AGAIN
    assert [entry[0] for entry in log if entry[1] == "sustained"] == [AGAIN, AGAIN, TUNED]
    assert fastest_baseline({"x": {"burst_microseconds": [1.0]}}) is None


def test_a_sustained_run_follows_the_bursts_and_the_first_is_warmed():
    found, log = group_of(behaviour(TUNED), behaviour(CUBLAS), sustained_s=2.0)
    runs = [entry for entry in log if entry[1] == "sustained"]
    assert runs == [(TUNED, "sustained", matmul.WARM_S), (TUNED, "sustained", 2.0),
                    (CUBLAS, "sustained", 2.0)]  # fmt: skip
    assert found[TUNED]["sustained_microseconds"] == [2.0] * 4
    assert found[TUNED]["sustained_products_a_sample"] == 5
    assert isinstance(found[TUNED]["driver"], list)


def test_what_fails_has_its_reason_and_the_others_go_on():
    hang = Failed("no answer in 20 s")
    found, log = group_of(
        behaviour("a", held=Failed("ValueError: too large")), behaviour("b", burst=hang),
        behaviour("c", sustained=hang), behaviour("d", check=0.5), behaviour("e"),
        behaviour("f", float64_error=hang),
    )  # fmt: skip
    assert found["a"] == {"reason": "ValueError: too large"}
    assert found["b"]["reason"] == "no answer in 20 s" and "burst_microseconds" not in found["b"]
    assert sum(entry[:2] == ("b", "burst") for entry in log) == 1, "it is asked once"
    assert found["c"]["reason"] and found["c"]["burst_microseconds"]
    assert "wrong by more than" in found["d"]["reason"] and found["d"]["largest_error_rms"] == 0.5
    assert not any(entry[0] == "d" and entry[1] in ("burst", "sustained") for entry in log)
    assert "reason" not in found["e"] and found["e"]["sustained_microseconds"]
    assert found["f"]["reason"] and not any(entry[:2] == ("f", "burst") for entry in log)


def test_a_nan_is_wrong():
    found, _ = group_of(behaviour("a", check=float("nan")))
    assert "wrong" in found["a"]["reason"]


def test_a_group_takes_the_place_of_the_same_product_s(tmp_path):
    path = tmp_path / "gpu" / "matmul.json"
    written = ("ladder", 64, 1), ("ladder", 128, 2), ("fp8", 64, 3), ("ladder", 64, 4)
    for part, n, value in written:
        problem = matmul.as_json(SMALL._replace(n=n))
        matmul.write(path, {"part": part, "problem": problem, "value": value})
    assert [group["value"] for group in matmul.read(path)] == [2, 3, 4]
    assert matmul.read(tmp_path / "none.json") == []


def test_a_table_shows_rates_and_reasons():
    found, _ = group_of(
        behaviour(TUNED), behaviour(CUBLAS, burst=dict(us=[2.0, 6.0], kernels=[])),
        behaviour("x", held=Failed("too large")),
    )  # fmt: skip
    found[TUNED]["driver"] = ["1980, 500.0, 50, 0x0", "1470, 690.0, 58, 0x4"]
    problem = matmul.as_json(SMALL)
    text = matmul.table({"part": "ladder", "problem": problem, "contenders": found})
    assert "2.000x" in text and "at 1470 MHz" in text and "too large" in text
    assert f"{2 * 64**3 / 2.0 / 1e6:.1f} +-" in text


def session(folder, **options):
    made = object.__new__(matmul.Session)
    defaults = dict(only="", resume=False, seconds=math.inf)
    made.options, made.start = argparse.Namespace(**defaults | options), time.monotonic()
    made.folder = folder
    return made


def test_a_part_measures_what_is_chosen_while_there_is_time(tmp_path, capsys):
    every = list(PLANS["shapes"].problems)
    assert list(session(tmp_path).problems("shapes")) == every
    assert list(session(tmp_path, only="3:5").problems("shapes")) == every[3:5]
    assert list(session(tmp_path, only=":2").problems("shapes")) == every[:2]
    assert list(session(tmp_path, only="14:").problems("shapes")) == every[14:]
    capsys.readouterr()
    assert list(session(tmp_path, seconds=-1.0, only=":1").problems("shapes")) == []
    assert f"no time left for {every[0]}" in capsys.readouterr().out


def test_resuming_leaves_out_what_is_of_these_kernels(tmp_path, monkeypatch):
    every = list(PLANS["fp8"].problems)
    group = {"part": "fp8", "problem": matmul.as_json(every[0])}
    matmul.write(tmp_path / "matmul.json", group)
    stale = []
    monkeypatch.setattr(matmul.noting, "stale", lambda path: stale)
    assert list(session(tmp_path, resume=True).problems("fp8")) == every[1:]
    assert list(session(tmp_path).problems("fp8")) == every
    stale.append(f"fp8 {Problem(**group['problem'])}, {TUNED}")
    assert list(session(tmp_path, resume=True).problems("fp8")) == every


# A whole run, but for what the workers do.
_PARENT = """
import pathlib, sys
from benchmarks import matmul
from pipelib.kernels.matmul import tuned
from pipelib.tuning.rows import Row
from pipelib_book.measured import ladder
from tests.bench import pools

folder = pathlib.Path(sys.argv.pop())
tuned.FOLDER = folder
measurer = lambda *_, **__: pools.Measurer()
matmul.OnGpu, matmul.search_workers = measurer, pools.Workers
matmul.Workers = pools.Workers
matmul.run_facts = lambda *_: {
    "provenance": pools.PROVENANCE, "command": ""
}
matmul.time.sleep = lambda _: None
matmul.main()
"""


def test_the_parent_of_the_workers_takes_no_gpu(tmp_path):
    """Every part of a run, in a process whose JAX finds no device at all: to ask is an error."""
    found = subprocess.run(
        [sys.executable, "-c", _PARENT, *SEARCHED, *PLANS, "--only", ":1", "--quiet",
         "--results", str(tmp_path), str(tmp_path)],
        env=os.environ | dict(JAX_PLATFORMS="none", PYTHONPATH=str(RESULTS.parents[1])),
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    groups = matmul.read(tmp_path / "nvidia-h200" / "matmul.json")
    assert [group["part"] for group in groups] == ["upstream", *PLANS]
    ask = "import jax; jax.devices()"
    assert subprocess.run(
        [sys.executable, "-c", ask], env=os.environ | dict(JAX_PLATFORMS="none"),
        capture_output=True,
    ).returncode != 0  # fmt: skip


# Contenders.


SEARCHED_GROUP = {
    "part": "upstream", "problem": LADDER[0]._asdict(),
    "best": upstream.to_json(upstream.starts(LADDER[0])[0]),
}  # fmt: skip


@pytest.mark.parametrize("part", PLANS)
def test_every_contender_can_be_sent_to_a_process(part):
    for problem in PLANS[part].problems:
        made = PLANS[part].contenders(problem, [SEARCHED_GROUP])
        assert pickle.loads(pickle.dumps(made)).keys() == made.keys()
        assert {*PLANS[part].sustained} - {contenders.DEEPGEMM} <= made.keys()


def test_the_ladder_has_every_rung_and_the_slots_of_rung_1():
    made = PLANS["ladder"].contenders(LADDER[0], [SEARCHED_GROUP])
    assert {f"rung {rung.number}" for rung in RUNGS} | {TUNED, UPSTREAM, CUBLAS} <= made.keys()
    slots = {RUNGS[0].config.slots, RUNGS[1].config.slots}
    slots |= {int(name.split()[3]) for name in made if " with " in name}
    assert slots == set(range(1, 7))


def test_sixteen_shapes_each_once():
    assert len(set(contenders.SHAPES)) == 16
    assert set(contenders.SHAPES) <= set(SEARCHED["tune"])
    for searched in SEARCHED.values():
        assert len(set(searched)) == len(searched)


def test_untuned_sizes_are_the_same_each_time_and_nobody_tuned_for_them():
    found = [*untuned.problems()]
    assert found == [*untuned.problems()] == [*PLANS["untuned"].problems]
    assert len({*found}) == untuned.COUNT
    assert not {*found} & {*SEARCHED["tune"]}
    assert min(p.m for p in found) < 8 and max(p.m for p in found) > 8192
    assert {(p.n, p.k) in untuned.LAYERS for p in found[::2]} == {True}
    assert all(64 <= size <= 16384 and size % 8 == 0 for p in found[1::2] for size in (p.n, p.k))
    assert [*untuned.problems(seed=1)] != found


def test_how_many_untuned_sizes_the_kernel_takes():
    product = Product(False, False, None, None, jnp.dtype("bfloat16"))
    takes = []
    with assumed(Gpu("NVIDIA H200", "9.0")):
        for problem in untuned.problems():
            a, b = problem.factors
            chosen = product.configured(pick(a, b, (), product))
            takes.append(is_addressable(a, b, (), chosen))
    assert (sum(takes), len(takes)) == (60, 60)


def test_ours_has_a_configuration_for_untuned_sizes():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        for problem in untuned.problems():
            ours = contenders.PLANS["untuned"].contenders(problem, [])[TUNED]
            assert jax.eval_shape(ours, *problem.factors) == problem.out


def test_upstream_s_configurations():
    first = upstream.starts(LADDER[0])
    assert len(first) == len(set(first)) > 20
    for config in first:
        assert upstream.from_json(json.loads(json.dumps(upstream.to_json(config)))) == config
        around = upstream.neighbours(config)
        assert len(around) == len(set(around)) == 5 and config not in around
    skinny = upstream.starts(Problem(64, 8192, 8192))
    assert skinny and {config.tile_m for config in skinny} == {64}


def test_upstream_takes_the_nearest_search():
    far = SEARCHED_GROUP | dict(
        problem=Problem(64, 64, 64)._asdict(),
        best=upstream.to_json(upstream.starts(LADDER[0])[1]),
    )
    near = contenders.upstream_config(Problem(4096, 8192, 8192), [far, SEARCHED_GROUP])
    assert near == upstream.starts(LADDER[0])[0]
    with pytest.raises(LookupError, match="run the part `upstream`"):
        contenders.upstream_config(SMALL, [])


# Records.


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_groups_of_the_record_are_whole(path, record_property):
    """Those that it has; the others are told at the end of the run."""
    groups, missing = matmul.read(path), []
    for part, plan in PLANS.items():
        of_part = [group for group in groups if group["part"] == part]
        measured = [group["problem"] for group in of_part]
        for problem in plan.problems:
            if matmul.as_json(problem) not in measured:
                missing.append(f"{path.parent.name}, {part}: {problem}")
        for group in of_part:
            problem = Problem(**group["problem"])
            run = group["run"]
            # DeepGEMM is made only where a folder of peers is given.
            peers = {contenders.DEEPGEMM} & run.get("peers", {}).keys()
            assert group["contenders"].keys() - peers == plan.contenders(problem, groups).keys()
            assert part != "untuned" or peers <= group["contenders"].keys()
            assert tuned.file_name(run["provenance"]["gpu"]) == path.parent.name
            assert {"command", "seed", "distribution"} <= run.keys()
            for name, found in group["contenders"].items():
                if "reason" not in found:
                    assert len(found["burst_microseconds"]) >= 20, (part, str(problem), name)
                    assert found["float64"]["relative"] < 0.1
            assert any("reason" not in found for found in group["contenders"].values())
    if missing:
        record_property("table: not measured yet (make benchmark)", missing)


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.parent.name)
def test_the_table_is_made_of_the_searches(path):
    assert path.stat().st_size < 1 << 20
    text = (tuned.FOLDER / f"{path.parent.name}.json").read_text("utf-8")
    assert text == record.table(json.loads(path.read_text("utf-8")))


def test_every_table_has_its_record():
    names = {path.stem for path in tuned.FOLDER.glob("*.json")}
    assert names == {path.parent.name for path in SEARCHES}
