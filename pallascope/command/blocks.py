"""`checked`: the blocks of a target, traced and checked, one after another or in processes.

The model. A block is traced and checked for itself, so blocks can be done in any order; what comes
out is in the order of the blocks, and is the same however many processes there are. A process that
is started imports JAX and the caller's module, which takes seconds. So the first two blocks are
done here, and others are started if the second took so long that they will have saved more.

A program may have millions of ops, and does not leave its process: a `Checked` has its report as
text and as JSON's fields, and its footprint in GMEM, which is to be compared with those of others.
There a block that takes tiles of others over counts with its own tile only: the others count too.
What the caller's code prints is printed once, here: JAX runs that code for the first block only.

With `strict=False` the check is strict all the same: its further findings are counted in a note,
which says when to ask for them.
"""

import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import pallascope
from pallascope import Finding, Program, Report
from pallascope.checking.grid import Footprint, footprint
from pallascope.command.targets import ALL, TOGETHER, Block, Target, spread, tracer
from pallascope.report import Document, count

# Seconds that others have to save: each imports JAX first, and cores may be busy.
_START_UP = 10.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one block; `faults` tells findings apart from those of other blocks."""

    text: str
    verdict: str
    ok: bool
    faults: tuple[tuple[object, ...], ...]
    fields: Document
    footprint: Footprint


def checked(target: Target, jobs: int | None = None) -> Iterator[Checked]:
    """The blocks that a target asks for, in order.

    Args:
      target: the kernel and its blocks.
      jobs: how many processes; by default one for each core, if that pays.
    """
    traced = tracer(target)
    if target.block == TOGETHER:
        yield _look(target, traced(None))
        return
    if target.block != ALL:
        assert not isinstance(target.block, str), "the words for blocks are ALL and TOGETHER"
        yield _look(target, traced(target.block))
        return
    first = traced(None)
    rest = spread(first.grid)[1:]
    takes_over = any(op.claims for op in first.ops)
    yield _look(target, first, traced((0,) * len(first.grid)) if takes_over else first)
    if jobs is None and rest:
        start = time.perf_counter()
        yield _look(target, traced(rest.pop(0)))
        seconds = time.perf_counter() - start
        processes = min(_cores(), len(rest))
        saved = seconds * len(rest) * (1 - 1 / processes) if processes else 0.0
        jobs = processes if saved > _START_UP else 1
    if rest and jobs is not None and jobs > 1:
        yield from _in_processes(target, rest, min(jobs, len(rest)))
    else:
        yield from (_look(target, traced(block)) for block in rest)


def _look(target: Target, program: Program, compared: Program | None = None) -> Checked:
    """Checks one block; `compared` is what is compared with other blocks, if it is not the same."""
    report = pallascope.check(program, strict=True)
    if not target.strict:
        report = _without_strict(report)
    faults = tuple((f.cause, *(op.line for op in f.ops)) for f in report)
    trace = footprint(compared or program)
    return Checked(str(report), report.verdict, report.ok, faults, report.fields(), trace)


def _without_strict(report: Report) -> Report:
    """The report of a check that is not strict, with a note of what a strict one has besides."""
    strict = [finding for finding in report if finding.is_strict]
    if not strict:
        return report
    kept = tuple(finding for finding in report if not finding.is_strict)
    return replace(report, findings=kept, notes=(*report.notes, _strict_note(strict)))


def _strict_note(findings: list[Finding]) -> str:
    lines = ", ".join(dict.fromkeys(f.ops[0].line or "an unknown line" for f in findings))
    return (
        f"--strict has {count(len(findings), 'finding')} more, at {lines}: a copy overwrites what a"
        " thread has read with ordinary loads, and no commit_smem stands between. PTX asks for one,"
        " though no GPU has been seen to need it: use --strict for kernels that are to hold by"
        " PTX's letter, and for those that promise ordinary_reads=False to pipelib's emitters."
    )


# Processes.

_traced: Callable[[Block | None], Program] | None = None


def _in_processes(target: Target, blocks: list[Block], jobs: int) -> Iterator[Checked]:
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    with ProcessPoolExecutor(jobs, context, _begin, (target,)) as pool:
        yield from pool.map(_in_worker, [target] * len(blocks), blocks)


def _begin(target: Target) -> None:
    """Loads the caller's function in a new process."""
    global _traced
    # Should the caller's code use a GPU: no process takes most of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with contextlib.redirect_stdout(io.StringIO()):
        _traced = tracer(target)


def _in_worker(target: Target, block: Block) -> Checked:
    assert _traced is not None, "a worker begins with _begin"
    with contextlib.redirect_stdout(io.StringIO()):
        return _look(target, _traced(block))


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
