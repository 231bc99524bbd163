"""`check`: races, deadlocks and misused barriers of a program, for every schedule of its threads.

The model. First comes what lies outside of its array (`bounds.py`). `order.py` runs the threads
once and gives each op a clock; its docstring says why once is enough for all interleavings.
`memory.py` compares accesses by these clocks. Then comes what only the end shows: who is stuck
(`deadlock.py`), what is left over (`leftover.py`), what does not fit (`resources.py`).

The proxy question. An ordinary write that an engine reads or overwrites later needs `commit_smem`
between, always. An ordinary *read* of a slot that a load overwrites later needs one by the letter
of PTX, too, and pipelib's emitters have it; JAX's do not, and no fault has been seen on hardware.
So that is a finding with `strict=True` only.

Not covered: what the answer of a barrier test or the contents of tensors decide (`trace` refuses
flow that depends on them); other blocks of the grid, but those of the cluster; opaque code; memory
that one scope after another has at the same address; registers that the compiler needs.
"""

from collections.abc import Iterator

from pipelib.schedule.arguments import PROGRAM, expect
from pipelib.schedule.bounds import out_of_bounds
from pipelib.schedule.deadlock import deadlock
from pipelib.schedule.leftover import Outliving, left_over
from pipelib.schedule.memory import Memory
from pipelib.schedule.order import Order
from pipelib.schedule.program import Program
from pipelib.schedule.report import Findings, Report, count, truncation
from pipelib.schedule.resources import registers, shared_memory


def check(program: Program, *, strict: bool = False) -> Report:
    """The faults of a program that some schedule of its threads can bring out.

    Args:
      program: what `trace` gave, or one built by hand.
      strict: also report that an asynchronous copy overwrites, with no `commit_smem` between, what
        a thread has read with ordinary loads (see the module's docstring).

    Returns:
      a `Report`: an iterable of `Finding`s, empty if there is no fault.

    Raises:
      TypeError: `program` is none.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=False)
      >>> report = pipelib.check(program)
      >>> report.ok
      False
      >>> print(report[0].cause)
      the store of thread 0 reads `o_smem`, which thread 0 wrote with
      ordinary accesses, and no commit_smem stands between: the two may be
      seen in another order.
      >>> mended = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> print(pipelib.check(mended))
      kernel: no finding (9 ops of 1 thread checked)
    """
    expect("check", program, *PROGRAM)
    findings = Findings()
    out_of_bounds(program, findings)
    order = Order(program, findings)
    memory, outliving = Memory(program, order, findings, strict), Outliving(order, findings)
    for event in order:
        memory.see(event)
        outliving.see(event)
    stuck = deadlock(program, order, findings)
    is_whole = not stuck and not program.truncated
    memory.finish(is_whole)
    if is_whole:
        outliving.finish()
        for place in order.places.values():
            left_over(order, place, findings)
    shared_memory(program, findings)
    for block in range(program.blocks):
        registers(program, block, findings)
    return Report(program, findings.all(), tuple(_notes(program, stuck, memory)))


def _notes(program: Program, stuck: list[int], memory: Memory) -> Iterator[str]:
    """What the check did not look at, and what may be meant."""
    if program.truncated:
        yield f"{truncation(program)}, and so are the faults there."
    if stuck:
        yield "what stuck threads would do next was not checked."
    ops = [op for ops in program.threads for op in ops]
    opaque = sorted({op.note for op in ops if op.kind == "opaque"})
    if opaque:
        yield f"opaque code was taken on trust: {', '.join(opaque)}."
    if any(op.kind == "test" for op in ops):
        yield "a barrier test orders nothing here, whatever it answers."
    for (line, name), times in memory.overwritten.items():
        yield (
            f"{line}: what is written to `{name}` is not read before it is written anew,"
            f" {count(times, 'time')}: right if only the last is meant to count."
        )
    for region in memory.unwritten:
        name, part = program.buffers[region.buffer].name, program.index_of(region)
        yield (
            f"the output `{name}` is not all written, at least not `{part}`, and the grid has no"
            " other block to do so: right if the caller does not read that."
        )
    for (line, kind, name), times in memory.unused.items():
        what = "the product in" if kind == "wgmma" else "what is copied into"
        yield (
            f"{line}: {what} `{name}` is not read, {count(times, 'time')}: right if nothing is"
            " meant to come of it."
        )
