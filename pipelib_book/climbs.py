"""`climb`: a rung of the matmul ladder, written out in a chapter, beside the one that was measured.

The model. The record has times of `pipelib.kernels.matmul`, with a configuration for each rung of
`matmul_ladder`. The chapter shows each rung as one short kernel of its own. Both are traced, and
`difference` compares what they do: each Pallas thread must do the same operations in one order,
with the same bytes, in the same phases. Then the record's times are times of the kernel that is
shown. What does not count: names, source lines, and where memory and barriers are allocated.

Not covered: the order of tiles beyond those of one block, and what the compiler makes of a kernel.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import pallascope
from pallascope.drawing.player import Player, Setting
from pallascope.program import Kind, Program
from pallascope.timeline import Timeline
from pipelib import kernels
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import ladder, results
from pipelib_book.notebook import say

Kernel = Callable[..., Any]

_ALLOCATIONS = Kind.SCOPE_BEGIN, Kind.SCOPE_END


def factors(k: int = 512, m: int = 3072, n: int = 2816) -> tuple[Any, Any]:
    """The shapes of two factors; by default each block of a persistent rung makes two tiles.

    Example:
      >>> climbs.factors(k=64)[1].shape
      (64, 2816)
    """
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    return a, b


def difference(mine: Kernel, theirs: Kernel) -> str:
    """How two kernels differ in what their threads do, in a sentence; empty if they do not.

    Example:
      >>> rungs = [functools.partial(kernels.matmul, config=rung.config) for rung in RUNGS]
      >>> climbs.difference(rungs[0], rungs[0])
      ''
      >>> climbs.difference(rungs[0], rungs[1])
      'Thread 0 does something else in operation 2: ...'
    """
    here, there = (_work(pallascope.trace(kernel, *factors())) for kernel in (mine, theirs))
    if len(here) != len(there):
        return f"There are {len(here)} threads, and {len(there)} in the other kernel."
    for thread, pair in enumerate(zip(here, there)):
        for number, (left, right) in enumerate(zip(*pair)):
            if left != right:
                what = f"{left}, not {right}"
                return f"Thread {thread} does something else in operation {number}: {what}."
        if len(pair[0]) != len(pair[1]):
            return f"Thread {thread} has {len(pair[0])} operations, not {len(pair[1])}."
    return ""


def _work(program: Program) -> list[list[tuple[Any, ...]]]:
    """What each thread does, without allocations."""
    of = lambda op: (
        str(op.kind),
        op.bytes,
        op.flops,
        op.phase,
        len(op.collective),
        op.pending,
        op.read_only,
    )
    return [[of(op) for op in ops if op.kind not in _ALLOCATIONS] for ops in program.threads]


def core_busy(timeline: Timeline) -> float:
    """For which part of a whole run the tensor core is busy; of several, the busiest.

    Example:
      >>> program = pallascope.trace(softmax, jnp.ones((4, 128)))
      >>> climbs.core_busy(pallascope.simulate(program, pallascope.H200))
      0.0
    """
    uses = timeline.uses(0)
    return max((use.busy for use in uses if use.lane.endswith("tensor core")), default=0.0)


def predicted_table(rungs: Mapping[int, Kernel], groups: Sequence[ladder.Group]) -> str:
    """Rates of rungs by `pallascope.predict`, and which part of the measured rates they are.

    Args:
      rungs: the chapter's kernels by number.
      groups: the products, and what was measured of them.

    Example:
      >>> rungs = {0: functools.partial(kernels.matmul, config=RUNGS[0].config)}
      >>> print(climbs.predicted_table(rungs, ladder.groups("ladder")[:1]))
      | rung | ... TFLOP/s | of measured |
      ...
    """
    head = ["rung"]
    for group in groups:
        head += [f"{group.shape}, TFLOP/s", "of measured"]
    rows = [[str(number)] for number in rungs]
    for row, (number, rung) in zip(rows, rungs.items()):
        for group in groups:
            m, n, k = (group.problem[axis] for axis in "mnk")
            (launch,) = pallascope.predict(rung, *factors(k, m, n)).launches
            predicted = group.flops * launch.clock_hz / launch.cycles
            measured = group.rate(f"rung {number}")
            row += [f"{predicted / 1e12:.0f}", f"{predicted / measured:.0%}" if measured else "-"]
    return results.table(head, rows, words=())


def climb(number: int, rungs: Mapping[int, Kernel], found: Sequence[ladder.Group]) -> Player:
    """Says what a rung measured, and plays it after the rung before.

    Args:
      number: which rung.
      rungs: the chapter's kernels by number, this one and the one before at least.
      found: groups of the record, for the rung's row.

    Raises:
      ValueError: the chapter's kernel does not do what the measured one does.

    Example:
      >>> rungs = {0: functools.partial(kernels.matmul, config=RUNGS[0].config)}
      >>> climbs.climb(0, rungs, ladder.groups("ladder"))
      | kernel | ...
      <Player of ..., ... bytes>
    """
    measured = functools.partial(kernels.matmul, config=RUNGS[number].config)
    if apart := difference(rungs[number], measured):
        raise ValueError(f"climb: rung {number} is not the kernel that was measured. {apart}")
    say(ladder.rung_row(number, [*found]))
    shown = range(max(0, number - 1), number + 1)
    title = f"Rung{'s' if number else ''} {' and '.join(map(str, shown))}"
    return pallascope.player([_setting(each, rungs[each], title) for each in shown])


def _setting(number: int, kernel: Kernel, title: str) -> Setting:
    """A rung as a setting of a player."""
    program = pallascope.trace(kernel, *factors()).renamed(f"rung {number}")
    report = pallascope.check(program)
    timeline = pallascope.simulate(program.renamed(title), pallascope.H200)
    outcome = f"{RUNGS[number].name}: tensor core busy {core_busy(timeline):.0%} of the whole"
    return Setting({"rung": number}, timeline, outcome, report.ok, f"pallascope.check: {report}")
