"""`sources_of`: whose writes each access of a program reads, so that two orders can be compared.

The model. In a program in which `check` finds nothing, an access comes after the same writes under
every schedule, so one order of its ops says what each reads: of each write that overlaps it, the
last. Two programs of the same ops mean the same if each access reads what the same writes left, and
if the same writes are the last to each output. An op is named by its thread, kind, source line,
scope and step, and by its number among equals; not by its place in memory, which may be another
slot. Additions may come in any order, and overwrite nothing. Not covered: values in registers,
whose order an edit keeps (`editing`). Source: this project's own.
"""

from collections import Counter, defaultdict

from pallascope.checking.cells import Box, overlap
from pallascope.checking.semaphores import orders
from pallascope.program import Kind, Op, Program, Role

#: An op's name, and its number among equals.
Named = tuple[int, Kind, str | None, str, tuple[int, ...], int]


def sources_of(program: Program) -> dict[Named | str, frozenset[Named]]:
    """For each op that reads, and each output by its name, the ops whose writes it reads."""
    last: defaultdict[int, list[tuple[Box, Named]]] = defaultdict(list)
    found: dict[Named | str, frozenset[Named]] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for event in orders(program):
        op = event.op
        name = _named(op, seen)
        if op.reads:
            found[name] = frozenset(
                writer
                for region in op.reads
                for box, writer in last[region.buffer]
                if overlap(box, region.box)
            )
        for region in op.writes:
            kept = last[region.buffer]
            if not op.combines:
                kept = [each for each in kept if not _within(each[0], region.box)]
            last[region.buffer] = [*kept, (region.box, name)]
    for buffer in program.buffers:
        if buffer.role in (Role.OUT, Role.IN_OUT):
            found[buffer.name] = frozenset(writer for _, writer in last[buffer.id])
    return found


def _named(op: Op, seen: Counter[tuple[object, ...]]) -> Named:
    key = op.thread, op.kind, op.line, op.scope, op.step
    seen[key] += 1
    return *key, seen[key]


def _within(box: Box, other: Box) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(box, other))
