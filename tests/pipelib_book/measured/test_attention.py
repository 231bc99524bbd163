"""`pipelib_book.measured.attention`: the record, as the chapter quotes it."""

import pytest

from benchmarks.attention_problems import Problem
from pipelib_book.attention_ladder import RUNGS
from pipelib_book.measured import attention
from tests.pipelib_book.measured.made_up import RUN, row, timed

PROBLEM = Problem(1000, 64, False, "float16")
US = PROBLEM.flops / 1e15 * 1e6  # at 1,000 TFLOP/s
CONTENDERS = {
    "attention": timed(2 * US, 2 * US, 2 * US, float64=dict(rows=2, relative=3e-4, each={})),
    "attention, tuned": timed(1.5 * US, 1.6 * US, 1.7 * US),
    "attention_mgpu, 128 keys, 2 slots": timed(4 * US, 4 * US, 4 * US),
    "attention_mgpu, 64 keys, 4 slots": timed(
        2.5 * US, 2.5 * US, 2.5 * US, float64=dict(rows=2, relative=4e-4, each={})
    ),
    "emitter, 128 keys, 2 slots": dict(reason="out of memory"),
    "cuDNN (XLA)": timed(2 * US, 2 * US, 2 * US),
    "PyTorch FLASH_ATTENTION": timed(US, US, US, reason="wrong by more than 0.01"),
    "PyTorch CUDNN_ATTENTION": dict(reason="no module named torch"),
}
RUNG_TIMES = {
    "rung 0": timed(4 * US, 4 * US, 4 * US),
    "rung 1": timed(2 * US, 2 * US, 2 * US),
    "rung 2": dict(reason="ran for too long"),
    "rung 3": timed(US, US, US),
    "cuDNN (XLA)": timed(2.5 * US, 2.5 * US, 2.5 * US),
}
GROUP = attention.Group(PROBLEM.as_json(), CONTENDERS, RUN)
LADDER = attention.Group(PROBLEM._replace(causal=True).as_json(), RUNG_TIMES, RUN)


# Groups.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_operations_are_those_of_the_benchmark(causal, backward):
    for more in ({}, dict(v_head_dim=24), dict(kv_heads=4)):
        problem = PROBLEM._replace(causal=causal, backward=backward, batch=3, **more)
        group = attention.Group(problem.as_json(), {}, RUN)
        assert group.flops == problem.flops
    assert "64 and 24" in attention.Group(PROBLEM._replace(v_head_dim=24).as_json(), {}, RUN).shape


def test_the_fastest_of_the_others_is_the_baseline():
    """What is wrong is not fast."""
    assert GROUP.baseline == "cuDNN (XLA)"
    assert GROUP.fastest("attention_mgpu") == "attention_mgpu, 64 keys, 4 slots"
    assert GROUP.rate("PyTorch FLASH_ATTENTION") is None
    assert GROUP.share("attention, tuned") == pytest.approx(2 / 1.6)
    assert GROUP.rate("attention") == pytest.approx(500e12)
    assert attention.Group({}, {}, RUN).baseline is None


def test_ours_is_not_jax_s():
    """Though the name of one begins with that of the other."""
    assert GROUP.fastest(attention.OURS) == "attention, tuned"
    slow = timed(9 * US, 9 * US, 9 * US)
    group = GROUP._replace(contenders=CONTENDERS | dict.fromkeys([*CONTENDERS][:2], slow))
    assert group.fastest(attention.OURS) == "attention"


def test_groups_with_some_values():
    assert attention.like([GROUP, LADDER], causal=True, seq=1000) == [LADDER]
    assert attention.like([GROUP, LADDER], seq=2) == []


# Tables.

NOTHING = GROUP._replace(contenders={"attention": dict(reason="no")})


@pytest.mark.parametrize(
    ("table", "groups", "begin", "cells"),
    [
        # Not what it picks, which has its name; and what was not measured has a dash.
        ("table", [GROUP], "1000 x 64, dense", ["625 ± 6.2% (tuned)", "1.25x", "500", "400"]),
        ("table", [GROUP, NOTHING], "1000 x 64, dense | -", ["-", "-", "-"]),
        # With and without, but for a pair of which one was not measured.
        ("turns_table", [GROUP, LADDER], "1000", ["1 and 3", "250 ± 0.0%", "500 ± 0.0%", "2.000x"]),
        # Ours alone, each with its name, and cuDNN.
        ("variants_table", [GROUP, LADDER], "tuned", ["625 ± 6.2%", "-"]),
        ("ladder_table", [LADDER], "rung 2", ["ran for too long"]),
        ("ladder_table", [LADDER], "rung 4", ["-"]),
    ],
)
def test_a_row_of_a_table(table, groups, begin, cells):
    assert row(getattr(attention, table)(groups), begin)[begin.count("|") + 1 :] == cells


def test_what_is_no_row_of_a_table():
    assert "keys" not in attention.variants_table([GROUP, LADDER])
    assert attention._PAIRS == [("rung 0", "rung 2"), ("rung 1", "rung 3")]
    assert "Measured on an NVIDIA H200" in attention.where([GROUP])


def test_the_ladder_has_every_rung():
    table = attention.ladder_table([LADDER])
    assert len(table.splitlines()) == 2 + len(attention.NAMES) + 1
    assert len(attention.NAMES) == len(RUNGS) + 2  # rungs 1 and 3 with `p` in registers, too


def test_lengths_are_beside_the_next_multiple():
    """What has none beside it is left out."""
    longer = PROBLEM._replace(seq=1024)
    timed_longer = attention.Group(longer.as_json(), {"attention": timed(US, US, US)}, RUN)
    table = attention.lengths_table([GROUP, LADDER, timed_longer])
    assert row(table, "1 x 1000")[1:2] == ["1024"] and row(table, "1 x 1000")[-1] == "2.00"
    assert len(table.splitlines()) == 3


def test_what_an_option_costs():
    """Over the same without it, or a batch of the documents, where that was measured."""
    plain, long = PROBLEM._replace(batch=4), PROBLEM._replace(seq=4 * PROBLEM.seq)
    asked = {
        plain: timed(US, US, US),
        plain._replace(soft_cap=30.0): timed(3 * US, 3 * US, 3 * US),
        long._replace(documents=4): timed(2 * US, 2 * US, 2 * US),
        plain._replace(sinks=True, seq=8): timed(US, US, US),
    }
    groups = [attention.Group(p.as_json(), {"attention": x}, RUN) for p, x in asked.items()]
    table = attention.options_table(groups)
    assert len(table.splitlines()) == 2 + 3
    assert row(table, "1000 x 64, dense, soft cap")[2:] == ["3.00", "-", "-"]
    assert row(table, "4000 x 64, dense, 4 documents")[2:] == ["2.00", "-", "-"]
    assert row(table, "8 x 64, dense, sinks")[2:] == ["-", "-", "-"]
    assert groups[2].flops == 4 * groups[0].flops // 4 == Problem(**groups[2].problem).flops


# Records.


def test_groups_are_read_by_their_part(recorded):
    group = dict(problem=GROUP.problem, contenders=CONTENDERS, run=RUN)
    search = dict(part="forward", problem=GROUP.problem, best={}, run=RUN)
    folders = recorded(attention=dict(groups=[group | dict(part="forward"), search]))
    assert attention.groups("forward", folders) == [GROUP]
    assert attention.groups("ladder", folders) == []
