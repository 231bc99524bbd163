"""`Timeline.critical` and `.slack`, beside an event graph worked out by itself, and changes."""

import dataclasses
import itertools
import re

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.program import Kind
from pallascope.simulating.costs import Costs
from pallascope.simulating.traffic import best_l2_hits, share_of_sm
from pallascope.spans import SpanKind
from tests.pallascope.kernels import add_one, like, of, tiles

STEPS, TILE = 200, 64


def ring(slots, unfinished, rows, columns):
    """A memory thread, and a product [rows, columns] that is waited for `unfinished` steps late."""

    def kernel(a, b, o, a_smem, b_smem, produced, consumed):
        def load():
            @pl.loop(0, STEPS)
            def _(step):
                slot, here = lax.rem(step, slots), pl.ds(step * TILE, TILE)
                pl.when(step >= slots)(lambda: plgpu.barrier_wait(consumed.at[slot]))
                plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced.at[slot])
                plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced.at[slot])

        def multiply(acc):
            @pl.loop(0, STEPS)
            def _(step):
                slot = lax.rem(step, slots)
                plgpu.barrier_wait(produced.at[slot])
                plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(unfinished)

                @pl.when(step >= unfinished)
                def _():
                    plgpu.barrier_arrive(consumed.at[lax.rem(step - unfinished, slots)])

        is_memory = lax.axis_index("thread") == 1
        accumulator = plgpu.ACC((rows, columns), jnp.float32)
        pl.when(is_memory)(load)
        pl.when(~is_memory)(lambda: pl.run_scoped(multiply, accumulator))

    scratch = [
        tiles(slots, rows, TILE),
        tiles(slots, TILE, columns),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        plgpu.Barrier(num_barriers=slots),
    ]
    call = of(kernel, scratch_types=scratch, num_threads=2, thread_name="thread")
    return call, like(rows, STEPS * TILE), like(STEPS * TILE, columns)


def constraints(program, machine, slots, unfinished):
    """The timed event graph of `ring`: (from, to, cycles, how many steps later) of its events."""
    load_a, load_b = (op for op in program.ops if op.kind == Kind.LOAD and op.step == (20,))
    product = Costs(program, machine).product(next(op for op in program.ops if op.kind == "wgmma"))
    port = [op.bytes / machine.sm_bytes_per_cycle for op in (load_a, load_b)]
    hits = best_l2_hits(program)
    latency = [machine.load_latency_cycles(hits, op.bytes) for op in (load_a, load_b)]
    share = share_of_sm(program, Costs(program, machine), 1, hits)
    issue, wake, alone = machine.load_issue_cycles, machine.wake_cycles, machine.wait_cycles
    done = product + machine.wgmma_latency_cycles + machine.wgmma_restart_cycles
    return [
        # The memory thread: it waits for the slot, and issues two loads.
        ("issued", "free", alone, 1),
        ("free", "issuing", issue, 0),
        ("issuing", "issued", issue, 0),
        # The port: one load after the other, and on average no more than the SM's share.
        ("issuing", "a", 0.0, 0),
        ("issued", "b", 0.0, 0),
        ("a", "b", port[0], 0),
        ("b", "a", port[1], 1),
        ("a", "a", (load_a.bytes + load_b.bytes) / share, 1),
        # The compute thread: it waits for both, and for the product of some steps before.
        ("a", "full", port[0] + latency[0] + wake, 0),
        ("b", "full", port[1] + latency[1] + wake, 0),
        ("released", "full", alone, 1),
        ("full", "queued", machine.wgmma_issue_cycles, 0),
        ("queued", "core", 0.0, 0),
        ("core", "core", product, 1),
        ("queued", "finished", 0.0, 0),
        ("core", "finished", done, unfinished),
        ("finished", "released", machine.arrive_cycles, 0),
        # A slot is released `unfinished` steps late.
        ("released", "free", wake, slots - unfinished),
    ]


def ratio(edges):
    """The maximum cycle ratio: the least period for which no cycle of events is late."""
    events = sorted({event for edge in edges for event in edge[:2]})
    low, high = 0.0, sum(cycles for _, _, cycles, _ in edges)
    for _ in range(50):
        period = (low + high) / 2
        times = dict.fromkeys(events, 0.0)
        for _ in events:  # Bellman and Ford's: later times, as long as something is late
            for start, stop, cycles, steps in edges:
                times[stop] = max(times[stop], times[start] + cycles - steps * period)
        late = any(
            times[start] + cycles - steps * period > times[stop] + 1e-6
            for start, stop, cycles, steps in edges
        )
        low, high = (period, high) if late else (low, period)
    return high


def lacking(edges, event, period):
    """What the longest cycle through an event lacks of the period, by Bellman and Ford's."""
    times = {event: 0.0}
    for _ in edges:
        for start, stop, cycles, steps in edges:
            if start in times and stop != event:
                late = times[start] + cycles - steps * period
                times[stop] = max(times.get(stop, late), late)
    ways = [edge for edge in edges if edge[1] == event and edge[0] in times]
    return min(steps * period - cycles - times[start] for start, _, cycles, steps in ways)


#: The span of each event of `constraints`: its kind, and how its text begins.
EVENTS = {
    "free": ("wait", "waits on consumed"),
    "issuing": ("issue", "load a"),
    "issued": ("issue", "load b"),
    "a": ("load", "load a"),
    "b": ("load", "load b"),
    "full": ("wait", "waits on produced"),
    "queued": ("issue", "wgmma"),
    "core": ("wgmma", "wgmma"),
    "finished": ("wait", "waits for its products"),
    "released": ("issue", "arrive"),
}


def simulated(call):
    """The timeline of a call, which is a kernel and its arrays, on an H200."""
    return pallascope.simulate(pallascope.trace(*call), pallascope.H200)


# Not of two cycles whose ratios are nearly the same: in 200 steps the larger one need not win.
RINGS = [
    (slots, unfinished, rows, columns)
    for (slots, unfinished), (rows, columns) in itertools.product(
        [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (6, 1), (6, 2)],
        [(64, 64), (64, 256), (128, 128)],
    )
]


@pytest.mark.parametrize("made", RINGS, ids=str)
def test_a_ring_s_period_is_its_maximum_cycle_ratio(made):
    """And the critical cycle's, and the simulated one."""
    slots, unfinished = made[:2]
    program, machine = pallascope.trace(*ring(*made)), pallascope.H200
    timeline = pallascope.simulate(program, machine)
    expected = ratio(constraints(program, machine, slots, unfinished))
    found = timeline.critical()
    assert found.cycles_per_step == pytest.approx(expected, rel=1e-3)
    assert timeline.steady().cycles_per_step == pytest.approx(expected, rel=1e-3)
    assert sum(hop.cycles for hop in found.hops) == pytest.approx(found.cycles)
    assert found.steps in (1, slots - unfinished, slots)


@pytest.mark.parametrize("made", RINGS, ids=str)
def test_a_thing_s_slack_is_what_its_longest_cycle_lacks_of_the_period(made):
    program, machine = pallascope.trace(*ring(*made)), pallascope.H200
    slack = pallascope.simulate(program, machine).slack()
    edges = constraints(program, machine, *made[:2])
    for event, (kind, text) in EVENTS.items():
        (found,) = (x for x in slack if x.span.kind == kind and x.span.text.startswith(text))
        assert found.cycles == pytest.approx(lacking(edges, event, ratio(edges)), abs=0.5), event
    assert len(slack) == len(EVENTS)


def test_what_only_its_unit_waits_for_may_take_nearly_a_step_longer():
    """Stores that the thread waits for after the loop."""

    def kernel(x, o, smem, other):
        @pl.loop(0, STEPS)
        def _(step):
            other[...] = jnp.exp(jnp.exp(other[...]))
            plgpu.copy_smem_to_gmem(smem, o.at[pl.ds(0, TILE)])

        plgpu.wait_smem_to_gmem(0)

    scratch = [tiles(TILE, TILE), tiles(TILE, TILE)]
    timeline = simulated((of(kernel, scratch_types=scratch), like(TILE, TILE)))
    (store,) = (each for each in timeline.slack() if each.span.kind == "store")
    (issue,) = (each for each in timeline.slack() if each.span.kind == "issue")
    assert issue.cycles == pytest.approx(0, abs=1e-6)
    assert 0.5 < store.cycles / timeline.steady().cycles_per_step < 1


@pytest.mark.parametrize("made", [(1, 0, 64, 64), (3, 0, 64, 64), (4, 1, 64, 256)], ids=str)
def test_a_change_on_the_cycle_changes_the_period(made):
    """By how often the cycle has it, over its steps; what is not on it changes nothing."""
    program, machine = pallascope.trace(*ring(*made)), pallascope.H200
    found = pallascope.simulate(program, machine).critical()
    spans = [hop.span for hop in found.hops]
    kinds = [span.kind for span in spans]
    arrivals = sum(
        kind == SpanKind.ISSUE and span.text == "arrive" for kind, span in zip(kinds, spans)
    )
    times = {
        "arrive_cycles": arrivals,
        "wake_cycles": sum(span.text.startswith("waits on") for span in spans),
        "hbm_latency_cycles": 1,
        "store_latency_cycles": 0,
    }
    for field, count in times.items():
        slower = machine.changed(**{field: getattr(machine, field) + 1.0})
        other = pallascope.simulate(program, slower).critical()
        assert other.steps == found.steps
        assert other.cycles - found.cycles == pytest.approx(count, abs=1e-2), field


def test_what_it_says():
    """An issue and what it starts are one; what takes no time is left out."""
    text = str(simulated(ring(2, 0, 64, 64)).critical())
    assert text.count("load a_smem") == text.count("load b_smem") == text.count("arrive") == 1
    assert "waits" not in text and text.endswith("cycles for 2 steps")


@pytest.mark.parametrize("source", ["measured", "order"])
def test_of_what_was_not_simulated_there_is_none(source):
    timeline = simulated(ring(2, 0, 64, 64))
    other = dataclasses.replace(timeline, source=source)
    assert other.critical() is None and other.slack() == ()


def test_without_a_steady_state_there_is_none():
    timeline = simulated((add_one, like(64, 64)))
    assert timeline.critical() is None and timeline.slack() == ()


def test_of_many_things_it_names_those_that_take_most():
    def kernel(x, o):
        @pl.loop(0, STEPS)
        def _(step):
            for n in range(20):
                o[pl.ds(n, 1)] = jnp.exp(x[pl.ds(n, 1)]) + step

    found = simulated((of(kernel), like(64, 64))).critical()
    assert len(found.hops) > 12
    assert re.fullmatch(r"[\d,]+ cycles a step, most of them [^>]*", str(found)), str(found)
