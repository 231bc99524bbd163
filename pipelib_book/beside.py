"""What XLA does beside a kernel, so that an exercise's answer leaves no work to it.

The model. An answer's jaxpr has the kernel's equation, and others, which XLA compiles. For
each array we follow what it was made of: of arguments, by the kernel, and by which of XLA's
primitives. Primitives that only rename an array's axes do nothing. An array that no result and no
kernel needs does not count, nor does arithmetic on numbers alone.

Not covered: control flow of the host. `cond` and `while` count as primitives of XLA, whatever is in
them.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import Literal

_KERNEL = "mpmd_map"
# In what an equation holds the jaxpr of the function that it calls.
_CALLED = "jaxpr", "call_jaxpr", "call"
# What only renames axes, as long as there are as many elements after it as before.
_RENAMES = (
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice", "copy",
)  # fmt: skip


class Made(NamedTuple):
    """What an array was made of: arguments, if any; by a kernel or not; by primitives of XLA."""

    of_arguments: bool = False
    by_kernel: bool = False
    by_xla: frozenset[str] = frozenset()


def faults(answer: Callable[..., Any], args: Sequence[Any], allowed: Collection[str]) -> list[str]:
    """What an answer does beside its kernel, each fault in words; `allowed` are primitives' names.

    Example:
      >>> faults(lambda x: softmax(x) + 1, [jnp.ones((4, 128))], allowed=())
      ['XLA does `add` beside the kernel']
    """
    closed = cast(Any, jax.make_jaxpr)(answer)(*args)
    needed = list[tuple[bool, Made]]()  # whether it is a result of the answer, and how it was made
    arguments = [Made(of_arguments=True)] * len(jax.tree.leaves(args))
    results = _see(closed, arguments, needed)
    needed += [(True, made) for made in results]
    names = sorted({name for _, made in needed for name in made.by_xla} - {*allowed})
    found = [f"XLA does {' and '.join(f'`{name}`' for name in names)} beside the kernel"]
    found = found if names else []
    if any(not is_result and made == Made() for is_result, made in needed):
        found.append("the kernel takes an array that is no argument")
    if any(is_result and not made.by_kernel for is_result, made in needed):
        found.append("it returns an array that the kernel did not make")
    return found


def _see(closed: Any, given: Sequence[Made], needed: list[tuple[bool, Made]]) -> list[Made]:
    """How the results of a jaxpr were made; what its kernels are called with goes to `needed`."""
    jaxpr = getattr(closed, "jaxpr", closed)
    made: dict[Any, Made] = dict(zip(jaxpr.invars, given))

    def of(atom: Any) -> Made:
        return Made() if isinstance(atom, Literal) else made.get(atom, Made())

    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in _CALLED if key in eqn.params), None)
        if eqn.primitive.name == _KERNEL:
            needed += [(False, one) for one, atom in zip(operands, eqn.invars) if _is_array(atom)]
            results = [Made(by_kernel=True)] * len(eqn.outvars)
        elif inner is not None and len(getattr(inner, "jaxpr", inner).invars) == len(operands):
            results = _see(inner, operands, needed)
        else:
            results = [*_by_xla(eqn, operands)]
        made |= dict(zip(eqn.outvars, results))
    return [of(atom) for atom in jaxpr.outvars]


def _by_xla(eqn: Any, operands: Sequence[Made]) -> Iterator[Made]:
    """How the results of a primitive of XLA were made."""
    name = eqn.primitive.name
    sizes = {_size(atom) for atom in (*eqn.invars, *eqn.outvars) if _is_array(atom)}
    renames = name in _RENAMES and len(sizes) == 1 and any(map(_is_array, eqn.invars))
    does = {name} if sizes and not renames else set[str]()
    yield from [
        Made(
            any(made.of_arguments for made in operands),
            any(made.by_kernel for made in operands),
            frozenset(does).union(*(made.by_xla for made in operands)),
        )
    ] * len(eqn.outvars)


def _is_array(atom: Any) -> bool:
    """Whether it has more than one element."""
    return _size(atom) > 1


def _size(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))
