"""What a kernel's memory is called where its source gives it no name of its own.

The model. A parameter of the kernel's function is called as the source calls it. Three things have
only a place in a list there, and get a name from what the program does with them:

- An operand of a kernel of `*refs` is called as the function around the kernel calls the array that
  it was made of: `operands` finds these names in the jaxpr of the host.
- A buffer in SMEM that only copies of one array fill is that array's: the ring that `a_gmem` is
  loaded into is `a_smem`. So is a buffer that is only stored to one array.
- Barriers on which loads arrive are `produced`. Others that a loading thread waits for, and does
  not arrive on, are `consumed`.

Several of one name are numbered: `produced.0`, `produced.1`. Not covered: accumulators, and buffers
that several arrays share, which keep their places (`refs.3`).
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.extend.core import Literal

from pipelib.schedule.program import Barrier, Buffer, Kind, Program, Region, Space, short_name
from pipelib.schedule.tracing.source import is_of_jax, is_place, leaf_names

# In what the host's equations hold the jaxprs of functions that they call.
_CALLED = ("jaxpr", "call_jaxpr", "call")
_KERNEL = "mpmd_map"


def operands(jaxpr: Any) -> dict[int, list[str | None]]:
    """For each equation of a kernel, by its id, what the host calls its operands."""
    found: dict[int, list[str | None]] = {}
    _see(jaxpr, [], found)
    return found


def _see(jaxpr: Any, outer: Sequence[str | None], found: dict[int, list[str | None]]) -> None:
    """Notes the names of all kernels' operands in a jaxpr whose inputs the caller calls `outer`."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    names: dict[Any, str | None] = dict(zip(jaxpr.invars, _inputs(jaxpr, outer)))
    for eqn in jaxpr.eqns:
        given = [None if isinstance(atom, Literal) else names.get(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in _CALLED if key in eqn.params), None)
        if eqn.primitive.name == _KERNEL:
            found.setdefault(id(eqn), given)
        elif inner is not None:
            _see(inner, given, found)
        elif len(arrays := [atom for atom in eqn.invars if not isinstance(atom, Literal)]) == 1:
            # What is made of one array alone, as by a reshape, is called as that array.
            names |= dict.fromkeys(eqn.outvars, names.get(arrays[0]))


def _inputs(jaxpr: Any, outer: Sequence[str | None]) -> list[str | None]:
    """A function's own names for its inputs, or else its caller's."""
    count, info = len(jaxpr.invars), jaxpr.debug_info
    own = [] if is_of_jax(info) or not info.arg_names else leaf_names(info, count)
    callers = [*outer, *[None] * count] if len(outer) == count else [None] * count
    own = [*own, *[""] * (count - len(own))]
    return [callers[i] if not name or is_place(name) else name for i, name in enumerate(own)]


def named(program: Program) -> Program:
    """The program with names for the memory that has only a place in a list."""
    buffers = _renamed(program.buffers, _of_arrays(program))
    barriers = _renamed(program.barriers, _of_purposes(program))
    return dataclasses.replace(program, buffers=buffers, barriers=barriers)


def _of_arrays(program: Program) -> dict[int, str]:
    """For buffers in SMEM, by their ids: a name after the one array that copies them in or out."""
    copied: dict[Kind, defaultdict[int, set[str]]] = {
        Kind.LOAD: defaultdict(set), Kind.STORE: defaultdict(set),
    }  # fmt: skip
    for op in (op for ops in program.threads for op in ops if op.kind in copied):
        ends = (op.reads, op.writes) if op.kind == Kind.LOAD else (op.writes, op.reads)
        arrays, slots = (_of_space(program, end, space) for end, space in zip(ends, _ENDS))
        for slot in slots:
            copied[op.kind][slot.id] |= {short_name(array.name) for array in arrays}
    names: dict[int, str] = {}
    for arrays in (copied[Kind.STORE], copied[Kind.LOAD]):
        names |= {id: f"{min(found)}_smem" for id, found in arrays.items() if len(found) == 1}
    return names


_ENDS = Space.GMEM, Space.SMEM


def _of_space(program: Program, regions: Iterable[Region], space: Space) -> list[Buffer]:
    buffers = (program.buffers[region.buffer] for region in regions)
    return [buffer for buffer in buffers if buffer.space == space]


def _of_purposes(program: Program) -> dict[int, str]:
    """For barriers, by their ids: `produced` or `consumed`, if they are one of them."""
    produced: set[int] = set()
    consumed: set[int] = set()
    for ops in program.threads:
        on = {
            kind: {op.barrier for op in ops if op.kind == kind and op.barrier is not None}
            for kind in _ON_BARRIERS
        }
        produced |= on[Kind.LOAD] | {peer for op in ops for peer in op.peers}
        if on[Kind.LOAD]:
            consumed |= on[Kind.WAIT] - on[Kind.ARRIVE]
    return dict.fromkeys(consumed, "consumed") | dict.fromkeys(produced, "produced")


_ON_BARRIERS = Kind.LOAD, Kind.WAIT, Kind.ARRIVE


def _renamed[Named: (Buffer, Barrier)](
    memory: Sequence[Named], names: Mapping[int, str]
) -> tuple[Named, ...]:
    """The memory, with these names where it has only places; equal names are numbered."""
    parts = {each.id: each.name.partition("@") for each in memory}
    new = {id: names[id] for id, (name, _, _) in parts.items() if id in names and is_place(name)}
    taken = Counter((new.get(id, name), of) for id, (name, _, of) in parts.items())
    seen: Counter[tuple[str, str]] = Counter()
    result: list[Named] = []
    for each in memory:
        _, at, of = parts[each.id]
        name = new.get(each.id)
        if name is not None:
            number = f".{seen[name, of]}" if taken[name, of] > 1 else ""
            seen[name, of] += 1
            each = dataclasses.replace(each, name=f"{name}{number}{at}{of}")
        result.append(each)
    return tuple(result)
