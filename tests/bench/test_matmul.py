"""`benchmarks/matmul.py` and `tune.py`: a whole run with stand-ins, contenders, the records."""

import json
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks import matmul, records, tune, untuned, upstream
from benchmarks.matmul import CUBLAS, LADDER, SUITE, TUNED, UPSTREAM
from benchmarks.products import Problem
from pallascope.tuning.results import Row
from pallascope.tuning.spaces import label
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.matmul import tuned
from pipelib.kernels.matmul.arguments import unaddressed
from pipelib.kernels.matmul.call import pick
from pipelib.kernels.matmul.product import Product
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import ladder

RECORDS = sorted(records.RESULTS.glob("*/matmul.json"))
SEARCHES = sorted(records.RESULTS.glob("*/tune.json"))
SMALL = Problem(64, 64, 64)
#: What is compared.
PARTS = {name: part for name, part in SUITE.parts.items() if name != "upstream"}
#: Whose problems are searched for.
SEARCHED = {"tune": matmul.TUNED_FOR, "upstream": matmul.BOTH}


# A whole run, but for what the workers do.
_PARENT = """
import pathlib, sys
from benchmarks import matmul, processes, suite, tune
from pipelib.kernels.matmul import tuned
from tests.bench import stand_ins, test_matmul

tuned.FOLDER = folder = pathlib.Path(sys.argv.pop())
measurer = lambda *_, **__: test_matmul.Measurer()
matmul.on_gpu, tune.on_gpu = measurer, measurer
matmul.search_workers = matmul.Workers = stand_ins.Workers
suite.provenance_of = lambda _: test_matmul.PROVENANCE
suite.noting.note = lambda path: None
processes.time.sleep = lambda _: None
for made in (tune.SUITE, matmul.SUITE):
    made.main(["--only", ":1", "--results", str(folder)])
"""
PROVENANCE = dict(
    gpu="NVIDIA H200", driver="1", cuda="12", jax="0", jaxlib="0", python="3", git_commit=None,
    utc="2026-11-21T18:00:00+00:00", code_digest="0",
)  # fmt: skip


class Measurer:
    """Stands in for `on_gpu`: the same time for every configuration."""

    def each(self, configs):
        for config in configs:
            yield Row(config, (1.0, 2.0), 0.0)

    def in_turn(self, configs):
        return list(self.each(configs))


def test_the_parent_of_the_workers_takes_no_gpu(tmp_path):
    """Every part of a run, in a process whose JAX finds no device at all: to ask is an error."""
    found = subprocess.run(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        env=os.environ | dict(JAX_PLATFORMS="none", PYTHONPATH=str(records.ROOT)),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    groups = records.read(tmp_path / "nvidia-h200" / "matmul.json")
    assert [group["part"] for group in groups] == [*SUITE.parts]
    (search,) = records.read(tmp_path / "nvidia-h200" / "tune.json")
    assert search["rows"] and search["contenders"].keys() == {
        label(tune._config(row[0], search)) for row in search["finals"]
    }
    assert (tmp_path / "nvidia-h200.json").read_text() == tune.table(
        tmp_path / "nvidia-h200" / "tune.json"
    )
    ask = "import jax; jax.devices()"
    assert (
        subprocess.run(
            [sys.executable, "-c", ask],
            env=os.environ | dict(JAX_PLATFORMS="none"),
            capture_output=True,
        ).returncode
        != 0
    )


# Contenders.


SEARCHED_GROUP = {
    "part": "upstream",
    "problem": LADDER[0]._asdict(),
    "best": upstream.to_json(upstream.starts(LADDER[0])[0]),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_contender_can_be_sent_to_a_process(part):
    for problem in PARTS[part].problems:
        made = PARTS[part].contenders(problem, [SEARCHED_GROUP])
        assert pickle.loads(pickle.dumps(made)).keys() == made.keys()
        assert {*PARTS[part].sustained} - ladder.BUILDS.keys() <= made.keys()


def test_the_ladder_has_every_rung_and_the_slots_of_rung_1():
    made = PARTS["ladder"].contenders(LADDER[0], [SEARCHED_GROUP])
    assert {f"rung {rung.number}" for rung in RUNGS} | {TUNED, UPSTREAM, CUBLAS} <= made.keys()
    slots = {RUNGS[0].config.slots, RUNGS[1].config.slots}
    slots |= {int(name.split()[3]) for name in made if " with " in name}
    assert slots == set(range(1, 7))


def test_sixteen_shapes_each_once():
    assert len(set(matmul.SHAPES)) == 16
    assert set(matmul.SHAPES) <= set(SEARCHED["tune"])
    for searched in SEARCHED.values():
        assert len(set(searched)) == len(searched)


def test_untuned_sizes_are_the_same_each_time_and_nobody_tuned_for_them():
    found = [*untuned.problems()]
    assert found == [*untuned.problems()] == [*PARTS["untuned"].problems]
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
            chosen = product.configured(pick(a, b, (), product).config)
            takes.append(not unaddressed(a, b, (), chosen, by_rows=True))
    assert (sum(takes), len(takes)) == (60, 60)


def test_ours_has_a_configuration_for_untuned_sizes():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        for problem in untuned.problems():
            ours = PARTS["untuned"].contenders(problem, [])[TUNED]
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
    near = matmul.upstream_config(Problem(4096, 8192, 8192), [far, SEARCHED_GROUP])
    assert near == upstream.starts(LADDER[0])[0]
    with pytest.raises(LookupError, match="run the part `upstream`"):
        matmul.upstream_config(SMALL, [])


# Records.


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_groups_of_the_record_are_whole(path, record_property):
    """Those that it has; the others are told at the end of the run."""
    groups, missing = records.read(path), []
    for part, plan in PARTS.items():
        of_part = [group for group in groups if group["part"] == part]
        measured = [group["problem"] for group in of_part]
        for problem in plan.problems:
            if matmul.plain(problem) not in measured:
                missing.append(f"{path.parent.name}, {part}: {problem}")
        for group in of_part:
            problem = Problem(**group["problem"])
            run = group["run"]
            # DeepGEMM's builds are made only where they are.
            peers = ladder.BUILDS.keys() & run.get("peers", {}).keys()
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
    assert text == tune.table(path)


def test_every_table_has_its_record():
    names = {path.stem for path in tuned.FOLDER.glob("*.json")}
    assert names == {path.parent.name for path in SEARCHES}
