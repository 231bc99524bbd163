"""Compiles a jaxpr, once, to closures that are run for each thread.

The algorithm. Each variable gets a slot in a list of values. For each equation the handler of its
primitive returns one of four things: a `Step`, a function of the thread and the values, which does
what the equation does and may append ops; a `Silent` step, which appends no op; a `Cost`, if the
equation is only arithmetic on tensors; or None, if it does nothing. The costs of equations that
follow one another in one named scope add up to one op `compute`, placed before the next function
that is not `Silent`. So a run of the code does not touch an equation again.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.extend.core import Literal

from pallascope.frozen import maker
from pallascope.program import Kind, Op, Region
from pallascope.tracing import layouts
from pallascope.tracing.arithmetic import Cost, Scratch
from pallascope.tracing.jaxprs import Atom, Env, Eqn, Jaxpr, Layout, Tree, Value
from pallascope.tracing.source import Called, Own, called_from, function_of, line_of
from pallascope.tracing.state import OPAQUE, Thread
from pallascope.tracing.views import At, View, data_dependent

_CALLED = Called()

Step = Callable[[Thread, Env], None]
_make_op = maker(Op)
# The fields from `flops` on, which an equation decides alone, and their defaults.
_FIXED = [
    (field.name, field.default)
    for field in itertools.dropwhile(lambda field: field.name != "flops", dataclasses.fields(Op))
]


class Silent(NamedTuple):
    """A step that appends no op."""

    step: Step


class Code(NamedTuple):
    """A jaxpr, compiled: `steps` are run in order on a copy of `template`.

    The operands are side by side there, from `first` on. `cost` is the cost of the whole code, if
    it is arithmetic on tensors and nothing else. `layouts` are the layouts of the results, None
    where unknown.
    """

    invars: list[Atom]
    template: Env
    first: int
    outputs: list[int]
    steps: list[Step]
    cost: Cost | None
    jaxpr: Jaxpr  # kept alive: the cache knows it by its id
    layouts: list[Layout]

    def run(self, thread: Thread, values: list[Value]) -> list[Value]:
        """The results for these values."""
        env = self.template.copy()
        env[self.first : self.first + len(values)] = values
        for step in self.steps:
            step(thread, env)
        return [env[slot] for slot in self.outputs]


class Codes:
    """The codes compiled so far, and the handler of equations to compile more.

    `infers` says whether Mosaic GPU gives tiles to SMEM that is declared without, and `own` is the
    kernel's function.
    """

    def __init__(self, handle: "Handler", infers: bool = True, own: Own | None = None):
        self.handle, self.infers, self.own = handle, infers, own
        self._codes: dict[Hashable, Code] = {}

    def compile(
        self,
        jaxpr: Jaxpr,
        is_open: bool = False,
        line: str | None = None,
        called: Called = _CALLED,
        known: tuple[Layout, ...] = (),
    ) -> Code:
        """The code of a jaxpr; if it is open, its constants are its first inputs.

        JAX knows the frames of an equation up to the loop or branch that it is in only: `line` is
        where that is, for equations that an emitter made, and `called` where that is in the
        kernel's own function. `known` are the inputs' layouts.
        """
        key = id(jaxpr), line, called, known
        if key not in self._codes:
            self._codes[key] = Compiler(jaxpr, self, line, called).code(is_open, known)
        return self._codes[key]


Handler = Callable[["Compiler", Eqn], Step | Silent | Cost | None]


class Compiler:
    """Gives each variable of a jaxpr a slot, and each equation a step."""

    def __init__(self, jaxpr: Jaxpr, codes: Codes, outer: str | None, called: Called):
        self.called = called
        self.outer, self.function = outer, function_of(getattr(jaxpr, "debug_info", None))
        self.whole, self.jaxpr, self.codes = jaxpr, getattr(jaxpr, "jaxpr", jaxpr), codes
        self.template: Env = []
        self.slots: dict[Atom, int] = {}
        self.made: dict[int, Value] = {}  # how the integers in a slot are computed (`masks`)
        self.layouts: dict[Atom, Layout] = {}  # of values in registers, where something says it

    def slot(self, atom: Atom) -> int:
        """Where the value of a variable or a literal is."""
        if isinstance(atom, Literal):
            return self._constant(value_of(atom.val))
        if atom not in self.slots:
            self.slots[atom] = self._constant(OPAQUE)
        return self.slots[atom]

    def inputs(self, eqn: Eqn) -> list[int]:
        """Where the operands of an equation are."""
        return list(map(self.slot, eqn.invars))

    def outputs(self, eqn: Eqn) -> list[int]:
        """Where the results of an equation go."""
        return list(map(self.slot, eqn.outvars))

    @functools.cached_property
    def uses(self) -> dict[int, list[Eqn | None]]:
        """By a variable's id, the equations that have it; None if it is a result of the jaxpr."""
        found = dict[int, list[Eqn | None]]({id(var): [None] for var in self.jaxpr.outvars})
        for eqn in self.jaxpr.eqns:
            for number in dict.fromkeys(map(id, eqn.invars)):
                found.setdefault(number, []).append(eqn)
        return found

    def _constant(self, value: Value) -> int:
        self.template.append(value)
        return len(self.template) - 1

    def code(self, is_open: bool, known: tuple[Layout, ...]) -> Code:
        """Compiles it all."""
        jaxpr = self.jaxpr
        invars = _inputs(jaxpr, is_open)
        self._learn(invars, known)
        if not is_open:
            for var, const in zip(jaxpr.constvars, getattr(self.whole, "consts", ()), strict=True):
                self.template[self.slot(var)] = value_of(const)
        first = len(self.template)
        list(map(self.slot, invars))
        steps, cost = self._steps(jaxpr.eqns)
        outputs = list(map(self.slot, jaxpr.outvars))
        made = [self._layout(var) for var in jaxpr.outvars]
        return Code(invars, self.template, first, outputs, steps, cost, self.whole, made)

    def _steps(self, eqns: Iterable[Eqn]) -> tuple[list[Step], Cost | None]:
        """The steps of these equations, and their cost if they do nothing but cost."""
        steps: list[Step] = []
        waiting: list[tuple[Eqn, Cost]] = []
        total: Cost | None = Cost()
        for eqn in eqns:
            found = self.codes.handle(self, eqn)
            self._learn(eqn.outvars, layouts.of_results(eqn, self.layouts))
            if isinstance(found, Cost):
                if waiting and _label(waiting[0][0]) != _label(eqn):
                    steps += self._computes(waiting)
                waiting += [(eqn, found)] if found.flops else []
                total = total and total.plus(found)
            elif isinstance(found, Silent):
                steps.append(found.step)
            elif found is not None:
                steps += [*self._computes(waiting), found]
                total = None
        return steps + self._computes(waiting), total

    def _computes(self, waiting: list[tuple[Eqn, Cost]]) -> list[Step]:
        """The step that appends one op for all of these, which are done then."""
        if not waiting:
            return []
        (eqn, cost), *others = waiting
        for _, other in others:
            cost = cost.plus(other)
        fields = cost._asdict()
        has_scratch = fields.pop("scratch") >= Scratch.PERHAPS
        if has_scratch:  # whose line is the one to tell
            eqn = next(each for each, its in waiting if its.scratch is cost.scratch)
        waiting.clear()
        is_sure, reduces = cost.scratch != Scratch.PERHAPS, cost.scratch >= Scratch.RESERVED
        emit = self.emitter(Kind.COMPUTE, eqn, **fields, is_sure=is_sure)

        def compute(thread: Thread, env: Env) -> None:
            before = thread.ops[-1] if thread.ops else None
            at = thread.reserve_scratch() if reduces else None
            emit(thread, scratch=at if has_scratch else None)
            if before is not None and before.kind == Kind.COMPUTE:
                _merge(thread.ops, before)

        return [compute]

    def sub(self, eqn: Eqn, jaxpr: Jaxpr, is_open: bool = False) -> Code:
        """The code of a jaxpr that is a parameter of this equation."""
        given = self._given(eqn, jaxpr, is_open)
        called = called_from(eqn, self.codes.own, self.called)
        code = self.codes.compile(jaxpr, is_open, self.line(eqn), called, given)
        if len(code.layouts) == len(eqn.outvars):
            self._learn(eqn.outvars, code.layouts)
        return code

    def _given(self, eqn: Eqn, jaxpr: Jaxpr, is_open: bool) -> tuple[Layout, ...]:
        """The layouts of a jaxpr's inputs: the equation's last, or its first if it is open."""
        inputs, outer = _inputs(getattr(jaxpr, "jaxpr", jaxpr), is_open), list(eqn.invars)
        outer = outer[: len(inputs)] if is_open else outer[len(outer) - len(inputs) :]
        found = [
            self._layout(atom) if _shape(atom) == _shape(var) else None
            for var, atom in zip(inputs, outer)
        ]
        return tuple(found) if any(found) else ()

    def _learn(self, variables: Iterable[Atom], found: Iterable[Layout]) -> None:
        """Notes layouts, where they are known."""
        for var, layout in zip(variables, found):
            if layout is not None:
                self.layouts.setdefault(var, layout)

    def _layout(self, atom: Atom) -> Layout:
        return None if isinstance(atom, Literal) else self.layouts.get(atom)

    def wavefronts(self, view: View, value: Atom, optimized: bool | None) -> int | None:
        """The wavefronts of an access of this memory that writes or reads a value."""
        if view.addressing is None:
            return None
        layout = self._layout_or_cast(value)
        return layouts.wavefronts(view.addressing, layout, optimized, self.codes.infers)

    def layout_name(self, value: Atom) -> str:
        """The layout of a value that is read or written, as an op has it."""
        return layouts.name(self._layout_or_cast(value))

    def _layout_or_cast(self, value: Atom) -> Layout:
        """The layout of a value; of one that is read, the cast that follows says it."""
        layout = self._layout(value)
        if layout is None:
            casts = (e for e in self.jaxpr.eqns if e.primitive.name == "layout_cast")
            cast = next((e for e in casts if e.invars[0] is value), None)
            (layout,) = [None] if cast is None else layouts.of_results(cast, {})
        return layout

    def exchanges(self, eqn: Eqn) -> int:
        """How many words lanes pass each other, if the equation is a reduction."""
        if not layouts.reduces(eqn):
            return 0
        (value,) = eqn.invars
        return layouts.exchanges(value.aval.shape, eqn.params["axes"], self._layout(value))

    def scratch(self, eqn: Eqn) -> Scratch:
        """What an equation does with the scratch of reductions."""
        if not layouts.reduces(eqn):
            return Scratch.NONE
        (value,) = eqn.invars
        layout = self._layout(value)
        found = layouts.scratch(value.aval.shape, eqn.params["axes"], layout)
        has_mma = layout is None and any(e.primitive.name == "mma" for e in self.jaxpr.eqns)
        return min(found, Scratch.PERHAPS) if has_mma else found

    def line(self, eqn: Eqn) -> str | None:
        """The line of the equation, or else of its function or of the equation around it."""
        return line_of(eqn, self.function) or self.outer

    def emitter(self, kind: Kind, eqn: Eqn, **fixed: Any) -> Callable[..., None]:
        """A function that appends an op of this kind and this equation.

        `fixed` are fields that the equation alone decides; the function takes those that a run
        decides.
        """
        line, label = self.line(eqn), _label(eqn)
        called = called_from(eqn, self.codes.own, self.called)
        fixed["caller"] = called.line if called.by_helper and line else None
        rest = [fixed.pop(name, default) for name, default in _FIXED]
        assert not fixed, f"{[*fixed]} are not among the last fields of an Op"

        def emit(
            thread: Thread,
            reads: tuple[Region, ...] = (),
            writes: tuple[Region, ...] = (),
            barrier: int | None = None,
            index: int = 0,
            phase: int = 0,
            size: int = 0,
            peers: tuple[int, ...] = (),
            scope_id: int | None = None,
            shared: bool = False,
            members: tuple[int, ...] = (),
            amount: int = 0,
            scratch: int | None = None,
            whole: tuple[Region, ...] = (),
            parts: int | None = None,
        ) -> None:
            scope = thread.scope
            if label:
                scope = f"{scope}/{label}" if scope else label
            op = _make_op(
                kind, thread.index, reads, writes, barrier, index, phase, thread.step, line, scope,
                size, peers, scope_id, shared, members, amount, scratch, thread.ways, whole, parts,
                *rest,
            )  # fmt: skip
            thread.ops.append(op)

        return emit

    def view(self, eqn: Eqn, ref: Atom, leaves: list[Atom], tree: Tree) -> View:
        """A ref under the transforms whose leaves these atoms are."""
        transforms: Any = () if tree is None else tree.unflatten(map(At, map(self.slot, leaves)))
        if not isinstance(cast(object, transforms), (tuple, list)):
            transforms = (transforms,)
        return View(self.slot(ref), ref.aval, transforms, self.line(eqn))

    def predicate(self, eqn: Eqn, atom: Atom | None) -> Callable[[Env], bool]:
        """A function of the values that says whether the equation is to be run."""
        if atom is None:
            return lambda env: True
        slot, line = self.slot(atom), self.line(eqn)

        def holds(env: Env) -> bool:
            if env[slot] is OPAQUE:
                raise data_dependent("The predicate of a copy or an arrival", line)
            return bool(env[slot])

        return holds


def _inputs(jaxpr: Jaxpr, is_open: bool) -> list[Atom]:
    """The variables that get a jaxpr's inputs: its constants too, if it is open."""
    return [*(jaxpr.constvars if is_open else ()), *jaxpr.invars]


def _shape(atom: Atom) -> tuple[int, ...] | None:
    return getattr(atom.aval, "shape", None)


def _label(eqn: Eqn) -> str:
    return str(eqn.source_info.name_stack)


def _merge(ops: list[Op], before: Op) -> None:
    """Makes one op of the last two, if both are arithmetic in one step, named scope and branch."""
    last = ops[-1]
    if (before.step, before.scope, before.ways) == (last.step, last.scope, last.ways):
        both = {name: getattr(before, name) + getattr(last, name) for name in _SUMS}
        has_scratch = max(before, last, key=_by_scratch)  # the first, if they are equal
        ops[-2:] = [dataclasses.replace(has_scratch, **both)]


_SUMS = ("flops", "transcendental", "exchanges")


def _by_scratch(op: Op) -> tuple[bool, bool]:
    """What makes one op tell more than another of the scratch of reductions."""
    return op.scratch is not None, op.is_sure


def value_of(x: Any) -> Value:
    """A constant or an argument as the trace holds it: a number, an array of integers or OPAQUE."""
    for kind in (bool, int, float):
        if isinstance(x, kind):
            return kind(x)
    if isinstance(x, jax.ShapeDtypeStruct) or not hasattr(x, "dtype"):
        return OPAQUE
    if not isinstance(cast(object, x.dtype), np.dtype) or x.dtype.kind not in "biuf":
        return OPAQUE
    if x.ndim == 0:
        return np.asarray(x).item()
    return np.asarray(x) if x.dtype.kind in "biu" else OPAQUE


def set_all(env: Env, slots: Iterable[int], values: Iterable[Value]) -> None:
    """Sets the values at these slots."""
    for slot, value in zip(slots, values, strict=True):
        env[slot] = value


def in_turn(steps: Sequence[Step]) -> Step:
    """These steps, one after another."""

    def step(thread: Thread, env: Env) -> None:
        for each in steps:
            each(thread, env)

    return step


def is_ref(atom: Atom) -> bool:
    """Whether a variable is a ref."""
    return "Ref" in type(atom.aval).__name__


def is_tensor(atom: Atom) -> bool:
    """Whether a variable is an array of values of one axis or more."""
    return bool(getattr(atom.aval, "shape", ())) and not is_ref(atom)


def split(atoms: Iterable[Atom], *trees: Tree) -> list[list[Atom]]:
    """The leaves of each tree, and what is left over."""
    parts: list[list[Atom]] = []
    atoms = list(atoms)
    for tree in trees:
        count = getattr(tree, "num_leaves", 0)
        parts.append(atoms[:count])
        atoms = atoms[count:]
    return [*parts, atoms]
