"""`measured.ladder`, `bandwidth` and `results`: records, as the chapters quote them."""

import json

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


def test_the_ladder_s_table_has_every_rung_and_says_why_one_has_no_rate():
    table = ladder.ladder_table([GROUP])
    assert row(table, "rung 0") == ["rung 0, one buffer", "100 ± 10.0% (22.0%)"]
    assert row(table, "rung 6")[1] == "ran for too long"
    assert row(table, "rung 5")[1] == "not measured"
    assert row(table, "JAX's own")[1] == "400 ± 0.0% (88.0%)"
    assert row(table, "cuBLAS")[1] == "455"
    assert len(table.splitlines()) == 2 + len(RUNGS) + 3


def test_a_rung_stands_beside_the_one_before():
    assert len(ladder.rung_row(0, [GROUP]).splitlines()) == 3
    table = ladder.rung_row(1, [GROUP, EMPTY])
    assert row(table, "rung 0")[2] == "not measured"
    assert row(table, "rung 1")[1] == "200 ± 0.0% (44.0%)"


def test_the_ladder_so_far_has_each_rung_up_to_one_and_its_machine():
    other = GROUP._replace(problem=PROBLEM | {"dtype": "float16"})
    table = ladder.so_far(1, [GROUP, other])
    assert [line for line in table.splitlines() if line.startswith("| rung")] == [
        "| rung 0, one buffer | 100 ± 10.0% (22.0%) |",
        "| rung 1, a ring of slots | 200 ± 0.0% (44.0%) |",
    ]
    assert table.endswith("Measured on an NVIDIA H200, JAX 0.11.2, 2026-11-21.")
    assert ladder.so_far(1, [other]) == ladder.missing("ladder")


def test_the_slots_of_rung_1():
    table = ladder.slots_table([GROUP])
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["1", "2", "3"]
    assert row(table, "3")[1].startswith("250")


def test_an_idea_is_compared_with_the_last_rung():
    table = ladder.ideas_table([EMPTY, GROUP])
    assert row(table, IDEAS[0].name)[1:] == ["+25.0%", IDEAS[0].reason]
    assert row(table, IDEAS[1].name)[1] == "does not compile"
    assert row(table, IDEAS[2].name)[1] == "not measured"


def test_the_same_kernel_measured_twice(monkeypatch):
    def nearest(m, n, k, dtype, *, gpu, **more):
        assert (m, n, k, dtype, gpu) == (1000, 1000, 500, "bfloat16", "NVIDIA H200")
        return table

    monkeypatch.setattr(ladder.tuned, "nearest_config", nearest)
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
        config = ladder.tuned.nearest_config(
            4096, 4096, 4096, "bfloat16", gpu="NVIDIA H200", **more
        )
        assert GROUP._replace(problem=problem).tuned_config == config
    assert GROUP._replace(problem=PROBLEM | dict(m=1, n=1, k=1)).tuned_config is None


def test_shapes_have_ratios_and_their_mean():
    slower = GROUP._replace(contenders=CONTENDERS | {"matmul": timed(8.8, 8.8, 8.8)})
    table = ladder.shapes_table([GROUP, EMPTY])
    assert "| 500 | 1.10x | 1.25x |" in table
    assert "| - | - | - |" in table and "DeepGEMM" not in table
    mean = ladder.geometric_mean([GROUP, slower, EMPTY])
    assert mean == pytest.approx((1.1 * 0.25) ** 0.5)
    assert ladder.geometric_mean([GROUP], ladder.UPSTREAM) == pytest.approx(1.25)
    assert ladder.geometric_mean([EMPTY]) is None


def test_deepgemm_is_told_where_it_ran():
    beside = GROUP._replace(contenders=CONTENDERS | {"deepgemm": timed(2.5, 2.5, 2.5)})
    assert "| 500 | 1.10x | 1.25x | 1.25x |" in ladder.shapes_table([beside, EMPTY])
    assert row(ladder.ladder_table([beside, EMPTY]), "DeepGEMM")[1:] == [
        "400 ± 0.0% (88.0%)", "not measured",
    ]  # fmt: skip
    assert "DeepGEMM" not in ladder.ladder_table([GROUP])


def test_the_means_of_shapes_are_told_with_deepgemm_s_where_it_ran():
    beside = GROUP._replace(contenders=CONTENDERS | {"deepgemm": timed(2.5, 2.5, 2.5)})
    end = "the worst 1.10 times cuBLAS."
    assert ladder.shapes_sentence([GROUP, EMPTY]) == (
        f"Geometric mean of 2: 1.100 times cuBLAS and 1.250 times JAX's own kernel; {end}"
    )
    assert ladder.shapes_sentence([beside]) == (
        "Geometric mean of 1: 1.100 times cuBLAS, 1.250 times JAX's own kernel and 1.250 times"
        f" DeepGEMM; {end}"
    )
    assert ladder.shapes_sentence([EMPTY]) == ""


def test_products_that_nobody_tuned_are_told_by_kind():
    """The better of cuBLAS and DeepGEMM counts; what lacks one of ours is left out."""
    faster = CONTENDERS | {"deepgemm": timed(1.0, 1.0, 1.0)}  # ours takes 2.0
    few = GROUP._replace(problem=PROBLEM | dict(m=64), contenders=faster)
    even = GROUP._replace(problem=PROBLEM | dict(n=1024, k=512))
    table = ladder.untuned_table([GROUP, few, even, EMPTY])
    assert row(table, "of up to 64 rows")[1:] == ["1", "0.500x", "0.50x", "0.50x", "1"]
    assert row(table, "of more rows, other")[1:] == ["1", "1.100x", "1.10x", "1.10x", "0"]
    assert row(table, "of more rows, N and K")[1:] == ["1", "1.100x", "1.10x", "1.10x", "0"]
    assert row(table, "all")[1] == "3"


def test_power():
    table = ladder.power_table([GROUP])
    assert row(table, "1000x1000x500 | matmul")[2:] == ["500", "250", "125.0%", "1500", "690"]
    assert len(table.splitlines()) == 4
    assert "no part" in ladder.power_table([EMPTY])


def test_power_of_several_dtypes_says_which():
    other = GROUP._replace(problem=PROBLEM | {"dtype": "float16"})
    table = ladder.power_table([GROUP, other])
    assert row(table, "1000x1000x500 bfloat16 | matmul")[2] == "500"
    assert row(table, "1000x1000x500 float16 | matmul")[2] == "500"


def test_emitters_are_compared_with_jax_s():
    names = dict.fromkeys(("rung 2, upstream",), timed(4.0, 4.0, 4.0))
    group = GROUP._replace(contenders=names | {"rung 2, pipelib": timed(5.0, 5.0, 5.0)})
    table = ladder.emitters_table([group])
    assert row(table, "rung 2, pipelib") == ["rung 2, pipelib", "5.0", "0.0%", "1.250"]


@pytest.mark.parametrize(
    "table", ["ladder_table", "slots_table", "ideas_table", "shapes_table", "power_table",
              "untuned_table",
              "emitters_table", "where"],
)  # fmt: skip
def test_a_part_that_is_missing_is_said_to_be(table):
    assert "The record has no part" in getattr(ladder, table)([])
    assert "The record has no part" in ladder.rung_row(3, [])


def test_where():
    assert ladder.where([GROUP, EMPTY]) == ("Measured on an NVIDIA H200, JAX 0.11.2, 2026-11-21.")


# Searches.

FIELDS = ["tile_m", "tile_n", "slots", "width", "cluster_m"]
ROWS = [
    [[128, 256, 4, 8, 1], [10.0, 10.0], 0.01, ""],  # the winner
    [[128, 256, 4, 4, 1], [11.0, 11.0], 0.01, ""],
    [[128, 256, 4, 1, 1], [12.0, 12.0], 0.01, ""],  # no better than width=4
    [[256, 128, 3, 8, 1], [15.0, 15.0], 0.01, ""],  # a tile and its slots
    [[128, 256, 4, 4, 2], [10.5, 10.5], 0.01, ""],  # two things
    [[128, 256, 4, 8, 2], [], None, "out of memory"],
]
SEARCH = dict(problem=PROBLEM, fields=FIELDS, rows=ROWS, finals=[[ROWS[0][0], [9.0], 0.01, ""]])


def test_near_misses_differ_in_one_thing(tmp_path):
    write(tmp_path, "tune", dict(groups=[SEARCH]))
    (search,) = ladder.searches((tmp_path,))
    assert search.near_misses() == [
        ("width=4 (8)", pytest.approx(1.1), ""),
        ("tile_m=256 (128), tile_n=128 (256), slots=3 (4)", pytest.approx(1.5), ""),
        ("cluster_m=2 (1)", None, "out of memory"),
    ]
    table = ladder.search_table(search)
    assert "| width=4 (8) | +10.0% |\n" in table
    assert "| cluster_m=2 (1) | out of memory |" in table


def test_the_winner_is_told_beside_the_last_rung(tmp_path):
    unknown = SEARCH | dict(problem=PROBLEM | dict(m=1), finals=[])
    other = SEARCH | dict(problem=PROBLEM | dict(m=2))
    write(tmp_path, "tune", dict(groups=[SEARCH, unknown, other]))
    groups = [GROUP, GROUP._replace(problem=unknown["problem"])]
    (found,) = ladder.searches_of(groups, (tmp_path,))
    last = RUNGS[-1].config
    best = dict(tile_m=last.tile_m, tile_n=last.tile_n, slots=last.slots, width=last.width)
    for cluster, words in ((1, "`cluster_m=1`"), (last.cluster_m, "the same")):
        search = found._replace(finals=[(best | dict(cluster_m=cluster), 9.0, "")])
        assert row(ladder.winners_table([search]), "1000")[1:] == [str(len(ROWS)), words]
    assert "no part" in ladder.winners_table([])


def searched(*finals):
    """A search of two configurations with these medians in the finals, in this order."""
    rows = [[ROWS[0][0], [10.0], 0.01, ""], [ROWS[1][0], [11.0], 0.01, ""]]
    last = [[rows[index][0], us, 0.01, reason] for index, us, reason in finals]
    return ladder._search(SEARCH | dict(rows=rows, finals=last))


def test_the_winner_is_the_fastest_of_the_finals_not_the_first():
    search = searched((0, [9.0, 9.0], ""), (1, [8.0, 8.5], ""))
    assert search.winner == dict(zip(FIELDS, ROWS[1][0]))
    # It was behind in the search: what it beat in the finals stands below 0 there.
    assert search.near_misses() == [("width=8 (4)", pytest.approx(10 / 11), "")]
    assert "| width=8 (4) | -9.1% |" in ladder.search_table(search)


def test_a_final_without_a_time_does_not_win():
    search = searched((0, [], "ran for too long"), (1, [8.0], ""))
    assert search.winner == dict(zip(FIELDS, ROWS[1][0]))


@pytest.mark.parametrize("finals", [(), ((0, [1.0], "wrong result"), (1, [], "no"))])
def test_without_a_timed_final_there_is_no_winner_and_nothing_near(finals):
    search = searched(*finals)
    assert search.winner is None
    assert search.near_misses() == []


def test_no_change_has_no_sign():
    assert [ladder._change(ratio) for ratio in (0.9999, 1.0, 1.1)] == ["+0.0%", "+0.0%", "+10.0%"]


# Records.


def write(folder, name, record):
    path = folder / results.GPU / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


def test_groups_are_read_by_their_part(tmp_path):
    group = dict(problem=PROBLEM, contenders=CONTENDERS, run=RUN)
    search = dict(part="upstream", problem=PROBLEM, best={}, run=RUN)
    write(tmp_path, "matmul", dict(groups=[group | dict(part="ladder"), search]))
    assert ladder.groups("ladder", (tmp_path,)) == [GROUP]
    assert ladder.groups("shapes", (tmp_path,)) == []
    assert ladder.groups("upstream", (tmp_path,)) == []


def test_a_table_has_words_to_the_left_and_numbers_to_the_right():
    assert results.table(("a", "b", "c"), [("x", "1", "y")], words=(0, 2)) == (
        "| a | b | c |\n|---|--:|---|\n| x | 1 | y |"
    )
    assert results.table(("a", "b"), []) == "| a | b |\n|---|--:|"


def test_the_first_folder_that_has_a_record_counts(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, number in ((first, 1), (second, 2)):
        folder.mkdir()
        write(folder, "x", {"number": number})
    assert results.read("*/x.json", (tmp_path / "none", first, second)) == [{"number": 1}]
    assert results.read("*/y.json", (first, second)) == []


def test_without_records_there_is_nothing(tmp_path):
    assert ladder.groups("ladder", (tmp_path,)) == [] and ladder.searches((tmp_path,)) == []
    nothing = bandwidth.record((tmp_path,))
    assert bandwidth.curve(nothing) == {}
    assert "no copy of 8 x 8" in bandwidth.table(nothing, 8, 8, "float32")


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
