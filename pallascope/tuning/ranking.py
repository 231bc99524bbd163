"""`look`: what is known of a configuration without running it.

The model. In this order, and what fails ends it:

=========  =========================================================================================
built      `kernel_of` makes the kernel, and JAX traces it. A ValueError is the kernel's own
           refusal, as of a configuration that does not fit, with its sum
verified   `pallascope.verify` finds nothing in the blocks of the grid's diagonal, nor between them,
           and JAX lowers the kernel; a block with too much SMEM or too many registers does not fit
timed      `pallascope.predict` says how long the whole launch takes, at the clock under load, and
           the timeline of its first block what bounds it
compiled   `weeded`, where ptxas is at hand: the best few by prediction neither wait for each
           product by itself nor spill registers; those that do come after all others
=========  =========================================================================================

Not covered: what bounds other blocks than the first; functions that call several kernels, of which
there is no one bound.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pallascope.bench.jaxprs import digest, digest_of
from pallascope.bench.provenance import code_digest
from pallascope.compiling import compiled
from pallascope.failing import in_words
from pallascope.machine import Machine
from pallascope.predicting import predict
from pallascope.program import Program
from pallascope.report import FindingKind
from pallascope.simulating.simulate import simulate
from pallascope.tuning.cache import Cache, Kind
from pallascope.tuning.results import Outcome, Trial
from pallascope.tuning.spaces import Config, KernelOf, kernel
from pallascope.verifying import BlockChoice, KernelVerdict, Verdict, verify


def look(
    kernel_of: KernelOf, config: Config, args: tuple[object, ...], machine: Machine, cache: Cache
) -> Trial:
    """What is known of a configuration; errors of the caller's code are outcomes.

    Args:
      kernel_of, config: make the kernel.
      args: arrays, numbers or `jax.ShapeDtypeStruct`s.
      machine: what the simulation is of.
      cache: has what an earlier search found of the same kernel on this machine.
    """
    try:
        function = kernel(kernel_of, config)
        compiled = digest(function, *args)
    except ValueError as error:
        return Trial(config, Outcome.REFUSED, str(error))
    except Exception as error:
        return Trial(config, Outcome.UNTRACED, in_words(error))
    key = digest_of((compiled, machine.to_json(), _integers(args), _code()))
    kept = cache.get(Kind.LOOKED, key)
    if kept is None:
        kept = _looked(function, args, machine)
        cache.put(Kind.LOOKED, key, kept)
    outcome, reason, us, bound, off = kept
    return Trial(config, Outcome(outcome), reason, us, bound, digest=compiled, off=off)


def _looked(
    function: Callable[..., object], args: tuple[object, ...], machine: Machine
) -> list[Any]:
    """The outcome, the reason, the predicted time, the bound and `off`, as JSON has them."""
    try:
        (verdict,) = verified(function, *args).kernels
        if not verdict.ok:
            return [*_fault(verdict), None, "", None]
        times = _predicted(verdict.reports[0].program, function, args, machine)
    except Exception as error:
        return [Outcome.UNTRACED, in_words(error), None, "", None]
    return [Outcome.PREDICTED, "", *times]


def _predicted(
    program: Program, function: Callable[..., object], args: tuple[object, ...], machine: Machine
) -> tuple[float, str, float | None]:
    """The microseconds of a function's one launch and of what XLA runs around it, what bounds the
    kernel's first block, and how far predictions of calls like it were off.

    Raises:
      ValueError: the kernel never ends, or the machine lacks a rate.
    """
    found = predict(function, *args, machine=machine)
    (launch,) = found.launches
    here = machine.changed(clock_hz=launch.clock_hz)
    timeline = simulate(program, here, blocks_per_sm=launch.blocks_per_sm)
    return found.us, timeline.bound(), found.error


def _fault(verdict: KernelVerdict) -> tuple[Outcome, str]:
    """The outcome of a kernel that is not ok, and the gravest of its findings in words."""
    if not verdict.findings:
        return Outcome.UNTRACED, verdict.refusal
    kinds = {finding.kind for finding in verdict.findings}
    first = verdict.findings[0]
    outcome = _OUTCOMES.get(first.kind, Outcome.FINDING) if len(kinds) == 1 else Outcome.FINDING
    return outcome, str(first)


_OUTCOMES = {FindingKind.RESOURCE: Outcome.REFUSED, FindingKind.NOT_LOWERED: Outcome.UNLOWERED}


def verified(function: Callable[..., object], *args: object) -> Verdict:
    """The verdict that a configuration is held to: of a few blocks, since there are many of them.

    Raises:
      ValueError: the function calls several kernels; or what `verify` raises.
    """
    verdict = verify(function, *args, blocks=BlockChoice.DIAGONAL, compiler=False)
    if len(verdict.kernels) > 1:
        raise ValueError(
            f"the function calls {len(verdict.kernels)} Mosaic GPU kernels, and a search is of one:"
            " leave out what is around it."
        )
    return verdict


def weeded(
    kernel_of: KernelOf, trials: Sequence[Trial], args: tuple[object, ...]
) -> Iterator[Trial]:
    """The trials, of which the first `_CLEAN` that ptxas makes fast are known to be so.

    At most `_MOST` are compiled, two to four seconds each.
    """
    clean = asked = 0
    for trial in trials:
        if trial.outcome is Outcome.PREDICTED and clean < _CLEAN and asked < _MOST:
            faults = compiled(kernel(kernel_of, trial.config), *args).faults
            asked += 1
            clean += not faults
            if faults:
                trial = replace(trial, outcome=Outcome.SLOW, reason=" ".join(faults))
        yield trial


_CLEAN, _MOST = 3, 12


@functools.cache
def _code() -> str:
    """A digest of the code that looks: all of pallascope, as a value may matter anywhere."""
    return code_digest(pathlib.Path(__file__).parents[1])


def _integers(args: tuple[object, ...]) -> list[ArrayLike]:
    """The values that a kernel's flow can depend on."""
    known = (x for x in jax.tree.leaves(args) if not isinstance(x, jax.ShapeDtypeStruct))
    return [x for x in known if jnp.issubdtype(jnp.result_type(x), jnp.integer)]
