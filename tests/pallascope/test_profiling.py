"""`read_profile`: recorded files, and others by hand; `write_profile`, on a sham kernel."""

import json
import pathlib
from statistics import median

import jax
import pytest

import pallascope
from benchmarks import kernels
from pallascope.machine import H200
from pallascope.profiling import read_profile, write_profile
from pallascope.program import Op, Program
from pallascope.simulating.simulate import simulate
from pipelib_book.measured import results

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
(RECORD,) = results.read("nvidia-h200/machine.json")


def recorded(**options):
    clock = median(RECORD["kernels"]["ring"]["clock_hz"])
    return read_profile(RESULTS / "profile.json", clock_hz=clock, threads=2, **options)


def write(path, *events):
    keys = "name", "ph", "ts", "tid"
    text = json.dumps({"traceEvents": [dict(zip(keys, e), pid=1) for e in events]})
    path.write_text(text)
    return path


def test_events_become_spans_in_cycles(tmp_path):
    """Nanoseconds over 1000 for a thread's first event, cycles over 1000 from there."""
    path = write(
        tmp_path / "p.json",
        ("outer", "B", 5.0, 1),
        ("wait a", "B", 5.010, 1),
        ("wait a", "E", 5.030, 1),
        ("outer", "E", 5.050, 1),
        ("outer", "B", 5.060, 1),
        ("outer", "E", 5.070, 1),
        ("load", "B", 5.100, 2),
        ("load", "E", 5.103, 2),
    )
    found = read_profile(path, clock_hz=2e9, threads=2, machine="some GPU")
    assert found.lanes == ("thread 0", "thread 1")
    assert [(s.lane, s.kind, s.text, s.scope, s.step, s.start, s.stop) for s in found.spans] == [
        (0, "scope", "outer", "outer", (0,), 0, 50),
        (0, "wait", "wait a", "outer/wait a", (0,), 10, 30),
        (0, "scope", "outer", "outer", (1,), 60, 70),
        (1, "scope", "load", "load", (0,), pytest.approx(200), pytest.approx(203)),
    ]
    assert (found.name, found.source, found.machine) == ("p", "measured", "some GPU")
    assert found.cycles == pytest.approx(203)
    use = found.uses(0, 100)[0]
    assert (use.busy, use.waiting) == pytest.approx((0.4, 0.2))


def test_the_recorded_profile():
    both, second = recorded(), recorded(block=1, name="ring")
    assert both.lanes == tuple(f"block {b} thread {t}" for b in (0, 1) for t in (0, 1))
    assert second.lanes == ("thread 0", "thread 1")
    names = {s.scope for s in second.spans}
    assert names == {"Init", "wait produced", "multiply", "release", "wait consumed", "load"}
    multiplied = [s for s in second.spans if s.scope == "multiply"]
    assert [s.step for s in multiplied] == [(i,) for i in range(kernels.RING_STEPS)]
    assert second.name == "ring"
    assert second.bound().startswith("thread 0: busy 7")  # its wait for a product has no name


def test_a_program_says_what_the_threads_do():
    program = Program("ring", ((Op("wgmma", 0),), (Op("load", 1),)))
    found = recorded(block=1, program=program)
    assert found.lanes == ("compute thread 0", "memory thread")
    assert recorded(program=program).lanes[3] == "block 1 memory thread"
    alone = Program("ring", ((Op("load", 0),),))
    with pytest.raises(ValueError, match=r"ring has 1 threads in a block, but threads=2: the"):
        recorded(program=alone)


def test_a_wait_is_told_by_its_scope(tmp_path):
    """Nothing measured says what ended it."""
    events = []
    for k in range(8):
        times = (5 + k / 10 + part / 1000 for part in (0, 20, 20, 95))
        events += zip(("multiply",) * 2 + ("wait product",) * 2, "BEBE", times, (1,) * 4)
    found = read_profile(write(tmp_path / "p.json", *events), clock_hz=2e9)
    assert found.steady().cycles_per_step == pytest.approx(100)
    said = "waiting: 75% of the steady state thread 0 is in the scope wait product"
    assert found.bound() == said


def test_the_simulated_ring_is_near_the_measured_one():
    """The same kernel, the same sizes, seen by the same function."""
    ring, *_ = kernels.cases()
    simulated = simulate(
        pallascope.trace(ring.build(False), *ring.inputs), H200, l2_hits=ring.l2_hits
    )
    measured = recorded(block=0)
    ratio = simulated.steady().cycles_per_step / measured.steady().cycles_per_step
    assert 0.8 < ratio < 1.25
    scopes = {s.scope for s in simulated.spans if s.kind == "scope"}
    assert scopes == {s.scope for s in measured.spans} - {"Init"}


def test_what_is_no_profile(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"p\.json is not a Chrome trace of the in-kernel profil"):
        read_profile(path, clock_hz=1e9)
    write(path, ("a", "B", 1.0, 1), ("b", "B", 2.0, 1), ("a", "E", 3.0, 1))
    with pytest.raises(ValueError, match=r"'a' ends in thread 1 at 3\.0 but is not the scope that"):
        read_profile(path, clock_hz=1e9)
    with pytest.raises(ValueError, match=r"has no event of block=7, only of the blocks \[0, 1\]"):
        recorded(block=7)


def test_a_profile_of_the_second_run(tmp_path):
    """JAX writes a file for each run, but none over another."""
    runs = []

    def make(profile_space, profile_dir):
        def write_once(x):
            runs.append(x)
            with pathlib.Path(profile_dir, "kernel.json").open("x") as file:
                file.write(f"run {len(runs)}")
            return x

        return lambda x: jax.pure_callback(write_once, x, x)

    path = write_profile(make, 1.0, profile_space=8, profile_dir=tmp_path)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("run 2", [path])
    with pytest.raises(RuntimeError, match=r"no profile into .*: profile_space=8 and profil"):
        write_profile(lambda **ignored: lambda x: x, 1.0, profile_space=8, profile_dir=tmp_path)
