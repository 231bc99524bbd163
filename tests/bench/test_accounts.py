"""`benchmarks.accounts` and `benchmarks.nsight`: a profile is read, and its main loop divided."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import accounts, compiled, nsight, records
from benchmarks.attention_problems import Problem
from pipelib_book.measured.attention import FA3
from tools import records as page

DENSE, CAUSAL = accounts.IDEAS.problems
RAW = [
    '"ID","Kernel Name","gpu__time_duration.sum","l2__bytes.sum.per_second","a__cycles.avg"',
    '"","","us","Tbyte/s","cycle"',
    '"0","attention_kernel","1,250.5","1.500000","n/a"',
]
HEAD = '"Address","Source","# Samples","Instructions Executed","stall_wait","stall_math"'
HEAD += ',"stall_wait (Not Issued)"'
#: The main loop runs 100 times: two products of 16, waits, and a softmax between them.
LOOP = [
    ("UIADD3 UR4, UR4, 0x1, URZ", 101, 2, 1),
    ("@!P1 BRA 0x10", 100, 8, 6),
    ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ", 100, 10, 3),
    ("UMOV UR1, UR2", 100, 1, 0),
    ("HGMMA.64x128x16.F32.BF16 R88, R4, gdesc[UR8]", 100, 9, 3),
    ("SYNCS.ARRIVE.TRANS64 RZ, [UR19], RZ", 100, 1, 0),
    ("WARPGROUP.DEPBAR.LE gsb0, 0x1", 100, 20, 0),
    ("FMNMX.NAN R1, R2, R3, !PT", 99, 30, 25),
    ("MUFU.EX2 R1, R1", 100, 10, 5),
    ("WARPGROUP.DEPBAR.LE gsb0, 0x0", 100, 4, 0),
    ("FMUL R1, R2, R3", 100, 5, 1),
]
SEEN = {
    "gpu__time_duration.sum": 1e-3,
    "sm__cycles_elapsed.max": 2e6,
    "sm__cycles_active.avg": 1e6,
    "smsp__inst_executed.sum": 5e6,
    "sm__warps_active.avg.per_cycle_active": 12.0,
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 75.0,
    "smsp__issue_active.avg.pct_of_peak_sustained_active": 40.0,
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": 30.0,
    "l1tex__m_xbar2l1tex_read_bytes.sum.per_second": 5e12,
}


def source(rows):
    lines = [
        f'"0x{16 * i:x}","      {text}","{samples}","{executed}","{waits}","0","7"'
        for i, (text, executed, samples, waits) in enumerate(rows)
    ]
    return ['"Kernel Name","attention_kernel",', HEAD, *lines]


def profile(rows=(("LDC R1, c[0x0]", 1, 100, 0), *LOOP, ("EXIT", 1, 0, 0))):
    return nsight.read(RAW, source(rows))._replace(counters=SEEN)


def test_pages_are_read_in_seconds_and_bytes():
    found = nsight.read(RAW, source(LOOP))
    assert found.kernel == "attention_kernel"
    seconds = pytest.approx(1250.5e-6)
    assert found.counters["gpu__time_duration.sum"] == seconds
    assert found.counters["l2__bytes.sum.per_second"] == 1.5e12
    assert "a__cycles.avg" not in found.counters
    assert found.lines[1] == nsight.Line("BRA", 100, 8, {"wait": 6})
    assert found.lines[2].opcode == "HGMMA.64x128x16.F32.BF16"


def test_the_main_loop_is_divided_at_products_and_waits():
    parts = accounts.parts_of(profile().lines)
    assert [*parts] == [*accounts.PARTS]
    assert [len(part) for part in parts.values()] == [2, 4, 1, 2, 1, 1]
    assert all(line.executed > 1 for part in parts.values() for line in part)


def test_a_loop_with_one_wait_has_no_result_to_wait_for():
    parts = accounts.parts_of(profile(LOOP[:9]).lines)
    assert [*parts] == ["turn", "products", "scores", "softmax"]


def test_cycles_are_shares_of_all_samples():
    found = accounts.account(profile(), sms=132)
    assert found["samples"] == 200 and found["seconds"] == 1e-3
    # Each sample is a 200th of 12 warps' cycles on 132 SMs; the softmax has 40 of them in 100 runs.
    cycle = 12 * 1e6 * 132 / 200 / 100
    softmax = found["parts"]["softmax"]
    assert softmax["cycles"] == round(40 * cycle, 1)
    assert softmax["stalls"]["wait"] == round(30 * cycle, 1)
    assert softmax["instructions"] == {"FMNMX": 1, "MUFU": 1}
    assert ["EXIT", 1, 0, {}] not in found["lines"] and len(found["lines"]) == 12


def test_without_products_there_is_no_loop():
    with pytest.raises(ValueError, match="None of 1 instructions is a product, so there is no"):
        accounts.parts_of([nsight.Line("EXIT", 1, 1, {})])


def group(**contenders):
    run = dict(command="", provenance=dict(jax="0"), peers={})
    problem = DENSE.as_json()
    return dict(part="accounts", problem=problem, run=run, sms=132, contenders=contenders)


def test_a_row_has_the_parts_or_the_reason_why_there_are_none():
    found = group(ours=accounts.account(profile(), sms=132), lost=dict(reason="no kernel"))
    head, _, ours, lost = accounts.table(found).splitlines()
    assert head.count("|") == ours.count("|") and "| softmax |" in head
    assert (
        "| 1.000 | 2.000 | 50.0% | 75.0% | 30.0% | 40.0% | 5.00 | 5 |" in ours
        and lost == "| lost | no kernel |"
    )
    (launch, step) = page.tables("accounts.json", dict(groups=[found]))
    assert (launch[0], step[0]) == (f"A launch, {DENSE}", f"Cycles of a step, {DENSE}")
    cells = [text.splitlines()[2].strip("|") for _, text in (launch, step)]
    assert "|".join([cells[0], *cells[1].split("|")[1:]]) in ours


def test_a_contender_without_a_profile_has_its_reason(monkeypatch):
    def fails(command, kernels, skip, timeout_s):
        problem, name = command[-2:]
        assert Problem(*json.loads(problem)) == CAUSAL and skip == 2
        if name == "late":
            raise subprocess.TimeoutExpired("ncu", timeout_s)
        if name == "lazy":
            raise RuntimeError("There is no `ncu`")
        return profile()

    monkeypatch.setattr(nsight, "profile", fails)
    made = accounts.IDEAS.contenders(CAUSAL, [])
    call = SimpleNamespace(say=print)
    every = accounts.measure(call, accounts.IDEAS, CAUSAL, made)
    found = {name: kept for fields in every for name, kept in fields["contenders"].items()}
    assert found["lazy"] == dict(reason="There is no `ncu`")
    assert "timed out" in found["late"]["reason"]
    assert found["attention"]["samples"] == 200


def test_without_nsight_compute_it_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="There is no `ncu`, NVIDIA's Nsight Compute, on the"):
        nsight.profile([sys.executable, "-V"], "attention", 0, 10.0)


def test_what_ncu_printed_is_said_where_it_profiled_nothing(monkeypatch, tmp_path):
    (tmp_path / "ncu").write_text("#!/bin/sh\necho 'No kernels were profiled.'\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RuntimeError, match="no kernel like 'attention'; it printed: No kernels"):
        nsight.profile(["true"], "attention", 0, 10.0)


def test_an_account_is_of_the_kernels_as_they_are(tmp_path):
    path = tmp_path / "nvidia-h200" / "accounts.json"
    path.parent.mkdir()
    fields = {"attention": {}, "late": {}, FA3: {}, "lazy": dict(reason="no kernel")}
    found = group(**fields)
    assert [m.name for m in compiled.measurements(path, dict(groups=[found]))] == [
        f"accounts {DENSE}, {name}" for name in ("attention", "late")
    ]
    records.put(path, found)
    compiled.note(path)
    (kept,) = records.read(path)
    assert kept["contenders"]["late"]["compiled"] and "compiled" not in kept["contenders"][FA3]
