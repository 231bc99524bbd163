"""Accesses and barriers outside of their arrays: what `check` says, what a copy leaves out."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.checking.bounds import arriving, clipped
from pallascope.program import Buffer, Op, Program, Region
from tests.pallascope import kernels
from tests.pallascope.checking.boxes import elements
from tests.pallascope.kernels import like

X = like(64, 256)


def ring(slot=lambda i: lax.rem(i, 2), barrier=lambda i: lax.rem(i, 2)):
    """Four steps of load, wait and read, through two slots and two barriers at these indices."""

    def kernel(x, o, x_smem, produced):
        @pl.loop(0, 4)
        def _(i):
            here, on = pl.ds(i * 64, 64), produced.at[barrier(i)]
            plgpu.copy_gmem_to_smem(x.at[:, here], x_smem.at[slot(i)], on)
            plgpu.barrier_wait(on)
            o[:, here] = x_smem[slot(i)]

    scratch = [plgpu.SMEM((2, 64, 64), jnp.float16), plgpu.Barrier(num_barriers=2)]
    return pallascope.trace(kernels.of(kernel, X, scratch_types=scratch), X)


def causes(report):
    assert {finding.kind for finding in report} <= {"out-of-bounds"}, str(report)
    return [finding.cause for finding in report]


def test_slots_and_barriers_that_a_ring_has():
    assert pallascope.check(ring()).ok


def test_a_slot_that_a_ring_has_not():
    """Only the index is found, not all that follows from it."""
    report = pallascope.check(ring(slot=lambda i: i))
    assert causes(report) == [
        "in step 2 the load of thread 0 writes `x_smem` at index 2 of axis 0, which has 2 (0 to 1):"
        " it overwrites what is not the array's.",
        "in step 2 thread 0 reads `x_smem` at index 2 of axis 0, which has 2 (0 to 1): it gets what"
        " is not the array's.",
    ]
    assert [(finding.where, finding.count) for finding in report] == [("x_smem", 2)] * 2
    assert report[0].remedy == (
        "Take the index modulo 2, as lax.rem does of what is not negative, or give the axis more."
    )
    assert "<strong>out-of-bounds</strong>: in step 2 the load" in report._repr_html_()


def test_what_is_outside_is_neither_lost_nor_uninitialized():
    def kernel(x, o, x_smem):
        @pl.loop(0, 3)
        def _(i):
            x_smem[i] = x[...]

        o[...] = x_smem[0] + x_smem[1] + x_smem[lax.axis_index("i") + 3]

    x = like(64, 64)
    options = dict(scratch_types=[plgpu.SMEM((2, 64, 64), jnp.float16)], grid=(1,))
    made = kernels.of(kernel, x, grid_names=("i",), **options)
    found = causes(pallascope.check(pallascope.trace(made, x)))
    assert [cause.partition(" of axis")[0] for cause in found] == [
        "in step 2 thread 0 writes `x_smem` at index 2",
        "thread 0 reads `x_smem` at index 3",
    ]


def test_a_slot_before_the_first():
    report = pallascope.check(ring(slot=lambda i: lax.rem(i, 2) - 1))
    assert "in step 0 thread 0 reads `x_smem` at index -1 of axis 0" in causes(report)[1]


def test_a_barrier_that_an_array_has_not():
    program = ring(barrier=lambda i: i)
    report = pallascope.check(program)
    loads, waits = causes(report)
    assert loads == (
        "in step 2 the load of thread 0 arrives on `produced` at index 2, but the array has 2"
        " barriers (0 to 1): it takes for a barrier what is none, or another's."
    )
    assert waits.startswith("in step 2 thread 0 waits on `produced` at index 2, but")
    assert report[0].remedy == (
        "Take the index modulo 2, as lax.rem does of what is not negative, or give the array more"
        " barriers."
    )
    assert not pallascope.simulate(program, pallascope.H100).stuck


def test_a_barrier_alone_that_is_indexed():
    before = pallascope.check(ring(barrier=lambda i: i - 4))
    assert "at index -4, but" in causes(before)[0]


def ragged(kernel, block, **options):
    """A kernel of two blocks, 64 rows each, on 100."""
    x = like(100, 64)
    options |= dict(grid=(2,), grid_names=("i",))
    return pallascope.check(pallascope.trace(kernels.of(kernel, x, **options), x, block=block))


def rows():
    return pl.ds(lax.axis_index("i") * 64, 64)


def test_ordinary_accesses_of_gmem_are_not_clipped():
    def kernel(x, o):
        o[rows()] = x[rows()]

    assert ragged(kernel, 0).ok
    report = ragged(kernel, 1)
    assert causes(report) == [
        "thread 0 reads `x` at indices 64 to 127 of axis 0, which has 100 (0 to 99): it gets what"
        " is not the array's.",
        "thread 0 writes `o` at indices 64 to 127 of axis 0, which has 100 (0 to 99): it overwrites"
        " what is not the array's.",
    ]
    assert report[0].remedy == (
        "Leave out what is not from 0 to 99, or copy through SMEM: a copy's engine leaves it out in"
        " GMEM."
    )


SMEM = plgpu.SMEM((64, 64), jnp.float16)


def test_copies_are_clipped_in_gmem():
    def kernel(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x.at[rows()], smem, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(smem, o.at[rows()])
        plgpu.wait_smem_to_gmem(0)

    assert ragged(kernel, 1, scratch_types=[SMEM, plgpu.Barrier()]).ok


@pytest.mark.parametrize("valid", [36, 35])
def test_of_a_tail_only_what_is_kept_has_to_be_written(valid):
    def kernel(x, o, smem):
        smem[pl.ds(0, valid)] = x[pl.ds(64, valid)]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o.at[rows()])
        plgpu.wait_smem_to_gmem(0)

    kinds = [finding.kind for finding in ragged(kernel, 1, scratch_types=[SMEM])]
    assert kinds == ([] if valid == 36 else ["uninitialized-read"])


@pytest.mark.parametrize("stored", [128, 100, 99])
def test_a_load_beyond_the_end_needs_only_what_is_there(stored):
    """The first 64 rows of o are written, and then some of the last 36 of them; zeros follow."""

    def kernel(x, o, smem, loaded):
        for first, count in ((0, 64), (64, min(stored, 100) - 64)):
            o[pl.ds(first, count)] = x[pl.ds(first, count)]
        plgpu.copy_gmem_to_smem(o.at[rows()], smem, loaded)
        plgpu.barrier_wait(loaded)
        o[pl.ds(0, 64)] = smem[...]

    found = ragged(kernel, 1, scratch_types=[SMEM, plgpu.Barrier()])
    assert ("uninitialized-read" in {finding.kind for finding in found}) == (stored < 100)


def test_what_a_clipped_copy_leaves_out_is_not_lost():
    """A kernel need not know of its tail."""

    def kernel(x, o, smem):
        for half in range(2):
            smem[pl.ds(half * 48, 16)] = jnp.zeros((16, 64), jnp.float16)
        smem[pl.ds(16, 32)] = x[pl.ds(16, 32)]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o.at[rows()])
        plgpu.wait_smem_to_gmem(0)

    assert ragged(kernel, 1, scratch_types=[SMEM]).ok


def test_a_concrete_argument_is_not_read_outside():
    def kernel(table, x, o):
        o[pl.ds(table[3], 64)] = x[pl.ds(table[3], 64)]

    made = lambda size: pallascope.trace(
        kernels.of(kernel), jnp.zeros(size, jnp.int32), like(256, 64)
    )
    assert pallascope.check(made(4)).ok
    report = pallascope.check(made(3))
    assert [finding.kind for finding in report] == ["out-of-bounds"]
    assert "reads `table` at index 3 of axis 0, which has 3 (0 to 2)" in report[0].cause


INTERVALS = st.tuples(st.integers(-3, 8), st.integers(1, 4)).map(lambda x: (x[0], x[0] + x[1]))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 2),
    target=st.tuples(INTERVALS, INTERVALS),
    is_squeezed=st.booleans(),
)
def test_what_of_a_store_comes_anywhere(shape, target, is_squeezed):
    """Element by element: what is stored where the array has no place does not."""
    gmem = Buffer(0, "o", "gmem", shape, "float16", 0, role="out")
    smem = Buffer(1, "s", "smem", (3, 4, 4), "float16", 0)
    sizes = [stop - start for start, stop in target]
    box = [(1, 2), *((0, size) for size in sizes)]
    if is_squeezed:
        box = [interval for interval, size in zip(box, [0, *sizes]) if size != 1]
    source, to = Region(1, tuple(box)), Region(0, target)
    op = Op("store", 0, (source,), (to,))
    program = Program("stores", ((op,),), (gmem, smem))
    kept = elements(clipped(op, to, gmem))
    assert kept == elements(target) & elements((0, n) for n in shape)
    numbers = np.arange(np.prod(sizes)).reshape(sizes)
    places = dict(zip(sorted(elements(target)), numbers.ravel()))
    there = dict(zip(sorted(elements(source.box)), numbers.ravel()))
    arrives = {there[element] for element in elements(arriving(op, source, program))}
    assert arrives == {places[element] for element in kept}


# Copies of what an array does not have.


def tiles(index, copy="load", blocks=4):
    """Loads or stores of tiles of 64 rows, at these indices of an array of 160 rows."""

    def kernel(x, o, x_smem, produced):
        @pl.loop(0, blocks)
        def _(i):
            rows = pl.ds(index(i) * 64, 64)
            if copy == "load":
                plgpu.copy_gmem_to_smem(x.at[rows], x_smem, produced)
                plgpu.barrier_wait(produced)
                o[pl.ds(0, 64)] = x_smem[...]
            else:
                plgpu.copy_smem_to_gmem(x_smem, o.at[rows])
                plgpu.wait_smem_to_gmem(0)

    rows = like(160, 64)
    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    return pallascope.trace(kernels.of(kernel, rows, scratch_types=scratch), rows)


def test_a_tile_may_reach_beyond_its_array():
    assert causes(pallascope.check(tiles(lambda i: i, blocks=3))) == []


def test_a_load_whose_index_leaves_the_array():
    (finding,) = pallascope.check(tiles(lambda i: i + 100))
    assert str(finding) == (
        "out-of-bounds: in step 0 the load of thread 0 reads `x` at indices 6400 to 6463 of axis 0,"
        " which has 160 (0 to 159): all of that is outside of the array, so it gets zeros only, and"
        " no error says so. Correct the index, or leave the copy out (pl.when); if zeros are meant,"
        " write them to SMEM."
    )
    assert finding.count == 4


@pytest.mark.parametrize(
    ("copy", "name", "what"), [("load", "x", "gets zeros only"), ("store", "o", "stores nothing")]
)
def test_a_number_of_steps_may_be_rounded_up(copy, name, what):
    """pipelib's own matrix product does so: the zeros of steps that are too many add nothing."""
    report = pallascope.check(tiles(lambda i: i, copy, blocks=5))
    assert not [finding for finding in report if finding.kind == "out-of-bounds"]
    line = next(note for note in report.notes if "behind the end" in note)
    assert line.endswith(
        f": this {copy} is of a tile behind the end of `{name}` and {what}, 2 times: right if a"
        " number of steps was rounded up."
    )


def test_a_tile_before_its_array():
    (cause,) = causes(pallascope.check(tiles(lambda i: i - 1)))
    assert "reads `x` at indices -64 to -1 of axis 0, which has 160 (0 to 159): all of" in cause


def test_a_store_beyond_its_array():
    found = [
        f for f in pallascope.check(tiles(lambda i: i + 3, "store")) if f.kind == "out-of-bounds"
    ]
    (finding,) = found
    assert finding.cause == (
        "in step 0 the store of thread 0 writes `o` at indices 192 to 255 of axis 0, which has 160"
        " (0 to 159): all of that is outside of the array, so it stores nothing, and no error says"
        " so."
    )
    assert finding.remedy == "Correct the index, or leave the copy out (pl.when)."


def test_a_prefetch_beyond_its_array_changes_nothing():
    buffer = Buffer(0, "x", "gmem", (160, 64), "float16", 20480, role="in")
    beyond = Region(0, ((192, 256), (0, 64)))
    for kind, number in (("prefetch", 0), ("load", 1)):
        program = Program("k", ((Op(kind, 0, (beyond,)),),), (buffer,))
        assert len(causes(pallascope.check(program))) == number
