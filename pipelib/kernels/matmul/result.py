"""`TileResult`: the end of a tile of `matmul`: the epilogue, and the stores.

The model. Each compute thread stores its rows of a tile part by part, through one or two *staging
slots* in SMEM::

    for each part, of 64 rows and `epilogue_n` columns:
      wait     until the store of the slot's last part has read it
      write    epilogue(accumulator, operands) into the slot
      commit
      load     the matrices of the epilogue for the next part in this slot, if any
      store

An operand of the epilogue that is a matrix is loaded, part by part, into staging slots of its own:
the first parts before the tile is multiplied, each later part when its slot has been read. A row or
a column is read from GMEM directly.
"""

# What it asks of JAX has no types.
# pyright: basic

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import tiles
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.product import Product
from pipelib.refs import Index, Int, Ref


def this_thread(config: MatmulConfig) -> jax.Array:
    """The index of the Pallas thread that asks."""
    return lax.axis_index("thread") if config.threads > 1 else jnp.int32(0)


class TilePlace(NamedTuple):
    """The place of a tile along m and n, in tiles, and which part of K it has."""

    m: Int
    n: Int
    split: Int = 0


class TileResult(NamedTuple):
    """What becomes of a tile's sums: the epilogue, the staging in shared memory, the stores.

    Attributes:
      product: which product the kernel makes.
      kinds: for each operand of the epilogue, the axes of the output that it has: "mn" for a
        matrix, "m" for a column, "n" for a row, "" for a number.
      operands: the operands, in GMEM.
      out: the output, in GMEM; if K is split, all of its parts.
      scratch: the staging slots of the output and of each matrix, and the matrices' barriers.
      place: the tile's place.
    """

    product: Product[MatmulConfig]
    kinds: tuple[str, ...]
    operands: tuple[Ref, ...]
    out: Ref
    scratch: tuple[Ref, ...]
    place: TilePlace = TilePlace(0, 0)

    def of(self, place: TilePlace) -> "TileResult":
        """The same for another tile."""
        return self._replace(place=place)

    def _first(self, part: int) -> tuple[int, int]:
        """The first row and column of a part, within this thread's rows of the tile."""
        row, column = divmod(part * self.product.config.epilogue_n, self.product.config.tile_n)
        return row * STAGED_ROWS, column

    def _here(self, part: int) -> tuple[Index, Index]:
        """The rows and columns of a part, in the output."""
        rows, columns = self._in_product(part)
        return (columns, rows) if self.product.config.swapped else (rows, columns)

    def _in_product(self, part: int) -> tuple[Index, Index]:
        """The rows and columns of a part, in the product that the kernel makes."""
        config, (first_row, first_column) = self.product.config, self._first(part)
        mine = self.place.m * config.tile_m + this_thread(config) * config.rows
        row, column = first_row + mine, first_column + self.place.n * config.tile_n
        return pl.ds(row, STAGED_ROWS), pl.ds(column, config.epilogue_n)

    def _slot(self, part: int) -> tuple[jax.Array, int]:
        """This thread's staging slot for a part."""
        return this_thread(self.product.config), part % self.product.config.staging_slots

    def _barrier(self, part: int) -> Ref:
        """The barrier at which the matrices of a part arrive."""
        thread, slot = self._slot(part)
        return self.scratch[-1].at[thread * self.product.config.staging_slots + slot]

    def _staging(self) -> list[tiles.Both]:
        """The staging slots of the output, then those of each matrix."""
        rows, columns = self.out.shape[-2:]
        matrices = [x for x, kind in zip(self.operands, self.kinds) if kind == "mn"]
        dtypes = self.product.out_dtype, *(matrix.dtype for matrix in matrices)
        return [
            tiles.both(slots, not tiles.has_pieces((rows, columns), dtype))
            for slots, dtype in zip(self.scratch, dtypes)
        ]

    def _matrices(self) -> list[tuple[Ref, tiles.Both]]:
        """The operands that are matrices, each with its staging slots."""
        found = [x for x, kind in zip(self.operands, self.kinds) if kind == "mn"]
        return list(zip(found, self._staging()[1:]))

    def prefetch(self) -> None:
        """Starts the loads of the matrices for the first parts."""
        for part in range(self.product.config.staging_slots):
            self._load(part)

    def _load(self, part: int) -> None:
        """Starts the loads of the matrices for a part."""
        for operand, staging in self._matrices():
            here, slot = operand.at[self._here(part)], staging.rows.at[self._slot(part)]
            plgpu.copy_gmem_to_smem(here, slot, self._barrier(part))

    def store(self, acc: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config, staging = self.product.config, self._staging()[0]
        out = self.out.at[self.place.split] if config.splits > 1 else self.out
        for part in range(config.parts):
            row, column = self._first(part)
            values = acc[row : row + STAGED_ROWS, column : column + config.epilogue_n]
            if (epilogue := self.product.epilogue) is not None:
                values = epilogue(values, *self._parts(part))
            plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
            slot = self._slot(part)
            self._write(staging.tiles.at[slot], values.astype(self.product.out_dtype))
            plgpu.commit_smem()
            if part + config.staging_slots < config.parts:
                self._load(part + config.staging_slots)
            plgpu.copy_smem_to_gmem(staging.rows.at[slot], out.at[self._here(part)])

    def _write(self, slot: Ref, values: jax.Array) -> None:
        """Writes a part into its staging slot, which has the output's rows."""
        if self.product.config.swapped:
            slot = slot.transpose((1, 0))
            values = plgpu.layout_cast(values, plgpu.Layout.WGMMA_TRANSPOSED)
        slot[...] = values

    def _read(self, slot: Ref) -> jax.Array:
        """A part of a matrix from its staging slot, in float32, as the accumulator lies."""
        if not self.product.config.swapped:
            return slot[...].astype(jnp.float32)
        layout = plgpu.Layout.WGMMA_TRANSPOSED
        values = plgpu.load(slot.transpose((1, 0)), layout=layout)
        return plgpu.layout_cast(values, plgpu.Layout.WGMMA).astype(jnp.float32)

    def _parts(self, part: int) -> list[jax.Array]:
        """The operands of a part, in float32, each of the part's shape."""
        config, layout = self.product.config, plgpu.Layout.WGMMA
        shape, (rows, columns) = (STAGED_ROWS, config.epilogue_n), self._in_product(part)
        if matrices := [staging for _, staging in self._matrices()]:
            plgpu.barrier_wait(self._barrier(part))
        values = []
        for operand, kind in zip(self.operands, self.kinds):
            if kind == "mn":
                value = self._read(matrices.pop(0).tiles.at[self._slot(part)])
            elif kind == "":
                value = jnp.full(shape, operand[0].astype(jnp.float32))
            else:
                axis = "mn".index(kind)
                vector = operand.at[(rows, columns)[axis]]
                value = plgpu.load(vector, layout=layout.reduce(1 - axis), optimized=False)
                value = lax.broadcast_in_dim(value.astype(jnp.float32), shape, (axis,))
            values.append(plgpu.layout_cast(value, layout))
        return values
