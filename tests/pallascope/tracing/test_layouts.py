"""Where memory has elements, which of them a lane moves, and how many wavefronts that takes."""

import itertools
from collections import defaultdict
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import fragmented_array, layout_inference
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from benchmarks import clocked
from pallascope.tracing import banks, layouts
from pallascope.tracing.layouts import Change
from tests.pallascope import kernels
from tests.pallascope.kernels import like

HALF, FULL, BYTE = jnp.float16, jnp.float32, jnp.float8_e4m3fn
WGMMA, TRANSPOSED = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA_TRANSPOSED


# The arithmetic of banks.


def counted(addresses, itemsize):
    """Wavefronts, lane by lane and byte by byte."""
    total = 0
    for access in addresses:
        at_once = min(len(access[0]), 16 // itemsize)
        for part in range(0, len(access[0]), at_once):
            lanes = 32 // max(1, at_once * itemsize // 4)
            for first in range(0, 32, lanes):
                words = defaultdict(set)
                for lane in access[first : first + lanes]:
                    for start in lane[part : part + at_once]:
                        for byte in range(start, start + itemsize):
                            words[byte // 4 % 32].add(byte // 4)
                total += max(map(len, words.values()))
    return total


@st.composite
def accesses(draw):
    """Addresses of elements (accesses, lanes, elements), some of them the same, and their size."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    elements = draw(st.sampled_from([1, 2, 4, 8]))
    spread = draw(st.sampled_from([32, 256, 4096]))
    stride = draw(st.sampled_from([0, 1, 2, 8, 32, 33]))
    count = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**16))
    noise = np.random.default_rng(seed).integers(0, spread, (count, 32, elements))
    lanes = np.arange(32)[None, :, None] * stride * elements
    return (noise * draw(st.booleans()) + lanes + np.arange(elements)) * itemsize, itemsize


@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn=accesses())
def test_wavefronts_are_those_of_a_count_byte_by_byte(drawn):
    addresses, itemsize = drawn
    found = banks.wavefronts(addresses, itemsize)
    assert found == counted(addresses.tolist(), itemsize)
    elements = addresses.shape[2]
    at_once = min(elements, 16 // itemsize)
    parts = len(addresses) * elements // at_once
    fewest = banks.fewest(parts, at_once, itemsize)
    assert fewest <= found <= max(1, at_once * itemsize // 4) * 32 * parts * max(1, 8 // itemsize)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.sampled_from([8, 16, 64]),
    columns=st.sampled_from([64, 128]),
    tile=st.sampled_from([(8, 64), (8, 32), (4, 16), (64,)]),
)
def test_tiles_are_undone(rows, columns, tile):
    array = np.arange(rows * columns).reshape(rows, columns)
    cut = banks.tiled(array, [tile])
    assert cut.shape[-len(tile) :] == tile
    np.testing.assert_array_equal(banks.untiled(cut, tile), array)
    if len(tile) == 2:
        np.testing.assert_array_equal(cut[0, -1], array[: tile[0], -tile[1] :])


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_swizzle_exchanges_chunks_within_a_line(swizzle):
    """Chunk c of line n is where chunk c xor n was, of as many as the swizzle has."""
    addresses = np.arange(4096)
    found = banks.swizzled(addresses, swizzle)
    chunks = swizzle // 16 or 1
    for address, moved in zip(addresses.tolist(), found.tolist()):
        line, chunk, byte = address // 128, address % 128 // 16, address % 16
        assert moved == line * 128 + (chunk ^ (line % chunks)) * 16 + byte
    assert sorted(found.tolist()) == addresses.tolist()


@pytest.mark.both_jax
def test_an_accumulator_s_lanes():
    """As PTX draws the fragment of wgmma: 4 lanes a row, two elements each, 8 rows, 4 warps."""
    layout = WGMMA.to_mgpu()
    rows, columns = np.divmod(np.arange(128 * 64), 64)
    lanes = [getattr(axis, "times", axis) for axis in layout.lane_dims]
    found = banks.tiled_lanes(
        np.arange(128 * 64).reshape(128, 64), layout.tiling.tiles, lanes, layout.vector_dim
    )
    expected = {
        tuple(
            tuple(
                (64 * m + 16 * warp + 8 * half + lane // 4) * 64 + 8 * n + lane % 4 * 2 + i
                for i in range(2)
            )
            for lane in range(32)
        )
        for m, warp, half, n in itertools.product(range(2), range(4), range(2), range(8))
    }
    assert {tuple(map(tuple, access)) for access in found.tolist()} == expected
    assert len(rows) == len(columns) == found.size


def test_lanes_that_hold_the_same():
    """A row's sum is held by the 4 lanes of the row: 8 words a wavefront."""
    layout = WGMMA.reduce(1).to_mgpu()
    lanes = [getattr(axis, "times", axis) for axis in layout.lane_dims]
    found = banks.tiled_lanes(np.arange(64) * 4, layout.tiling.tiles, lanes, layout.vector_dim)
    assert found.shape == (8, 32, 1)
    assert (found[:, :, 0] == np.repeat(np.arange(64).reshape(8, 8) * 4, 4, axis=1)).all()
    assert banks.wavefronts(found, 4) == 8


# What an access takes.


def memory(shape, dtype, swizzle=0, *steps):
    """A place in SMEM, in tiles if it is swizzled."""
    itemsize = jnp.dtype(dtype).itemsize
    place = layouts.Addressing(shape, itemsize, 0, steps)
    if swizzle:
        columns = swizzle // itemsize
        tiles = (shape[0] // 8, shape[1] // columns, 8, columns)
        place = layouts.Addressing(
            tiles, itemsize, swizzle, ((Change.UNTILE, (8, columns)), *steps)
        )
    return place


SHAPE = 64, 128
MOST = 128  # wavefronts of an array of SHAPE in float16 that are full


@pytest.mark.parametrize(
    ("dtype", "swizzle", "wavefronts"),
    [
        (HALF, 0, 8 * MOST),
        (FULL, 0, 4 * 2 * MOST),
        (HALF, 32, MOST),
        (HALF, 128, MOST),
        # Pairs of floats of four rows lie in two chunks: half of the banks are wanted twice.
        (FULL, 128, 2 * 2 * MOST),
        (FULL, 32, 2 * MOST),
        # Two bytes a lane: half of a wavefront is empty.
        (BYTE, 128, MOST),
    ],
)
def test_an_accumulator_in_plain_and_in_swizzled_memory(dtype, swizzle, wavefronts):
    place, layout = memory(SHAPE, dtype, swizzle), WGMMA.to_mgpu()
    assert layouts.wavefronts(place, layout, False, False) == wavefronts
    # The compiler proves that there are no conflicts, or refuses.
    itemsize = jnp.dtype(dtype).itemsize
    fewest = max(MOST, MOST * itemsize // 2)
    assert layouts.wavefronts(place, layout, True, False) == fewest
    # What it may give tiles, it swizzles.
    assert layouts.wavefronts(memory(SHAPE, dtype), layout, None, True) == fewest
    assert layouts.wavefronts(memory(SHAPE, dtype), layout, None, False) > fewest or dtype == BYTE


def test_rows_and_columns():
    """A lane after the other along a row, and down a column."""
    strided = lambda shape: plgpu.Layout.WG_STRIDED(shape, vec_size=1).to_mgpu()
    place = memory((128, 32), FULL)
    assert layouts.wavefronts(place, strided((128, 32))) == 128
    column = memory((128, 32), FULL, 0, (Change.TRANSPOSE, (1, 0)))
    assert layouts.wavefronts(column, strided((32, 128))) == 32 * 128
    padded = memory(
        (128, 33), FULL, 0, (Change.INDEX, ((0, 128, 1), (0, 32, 1))), (Change.TRANSPOSE, (1, 0))
    )
    assert layouts.wavefronts(padded, strided((32, 128))) == 128
    every_second = memory((256, 32), FULL, 0, (Change.INDEX, ((0, 256, 2), (0, 32, 1))))
    assert layouts.wavefronts(every_second, strided((128, 32))) == 128


@pytest.mark.parametrize("vec_size", [1, 2, 4, 8])
def test_side_by_side_elements_do_not_conflict(vec_size):
    for dtype in (FULL, HALF):
        layout = plgpu.Layout.WG_STRIDED(SHAPE, vec_size=vec_size).to_mgpu()
        width = vec_size * jnp.dtype(dtype).itemsize
        expected = 64 * 128 * jnp.dtype(dtype).itemsize // (32 * min(4, width))
        # Of 32 bytes, an instruction moves every second 16: half of the banks, twice.
        twice = max(1, width // 16)
        assert layouts.wavefronts(memory(SHAPE, dtype), layout) == expected * twice


def test_without_a_layout_memory_says_which():
    assert layouts.wavefronts(memory(SHAPE, FULL)) == 2 * MOST
    assert layouts.wavefronts(memory(SHAPE, HALF, 128)) == MOST
    assert layouts.wavefronts(memory((1,), FULL)) == 4  # each warp's
    assert layouts.wavefronts(memory((7, 5), FULL)) is None
    assert layouts.wavefronts(memory((32, 64), HALF, 128)) is None  # of 64 rows at least


@pytest.mark.both_jax
def test_a_transposed_view_of_tiles():
    place = memory((128, 64), HALF, 128, (Change.TRANSPOSE, (1, 0)))
    for layout in (WGMMA, TRANSPOSED):
        assert layouts.wavefronts(place, layout.to_mgpu(), False) == MOST


# What the trace notes.


def noted(body, *scratch, **options):
    """(kind, n) of each access of SMEM of a kernel."""
    kernel = plgpu.kernel(
        lambda *refs: body(*refs[1:]), out_type=like(8), scratch_types=scratch, **options
    )
    program = pallascope.trace(kernel)
    assert pallascope.Program.from_json(program.to_json()) == program
    ops = program.threads[0]
    spaces = {b.id: b.space for b in program.buffers}
    found = [op for op in ops if op.kind in ("read", "write")]
    in_smem = [op for op in found if spaces[(op.reads + op.writes)[0].buffer] == "smem"]
    return [(op.kind, op.wavefronts) for op in in_smem]


LANE = dict(compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane))
PLAIN, TILED = plgpu.SMEM((64, 64), HALF), plgpu.SMEM((64, 64), HALF, transforms=clocked.TILED)


def accumulated():
    """An accumulator's value, through a scope and a cast."""
    scope = lambda acc: acc[...]
    return pl.run_scoped(scope, plgpu.ACC((64, 64), FULL)).astype(HALF)


@pytest.mark.both_jax
@pytest.mark.parametrize(
    ("options", "plain"), [(LANE, 8 * 64), ({}, 64)], ids=["lane", "warpgroup"]
)
def test_an_accumulator_is_written(options, plain):
    def body(plain, tiled):
        value = accumulated()
        plain[...] = value
        tiled[...] = value * 2

    assert noted(body, PLAIN, TILED, **options) == [("write", plain), ("write", 64)]


@pytest.mark.both_jax
def test_a_layout_goes_through_arithmetic_loops_and_calls():
    def body(plain, row):
        start = plgpu.layout_cast(jnp.zeros((64, 64), HALF), WGMMA)

        def step(i, x):
            plain[...] = x
            return x + 1

        value = lax.fori_loop(0, 2, step, start)
        plain[...] = jax.jit(lambda x: jnp.maximum(x, 0) * 2)(value)
        row[...] = jnp.max(value, axis=1)
        plain[...] = jnp.ones((64, 64), HALF)

    row = plgpu.SMEM((64,), HALF)
    expected = [("write", 8 * 64)] * 3 + [("write", 8), ("write", 64)]
    assert noted(body, PLAIN, row, **LANE) == expected


@pytest.mark.both_jax
def test_a_read_has_the_layout_it_is_cast_to():
    def body(ring, tiled):
        ring[1] = plgpu.load(ring.at[0], layout=WGMMA, optimized=False)
        x = plgpu.layout_cast(ring[0], plgpu.Layout.WG_STRIDED((64, 64), vec_size=1))
        ring[0] = x + 1
        tiled[...] = tiled[...] + 1

    ring = plgpu.SMEM((2, 64, 64), HALF)
    reads = [("read", 512), ("write", 512), ("read", 128), ("write", 128)]
    assert noted(body, ring, TILED, **LANE) == [*reads, ("read", 64), ("write", 64)]


def test_what_is_not_known_is_none():
    def body(union):
        whole, _ = union
        whole[...] = whole[...] + 1

    union = plgpu.RefUnion(plgpu.SMEM((64, 64), FULL), plgpu.SMEM((64, 64), HALF))
    assert noted(body, union) == [("read", None), ("write", None)]


def test_gmem_has_no_wavefronts():
    program = pallascope.trace(kernels.of(lambda x, o: o.__setitem__(..., x[...])), like(256, 64))
    found = [op for op in program.threads[0] if not op.kind.startswith("scope")]
    assert [(op.kind, op.wavefronts) for op in found] == [("read", None), ("write", None)]


# Reductions.


def passed(layout, shape, axes):
    """The words that 128 lanes pass each other, by the registers that each of them has."""
    sizes, dims = layout.tiled_tiling_shape, len(layout.tiling.tiles[0])
    outer = [axis in axes for axis in range(len(shape) - dims)]
    inner = [False] * (dims + len(sizes))
    for axis in axes:
        if axis >= len(outer):
            within = layout.tiling.tile_dimension(axis - len(outer))
            inner = [a or b for a, b in zip(inner, within, strict=True)]
    goes = outer + inner
    kept = [1 if gone else n for n, gone in zip(layout.registers_shape(shape), goes, strict=True)]
    elements = 1 if goes[layout.vector_dim] else sizes[layout.vector_dim]
    lanes = np.prod([sizes[d] for d in layout.partitioned_lane_dims if goes[d]], dtype=int)
    warps = np.prod([sizes[d] for d in layout.partitioned_warp_dims if goes[d]], dtype=int)
    rounds = int(np.log2(lanes)) + (1 + warps if warps > 1 else 0)
    return 128 * int(np.prod(kept)) * elements * rounds


@pytest.mark.parametrize("name", ["WGMMA", "WGMMA_TRANSPOSED", "WGMMA_8BIT"])
@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (2, 64, 128)])
def test_lanes_exchange_what_they_hold_parts_of(name, shape):
    layout = getattr(plgpu.Layout, name).to_mgpu()
    for axis in range(len(shape)):
        assert layouts.exchanges(shape, (axis,), layout) == passed(layout, shape, (axis,)), axis


def test_exchanges():
    """A row of WGMMA: its 4 lanes in 2 rounds. A column: 8 lanes in 3, then 4 warps."""
    layout = WGMMA.to_mgpu()
    assert layouts.exchanges((64, 128), (1,), layout) == 64 * 4 * 2
    assert layouts.exchanges((64, 128), (0,), layout) == 128 * 8 * 4 * (3 + 1 + 4)
    # A row's sums are held by 4 lanes each, of which none has a part only.
    assert layouts.exchanges((4, 64), (0,), WGMMA.reduce(1).to_mgpu()) == 0
    # Where nothing says the layout, and to one number.
    assert layouts.exchanges((64, 128), (1,)) == 64 * 4 * 2
    strided = plgpu.Layout.WG_STRIDED((64, 128), vec_size=2).to_mgpu()
    for known in (layout, strided, None):
        assert layouts.exchanges((64, 128), (0, 1), known) == 128 * (5 + 1 + 4)
    assert layouts.exchanges((4096,), (0,)) == 128 * (5 + 1 + 4)


# The rule, beside what the compiler does.


def inferred(kernel, *args):
    """(shape, layout of registers, tiles of memory) of each access, of the lowered kernel."""
    found = []
    assign = layout_inference.assign_layouts

    def note(solution):
        sites = defaultdict(dict)
        for site, layout in solution.items():
            if "vector_" in site.operation.OPERATION_NAME:
                sites[site.operation][str(site.value.type).partition("<")[0]] = layout
        for each in sites.values():
            if "memref" in each:
                found.append((each["vector"].value, each["memref"].tiling is not None))
        return assign(solution)

    with mock.patch.object(layout_inference, "assign_layouts", note):
        jax.jit(kernel).trace(*args).lower(lowering_platforms=("cuda",))
    return found


def copied(memory_in, memory_out, function=lambda x: x + 1):
    """A kernel that brings an array to SMEM, computes of it, and brings it back."""

    def kernel(x, o, x_smem, o_smem, barrier):
        plgpu.copy_gmem_to_smem(x, x_smem, barrier)
        plgpu.barrier_wait(barrier)
        o_smem[...] = function(x_smem[...])
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o)
        plgpu.wait_smem_to_gmem(0)

    return kernels.of(kernel, like(64, 64), scratch_types=(memory_in, memory_out, plgpu.Barrier()))


@pytest.mark.parametrize(
    ("function", "memory", "words"),
    [
        (lambda x: x + jnp.max(x, axis=1)[:, None], TILED, 2 * 2),
        (lambda x: x + jnp.sum(x, axis=0)[None], TILED, 16 * 3),
        (lambda x: x + jnp.sum(x), PLAIN, 5),
    ],
    ids=["rows", "columns", "all"],
)
def test_the_compiler_shuffles_as_the_rule_says(function, memory, words):
    """What each lane passes by shuffles; what goes through SMEM comes to that."""
    shuffle, found = fragmented_array.utils.shfl_bfly, []

    def note(value, distance):
        bits = fragmented_array.utils.bitwidth(value.type)
        found.append(1 if bits <= 32 else 0)  # it calls itself for each word of more
        return shuffle(value, distance)

    kernel = copied(memory, memory, lambda x: function(x.astype(FULL)).astype(HALF))
    with mock.patch.object(fragmented_array.utils, "shfl_bfly", note):
        jax.jit(kernel).trace(like(64, 64)).lower(lowering_platforms=("cuda",))
    assert sum(found) == words


@pytest.mark.both_jax
def test_the_compiler_chooses_as_the_rule_says():
    """WGMMA and tiles for all that meets tiles or accumulators, and rows side by side else."""
    strided = plgpu.Layout.WG_STRIDED((64, 64), vec_size=4).to_mgpu()
    for x, o in itertools.product((PLAIN, TILED), repeat=2):
        found = inferred(copied(x, o), like(64, 64))
        expected = (strided, False) if x is o is PLAIN else (WGMMA.to_mgpu(), True)
        assert found and set(found) == {expected}, (x, o)

    def product(a, b, o, a_smem, b_smem, o_smem):
        def scope(acc):
            plgpu.wgmma(acc, a_smem, b_smem)
            return acc[...]

        o_smem[...] = pl.run_scoped(scope, plgpu.ACC((64, 64), FULL)).astype(HALF)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o)

    kernel = kernels.of(product, like(64, 64), scratch_types=(TILED, TILED, PLAIN))
    found = inferred(kernel, like(64, 64), like(64, 64))
    assert found and set(found) == {(WGMMA.to_mgpu(), True)}
