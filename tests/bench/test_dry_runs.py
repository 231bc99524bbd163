"""Runs of every suite with stand-ins for the GPU: all parts, then small problems interpreted."""

import dataclasses
import importlib
import json

import jax
import pytest

from benchmarks import collective, compiled, decode, grouped, nvlink, records, suite
from benchmarks.turns import InTurns
from pallascope.bench import timing
from tests.bench.stand_ins import Workers, dry_run, with_parts
from tests.emitters.contract import interpreted
from tools import records as page

#: What has a layout of its own, or a table of more than times; searches, which other tests run.
APART, SEARCHES = {"profile", "accounts", "idle", "search", "tune"}, {"tune", "upstream"}
MODULES = {path.stem for path in (records.ROOT / "benchmarks").glob("*.py")} - APART
FOUND = {name: importlib.import_module(f"benchmarks.{name}") for name in sorted(MODULES)}
SUITES = {name: module.SUITE for name, module in FOUND.items() if hasattr(module, "SUITE")}


def with_a_stand_in(part):
    """The part with its first problem, of which all contenders took as long."""

    def measure(call, part, problem, made):
        yield dict(contenders={name: dict(burst_microseconds=[8.0] * 6) for name in made})

    return dataclasses.replace(part, measure=measure, problems=part.problems[:1])


@pytest.mark.parametrize("name", SUITES)
def test_every_part_of_a_suite_is_measured_and_shown(name, monkeypatch, tmp_path, capsys):
    made = SUITES[name]
    parts = {
        each: with_a_stand_in(part) for each, part in made.parts.items() if each not in SEARCHES
    }
    for group in records.read(records.RESULTS / "nvidia-h200" / made.file):
        if group["part"] in SEARCHES:  # other parts take what it found
            records.put(tmp_path / "nvidia-h200" / made.file, group)
    pools = (lambda options: {suite.OTHERS: Workers()}) if made.processes else None
    run = dataclasses.replace(made, parts=made.parts | parts, processes=pools)
    path = dry_run(monkeypatch, tmp_path, run, *parts)
    assert path.name == made.file
    groups = records.read(path)
    for each, part in parts.items():
        problem = part.plain(part.problems[0])
        (group,) = (g for g in groups if (g["part"], g["problem"]) == (each, problem))
        assert part.plain(part.of_group(group)) == problem
        assert group["contenders"].keys() == part.contenders(part.problems[0], groups).keys()
        assert {"command", "provenance"} <= group["run"].keys()
    capsys.readouterr()
    run.main(["table", str(tmp_path)])
    assert "nvidia-h200" in capsys.readouterr().out


# Small problems: interpreted and compared with float64; the times are made up.

TWO = decode.Problem(2, 2, keys=192, heads=4, kv_heads=2, head_dim=64)
ROWS = grouped.Problem(160, 64, 256, 4, "cut at random")
#: On one device nothing is sent, and the kernel is `matmul`.
ALONE = collective.Problem(128, 128, 64, devices=1)
SMALL = {
    decode: (TWO, TWO._replace(page=64)),
    grouped: (ROWS, ROWS._replace(weights=True)),
    collective: (ALONE,),
}
#: Whose kernels need a GPU, and what is as right as it should be.
REFUSE = {decode: decode.CUDNN, collective: collective.UPSTREAM}
RIGHT = {decode: decode.OURS, grouped: grouped.OURS, collective: f"{collective.PRODUCT}, matmul"}


def times(functions, args, rounds, burst):
    """All contenders take as long, but for the copy."""
    us = {name: 2.0 if name == decode.COPY else 4.0 for name in functions}
    return {name: timing.Samples((each,) * rounds * burst) for name, each in us.items()}


@pytest.mark.slow
@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.__name__)
def test_small_problems_have_times_errors_and_digests(module, monkeypatch, tmp_path, capsys):
    name, problems = module.SUITE.name, SMALL[module]
    monkeypatch.setattr(collective, "_OURS", {})
    measure = dataclasses.replace(module.SUITE.parts[name].measure, times=times)
    made = with_parts(module.SUITE, **{name: dict(problems=problems, measure=measure)})
    with jax.numpy_dtype_promotion("standard"), interpreted(detect_races=False):
        path = dry_run(monkeypatch, tmp_path, made, name, "--only", f":{len(problems)}")
    compiled.note(path)
    groups = records.read(path)
    assert [module.Problem(**group["problem"]) for group in groups] == [*problems]
    for problem, group in zip(problems, groups):
        found = group["contenders"]
        assert found.keys() == module.contenders(problem).keys()
        assert len(found[module.OURS]["burst_microseconds"]) == 6
        assert found[RIGHT[module]]["relative_error"] < 1e-2
        assert found[module.OURS]["compiled"] and {"command", "provenance"} <= group["run"].keys()
    assert "relative_error" not in groups[0]["contenders"].get(decode.COPY, {})
    if (who := REFUSE.get(module)) is not None:
        found = groups[0]["contenders"]
        assert "reason" in found[next(each for each in found if who in each)]
    assert compiled.stale(path) == []
    capsys.readouterr()
    made.main(["table", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert "nvidia-h200" in lines
    if module is decode:
        for line in (line for line in lines if line.startswith(f"  {decode.OURS} ")):
            assert f"{TWO.bytes / 4.0 / 1e6:.2f} TB/s  0.500 of copy" in line


def test_steps_of_nvlink_have_times_and_digests(monkeypatch, tmp_path, capsys):
    """Times and errors without GPUs; digests as `benchmarks.compiled` takes them."""
    kinds = {problem.kernel: problem for problem in nvlink.PROBLEMS}
    small = [problem._replace(steps=3, blocks=min(problem.blocks, 3)) for problem in kinds.values()]
    by_steps = lambda functions, args, rounds, burst: {
        name: timing.Samples((float(name.split()[0]),) * rounds) for name in functions
    }
    measure = InTurns(lambda problem: (), lambda *_: 0.0, 0.0, by_steps)
    made = with_parts(nvlink.SUITE, nvlink=dict(problems=small, measure=measure))
    path = dry_run(monkeypatch, tmp_path, made)
    assert capsys.readouterr().out.count("1.0000 us a step") == 2 * len(small)
    compiled.note(path)
    groups = json.loads(path.read_text("utf-8"))["groups"]
    assert all(kept["compiled"] for group in groups for kept in group["contenders"].values())
    assert compiled.stale(path) == []
    assert page._words(groups[0]["problem"]) == nvlink.SIGNALS
