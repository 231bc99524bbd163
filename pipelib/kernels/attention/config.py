"""`AttentionConfig`: how attention is divided, how its threads take turns, what it takes of an SM.

The model. In every kernel a block has `compute_threads` Pallas threads. Each thread has some *rows*
of the scores of one head, and goes through their columns in steps. In the forward kernel and the
kernel of dQ, rows are queries and a step's columns are keys. In the other kernels of the gradients,
rows are keys and columns are queries.

SMEM has the rows' operands (through which results are stored too), a ring of `slots` of what a step
loads, numbers of rows, and barriers. In registers each thread has float32 accumulators of its
results and of a step's products, and the 16-bit factors of the next product. All of this is added
up here before anything is compiled.

Source of the hardware's constants: `pipelib.specs`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.kernels.dividing import (
    Barriers,
    Memory,
    Smem,
    Term,
    check_registers,
    check_smem,
    refuse,
    smem_bytes,
    take_integers,
)

#: The values of `AttentionConfig.schedule`, and of `AttentionConfig.probabilities`.
SCHEDULES = ("plain", "overlap", "pingpong", "optimistic")
PROBABILITIES = ("registers", "interpreted")
#: Where the ladder's other values are, for who asks for one here.
_ELSEWHERE = "the ladder's others are those of pipelib_book.attention_forms.RungConfig"
#: The sizes of a head that the kernels have.
HEAD_DIMS = (64, 128, 256)
#: A dtype of the operands' size.
_HALF = jnp.bfloat16
#: Columns of K, or queries of dS, that lie side by side in SMEM: threads divide dQ at multiples.
_SIDE = 64
_BOOLS: tuple[type, ...] = bool, np.bool_


class Tiles(NamedTuple):
    """How a kernel divides the scores.

    Attributes:
      rows: rows of each compute thread.
      threads: compute threads of a block.
      block: columns of a step.
    """

    rows: int
    threads: int
    block: int


class Gradients(NamedTuple):
    """A kernel of the backward pass: what it makes, and what it has in SMEM for that.

    Attributes:
      name: the kernel's name.
      results: what it makes, of "dq", "dk" and "dv", in this order.
      rows, columns: which axis of the scores these are: 0 queries, 1 keys.
      operands: how many of the rows' two operands its products read.
      factors: how many of P and dS go through SMEM, which only JAX's interpreter needs.
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
      rows: rows of each compute thread (queries for dQ, else keys), a multiple of 64.
      block: columns of a step (keys for dQ, else queries), a multiple of 64 up to 256.
      slots: the most steps that are in SMEM at once.
      compute_threads: Pallas threads that compute, 1 to 3.
      memory_registers: registers for each lane of the memory thread, a multiple of 8 from 24; the
        compute threads share the rest.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      Longer steps for the kernel of dQ, with a head of 64:

      >>> d_q = pipelib.kernels.GradientConfig(block=128, slots=3)
      >>> config = AttentionConfig(dq=d_q)
      >>> config.check(head_dim=64)  # raises where an SM has too little
      >>> [kernel.block for kernel in config.gradients(head_dim=64).values()]
      [128, 64]
    """

    rows: int = 64
    block: int = 64
    slots: int = 2
    compute_threads: int = 2
    memory_registers: int = 40

    def __post_init__(self) -> None:
        take_integers(self)
        refuse(
            "GradientConfig",
            problems_of(self.rows, self.block, "block", self.slots, self.compute_threads),
        )

    @property
    def tiles(self) -> Tiles:
        """How it divides the scores."""
        return Tiles(self.rows, self.compute_threads, self.block)

    def d_q_part(self, head_dim: int) -> tuple[int, int]:
        """The queries and columns of a step's dQ that each thread of the kernel of all three makes.

        The threads divide the columns or, if they cannot, the queries.

        Raises:
          ValueError: they can divide neither.
        """
        threads = self.compute_threads
        if head_dim % (threads * _SIDE) == 0:
            return self.block, head_dim // threads
        if self.block % (threads * _SIDE) == 0:
            return self.block // threads, head_dim
        raise ValueError(
            f"GradientConfig: neither {head_dim} columns of dQ nor {self.block} queries of a step"
            f" over {threads} compute threads are a multiple of {_SIDE} for each, which K and dS"
            " have side by side in SMEM, so the threads cannot share dQ."
        )

    def smem_bytes(self, made: Gradients, head_dim: int, interpreted: bool = False) -> int:
        """Bytes of shared memory that a block takes.

        Args:
          made, head_dim, interpreted: as `check` takes them.
        """
        return smem_bytes(self.memory(made, head_dim, interpreted))

    def check(self, made: Gradients, head_dim: int, interpreted: bool = False) -> None:
        """Raises ValueError, with the sum, if an SM has too little, or threads cannot share dQ.

        Args:
          made: the kernel: `DQ`, `DK`, `DV`, `DKV` or `ALL`.
          head_dim: the size of a head.
          interpreted: whether P and dS go through SMEM, as JAX's interpreter needs it.
        """
        threads, scores = self.compute_threads, self.rows * self.block // 128
        kept, part = min(len(made.results), 2), 0
        if made == ALL:
            part = math.prod(self.d_q_part(head_dim)) // 128
        registers = {"results": kept * self.rows * head_dim // 128, "P": scores}
        if made != DV:  # one after the other
            registers["dQ" if part > scores else "dP"] = max(part, scores)
        if "dv" in made.results:  # dV's product still reads it when dS is made, in the place of dP
            registers["P in 16 bits"] = scores // 2
        check_registers("GradientConfig", registers, threads, self.memory_registers)
        check_smem("GradientConfig", self.memory(made, head_dim, interpreted))

    def memory(
        self, made: Gradients, head_dim: int, interpreted: bool = False, dtype: DTypeLike = _HALF
    ) -> Memory:
        """The shared memory of a block of a kernel.

        "operands" are the rows' operands, Q and dO or K and V, through which results are stored.
        The kernel of all three has "d_s", two slots of dS; "d_q", each thread's part of a step's
        dQ; "exchanged", where threads meet; and "queries", the numbers of queries for masks.

        Args:
          made, head_dim, interpreted: as `check` takes them.
          dtype: of the operands.
        """
        threads, slots, rows, block = self.compute_threads, self.slots, self.rows, self.block
        operand, copies = (threads, rows, head_dim), made.operands
        loaded = (2, slots, block, head_dim)
        memory: Memory = {
            "operands": Smem("rows' operands", operand, dtype, copies * threads, copies),
            "slots": Smem("slots", loaded, dtype, 2 * slots, is_emitted=True),
        }
        numbers, sums = "log-sum-exp and delta", jnp.float32
        if made == DQ:
            memory["numbers"] = Smem(numbers, (threads, 2, rows), sums, 2, is_tiled=False)
        else:
            memory["numbers"] = Smem(numbers, (slots, 2, block), sums, 2, is_emitted=True)
        arrivals = made.operands + (made == DQ)
        memory["loaded"] = Barriers(threads, arrivals)
        memory["ring"] = Barriers(2 * slots * (2 if made == DQ else 3), is_emitted=True)
        if made == ALL:
            exchanged = 2, threads, rows, block
            memory["d_s"] = Smem("dS", exchanged, dtype, 2 * threads)
            memory["d_q"] = Smem("dQ", (threads, *self.d_q_part(head_dim)), sums)
            memory["exchanged"] = Barriers(arrivals=threads)
            queries = Smem("numbers of queries", (threads, block), jnp.int32, is_tiled=False)
            memory["queries"] = queries
        if interpreted:
            count, factor = made.factors * threads, (threads, rows, block)
            memory["factors"] = Smem("factors", factor, dtype, count, made.factors)
        return memory


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """How `attention` divides its work. A configuration that cannot be is refused when it is made.

    Attributes:
      rows: queries of each compute thread, a multiple of 64, the rows of a `wgmma`.
      block_kv: keys of a step, a multiple of 64 up to 256.
      slots: the most steps whose K and V are in SMEM at once.
      compute_threads: Pallas threads that compute, 1 to 3.
      schedule: "plain": a thread does one thing after the other. "overlap": its softmax runs beside
        its own product with V, of the previous step. "pingpong": its softmax runs beside the
        products of another thread. "optimistic": beside its own and another thread's, and a step
        makes a maximum only where its sums show that the maximum of the steps before is too small.
      probabilities: from where `wgmma` reads them. "registers": where the softmax left them.
        "interpreted": through SMEM, for JAX's interpreter, which has neither factors in registers
        nor accumulators that do not start at zero.
      persistent: whether a block of the forward kernel goes on to other queries, and loads ahead
        for them. It does so only where there are no segments, SMEM has room, and the schedule is
        not "plain"; and, if something is masked, where the schedule is "optimistic" and each SM
        gets its share of the steps (`order`).
      dq, dkv: the kernels of the backward pass: of dQ, and of dK and dV (with a head dimension of
        256, of dK and of dV each); by default picked from head_dim.
      fused: one kernel of all three gradients instead, with five products, not seven. True picks it
        from head_dim; with a head dimension of 256 there is none. It is the fastest, but adds up dQ
        in no fixed order: the last bits of dQ differ from run to run.

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
    schedule: Literal["plain", "overlap", "pingpong", "optimistic"] = "pingpong"
    probabilities: Literal["registers", "interpreted"] = "registers"
    persistent: bool = True
    dq: GradientConfig | None = None
    dkv: GradientConfig | None = None
    fused: GradientConfig | Literal[True] | None = None
    #: The values of `schedule` and of `probabilities`; a subclass may have more.
    schedules: ClassVar[tuple[str, ...]] = SCHEDULES
    places: ClassVar[tuple[str, ...]] = PROBABILITIES

    def __post_init__(self) -> None:
        take_integers(self)
        if not isinstance(self.persistent, _BOOLS):
            because = "either a block goes on to other queries or it does not"
            raise specs.wrong_type("AttentionConfig: persistent", self.persistent, because)
        for name in ("dq", "dkv", "fused"):
            kernel: object = getattr(self, name)
            if kernel is True and name == "fused":
                continue
            if not isinstance(kernel, GradientConfig | None):
                because = "a GradientConfig says how a kernel of the backward pass is divided"
                raise specs.wrong_type(f"AttentionConfig: {name}", kernel, because)
        common = problems_of(self.rows, self.block_kv, "block_kv", self.slots, self.compute_threads)
        is_known, is_there = self.schedule in self.schedules, self.probabilities in self.places
        is_alone, is_shallow = self.compute_threads < 2, self.slots < 2
        own = {
            f"{self.schedule=} is none of {', '.join(self.schedules)}; {_ELSEWHERE}": not is_known,
            f"{self.schedule=} works on two steps at once, so {self.slots=} has no slot to load"
            " into": self.schedule != "plain" and is_shallow,
            f"{self.schedule=} needs threads that take turns, but {self.compute_threads=}": (
                self.takes_turns and is_alone
            ),
            f"{self.probabilities=} is none of {', '.join(self.places)}; {_ELSEWHERE}": (
                not is_there
            ),
            "fused= is instead of dq= and dkv=, so one of these would do nothing": (
                self.fused and bool(self.dq or self.dkv)
            ),
        }
        refuse("AttentionConfig", common | own)

    @property
    def thread_class(self) -> type[Any] | None:
        """The class of the forward kernel's compute threads; None: that of `schedule`."""
        return None

    @property
    def overlaps(self) -> bool:
        """Whether a thread's softmax runs beside its own product."""
        return self.schedule in ("overlap", "optimistic")

    @property
    def takes_turns(self) -> bool:
        """Whether compute threads take turns in the tensor core."""
        return self.schedule in ("pingpong", "optimistic")

    @property
    def through_smem(self) -> bool:
        """Whether `wgmma` reads probabilities from SMEM."""
        return self.probabilities != "registers"

    @property
    def rounds_late(self) -> bool:
        """Whether probabilities stay float32 until the product before has read its own."""
        return self.overlaps and not self.through_smem

    @property
    def in_place(self) -> bool:
        """Whether `wgmma` adds to results where they are."""
        return self.probabilities != "interpreted"

    @property
    def memory_registers(self) -> int:
        """Registers for each lane of the memory thread.

        40 would leave three compute threads just 152, and "optimistic" needs what 24 leave.
        """
        if self.schedule == "optimistic":
            return 24
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
        return smem_bytes(self.memory(head_dim, self.is_persistent(head_dim)))

    def is_persistent(self, head_dim: int) -> bool:
        """Whether a block goes on to other queries, where nothing is masked."""
        has_room = smem_bytes(self.memory(head_dim, persistent=True)) <= specs.SMEM_BYTES
        return bool(self.persistent) and self.schedule != "plain" and has_room

    def check(
        self,
        head_dim: int,
        more: Sequence[Term] = (),
        name: str = "AttentionConfig",
        dtype: DTypeLike = _HALF,
    ) -> None:
        """Raises ValueError, with the sum, if an SM has too little for this head_dim.

        Args:
          head_dim: the size of a head.
          more: what else lies in SMEM: a name, a count, and the bytes of each.
          name: the class of the configuration that the caller gave; the error begins with it.
          dtype: of q, k and v; with one of one byte there are no gradients.
        """
        scores, itemsize = self.rows * self.block_kv // 128, jnp.dtype(dtype).itemsize
        registers = {"result": self.rows * head_dim // 128, "scores": scores}
        # Otherwise the probabilities replace the scores, or are in SMEM.
        if self.schedule != "plain" and not self.through_smem:
            registers["probabilities"] = scores * itemsize // 4
        check_registers(name, registers, self.compute_threads, self.memory_registers)
        check_smem(name, self.memory(head_dim, dtype=dtype), more)
        for made, kernel in self.gradients(head_dim).items() if itemsize > 1 else ():
            kernel.check(made, head_dim, not self.in_place)

    def gradients(self, head_dim: int) -> dict[Gradients, GradientConfig]:
        """The kernels of the backward pass, by what they make; none where plain JAX computes."""
        fused = _FUSED.get((head_dim, self.in_place)) if self.fused is True else self.fused
        if fused:
            return {ALL: fused}
        given = {DQ: self.dq, DKV: self.dkv, DK: self.dkv, DV: self.dkv}
        defaults = _GRADIENTS.get((head_dim, self.in_place), {})
        return {made: given[made] or default for made, default in defaults.items()}

    def memory(self, head_dim: int, persistent: bool = False, dtype: DTypeLike = _HALF) -> Memory:
        """The shared memory of a block of the forward kernel.

        The result is stored through "q", of a persistent kernel through "next_q", and of float8
        through "out". "turns" has a schedule barrier for each thread (`queries`).

        Args:
          head_dim: the size of a head.
          persistent: whether the next queries are loaded ahead.
          dtype: of q, k and v.
        """
        threads, rows, slots = self.compute_threads, self.rows, self.slots
        queries = Smem("queries", (threads, rows, head_dim), dtype, threads)
        loaded = 2, slots, self.block_kv, head_dim
        memory: Memory = {
            "q": queries,
            "slots": Smem("slots of K and V", loaded, dtype, 2 * slots, is_emitted=True),
            "lse": Smem("log-sum-exp", (threads, rows), jnp.float32, is_tiled=False),
            "loaded": Barriers(threads),
            "ring": Barriers(4 * slots, is_emitted=True),
        }
        if persistent:
            memory["next_q"] = queries
        if self.through_smem:
            scores = threads, rows, self.block_kv
            memory["p"] = Smem("probabilities", scores, dtype, threads)
        if jnp.dtype(dtype).itemsize == 1:
            memory["out"] = Smem("result", (threads, rows, head_dim), _HALF, threads)
        if self.takes_turns:
            memory["turns"] = Barriers(threads)
        return memory


def problems_of(
    rows: int, block: int, name: str, slots: int, compute_threads: int
) -> dict[str, object]:
    """What can be wrong with the fields that all configurations have, and whether it is so.

    `name` is the name of the field `block`.
    """
    return {
        f"{rows=} is not a multiple of 64, the rows of a wgmma": rows < 1 or rows % 64,
        f"{name}={block} is not a multiple of 64 up to 256, the most columns of a wgmma": block
        not in (64, 128, 192, 256),
        f"{slots=} is not 1 to {specs.MAX_SLOTS}, the most barriers of one array": not 1
        <= slots
        <= specs.MAX_SLOTS,
        f"{compute_threads=} is not 1 to 3, so that a block has at most 512 lanes": not 1
        <= compute_threads
        <= 3,
    }


#: The kernels of the gradients, by head_dim and by whether they add in place (else they are small,
#: for JAX's interpreter). With a head dimension of 256, dK and dV of 64 keys would fill the
#: registers of a thread, so they have a kernel each. Steps have as many columns as registers hold.
#: Of these numbers only the threads and slots for 256 were measured (`benchmarks/attention.py`).
_GRADIENTS = {
    (64, True): {DQ: GradientConfig(block=128, slots=3), DKV: GradientConfig(slots=3)},
    (128, True): {DQ: GradientConfig(block=128), DKV: GradientConfig(slots=3)},
    (256, True): dict.fromkeys((DQ, DK), GradientConfig(compute_threads=1))
    | {DV: GradientConfig()},
    (64, False): dict.fromkeys((DQ, DKV), GradientConfig(compute_threads=1)),
    (128, False): dict.fromkeys((DQ, DKV), GradientConfig(compute_threads=1)),
    (256, False): dict.fromkeys((DQ, DK, DV), GradientConfig(compute_threads=1, slots=1)),
}
#: The kernel of all three. Its memory thread has 24 registers: with 40, ptxas spills in the compute
#: threads (`benchmarks/attention.py` measures both).
_FUSED = {
    (64, True): GradientConfig(block=128, memory_registers=24),
    (128, True): GradientConfig(memory_registers=24),
    (64, False): GradientConfig(compute_threads=1),
    (128, False): GradientConfig(compute_threads=2),
}
