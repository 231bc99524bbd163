"""`benchmarks/search.py`: a run with a stand-in for the GPU, its record, its table."""

import json

import jax
import pytest

from benchmarks import compiled, noting, records, suite
from benchmarks import search as benchmark
from pallascope.bench import jaxprs
from pallascope.bench.provenance import provenance
from pallascope.tuning import searching
from pallascope.tuning.measuring import check_sendable
from pallascope.tuning.results import Row
from pipelib.kernels.hopper import Gpu, assumed
from tools import records as page


class Measurer:
    """Stands in for `Calls`: more slots are faster; it counts what is asked."""

    def __init__(self, executor, kernel_of, args, expected, tolerance=None):
        pass

    def row(self, config):
        return Row(config, (100.0 - config["slots"] + config["delay"],) * 3, 0.0)

    def each(self, configs):
        for config in configs:
            self.asked.append(config)
            yield self.row(config)

    def in_turn(self, configs):
        return [self.row(config) for config in configs]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Runs the script on the stand-in; returns the record's groups."""
    monkeypatch.setattr(searching, "Calls", Measurer)
    monkeypatch.setattr(benchmark, "Calls", Measurer)
    monkeypatch.setattr(Measurer, "asked", [], raising=False)
    facts = provenance() | dict(gpu="NVIDIA H200", driver="1", cuda="13.0")
    monkeypatch.setattr(suite, "provenance", lambda: facts)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "")
    monkeypatch.setattr(noting, "note", compiled.note)
    folders = "--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")

    def run(*words):
        with assumed(Gpu("NVIDIA H200", "9.0")):
            benchmark.SUITE.main([*words, *folders, "--jobs", "1"])
        path = tmp_path / "results" / "nvidia-h200" / "search.json"
        return path, records.read(path)

    return run


def test_a_run_writes_a_record_and_goes_on(measured, capsys):
    words = "chapter", "--every", "3", "--measure", "4"
    path, (group,) = measured(*words)
    asked = len(Measurer.asked)
    rows = group["brute"]["rows"]
    assert group["searched"] == len(rows) == 14 and group["space"] == 40
    assert group["complete"] and len([row for row in rows if row[3]]) == asked
    assert {row[1] for row in rows} >= {"measured", "does not fit"}
    assert len([row for row in group["search"]["rows"] if row[3]]) == 4
    best = group["contenders"]["brute"]
    assert best["config"]["slots"] == max(row[0]["slots"] for row in rows if row[3])
    assert len(best[compiled.KEY]) == 16 and compiled.stale(path) == []
    assert "| search / best |" in (out := capsys.readouterr().out) and "14 of 40" in out
    again = measured(*words)[1]
    assert len(Measurer.asked) == asked, "nothing is measured twice"
    assert again[0]["search"]["seconds"] == group["search"]["seconds"]
    ((title, table),) = page.tables("search.json", json.loads(path.read_text()))
    assert title == "The search beside brute force" and "warp-specialized" in table
    (run,) = page.runs(json.loads(path.read_text()))
    assert run.parts == ("chapter warp-specialized product of 4096x4096, float16",)
    assert page.what(run.command).startswith("Measures how near `pallascope.tuning.search` comes")


def test_when_the_time_is_over_the_record_says_that_it_is_not_all(measured):
    _, (group,) = measured("chapter", "--measure", "1", "--seconds", "0.1")
    assert group["every"] == 1
    rows = group["brute"]["rows"]
    assert group["complete"] == (len(rows) == 40 and all(row[1] != "predicted" for row in rows))


def test_an_interruption_ends_the_script(measured, monkeypatch):
    def interrupted(self, configs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurer, "each", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured("chapter", "--every", "9")


@pytest.mark.parametrize("part", benchmark.PARTS)
def test_each_part_can_be_looked_at_and_sent_to_workers(part):
    with assumed(Gpu("NVIDIA H200", "9.0")):
        this = benchmark.case(part)
        assert check_sendable(this.kernel_of, this.args, this.expected) is None
        config = this.space[len(this.space) // 2]
        results = searching.search(this.kernel_of, [config], *this.args, measure=0, progress=False)
        assert results.trials[0].outcome in ("predicted", "does not fit"), results
        kept = json.loads(json.dumps(benchmark.plain(config)))
        made = this.kernel(kept)
        assert jaxprs.digest(made, *this.args) == results.trials[0].digest
        shape = jax.eval_shape(this.expected, *this.args)
        if results.trials[0].outcome == "predicted":
            assert jax.eval_shape(made, *this.args).shape == shape.shape
