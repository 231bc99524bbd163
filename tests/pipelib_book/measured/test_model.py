"""`pipelib_book.measured.model`: predicted launches beside measured ones."""

import pytest

from pipelib_book.measured import model
from tests.pipelib_book.measured.made_up import timed

KERNEL = "attention_mosaic_gpu_kernel"


def records(recorded, measured, predicted):
    return recorded(model=dict(pairs=measured), predicted=dict(pairs=predicted))


def pair(*us, name=KERNEL, runs=1.0):
    return dict(kernels={name: dict(runs=runs, us=list(us))}, mhz=[1700.0] * len(us))


def predicted(us_at_clock, us=None, mhz=1700.0):
    return dict(us_at_clock=us_at_clock, us=us_at_clock if us is None else us, mhz=mhz)


def row(family="matmul", work="64", config="", us=100.0, at_clock=100.0, own=100.0, held=True):
    return model.Row(family, work, config, held, us, 1700.0, at_clock, own, 1700.0)


def test_a_row_is_the_median_of_all_mosaic_kernels_of_a_launch(recorded):
    kernels = {
        "dq_mosaic_gpu_kernel": dict(runs=2.0, us=[10.0, 20.0, 30.0]),
        "dkv_mosaic_gpu_kernel": dict(runs=1.0, us=[1.0, 2.0, 3.0]),
        "input_reduce_fusion": dict(runs=1.0, us=[500.0] * 3),
    }
    measured = {"attention: 64 of 2: two": dict(kernels=kernels, mhz=[1500.0, 1600.0, 1900.0])}
    us = dict.fromkeys(measured, predicted(21.0, 63.0, 1234.0))
    folders = records(recorded, measured, us)
    (found,) = model.rows(folders)
    assert found[:3] == ("attention", "64 of 2", "two")
    assert (found.us, found.mhz, found.mhz_predicted) == (42.0, 1600.0, 1234.0)
    assert (found.error, found.error_of_time) == (-0.5, 0.5)


def test_pairs_that_were_not_measured_or_not_predicted_are_no_rows(recorded):
    measured = {"a: 1: x": pair(1.0), "a: 1: y": pair(1.0)}
    assert len(model.rows(records(recorded, measured, {"a: 1: x": predicted(1.0)}))) == 1


def test_a_step_is_the_difference_of_two_lengths(recorded):
    short, long = "a: 1: x", "a: 1, twice the steps: x"
    measured = {short: pair(100.0), long: pair(180.0) | dict(longer_than=short)}
    folders = records(recorded, measured, {short: predicted(120.0), long: predicted(196.0)})
    assert [each.config for each in model.rows(folders)] == ["x"]
    (step,) = model.steps(folders)
    assert (step.short.us, step.long.us) == (100.0, 180.0)
    assert step.error == pytest.approx(76 / 80 - 1)
    held = step._replace(short=step.short._replace(held_out=True))
    other = held._replace(family="b", long=held.long._replace(us_at_clock=200.0))
    known = held._replace(short=held.short._replace(held_out=False))
    assert model.steps_table([held, other, known]).splitlines()[2:] == [
        "| a | 1 | 5.0% | 5.0% |",
        "| b | 1 | 0.0% | 0.0% |",
        "| all | 2 | 2.5% | 5.0% |",
    ]


def test_a_longer_pair_without_the_other_one_is_left_out(recorded):
    measured = {"a: 1: y": pair(180.0) | dict(longer_than="a: 1: x")}
    folders = records(recorded, measured, {name: predicted(1.0) for name in measured})
    assert model.steps(folders) == model.rows(folders) == []


def test_ranks_and_the_cost_of_the_first_are_of_one_task():
    times = [1.0, 2.0, 3.0, 4.0, 5.0]
    right = [row(config=str(us), us=us, own=us) for us in times]
    assert model.rank_correlation(right) == pytest.approx(1)
    assert model.cost_of_first(right) == 0
    wrong = [row(config=str(us), us=us, own=6 - us) for us in times]
    found = [row(work="a"), row(family="copy", work="a"), row(work="b"), row(work="a")]
    assert sorted(map(len, model.by_work(found))) == [1, 1, 2]
    assert model.rank_correlation(wrong) == pytest.approx(-1)
    assert model.cost_of_first(wrong) == 4  # takes 5 where 1 is to be had
    other = [row(work="b", config=str(us), us=us, own=us) for us in times]
    assert model.families_table([*wrong, *other]).endswith("| 2 | 0.00 | 200.0% | 400.0% |")


def test_the_worst_come_first_and_each_has_a_cause():
    found = [row(config=f"{error}", at_clock=100.0 + error) for error in (1, -20, 7)]
    lines = model.worst_table(found, 2).splitlines()[2:]
    assert ["-20.0%" in lines[0], "+7.0%" in lines[1]] == [True, True] and len(lines) == 2
    assert model.causes_table(found).splitlines()[2] == "| not known | 2 | -20.0% to +7.0% |"


def test_a_cause_is_found_by_family_and_words(monkeypatch):
    causes = (
        model.Cause("attention", ("overlap", "shared"), "one"),
        model.Cause("", ("x",), "two"),
    )
    monkeypatch.setattr(model, "CAUSES", causes)
    rows = [
        row(family="the ladder of attention", config="overlap, shared"),
        row(family="attention", config="overlap"),
        row(config="a x b"),
    ]
    assert [each.cause for each in rows] == ["one", "not known", "two"]


def test_calls_without_a_configuration_short_ones_apart(recorded):
    """Of products and gradients only those drawn by chance; who lacks a prediction is out."""
    of = lambda part, problem, *us: dict(
        part=part, problem=problem, contenders={"matmul": timed(*us), "attention": timed(*us)}
    )
    drawn = [of("untuned", dict(m=m), us) for m, us in ((1, 4.0), (2, 100.0), (3, 100.0))]
    folders = recorded(
        matmul=dict(groups=[*drawn, of("ladder", dict(m=4), 9.0)]),
        attention=dict(
            groups=[
                of("forward", dict(seq=8, backward=False), 90.0, 100.0, 300.0),
                of("forward", dict(seq=8, backward=True), 100.0),
            ]
        ),
        predicted=dict(
            defaults={
                "matmul: m=1": dict(us=8.0),
                "matmul: m=2": dict(us=90.0),
                "matmul: m=3": dict(us=180.0),
                "matmul: m=4": dict(us=9.0),
                "attention: seq=8, backward=False": dict(us=100.0),
                "attention: seq=8, backward=True": dict(us=1.0),
            }
        ),
    )
    found = model.defaults(folders)
    assert [round(each.error, 2) for each in found] == [1.0, -0.1, 0.8, 0.0]
    assert model.defaults_table(found).splitlines()[2:] == [
        "| matmul, up to 10 µs | 1 | 100.0% | 100.0% | 0 of 1 |",
        "| matmul, longer | 2 | 45.0% | 80.0% | 1 of 2 |",
        "| attention, longer | 1 | 0.0% | 0.0% | 1 of 1 |",
        "| all | 4 | 47.5% | 100.0% | 2 of 4 |",
    ]
    assert model.defaults(recorded(matmul=dict(groups=drawn), predicted=dict(pairs={}))) == []
    assert "no call without a configuration" in model.defaults_table([])


def test_a_family_is_predicted_by_constants_of_the_others(recorded):
    names = [f"a: 1: {number}" for number in range(9)]
    held = [name for name in names if model.is_held_out(name)]
    measured = {name: pair(100.0) for name in names}
    folders = recorded(
        model=dict(pairs=measured),
        matmul=dict(
            groups=[dict(part="untuned", problem=dict(m=1), contenders=dict(matmul=timed(10.0)))]
        ),
        predicted=dict(
            pairs={name: predicted(110.0) for name in names},
            defaults={"matmul: m=1": dict(us=9.0)},
            left_out={held[0]: dict(us_anew=105.0, us_without=80.0)}
            | {"matmul: m=1": dict(us_anew=10.0, us_without=12.0)}
            | {held[1]: dict(reason="XLA")},
        ),
    )
    assert model.left_out_table(model.left_out(folders)).splitlines()[2:] == [
        "| a | 1 | 10.0% | 5.0% | 20.0% |",
        "| matmul, no configuration | 1 | 10.0% | 0.0% | 20.0% |",
        "| all | 2 | 10.0% | 2.5% | 20.0% |",
    ]
    assert "no prediction of a family" in model.left_out_table([])
