"""What a kernel's memory is called where its source gives it no name of its own.

The model. A parameter of the kernel's function is called as the source calls it. Three things have
only a place in a list there, and get a name from what the program does with them:

- An operand of a kernel of `*refs` is called as the function around the kernel calls the array that
  it was made of: `operands` finds these names in the jaxpr of the host.
- A buffer in SMEM that only copies of one array fill is that array's: the ring that `a_gmem` is
  loaded into is `a_smem`. So is a buffer that is only stored to one array.
- Barriers on which loads arrive are `produced`. Others that a loading thread waits for, and only
  other threads arrive on, are `consumed`.

Several of one name are numbered: `produced.0`, `produced.1`. Not covered: accumulators, and buffers
that several arrays share, which keep their places (`refs.3`).
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from jax.extend.core import Literal

from pallascope.program import Barrier, Buffer, Kind, Program, Region, Space, short_name
from pallascope.tracing.jaxprs import Atom, Jaxpr
from pallascope.tracing.source import is_of_jax, is_place, leaf_names

#: In what the host's equations hold the jaxprs of functions that they call.
CALLED = ("jaxpr", "call_jaxpr", "call")
#: The primitive of a kernel.
KERNEL = "mpmd_map"


def operands(jaxpr: Jaxpr) -> dict[int, list[str | None]]:
    """For each equation of a kernel, by its id, what the host calls its operands."""
    found: dict[int, list[str | None]] = {}
    _see(jaxpr, [], found)
    return found


def _see(jaxpr: Jaxpr, outer: Sequence[str | None], found: dict[int, list[str | None]]) -> None:
    """Notes the names of all kernels' operands in a jaxpr whose inputs the caller calls `outer`."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    names: dict[Atom, str | None] = dict(zip(jaxpr.invars, _inputs(jaxpr, outer)))
    for eqn in jaxpr.eqns:
        given = [None if isinstance(atom, Literal) else names.get(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in CALLED if key in eqn.params), None)
        if eqn.primitive.name == KERNEL:
            found.setdefault(id(eqn), given)
        elif inner is not None:
            _see(inner, given, found)
        elif len(arrays := [atom for atom in eqn.invars if not isinstance(atom, Literal)]) == 1:
            # What is made of one array alone, as by a reshape, is called as that array.
            names |= dict.fromkeys(eqn.outvars, names.get(arrays[0]))


def _inputs(jaxpr: Jaxpr, outer: Sequence[str | None]) -> list[str | None]:
    """A function's own names for its inputs, or else its caller's."""
    count, info = len(jaxpr.invars), jaxpr.debug_info
    own = [] if is_of_jax(info) or not info.arg_names else leaf_names(info, count)
    callers = [*outer, *[None] * count] if len(outer) == count else [None] * count
    own = [*own, *[""] * (count - len(own))]
    return [callers[i] if not name or is_place(name) else name for i, name in enumerate(own)]


def named(program: Program) -> Program:
    """The program with names for the memory that has only a place in a list."""
    if not any(
        is_place(each.name.partition("@")[0]) for each in (*program.buffers, *program.barriers)
    ):
        return program
    buffers = _renamed(program.buffers, _of_arrays(program))
    barriers = _renamed(program.barriers, _of_purposes(program))
    return dataclasses.replace(program, buffers=buffers, barriers=barriers)


def _of_arrays(program: Program) -> dict[int, str]:
    """For buffers in SMEM, by their ids: a name after the one array that copies them in or out."""
    loaded: defaultdict[int, set[str]] = defaultdict(set)
    stored: defaultdict[int, set[str]] = defaultdict(set)
    for is_load, reads, writes in {
        (op.kind is not Kind.STORE, _ids(op.reads), _ids(op.writes))
        for op in program.ops
        if op.kind in (Kind.LOAD, Kind.CP_ASYNC, Kind.STORE)
    }:
        arrays, ends = (reads, writes) if is_load else (writes, reads)
        names = {short_name(program.buffers[id].name) for id in arrays if _is_in_gmem(program, id)}
        for id in ends:
            (loaded if is_load else stored)[id] |= names
    return {
        id: f"{min(names)}_smem"
        for copied in (stored, loaded)
        for id, names in copied.items()
        if len(names) == 1 and not _is_in_gmem(program, id)
    }


def _ids(regions: Iterable[Region]) -> tuple[int, ...]:
    return tuple([region.buffer for region in regions])


def _is_in_gmem(program: Program, buffer: int) -> bool:
    return program.buffers[buffer].space == Space.GMEM


def _of_purposes(program: Program) -> dict[int, str]:
    """For barriers, by their ids: `produced` or `consumed`, if they are one of them."""
    produced: set[int] = set()
    consumed: set[int] = set()
    arrived: set[int] = set()
    for ops in program.threads:
        on = {(op.kind, op.barrier, op.peers) for op in ops if op.barrier is not None}
        loads = {b for kind, own, peers in on if kind is Kind.LOAD for b in (own, *peers)}
        waits, arrives = (
            {barrier for kind, barrier, _ in on if kind is each}
            for each in (Kind.WAIT, Kind.ARRIVE)
        )
        produced |= loads
        arrived |= arrives.union(*(program.barriers[barrier].peers for barrier in arrives))
        consumed |= waits - arrives if loads else set()
    return dict.fromkeys(consumed & arrived, "consumed") | dict.fromkeys(produced, "produced")


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
