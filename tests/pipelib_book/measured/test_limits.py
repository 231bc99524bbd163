"""`pipelib_book.measured.limits`: what the probes of the machine saw."""

from pipelib_book.measured import limits


def test_the_clock_of_the_data_sheet_stands_behind_the_first_row(recorded):
    first, second, *_ = limits._CLOCKS.values()
    load = lambda hz: dict(watts=300.4, clock_hz=[hz, hz, 1e9])
    found = recorded(loads=dict(loads={first: load(1.98e9), second: load(1.8e9)}))
    rows = limits.clock_table(found).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["1,980", "1,830", "1,800"]
    assert rows[0].endswith("| 1,980 | 300 | 1,071 |") and "| - | 989 |" in rows[1]


def test_a_copy_has_a_row_if_both_levels_were_measured(recorded):
    found = {f"load 1024 bytes, {level}": dict(cycles=[1.0, 5.0, 9.0]) for level in ("L2", "HBM")}
    found["load 8192 bytes, L2"] = dict(cycles=[7.0])
    (row,) = limits.latency_table(recorded(machine=dict(probes=found))).splitlines()[2:]
    assert row == "| 1 KiB | 5 | 5 |"


def test_sharers_have_the_cycles_of_a_tile(recorded):
    shared = limits._SHARED.format("2 neighbours")
    found = {limits._ALONE: dict(cycles=[4.0]), shared: dict(cycles=[2.0])}
    rows = limits.sharers_table(recorded(machine=dict(probes=found))).splitlines()[2:]
    assert rows == ["| nobody else | 4 |", "| 2 neighbours | 2 |"]


def test_the_place_and_the_day_are_told(recorded):
    provenance = dict(gpu="NVIDIA H200", utc="2026-11-21T18:20:14+00:00")
    said = limits.where(recorded(machine=dict(provenance=provenance)))
    assert said == "Measured on an NVIDIA H200, 2026-11-21, by `benchmarks/machine.py`."
