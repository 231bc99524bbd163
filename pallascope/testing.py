"""Checks kernels in tests: `assert_clean` checks one, `watched` all that run meanwhile.

Both trace and check as `pallascope.trace` and `pallascope.check` do: for every schedule of a
block's threads, on no GPU. `watched` sees a kernel when it is called, by whatever name, natively or
in the interpreter; `pallascope.launches` says how, and what it does not see. With pytest, the
marker `pallascope_check` does the same for a test (`pallascope.pytest_plugin`).

Which blocks. A program is that of one block of the grid (or one cluster). `Blocks.DIAGONAL`, the
default of `watched`, takes the first block, the last on every axis at once, and the one in the
middle of all: edges fail first, and three blocks cost three traces however large the grid is.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from pallascope.checking.check import check
from pallascope.launches import Called, distinct, launches
from pallascope.program import Name, Program
from pallascope.report import Report, count
from pallascope.tracing.trace import trace

#: What `trace` says of a kernel that it does not take.
_REFUSALS = TypeError, ValueError, NotImplementedError


class Blocks(Name, what="a choice of blocks", consequence="it is unknown which blocks to check"):
    """Which blocks of a grid are checked; equal to its name, so `blocks="first"` will do.

    Example:
      >>> Blocks.DIAGONAL.of((4, 3))
      [(0, 0), (2, 1), (3, 2)]
    """

    FIRST = "first"
    DIAGONAL = "diagonal"

    def of(self, grid: tuple[int, ...]) -> list[tuple[int, ...]]:
        """These blocks of a grid, each once."""
        found = [tuple(0 for _ in grid)]
        if self is Blocks.DIAGONAL:
            found += [tuple(size // 2 for size in grid), tuple(size - 1 for size in grid)]
        return list(dict.fromkeys(found))


def assert_clean(
    kernel: Callable[..., object],
    *args: object,
    strict: bool = False,
    block: int | tuple[int, ...] | None = None,
    blocks: Blocks | str | None = None,
    call: int | None = None,
    max_steps: int | None = None,
) -> None:
    """Fails if a kernel has a race, a deadlock or a misused barrier.

    Args:
      kernel: what `pallascope.trace` takes: a function that calls one `plgpu.kernel`.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.
      strict: as for `pallascope.check`.
      block: the one block to check, as for `pallascope.trace`; by default the first.
      blocks: several instead, "diagonal" or "first".
      call, max_steps: as for `pallascope.trace`.

    Raises:
      AssertionError: something was found; the message is the whole report.
      TypeError, ValueError, NotImplementedError: `trace` does not take the kernel; or both `block`
        and `blocks` are given.

    Example:
      >>> racy = gallery.GALLERY["missing-commit"]
      >>> args = racy.arguments(np.random.default_rng(0), 1)
      >>> assert_clean(functools.partial(racy.kernel, fixed=True), *args)
      >>> assert_clean(functools.partial(racy.kernel, fixed=False), *args)
      Traceback (most recent call last):
      ...
      AssertionError: missing-commit: ...
    """
    if block is not None and blocks is not None:
        raise ValueError(
            f"{block=} is one block and {blocks=} are several, so it is unknown which to check:"
            " give one of the two."
        )

    def traced(at: int | tuple[int, ...] | None) -> Program:
        return trace(kernel, *args, block=at, call=call, max_steps=max_steps)

    several = Blocks.FIRST if blocks is None else Blocks(blocks)
    reports = [check(program, strict=strict) for program in _programs(traced, block, several)]
    _fail(reports)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kernel that `trace` does not take, and what it says.

    Example:
      >>> print(Refusal("softmax", ValueError("no reason")))
      softmax: not checked: no reason
    """

    kernel: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.kernel}: not checked: {self.error}"


@dataclass(slots=True)
class Watch:
    """What `watched` found: `reports` of each block, and `refusals`, kernels that were not checked.

    Both are empty until the context ends.

    Example:
      >>> Watch().faulty
      []
    """

    reports: list[Report] = field(default_factory=list[Report])
    refusals: list[Refusal] = field(default_factory=list[Refusal])

    @property
    def faulty(self) -> list[Report]:
        """The reports that have findings."""
        return [report for report in self.reports if not report.ok]

    def assert_clean(self) -> None:
        """Raises an AssertionError with the whole reports if anything was found."""
        _fail(self.reports)

    def __str__(self) -> str:
        """The reports that have findings, the refusals, and how much was checked."""
        said = [*map(str, self.faulty), *map(str, self.refusals)]
        return "\n\n".join([*said, f"pallascope checked {count(len(self.reports), 'block')}."])


@contextlib.contextmanager
def watched(*, strict: bool = False, blocks: Blocks | str = Blocks.DIAGONAL) -> Generator[Watch]:
    """Checks each kernel that is called in the context, when the context ends.

    Each kernel is checked once for operands of the same types and integers. Nothing is raised for
    what is found: call `assert_clean` of the `Watch` after the context.

    Args:
      strict: as for `pallascope.check`.
      blocks: which blocks of each kernel's grid.

    Raises:
      ValueError: `blocks` is no choice of blocks.

    Example:
      >>> racy = gallery.GALLERY["missing-commit"]
      >>> args = racy.arguments(np.random.default_rng(0), 1)
      >>> with watched() as watch:
      ...     _ = jax.eval_shape(functools.partial(racy.kernel, fixed=False), *args)
      >>> [finding.kind for report in watch.faulty for finding in report]
      ['missing-commit']
    """
    chosen, watch = Blocks(blocks), Watch()
    seen: list[Called] = []
    try:
        with launches() as seen:
            yield watch
    finally:  # also after an exception, which a fault may explain
        for launch in distinct(seen):
            _judge(launch, watch, chosen, strict)


def _judge(launch: Called, watch: Watch, blocks: Blocks, strict: bool) -> None:
    """Adds what is found in a launch."""

    def traced(at: int | tuple[int, ...] | None) -> Program:
        return trace(launch.call, *launch.args, block=at)

    try:
        for program in _programs(traced, None, blocks):
            watch.reports.append(check(program, strict=strict))
    except _REFUSALS as error:
        watch.refusals.append(Refusal(launch.name, error))


def _programs(
    traced: Callable[[Any], Program], block: int | tuple[int, ...] | None, blocks: Blocks
) -> Iterator[Program]:
    """The programs of the blocks; the first block's says what the grid is."""
    first = traced(block)
    yield first
    for at in [] if block is not None else blocks.of(first.grid)[1:]:
        yield traced(at)


def _fail(reports: list[Report]) -> None:
    faulty = [str(report) for report in reports if not report.ok]
    if faulty:
        raise AssertionError("\n\n".join(faulty))
