"""`measured.ladder`, `bandwidth` and `results`: what records may lack, and how they are read.

What a table shows of the committed records is held by the rehearsals of the chapters that show it
(`tests/book/test_chapters.py`): here is what these records do not have.
"""

import pytest

from pipelib_book.matmul_ladder import IDEAS, RUNGS
from pipelib_book.measured import bandwidth, ladder, results
from tests.pipelib_book.measured.made_up import RUN, row, timed

PROBLEM = dict(m=1000, n=1000, k=500, dtype="bfloat16")  # 1e9 operations


def sustained(us, mhz, watts):
    log = [f"{mhz}, {watts}, 58, 0x4", "1980, 100.0, 40, 0x0", *[f"{mhz}, {watts}, 58, 0x4"] * 2]
    return dict(sustained_microseconds=[us / 2, us / 2, us, us], driver=log)


CONTENDERS = {
    "rung 0": timed(9.0, 10.0, 11.0),
    "rung 1": timed(5.0, 5.0, 5.0),
    "rung 1 with 3 slots": timed(4.0, 4.0, 4.0),
    "rung 7": timed(4.0, 4.0, 4.0),
    "rung 6": dict(reason="ran for too long"),
    "matmul": timed(2.0, 2.0, 2.0, **sustained(4.0, 1500, 690)),
    "hopper_matmul_mgpu": timed(2.5, 2.5, 2.5),
    "cuBLAS (XLA)": timed(3.0, 3.0, 3.0),
    "cuBLAS (XLA), picked again": timed(2.2, 2.2, 2.2, **sustained(5.0, 1450, 700)),
    "cuBLAS (XLA), own choice": dict(reason="no"),
    IDEAS[0].name: timed(5.0, 5.0, 5.0),
    IDEAS[1].name: dict(reason="does not compile"),
}
GROUP = ladder.Group(PROBLEM, CONTENDERS, RUN)
EMPTY = ladder.Group(PROBLEM, {}, RUN)


# Groups.


def test_the_fastest_of_cublas_is_the_baseline():
    assert GROUP.baseline == "cuBLAS (XLA), picked again"
    assert GROUP.rate("rung 1") == pytest.approx(1e9 / 5e-6)
    assert GROUP.share("rung 1") == pytest.approx(2.2 / 5)
    assert GROUP.share("rung 1", "rung 0") == pytest.approx(2)
    assert GROUP.spread("rung 0") == pytest.approx(1 / 10)
    assert GROUP.shape == "1000x1000x500"


def test_of_a_sustained_run_the_late_half_counts():
    assert GROUP.rate("matmul", "sustained") == pytest.approx(1e9 / 4e-6)
    assert GROUP.share("matmul", kind="sustained") == pytest.approx(5 / 4)
    assert GROUP.driver("matmul") == (1500e6, 690.0)


def test_what_was_not_measured_has_no_rate():
    assert EMPTY.baseline is None
    assert EMPTY.rate("matmul") is None and EMPTY.share("matmul") is None
    assert EMPTY.driver("matmul") is None
    assert GROUP.rate("rung 6") is None and GROUP.share("rung 6") is None


# Tables.

DEEPGEMM = GROUP._replace(contenders=CONTENDERS | {"deepgemm": timed(2.5, 2.5, 2.5)})
FLOAT16 = GROUP._replace(problem=PROBLEM | {"dtype": "float16"})
#: A table of some groups, how a row of it begins, and what it has behind its name.
ROWS = [
    (ladder.ladder_table, [GROUP], "rung 6", ["ran for too long"]),
    (ladder.ladder_table, [GROUP], "rung 5", ["not measured"]),
    (ladder.ladder_table, [DEEPGEMM, EMPTY], "DeepGEMM", ["400 ± 0.0% (88.0%)", "not measured"]),
    (lambda groups: ladder.rung_row(1, groups), [EMPTY], "rung 0", ["not measured"]),
    (ladder.ideas_table, [EMPTY, GROUP], IDEAS[0].name, ["+25.0%", IDEAS[0].reason]),
    (ladder.ideas_table, [EMPTY, GROUP], IDEAS[1].name, ["does not compile", IDEAS[1].reason]),
    (ladder.ideas_table, [EMPTY, GROUP], IDEAS[2].name, ["not measured", IDEAS[2].reason]),
    (ladder.shapes_table, [GROUP], "1000x1000x500", ["500", "1.10x", "1.25x"]),
    (ladder.shapes_table, [EMPTY], "1000x1000x500", ["-", "-"]),
    # Of several dtypes each is named.
    (ladder.power_table, [GROUP, FLOAT16], "1000x1000x500 float16 | matmul", ["500"]),
]


@pytest.mark.parametrize(("table", "groups", "begin", "cells"), ROWS)
def test_a_row_of_a_table(table, groups, begin, cells):
    assert first_row(table(groups), begin)[begin.count("|") + 1 :][: len(cells)] == cells


def first_row(table, begin):
    """The cells of the first row that begins so."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_did_not_run_has_no_row_and_no_column():
    assert "DeepGEMM" not in ladder.shapes_table([GROUP, EMPTY]) + ladder.ladder_table([GROUP])
    assert "no part" in ladder.power_table([EMPTY])


def test_the_mean_of_shapes():
    slower = GROUP._replace(contenders=CONTENDERS | {"matmul": timed(8.8, 8.8, 8.8)})
    mean = ladder.geometric_mean([GROUP, slower, EMPTY])
    assert mean == pytest.approx((1.1 * 0.25) ** 0.5)
    assert ladder.geometric_mean([GROUP], ladder.UPSTREAM) == pytest.approx(1.25)
    assert ladder.geometric_mean([EMPTY]) is None


def test_the_ladder_so_far_has_each_rung_up_to_one_and_its_machine():
    table = ladder.so_far(1, [GROUP, FLOAT16])
    assert [line for line in table.splitlines() if line.startswith("| rung")] == [
        "| rung 0, one buffer | 100 ± 10.0% (22.0%) |",
        "| rung 1, a ring of slots | 200 ± 0.0% (44.0%) |",
    ]
    assert table.endswith("Measured on an NVIDIA H200, JAX 0.11.2, 2026-11-21.")
    assert ladder.so_far(1, [FLOAT16]) == ladder.missing("ladder")


def test_the_same_kernel_measured_twice(monkeypatch):
    def nearest(m, n, k, dtype, *, gpu, **more):
        assert (m, n, k, dtype, gpu) == (1000, 1000, 500, "bfloat16", "NVIDIA H200")
        return table and ladder.tuned.Entry(m, n, k, dtype, False, False, dtype, table, 1.0, 1, {})

    monkeypatch.setattr(ladder.tuned, "nearest_entry", nearest)
    table = RUNGS[7].config
    said = "differs from the tuned kernel's by -50.0% (rung 7, 1000x1000x500 in bfloat16)."
    assert said in ladder.repeatability([EMPTY, GROUP])
    assert ladder.repeatability([EMPTY]) == ""
    table = RUNGS[0].config  # whichever rung it is
    assert "by -80.0% (rung 0, 1000x1000x500 in bfloat16)." in ladder.repeatability([GROUP])
    table = RUNGS[6].config  # ran for too long
    assert ladder.repeatability([GROUP]) == ""
    table = None
    assert ladder.repeatability([GROUP]) == ""


def test_the_tuned_configuration_is_the_one_that_matmul_takes():
    square = PROBLEM | dict(m=4096, n=4096, k=4096)
    turned = square | dict(transpose_a=True, transpose_b=False, out_dtype="bfloat16")
    for problem, more in ((square, {}), (turned, dict(transpose_a=True))):
        entry = ladder.tuned.nearest_entry(4096, 4096, 4096, "bfloat16", gpu="NVIDIA H200", **more)
        assert GROUP._replace(problem=problem).tuned_config == entry.config
    assert GROUP._replace(problem=PROBLEM | dict(m=1, n=1, k=1)).tuned_config is None


def test_the_means_of_shapes_are_told_with_deepgemm_s_where_it_ran():
    end = "the worst 1.10 times cuBLAS."
    assert ladder.shapes_sentence([GROUP, EMPTY]) == (
        f"Geometric mean of 2: 1.100 times cuBLAS and 1.250 times JAX's own kernel; {end}"
    )
    assert ladder.shapes_sentence([DEEPGEMM]) == (
        "Geometric mean of 1: 1.100 times cuBLAS, 1.250 times JAX's own kernel and 1.250 times"
        f" DeepGEMM; {end}"
    )
    assert ladder.shapes_sentence([EMPTY]) == ""


# Searches.

FIELDS = ["tile_m", "tile_n", "slots", "width", "cluster_m"]
ROWS_OF_SEARCH = [
    [[128, 256, 4, 8, 1], [10.0, 10.0], 0.01, ""],  # the winner
    [[128, 256, 4, 4, 1], [11.0, 11.0], 0.01, ""],
    [[128, 256, 4, 1, 1], [12.0, 12.0], 0.01, ""],  # no better than width=4
    [[256, 128, 3, 8, 1], [15.0, 15.0], 0.01, ""],  # a tile and its slots
    [[128, 256, 4, 4, 2], [10.5, 10.5], 0.01, ""],  # two things
    [[128, 256, 4, 8, 2], [], None, "out of memory"],
]
SEARCH = dict(
    problem=PROBLEM,
    fields=FIELDS,
    rows=ROWS_OF_SEARCH,
    finals=[[ROWS_OF_SEARCH[0][0], [9.0], 0.01, ""]],
)


def test_near_misses_differ_in_one_thing(recorded):
    (search,) = ladder.searches(recorded(tune=dict(groups=[SEARCH])))
    assert search.near_misses() == [
        ("width=4 (8)", pytest.approx(1.1), ""),
        ("tile_m=256 (128), tile_n=128 (256), slots=3 (4)", pytest.approx(1.5), ""),
        ("cluster_m=2 (1)", None, "out of memory"),
    ]
    table = ladder.search_table(search)
    assert "| width=4 (8) | +10.0% |\n" in table
    assert "| cluster_m=2 (1) | out of memory |" in table


def test_the_winner_is_told_beside_the_last_rung(recorded):
    unknown = SEARCH | dict(problem=PROBLEM | dict(m=1), finals=[])
    other = SEARCH | dict(problem=PROBLEM | dict(m=2))
    folders = recorded(tune=dict(groups=[SEARCH, unknown, other]))
    groups = [GROUP, GROUP._replace(problem=unknown["problem"])]
    (found,) = ladder.searches_of(groups, folders)
    last = RUNGS[-1].config
    best = dict(tile_m=last.tile_m, tile_n=last.tile_n, slots=last.slots, width=last.width)
    for cluster, words in ((1, "`cluster_m=1`"), (last.cluster_m, "the same")):
        search = found._replace(finals=[(best | dict(cluster_m=cluster), 9.0, "")])
        assert row(ladder.winners_table([search]), "1000")[1:] == [str(len(ROWS_OF_SEARCH)), words]


def searched(*finals):
    """A search of two configurations with these medians in the finals, in this order."""
    rows = [[ROWS_OF_SEARCH[0][0], [10.0], 0.01, ""], [ROWS_OF_SEARCH[1][0], [11.0], 0.01, ""]]
    last = [[rows[index][0], us, 0.01, reason] for index, us, reason in finals]
    return ladder._search(SEARCH | dict(rows=rows, finals=last))


# The fastest final wins, not the first one; one without a time does not. What was behind in the
# search, and ahead in the finals, stands below 0 there.
@pytest.mark.parametrize(
    ("finals", "winner", "near"),
    [
        ([(0, [9.0, 9.0], ""), (1, [8.0, 8.5], "")], 1, "| width=8 (4) | -9.1% |"),
        ([(0, [], "ran for too long"), (1, [8.0], "")], 1, "| width=8 (4) | -9.1% |"),
        ([], None, None),
        ([(0, [1.0], "wrong result"), (1, [], "no")], None, None),
    ],
)
def test_the_winner_of_the_finals(finals, winner, near):
    search = searched(*finals)
    assert search.winner == (winner and dict(zip(FIELDS, ROWS_OF_SEARCH[winner][0])))
    assert len(search.near_misses()) == (near is not None)
    assert near is None or near in ladder.search_table(search)


def test_no_change_has_no_sign():
    assert [ladder._change(ratio) for ratio in (0.9999, 1.0, 1.1)] == ["+0.0%", "+0.0%", "+10.0%"]


# Records.


def test_groups_are_read_by_their_part(recorded):
    group = dict(problem=PROBLEM, contenders=CONTENDERS, run=RUN)
    search = dict(part="upstream", problem=PROBLEM, best={}, run=RUN)
    folders = recorded(matmul=dict(groups=[group | dict(part="ladder"), search]))
    found = [ladder.groups(part, folders) for part in ("ladder", "shapes", "upstream")]
    assert found == [[GROUP], [], []]


def test_a_table_has_words_to_the_left_and_numbers_to_the_right():
    assert results.table(("a", "b", "c"), [("x", "1", "y")], words=(0, 2)) == (
        "| a | b | c |\n|---|--:|---|\n| x | 1 | y |"
    )
    assert results.table(("a", "b"), []) == "| a | b |\n|---|--:|"


def test_bandwidth():
    us = dict(burst_microseconds=[1.0, 2.0, 3.0])
    point = dict(slots=3, step_bytes=2048, blocks_per_sm=2, bytes=1000) | us
    shape = dict(rows=8, length=8, dtype="float32", bytes=1000)
    found = dict(
        curve=[point],
        rows=[
            shape | dict(kernel="copy", variant="driver", burst_microseconds=[4.0]),
            shape | dict(kernel="softmax", variant="pipelib", burst_microseconds=[5.0]),
            shape | dict(kernel="softmax", variant="2 slots", burst_microseconds=[6.0]),
        ],
    )
    assert bandwidth.curve(found) == {2048: [(3 * 2048 * 2, pytest.approx(1000 / 2e-6))]}
    table = bandwidth.table(found, 8, 8, "float32")
    assert row(table, "softmax, pipelib")[3] == "80.0%"
    assert "2 slots" not in table


def test_the_first_folder_that_has_a_record_counts(tmp_path):
    for number, folder in enumerate("ab"):
        (tmp_path / folder / "gpu").mkdir(parents=True)
        (tmp_path / folder / "gpu" / "x.json").write_text(f'{{"number": {number}}}')
    folders = tuple(tmp_path / name for name in ("none", "a", "b"))
    assert results.read("*/x.json", folders) == [{"number": 0}]
    assert results.read("*/y.json", folders) == []


def test_where():
    assert ladder.where([GROUP, EMPTY]) == "Measured on an NVIDIA H200, JAX 0.11.2, 2026-11-21."
