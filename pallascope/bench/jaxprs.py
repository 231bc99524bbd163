"""Digests of what JAX compiles: equal digests mean that the GPU runs the same kernels.

The model. A jaxpr is written out as lines of plain text, and the text is hashed. These count:

- each primitive, its parameters, and the types of its operands and results. A kernel's parameters
  hold its grid, its threads, its scratch memory and its compiler's options, so the launch counts;
- the values of constants;
- which operand is which. Variables are numbered in the order in which they appear, so their names
  do not count;
- the source of device code that JAX does not look into (`plgpu.inline_mgpu`): the outermost
  definition, in its file, that holds the code, and the values that the code closes over;
- names of `jax.named_scope`, in kernels that are profiled: the profiler compiles them.

The machine code does not depend on the names of functions, the lines of the source, comments and
docstrings, so these do not count. Nor does a function that JAX carries along only for a
transformation (`vmap`, a derivative): where it is called, the jaxpr has what it adds.

Not covered: other versions of JAX, which may trace the same function to another jaxpr; a helper
that device code calls, but that another definition holds.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import ast
import dataclasses
import enum
import functools
import hashlib
import linecache
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from pallascope.bench.provenance import meaning

#: Parameters of primitives that only name something, or explain it.
_NAMES = frozenset(
    {"name", "kernel_name", "metadata", "debug_info", "cost_estimate", "profile_dir"}
)
#: The parameter of `inline_mgpu` that holds its function.
_DEVICE_CODE = "mgpu_fn"
#: Parts of a text that differ from run to run, or that only name a type.
_UNNAMED = re.compile(r" at 0x[0-9a-f]+|(?<=namedtuple)\[\w+\]")


def digest(function: Callable[..., object], *args: object) -> str:
    """The digest of a function that JAX can trace.

    Args:
      function: takes `args`; nothing is run.
      args: arrays or `jax.ShapeDtypeStruct`s.

    Returns:
      16 hexadecimal digits.

    Example:
      >>> x = jax.ShapeDtypeStruct((8,), jnp.float32)
      >>> digest(lambda x: x + 1.0, x) == digest(lambda y: 1.0 + y, x)
      False
      >>> digest(lambda x: x + 1.0, x) == digest(lambda y: y + 1.0, x)
      True
    """
    return digest_of(jax.make_jaxpr(function)(*args))


def digest_of(value: Any) -> str:
    """The digest of a jaxpr, or of a primitive's parameters."""
    return hashlib.sha256("\n".join(_Writer().write(value)).encode()).hexdigest()[:16]


class _Writer:
    """Writes one value as lines of text.

    `_scopes` says whether names of scopes count in the jaxpr that it is writing.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # what has a number stays alive, so that no id comes twice
        self._scopes = False

    def write(self, value: Any) -> Iterator[str]:
        """The lines of any value that a jaxpr holds."""
        if hasattr(value, "eqns"):
            yield from self._jaxpr(getattr(value, "jaxpr", value))
            yield from self.write(tuple(getattr(value, "consts", ())))
        elif isinstance(value, Tracer):  # of a jaxpr around this one: an operand says which
            yield _type(value.aval)
        elif isinstance(value, (np.ndarray, jax.Array)) and not _is_key(value):
            array = np.asarray(value)
            bytes_ = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            yield f"array {array.dtype}{list(array.shape)} {bytes_}"
        elif isinstance(value, Mapping):
            yield from self._fields("mapping", value)
        elif isinstance(value, (tuple, list)):
            yield f"{len(value)} values"
            for each in value:
                yield from self.write(each)
        elif isinstance(value, (set, frozenset)):
            yield from self.write(sorted(map(_plain, value)))
        elif isinstance(value, (Mesh, AbstractMesh)) and value.axis_names:
            # Which devices they are does not count.
            axes = zip(value.axis_names, value.axis_sizes, value.axis_types)
            yield f"mesh {', '.join(f'{name} {size} {kind.name}' for name, size, kind in axes)}"
        elif isinstance(value, enum.Enum):
            yield f"{type(value).__name__}.{value.name}"
        elif isinstance(value, functools.partial):
            yield from self.write((value.func, value.args, value.keywords))
        elif isinstance(value, type):
            yield f"type {value.__name__}"
        elif callable(value):
            yield "function"
        elif dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            yield from self._fields(type(value).__name__, fields)
        else:
            yield _plain(value)

    def _jaxpr(self, jaxpr: Any) -> Iterator[str]:
        """A jaxpr: its variables, a line and parameters for each equation, its results."""
        yield f"jaxpr {self._variables((*jaxpr.constvars, *jaxpr.invars))}"
        for eqn in jaxpr.eqns:
            scope = f" in {eqn.source_info.name_stack}" if self._scopes else ""
            ins = " ".join(map(self._atom, eqn.invars))
            yield f"{self._variables(eqn.outvars)} = {eqn.primitive.name} {ins}{scope}"
            profiles = getattr(eqn.params.get("compiler_params"), "profile_space", 0)
            self._scopes, before = self._scopes or bool(profiles), self._scopes
            yield from self._fields("parameters", eqn.params)
            self._scopes = before
        yield f"gives {' '.join(map(self._atom, jaxpr.outvars))}"

    def _variables(self, variables: Iterable[Any]) -> str:
        """Gives variables that begin here their numbers; returns these, and the types."""
        for variable in variables:
            self._kept.append(variable)
            self._numbers[id(variable)] = len(self._numbers)
        return " ".join(f"{self._numbers[id(v)]}:{_type(v.aval)}" for v in variables)

    def _atom(self, atom: Any) -> str:
        """An operand: a variable's number, or a literal with its type."""
        if id(atom) in self._numbers:
            return str(self._numbers[id(atom)])
        value = getattr(atom, "val", atom)
        return f"literal {_plain(atom.aval)} {' '.join(self.write(value))}"

    def _fields(self, name: str, fields: Mapping[str, Any]) -> Iterator[str]:
        """Named values: a primitive's parameters, a dataclass, a mapping."""
        yield f"{name} of {len(fields)}"
        for key in sorted(fields, key=str):
            if key == _DEVICE_CODE:
                yield from self._device_code(fields[key])
            elif key not in _NAMES:
                yield f"{_plain(key)}:"
                yield from self.write(fields[key])

    def _device_code(self, function: Any) -> Iterator[str]:
        """The source of a function that the jaxpr does not show, and what it closes over."""
        if isinstance(function, functools.partial):
            yield from self.write((function.args, function.keywords))
            function = function.func
        code = getattr(function, "__code__", None)
        if code is None:
            yield _plain(type(function))
            return
        yield _definition(code.co_filename, code.co_firstlineno)
        for cell in function.__closure__ or ():
            inner = cell.cell_contents
            if isinstance(inner, types.FunctionType):
                yield from self._device_code(inner)
            else:
                yield from self.write(inner)


@functools.cache
def _definition(file: str, line: int) -> str:
    """The outermost statement of a file that holds a line, by its meaning."""
    text = "".join(linecache.getlines(file))
    try:
        body = ast.parse(text).body
    except SyntaxError:  # a notebook's cell with a magic
        return text
    holds = lambda node: node.lineno <= line <= (node.end_lineno or node.lineno)
    return "".join(meaning(node) for node in body if holds(node))


def _type(aval: Any) -> str:
    """An abstract value, with the arrivals of a barrier, which its text leaves out."""
    dtype = getattr(aval, "dtype", None)
    return f"{_plain(aval)} {dtype!r}" if dataclasses.is_dataclass(dtype) else _plain(aval)


def _is_key(value: Any) -> bool:
    """Whether an array holds random keys, which have no NumPy array."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _plain(value: Any) -> str:
    """The text of a value, without addresses and names of types."""
    return _UNNAMED.sub("", str(value))
