"""`expect_whole`: refuses a program, read from a file, whose parts do not fit together.

The model. A file may have been changed since it was saved. Each field must have the type that its
class declares. An op must belong to the thread it stands in, and what it names by a number (a
barrier, a buffer, a thread) must be there. Not covered: whether a kernel could do what the program
does.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator
from typing import Any

from pallascope.program import Kind, Op, Program, Region

#: More barriers than the SMEM of a block has room for.
MOST_BARRIERS = 2**16


def expect_whole(program: Program) -> None:
    """Expects that the parts of a program fit together.

    Raises:
      ValueError: they do not; the first that does not is named.
    """
    for fault in _faults(program):
        raise ValueError(
            f"This file is no program that a kernel gives: {fault}. It was changed since, so"
            " nothing is read from it: trace the kernel again and save that."
        )


def _faults(program: Program) -> Iterator[str]:
    """What does not fit, in words without an end."""
    yield from _odd(program, Program, "the program")
    if not program.threads or program.blocks < 1 or len(program.threads) % program.blocks:
        yield f"it has {len(program.threads)} threads in {program.blocks} blocks"
    for name in ("barriers", "buffers"):
        for place, part in enumerate(getattr(program, name)):
            if part.id != place:
                yield f"number {place} of its {name} has the id {part.id}"
    for barrier in program.barriers:
        if not 0 < barrier.count <= MOST_BARRIERS or barrier.arrivals < 1:
            each = f"{barrier.count} barriers of {barrier.arrivals} arrivals"
            yield f"{barrier.name} is an array of {each}"
    for number, ops in enumerate(program.threads):
        begun = set[int | None]()
        for place, op in enumerate(ops):
            begun |= {op.scope_id} if op.kind is Kind.SCOPE_BEGIN else set()
            for fault in _faults_of(program, number, op):
                yield f"op {place} of thread {number}, {op.kind}, {fault}"
            if op.kind is Kind.SCOPE_END and op.scope_id not in begun:
                yield f"op {place} of thread {number} ends scope {op.scope_id}, which never began"


def _faults_of(program: Program, thread: int, op: Op) -> Iterator[str]:
    """What an op of a thread names that is not there."""
    if op.thread != thread:
        yield f"says that it is of thread {op.thread}"
    barriers = [*op.peers, *([] if op.barrier is None else [op.barrier])]
    if missing := [each for each in barriers if not 0 <= each < len(program.barriers)]:
        yield f"names barrier {missing[0]} of {len(program.barriers)}"
    elif op.barrier is not None and not 0 <= op.index < program.barriers[op.barrier].count:
        array = program.barriers[op.barrier]
        yield f"names number {op.index} of {array.name}, an array of {array.count}"
    if others := [each for each in op.members if not 0 <= each < len(program.threads)]:
        yield f"meets thread {others[0]} of {len(program.threads)}"
    for region in (*op.reads, *op.writes, *op.whole):
        yield from _misplaced(program, region)


def _misplaced(program: Program, region: Region) -> Iterator[str]:
    """What is wrong with where a region lies."""
    if not 0 <= region.buffer < len(program.buffers):
        yield f"names buffer {region.buffer} of {len(program.buffers)}"
    elif len(region.box) != len(program.buffers[region.buffer].shape):
        buffer = program.buffers[region.buffer]
        yield f"takes {len(region.box)} axes of {buffer.name}, which has {len(buffer.shape)}"


def _odd(value: Any, hint: Any, name: str) -> Iterator[str]:
    """Where a value is not of the type that is declared for it: the part's name, what it is."""
    args = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        if all([*_odd(value, each, name)] for each in args):
            yield f"{name} is {value!r:.40}"
    elif typing.get_origin(hint) is tuple:
        if not isinstance(value, tuple) or (args[-1] is not ... and len(value) != len(args)):
            yield f"{name} is {value!r:.40}"
            return
        for place, part in enumerate(value):
            each = args[0] if args[-1] is ... else args[place]
            yield from _odd(part, each, f"number {place} of {name}")
    elif dataclasses.is_dataclass(hint):
        for field, part in _types_of(hint).items():
            yield from _odd(getattr(value, field), part, f"`{field}` of {name}")
    elif type(value) is not hint and not (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        yield f"{name} is {value!r:.40}"


def _types_of(cls: Any) -> dict[str, Any]:
    """The declared types of a dataclass's fields, looked up once."""
    if cls not in _TYPES:
        _TYPES[cls] = typing.get_type_hints(cls)
    return _TYPES[cls]


_TYPES: dict[Any, dict[str, Any]] = {}
