"""`play`: the order of ops that shows a finding, as a figure; `steps`: as a timeline.

The model. Each op is one step long. The ops of an order follow each other, whoever makes them: op
number n takes the step from n to n + 1. What an engine does begins a step after its op, and ends
with the op that waits for it, or goes on to the end. The last step is the moment at which the fault
shows: the ops that come then are side by side. There are no times here, so nothing says what is
fast. Threads have their numbers here, as in the report beside the figure. Source: this project's
own.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from pallascope.arguments import expect
from pallascope.checking.order import End
from pallascope.checking.semaphores import orders
from pallascope.drawing.player import Player, player
from pallascope.interleaving import Interleaving, Spot
from pallascope.lanes import Lanes
from pallascope.program import Engine, Kind, Op, Program
from pallascope.report import Report
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Source, Timeline

# A step, in formats that know times only.
_STEPS_PER_SECOND = 1e6
# A figure begins at most this many steps before the fault.
_PLAYED = 100


def play(report: Report, number: int | None = None) -> Player:
    """A figure to step through the order of ops that shows a finding, up to the fault.

    It begins at the last hundred steps of a long order; `steps` has all of them.

    Args:
      report: what `check` returned.
      number: the finding, from 0, as in `report[number]`; by default the first with an order.

    Raises:
      TypeError: `report` is not a Report, or `number` is not an integer.
      IndexError: no such finding, or none that has an order.
      ValueError: a finding without an order.

    Example:
      >>> program = gallery.GALLERY["release-too-early"].program(fixed=False)
      >>> pallascope.play(pallascope.check(program))
      <Player of sums, ... bytes>
    """
    found = steps(report, number)
    return player(found, start=max(0, found.cycles - _PLAYED))


def steps(report: Report, number: int | None = None) -> Timeline:
    """The order of ops that shows a finding, as a timeline in which each op takes one step.

    The arguments and errors are those of `play`.
    """
    expect("play", report, Report, "a Report", "make one with pallascope.check(program)")
    return timeline(report.program, report.order_of(number))


def timeline(program: Program, order: Interleaving) -> Timeline:
    """The timeline of an order of a program's ops."""
    lanes = Lanes(program, by_number=True)
    at = {spot: step for step, spot in enumerate(_made(order))}
    ends, last = dict(_ends(program, order, at)), len(at)
    spans: list[Span] = []

    def span(spot: Spot, start: int, stop: int, kind: SpanKind, lane: int) -> None:
        op = program.threads[spot[0]][spot[1]]
        (buffer, slot), text = lanes.part(op), program.describe(bare(op))
        where = Span(lane, start, stop, kind, text, slot, op.step, op.line, *spot)
        spans.append(replace(where, scope=op.scope, buffer=buffer))

    for spot, step in at.items():
        op = program.threads[spot[0]][spot[1]]
        span(spot, step, step + 1, _kind(op.kind), lanes.of_thread(spot[0]))
        if spot in ends:
            lane = lanes.of_engine(program.block_of(spot[0]), op)
            span(spot, step + 1, ends[spot], _ENGINES[op.kind.engine], lane)
    for spot in order.coming:
        kind = _kind(program.threads[spot[0]][spot[1]].kind)
        span(spot, last, last + 1, kind, lanes.of_thread(spot[0]))
    return Timeline(
        name=program.name,
        lanes=tuple(lanes.names),
        spans=tuple(spans),
        cycles=last + 1,
        clock_hz=_STEPS_PER_SECOND,
        source=Source.ORDER,
        machine="",
        notes=(order.then[0].upper() + order.then[1:],),
    )


def bare(op: Op) -> Op:
    """An op without what a figure says beside its text."""
    return replace(op, line=None, step=(), scope="")


def _made(order: Interleaving) -> Iterator[Spot]:
    """The ops of an order, first to last."""
    for turn in order.turns:
        yield from ((turn.thread, index) for index in range(turn.start, turn.stop))


def _ends(program: Program, order: Interleaving, at: dict[Spot, int]) -> Iterator[tuple[Spot, int]]:
    """For each op of an order that an engine works on, the step at whose begin its work is over."""
    ends: dict[Spot, End] = {}
    for event in orders(program):
        spot = event.op.thread, event.index
        if spot in at and event.op.kind.engine is not None:
            ends[spot] = event.read_end
    for spot, (waits, number) in ends.items():
        each = ((t, indices[number]) for t, indices in waits.waits.items() if number < len(indices))
        steps = [at[wait] + 1 for wait in each if wait in at]
        is_over = bool(steps) and spot not in order.in_flight
        yield spot, min(steps) if is_over else len(at) + 1


_ENGINES: dict[Engine | None, SpanKind] = {
    Engine.LOADS: SpanKind.LOAD,
    Engine.STORES: SpanKind.STORE,
    Engine.TENSOR_CORE: SpanKind.WGMMA,
    Engine.CP_ASYNC: SpanKind.LOAD,
    Engine.TMEM: SpanKind.ACCESS,
}


def _kind(kind: Kind) -> SpanKind:
    """What a thread does in its step."""
    match kind:
        case (
            Kind.LOAD | Kind.STORE | Kind.PREFETCH | Kind.WGMMA | Kind.COMMIT_GROUP | Kind.ARRIVE
            | Kind.SIGNAL | Kind.FENCE | Kind.REGISTERS | Kind.SCOPE_BEGIN | Kind.SCOPE_END
            | Kind.SKIP | Kind.GRID_SIGNAL | Kind.CP_ASYNC | Kind.TCGEN05_MMA | Kind.TCGEN05_COPY
            | Kind.TCGEN05_COMMIT | Kind.LOAD_TMEM | Kind.STORE_TMEM
        ):  # fmt: skip
            return SpanKind.ISSUE
        case (
            Kind.WAIT | Kind.WAIT_STORE | Kind.WGMMA_WAIT | Kind.MEET | Kind.AWAIT | Kind.GRID_WAIT
            | Kind.WAIT_CP_ASYNC | Kind.WAIT_LOAD_TMEM | Kind.WAIT_STORE_TMEM
        ):  # fmt: skip
            return SpanKind.WAIT
        case Kind.READ | Kind.WRITE | Kind.ACC_INIT | Kind.ACC_READ | Kind.ACC_WRITE | Kind.TEST:
            return SpanKind.ACCESS
        case Kind.COMPUTE | Kind.OPAQUE:
            return SpanKind.COMPUTE
        case _:
            assert_never(kind)
