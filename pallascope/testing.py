"""Checks kernels in tests: `assert_clean` checks one, `watched` all that run meanwhile.

Both ask `pallascope.verify`, though not ptxas: for every schedule of a block's threads, on no GPU.
`watched` sees a kernel when it is called, by whatever name, natively or in the interpreter;
`pallascope.launches` says how, and what it does not see. With pytest, the marker `pallascope_check`
does the same for a test (`pallascope.pytest_plugin`).

`watched` looks at three blocks of a grid by default, `BlockChoice.DIAGONAL`: edges fail first, and
three blocks cost three traces however large the grid is.
"""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from pallascope.arguments import expect_flags
from pallascope.failing import in_words, is_ours
from pallascope.launches import Called, distinct, launches
from pallascope.report import count
from pallascope.verifying import BlockChoice, Blocks, KernelVerdict, verify

__all__ = ["Watch", "assert_clean", "watched"]


def assert_clean(
    kernel: Callable[..., object],
    *args: object,
    strict: bool = False,
    blocks: Blocks = BlockChoice.ALL,
    call: int | None = None,
    max_steps: int | None = None,
) -> None:
    """Fails if a kernel has a race, a deadlock or a misused barrier, or cannot be checked.

    Args:
      kernel: what `pallascope.verify` takes: a function that calls one `plgpu.kernel`, or several.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.
      strict, blocks, call, max_steps: as for `pallascope.verify`.

    Raises:
      AssertionError: something was found, or a kernel could not be checked; the message is the
        whole verdict.
      TypeError, ValueError, NotImplementedError: `verify` does not take the function.

    Example:
      >>> racy = gallery.GALLERY["missing-commit"]
      >>> args = racy.arguments(np.random.default_rng(0), 1)
      >>> assert_clean(functools.partial(racy.kernel, fixed=True), *args)
      >>> assert_clean(functools.partial(racy.kernel, fixed=False), *args)
      Traceback (most recent call last):
      ...
      AssertionError: missing-commit: ...
    """
    verdict = verify(
        kernel,
        *args,
        strict=strict,
        blocks=blocks,
        call=call,
        max_steps=max_steps,
        compiler=False,
    )
    if not verdict.ok:
        raise AssertionError(str(verdict))


@dataclass(slots=True)
class Watch:
    """What `watched` found: a `KernelVerdict` for each kernel; empty until the context ends.

    Example:
      >>> Watch().faulty
      []
    """

    verdicts: list[KernelVerdict] = field(default_factory=list[KernelVerdict])

    @property
    def faulty(self) -> list[KernelVerdict]:
        """Those with findings."""
        return [verdict for verdict in self.verdicts if verdict.findings]

    @property
    def refused(self) -> list[KernelVerdict]:
        """Those of kernels that could not be checked, or not to the end."""
        return [verdict for verdict in self.verdicts if verdict.refusal]

    def assert_clean(self) -> None:
        """Raises an AssertionError with the whole verdicts if anything was found."""
        if self.faulty:
            raise AssertionError("\n\n".join(map(str, self.faulty)))

    def __str__(self) -> str:
        """The verdicts that are not ok, and how much was checked."""
        said = [str(verdict) for verdict in self.verdicts if not verdict.ok]
        blocks = sum(len(verdict.reports) for verdict in self.verdicts)
        return "\n\n".join([*said, f"pallascope checked {count(blocks, 'block')}."])


@contextlib.contextmanager
def watched(
    *, strict: bool = False, blocks: BlockChoice | str = BlockChoice.DIAGONAL
) -> Generator[Watch]:
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
      >>> [finding.kind for verdict in watch.faulty for finding in verdict.findings]
      ['missing-commit']
    """
    expect_flags("watched", strict=strict)
    chosen, watch = BlockChoice(blocks), Watch()
    seen: list[Called] = []
    try:
        with launches() as seen:
            yield watch
    finally:  # also after an exception, which a fault may explain
        for launch in distinct(seen):
            watch.verdicts += _verdicts(launch, chosen, strict)


def _verdicts(launch: Called, blocks: BlockChoice, strict: bool) -> tuple[KernelVerdict, ...]:
    """What is found in a launch; a refusal if the trace does not take it."""
    try:
        return verify(
            launch.call, *launch.args, strict=strict, blocks=blocks, compiler=False
        ).kernels
    except Exception as error:
        if is_ours(error):
            raise
        return (KernelVerdict(launch.name, (), refusal=in_words(error)),)
