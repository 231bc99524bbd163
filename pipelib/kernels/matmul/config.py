"""`MatmulConfig`: how a matrix product is divided, and what it takes of an SM.

The model. A block makes tiles of `tile_m` x `tile_n` in steps of `tile_k`. In SMEM it has a ring of
`slots`, each with the part of a and of b that one step multiplies; for each compute thread one or
two staging slots, through which its part of a tile is stored; and the barriers. In registers it has
the float32 accumulators. All of this is added up here before anything is compiled.

Source of the hardware's constants: `pipelib.specs`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.kernels.dividing import (
    Barriers,
    Memory,
    Smem,
    check_smem,
    refuse,
    smem_bytes,
    take_integers,
)
from pipelib.tiles import SWIZZLE

#: Rows that are staged and stored at once: those of a `wgmma`.
STAGED_ROWS = 64
#: Registers that a `wgmma` needs beside its accumulator. Source: ptxas (CUDA 13.0, C7602), which
#: asks for 154 for the 128 of 64 x 256.
_WGMMA_REGISTERS = 26
FORMS = ("specialized", "chained")
#: The most tiles of a group of the order, and the most parts of K.
_MOST = 65_536
#: Where the ladder's other forms are, for who asks for one here.
_ELSEWHERE = '"ring" and "persistent" are forms of pipelib_book.matmul_forms.RungConfig'


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
    """How `matmul` divides its work. A configuration that cannot be is refused when it is made.

    Attributes:
      tile_m: rows of a block's tile, a multiple of 64 for each compute thread.
      tile_n: its columns, a multiple of 64 (of 8 if `swapped`) up to 256, the most that one `wgmma`
        takes.
      tile_k: the part of K that one step multiplies, a multiple of 64 (of 128 for float8).
      slots: the most steps that are in SMEM at once; fewer if K has fewer steps.
      compute_threads: Pallas threads that multiply, 1 to 3.
      delay_release: `wgmma`s in flight while the next is issued, fewer than `slots`.
      form: "specialized": a memory thread loads, and a block makes one tile; "chained": a block
        goes through many tiles, and loads the next tile's steps while it stores this one's result.
      order: the axis of the output ("m" or "n") along which tiles are grouped.
      width: how many tiles (of a cluster) a group has along it.
      epilogue_n: columns that are staged and stored at once, of 64 rows; a multiple of 64 (of 8 if
        `swapped`) that divides tile_n.
      cluster_m, cluster_n: blocks of a cluster along each axis, 1, 2 or 4, at most 8 together.
        Those in a column share the loads of b, those in a row the loads of a (multicast). JAX's
        interpreter can hang on clusters of larger tiles on a machine of few cores; and where both
        are above 1 its result is wrong at times: its blocks share no loads, which on a GPU keep
        them in step.
      splits: into how many parts K is divided. Each has blocks of its own, which make parts of the
        tiles, float32; plain JAX adds these up. For products with fewer tiles than SMs.
      swapped: whether the kernel makes the transposed product, b^T a^T, so that a tile has `tile_m`
        of the result's columns and `tile_n` of its rows, and stores it transposed. A `wgmma` has 64
        rows, but may have any multiple of 8 columns: so a product of few rows wastes less.
      blocks: blocks that share the tiles, if not "specialized", which has one for each; None: as
        few as go through them in as many rounds as one for each SM would.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      >>> config = MatmulConfig(tile_m=128, tile_n=256, slots=4)
      >>> config.smem_bytes(jnp.bfloat16, jnp.bfloat16)
      229440
      >>> MatmulConfig(tile_m=128, tile_n=320)
      Traceback (most recent call last):
      ValueError: MatmulConfig: tile_n=320 is not a multiple of 64 up to
      256, the most columns of a wgmma.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    slots: int = 4
    compute_threads: int = 2
    delay_release: int = 1
    form: Literal["specialized", "chained"] = "chained"
    order: Literal["m", "n"] = "n"
    width: int = 8
    epilogue_n: int = 64
    cluster_m: int = 1
    cluster_n: int = 1
    splits: int = 1
    swapped: bool = False
    blocks: int | None = None
    #: What a block does with its `forms.Tiles` in the forms that a subclass adds, by their names.
    more_forms: ClassVar[Mapping[str, Callable[[Any], None]]] = {}

    def __post_init__(self) -> None:
        take_integers(self, "blocks")
        object.__setattr__(self, "swapped", specs.flag(f"{self._name}: swapped", self.swapped))
        refuse(self._name, self.problems())

    @property
    def _name(self) -> str:
        """What errors call it."""
        return type(self).__name__

    def problems(self) -> dict[str, object]:
        """What can be wrong with the fields, by the words of an error: whether it is so."""
        unit, forms = 64 * max(self.compute_threads, 1), (*FORMS, *self.more_forms)
        unit_n = 8 if self.swapped else 64
        counts = self.slots, self.width, self.splits, 1 if self.blocks is None else self.blocks
        return {
            f"{self.form=} is none of {', '.join(forms)}; {_ELSEWHERE}": self.form not in forms,
            f"{self.compute_threads=} is not 1 to 3, as form={self.form!r} has":
                not 1 <= self.compute_threads <= 3,
            f"{self.tile_m=} is not a multiple of 64 x {self.compute_threads} rows = {unit}, which"
            " the compute threads divide": self.tile_m < 1 or self.tile_m % unit,
            f"{self.tile_n=} is not a multiple of {unit_n} up to 256, the most columns of a wgmma":
                not unit_n <= self.tile_n <= 256 or self.tile_n % unit_n,
            f"{self.tile_k=} is not a multiple of 64": self.tile_k < 1 or self.tile_k % 64,
            f"{self.epilogue_n=} is not a multiple of {unit_n} that divides {self.tile_n=}":
                self.epilogue_n < 1 or self.epilogue_n % unit_n or self.tile_n % self.epilogue_n,
            f"{self.delay_release=} is not 0 to {self.slots=} - 1, so no slot would be loaded":
                not 0 <= self.delay_release < self.slots,
            f"{self.slots=}, {self.width=}, {self.splits=} and {self.blocks=} are not all at least"
            " 1": min(counts) < 1,
            f"{self.slots=} is over {specs.MAX_SLOTS}, the most barriers of one array":
                self.slots > specs.MAX_SLOTS,
            f"{self.width=} or {self.splits=} is over {_MOST:,}: tiles are counted in int32, and"
            " each part of K has a float32 result of its own": max(self.width, self.splits) > _MOST,
            f"{self.order=} is not 'm' or 'n'": self.order not in ("m", "n"),
            f"{self.cluster_m=} and {self.cluster_n=} are not 1, 2 or 4, and at most 8 together,"
            " which a GPU schedules as a cluster":
                {self.cluster_m, self.cluster_n} - {1, 2, 4} or self.cluster_size > 8,
            f"{self.form=} has a block for each tile, so {self.blocks=} would leave some out":
                self.makes_one_tile and self.blocks is not None,
            f"{self.blocks=} is not a multiple of clusters of {self.cluster_size}":
                (self.blocks or 0) % max(self.cluster_size, 1),
        }  # fmt: skip

    @property
    def rows(self) -> int:
        """The rows of each compute thread."""
        return self.tile_m // self.compute_threads

    @property
    def threads(self) -> int:
        """Pallas threads of a block, with its memory thread."""
        return self.compute_threads + 1

    @property
    def makes_one_tile(self) -> bool:
        """Whether a block makes a single tile."""
        return self.form == "specialized"

    @property
    def memory_registers(self) -> int:
        """Registers for each lane of the memory thread, enough for addresses and copies.

        CUTLASS gives its memory threads 24 to 40. If the memory thread had 40, each of three
        compute threads would have 152, and ptxas asks for 154 to hold 64 x 256.
        """
        return 40 if self.compute_threads < 3 else 32

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def parts(self) -> int:
        """How many parts a compute thread stores its rows of a tile in."""
        return self.rows // STAGED_ROWS * (self.tile_n // self.epilogue_n)

    @property
    def staging_slots(self) -> int:
        """Two if `parts` is even, so that each tile begins with the same slot; else one."""
        return 1 if self.parts % 2 else 2

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Tiles along `tile_m` and `tile_n` of an output of m x n, rounded up to whole clusters."""
        m, n = (n, m) if self.swapped else (m, n)
        clusters_m = math.ceil(m / (self.tile_m * self.cluster_m))
        clusters_n = math.ceil(n / (self.tile_n * self.cluster_n))
        return clusters_m * self.cluster_m, clusters_n * self.cluster_n

    def resident_blocks(self, m: int, n: int, num_sms: int) -> int:
        """How many blocks the kernel has, for an output of m x n."""
        count = math.prod(self.tiles(m, n)) * self.splits
        if self.makes_one_tile:
            return count
        if self.blocks is not None:
            return min(count, self.blocks)
        clusters, most = count // self.cluster_size, num_sms // self.cluster_size
        return math.ceil(clusters / math.ceil(clusters / most)) * self.cluster_size

    def accumulator_registers(self) -> int:
        """Registers of each lane for a thread's float32 accumulator."""
        return self.rows * self.tile_n // 128

    def smem_bytes(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike] = ()
    ) -> int:
        """Bytes of shared memory that a block of the kernel takes, with all slots.

        Args:
          dtype, out_dtype: the dtypes of the factors and of the result.
          operands: the dtypes of the epilogue's operands that are matrices.
        """
        return smem_bytes(self.memory(dtype, out_dtype, operands))

    def check(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike] = ()
    ) -> None:
        """Raises ValueError, with the sum, if an SM has too little for these dtypes.

        Args:
          dtype, out_dtype, operands: as `smem_bytes` takes them.
        """
        dtype = jnp.dtype(dtype)
        if self.tile_k * dtype.itemsize % SWIZZLE:
            raise ValueError(
                f"{self._name}: tile_k={self.tile_k} of {dtype} is {self.tile_k} x"
                f" {dtype.itemsize} = {self.tile_k * dtype.itemsize} B, not a multiple of the"
                f" {SWIZZLE} B of a swizzled row."
            )
        begin = share = min(255, specs.begin_registers(self.threads))
        if (needed := self.tile_n // 2 + _WGMMA_REGISTERS) > begin:
            raise ValueError(
                f"{self._name}: a wgmma of 64 x {self.tile_n} takes 64 x {self.tile_n} / 128 lanes"
                f" + {_WGMMA_REGISTERS} = {needed} registers of a lane, but a block of"
                f" {self.threads} threads begins with {begin} for each, the most that ptxas gives"
                " an instruction, so it does not compile."
            )
        if self.threads > self.compute_threads:
            share = specs.compute_registers(self.memory_registers, self.compute_threads)
        if (taken := self.accumulator_registers()) >= share:
            raise ValueError(
                f"{self._name}: an accumulator of {self.rows} x {self.tile_n} takes {self.rows} x"
                f" {self.tile_n} / 128 lanes = {taken} registers of a lane, but each of"
                f" {self.compute_threads} compute threads has {share}, and needs some for the rest."
            )
        check_smem(self._name, self.memory(dtype, out_dtype, operands))

    def memory(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike] = ()
    ) -> Memory:
        """The shared memory of a block, by what the kernel calls it.

        Args:
          dtype, out_dtype, operands: as `smem_bytes` takes them.
        """
        slots, staged = self.slots, self.staging_slots
        part = (STAGED_ROWS, self.epilogue_n)[:: -1 if self.swapped else 1]
        of_a, of_b = ((slots, size, self.tile_k) for size in (self.tile_m, self.tile_n))
        shape = self.compute_threads, staged, *part
        matrices = [Smem("an operand", shape, operand, staged) for operand in operands]
        loaded = Barriers(self.compute_threads * staged, len(operands))
        return {
            "a": Smem("slots of a", of_a, dtype, slots, is_emitted=True),
            "b": Smem("slots of b", of_b, dtype, slots, is_emitted=True),
            "staging": Smem("staging", shape, out_dtype, staged),
            **{f"operand {i}": operand for i, operand in enumerate(matrices)},
            **({"loaded": loaded} if operands else {}),
            "ring": Barriers(slots * (2 if self.threads > 1 else 1), is_emitted=True),
        }
