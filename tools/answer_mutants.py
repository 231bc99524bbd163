"""Mutants of an exercise's solution: wrong answers by one small change, which grades must fail.

The model. A solution is parsed, and each rule below looks at each node of its tree. A rule yields
what may take the node's place. A **mutant** is the solution with one such change; one that is spelt
as the solution, or as an earlier mutant, counts once. The call of the grade is left alone, and so
are imports and what a function is named.

=========  ===================================================================================
drop       a statement is left out
double     a statement that only calls something stands twice, but for waits that then wait for
           nothing
swap       two arguments of one call change places, where both are names of one kind: refs of one
           memory (`a_smem`, `b_smem`), barriers, axes of the grid
shift      an integer is one more, or one less: an index, a slot, a phase, a count, the bounds of a
           loop, a side of the grid, how many copies or products may be in flight
index      an index that is computed is one more: what `at[...]`, `ds(...)`, a subscript or an
           `index_map` gives
start      floats begin elsewhere: zeros as ones, minus infinity as zero, another constant
maximum    a maximum, a minimum or a sum is a constant, or one of its arguments
grid       the grid has one axis more, along which blocks do the same
compare    a comparison holds at its limit where it did not, or the other way round
=========  ===================================================================================

Not covered: two changes at once, and lines of another order, which the wrong answers have
(`tools.wrong_answers`).
"""

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: A rule: what may take a node's place, given the node's parents, the nearest last.
type Rule = Callable[[ast.AST, list[ast.AST]], Iterator[ast.AST | list[ast.stmt]]]


@dataclass(frozen=True)
class Mutant:
    """A wrong answer: the rule that made it, the line it changed, and what stands there now.

    Attributes:
      rule: the rule's name.
      line: the line's number in the solution, from 1 on.
      was, now: the statement that was changed, on one line; `now` is empty for one that is gone.
      source: the answer's code.
    """

    rule: str
    line: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.rule}, line {self.line}: {self.was} -> {self.now or '(nothing)'}"


def mutants(solution: str) -> list[Mutant]:
    """All mutants of a solution, in the order of its lines."""
    tree = ast.parse(solution)
    seen = {ast.unparse(tree)}
    found: list[Mutant] = []
    for path in _paths(tree):
        node, parents = _at(tree, path)
        if _is_kept(node, parents):
            continue
        for name, rule in RULES.items():
            for new in rule(node, parents):
                changed = _replaced(tree, path, new)
                source = ast.unparse(changed)
                if source not in seen and _compiles(source):
                    seen.add(source)
                    found.append(_described(name, node, parents, new, source))
    return sorted(found, key=lambda mutant: mutant.line)


def _described(
    name: str, node: ast.AST, parents: list[ast.AST], new: ast.AST | list[ast.stmt], source: str
) -> Mutant:
    """A mutant, with the changed expression or statement in words."""
    line = next(x.lineno for x in [node, *reversed(parents)] if isinstance(x, ast.stmt | ast.expr))
    shown = [new] if isinstance(new, ast.AST) else new
    # A number alone says little, so what it stands in is shown.
    if isinstance(node, ast.Constant | ast.Name):
        holder = parents[-1]
        where = next((i for i, x in enumerate(ast.walk(holder)) if x is node), 0)
        changed = copy.deepcopy(holder)
        _put(changed, [*ast.walk(changed)][where], shown[0])
        node, shown = holder, [changed]
    return Mutant(name, line, _words(node), " ".join(map(_words, shown)), source)


def _words(node: ast.AST) -> str:
    return re.sub(r"\s+", " ", ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))).strip()


# Trees.

type _Path = tuple[tuple[str, int | None], ...]


def _paths(tree: ast.AST, path: _Path = ()) -> Iterator[_Path]:
    """The way to each node below the tree: fields, and places in their lists."""
    for field, value in ast.iter_fields(tree):
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield (*path, (field, place))
                yield from _paths(child, (*path, (field, place)))


def _at(tree: ast.AST, path: _Path) -> tuple[ast.AST, list[ast.AST]]:
    """A node and its parents."""
    parents: list[ast.AST] = []
    for field, place in path:
        parents.append(tree)
        value = getattr(tree, field)
        tree = value if place is None else value[place]
    return tree, parents


def _replaced(tree: ast.AST, path: _Path, new: ast.AST | list[ast.stmt]) -> ast.AST:
    """A copy of the tree with other nodes at a place; a body is never empty."""
    tree = copy.deepcopy(tree)
    *way, (field, place) = path
    parent = _at(tree, tuple(way))[0]
    if place is None:
        assert isinstance(new, ast.AST), "a list takes the place of a statement in a body"
        setattr(parent, field, new)
    else:
        body = getattr(parent, field)
        body[place : place + 1] = [new] if isinstance(new, ast.AST) else new
        if not body and field in ("body", "orelse", "finalbody"):
            body.append(ast.Pass())
    return ast.fix_missing_locations(tree)


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Puts one node in another's place, in place."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(x is old for x in value):
                setattr(parent, field, [new if x is old else x for x in value])


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _is_kept(node: ast.AST, parents: list[ast.AST]) -> bool:
    """Whether a node is of what stays: the grade's call, imports, annotations."""
    around = [*parents, node]
    if any(isinstance(x, ast.Import | ast.ImportFrom | ast.arguments) for x in around):
        return True
    return any(isinstance(x, ast.Call) and _name(x.func) in _GRADES for x in around) or (
        isinstance(node, ast.Expr) and _is_grade(node)
    )


#: Calls that grade or tell, and are no part of an answer.
_GRADES = "grade", "grade_unrun", "say"


def _is_grade(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and _name(value.func) in _GRADES


def _name(node: ast.AST) -> str:
    """The last part of a name: `wait` of `plgpu.wait`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# Rules.


def _drop(node: ast.AST, parents: list[ast.AST]) -> Iterator[list[ast.stmt]]:
    keeps = ast.FunctionDef, ast.ClassDef, ast.Return, ast.Pass
    is_in_function = any(isinstance(x, ast.FunctionDef | ast.Lambda) for x in parents)
    if isinstance(node, ast.stmt) and not isinstance(node, keeps) and not _is_text(node):
        if is_in_function:
            yield []
    elif isinstance(node, ast.FunctionDef) and is_in_function and node.decorator_list:
        yield []  # what it is decorated with calls it


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _double(node: ast.AST, parents: list[ast.AST]) -> Iterator[list[ast.stmt]]:
    del parents
    match node:
        case ast.Expr(ast.Call(func)) if _name(func) not in _IDEMPOTENT:
            yield [node, copy.deepcopy(node)]
        case _:
            pass


#: Calls that do no more the second time: what they wait for has come.
_IDEMPOTENT = "commit_smem", "commit_tmem", "wait_load_tmem", "wait_smem_to_gmem", "wgmma_wait"


def _swap(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    del parents
    if not isinstance(node, ast.Call | ast.Tuple):
        return
    items = node.args if isinstance(node, ast.Call) else node.elts
    for i, one in enumerate(items):
        for j in range(i + 1, len(items)):
            if _kind(one) and _kind(one) == _kind(items[j]):
                changed = copy.deepcopy(node)
                places = changed.args if isinstance(changed, ast.Call) else changed.elts
                places[i], places[j] = places[j], places[i]
                yield changed


_KINDS = "smem", "gmem", "barrier", "here", "free", "produced", "consumed", "sem", "acc"


def _kind(node: ast.AST) -> str:
    """What kind of thing a name is of, by how it ends; empty for none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return "axis"
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _kind(node.value)
    name = node.id if isinstance(node, ast.Name) else ""
    if len(name) == 1:
        return "index"
    return next((kind for kind in _KINDS if name.endswith(kind)), "")


def _shift(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant) and type(node.value) is int and not _is_shape(parents):
        yield ast.Constant(node.value + 1)
        if node.value > 0 or any(isinstance(x, ast.Lambda) for x in parents):
            yield ast.Constant(node.value - 1)


def _is_shape(parents: list[ast.AST]) -> bool:
    """Whether a number is of the shape of memory, where another only asks for more."""
    return any(isinstance(x, ast.Call) and _name(x.func) in _MEMORY for x in parents)


_MEMORY = "SMEM", "GMEM", "TMEM", "ACC", "ShapeDtypeStruct"


def _index(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    holder = parents[-1]
    if not isinstance(node, ast.Name | ast.Call | ast.BinOp) or _is_whole(node):
        return
    in_subscript = isinstance(holder, ast.Subscript) and holder.slice is node
    in_tuple = isinstance(holder, ast.Tuple) and isinstance(parents[-2], ast.Subscript | ast.Lambda)
    in_slice = (
        isinstance(holder, ast.Call) and _name(holder.func) == "ds" and holder.args[0] is node
    )
    in_map = isinstance(holder, ast.Lambda) and holder.body is node
    if in_subscript or in_tuple or in_slice or in_map:
        yield ast.BinOp(copy.deepcopy(node), ast.Add(), ast.Constant(1))


def _is_whole(node: ast.expr) -> bool:
    """Whether an index is none to add to: a part of memory, or a call of another kind."""
    return isinstance(node, ast.Call) and _name(node.func) in ("ds", "slice", "when", "kernel")


def _start(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    del parents
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield ast.Constant(node.value + 1.0)
    if isinstance(node, ast.Attribute) and node.attr in ("zeros", "zeros_like", "ones"):
        new = copy.deepcopy(node)
        new.attr = {"zeros": "ones", "zeros_like": "ones_like", "ones": "zeros"}[node.attr]
        yield new
    match node:
        case ast.UnaryOp(ast.USub(), operand) if _name(operand) == "inf":
            yield ast.Constant(0.0)
        case _:
            pass


def _maximum(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    del parents
    if not isinstance(node, ast.Call) or not node.args:
        return
    if _name(node.func) in ("maximum", "minimum"):
        yield from map(copy.deepcopy, node.args)
    if _name(node.func) in ("maximum", "minimum", "max", "min", "sum", "reduce_max", "reduce_sum"):
        yield ast.BinOp(ast.Constant(0), ast.Mult(), copy.deepcopy(node))


def _grid(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    del parents
    if isinstance(node, ast.keyword) and node.arg == "grid":
        new = copy.deepcopy(node)
        new.value = ast.BinOp(new.value, ast.Add(), ast.Tuple([ast.Constant(2)], ast.Load()))
        yield new


_OTHERS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip


def _compare(node: ast.AST, parents: list[ast.AST]) -> Iterator[ast.AST]:
    del parents
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHERS:
        new = copy.deepcopy(node)
        new.ops[0] = _OTHERS[type(node.ops[0])]()
        yield new


RULES: dict[str, Rule] = {
    "drop": _drop,
    "double": _double,
    "swap": _swap,
    "shift": _shift,
    "index": _index,
    "start": _start,
    "maximum": _maximum,
    "grid": _grid,
    "compare": _compare,
}
