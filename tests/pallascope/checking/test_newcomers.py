"""Kernels that the checker was not written with (`newcomers`): what must be found is found."""

import dataclasses
import itertools
import math
import re

import jax
import pytest

import pallascope
from pallascope.checking.grid import check_grid
from tests.pallascope.checking.newcomers import (
    ALL,
    NEWCOMERS,
    REFUSED,
    WHOLE,
    Newcomer,
)
from tests.pallascope.constructs import devices

_REFUSALS = (NotImplementedError, ValueError)


def _case(newcomer: Newcomer) -> object:
    marks = []
    if newcomer.jax > jax.__version_info__[:2]:
        needed = ".".join(map(str, newcomer.jax))
        marks.append(pytest.mark.skip(reason=f"needs JAX {needed}"))
    return pytest.param(newcomer, id=newcomer.name, marks=marks)


def reports_of(newcomer: Newcomer) -> list[pallascope.Report]:
    """What the checker says of each of its kernels, block by block if it asks for that."""
    function, *args = newcomer.make()
    found = []
    for call in range(newcomer.calls):
        options = dict(call=call) if newcomer.calls > 1 else {}
        if newcomer.blocks == WHOLE:
            options["whole_grid"] = True
        programs = [pallascope.trace(function, *args, **options)]
        size = programs[0].grid
        if newcomer.blocks == ALL and math.prod(size) > 1:
            programs = [
                pallascope.trace(function, *args, block=block, **options)
                for block in itertools.product(*map(range, size))
            ]
            found.append(check_grid(programs))
        found += map(pallascope.check, programs)
    return found


def verdict_of(newcomer: Newcomer) -> tuple[set[str], str]:
    """The kinds of what is found, and the reports' text; the kind of an error is `refused`."""
    try:
        reports = reports_of(newcomer)
    except _REFUSALS as error:
        if ".py:" not in str(error) and "Mosaic GPU kernels" not in str(error):
            raise  # not the trace's own
        return {REFUSED}, str(error)
    kinds = {str(finding.kind) for report in reports for finding in report}
    return kinds, "\n".join(map(str, reports))


@pytest.mark.both_jax
@pytest.mark.parametrize("newcomer", [_case(each) for each in NEWCOMERS])
def test_what_must_be_found_in_a_newcomer_is_found(newcomer):
    kinds, text = verdict_of(newcomer)
    if kinds == {REFUSED}:
        assert newcomer.refused and re.search(newcomer.refused, text), text
        return
    is_noted = newcomer.noted and not kinds and newcomer.noted in text
    assert is_noted or (newcomer.finds in kinds if newcomer.finds else not kinds), text
    assert newcomer.says in text, text


def turned(program: pallascope.Program) -> pallascope.Program:
    """The same program, whose blocks have their numbers the other way round."""
    blocks, threads = program.blocks, len(program.threads)
    order = [t for block in reversed(range(blocks)) for t in program.threads_of(block)]
    at = {old: new for new, old in enumerate(order)}
    assert len(order) == threads, "no warps"

    def moved(item, **more):
        thread = None if item.thread is None else at[item.thread]
        return dataclasses.replace(item, thread=thread, **more)

    def of_block(item):
        block = None if item.block is None else blocks - 1 - item.block
        return moved(item, block=block)

    def of_op(op):
        return moved(op, members=tuple(sorted(at[member] for member in op.members)))

    return dataclasses.replace(
        program,
        threads=tuple(tuple(map(of_op, program.threads[old])) for old in order),
        buffers=tuple(map(of_block, program.buffers)),
        barriers=tuple(map(of_block, program.barriers)),
        registers=tuple(program.registers[old] for old in order) if program.registers else (),
    )


CLUSTERS = [each for each in NEWCOMERS if each.name.startswith(("peers/", "persistent/"))]


@pytest.mark.parametrize("newcomer", CLUSTERS, ids=[each.name for each in CLUSTERS])
def test_a_verdict_does_not_depend_on_the_blocks_numbers(newcomer):
    function, *args = newcomer.make()
    program = pallascope.trace(function, *args)
    kinds = [{each.kind for each in pallascope.check(p)} for p in (program, turned(program))]
    assert kinds[0] == kinds[1]


def test_500_blocks_that_wait_in_turns():
    """In seconds: time grew with the cube of the blocks."""
    assert pallascope.check(devices.in_turns(500)).ok


def test_names_are_unique():
    assert len({newcomer.name for newcomer in NEWCOMERS}) == len(NEWCOMERS)
