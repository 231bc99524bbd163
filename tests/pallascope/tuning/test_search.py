"""`pallascope.tuning.search`: what is never run, what wins, what is kept; stand-ins for the GPU."""

import builtins
import dataclasses
import functools
import importlib
import itertools
import math
import pathlib
import re
import tempfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pallascope.tuning
from pallascope.bench.cupti import Kernel
from pallascope.predicting import ERRORS, Likeness
from pallascope.tuning import Outcome, Results, Trial, measuring, ranking, searching
from pallascope.tuning.measuring import Calls, Reference, drawing, error_of
from pallascope.tuning.results import Found, Row
from pallascope.tuning.spaces import Ranked, configurations, label, neighbours
from pallascope.tuning.workers import Failed, Here, Workers
from pipelib.kernels import attention_space, matmul, matmul_space, softmax
from pipelib.kernels.attention.config import SCHEDULES
from pipelib.kernels.hopper import Gpu, assumed

X = jax.ShapeDtypeStruct((32, 128), jnp.float32)
SMEM_LIMIT = 232_448


def kernel_of(work=1, fence=True, smem=0, add=1.0, rows=8):
    """Adds `add` in `work` parts; without `fence` it has a fault."""
    if work > 8:
        raise ValueError(f"{work=} parts take {work} * 512 = {512 * work:,} bytes, over 4,096.")

    def body(x, o, s, barrier, *_):
        part = pl.ds(lax.axis_index("i") * rows, rows)
        plgpu.copy_gmem_to_smem(x.at[part], s, barrier)
        plgpu.barrier_wait(barrier)
        for _ in range(work):
            s[...] = s[...] + add / work
        if fence:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(s, o.at[part])
        plgpu.wait_smem_to_gmem(0)

    def kernel(x):
        more = [plgpu.SMEM((smem, 128), jnp.float32)] if smem else []
        scratch = [plgpu.SMEM((rows, x.shape[1]), jnp.float32), plgpu.Barrier(), *more]
        blocks = max(1, x.shape[0] // rows)
        return plgpu.kernel(
            body, out_type=x, grid=(blocks,), grid_names=("i",), scratch_types=scratch
        )(x)

    return kernel


def product(config):
    return functools.partial(matmul, config=config)


class Measurer:
    """Stands in for `Calls`: times by a function of a configuration; counts what is asked."""

    def __init__(self, time_of):
        self.time_of, self.asked, self.turns, self.stop_after = time_of, [], 0, None

    def __call__(self, executor, made, args, expected, tolerance, is_checked=False):
        self.expected = expected
        return self

    def row(self, config, samples):
        us = self.time_of(config)
        if us is None:
            return Row(config, reason="no answer in 20 s")
        wrong = "wrong: an element is off by 9 root mean squares" if us < 0 else ""
        return Row(config, (abs(us),) * samples, 9.0 if us < 0 else 0.0, wrong)

    def each(self, configs):
        for config in configs:
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                raise KeyboardInterrupt
            self.asked.append(config)
            yield self.row(config, 3)

    def in_turn(self, configs):
        self.turns += 1
        return [self.row(config, 5) for config in configs]


@pytest.fixture
def gpu(monkeypatch):
    """A Hopper GPU, in place of whose times a function of a configuration gives them."""

    def begin(time_of):
        monkeypatch.setattr(searching, "Calls", fake := Measurer(time_of))
        return fake

    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield begin


def search(space, *, made=kernel_of, args=(X,), **options):
    return pallascope.tuning.search(made, space, *args, **dict(progress=False) | options)


def outcomes(results):
    return {label(trial.config): str(trial.outcome) for trial in results.trials}


# What it says without a GPU.


def test_the_ranking_is_that_of_the_predicted_launches():
    results = search(dict(work=[4, 1, 2]))
    assert [trial.config["work"] for trial in results.trials] == [1, 2, 4]
    for trial in results.trials:
        kernel = kernel_of(**trial.config)
        (launch,) = pallascope.predict(kernel, X).launches
        here = pallascope.H200.changed(clock_hz=launch.clock_hz)
        timeline = pallascope.simulate(pallascope.trace(kernel, X), here)
        assert (trial.predicted_us, trial.bound) == (launch.us, timeline.bound())
        assert trial.outcome == "predicted" and trial.measured_us is None and trial.digest
    assert results.best == results.trials[0] and results.notes == ()


def test_each_early_end_has_its_outcome_and_its_sentence():
    space = [
        dict(work=1),
        dict(work=9),
        dict(work=1, smem=1024),
        dict(work=1, fence=False),
        dict(work="x"),
        dict(rows=384),
    ]
    results = search(space)
    found = {label(trial.config): trial for trial in results.trials}
    fits, text = found["work=9"], "work=9 parts take 9 * 512 = 4,608 bytes, over 4,096."
    assert (fits.outcome, fits.reason) == (Outcome.REFUSED, text)
    large = found["work=1, smem=1024"]
    assert large.outcome is Outcome.REFUSED
    assert f"a block can have {SMEM_LIMIT:,}: " in large.reason and "524,288" in large.reason
    faulty = found["work=1, fence=False"]
    assert faulty.outcome is Outcome.FINDING and faulty.reason.startswith("missing-commit: ")
    assert "commit_smem" in faulty.reason
    unlowered = found["rows=384"]
    assert unlowered.outcome is Outcome.UNLOWERED
    assert "copying <=256 elements along each dimension, got (384, 128)" in unlowered.reason
    assert found["work=x"].outcome is Outcome.UNTRACED
    assert re.search(r"test_search\.py:\d+: TypeError: ", found["work=x"].reason)
    assert results.best.config == dict(work=1)


def test_what_ptxas_makes_slow_comes_last_with_the_reason(monkeypatch):
    """Of the first few by prediction alone, since each takes seconds."""
    asked = []

    def compiled(kernel, x):
        asked.append(kernel)
        return SimpleNamespace(faults=("it spills.",) if len(asked) in (1, 3) else ())

    monkeypatch.setattr(ranking, "compiled", compiled)
    monkeypatch.setattr(searching.compiling, "lacking", lambda: None)
    results = search(dict(work=[1, 2, 3, 4, 5, 6]))
    assert [trial.config["work"] for trial in results.trials] == [2, 4, 5, 6, 1, 3]
    assert [trial.outcome for trial in results.trials[-2:]] == [Outcome.SLOW] * 2 and len(
        asked
    ) == 5
    assert results.best.config == dict(work=2)
    assert "work=1 and 1 more: slow code: it spills." in str(results)


def test_nothing_that_can_run():
    results = search(dict(fence=[False], work=[1, 2]))
    assert results.best is None and "No configuration can be run." in str(results)


# What is run.


def test_a_configuration_with_a_finding_is_never_run(gpu, monkeypatch):
    fake = gpu(lambda config: 1.0 if not config["fence"] else 5.0 + config["work"])
    results = search(dict(work=[1, 2, 9], fence=[True, False], smem=[0, 1024]), measure=12)
    assert {config["fence"] for config in fake.asked} == {True}
    assert sorted(config["work"] for config in fake.asked) == [1, 2]
    assert results.best.config == dict(work=1, fence=True, smem=0)
    assert results.best.measured_us == 6.0


TIMES = st.lists(st.none() | st.floats(-100, 100).filter(bool), min_size=4, max_size=4)


@settings(max_examples=25, deadline=None)
@given(TIMES, st.integers(1, 4))
def test_of_what_is_measured_the_fastest_right_one_wins(times, measure):
    by_work = dict(zip((1, 2, 3, 4), times))
    fake = Measurer(lambda config: by_work[config["work"]])
    with assumed(Gpu("NVIDIA H200", "9.0")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "Calls", fake)
        results = search(dict(work=[1, 2, 3, 4]), measure=measure)
    asked = [config["work"] for config in fake.asked]
    assert len(asked) == len({*asked}) == measure
    right = {work: by_work[work] for work in asked if by_work[work] and by_work[work] > 0}
    for trial in results.trials:
        us = by_work[trial.config["work"]]
        known = "measured" if us and us > 0 else "does not run" if us is None else "wrong"
        assert trial.outcome == (known if trial.config["work"] in asked else "predicted")
        assert (trial.measured_us is not None) == (trial.config["work"] in right)
    if right:
        assert results.best.measured_us == min(right.values())


def test_what_is_wrong_is_counted(gpu):
    gpu(lambda config: -1.0 if config["work"] == 1 else 5.0)
    results = search(dict(work=[1, 2]))
    assert results.best.config["work"] == 2
    assert results.notes == (
        "No expected= was given: results were compared with work=1 or else work=2's.",
        "1 of 2 that ran have a wrong result.",
    )
    assert "work=1: wrong: wrong: an element is off by 9 root mean squares" in str(results)


def test_half_of_the_measuring_is_for_neighbours_of_the_best(gpu):
    """Predictions favour little work, and the GPU much: a neighbour of what was measured wins."""
    fake = gpu(lambda config: 100.0 - 10 * config["work"] + config["smem"])
    results = search(dict(work=[1, 2, 3, 4, 5, 6], smem=[0, 8, 16]), measure=8)
    assert len(fake.asked) == 8 and len(fake.turns * [0]) == 1
    assert results.best.config["work"] > 2 and results.best.config["smem"] == 0


def test_on_a_hopper_gpu_some_are_measured_and_elsewhere_none(gpu):
    fake = gpu(lambda config: 1.0 + config["work"])
    space = dict(work=range(1, 9), smem=[0, 8])
    search(space)
    assert len(fake.asked) == searching.MEASURED
    fake.asked.clear()
    search(space, measure=0)
    with assumed(Gpu("NVIDIA A100", "8.0")):
        search(space)
    assert fake.asked == []


def test_the_last_round_ranks_before_earlier_times():
    trials = [Trial(n, Outcome.PREDICTED, predicted_us=n) for n in (1, 2, 3)]
    rows = tuple(Row(n, (float(n),), 0.0) for n in (1, 2, 3))
    finals = tuple(Row(n, (10.0 - n,), 0.0) for n in (1, 2))
    results = searching.results_of(trials, Found(rows, finals), ())
    assert [(t.config, t.measured_us) for t in results.trials] == [(2, 8.0), (1, 9.0), (3, 3.0)]


# Time, interruption, resumption.


def test_when_the_time_is_over_it_says_what_was_left_out(gpu, monkeypatch):
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(searching.time, "monotonic", lambda: next(clock))
    fake = gpu(lambda config: 1.0)
    results = search(dict(work=range(1, 9)), seconds=6.0, measure=8)
    assert "of 8 configurations were not looked at." in " ".join(results.notes)
    assert 1 <= len(results.trials) < 8 and len(fake.asked) < 8
    with pytest.raises(ValueError, match=r"^search: seconds=0 is not above 0, so nothing could"):
        search(dict(work=[1]), seconds=0)


SPACE = dict(work=[1, 2, 3, 4, 5], smem=[0, 8])


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 9))
def test_an_interrupted_search_goes_on_where_it_ended(stop):
    time_of = lambda config: 50.0 - config["work"] + config["smem"]
    with (
        assumed(Gpu("NVIDIA H200", "9.0")),
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        cache = pathlib.Path(folder) / "cache.db"
        patch.setattr(searching, "Calls", whole := Measurer(time_of))
        expected = search(SPACE, measure=10)
        patch.setattr(searching, "Calls", first := Measurer(time_of))
        first.stop_after = stop
        part = search(SPACE, measure=10, cache=cache)
        assert part.notes[-1] == searching.INTERRUPTED and len(first.asked) == stop
        assert len(part.found.rows) == stop and len(part.trials) == 10
        patch.setattr(searching, "Calls", second := Measurer(time_of))
        rest = search(SPACE, measure=10, cache=cache)
        assert not {*first.asked} & {*second.asked}, "nothing is measured twice"
        assert {*first.asked} | {*second.asked} == {*whole.asked}, "nothing is lost"
        assert rest.trials == expected.trials and rest.notes == expected.notes
        patch.setattr(searching, "Calls", third := Measurer(time_of))
        assert search(SPACE, measure=10, cache=cache).trials == expected.trials
        assert third.asked == [] and third.turns == 0
        assert [*cache.parent.iterdir()] == [cache]


def test_an_interruption_while_it_looks_keeps_what_it_has(tmp_path, monkeypatch):
    traced = []

    def verify(function, *args, **options):
        if len(traced) == 3:
            raise KeyboardInterrupt
        traced.append(function)
        return pallascope.verify(function, *args, **options)

    monkeypatch.setattr(ranking, "verify", verify)
    results = search(SPACE, cache=tmp_path / "cache.db")
    assert len(results.trials) == 3 and results.best is not None
    assert results.notes == (searching.INTERRUPTED, "7 of 10 configurations were not looked at.")
    traced.insert(0, None)  # goes on past 3
    results = search(SPACE, cache=tmp_path / "cache.db")
    assert len(results.trials) == 10 and len(traced) == 11 and results.notes == ()


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        pytest.param(dict(made=lambda work: kernel_of(work, add=2.0)), 1, id="the kernel"),
        pytest.param(dict(made=lambda work: kernel_of(work)), 0, id="a kernel of the same jaxpr"),
        pytest.param(dict(args=(jax.ShapeDtypeStruct((64, 128), jnp.float32),)), 1, id="a shape"),
        pytest.param(dict(expected=lambda x: x + 2.0), 1, id="what is expected"),
        pytest.param(dict(tolerance=0.5), 1, id="the tolerance"),
        pytest.param(dict(), 0, id="nothing"),
    ],
)
def test_what_has_changed_is_measured_anew(gpu, tmp_path, changed, again):
    fake = gpu(lambda config: 1.0)
    options = dict(cache=tmp_path / "c.db", expected=lambda x: x + 1.0)
    search(dict(work=[1]), **options)
    search(dict(work=[1]), **options | changed)
    assert len(fake.asked) == 1 + again


def test_another_gpu_or_machine_is_not_served_from_the_cache(gpu, tmp_path, monkeypatch):
    fake, cache = gpu(lambda config: 1.0), tmp_path / "c.db"
    (first,) = search(dict(work=[1]), cache=cache).trials
    with assumed(Gpu("NVIDIA H100", "9.0")):
        search(dict(work=[1]), cache=cache)
    assert len(fake.asked) == 2
    slow = pallascope.H200.changed(clock_hz=1e9)
    (second,) = search(dict(work=[1]), cache=cache, machine=slow).trials
    assert len(fake.asked) == 2 and second.predicted_us > first.predicted_us
    monkeypatch.setattr(searching, "MEASURING", 0)
    search(dict(work=[1]), cache=cache)
    assert len(fake.asked) == 3


# Spaces and numbers.


@dataclasses.dataclass(frozen=True)
class Config:
    work: int = 1
    fence: bool = True


def test_a_space_of_values_makes_kernels_of_each():
    made = lambda config: kernel_of(config.work, config.fence)
    results = search([Config(), Config(2), Config(), Config(2, False)], made=made)
    assert outcomes(results) == {
        "the default": "predicted",
        "work=2": "predicted",
        "work=2, fence=False": "finding",
    }
    assert results.best.config == Config()


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(), min_size=1, max_size=3)))
def test_a_dict_of_ranges_is_their_product(ranges):
    found = configurations(lambda **_: None, ranges)
    assert found == list(
        {tuple(v): dict(zip(ranges, v)) for v in itertools.product(*ranges.values())}.values()
    )
    if found:
        changes = lambda other: sum(found[0][name] != other[name] for name in other)
        assert neighbours(found[0], Ranked(found)) == [c for c in found if changes(c) == 1]


@pytest.mark.parametrize(
    ("space", "kind", "text"),
    [
        ([], ValueError, "search: the space has 0 configurations, so there is nothing to rank."),
        (dict(work=[]), ValueError, "search: the range of work has 0 values, so the space has 0"),
        (dict(work=3), TypeError, "the range of work is of type int, not a list of values: write"
                                  " work=[3] for a single one."),
        (dict(fence="no"), TypeError, "the range of fence is of type str"),
        (3, TypeError, "search: the space is of type int, which has no configurations: give a"),
        ("work", TypeError, "search: the space is of type str, which has no configurations"),
        ([[1]], TypeError, "search: the configuration [1] cannot be hashed, so results could not"),
        (dict(tile=[1]), TypeError, "cannot be called with tile=1 (got an unexpected keyword argum"
                                    "ent 'tile'): name the ranges as its parameters."),
    ],
)  # fmt: skip
def test_what_is_no_space(space, kind, text):
    with pytest.raises(kind) as error:
        search(space)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (dict(made=3), TypeError, "search: kernel_of is of type int, so it makes no kernel: give"),
        (dict(machine=3), TypeError, "search takes a Machine, not a value of type int"),
        (dict(jobs=0), ValueError, "search: jobs=0 is less than 1, so nothing would be compiled."),
        (dict(measure=-1), ValueError, "search: measure=-1 is less than 0: 0 is for the ranking"),
        (
            dict(measure=1),
            ValueError,
            "search: measure=1, but JAX runs on cpu, where kernels are"
            " interpreted: their times would say nothing about a GPU, so leave measure= out for the"
            " ranking.",
        ),
    ],
)
def test_what_cannot_be_searched(options, kind, text):
    with pytest.raises(kind) as error:
        search(dict(work=[1]), **options)
    assert text in str(error.value)


# Measuring, by the interpreter, with made-up times.


@pytest.fixture
def interpreted(monkeypatch):
    """The GPU's interpreter in place of a GPU; each kernel takes 2 us."""

    def kernel_times(function, *args, calls):
        return [[Kernel("a", 0.0015), Kernel("b", 0.0005)]] * calls

    monkeypatch.setattr(measuring, "kernel_times", kernel_times)
    with plgpu.force_gpu_interpret_mode(), assumed(Gpu("NVIDIA H200", "9.0")):
        yield


ADDS = [dict(work=1), dict(work=2), dict(work=1, add=1.5)]


SMALL = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def test_results_are_compared_with_what_is_expected(interpreted):
    results = search(ADDS, args=(SMALL,), expected=lambda x: x + 1.0)
    assert outcomes(results) == {
        "work=1": "measured",
        "work=2": "measured",
        "work=1, add=1.5": "wrong",
    }
    (wrong,) = (trial for trial in results.trials if trial.outcome == "wrong")
    assert "root mean squares, over 0.002" in wrong.reason and wrong.error > 0.1
    assert results.best.us == (2.0,) * 50, "five times ten launches, in turn"


@pytest.mark.parametrize(("tolerance", "outcome"), [(0.5, "measured"), (None, "wrong")])
def test_an_array_may_be_expected_and_the_caller_says_how_closely(interpreted, tolerance, outcome):
    options = dict(args=(jnp.ones((8, 128)),), expected=jnp.full((8, 128), 2.5))
    assert outcomes(search(ADDS[:1], tolerance=tolerance, **options)) == {"work=1": outcome}


def test_without_a_reference_results_are_compared_with_the_first_that_runs(interpreted):
    results = search(ADDS[::2], args=(SMALL,))
    assert results.notes[0].startswith("No expected= was given: results were compared with work=1")
    assert sorted(outcomes(results).values()) == ["measured", "wrong"]


def test_what_does_not_run_has_its_error(interpreted, monkeypatch):
    results = search(ADDS[:1], args=(SMALL,), expected=lambda x: x[:4])
    assert set(outcomes(results).values()) == {"does not run"} and results.best is None
    assert results.trials[0].reason == ("it returns shapes [(8, 128)], not [(4, 128)]")


def test_an_output_that_is_not_written_is_wrong(interpreted):
    nothing = lambda _: lambda x: plgpu.kernel(lambda x, o: None, out_type=x)(x)
    measurer = Calls(Here(), nothing, (SMALL,), lambda x: x)
    (row,) = measurer.each([1])
    assert row.reason and row.error > 0.5


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        ([1.0, -1.0], [1.0, -1.0], 0.0),
        ([1.0, -1.5], [1.0, -1.0], 0.5),
        ([jnp.nan, 1.0], [1.0, 1.0], math.inf),
        ([jnp.nan, 1.0], [jnp.nan, 1.0], 0.0),
        ([jnp.inf, 1.0], [jnp.inf, 1.0], 0.0),
        ([0.0, 0.5], [0.0, 0.0], 0.5),
        ([1, 2], [1, 2], 0.0),
        ([1, 2], [1, 3], math.inf),
    ],
)
def test_the_error_of_a_result(result, expected, error):
    assert error_of([jnp.asarray(result)], [jnp.asarray(expected)]) == pytest.approx(error)


def test_arguments_without_values_are_drawn_if_they_are_floats():
    draw = drawing((X, dict(y=jax.ShapeDtypeStruct((4096,), jnp.bfloat16)), 3))
    x, y, n = draw(0)
    assert x.shape == X.shape and y["y"].dtype == jnp.bfloat16 and n == 3
    assert abs(float(jnp.std(y["y"].astype(jnp.float32))) - 1) < 0.1
    assert float(x[0, 0]) == float(drawing((X,))(0)[0][0, 0]) != float(draw(1)[0][0, 0])
    text = r"argument 0 is int32\[4\] without values, .* are drawn: give the array"
    with pytest.raises(ValueError, match=text):
        drawing((jax.ShapeDtypeStruct((4,), jnp.int32),))


def test_a_reference_is_worked_out_once():
    worked = []

    def function(x):
        worked.append(x)
        return x + 1.0

    reference = Reference(function)
    assert float(reference.of((1.0,))) == float(reference.of((1.0,))) == 2.0
    assert len(worked) == 1


def test_a_space_in_an_order_is_measured_without_a_simulation(interpreted, monkeypatch, tmp_path):
    monkeypatch.setattr(searching, "look", lambda *_, **__: pytest.fail("it was looked at"))
    space = Ranked([dict(work=2), dict(work=1, fence=False), dict(work=9), dict(work=1)])
    options = dict(args=(SMALL,), expected=lambda x: x + 1.0, cache=tmp_path / "c.db")
    results = search(space, **options)
    assert outcomes(results) == {
        "work=2": "measured",
        "work=1": "measured",
        "work=1, fence=False": "does not run",
        "work=9": "does not run",
    }
    reasons = [trial.reason for trial in results.trials[2:]]
    assert reasons[0].startswith("it has a finding, so it is not run: missing-commit:")
    assert ": work=9 parts take " in reasons[1]
    monkeypatch.setattr(measuring, "kernel_times", lambda *_, **__: pytest.fail("it was measured"))
    assert search(space, **options).trials == results.trials
    best = search(space, measure=0, **options).best
    assert best.config == dict(work=2) and best.outcome == "predicted"
    assert "Best: work=2, by the order of the space." in str(search(space, measure=0, **options))


def test_a_product_s_space_is_searched_as_any_other(gpu):
    fake = gpu(lambda config: 100.0 + (config.tile_n != 192) + 2 * (config.width != 16))
    space = Ranked(*matmul_space(512, 512, 512, "bfloat16"))
    factor = jax.ShapeDtypeStruct((512, 512), "bfloat16")
    results = search(space, made=product, args=(factor,) * 2, expected=jnp.dot, measure=60)
    assert (results.best.config.tile_n, results.best.config.width) == (192, 16)
    assert len(fake.asked) == 60 and len(results.trials) > 2000


# Where tasks run.


def compiles(number):
    def run(samples):
        if number == 2:
            raise RuntimeError("it hangs\nfor ever")
        return number * samples

    if number == 1:
        raise ValueError("it does not fit")
    return run


def test_this_process_answers_as_the_workers_do():
    tasks = [functools.partial(compiles, number) for number in range(4)]
    said = "it does not fit", "RuntimeError: it hangs"
    with Workers(1) as workers:
        for executor in (Here(), workers):
            found = dict(executor.stream(tasks, 10))
            assert (found[0], found[3]) == (0, 30)
            assert isinstance(found[1], Failed) and isinstance(found[2], Failed)
            words = [re.sub(r"^\S+test_search\.py:\d+: ", "", str(found[i])) for i in (1, 2)]
            assert tuple(words) == said
            with executor.hold(tasks) as (first, second, third, fourth):
                assert (first(2), fourth(2)) == (0, 6) and str(second) == str(found[1])
                with pytest.raises(Failed, match=said[1]):
                    third(2)


def test_processes_measure_what_pickle_can_send():
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU here, on which it would run")
    made = functools.partial(functools.partial, softmax)
    x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        results = search(dict(slots=[1]), made=made, args=(x,), jobs=1)
    assert outcomes(results) == {"slots=1": "does not run"}
    assert "Only interpret mode is supported on CPU" in results.trials[0].reason


def test_what_pickle_cannot_send_is_refused(gpu, monkeypatch):
    gpu(lambda config: 1.0)
    with pytest.raises(ValueError) as error:
        search(dict(work=[1]), made=lambda work: kernel_of(work), jobs=1)
    text = str(error.value)
    assert text.startswith("search: jobs= needs kernel_of, args and expected that pickle can send")
    assert text.endswith("in a module, by name, or leave jobs= out.")

    class Script:
        def __reduce__(self):
            return print, ("__main__",)

    with pytest.raises(ValueError, match=r"are of this script or notebook, which other processes"):
        search(
            dict(slots=[1]),
            made=functools.partial(functools.partial, softmax),
            jobs=1,
            expected=Script(),
        )


def test_a_kernel_with_a_finding_is_not_run_in_a_worker(monkeypatch):
    monkeypatch.setattr(measuring, "Measured", lambda *_: pytest.fail("it was compiled"))
    faulty = lambda _: kernel_of(fence=False)
    calls = measuring.Calls(Here(), faulty, (X,), None, is_checked=True)
    (row,) = calls.each([Config()])
    assert row.reason.startswith("it has a finding, so it is not run: missing-commit:")


# What is shown.


SHOWN = Results(
    (
        Trial({"slots": 2, "k": 64}, Outcome.MEASURED, "", 9.0, "tensor core: busy", (11.0,)),
        Trial({"slots": 3, "k": 64}, Outcome.PREDICTED, "", 10.0, "memory latency: 50%"),
        Trial({"slots": 8, "k": 64}, Outcome.REFUSED, "8 * 3 = 24, over 20."),
        Trial({"slots": 9, "k": 64}, Outcome.REFUSED, "8 * 3 = 24, over 20."),
    ),
    ("A note.",),
)
TABLE = """\
slots  predicted us  measured us  bound           outcome
    2           9.0         11.0  tensor core     measured
    3          10.0            .  memory latency  predicted
    8             .            .  .               does not fit
    9             .            .  .               does not fit
Best: slots=2, k=64, measured: 11.0 us.
slots=8, k=64 and 1 more: does not fit: 8 * 3 = 24, over 20.
A note."""


def test_the_table():
    assert str(SHOWN) == repr(SHOWN) == TABLE
    many = Results(tuple(Trial(n, Outcome.PREDICTED, "", 1.0 * n) for n in range(1, 51)))
    assert str(many).splitlines()[41] == "... and 10 more, slower or without a time."
    page = SHOWN._repr_html_()
    assert "<th>slots</th>" in page and "<td>9.0</td>" in page and "<p>A note.</p>" in page
    odd = Results((Trial({"a": "<b>"}, Outcome.REFUSED, "<i>"),))._repr_html_()
    assert "<b>" not in odd and "<i>" not in odd


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((10.0, 10.7, 10.9), "does not tell 2 of them apart: measure these."),
        ((10.0, 10.9), "all others are further behind."),
    ],
)
def test_a_prediction_says_what_it_does_not_tell_apart(times, said):
    trials = [Trial(us, Outcome.PREDICTED, predicted_us=us, off=0.08) for us in times]
    (line,) = [line for line in str(Results(tuple(trials))).splitlines() if " off " in line]
    assert line.startswith("The prediction of calls like these is 8% off in the mean, ")
    assert line.endswith(said)
    measured = dataclasses.replace(trials[0], outcome=Outcome.MEASURED, us=(9.0,))
    assert " off " not in str(Results((measured, *trials[1:])))


def test_a_search_says_how_far_its_predictions_are_off():
    results = pallascope.tuning.search(
        lambda work: kernel_of(work=work), dict(work=[1]), X, measure=0
    )
    assert results.best.off == ERRORS[Likeness.SHORT]
    assert "calls like these is 12% off" in str(results)


def test_the_figure():
    pytest.importorskip("matplotlib")
    (axes,) = SHOWN.plot().axes
    assert axes.get_ylabel() == "measured, us" and len(axes.collections[0].get_offsets()) == 1
    (axes,) = Results(SHOWN.trials[1:]).plot().axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["slots=3, k=64"]
    page = SHOWN.plot()._repr_html_()
    assert "currentColor" in page and "#010101" not in page and "predicted, us" in page
    with pytest.raises(ValueError, match="None of the 2 configurations has a predicted time, so"):
        Results(SHOWN.trials[2:]).plot()


def without(name, monkeypatch):
    """Has imports of a library fail."""
    real = builtins.__import__

    def fail(wanted, *args, **options):
        if wanted.partition(".")[0] == name:
            raise ImportError(wanted)
        return real(wanted, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    monkeypatch.delitem(importlib.sys.modules, name, raising=False)


def test_a_figure_without_matplotlib(monkeypatch):
    without("matplotlib", monkeypatch)
    with pytest.raises(ImportError) as error:
        SHOWN.plot()
    text = "needs matplotlib, which is not installed: pip install 'pallascope[draw]', or"
    assert text in str(error.value)


def test_progress_is_a_bar_or_lines_or_nothing(capsys, monkeypatch):
    lines = []
    search(dict(work=[1, 9]), progress=lines.append)
    assert lines == ["predicting 1/2. work=1: predicted", "predicting 2/2. work=9: does not fit"]
    assert capsys.readouterr() == ("", "")
    search(dict(work=[1, 9]), progress=True)
    shown = capsys.readouterr()
    assert "predicting: 100%" in shown.err and shown.out == ""
    monkeypatch.setitem(importlib.sys.modules, "tqdm", None)
    search(dict(work=[1, 9]), progress=True)
    assert capsys.readouterr() == ("\n".join([*lines, ""]), "")


def test_progress_of_measuring_tells_times(gpu):
    gpu(lambda config: None if config["work"] == 2 else 3.0)
    lines = []
    search(dict(work=[1, 2]), progress=lines.append)
    assert lines[2:] == [
        "measuring 1/2. work=1: 3.0 us (best 3.0)",
        "measuring 2/2. work=2: no answer in 20 s",
    ]


def test_the_space_of_attention_fits():
    for head_dim in (64, 128):
        found = attention_space(head_dim)
        assert len(found) == len({*found}) > 10
        assert {config.schedule for config in found} == {*SCHEDULES}
        for config in found:
            config.check(head_dim)


@pytest.mark.gpu
def test_a_search_on_the_gpu(tmp_path):
    x = jnp.ones((4096, 1024))
    made = lambda slots, rows: functools.partial(softmax, slots=slots, rows=rows)
    space = dict(slots=[1, 2, 4], rows=[1, 2])
    options = dict(args=(x,), expected=jax.nn.softmax, cache=tmp_path / "c.db", measure=4)
    results = search(space, made=made, **options)
    assert results.best.outcome == "measured" and len(results.best.us) == 50
    assert len(results.found.rows) == 4 and all(row.median_us > 0 for row in results.found.rows)
    again = search(space, made=made, **options)
    assert again.trials == results.trials


@pytest.mark.gpu
def test_a_search_for_a_product_on_the_gpu():
    factor = jax.ShapeDtypeStruct((1024, 1024), "float16")
    space = Ranked(*matmul_space(1024, 1024, 1024, "float16"))
    results = search(space, made=product, args=(factor,) * 2, expected=jnp.dot, measure=8)
    assert len(results.found.rows) == 8
    assert results.best.config in space.configs and results.best.outcome == "measured"
