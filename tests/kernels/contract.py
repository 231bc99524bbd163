"""What every kernel is asked, and the cases that answer.

The model. A *case* of a kernel is made by a function in a module of cases (`CASE_MODULES`). It
gives a `Call`, which has a function, its arrays, and what is known of both. `case` registers it for
each combination of some values, and for some *questions*, which `test_contract.py` asks of all:

===========  ====================================================================================
`CHECKED`    Is the kernel that is traced free of findings, with the shared memory that its
             configuration says?
`LOWERED`    Does JAX lower it for a GPU that need not be there?
`ON_GPU`     Is its result on a Hopper GPU the one in float64?
===========  ====================================================================================

A `Refusal` is a call that raises: its function, the arguments, the error, and a part of its words.
Of every configuration's class (`CONFIGURATIONS`) it is asked whether its integers are integers.

What only one kernel has (its interpreted cases, its plain JAX, its mutants) is in its own tests.
"""

import contextlib
import functools
import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import pytest

import pallascope
from pipelib.kernels import (
    AttentionConfig,
    CollectiveConfig,
    DecodeConfig,
    GradientConfig,
    MatmulConfig,
    ScaledConfig,
)
from pipelib.kernels.hopper import Gpu, assumed

CHECKED, LOWERED, ON_GPU = "checked", "lowered", "on a GPU"
#: The modules that have cases, in the order in which they are asked.
CASE_MODULES = (
    "tests.kernels.matmul.cases",
    "tests.kernels.ragged.cases",
    "tests.kernels.scaled_cases",
    "tests.kernels.attention.cases",
    "tests.kernels.attention.gradient_cases",
    "tests.kernels.attention.padding_cases",
    "tests.kernels.attention.float8_cases",
    "tests.kernels.attention.decode_cases",
    "tests.kernels.collective.cases",
    "tests.kernels.memory_bound_cases",
)
#: The classes of all configurations.
CONFIGURATIONS = (
    MatmulConfig,
    ScaledConfig,
    CollectiveConfig,
    AttentionConfig,
    GradientConfig,
    DecodeConfig,
)


class Call(NamedTuple):
    """A call of a kernel, and what is known of it.

    Attributes:
      function, arrays: what is called, with what; arrays may be types.
      compare: looks at the result beside that of float64; fails if they differ.
      smem_bytes: what the configuration says that a block takes; None if it is not known.
      is_exact: whether the kernel takes just that, and not less.
      blocks: the arguments of `pallascope.trace` for each block that is traced.
      has_notes: whether a check may say what it could not look at.
      is_hopper: whether the kernel is planned for an H200, and not for JAX's interpreter.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    compare: Callable[[Any], None] | None = None
    smem_bytes: int | None = None
    is_exact: bool = True
    blocks: tuple[Mapping[str, Any], ...] = ({},)
    has_notes: bool = False
    is_hopper: bool = True

    def planned(self) -> Any:
        """A context in which it is planned for the GPU that it is for."""
        return assumed(Gpu("NVIDIA H200", "9.0")) if self.is_hopper else contextlib.nullcontext()

    def check_finds_nothing(self) -> None:
        with self.planned():
            programs = [pallascope.trace(self.function, *self.arrays, **how) for how in self.blocks]
        for program in programs:
            found = pallascope.check(program, strict=True)
            assert not any("semaphores order nothing" in note for note in found.notes)
            kinds = {finding.kind for finding in found}
            assert kinds <= ({"note"} if self.has_notes else set()), found
        if self.smem_bytes is not None:
            size = programs[-1].smem_bytes
            assert size == self.smem_bytes if self.is_exact else size <= self.smem_bytes

    def lowers(self) -> None:
        with self.planned():
            traced = jax.jit(self.function).trace(*self.arrays)
        assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()

    def is_right(self) -> None:
        assert self.compare is not None, "a case on a GPU says what is right"
        self.compare(self.function(*self.arrays))


class Case(NamedTuple):
    """A case: its module, its name, what makes its call, what it is asked, and pytest's marks."""

    module: str
    name: str
    make: Callable[[], Call]
    questions: tuple[str, ...]
    marks: tuple[pytest.MarkDecorator, ...]


class Refusal(NamedTuple):
    """A call that raises an error: the kind, and a regular expression of its words."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    kind: type[Exception]
    text: str


#: The mark of a case that a second JAX traces and lowers too.
BOTH_JAX = (pytest.mark.both_jax,)
CASES: list[Case] = []
REFUSALS: dict[str, Refusal] = {}


def case(
    kernel: str,
    *questions: str,
    marks: tuple[pytest.MarkDecorator, ...] = (),
    **grid: Iterable[Any] | Mapping[str, Any],
):
    """Registers a function that makes a call, for each combination of the grid's values.

    Args:
      kernel: begins the case's name.
      questions: what it is asked.
      marks: pytest's, of each of these cases.
      grid: for each argument, its values, or its values by their names.
    """

    def register(function: Callable[..., Call]) -> Callable[..., Call]:
        named = [
            [*values.items()] if isinstance(values, Mapping) else [(str(v), v) for v in values]
            for values in grid.values()
        ]
        for pairs in itertools.product(*named):
            name = "-".join([kernel, function.__name__, *(name for name, _ in pairs)])
            bound = functools.partial(function, **dict(zip(grid, (value for _, value in pairs))))
            CASES.append(Case(function.__module__, name, bound, questions, marks))
        return function

    return register


def refusals(name: str, function: Callable[..., Any], rows: Iterable[tuple[Any, ...]]) -> None:
    """Registers calls that raise: for each the arguments, options, the error, and its words."""
    for row in rows:
        REFUSALS[f"{name}-{len(REFUSALS)}"] = Refusal(function, *row)


def refused(words: str, *args: Any, kind: type[Exception] = ValueError, **options: Any) -> Refusal:
    """A call with these arguments, whose error has these words; `refuses` says whose it is."""
    return Refusal(lambda: None, args, options, kind, re.escape(words))


def refuses(function: Callable[..., Any], *rows: Refusal, arrays: tuple[Any, ...] = ()) -> None:
    """Registers calls of a function that raise; those without arguments get these arrays."""
    name = getattr(function, "__name__", "call")
    refusals(name, function, [(row.args or arrays, *row[2:]) for row in rows])


def wrong_configurations(kind: type, *rows: tuple[Mapping[str, Any], str]) -> None:
    """Registers configurations that cannot be: for each the fields, and how the error begins."""
    refuses(kind, *(refused(f"{kind.__name__}: {words}", **fields) for fields, words in rows))


def cases(question: str) -> list[Any]:
    """The pytest parameters of the cases that are asked a question, whoever imported what first."""
    for module in CASE_MODULES:
        importlib.import_module(module)
    asked = [case for case in CASES if question in case.questions]
    asked.sort(key=lambda case: CASE_MODULES.index(case.module))
    return [pytest.param(each, id=each.name, marks=each.marks) for each in asked]
