"""What a `select_n`, as of `jnp.where`, leaves out of a value that a kernel has read.

The model. A value goes on element by element, and perhaps broadcast, until selects take their cases
from what is made of it. If all its uses end so, an element that no select takes reaches nothing,
and counts as not read. What is read is a box: the smallest around the elements that are taken.
The trace must know the selects' predicates when it comes to the read: they are made of row numbers
(`iota`), constants and scalars that it knows by then. What is made of constants alone stands among
the values of a code, so loops and branches within it have it too.

Any other use needs all of the value: a reduction, a product, a store, the end of a loop's step or
of a branch. So does a product with a mask, as 0 times NaN is NaN, unless a select follows. Not
covered: a value of which nothing at all is taken, which counts as read.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pallascope.tracing.code import Compiler
from pallascope.tracing.jaxprs import Atom, Env, Eqn, Value, primitives
from pallascope.tracing.pure import ELEMENTWISE, bound, is_known
from pallascope.tracing.source import is_of_jax
from pallascope.tracing.state import OPAQUE
from pallascope.tracing.views import At, Box

_MADE = ELEMENTWISE | primitives("broadcast_in_dim iota reshape select_n squeeze")
_DEEPEST = 50  # equations, each of another's result: Python's stack has an end


class Made:
    """Integers that the trace can compute: by an equation, of numbers, of others, of slots."""

    def __init__(self, eqn: Eqn, operands: Sequence[Value]) -> None:
        self.eqn, self.operands = eqn, operands
        others = [x for x in operands if isinstance(x, Made)]
        self.depth = 1 + max((x.depth for x in others), default=0)
        slots = [x.slot for x in operands if isinstance(x, At)]
        self.slots = [*dict.fromkeys(slots + [slot for x in others for slot in x.slots])]
        self._last: tuple[object, Value] = None, OPAQUE
        self._boxes: dict[object, Box | None] = {}

    def value(self, env: Env) -> Value:
        """The integers; OPAQUE if the trace does not know what they are made of."""
        key = self._key(env)
        if key != self._last[0]:
            values = [_known(env, x.slot) if isinstance(x, At) else x for x in self.operands]
            values = [x.value(env) if isinstance(x, Made) else x for x in values]
            self._last = key, self._computed(values)
        return self._last[1]

    def _computed(self, values: list[Value]) -> Value:
        if any(value is OPAQUE for value in values):
            return OPAQUE
        return values[0] if self.eqn.primitive.name == "layout_cast" else bound(self.eqn, values)[0]

    def box(self, env: Env, case: int) -> Box | None:
        """The smallest box around the elements that are this number; None if there are none.

        All of the array, if the trace does not know it.
        """
        key = case, self._key(env)
        if key not in self._boxes:
            value, shape = self.value(env), self.eqn.outvars[0].aval.shape
            found = np.nonzero(np.ones(shape) if value is OPAQUE else np.asarray(value) == case)
            ends = [(int(at.min()), int(at.max()) + 1) for at in found if at.size]
            self._boxes[key] = tuple(ends) or None
        return self._boxes[key]

    def _key(self, env: Env) -> tuple[Value, ...]:
        return tuple(_known(env, slot) for slot in self.slots)


def _known(env: Env, slot: int) -> Value:
    """A number, or integers that are made of constants alone; else OPAQUE."""
    return env[slot] if isinstance(env[slot], int | Made) else OPAQUE


def note(compiler: Compiler, eqn: Eqn) -> None:
    """Notes how an equation of a kernel makes integers, if that can be computed here."""
    if not _is_made(eqn):
        return
    (out,), operands = map(compiler.slot, eqn.outvars), list[Value]()
    for slot in compiler.inputs(eqn):
        held = compiler.made.get(slot, compiler.template[slot])
        is_slot = held is OPAQUE or (isinstance(held, Made) and held.depth >= _DEEPEST)
        operands.append(At(slot) if is_slot else held)
    compiler.made[out] = made = Made(eqn, operands)
    if not made.slots and eqn.outvars[0].aval.shape:
        compiler.template[out] = made


def kept(compiler: Compiler, value: Atom) -> Callable[[Env], Box | None] | None:
    """A function that gives the box of a value which selects take; None if all of it is needed."""
    taken, shape = _taken(compiler, value), value.aval.shape
    if not taken or not shape:
        return None

    def box(env: Env) -> Box | None:
        found: list[list[tuple[int, int]]] = []
        for slot, case, axes in taken:
            if not isinstance(made := compiler.made.get(slot, env[slot]), Made):
                return None
            if there := made.box(env, case):
                found.append([there[axis] for axis in axes])
        around = [(min(a for a, _ in each), max(b for _, b in each)) for each in zip(*found)]
        return tuple((0, 1) if n == 1 else x for n, x in zip(shape, around)) or None

    return box


def _taken(compiler: Compiler, value: Atom) -> list[tuple[int, int, tuple[int, ...]]]:
    """What selects take of a value, if nothing else needs it: where their predicates are a number.

    A predicate's slot, the number, and the predicate's axes that the value's own have become.
    """
    start = value, tuple(range(len(value.aval.shape)))
    todo, seen, found = [start], {start}, list[tuple[int, int, tuple[int, ...]]]()
    while todo:
        atom, axes = todo.pop()
        for eqn in compiler.uses.get(id(atom), ()):
            if eqn is None:
                return []
            predicate, *cases = _select(eqn) or [atom]
            if predicate is not atom and predicate.aval.shape == atom.aval.shape:
                slot = compiler.slot(predicate)
                found += [(slot, number, axes) for number, x in enumerate(cases) if x is atom]
            elif (after := _goes_on(eqn, atom, axes)) is None:
                return []
            elif (there := (eqn.outvars[0], after)) not in seen:
                seen.add(there)
                todo.append(there)
    return found


def _select(eqn: Eqn) -> list[Atom]:
    """The predicate of a select and its cases, from that for 0 on; nothing of another equation."""
    if eqn.primitive.name == "select_n":
        return [*eqn.invars]
    if eqn.params.get("name") != "_where" or not _is_jax_s(eqn):
        return []
    predicate, *cases = eqn.invars
    return [predicate, *reversed(cases)]


def _goes_on(eqn: Eqn, atom: Atom, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of the result in which a value goes on, element by element; None if it does not."""
    name = eqn.primitive.name
    if name == "broadcast_in_dim":
        return tuple(eqn.params["broadcast_dimensions"][axis] for axis in axes)
    is_alike = name in ELEMENTWISE and eqn.outvars[0].aval.shape == atom.aval.shape
    return axes if is_alike else None


def _is_made(eqn: Eqn) -> bool:
    """Whether an equation makes integers of integers, in a way that can be computed here."""
    if eqn.primitive.name not in _MADE and not _is_jax_s(eqn):
        return False
    return all(is_known(atom.aval) for atom in (*eqn.invars, *eqn.outvars))


def _is_jax_s(eqn: Eqn) -> bool:
    """Whether an equation calls a function of JAX's own, as `jnp.where` and `//` are."""
    is_call = eqn.primitive.name in ("jit", "pjit")
    return is_call and is_of_jax(eqn.params["jaxpr"].jaxpr.debug_info)
