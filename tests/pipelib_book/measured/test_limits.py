"""`pipelib_book.measured.limits`: what the probes of the machine saw."""

import json

from pipelib_book.measured import limits, results


def folder(tmp_path, **records):
    (tmp_path / results.GPU).mkdir()
    for name, record in records.items():
        (tmp_path / results.GPU / f"{name}.json").write_text(json.dumps(record))
    return (tmp_path,)


def test_the_clock_of_the_data_sheet_stands_behind_the_first_row(tmp_path):
    first, second, *_ = limits._CLOCKS.values()
    load = lambda hz: dict(watts=300.4, clock_hz=[hz, hz, 1e9])
    found = folder(tmp_path, loads=dict(loads={first: load(1.98e9), second: load(1.8e9)}))
    rows = limits.clock_table(found).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["1,980", "1,830", "1,800"]
    assert rows[0].endswith("| 1,980 | 300 | 1,071 |") and "| - | 989 |" in rows[1]


def test_a_copy_has_a_row_if_both_levels_were_measured(tmp_path):
    found = {f"load 1024 bytes, {level}": dict(cycles=[1.0, 5.0, 9.0]) for level in ("L2", "HBM")}
    found["load 8192 bytes, L2"] = dict(cycles=[7.0])
    (row,) = limits.latency_table(folder(tmp_path, machine=dict(probes=found))).splitlines()[2:]
    assert row == "| 1 KiB | 5 | 5 |"


def test_sharers_have_the_cycles_of_a_tile(tmp_path):
    shared = limits._SHARED.format("2 neighbours")
    found = {limits._ALONE: dict(cycles=[4.0]), shared: dict(cycles=[2.0])}
    rows = limits.sharers_table(folder(tmp_path, machine=dict(probes=found))).splitlines()[2:]
    assert rows == ["| nobody else | 4 |", "| 2 neighbours | 2 |"]


def test_the_place_and_the_day_are_told(tmp_path):
    provenance = dict(gpu="NVIDIA H200", utc="2026-11-21T18:20:14+00:00")
    said = limits.where(folder(tmp_path, machine=dict(provenance=provenance)))
    assert said == "Measured on an NVIDIA H200, 2026-11-21, by `benchmarks/machine.py`."


def test_without_a_record_each_is_a_sentence(tmp_path):
    for said in (limits.clock_table, limits.latency_table, limits.sharers_table, limits.where):
        assert said((tmp_path,)).startswith("(The record has no")
