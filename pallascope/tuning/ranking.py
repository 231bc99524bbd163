"""`look`: what is known of a configuration without running it.

The model. In this order, and what fails ends it:

========  ==========================================================================================
built     `kernel_of` makes the kernel, and JAX traces it. A ValueError is the kernel's own refusal,
          as of a configuration that does not fit, with its sum
traced    `pallascope.trace` lists what the threads of the grid's first block do
checked   `pallascope.check` finds nothing; a block with too much SMEM or too many registers does
          not fit
timed     `pallascope.predict` says how long the whole launch takes, at the clock under load, and
          the timeline of its first block what bounds it
========  ==========================================================================================

Not covered: faults of other blocks than the first (`python -m pallascope check --block all` looks
for those), and what bounds them; functions that call several kernels, which `trace` refuses.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pallascope.bench.jaxprs import digest, digest_of
from pallascope.bench.provenance import code_digest
from pallascope.checking.check import check
from pallascope.machine import Machine
from pallascope.predicting import predict
from pallascope.program import Program
from pallascope.report import FindingKind, Report
from pallascope.simulating.simulate import simulate
from pallascope.tracing.trace import trace
from pallascope.tuning.cache import Cache, Kind
from pallascope.tuning.results import Outcome, Trial
from pallascope.tuning.spaces import Config, KernelOf, kernel
from pallascope.tuning.workers import in_words


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
    outcome, reason, us, bound = kept
    return Trial(config, Outcome(outcome), reason, us, bound, digest=compiled)


def _looked(
    function: Callable[..., object], args: tuple[object, ...], machine: Machine
) -> list[Any]:
    """The outcome, the reason, the predicted time and the bound, as JSON has them."""
    try:
        program = trace(function, *args)
        report = check(program)
        if not report.ok:
            return [*_fault(report), None, ""]
        us, bound = _predicted(program, function, args, machine)
    except Exception as error:
        return [Outcome.UNTRACED, in_words(error), None, ""]
    return [Outcome.PREDICTED, "", us, bound]


def _predicted(
    program: Program, function: Callable[..., object], args: tuple[object, ...], machine: Machine
) -> tuple[float, str]:
    """The microseconds of the one launch of a function, and what bounds its first block.

    Raises:
      ValueError: the kernel never ends, or the machine lacks a rate.
    """
    (launch,) = predict(function, *args, machine=machine).launches
    here = machine.changed(clock_hz=launch.clock_hz)
    timeline = simulate(program, here, blocks_per_sm=launch.blocks_per_sm)
    return launch.us, timeline.bound()


def _fault(report: Report) -> tuple[Outcome, str]:
    """The outcome of a kernel with findings, and the gravest of them in words."""
    first = report[0]
    is_size = all(finding.kind is FindingKind.RESOURCE for finding in report)
    return (Outcome.REFUSED if is_size else Outcome.FINDING), str(first)


def fault(function: Callable[..., object], *args: object) -> str:
    """The gravest finding of a kernel in words; empty if there is none."""
    report = check(trace(function, *args))
    return "" if report.ok else _fault(report)[1]


@functools.cache
def _code() -> str:
    """A digest of the code that looks: all of pallascope, as a value may matter anywhere."""
    return code_digest(pathlib.Path(__file__).parents[1])


def _integers(args: tuple[object, ...]) -> list[ArrayLike]:
    """The values that a kernel's flow can depend on."""
    known = (x for x in jax.tree.leaves(args) if not isinstance(x, jax.ShapeDtypeStruct))
    return [x for x in known if jnp.issubdtype(jnp.result_type(x), jnp.integer)]
