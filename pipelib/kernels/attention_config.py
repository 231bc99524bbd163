"""`AttentionConfig`: how attention is divided, how its threads take turns, what it takes of an SM.

The model. In every kernel a block has `compute_threads` Pallas threads, each with so many *rows* of
the scores of one head, and goes through their columns in steps. In the forward kernel and that of
dQ, rows are queries and a step's columns are keys; in those of dK, of dV, of both and of all three,
the reverse.

SMEM has the rows' operands (through which results are stored too), a ring of `slots` of what a step
loads, numbers of rows, and barriers. Each thread has in registers float32 accumulators of its
results and of a step's products, and in 16 bits what the next product multiplies. All is added up
here before anything is compiled.

Source of the hardware's constants: `pipelib.specs`.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from pipelib import specs

SCHEDULES = ("plain", "overlap", "pingpong", "both")
PROBABILITIES = ("registers", "shared", "interpreted")
HEAD_DIMS = (64, 128, 256)
#: Mosaic GPU begins each array at a multiple of it, the bytes of a pattern of a 128 B swizzle.
_ALIGNMENT = 1024
_ITEM, _SUM = jnp.dtype(jnp.bfloat16).itemsize, jnp.dtype(jnp.float32).itemsize
#: Columns of K, or queries of dS, side by side in SMEM: threads share dQ at multiples of it.
_SIDE = 64


class Tiles(NamedTuple):
    """How a kernel divides the scores: rows of a thread, threads of a block, columns of a step."""

    rows: int
    threads: int
    block: int


class Gradients(NamedTuple):
    """What a kernel of the backward pass makes, and what it has in SMEM for that.

    Attributes:
      name: of the kernel.
      results: of these it makes, in this order: "dq", "dk", "dv".
      rows, columns: the axes of the scores that they are along: 0 queries, 1 keys.
      operands: how many of the rows' two its products read.
      factors: how many of P and dS go through SMEM for JAX's interpreter, and for nothing else.
    """

    name: str
    results: tuple[str, ...]
    rows: int = 1
    columns: int = 0
    operands: int = 2
    factors: int = 1


DQ = Gradients("dq", ("dq",), rows=0, columns=1)
DK = Gradients("dk", ("dk",))
DV = Gradients("dv", ("dv",), operands=1)
DKV = Gradients("dkv", ("dk", "dv"), factors=2)
ALL = Gradients("gradients", ("dq", "dk", "dv"))


@dataclasses.dataclass(frozen=True)
class GradientConfig:
    """How a kernel of the backward pass divides its work; what cannot be is refused.

    Attributes:
      rows: of each compute thread (queries for dQ, else keys), a multiple of 64.
      block: columns of a step (keys for dQ, else queries), a multiple of 64 to 256.
      slots: steps that are in SMEM at once, the most.
      compute_threads: Pallas threads that compute, 1 to 3.
      memory_registers: of each lane of the memory thread, a multiple of 8 from 24; the compute
        threads share the rest.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.
    """

    rows: int = 64
    block: int = 64
    slots: int = 2
    compute_threads: int = 2
    memory_registers: int = 40

    def __post_init__(self):
        _take_integers(self)
        _refuse("GradientConfig", _problems(self.rows, self.block, "block", self))

    @property
    def tiles(self) -> Tiles:
        """How it divides the scores."""
        return Tiles(self.rows, self.compute_threads, self.block)

    def d_q_part(self, head_dim: int) -> tuple[int, int] | None:
        """Queries and columns of a step's dQ that each thread makes in the kernel of all three.

        A part of the columns, or else of the queries; None if the threads can share neither.
        """
        threads = self.compute_threads
        if head_dim % (threads * _SIDE) == 0:
            return self.block, head_dim // threads
        if self.block % (threads * _SIDE) == 0:
            return self.block // threads, head_dim
        return None

    def smem_bytes(self, made: Gradients, head_dim: int, interpreted: bool = False) -> int:
        """Bytes of shared memory that a block takes; arguments as `check`'s."""
        return _total(self._smem_terms(made, head_dim, interpreted))

    def check(self, made: Gradients, head_dim: int, interpreted: bool = False) -> None:
        """Raises ValueError, with the sum, if an SM has too little, or threads cannot share dQ.

        Args:
          made: what the kernel makes: `DQ`, `DK`, `DV`, `DKV` or `ALL`.
          head_dim: the size of a head.
          interpreted: whether P and dS go through SMEM, as JAX's interpreter needs it.
        """
        threads, scores = self.compute_threads, self.rows * self.block // 128
        kept, part = min(len(made.results), 2), 0
        if made == ALL:
            if self.d_q_part(head_dim) is None:
                raise ValueError(
                    f"GradientConfig: neither {head_dim} columns of dQ nor {self.block} queries of"
                    f" a step over {threads} compute threads are a multiple of {_SIDE} for each,"
                    " which K and dS have side by side in SMEM, so the threads cannot share dQ."
                )
            part = self.block * head_dim // threads // 128
        registers = [("results", kept * self.rows * head_dim // 128), ("P", scores)]
        if made != DV:
            registers += [("dQ", part) if part > scores else ("dP", scores)]  # one after the other
        if "dv" in made.results:  # dV's product still reads it when dS is made, in the place of dP
            registers += [("P in 16 bits", scores // 2)]
        _check_registers("GradientConfig", registers, threads, self.memory_registers)
        _check_smem("GradientConfig", self._smem_terms(made, head_dim, interpreted))

    def _smem_terms(self, made, head_dim, interpreted) -> list[tuple[str, int, int]]:
        threads, slots, scores = self.compute_threads, self.slots, self.rows * self.block
        pairs, size = (threads, self.rows) if made == DQ else (slots, self.block)
        terms = [
            ("rows' operands", made.operands * threads, self.rows * head_dim * _ITEM),
            ("slots", 2 * slots, self.block * head_dim * _ITEM),
            ("log-sum-exp and delta", 2, _aligned(pairs * size * 4)),
        ]
        if made == ALL:
            terms += [("dS", 2 * threads, scores * _ITEM), ("dQ", 1, self.block * head_dim * _SUM)]
            terms += [("numbers of queries", 1, _aligned(threads * self.block * 4))]
        if interpreted:
            terms.append(("factors", made.factors * threads, scores * _ITEM))
        barriers = 2 * slots * (2 if made == DQ else 3) + threads + (made == ALL)
        return [*terms, ("barriers", barriers, 8)]


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """How `attention` divides its work; what cannot be is refused when it is made.

    Attributes:
      rows: queries of each compute thread, a multiple of 64, the rows of a `wgmma`.
      block_kv: keys of a step, a multiple of 64 to 256.
      slots: steps whose K and V are in SMEM at once, the most.
      compute_threads: Pallas threads that compute, 1 to 3; as many blocks of rows.
      schedule: "plain": a thread does one thing after the other; "overlap": its softmax runs beside
        its own product with V, of the step before; "pingpong": beside another thread's products;
        "both".
      probabilities: from where the forward kernel's `wgmma` reads them: "registers", where the
        softmax left them, or "shared", through SMEM, which "overlap" and "both" need: of products
        in flight together ptxas takes only the first from registers, and else waits for each.
        "interpreted" is "shared", for JAX's interpreter, in all kernels; it has neither factors
        in registers nor accumulators that do not begin as zeros.
      persistent: whether a block of the forward kernel goes on to other queries and loads ahead for
        them. It does not where a mask leaves blocks of unequal length or some see other segments,
        where SMEM has no room for it, and with "plain".
      dq, dkv: the kernels of the backward pass, that of dQ and that of dK and dV (with a head of
        256, those of dK and of dV); by default picked from head_dim.
      fused: instead of these a kernel of all three gradients, with five products, not seven; True
        picks it from head_dim, if there is one: with a head of 256 there is none. It is the
        fastest, but adds up dQ in no fixed order: the last bits of dQ differ from run to run.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      Steps of 64 keys leave registers for three compute threads, with heads of 128.

      >>> config = pipelib.kernels.AttentionConfig(block_kv=64, slots=4, compute_threads=3)
      >>> config.check(head_dim=128)  # raises where an SM has too little
      >>> config.block_q, config.smem_bytes(head_dim=128)
      (192, 230576)
    """

    rows: int = 64
    block_kv: int = 128
    slots: int = 2
    compute_threads: int = 2
    schedule: Literal["plain", "overlap", "pingpong", "both"] = "pingpong"
    probabilities: Literal["registers", "shared", "interpreted"] = "registers"
    persistent: bool = True
    dq: GradientConfig | None = None
    dkv: GradientConfig | None = None
    fused: GradientConfig | Literal[True] | None = None

    def __post_init__(self):
        _take_integers(self)
        if not isinstance(self.persistent, bool | np.bool_):
            because = "either a block goes on to other queries or it does not"
            raise specs.wrong_type("AttentionConfig: persistent", self.persistent, because)
        for name in ("dq", "dkv", "fused"):
            if (kernel := getattr(self, name)) is True and name == "fused":
                continue
            if not isinstance(kernel, GradientConfig | None):
                because = "a GradientConfig says how a kernel of the backward pass is divided"
                raise specs.wrong_type(f"AttentionConfig: {name}", kernel, because)
        _refuse("AttentionConfig", _problems(self.rows, self.block_kv, "block_kv", self) | {
            f"{self.schedule=} is none of {', '.join(SCHEDULES)}": self.schedule not in SCHEDULES,
            f"{self.schedule=} works on two steps at once, so {self.slots=} has no slot to load"
            " into": self.schedule != "plain" and self.slots < 2,
            f"{self.schedule=} needs threads that take turns, but {self.compute_threads=}":
                self.takes_turns and self.compute_threads < 2,
            f"{self.probabilities=} is none of {', '.join(PROBABILITIES)}":
                self.probabilities not in PROBABILITIES,
            "fused= is instead of dq= and dkv=, so one of these would do nothing":
                self.fused and (self.dq or self.dkv),
            f"{self.schedule=} queues Q K^T before P V, so {self.probabilities=} would have ptxas"
            " wait for each product: it takes only the first of those in flight from there":
                self.overlaps and not self.through_smem,
        })  # fmt: skip

    @property
    def overlaps(self) -> bool:
        """Whether a thread's softmax runs beside its own product."""
        return self.schedule in ("overlap", "both")

    @property
    def takes_turns(self) -> bool:
        """Whether compute threads take turns in the tensor core."""
        return self.schedule in ("pingpong", "both")

    @property
    def through_smem(self) -> bool:
        """Whether `wgmma` reads probabilities from SMEM."""
        return self.probabilities != "registers"

    @property
    def in_place(self) -> bool:
        """Whether `wgmma` adds to results where they are."""
        return self.probabilities != "interpreted"

    @property
    def memory_registers(self) -> int:
        """Those of a lane of the memory thread; of 40, three threads would have 152, not 160."""
        return 40 if self.compute_threads < 3 else 32

    @property
    def tiles(self) -> Tiles:
        """How it divides the scores."""
        return Tiles(self.rows, self.compute_threads, self.block_kv)

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        return self.compute_threads * self.rows

    def smem_bytes(self, head_dim: int) -> int:
        """Bytes of shared memory that a block of the forward kernel takes, at most."""
        return _total(self._smem_terms(head_dim, self.is_persistent(head_dim)))

    def is_persistent(self, head_dim: int) -> bool:
        """Whether a block goes on to other queries, where nothing is masked."""
        has_room = _total(self._smem_terms(head_dim, persistent=True)) <= specs.SMEM_BYTES
        return bool(self.persistent) and self.schedule != "plain" and has_room

    def check(self, head_dim: int) -> None:
        """Raises ValueError, with the sum, if an SM has too little for this head_dim."""
        scores = self.rows * self.block_kv // 128
        registers = [("result", self.rows * head_dim // 128), ("scores", scores)]
        # Otherwise the probabilities replace the scores, or are in SMEM.
        is_ahead = self.schedule != "plain" and not self.through_smem
        registers += [("probabilities", scores // 2)] * is_ahead
        _check_registers(
            "AttentionConfig", registers, self.compute_threads, self.memory_registers
        )
        _check_smem("AttentionConfig", self._smem_terms(head_dim))
        for made, kernel in self.gradients(head_dim).items():
            kernel.check(made, head_dim, not self.in_place)

    def gradients(self, head_dim: int) -> dict[Gradients, GradientConfig]:
        """The kernels of the backward pass, by what they make; none where plain JAX computes."""
        fused = _FUSED.get((head_dim, self.in_place)) if self.fused is True else self.fused
        if fused:
            return {ALL: fused}
        given = {DQ: self.dq, DKV: self.dkv, DK: self.dkv, DV: self.dkv}
        defaults = _GRADIENTS.get((head_dim, self.in_place), {})
        return {made: given[made] or default for made, default in defaults.items()}

    def _smem_terms(self, head_dim: int, persistent=False) -> list[tuple[str, int, int]]:
        threads = self.compute_threads
        terms = [
            ("queries", threads * (1 + persistent), self.rows * head_dim * _ITEM),
            ("slots of K and V", 2 * self.slots, self.block_kv * head_dim * _ITEM),
            ("log-sum-exp", 1, _aligned(threads * self.rows * 4)),
        ]
        if self.through_smem:
            terms.append(("probabilities", threads, self.rows * self.block_kv * _ITEM))
        turns = threads if self.takes_turns else 0
        return [*terms, ("barriers", 4 * self.slots + threads + turns, 8)]


def _take_integers(config: Any) -> None:
    """Makes an int of what must be one; TypeError if it is none."""
    for field in dataclasses.fields(config):
        if field.type is int:
            name = f"{type(config).__name__}: {field.name}"
            value = specs.integer(name, getattr(config, field.name))
            object.__setattr__(config, field.name, value)


def _problems(rows: int, block: int, name: str, config: Any) -> dict[str, Any]:
    """What makes a kernel of any configuration impossible."""
    return {
        f"{rows=} is not a multiple of 64, the rows of a wgmma": rows < 1 or rows % 64,
        f"{name}={block} is not a multiple of 64 up to 256, the most columns of a wgmma":
            block not in (64, 128, 192, 256),
        f"{config.slots=} is not 1 to {specs.MAX_SLOTS}, which barriers can tell":
            not 1 <= config.slots <= specs.MAX_SLOTS,
        f"{config.compute_threads=} is not 1 to 3, so that a block has at most 512 lanes":
            not 1 <= config.compute_threads <= 3,
    }  # fmt: skip


def _refuse(name: str, problems: dict[str, Any]) -> None:
    for problem in (text for text, is_so in problems.items() if is_so):
        raise ValueError(f"{name}: {problem.replace('self.', '').replace('config.', '')}.")


def _check_registers(
    name: str, terms: list[tuple[str, int]], compute_threads: int, memory_registers: int
) -> None:
    share = min(255, specs.compute_registers(memory_registers, compute_threads))
    if (total := sum(size for _, size in terms)) >= share:
        terms = " + ".join(f"{term} {size}" for term, size in terms)
        raise ValueError(
            f"{name}: {terms} = {total} registers of a lane, but each of {compute_threads} compute"
            f" threads has {share}, and needs some for the rest."
        )


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _total(terms: list[tuple[str, int, int]]) -> int:
    return sum(count * size for _, count, size in terms)


def _check_smem(name: str, terms: list[tuple[str, int, int]]) -> None:
    if (total := _total(terms)) > specs.SMEM_BYTES:
        terms = " + ".join(f"{term} {count} x {size:,} B" for term, count, size in terms)
        raise ValueError(
            f"{name}: {terms} = {total:,} B of shared memory, but a block has"
            f" {specs.SMEM_BYTES:,} B, so the kernel could not start."
        )


#: By head_dim and whether in place, or small for JAX's interpreter. With a head of 256, dK and dV
#: of 64 keys would fill the registers of a thread: they have a kernel each.
#: As many columns as registers hold; which threads and slots have room beside a head of 256 was
#: measured (`benchmarks/attention.py`), and nothing else.
_GRADIENTS = {
    (64, True): {DQ: GradientConfig(block=128, slots=3), DKV: GradientConfig(slots=3)},
    (128, True): {DQ: GradientConfig(block=128), DKV: GradientConfig(slots=3)},
    (256, True): dict.fromkeys((DQ, DK), GradientConfig(compute_threads=1))
    | {DV: GradientConfig()},
    (64, False): dict.fromkeys((DQ, DKV), GradientConfig(compute_threads=1)),
    (128, False): dict.fromkeys((DQ, DKV), GradientConfig(compute_threads=1)),
    (256, False): dict.fromkeys((DQ, DK, DV), GradientConfig(compute_threads=1, slots=1)),
}
#: Of the kernel of all three. The registers that its memory thread does not have keep ptxas from
#: spilling: `benchmarks/attention.py` measures both, with 24 and with 40.
_FUSED = {
    (64, True): GradientConfig(block=128, memory_registers=24),
    (128, True): GradientConfig(memory_registers=24),
    (64, False): GradientConfig(compute_threads=1),
    (128, False): GradientConfig(compute_threads=2),
}
