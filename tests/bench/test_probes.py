"""Probes that predict: each lowers, waits for nobody in vain, and does what its docstring says."""

import re
from statistics import median
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from benchmarks import (
    clocked,
    idle,
    machine,
    modelled,
    noting,
    probes,
    probes_copies,
    probes_softmax,
    probes_tensor_core,
    records,
)
from benchmarks.probes_tensor_core import Turns
from benchmarks.turns import OneByOne
from pallascope.machine import H200
from pipelib_book.measured import results
from tests.bench.stand_ins import dry_run, with_parts
from tests.pallascope.toy import TOY

LATER = {probe.name: probe for probe in probes.later()}
(RECORD,) = results.read("nvidia-h200/machine.json")


def short(probe):
    """The same with few steps, as many as rings of 3, 4, 5, 6 and 8 slots can have."""
    return probe if probe.cold else probe._replace(repeats=120 if "slots" in probe.name else 8)


def traced(probe):
    return pallascope.trace(clocked.kernel(probe), *clocked.inputs(probe))


@pytest.mark.parametrize("name", LATER)
def test_each_lowers_for_hopper(name):
    kernel = jax.jit(clocked.kernel(LATER[name]))
    lowered = kernel.trace(*clocked.inputs(LATER[name])).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize("name", LATER)
def test_each_waits_for_nobody_in_vain(name):
    """What probes multiply and store has been written by nobody, and nobody reads what they get."""
    report = pallascope.check(traced(short(LATER[name])))
    assert {finding.kind for finding in report} <= {"uninitialized-read", "lost-store"}, report


def test_names_are_apart_and_leave_the_machine_s_parameters_alone():
    every = probes.probes()
    assert len({probe.name for probe in every}) == len(every)
    """But for what slows arithmetic beside products."""
    used = {f"{name} of 64x128, 1 threads" for name in ("exp2", "softmax")}
    used |= {f"{name}, beside products with a in SMEM" for name in used}
    assert used <= LATER.keys()
    unused = LATER.keys() - used
    filled = RECORD["probes"] | {name: dict(work={}, cycles=[0.0]) for name in unused}
    assert machine.parameters(RECORD | dict(probes=filled)) == machine.parameters(RECORD)


def test_the_record_has_all_probes_but_those_that_wait_for_their_first_run():
    assert RECORD["probes"].keys() >= {p.name for p in probes.probes()} - LATER.keys()


def docstrings():
    modules = probes_tensor_core, probes_softmax, probes_copies
    functions = (value for module in modules for value in vars(module).values())
    for function in functions:
        made = getattr(function, "__annotations__", {}).get("return")
        if made is clocked.Probe and not function.__name__.startswith("_"):
            yield function


def test_each_docstring_gives_the_model_s_figure_and_an_alternative():
    found = [*docstrings()]
    assert found
    for function in found:
        words = " ".join(function.__doc__.split())
        assert re.search(r"[Tt]he model(:| knows| does not know)", words), function.__name__
        assert re.search(r"The alternatives?: ", words), function.__name__


# What the model says, as docstrings have it.


def says(probe):
    return pytest.approx(modelled.simulated(probe), rel=0.02)


@pytest.mark.parametrize("turns", Turns)
def test_turns_change_nothing(turns):
    assert says(probes_tensor_core.two_threads(128, turns)) == 1037
    assert says(probes_tensor_core.two_threads(256, turns)) == 2075


def test_a_small_product_waits_for_whole_large_ones():
    beside = {n: modelled.simulated(probes_tensor_core.small_beside(n)) for n in (128, 256)}
    assert beside == pytest.approx({128: 599, 256: 1118}, rel=0.02)
    behind = [modelled.simulated(probes_tensor_core.small_behind(128, n)) for n in (0, 1, 2, 4)]
    assert behind == pytest.approx([173, 271, 518, 1012], rel=0.02)


@pytest.mark.parametrize(("n", "in_smem", "in_registers"), [(32, 97, 65), (128, 259, 259)])
def test_registers_help_products_of_few_columns(n, in_smem, in_registers):
    for registers, expected in ((False, in_smem), (True, in_registers)):
        one, two = (probes_tensor_core.operand(n, k, registers) for k in (64, 128))
        assert modelled.simulated(two) - modelled.simulated(one) == pytest.approx(
            expected, rel=0.02
        )


def test_threads_of_a_softmax_share_two_units_and_chains_have_no_latency():
    found = [modelled.simulated(probes_softmax.softmax(threads)) for threads in (1, 2, 3)]
    assert found == pytest.approx([1118, 1835, 2755], rel=0.02)
    assert says(probes_softmax.rows("max", 3)) == 1364
    assert says(probes_softmax.beside(probes_softmax.softmax(1))) == 1302
    assert modelled.simulated(probes_softmax.chain("add")) < 4 * probes_softmax.LINKS / 2


def test_copies_cost_bytes_and_issues_and_share_a_port():
    *_, last = probes_copies.BOXES
    whole, halves, wide, many, _ = map(probes_copies.boxed, probes_copies.BOXES)
    assert [says(probe) for probe in (whole, wide, probes_copies.boxed(last))] == [152] * 3
    assert [says(halves), says(many)] == [201, 897]
    loads, stores = map(probes_copies.both_ways, (True, False))
    assert [says(loads), says(stores)] == [792, 634]
    for slots in (3, 4, 5, 6):
        for carried in (False, True):
            assert says(probes_copies.slot_found(slots, carried)) == 151


def test_the_model_does_not_know_the_order_of_blocks():
    wide = probes_copies.WIDE
    assert [says(probes_copies.ordered(wide._replace(band=band))) for band in (1, 8)] == [369] * 2


def test_bands_hold_every_place_once_and_go_down_columns():
    grid = probes_copies.Grid(4, 3, 2)
    places = [tuple(map(int, grid.place(jnp.int32(block)))) for block in range(12)]
    assert places[:7] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]
    assert len({*places}) == 12
    along = grid._replace(band=1)
    assert [tuple(map(int, along.place(jnp.int32(block)))) for block in (0, 1, 3)] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]


# The simulated clock.


def test_a_probe_reads_the_simulated_clock():
    barrier = next(probe for probe in probes.synchronisation() if probe.name == "arrive, wait")
    probe = barrier._replace(repeats=5)
    toy = TOY.changed(arrive_cycles=3.0, wait_cycles=7.0, wake_cycles=5.0)
    (stamps,) = modelled.stamps(probe, toy)
    step = 3 + 7
    found = dict(zip(clocked.STAMPS, stamps[0].tolist()))
    assert found["clock1"] - found["clock0"] == 5 * step
    assert found["clock2"] - found["clock1"] == 10 * step
    assert found["inner"] == 10 * 7
    assert found["ns2"] - found["ns0"] == round(15 * step * 1e9 / toy.clock_hz)
    assert modelled.simulated(probe, toy) == 7


def test_of_threads_that_are_apart_the_first_counts():
    probe = short(probes_copies.both_ways(True))
    stamps = np.arange(2 * 2 * 7).reshape(2, 2, 7)
    assert clocked.shown(probe, stamps).shape == (2, 1, 7)
    assert clocked.shown(probe._replace(apart=False), stamps).shape == (2, 2, 7)
    both = modelled.stamps(probe)[0]
    assert both[1][2] - both[1][0] > 1.2 * (both[0][2] - both[0][0])  # it works for longer


def test_a_table_compares_what_is_known():
    inner, plain = probes_tensor_core.small_behind(128, 2), probes_copies.slot_found(4, True)
    model = {probe.name: modelled.simulated(probe) for probe in (inner, plain)}
    record = dict(probes=dict(RECORD["probes"]))
    record["probes"][inner.name] = dict(inner=[1002.0], second_run=[5000.0])
    record["probes"].pop(plain.name, None)
    text = modelled.table(record, [inner, plain]).splitlines()[2:]
    clock = median(RECORD["probes"]["clock"]["inner"])
    ratio = model[inner.name] / (1002 - clock)
    assert text[0].startswith(f"| {inner.name} | {model[inner.name]:,.1f} | {1002 - clock:,.1f} |")
    assert f"| {ratio:.2f} | " in text[0] and "flops" in text[0]
    assert text[1] == f"| {plain.name} | {model[plain.name]:,.1f} | not yet | | |"


# Measuring what a record lacks.


def test_what_is_lacking_is_measured_and_the_others_are_kept(tmp_path, monkeypatch):
    lacking = probes_copies.slot_found(3, True)
    old = dict(inner=[0.0], second_run=[1.0], cycles=[1.0])
    names = [probe.name for probe in probes.probes() if probe.name != lacking.name]
    run = dict(provenance=dict(gpu="NVIDIA H200"), command="first")
    group = dict(part="probes", problem={}, run=run, contenders=dict.fromkeys(names, old))
    path = tmp_path / "nvidia-h200" / "machine.json"
    records.put(path, group)
    new, measured = dict(inner=[0.0], second_run=[302.0], cycles=[301.0]), []
    measure = OneByOne(
        lambda probe: probe.name,
        lambda probe, call: measured.append((probe.name, call)) or new,
        str,
    )
    monkeypatch.setattr(noting, "is_current", lambda path, name: True)
    suite = with_parts(machine.SUITE, probes=dict(measure=measure))
    dry_run(monkeypatch, tmp_path, suite, "--resume")
    assert measured == [(lacking.name, lacking.name)]
    (group,) = records.read(path)
    assert group["contenders"] == dict.fromkeys(names, old) | {lacking.name: new}
    assert group["run"] == run and [more["contenders"] for more in group["added"]] == [
        [lacking.name]
    ]
    record = results.opened(dict(groups=[group]))
    record["probes"]["clock"] = dict(old, inner=[0.0])
    last = modelled.table(record, [lacking]).splitlines()[-1]
    assert last.startswith(f"| {lacking.name} | 150.9 | 302.0 | 0.50 |")


@pytest.mark.parametrize("apart", [False, True])
def test_threads_that_are_apart_have_samples_of_their_own(apart):
    probe = clocked.Probe("two", (None, None), 10, apart=apart)
    stamps = np.zeros((1, 2, 7), np.int32)
    stamps[0, :, 1], stamps[0, :, 2], stamps[0, :, 5] = (10, 30), (30, 90), (15, 45)
    found = machine.run_probe(probe, lambda: stamps)
    others = [each["second_run"] for each in found.get("others", ())]
    assert found["second_run"] == ([1.0] if apart else [2.0]) * machine.LAUNCHES
    assert others == ([[3.0] * machine.LAUNCHES] if apart else [])


# The clock after idleness.


def launch(start_ns, ghz):
    """A launch of one thread: 30,000 cycles at this clock."""
    stamps = np.zeros((1, 1, 7), np.uint32)
    stamps[..., 1:3] = 10_000, 30_000
    stamps[..., 4:6] = start_ns % 2**32, (start_ns + 30_000 / ghz) % 2**32
    return stamps


def test_a_series_of_launches_has_times_and_clocks():
    first = 2**32 - 1_000_000
    launches = [launch(first, 1.5), launch(first + 2_000_000, 2.0)]
    ms, ghz = idle.series(launches, repeats=10)
    assert ms.tolist() == [0.0, 2.0] and ghz == pytest.approx([1.5, 2.0], rel=1e-3)
    kept = idle.spread(2000)
    assert (kept[0], kept[-1], len(kept)) == (0, 1999, len({*kept.tolist()}))
    assert [*kept[:10]] == [*range(10)] and np.diff(kept)[-1] > 100


def test_the_table_of_idleness_has_the_model_beside_it():
    rounds = [dict(ms=[0.0, 0.5, 20.0], ghz=[1.9, 1.7, 1.6]), dict(ms=[0.9, 99.0], ghz=[1.8, 1.5])]
    found = dict(products=dict(use=1.0, rounds=rounds))
    head, _, row = idle.table(found).splitlines()
    assert "| 0 to 1 ms | 1 to 10 ms | 10 to 100 ms | from 100 ms | the model |" in head
    model = H200.loaded(1.0).clock_hz * 1e-9
    assert row == f"| products | 1.800 | none | 1.550 | none | {model:.3f} |"


def test_idleness_comes_before_each_round(monkeypatch):
    told = []
    monkeypatch.setattr(idle, "time", SimpleNamespace(sleep=told.append))
    monkeypatch.setattr(idle, "LAUNCHES", 3)
    call = lambda: told.append("launch") or launch(5, 1.5)
    load = idle.Load("one", clocked.Probe("one", (None,), 10))
    found = idle.measured(load, 0.0, (call, []))
    assert told == ["launch", *[idle.IDLE_S, "launch", "launch", "launch"] * idle.ROUNDS]
    assert found["rounds"][0]["ms"] == [0.0] * 3


@pytest.mark.parametrize("load", [load for load, _ in idle.loads()], ids=lambda load: load.name)
def test_loads_after_idleness_lower_for_hopper(load):
    kernel = jax.jit(clocked.kernel(load.probe))
    lowered = kernel.trace(*clocked.inputs(load.probe)).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


# The machine code.


@pytest.mark.compiler
@pytest.mark.parametrize("registers", [False, True])
def test_products_stay_rolled_and_are_not_serialized(registers):
    probe = probes_tensor_core.operand(128, 64, registers, left=1)
    found = pallascope.compiled(clocked.kernel(probe))
    assert found.ok and found.instructions["HGMMA"] < 40  # thousands, if ptxas unrolls
    assert found.sass.count("WARPGROUP.DEPBAR.LE gsb0, 0x1") >= 2


@pytest.mark.compiler
def test_a_chain_converts_at_each_link():
    found = pallascope.compiled(clocked.kernel(probes_softmax.chain("add, to float16 and back")))
    per_loop = [loop.instructions for loop in found.loops]
    assert per_loop and all(each["FADD"] == each["F2FP"] >= 8 for each in per_loop)
