"""Kernels over ranges of values, before and live."""

import re
import sys
import time
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib import schedule
from pipelib.schedule.explore import explore, sweep
from pipelib.schedule.player import Setting, player
from tests.schedule.kernels import TRANSFORMS, like, of
from tests.schedule.timelines import ring


class Machine(NamedTuple):
    name: str = "a machine of the tests"
    latency: int = 600


class Finding(NamedTuple):
    kind: str
    text: str

    def __str__(self):
        return self.text


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """A checker that finds a race at one slot, and a simulator that hangs at four."""

    def simulate(program, machine):
        (buffer,) = {b.shape[0] for b in program.buffers if b.slots}
        if buffer == 4:
            raise RuntimeError("hangs")
        steps = sum(op.kind == "wgmma" for op in program.threads[0])
        return ring(slots=buffer, steps=steps, latency=machine.latency)

    def check(program):
        one = any(b.shape[0] == 1 for b in program.buffers if b.slots)
        return [Finding("race", "race on a_smem")] * 2 if one else []

    monkeypatch.setattr(schedule, "simulate", simulate, raising=False)
    monkeypatch.setattr(schedule, "check", check, raising=False)
    monkeypatch.setattr(schedule, "H100", Machine(), raising=False)


def matmul(slots, steps=4):
    """A chapter's matrix product, the size of one block."""
    if slots == 5:
        raise ValueError("5 slots are too many")

    def kernel(a, b, o):
        block = lambda shape, at: plgpu.BlockSpec(shape, at, transforms=TRANSFORMS)
        specs = block((64, 64), lambda k: (0, k)), block((64, 64), lambda k: (k, 0))

        def scope(acc):
            def body(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(0)

            pipelib.emit_pipeline(
                body, grid=(steps,), in_specs=specs, max_concurrent_steps=slots
            )(a, b)
            o[...] = acc[...].astype(jnp.float16)

        pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    return of(kernel, like(64, 64)), (like(64, 64 * steps), like(64 * steps, 64))


def test_every_combination_is_traced_checked_and_simulated():
    found = sweep(matmul, slots=(1, 2), latency=(300, 900))
    assert [setting.values for setting in found] == [
        {"slots": 1, "latency": 300},
        {"slots": 1, "latency": 900},
        {"slots": 2, "latency": 300},
        {"slots": 2, "latency": 900},
    ]
    assert [setting.timeline for setting in found] == [
        ring(slots, latency=latency, steps=4) for slots in (1, 2) for latency in (300, 900)
    ]
    assert [setting.ok for setting in found] == [False, False, True, True]
    assert found[0].outcome == "race"
    assert found[0].details == "race on a_smem\nrace on a_smem"
    assert "slots" in str(player(found))


def test_what_goes_wrong_is_the_outcome():
    values = {"slots": (4, 5)}
    assert sweep(matmul, **values) == [
        Setting({"slots": 4}, None, "RuntimeError", False, "hangs"),
        Setting({"slots": 5}, None, "ValueError", False, "5 slots are too many"),
    ]
    (unknown,) = sweep(matmul, width=[1])
    assert (unknown.outcome, unknown.ok) == ("TypeError", False)
    assert "width" in unknown.details


def test_steps_are_truncated_as_asked():
    (setting,) = sweep(matmul, max_steps=2, slots=[2], steps=[8])
    assert len({s.step for s in setting.timeline.spans if s.kind == "wgmma"}) < 8


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="The range slots has 0 values: a slider needs 1"):
        sweep(matmul, slots=())


def test_without_ipywidgets_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r"needs ipywidgets, .* or use player\(sweep\(...\)\)"):
        explore(matmul, slots=(1, 2))


# ---- Live ----------------------------------------------------------------------------------------


def shown(box):
    (output,) = box.children[-1].outputs
    return re.sub(r"<(script|style)>.*?</\1>", "", output["data"]["text/html"], flags=re.DOTALL)


@pytest.fixture
def widgets():
    return pytest.importorskip("ipywidgets", reason="explore() is for notebooks with ipywidgets")


def test_a_slider_redraws(widgets):
    box = explore(matmul, slots=(1, 2, 4, 5), latency=(300, 900))
    slots, latency = box.children[:-1]
    assert [label for label, _ in slots.options] == ["1", "2", "4", "5"]
    assert latency.description == "latency"
    assert ">race<" in shown(box)
    before = shown(box)
    slots.value = 2
    assert ">race<" not in shown(box)
    assert len({before, shown(box)}) == 2
    latency.value = 900
    assert f">{ring(2, latency=900, steps=4).cycles:,.0f} cycles" in shown(box)


def test_what_goes_wrong_is_shown_and_the_sliders_go_on(widgets):
    box = explore(matmul, slots=(2, 4, 5))
    (slots, _) = box.children
    slots.value = 5
    assert "5 slots are too many" in shown(box)
    slots.value = 2
    assert "5 slots are too many" not in shown(box)


def test_what_is_too_much_to_draw_is_said(widgets):
    box = explore(matmul, slots=(2,), steps=(600,))
    assert "more than 4000 are too small to be seen" in shown(box)


def test_a_move_takes_less_than_half_a_second(widgets):
    box = explore(matmul, slots=(2, 3), steps=(16,))
    slots = box.children[0]
    times = []
    for value in (3, 2, 3, 2, 3):
        begin = time.perf_counter()
        slots.value = value
        times.append(time.perf_counter() - begin)
    # The best of five: a busy machine is not pipelib's doing.
    assert min(times) < 0.5
