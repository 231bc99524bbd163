"""The numbers of the page on layouts: PTX's, the checker's, and the compiler's."""

import contextlib
import itertools
import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import fragmented_array
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.tracing import layouts as traced
from pipelib_book import layouts
from pipelib_book.layouts import Combination

DTYPES = {8: jnp.int8, 16: jnp.float16, 32: jnp.float32}
LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)
PLANS = {"TrivialTransferPlan": "as drawn", "StaggeredTransferPlan": "staggered"}
ALL = layouts.combinations()


def spread(basis):
    """A table, as the page's script makes it of some entries."""
    table = [0]
    for entry in basis:
        table += [entry ^ other for other in table]
    return table


@pytest.mark.parametrize(
    ("layout", "warp", "lane", "options", "first"),
    [
        # PTX, wgmma's fragment D: row 16 warp + lane / 4 + 8 i, column 8 n + lane % 4 * 2 + j.
        ("WGMMA", 0, 0, {}, [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]),
        ("WGMMA", 1, 5, {}, [(17, 2), (17, 3), (25, 2), (25, 3), (17, 10), (17, 11)]),
        ("WGMMA", 3, 31, {}, [(55, 6), (55, 7), (63, 6), (63, 7), (55, 14), (55, 15)]),
        ("WG_STRIDED", 1, 5, {}, [(1, 10), (1, 11), (5, 10), (5, 11)]),  # pair 37, 37 + 128
        ("WG_STRIDED", 1, 5, dict(width=2, is_transposed=True), [(0, 37), (2, 37)]),
        # Lanes 1 and 5 have two rows of two columns: of each column both rows are one lane's.
        ("WGMMA_TRANSPOSED", 1, 5, dict(is_transposed=True), [(16, 3), (17, 3), (24, 3)]),
        ("WGMMA_8BIT", 1, 5, dict(width=8), [(17, 4), (17, 5), (17, 6), (17, 7), (25, 4)]),
        # Four neighbours; lanes 1 and 2 of four are exchanged.
        ("WGMMA_UPCAST_2X", 1, 5, dict(width=8), [(17, 8), (17, 9), (17, 10), (17, 11), (25, 8)]),
        ("WGMMA_UPCAST_4X", 1, 5, dict(width=16), [(17, 8), (17, 9), (17, 10)]),
        ("WGMMA.reduce(1)", 1, 5, dict(width=2), [(17, 0), (25, 0)]),
        ("WGMMA.reduce(0)", 1, 5, {}, [(0, 2), (0, 3), (0, 10), (0, 11)]),
    ],
)
def test_a_lane_holds(layout, warp, lane, options, first):
    """Worked out by hand, of 64 x 64 in float16: the first elements, by pairs of rows."""
    choice = dict(bits=16, shape=(64, 64), swizzle=0, width=4, is_transposed=False) | options
    made = layouts.numbers(Combination(layout=layout, **choice))
    warps, columns = spread(made["warps"]), made["array"][1]
    found = [
        divmod(element, columns)
        for at, element in enumerate(spread(made["elements"]))
        if at // made["held"] % 32 == lane and warps[at // made["held"] // 32] == warp
    ]
    assert {*first} <= {*found} and len({*found}) == len(found)
    assert len(found) * 128 == 64 * 64 or layout.startswith("WGMMA.reduce")


def test_wavefronts_are_the_checker_s_and_no_bank_gives_two_words_in_one():
    for c in ALL:
        made = layouts.numbers(c)
        layout = c.registers if c.layout != "WG_SPLAT" else plgpu.Layout.WG_SPLAT.to_mgpu()
        assert made["wavefronts"] == traced.wavefronts(c.memory, layout, False, False), c
        if c.layout.startswith("WGMMA"):
            assert made["least"] == traced.wavefronts(c.memory, layout, True, False), c
        words = np.array(spread(made["places"]))[spread(made["elements"])] // 4
        groups = np.arange(words.size) // (made["group"] * made["held"])
        moved = {*zip(groups, spread(made["turns"]), words % 32, words)}
        assert len(moved) == len({each[:3] for each in moved}), c
        assert len({each[:2] for each in moved}) == made["wavefronts"], c
        assert {*spread(made["turns"])} == {*range(made["turn"])}, c


def kernel(c, optimized):
    """A kernel that reads the tile, or writes it if it is a splat; all as kernels declare it."""
    name, _, axis = c.layout.partition(".reduce")
    layout = getattr(plgpu.Layout, name)
    layout = layout.reduce(int(axis[1])) if axis else layout
    layout = layout(c.array, vec_size=c.elements) if name == "WG_STRIDED" else layout

    def body(o_gmem, tile):
        view = tile.T if c.is_transposed else tile
        if name == "WG_SPLAT":
            view[...] = jnp.full(c.array, 1, DTYPES[c.bits])
        else:
            plgpu.load(view, layout=layout, optimized=optimized)

    transforms = ()
    if c.swizzle:
        tile = 8, c.swizzle * 8 // c.bits
        transforms = plgpu.TilingTransform(tile), plgpu.SwizzleTransform(c.swizzle)
    shape = c.array[::-1] if c.is_transposed else c.array
    memory = plgpu.SMEM(shape, DTYPES[c.bits], transforms=transforms)
    out = jax.ShapeDtypeStruct((8,), jnp.float32)
    return plgpu.kernel(body, out_type=out, scratch_types=(memory,), compiler_params=LANE)


def compiled(c):
    """What the compiler makes of the access: draws as the layout says, staggers, or refuses."""
    plan, found = fragmented_array.plan_tiled_transfer, []
    noted = lambda *args: found.append(plan(*args)) or found[-1]
    with mock.patch.object(fragmented_array, "plan_tiled_transfer", noted):
        try:
            jax.jit(kernel(c, True)).trace().lower(lowering_platforms=("cuda",))
        except fragmented_array.TransferPlanDerivationError:
            return "refused"
    return PLANS[type(found[-1]).__name__]


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_a_kernel_takes_as_many_when_it_is_traced_and_compiles_as_the_page_says(layout):
    for c in ALL:
        if c.layout != layout:
            continue
        (thread, *_), made = pallascope.trace(kernel(c, False)).threads, layouts.numbers(c)
        (op,) = (op for op in thread if op.kind in ("read", "write"))
        is_mended = layout == "WG_SPLAT" and made["compiler"] == "staggered"
        assert op.wavefronts == made["least" if is_mended else "wavefronts"], c
        if layout.startswith("WGMMA"):
            assert compiled(c) == made["compiler"], c


def test_every_choice_of_the_menus_has_numbers():
    data = json.loads(layouts.data())
    choices = [tuple(made["choice"]) for made in data["combinations"]]
    assert len({*choices}) == len(choices) == len(ALL)
    for field, menu in enumerate(data["menus"]):
        assert {value for value, _ in menu} == {choice[field] for choice in choices}
    together = {(bits, layout) for bits, _, _, layout, _ in choices}
    too_wide = {(32, "WGMMA_UPCAST_4X")}  # 32 bytes a lane
    assert together == {*itertools.product(layouts.BITS, layouts.LAYOUTS)} - too_wide
    assert len(layouts.data()) < 100_000


@pytest.mark.parametrize("name", ["WGMMA", "WGMMA_8BIT", "WGMMA_UPCAST_4X"])
def test_sums_of_a_product_are_cast_to_no_layout_of_whole_sectors(name):
    """Chapter 5 says so of the layouts whose stores it times."""

    def kernel(o_gmem, a_smem, b_smem):
        def product(acc):
            plgpu.wgmma(acc, a_smem, b_smem)
            return acc[...].astype(jnp.float16)

        sums = pl.run_scoped(product, plgpu.ACC((64, 64), jnp.float32))
        o_gmem[...] = plgpu.layout_cast(sums, getattr(plgpu.Layout, name))

    tiled = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    smem = plgpu.SMEM((64, 64), jnp.float16, transforms=tiled)
    out = jax.ShapeDtypeStruct((64, 64), jnp.float16)
    run = jax.jit(plgpu.kernel(kernel, out_type=out, scratch_types=[smem, smem]))
    refused = contextlib.nullcontext() if name == "WGMMA" else pytest.raises(ValueError)
    with refused as error:
        run.trace().lower(lowering_platforms=("cuda",))
    assert error is None or "Failed to infer a possible set of layouts" in str(error.value)


def test_a_table_that_is_no_exclusive_or_is_refused():
    assert layouts.basis(np.array([0, 5, 2, 7])) == [5, 2]
    with pytest.raises(ValueError, match="is no exclusive or of"):
        layouts.basis(np.array([0, 5, 2, 6]))
