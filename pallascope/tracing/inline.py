"""What device code does to order threads: named barriers and fences in `plgpu.inline_mgpu`.

The algorithm. Such code is a Python function that writes MLIR. It is run here, in a module that
nobody compiles, with unknown scalars for its arguments. Then the ops that it wrote are read. They
are understood if all of them are arithmetic on those scalars or one of these:

- `bar.sync` and `bar.arrive` on a named barrier, or `nvvm.barrier`;
- a barrier of all threads of the block (`gpu.barrier`), of a thread's lanes, or of a warp's;
- the fence between ordinary and asynchronous accesses of SMEM (`nvvm.fence.proxy`, or
  `fence.proxy.async` in PTX, also one that only releases or acquires).

Not covered: code that takes refs or arrays, control flow, the launch context, any other op. All of
that is opaque. Source: PTX ISA, `barrier` and `fence.proxy.async`.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import enum
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir

from pallascope.machine import THREAD_LANES
from pallascope.tracing.jaxprs import Eqn

_HOPPER = {"arch_major": 9, "arch_minor": 0}  # as Mosaic GPU notes it of a module


class Does(enum.Enum):
    """What an instruction does; ARRIVE and SYNC are on a named barrier.

    All threads of the block MEET; LANES are those of one thread, which meet by themselves.
    """

    ARRIVE = enum.auto()
    SYNC = enum.auto()
    MEET = enum.auto()
    LANES = enum.auto()
    FENCE = enum.auto()


class Operand(NamedTuple):
    """An operand that the kernel gives: its number among the scalars of the call."""

    number: int


class Instruction(NamedTuple):
    """An instruction; of a barrier, its number and the lanes that it takes."""

    does: Does
    barrier: int | Operand = 0
    lanes: int | Operand = 0


class _Opaque(Exception):
    """The code does what is not understood here."""


class _NoContext:
    """Stands for the launch context, which is not there."""

    def __getattr__(self, name: str) -> Any:
        raise _Opaque


def instructions(eqn: Eqn) -> list[Instruction] | None:
    """What the device code of an equation does, in order; None if it is opaque."""
    avals = [atom.aval for atom in eqn.invars]
    if eqn.outvars or not all(map(_is_integer, avals)):
        return None
    try:
        return list(_read(eqn.params["mgpu_fn"], [aval.dtype for aval in avals]))
    except Exception:  # whatever the author's code does where it is not compiled
        return None


def _is_integer(aval: Any) -> bool:
    is_number = isinstance(getattr(aval, "dtype", None), np.dtype)
    return is_number and not aval.shape and aval.dtype.kind in "iu"


def _read(function: Callable[..., object], dtypes: list[Any]) -> Iterator[Instruction]:
    """Runs a function that writes MLIR, and reads what it wrote."""
    with cast(Any, mlir).make_ir_context() as context, ir.Location.unknown():
        mgpu.dialect.register_dialect(context)
        module = ir.Module.create()
        for name, number in _HOPPER.items():
            at = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)
            module.operation.attributes[f"mosaic_gpu.{name}"] = at
        types = [ir.IntegerType.get_signless(8 * dtype.itemsize) for dtype in dtypes]
        with ir.InsertionPoint(module.body):
            written = func.FuncOp("inline", (types, []))
        block = written.add_entry_block()
        with ir.InsertionPoint(block):
            signs = [dtype.kind == "i" for dtype in dtypes]
            function(_NoContext(), *map(_splat, block.arguments, signs))
        for op in block.operations:
            yield from _instruction(op)


def _splat(value: Any, is_signed: bool) -> Any:
    """A scalar as Mosaic GPU passes it."""
    return mgpu.FragmentedArray.splat(value, (), is_signed=is_signed)


def _instruction(op: Any) -> Iterator[Instruction]:
    """The instruction of an op, if it is no arithmetic."""
    name = op.operation.name
    if name.startswith("arith."):
        return
    if name == "llvm.inline_asm":
        yield from _of_ptx(op)
    elif name == "gpu.barrier" or (name == "nvvm.barrier" and not len(op.operands)):
        yield Instruction(Does.MEET)
    elif name == "nvvm.barrier" and len(op.operands) == 2:
        yield Instruction(Does.SYNC, *map(_value, op.operands))
    elif name == "nvvm.fence.proxy" and "async.shared" in str(op.attributes["kind"]):
        yield Instruction(Does.FENCE)
    elif name != "nvvm.bar.warp.sync" and not _finds_its_warpgroup(op):
        raise _Opaque


_BAR = re.compile(
    r"\s*(?:barrier\.cta|barrier|bar)\.(sync|arrive)(?:\.aligned)?"
    r"\s+(\$?\d+)\s*(?:,\s*(\$?\d+))?\s*;\s*"
)


_FENCE = re.compile(r"\s*fence\.proxy\.async[\w.:]*\s*;\s*")


def _of_ptx(op: Any) -> Iterator[Instruction]:
    """The instruction of inline PTX."""
    text = op.attributes["asm_string"].value
    if _FENCE.fullmatch(text):
        yield Instruction(Does.FENCE)
        return
    found = _BAR.fullmatch(text)
    if found is None:
        raise _Opaque
    verb, barrier, lanes = found.groups()
    if lanes is None:
        yield Instruction(Does.MEET)
        return

    def operand(word: str) -> int | Operand:
        return _value(op.operands[int(word[1:])]) if word.startswith("$") else int(word)

    if operand(lanes) == THREAD_LANES and verb == "sync":
        yield Instruction(Does.LANES)
    else:
        yield Instruction(Does[verb.upper()], operand(barrier), operand(lanes))


def _value(value: Any) -> int | Operand:
    """A constant, or a scalar that the kernel gives."""
    if isinstance(value, ir.BlockArgument):
        return Operand(value.arg_number)
    owner = value.owner
    if owner.name == "arith.constant":
        return int(owner.attributes["value"].value)
    raise _Opaque


def _finds_its_warpgroup(op: Any) -> bool:
    """Whether an op is one by which `warpgroup_barrier` finds the number of its barrier."""
    return op.operation.name.startswith(("gpu.thread_id", "gpu.block_dim", "nvvm.shfl"))
