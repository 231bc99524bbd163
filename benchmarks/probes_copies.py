"""Probes of copies: by the order of blocks, by box, both ways at once, by how a slot is found.

The questions. Does the order of a grid's blocks decide what L2 gives, if the arrays are larger than
it? Does a copy cost by its bytes or by its boxes? Do loads and stores of one SM share a port? What
does the remainder cost that finds a step's slot?

The docstring of each function gives the prediction: what the model says, and what the alternative
would show. `modelled` prints both figures.
"""

import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.clocked import (
    TILED,
    Probe,
    for_loads,
    loading,
    loading_tiles,
    longer,
    loop,
    rem,
    steps,
    stream,
    swizzled,
    tile,
)

#: A step of a probe here copies so much, unless it says otherwise.
STEP_BYTES = 1 << 14
#: Tiles of which a ring of loads goes through in turn, so that L2 has them.
_WARM = 16


def _divided(x: Any, n: int) -> tuple[Any, Any]:
    return lax.div(x, jnp.int32(n)), rem(x, n)


# The order of blocks.


class Grid(NamedTuple):
    """A product's blocks: rows and columns of the grid, and the rows of a band.

    Blocks with consecutive numbers go down the columns of a band, one column after another. In a
    band of one row they go along the row.
    """

    rows: int
    columns: int
    band: int

    def place(self, block: Any) -> tuple[Any, Any]:
        """The row and the column of a block, by its number."""
        band, within = _divided(block, self.band * self.columns)
        column, row = _divided(within, self.band)
        return band * self.band + row, column


#: b has 144 MiB, several times what L2 holds, and a has a quarter of that.
WIDE = Grid(32, 128, 1)


def ordered(grid: Grid, slots: int = 8) -> Probe:
    """The blocks of a product load tiles of 128 x 64, of a's rows and of b's columns in turn.

    The model does not know the order of blocks. It takes L2 at its best: each byte comes from HBM
    once. So it says 369 cycles for a tile, 44 bytes a cycle, in both orders. The alternative: the
    order counts. Along rows, 132 blocks at a time load all of b, and find nothing of it in L2: half
    of all bytes come from HBM, which takes some 490 cycles for a tile, 33 bytes a cycle. In bands
    of eight rows a tenth comes from HBM, and L2 bounds the step.
    """
    repeats = 48
    along = 3 * repeats // 2  # tiles of a row or column

    def role(timed, block, x, ring, barriers):
        row, column = grid.place(block)

        def start(i):
            line = jnp.where(rem(i, 2) == 0, row, grid.rows + column)
            source = tile(x, 128, line * along + lax.div(i, jnp.int32(2)))
            slot = rem(i, slots)
            plgpu.copy_gmem_to_smem(source, ring.at[slot], barriers.at[slot])

        timed(stream(slots, start, lambda i: plgpu.barrier_wait(barriers.at[rem(i, slots)])))

    how = "along rows" if grid.band == 1 else f"in bands of {grid.band} rows"
    tiles = (grid.rows + grid.columns) * along
    name = f"tiles of a product, {grid.rows} x {grid.columns} blocks {how}"
    fields: dict[str, Any] = dict(blocks=grid.rows * grid.columns, work=dict(bytes=STEP_BYTES))
    x = (tiles * 128, 64)
    return Probe(name, (role,), repeats, for_loads(slots, 128), x, **fields, cold=True)


# Boxes.


class Box(NamedTuple):
    """A box of float16 that one copy moves, and how SMEM has it."""

    rows: int
    columns: int
    swizzled: bool = True

    @property
    def per_step(self) -> int:
        """Boxes of a step."""
        return STEP_BYTES // (2 * self.rows * self.columns)

    def __str__(self) -> str:
        how = "" if self.swizzled else ", not swizzled"
        return f"boxes of {self.rows}x{self.columns}{how}, {self.per_step} a step"


BOXES = Box(128, 64), Box(64, 64), Box(64, 128), Box(8, 64), Box(128, 64, swizzled=False)


def boxed(box: Box, slots: int = 4) -> Probe:
    """The same bytes in each step, in boxes of one shape, four steps in flight, from L2.

    The model: a copy costs its bytes and its issue, whatever its box. A step of one box takes the
    time of its bytes, 152 cycles; a step of two boxes and one of sixteen take as long as the thread
    needs to wait and to issue them, 201 and 897 cycles. The alternatives: if TMA needs time for
    each box, for each row of it or for each swizzled tile, steps of one box differ. If a thread
    issues copies faster than one in 50 cycles, steps of several boxes are shorter.
    """

    def role(timed, block, x, ring, barriers):
        def load(i, slot):
            first = rem(i, _WARM) * box.per_step
            for j in range(box.per_step):
                source = tile(x, box.rows, first + j)
                plgpu.copy_gmem_to_smem(source, ring.at[slot, j], barriers.at[slot])

        timed(loading(slots, load, barriers))

    shape = (slots, box.per_step, box.rows, box.columns)
    ring = plgpu.SMEM(shape, jnp.float16, transforms=TILED if box.swizzled else ())
    scratch = ring, plgpu.Barrier(num_arrivals=box.per_step, num_barriers=slots)
    # Mosaic GPU swizzles SMEM that is declared without, except with the semantics of lanes.
    params = {} if box.swizzled else dict(lowering_semantics=plgpu.LoweringSemantics.Lane)
    x, work = (_WARM * box.per_step * box.rows, box.columns), dict(bytes=STEP_BYTES)
    return Probe(f"load {box}", (role,), 384, scratch, x, work=work, params=params)


# Both ways at once.


def both_ways(loads: bool, slots: int = 4, pending: int = 4) -> Probe:
    """One thread loads and another stores, tiles of 16 KiB that L2 has; the time of one of the two.

    The model: loads and stores share the port of the SM, which serves them in the order of their
    requests. So loads wait for stores: a loaded tile takes 792 cycles and a stored one 634. The
    alternative: loads and stores have ways of their own, and a tile takes what it takes alone: a
    load 154 cycles as `boxed` has it, a store 512.
    """
    rows, many = 128, 2 if loads else 4

    def load(timed, block, x, out, ring, staging, barriers):
        timed(loading_tiles(slots, lambda i: tile(x, rows, rem(i, _WARM)), ring, barriers))

    def store(timed, block, x, out, ring, staging, barriers):
        def step(i):
            plgpu.copy_smem_to_gmem(staging, tile(out, rows, rem(i, 8)))
            plgpu.wait_smem_to_gmem(pending)

        timed(steps(step))
        plgpu.wait_smem_to_gmem(0)

    first, second = (load, store) if loads else (store, load)
    roles = first, lambda timed, *refs: second(longer(many, timed), *refs)
    name = "load 16384 bytes beside stores" if loads else "store 16384 bytes beside loads"
    tiles, barriers = for_loads(slots, rows)
    scratch, sizes = (tiles, swizzled(rows, 64), barriers), ((_WARM * rows, 64), (8 * rows, 64))
    return Probe(name, roles, 384, scratch, *sizes, work=dict(bytes=STEP_BYTES), apart=True)


# How a slot is found.


def slot_found(slots: int, carried: bool) -> Probe:
    """A ring of slots for loads of 1 KiB: a thread waits for a slot, then loads into it again.

    The slot is the remainder of the step's number, or a number that the loop carries and sets back
    to 0. The model: an index costs nothing. A step takes a wait and an issue, 151 cycles, however
    many slots there are and either way. The alternative: a remainder on the way from the wait to
    the issue costs time. Then a step with 3, 5 or 6 slots is longer by remainder than carried, and
    a step with 4, a power of two, is not.
    """
    rows = 8

    def role(timed, block, x, ring, barriers):
        def start(slot):
            plgpu.copy_gmem_to_smem(tile(x, rows, slot), ring.at[slot], barriers.at[slot])

        def wait(slot):
            plgpu.barrier_wait(barriers.at[slot])

        def by_carry(first, count):
            loop(jnp.int32(0), slots, start)

            def step(i, slot):
                wait(slot)
                start(slot)
                return jnp.where(slot == slots - 1, 0, slot + 1)

            lax.fori_loop(jnp.int32(0), jnp.int32(count - slots), step, jnp.int32(0))
            loop(jnp.int32(0), slots, wait)

        of_step = lambda use: lambda i: use(rem(i, slots))
        timed(by_carry if carried else stream(slots, of_step(start), of_step(wait)))

    name = f"load 1024 bytes, one of {slots} slots {'carried' if carried else 'by remainder'}"
    x, work = (slots * rows, 64), dict(bytes=128 * rows)
    return Probe(name, (role,), 480, for_loads(slots, rows), x, work=work)


def probes() -> list[Probe]:
    """The probes of copies."""
    orders = [ordered(WIDE._replace(band=band)) for band in (1, 8)]
    slots = itertools.starmap(slot_found, itertools.product((3, 4, 5, 6), (False, True)))
    return [*orders, *map(boxed, BOXES), *map(both_ways, (True, False)), *slots]
