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
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "slice",
    "dynamic_slice",
    "copy",
)


class Made(NamedTuple):
    """What an array was made of: arguments, if any; by a kernel or not; by primitives of XLA."""

    of_arguments: bool = False
    by_kernel: bool = False
    by_xla: frozenset[str] = frozenset()

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument, perhaps reshaped."""
        return self == Made(of_arguments=True)

    @property
    def is_kernel_s(self) -> bool:
        """Whether it is as a kernel made it, perhaps reshaped."""
        return self == Made(by_kernel=True)


class Beside(NamedTuple):
    """How the arrays that kernels are called with were made, and how the answer's results were."""

    inputs: tuple[Made, ...]
    results: tuple[Made, ...]

    @property
    def after(self) -> str:
        """XLA's primitives that made results, in words."""
        return _in_words({name for made in self.results for name in made.by_xla})

    def faults(self, allowed: Collection[str] = ()) -> list[str]:
        """What is done beside the kernel, each fault in words; `allowed` are primitives' names.

        Example:
          >>> beside_of(lambda x: softmax(x) + 1, [jnp.ones((4, 128))]).faults()
          ['XLA does `add` beside the kernel']
        """
        names = {name for made in (*self.inputs, *self.results) for name in made.by_xla}
        words = _in_words(names - {*allowed})
        found = [f"XLA does {words} beside the kernel"] if words else []
        if Made() in self.inputs:
            found.append("the kernel takes an array that is no argument")
        if not all(made.by_kernel for made in self.results):
            found.append("it returns an array that the kernel did not make")
        return found


def beside_of(answer: Callable[..., Any], args: Sequence[Any]) -> Beside:
    """What an answer has beside its kernels; nothing is run."""
    closed = cast(Any, jax.make_jaxpr)(answer)(*args)
    inputs = list[Made]()
    arguments = [Made(of_arguments=True)] * len(jax.tree.leaves(args))
    results = _see(closed, arguments, inputs)
    return Beside(tuple(inputs), tuple(results))


def _see(closed: Any, given: Sequence[Made], inputs: list[Made]) -> list[Made]:
    """How the results of a jaxpr were made; what its kernels are called with goes to `inputs`."""
    jaxpr = getattr(closed, "jaxpr", closed)
    made: dict[Any, Made] = dict(zip(jaxpr.invars, given))

    def of(atom: Any) -> Made:
        return Made() if isinstance(atom, Literal) else made.get(atom, Made())

    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in _CALLED if key in eqn.params), None)
        if eqn.primitive.name == _KERNEL:
            inputs += [one for one, atom in zip(operands, eqn.invars) if _is_array(atom)]
            results = [Made(by_kernel=True)] * len(eqn.outvars)
        elif inner is not None and len(getattr(inner, "jaxpr", inner).invars) == len(operands):
            results = _see(inner, operands, inputs)
        else:
            results = [*_by_xla(eqn, operands)]
        made |= dict(zip(eqn.outvars, results))
    return [of(atom) for atom in jaxpr.outvars]


def _by_xla(eqn: Any, operands: Sequence[Made]) -> Iterator[Made]:
    """How the results of a primitive of XLA were made."""
    name = eqn.primitive.name
    sizes = {_size(atom) for atom in (*eqn.invars, *eqn.outvars) if _is_array(atom)}
    renames = len(sizes) == 1 and any(map(_is_array, eqn.invars)) and _renames(eqn)
    does = {name} if sizes and not renames else set[str]()
    yield from [
        Made(
            any(made.of_arguments for made in operands),
            any(made.by_kernel for made in operands),
            frozenset(does).union(*(made.by_xla for made in operands)),
        )
    ] * len(eqn.outvars)


def _renames(eqn: Any) -> bool:
    """Whether a primitive leaves the elements in their order."""
    if eqn.primitive.name == "transpose":
        shape = eqn.invars[0].aval.shape
        moved = [axis for axis in eqn.params["permutation"] if shape[axis] != 1]
        return moved == sorted(moved)
    return eqn.primitive.name in _RENAMES


def _in_words(names: Collection[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names))


def _is_array(atom: Any) -> bool:
    """Whether it has more than one element."""
    return _size(atom) > 1


def _size(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))
