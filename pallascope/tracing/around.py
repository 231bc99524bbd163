"""`fusions`: what XLA runs around the Mosaic GPU kernels of a function, as the bytes that it moves.

The model. XLA makes one kernel of equations that hang together: it reads once what comes from
elsewhere, and writes what is used elsewhere. What nobody uses is left out, a reshape moves nothing,
and what depends on no array is a constant. Source: XLA's "GPU architecture", on fusions.

Not covered: equations that hang together and of which XLA makes several kernels, as a sum whose
elements are divided by it; XLA's own products, sorts, loops and calls, which are left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax.extend.core import Literal

from pallascope.tracing.jaxprs import Atom, Eqn, Jaxpr, primitives
from pallascope.tracing.names import CALLED, KERNEL

#: What gives a new view, and moves nothing.
_VIEWS = primitives("reshape squeeze expand_dims bitcast_convert_type stop_gradient copy")
#: What XLA makes a part of a kernel with what is around it.
_FUSED = primitives(
    "abs add and broadcast_in_dim ceil clamp concatenate convert_element_type cos div eq erf exp"
    " exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not"
    " or pad pow reduce_and reduce_max reduce_min reduce_or reduce_sum rem rev round rsqrt select_n"
    " sign sin slice split sqrt square stack sub tan tanh transpose xor"
)
#: What is a kernel or a loop, though it has a jaxpr.
_CALLS = KERNEL, "scan"


class Fusion(NamedTuple):
    """A kernel that XLA makes: the bytes that it reads, and those that it writes."""

    read: int
    written: int


class _Node(NamedTuple):
    """An equation: the values that it takes and gives, by number; whether XLA fuses it."""

    takes: list[int]
    gives: list[int]
    is_fused: bool


def fusions(jaxpr: Jaxpr) -> list[Fusion]:
    """The kernels that XLA makes around those that a function calls itself."""
    host = _Host()
    results = host.see(jaxpr, [host.value(atom) for atom in jaxpr.jaxpr.invars])
    live = [*_live(host.nodes, results)][::-1]
    groups = _groups(live)
    inside: defaultdict[int, list[_Node]] = defaultdict(list)
    users: defaultdict[int, set[int | None]] = defaultdict(set)
    for node, group in zip(live, groups):
        for value in node.takes:
            users[value].add(group)
        if group is not None:
            inside[group].append(node)
    for value in results:
        if value is not None:
            users[value].add(None)
    found: list[Fusion] = []
    for group, members in inside.items():
        gives = {value for node in members for value in node.gives}
        read = {value for node in members for value in node.takes} - gives
        written = {value for value in gives if users[value] - {group}}
        found.append(Fusion(*(sum(host.bytes[v] for v in each) for each in (read, written))))
    return found


def _groups(nodes: Sequence[_Node]) -> list[int | None]:
    """For each node the number of its kernel; None for what XLA does not fuse.

    Nodes hang together where one takes what another gives, between the same calls.
    """
    levels, maker = _levels(nodes), {v: i for i, node in enumerate(nodes) for v in node.gives}
    joined = [*range(len(nodes))]  # each with an earlier one, or with itself

    def first(i: int) -> int:
        while joined[i] != i:
            joined[i] = i = joined[joined[i]]
        return i

    for i, node in enumerate(nodes):
        for j in {maker[value] for value in node.takes if value in maker}:
            if node.is_fused and nodes[j].is_fused and levels[j] == levels[i]:
                one, other = sorted((first(i), first(j)))
                joined[other] = one
    return [first(i) if node.is_fused else None for i, node in enumerate(nodes)]


def _levels(nodes: Sequence[_Node]) -> list[int]:
    """How many calls come before each node, one after another; of what XLA fuses, as late as what
    uses it first.
    """
    early: dict[int, int] = {}  # by value
    levels: list[int] = []
    for node in nodes:
        levels.append(max((early.get(value, 0) for value in node.takes), default=0))
        early |= dict.fromkeys(node.gives, levels[-1] + (not node.is_fused))
    late: dict[int, int] = {}  # by value
    for i, node in reversed([*enumerate(nodes)]):
        if node.is_fused:
            levels[i] = min(
                (late[value] for value in node.gives if value in late), default=levels[i]
            )
        for value in node.takes:
            late[value] = min(levels[i], late.get(value, levels[i]))
    return levels


class _Host:
    """The equations of a host, those of functions that it calls among them."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.bytes: list[int] = []

    def value(self, atom: Atom) -> int:
        """A new value."""
        aval = atom.aval
        size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
        self.bytes.append(size * getattr(dtype, "itemsize", 0))
        return len(self.bytes) - 1

    def see(self, jaxpr: Jaxpr, given: Sequence[int | None]) -> list[int | None]:
        """Adds a jaxpr's equations; returns its results, None for what depends on no array."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        values: dict[Atom, int | None] = dict(zip(jaxpr.invars, given))

        def of(atoms: Sequence[Atom]) -> list[int | None]:
            return [None if isinstance(atom, Literal) else values.get(atom) for atom in atoms]

        for eqn in jaxpr.eqns:
            values |= zip(eqn.outvars, self._results(eqn, of(eqn.invars)))
        return of(jaxpr.outvars)

    def _results(self, eqn: Eqn, taken: list[int | None]) -> list[int | None]:
        name = eqn.primitive.name
        inner = next((eqn.params[key] for key in CALLED if key in eqn.params), None)
        if inner is not None and name not in _CALLS:
            return self.see(inner, taken)
        takes = [value for value in taken if value is not None]
        if not takes:
            return [None for _ in eqn.outvars]
        if name in _VIEWS:
            return taken[:1]
        gives = [self.value(atom) for atom in eqn.outvars]
        self.nodes.append(_Node(takes, gives, name in _FUSED))
        return [*gives]


def _live(nodes: Sequence[_Node], results: Sequence[int | None]) -> Iterator[_Node]:
    """The equations on which a result depends, or a call that may do more, the last one first."""
    used = {*results}
    for node in reversed(nodes):
        if not node.is_fused or used & {*node.gives}:
            used |= {*node.takes}
            yield node
