"""Twenty kernels that were made slower on purpose, each by one cause that is known.

The model. `SLOWED` starts from kernels of the laboratory and of pipelib, and takes a slot away,
moves a line, or has a wait wait for more. So what is to be advised is the opposite, at the same
line: a `Slowed` names it. Each is right: an author would see nothing but the clock.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

import pallascope
from pallascope.editing import Move, edited, site
from pallascope.program import Kind, Program
from pipelib.kernels import matmul
from pipelib_book.laboratory.subjects import subjects

Slower = Callable[[Program], tuple[Program, str]]


@dataclass(frozen=True)
class Slowed:
    """A kernel by its name, traced, and what makes it slower and says which line the cause is."""

    name: str
    trace: Callable[[], Program]
    slower: Slower

    def made(self):
        """The slower program, and the line of the cause; empty for a slot."""
        return self.slower(self.trace())


def _subject(name, slots=None):
    """The program of a subject of the laboratory, in so many slots."""
    subject = next(each for each in subjects() if each.name == name)
    return subject.trace() if slots is None else subject.trace(slots)


def _as_it_is(kind, barrier="", pending=None):
    """Nothing more is needed: the kernel was written with this line too early or too late."""

    def slower(program):
        thread, index = _first(program, kind, barrier, pending=pending)
        return program, program.threads[thread][index].line

    return slower


def _in_fewer_slots(program):
    return program, ""


def _moved(kind, by, barrier="", thread=None):
    """The line of the first op of a kind, moved in every step."""

    def slower(program):
        where, index = _first(program, kind, barrier, thread)
        line = program.threads[where][index].line
        return edited(program, [Move(where, site(program, where, index), by)]), line

    return slower


def _tightened(kind):
    """Waits of a kind wait for all."""

    def slower(program):
        thread, index = _first(program, kind)
        ops = [
            dataclasses.replace(op, pending=0) if op.kind is kind else op
            for op in program.threads[thread]
        ]
        threads = [*program.threads]
        threads[thread] = tuple(ops)
        line = program.threads[thread][index].line
        return dataclasses.replace(program, threads=tuple(threads)), line

    return slower


def _first(program, kind, barrier="", thread=None, pending=None):
    return next(
        (number, index)
        for number, ops in enumerate(program.threads)
        if thread in (None, number)
        for index, op in enumerate(ops)
        if op.kind is kind and (not barrier or program.barriers[op.barrier].name == barrier)
        if pending in (None, op.pending)
    )


def _matmul():
    a = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
    return pallascope.trace(matmul, a, jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16))


def _of(name, slower, slots=None):
    called = name if slots is None else f"{name}, {slots} slots"
    return Slowed(called, functools.partial(_subject, name, slots), slower)


SLOWED = (
    _of("ring", _in_fewer_slots, 1),
    _of("two-readers", _in_fewer_slots, 2),
    _of("product", _in_fewer_slots, 2),
    _of("sum", _in_fewer_slots, 2),
    _of("gated", _in_fewer_slots, 1),
    _of("pair", _in_fewer_slots, 1),
    _of("link", _in_fewer_slots, 1),
    _of("through", _as_it_is(Kind.WAIT_STORE), 3),
    _of("gated", _as_it_is(Kind.WAIT_STORE), 3),
    _of("squares", _as_it_is(Kind.WGMMA_WAIT), 3),
    _of("sum", _as_it_is(Kind.WGMMA_WAIT, pending=0), 4),
    _of("queries", _as_it_is(Kind.ARRIVE, "q_out")),
    _of("ring", _moved(Kind.ARRIVE, 5), 3),
    _of("two-readers", _moved(Kind.ARRIVE, 5, thread=1), 3),
    _of("two-tiles", _moved(Kind.ARRIVE, 4), 3),
    _of("turns", _moved(Kind.ARRIVE, 6, "v_out")),
    _of("stored-apart", _moved(Kind.ARRIVE, 3, "free"), 2),
    _of("product", _moved(Kind.LOAD, 4), 4),
    _of("product", _tightened(Kind.WGMMA_WAIT), 4),
    Slowed("matmul", _matmul, _tightened(Kind.WGMMA_WAIT)),
)
