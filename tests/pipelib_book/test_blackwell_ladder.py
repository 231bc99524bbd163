"""The rungs of Blackwell's ladder: checked in all orders, interpreted, lowered, simulated."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import pytest

import pallascope
from pipelib_book import blackwell, blackwell_ladder, relative_error
from pipelib_book.blackwell_ladder import (
    ENDLESS_L2,
    LIBRARIES,
    PEAK,
    RUNGS,
    SHAPE,
    Tile,
    by_rows,
    first_wave,
    in_strips,
    least_rate,
    operands,
    predicted,
    share,
)

SMALL = Tile(n=128, slots=2, pairs=2)
APART, PAIRED, PERSISTENT = RUNGS[:3], RUNGS[3:], RUNGS[4:]
by_name = functools.partial(pytest.mark.parametrize, "rung", ids=lambda rung: rung.name)


def program(rung, tile=SMALL, m=512, n=384, k=256, **options):
    kernel = functools.partial(rung.kernel, tile=tile)
    return pallascope.trace(kernel, *operands(m, n, k), **options)


def kinds(rung, kind, **options):
    return [op for ops in program(rung, **options).threads for op in ops if op.kind == kind]


@by_name(argvalues=RUNGS)
def test_rungs(rung):
    """Numbered, with one sentence each, and nothing to find."""
    assert RUNGS[rung.number] is rung
    assert rung.idea.endswith(".") and rung.idea.count(".") == 1
    assert list(pallascope.check(program(rung))) == []
    assert list(pallascope.check(program(rung), strict=True)) == []


@by_name(argvalues=PERSISTENT)
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_pair_makes_any_number_of_tiles(rung, tiles, steps):
    """Also an odd number, after which a barrier's parity is the other one."""
    found = program(rung, SMALL._replace(pairs=1), 256, 128 * tiles, 64 * steps)
    assert list(pallascope.check(found, strict=True)) == []


@by_name(argvalues=PERSISTENT)
def test_all_pairs_are_right(rung):
    """Of six tiles for four pairs, two pairs make two."""
    counts = []
    for pair in range(4):
        found = program(rung, SMALL._replace(pairs=4), block=(pair,))
        assert list(pallascope.check(found, strict=True)) == []
        counts.append(sum(op.kind == "tcgen05_mma" for op in found.ops))
    assert counts == [8, 8, 4, 4]
    whole = program(rung, SMALL._replace(pairs=4), whole_grid=True)
    assert list(pallascope.check(whole)) == []


@by_name(argvalues=APART)
def test_what_has_no_pairs_is_right_in_the_interpreter(rung):
    key_a, key_b = jax.random.split(jax.random.key(0))
    a = jax.random.normal(key_a, (256, 256), jnp.float16)
    b = jax.random.normal(key_b, (256, 256), jnp.float16)
    out = blackwell.run(functools.partial(rung.kernel, tile=SMALL), a, b)
    expected = jnp.dot(a, b, preferred_element_type=jnp.float32)
    assert out.dtype == a.dtype
    assert relative_error(out, expected) < 1e-3


@by_name(argvalues=RUNGS)
def test_they_are_lowered(rung):
    """With their own tiles; only a pair's kernels have products of two blocks."""
    kernel = functools.partial(rung.kernel, tile=rung.tile)
    names = blackwell.instructions(kernel, *operands(512, 512, 512))
    assert "`tcgen05.mma`" in names and ("cg2" in names) == (rung in PAIRED)


@by_name(argvalues=PAIRED)
def test_a_pair_writes_its_output_once(rung):
    """The interpreter cannot say so: all parts of the output, each by one block."""
    stored = [
        piece
        for pair in range(2 if rung in PERSISTENT else 1)
        for op in kinds(rung, "store", m=256, n=256, k=128, block=None if pair == 0 else (pair,))
        for piece in [str(op.writes[0].box)]
    ]
    assert len(stored) == len({*stored})


def without(rung, *lines):
    """A rung whose source lacks these lines."""
    source = inspect.getsource(rung.kernel)
    for line in lines:
        assert source.count(line) == 1, line
        source = source.replace(line, "pass")
    names = dict(vars(blackwell_ladder))
    exec(source, names)
    return rung._replace(kernel=names[rung.kernel.__name__])


@pytest.mark.parametrize(
    ("number", "line", "kind"),
    [
        (3, "plgpu.barrier_wait(finished)", "barrier-misuse"),
        (4, "pl.when(rank == 0)(lambda: plgpu.barrier_wait(drained))", "race"),
        (4, "plgpu.wait_load_tmem()", "race"),
        (5, "pl.when(is_used_again)(lambda: plgpu.barrier_wait(drained.at[half]))", "race"),
        (5, "plgpu.barrier_wait(finished.at[half])", "race"),
        (5, "plgpu.wait_load_tmem()", "race"),
        (5, "pl.when(number >= 0)(functools.partial(plgpu.barrier_wait, last))", "barrier-misuse"),
    ],
)
def test_each_wait_is_needed(number, line, kind):
    found = pallascope.check(program(without(RUNGS[number], line), n=768))
    assert kind in {str(finding.kind) for finding in found}


def test_an_order_visits_each_tile_once():
    tiles = 3, 4
    visited = [tuple(map(int, in_strips(index, tiles, Tile(width=2)))) for index in range(12)]
    assert {*visited} == {*itertools.product(range(3), range(4))}
    assert visited[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_strips_need_fewer_rows_and_columns():
    """Of 74 tiles in 16 rows and 32 columns; `r * c` of 74 at least has a sum of 18 at least."""
    assert first_wave(by_rows, Tile()) == (3, 32)
    assert first_wave(in_strips, Tile(width=8)) == (8, 10)


def test_what_was_published():
    """It rises from rung to rung; so does what is predicted where L2 limits nothing."""
    published = [rung.published for rung in RUNGS]
    assert published == sorted(published) and LIBRARIES["cuBLAS"] == published[5]
    m, n, k = SHAPE
    assert share(1e6 * 2 * m * n * k / PEAK) == pytest.approx(1.0)
    model = pallascope.B200
    assert model.sms * dict(model.tcgen05_flops_per_cycle)["float16"] * model.clock_hz == (
        pytest.approx(PEAK)
    )


def test_what_is_predicted():
    """L2, whose rate is assumed, holds up rungs 0 to 2 equally, and so rungs 4 to 6."""
    held = [predicted(rung) for rung in RUNGS]
    assert max(held[:3]) - min(held[:3]) < 0.01 and max(held[4:]) - min(held[4:]) < 0.01
    assert held[2] < held[3] < held[4]
    free = [predicted(rung, ENDLESS_L2) for rung in RUNGS]
    assert free[:6] == sorted(free[:6]) and free[6] == pytest.approx(free[5], abs=0.01)
    assert all(one > rung.published for one, rung in zip(free, RUNGS, strict=True))


def test_the_assumed_rate_of_l2_is_too_low():
    """Sums of one block are 128 x 512 at most, so the published time asks for more than it has."""
    least = least_rate(RUNGS[2], 128, 512)
    assert least > pallascope.B200.l2_bytes_per_second
    assert least_rate(RUNGS[6], 256, 256) == pytest.approx(least, rel=0.05)


@by_name(argvalues=RUNGS)
def test_a_rung_s_own_tiles_fit(rung):
    assert list(pallascope.check(program(rung, rung.tile, 512, 512, 512), strict=True)) == []
