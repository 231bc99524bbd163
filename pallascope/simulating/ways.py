"""Ways: which way is taken at a branch that data choose, as a program has the ops of all.

The model. Kernels branch on data to skip work that data seldom need. So of the ways that do
something the shortest is the usual one, and the longest is taken at the fraction `slow_ways` of a
thread's branches, evenly spread. A way is as long as its ops take of the units, one after another.
Ops of other ways become `Kind.SKIP`, which takes no time.

`slow_ways` is 0 by default. Source: attention's "optimistic" on normal data, where no step after a
block's first has to make a maximum (`tests/kernels/attention/test_optimistic.py`).

Not covered: which way data really choose; threads whose ways depend on each other.
"""

from dataclasses import replace

from pallascope.machine import Machine
from pallascope.program import Kind, Op, Program, Space
from pallascope.simulating.costs import Costs

#: The fraction of branches at which the way that takes longest is taken.
SLOW_WAYS = 0.0


def branches(program: Program) -> int:
    """How many branches that data choose its threads come to."""
    return sum(len({branch for op in ops for branch, _ in op.ways}) for ops in program.threads)


def decided(program: Program, machine: Machine, slow_ways: float) -> Program:
    """The program with one way of each branch that data choose; `slow_ways` is from 0 to 1."""
    if not any(op.ways for op in program.ops):
        return program
    costs = _Costs(program, machine)
    threads = (_decided(ops, costs, slow_ways) for ops in program.threads)
    return replace(program, threads=tuple(threads))


class _Costs(Costs):
    """The cycles that an op takes of a unit, whichever it is."""

    def __init__(self, program: Program, machine: Machine) -> None:
        super().__init__(program, machine)
        self._gmem = {buffer.id for buffer in program.buffers if buffer.space is Space.GMEM}
        self._rate = machine.sm_bytes_per_cycle

    def of(self, op: Op) -> float:
        if op.kind is Kind.COMPUTE:
            return self.arithmetic(op).alone
        if op.kind.is_product:
            return self.product(op)
        if any(region.buffer in self._gmem for region in op.reads + op.writes):
            return op.bytes / self._rate
        return self.access(op)


def _decided(ops: tuple[Op, ...], costs: _Costs, slow_ways: float) -> tuple[Op, ...]:
    """The ops of a thread, with one way of each branch."""
    times: dict[int, dict[int, float]] = {}
    for op in ops:
        for branch, way in op.ways:
            ways = times.setdefault(branch, {})
            ways[way] = ways.get(way, 0.0) + costs.of(op)
    taken = _taken(times, slow_ways)
    return tuple(
        op if all(taken[branch] == way for branch, way in op.ways) else replace(op, kind=Kind.SKIP)
        for op in ops
    )


def _taken(times: dict[int, dict[int, float]], slow_ways: float) -> dict[int, int]:
    """The way that each branch of a thread takes, from the cycles of each of its ways."""
    taken = dict[int, int]()
    for number, (branch, ways) in enumerate(times.items()):
        is_slow = int((number + 1) * slow_ways) > int(number * slow_ways)
        taken[branch] = (max if is_slow else min)(ways, key=lambda way: ways[way])
    return taken
