"""Advice: that it finds what made a kernel slow, and advises nothing that makes one wrong."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.__main__ import main
from pallascope.advising import advise
from pallascope.deepening import deepened, depths
from pallascope.editing import Move, Relax, edited, site
from pallascope.playing import bare
from pallascope.program import Kind
from pallascope.values import sources_of
from pipelib.kernels import MatmulConfig, attention, matmul
from pipelib_book import gallery
from pipelib_book.laboratory.parts import STEPS, drain, launch, span, tile_slots, two_threads
from pipelib_book.laboratory.stores import through
from pipelib_book.laboratory.subjects import subjects
from tests.emitters import contract
from tests.pallascope.schema import validate
from tests.pallascope.slowed import SLOWED

TILES = jax.ShapeDtypeStruct((64 * STEPS, 64), jnp.float32)
QUIET = {"progress": False}


@functools.cache
def advice(number):
    program, line = SLOWED[number].made()
    return program, line, advise(program, **QUIET)


def rank(number):
    """Which of the hints is about the cause, from 0; None if none is."""
    _, line, found = advice(number)
    return next((i for i, hint in enumerate(found.hints) if hint.line == line), None)


def test_the_cause_is_among_the_first_three_hints_for_eighteen_of_twenty():
    ranks = {SLOWED[number].name: rank(number) for number in range(len(SLOWED))}
    missed = {name for name, place in ranks.items() if place is None or place > 2}
    assert len(SLOWED) == 20 and missed <= {"sum, 4 slots", "turns"}, ranks


@pytest.mark.parametrize("number", range(len(SLOWED)), ids=[each.name for each in SLOWED])
def test_no_hint_makes_a_kernel_wrong(number):
    program, _, found = advice(number)
    assert found.hints
    for hint in found.hints:
        if not hint.edits:
            continue
        after = edited(program, hint.edits)
        assert pallascope.check(after, strict=True).ok, hint
        assert sources_of(after) == sources_of(program), hint
        assert pallascope.simulate(after).cycles == hint.cycles < found.cycles


def test_what_a_hint_says_of_going_further_is_found_there():
    program, line, found = advice(7)
    hint = found.hints[0]
    assert hint.line == line and "the check finds race at stores.py" in hint.further
    (edit,) = hint.edits
    further = edited(program, [dataclasses.replace(edit, by=edit.by + 1)])
    assert {finding.kind for finding in pallascope.check(further)} == {"race"}


OPERANDS = (
    jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16),
    jax.ShapeDtypeStruct((2048, 512), jnp.bfloat16),
)


def test_a_kernel_that_is_as_fast_as_its_edits_gets_no_hint():
    q = jax.ShapeDtypeStruct((1, 1024, 8, 128), jnp.bfloat16)
    found = advise(attention, q, q, q, **QUIET)
    assert not found.hints and found.left == 0
    assert f"No edit of {found.tried} that is right gains 1%." in str(found)
    assert f"Bound: {found.bound}." in str(found)


def test_what_stays_right_only_with_moved_arrivals_is_found():
    """A product in flight, whose operands are then released a step later."""
    config = MatmulConfig(64, 64, slots=6, compute_threads=1, delay_release=0, form="specialized")
    hint = advise(functools.partial(matmul, config=config), *OPERANDS, **QUIET).hints[0]
    assert [type(edit) for edit in hint.edits] == [Relax, Move]
    assert "leave 1 unfinished, and move the arrival on `consumed`" in hint.text
    later = dataclasses.replace(config, delay_release=1)
    after = pallascope.trace(functools.partial(matmul, config=later), *OPERANDS)
    assert pallascope.simulate(after).cycles == pytest.approx(hint.cycles, rel=0.02)


def through_later(x, slots):
    """`through` as its first hint has it: the store is waited for before the next is written."""

    def kernel(x_gmem, o_gmem, tiles, out, full, free):
        def compute():
            def step(k, _):
                slot = lax.rem(k, slots)
                plgpu.barrier_wait(full.at[slot])
                doubled = 2.0 * tiles[slot]
                plgpu.wait_smem_to_gmem(0)
                out[0] = doubled
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out.at[0], o_gmem.at[span(k)])
                plgpu.barrier_arrive(free.at[slot])

            lax.fori_loop(0, STEPS, step, None)
            plgpu.wait_smem_to_gmem(0)

        def load():
            def step(k, _):
                slot = lax.rem(k, slots)
                pl.when(k >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                plgpu.copy_gmem_to_smem(x_gmem.at[span(k)], tiles.at[slot], full.at[slot])

            lax.fori_loop(0, STEPS, step, None)
            drain(free, STEPS, slots)

        two_threads(compute, load)

    scratch = [
        tile_slots(slots), tile_slots(1), plgpu.Barrier(num_barriers=slots),
        plgpu.Barrier(num_barriers=slots),
    ]  # fmt: skip
    options = {"num_threads": 2, "thread_name": "thread", "scratch_types": scratch}
    return launch(kernel, x.shape, x, **options)


def test_a_hint_that_is_followed_in_the_source_is_right_and_as_fast_as_it_says():
    before, after = functools.partial(through, slots=2), functools.partial(through_later, slots=2)
    hint = advise(before, TILES, **QUIET).hints[0]
    assert hint.text.startswith("Move wait_smem_to_gmem(0)")
    assert advise(after, TILES, **QUIET).cycles == pytest.approx(hint.cycles, rel=0.02)
    x = jnp.asarray(np.random.default_rng(0).standard_normal(TILES.shape), jnp.float32)
    with contract.interpreted():
        np.testing.assert_array_equal(after(x), 2.0 * x)


#: For the command, which takes a function of arrays.
in_two_slots = functools.partial(through_later, slots=2)


def ops(program):
    return [
        [bare(op) for op in thread if op.kind not in (Kind.SCOPE_BEGIN, Kind.SCOPE_END)]
        for thread in program.threads
    ]


@pytest.mark.parametrize(
    "name", ["ring", "two-readers", "product", "through", "pair", "gated", "squares", "link"]
)
def test_a_ring_with_a_slot_more_is_the_kernel_with_a_slot_more(name):
    subject = next(each for each in subjects() if each.name == name)
    for slots in (1, 2, 3):
        if {slots, slots + 1} <= {*subject.slots}:
            program, deeper = subject.trace(slots), subject.trace(slots + 1)
            assert depths(program) == [slots]
            made = deepened(program, slots)
            assert ops(made) == ops(deeper) and made.smem_bytes == deeper.smem_bytes
            assert made.buffers == deeper.buffers and made.barriers == deeper.barriers


def test_slots_that_are_not_taken_in_order_are_left_as_they_are():
    program = next(each for each in subjects() if each.name == "ring").trace(2)
    loads = [i for i, op in enumerate(program.threads[1]) if op.kind is Kind.LOAD]
    swapped = edited(program, [Move(1, (loads[0],), 1)])
    assert deepened(swapped, 2) is None


def test_an_access_that_reads_an_older_value_is_told_from_one_that_reads_the_same():
    """Both orders are free of races, and the second stores what was there before."""
    program = next(each for each in subjects() if each.name == "stores").trace(1)
    stores = [i for i, op in enumerate(program.threads[0]) if op.kind is Kind.STORE]
    late = edited(program, [Move(0, site(program, 0, stores[0]), -2)])
    assert sources_of(program) == sources_of(edited(program, []))
    assert sources_of(late) != sources_of(program)


def test_what_has_a_finding_is_refused():
    faulty = gallery.GALLERY["missing-commit"].program(fixed=False)
    with pytest.raises(ValueError, match=r"has 1 finding as it is, so no edit of it can be told"):
        advise(faulty, **QUIET)


def test_no_time_is_refused_and_too_little_is_told():
    with pytest.raises(ValueError, match=r"seconds=0 is not above 0, so no edit could be tried"):
        advise(through, TILES, seconds=0, **QUIET)
    program = SLOWED[0].made()[0]
    found = advise(program, seconds=1e-9, **QUIET)
    assert found.tried == 0 and f"for want of time: {found.left} edits." in str(found)


def test_progress_is_told_for_each_edit():
    lines = []
    found = advise(SLOWED[0].made()[0], progress=lines.append)
    assert lines[0].startswith("trying 1/") and len(lines) <= found.tried


def test_only_what_waits_for_its_thread_waits_for_less():
    program = SLOWED[7].made()[0]
    wait = next(i for i, op in enumerate(program.threads[0]) if op.kind is Kind.WAIT)
    with pytest.raises(ValueError, match="wait does not wait for what its thread started"):
        edited(program, [Relax(0, (wait,))])
    with pytest.raises(ValueError, match="wait does not wait for stores"):
        edited(program, [Relax(0, (wait,), read_only=True)])


def test_the_command_prints_the_advice_and_its_json(capsys):
    words = ["advise", "tests.pallascope.test_advising:in_two_slots", "f32[384,64]"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].endswith("cycles a block.") and "Bound: " in said
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"format", "cycles", "hints"} <= {*document}
    validate(document, "advise")
