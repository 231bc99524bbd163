"""How much of what is wrong the checker finds: mutants of every kernel, by class, as a record.

    python -m tests.pallascope.checking.survey [--jobs N] [--only NAMES]

writes `survey.json` beside this file; the rows of other kernels than those whose names the regular
expression finds stay as they are. All of it takes half an hour of two cores.

The model. A mutant is a program with one thing altered (`mutations`); its class is what it was
altered in. Each is checked. What is found must be shown to be harm by another judge, and what is
not found must be shown to be none:

==============  ====================================================================================
verdict         a mutant that
==============  ====================================================================================
`explored`      is found, and the explorer, which visits every state, sees harm as well
`shown`         is found, has too many states, and the order that one of its findings gives is
                replayed by the explorer, which sees the fault at its end
`met`           is found, no finding has an order, and something goes wrong in one of `WALKS`
                interleavings drawn by chance
`ruled`         is found by a rule that needs no order, as that of registers
`harmless`      is not found, and of all states that the explorer visits none is bad
`argued`        is not found, has too many states, and `expectations.reason` says why it does none
`wandered`      is not found, and nothing goes wrong in `WALKS` interleavings drawn by chance
`not followed`  has a semaphore that the checker does not follow, as a note says
`missed`        is not found, and the explorer sees harm
==============  ====================================================================================

How much `wandered` is worth: of those that are `shown`, the record has for one in `SAMPLED` whether
the same walks see harm. Kernels are those of the corpus, JAX's among them; pipelib's own, in one
in eight of the configurations that its tests check; those that language models wrote and in which
nothing is found; and constructs, more of them where a class would be small. What a class would have
few of is altered at each occurrence, not at the middle one alone. Left out: programs of more than
`LARGEST` ops, and two in which the explorer sees a write that nobody reads, of which the checker
has a note.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import pallascope
from benchmarks import written
from pallascope import Finding, Op, Program, Report
from tests.emitters import before_hopper
from tests.kernels.contract import CHECKED, cases
from tests.pallascope import blackwell, corpus
from tests.pallascope.checking import expectations
from tests.pallascope.checking.agreement import agree
from tests.pallascope.checking.broken import CONSTRUCTS
from tests.pallascope.checking.explorer import Outcome, TooLarge, explore, wander
from tests.pallascope.checking.mutations import Mutant, mutants
from tests.pallascope.checking.orders import judge
from tests.pallascope.constructs import devices, small
from tests.pallascope.strategies import with_thread
from tools.mutants import RECORD, read

#: Of a program, of an explorer's visit where something is found and where nothing is, and walks.
LARGEST, STATES, MORE_STATES, WALKS, SAMPLED = 3000, 1000, 10_000, 40, 20
CLASSES = {
    "wait": "a wait on a barrier",
    "arrive": "an arrival",
    "barrier": "how many arrivals a phase takes",
    "load": "a copy to SMEM, an addition",
    "write": "a copy to SMEM, an addition",
    "store": "a copy to SMEM, an addition",
    "fence": "a commit of SMEM",
    "wait_store": "the end of a store",
    "commit_group": "the end of a store",
    "wgmma_wait": "the end of a product",
    "acc_read": "the end of a product",
    "scope_begin": "where threads meet",
    "meet": "where threads meet",
    "registers": "registers",
    "signal": "a semaphore of blocks or devices",
    "await": "a semaphore of blocks or devices",
    "grid_wait": "the wait for the kernel before",
    "tcgen05_commit": "the end of Blackwell's operations",
    "wait_load_tmem": "the end of Blackwell's operations",
    "wait_store_tmem": "the end of Blackwell's operations",
    "wait_cp_async": "the end of a `cp.async`",
}
SCARCE = frozenset({
    "meet", "signal", "await", "grid_wait", "tcgen05_commit", "wait_load_tmem", "wait_store_tmem",
    "wait_cp_async",
})  # fmt: skip
#: A finding of these needs no order: what is wrong can be seen without a run.
RULES = frozenset({"resource"})


class Kernel(NamedTuple):
    """A clean kernel: whose it is, and the kinds of ops that are altered, if not all."""

    source: str
    name: str
    trace: Callable[[], Program]
    kinds: frozenset[str] = frozenset(CLASSES)


@functools.cache
def kernels() -> list[Kernel]:
    """All kernels, their names unique."""
    return [*_of_corpus(), *_of_pipelib(), *_written(), *_constructs(), *_early()]


def _of_corpus() -> Iterator[Kernel]:
    for kernel in corpus.clean():
        source = "JAX's kernels" if kernel.name.startswith("jax/") else "emitters, by hand"
        yield Kernel(source, kernel.name, kernel.trace)


def _of_pipelib() -> Iterator[Kernel]:
    def trace(case: Any) -> Program:
        call = case.make()
        return pallascope.trace(call.function, *call.arrays, **call.blocks[0])

    for param in cases(CHECKED)[::8]:
        (case,) = param.values
        yield Kernel("pipelib's kernels", case.name, functools.partial(trace, case))


def _written() -> Iterator[Kernel]:
    for name, task in written.tasks().items():
        trace = lambda task=task: pallascope.trace(task.kernel(), *task.shapes())
        yield Kernel("written by language models", f"written/{name}", trace)


def _constructs() -> Iterator[Kernel]:
    source = "constructs"
    for case in CONSTRUCTS:
        if not case.name.startswith("blackwell"):  # which the corpus has
            yield Kernel(source, f"constructs/{case.name}", case.trace)
    for slots, delays in ((2, (0,)), (3, (0, 1)), (4, (1,)), (4, (2, 0)), (5, (0, 3, 1))):
        for steps in range(5, 13):
            case = before_hopper.with_delays(delays, slots, steps=steps)
            trace = functools.partial(small.pipelined, case)
            yield Kernel(source, f"cp.async/{case.name}", trace, frozenset({"wait_cp_async"}))
    of_blackwell = frozenset({"tcgen05_commit", "wait_load_tmem", "wait_store_tmem"})
    for steps, slots in itertools.product(range(2, 13), (1, 2, 3)):
        trace = lambda steps=steps, slots=slots: pallascope.trace(
            *blackwell.multiplied(steps, slots=slots)
        )
        yield Kernel(source, f"blackwell/{steps} steps, {slots} slots", trace, of_blackwell)
    for blocks in range(2, 11):
        trace = functools.partial(devices.in_turns, blocks)
        yield Kernel(source, f"semaphores/{blocks} blocks in turns", trace)


def _early() -> Iterator[Kernel]:
    """Each kernel of the corpus as one that starts early: one thread waits, where it must."""

    def trace(kernel: corpus.Kernel, thread: int) -> Program:
        program = replace(kernel.trace(), starts_early=True)
        ops = program.threads[thread]
        arrays = {buffer.id for buffer in program.buffers if buffer.space == "gmem"}
        touches = (any(r.buffer in arrays for r in op.reads + op.writes) for op in ops)
        if (at := next(itertools.compress(itertools.count(), touches), None)) is None:
            raise ValueError(f"Thread {thread} of {program.name} accesses no GMEM.")
        return with_thread(program, thread, [*ops[:at], Op("grid_wait", thread), *ops[at:]])

    for kernel, thread in itertools.product(corpus.clean(), range(3)):
        begins = functools.partial(trace, kernel, thread)
        name = f"early/{kernel.name}, thread {thread} waits"
        yield Kernel("started early", name, begins, frozenset({"grid_wait"}))


# What is said of a mutant.


def verdict(program: Program, mutant: Mutant, report: Report) -> str:
    """What the judges say; raises AssertionError where the explorer sees other harm."""
    if any("semaphores order nothing here" in note for note in report.notes):
        return "not followed"
    if report:
        return _of_found(mutant, report)
    reason = expectations.reason(program, mutant)
    outcome = _explored(mutant.program, STATES if reason else MORE_STATES)
    if outcome is not None:
        return "missed" if outcome.bad else "harmless"
    if reason:
        return "argued"
    return "missed" if wander(mutant.program, WALKS) else "wandered"


def _of_found(mutant: Mutant, report: Report) -> str:
    outcome = _explored(mutant.program, STATES)
    if outcome is not None:
        agree(mutant.program, report, outcome)
        return "explored"
    if {str(finding.kind) for finding in report} <= RULES:
        return "ruled"
    ordered = [finding for finding in report if finding.interleaving is not None]
    if not ordered:
        return "met" if wander(mutant.program, WALKS) else "not shown"
    return "shown" if any(_shows(mutant.program, finding) for finding in ordered) else "not shown"


def _shows(program: Program, finding: Finding) -> bool:
    """Whether a finding's order shows its fault, as the explorer sees it."""
    try:
        return bool(judge(program, [finding], 0))
    except AssertionError:
        return False


def _explored(program: Program, limit: int) -> Outcome | None:
    try:
        return explore(program, limit)
    except TooLarge:
        return None


def surveyed(number: int) -> dict[str, Any] | None:
    """A kernel's row of the record; None of one that is refused, too large, or not clean."""
    kernel = kernels()[number]
    try:
        program = kernel.trace()
    except Exception:  # whatever stops a kernel that a language model wrote
        return None
    if sum(map(len, program.threads)) > LARGEST or pallascope.check(program):
        return None
    outcome = _explored(program, STATES)
    return None if outcome and outcome.bad else _row(kernel, program)


def _row(kernel: Kernel, program: Program) -> dict[str, Any]:
    counts, power = Counter[str](), Counter[str]()
    left: list[list[str]] = []
    for mutant in mutants(program, SCARCE):
        if mutant.kind not in kernel.kinds:
            continue
        report = pallascope.check(mutant.program)
        said = verdict(program, mutant, report)
        counts[f"{CLASSES[mutant.kind]}: {said}"] += 1
        if said == "shown" and counts.total() % SAMPLED == 0:
            power["seen" if wander(mutant.program, WALKS) else "not seen"] += 1
        if said in ("missed", "wandered", "not shown"):
            left.append([mutant.name.partition(" [")[0], said])
    return dict(source=kernel.source, name=kernel.name, counts=counts, power=power, left=left)


def main() -> None:
    """Surveys the kernels and writes the record."""
    parser = argparse.ArgumentParser("python -m tests.pallascope.checking.survey")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", metavar="NAMES")
    options, every = parser.parse_args(), kernels()
    kept = {} if not options.only else {row["name"]: row for row in read()}
    asked = [i for i, kernel in enumerate(every) if re.search(options.only, kernel.name)]
    found: dict[str, dict[str, Any] | None] = {}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for number, row in zip(asked, pool.map(surveyed, asked)):
            found[every[number].name] = row
            told = "left out" if row is None else f"{row['counts'].total()} {row['left'][:3]}"
            print(f"{every[number].name}: {told}", flush=True)
    rows = ((kept | found).get(kernel.name) for kernel in every)
    lines = ",\n".join(json.dumps(row) for row in rows if row is not None)
    RECORD.write_text(f'{{"kernels": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
