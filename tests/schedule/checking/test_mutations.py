"""Broken kernels: every mutant that can go wrong is found, with the right kind; no other is.

The judges. What `expectations.py` says of a mutant (a fault of some kinds, or harmless for a named
reason) holds against the explorer wherever that can visit the mutant's states, and both hold
against the checker. A table of what was found is printed at the end of the run.

Where the source can be changed, it is: a kernel traced with a synchronising function that does
nothing is the same program as the mutant that has all its ops taken away.
"""

import collections
import contextlib
from unittest import mock

import jax
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.schedule import check
from tests.schedule import corpus, kernels
from tests.schedule.checking import expectations
from tests.schedule.checking.explorer import TooLarge, explore
from tests.schedule.checking.mutations import mutants
from tests.schedule.strategies import with_thread

pytestmark = pytest.mark.one_jax

# The most states of a mutant that are visited: JAX's kernels have more than can be in a second.
LIMITS = {
    "contract/static_grid-grid=(4,)-plain": 3000,
    "contract/static_grid-grid=(4,)-specialized-1": 3000,
    "contract/static_grid-grid=(4,)-specialized-2": 1500,
    "contract/revisited_output-slots=2-plain": 3000,
    "contract/multicast_input-specialized-1": 1000,
    "contract/static_grid-grid=(4,)-upstream-specialized-1": 3000,
    "by-hand/add_one": 3000,
    "by-hand/ring-slots=2": 3000,
    "by-hand/specialized-slots=2-computes=1": 3000,
    "by-hand/specialized-slots=2-computes=2": 4000,
    "emitted/matmul": 3000,
    "emitted/specialized-slots=2-delay=0-threads=2": 3000,
    "emitted/specialized-slots=2-delay=1-threads=1": 3000,
    "jax/attention-block_kv=128": 1000,
    "jax/attention_with_pipeline_emitter": 1000,
    "jax/matmul-tile_n=128-grid_minor_dim=M-grid_tile_width=2": 1000,
}
KERNELS = {kernel.name: kernel for kernel in corpus.clean() if kernel.name in LIMITS}


@contextlib.contextmanager
def no_memory():
    """JAX keeps the jaxpr of a function that it has seen: none from before, none for after."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def keys(kernel, mutant):
    """By what a reason by hand may name a mutant: without its line, and without its site."""
    name = mutant.name.split(" [")[0]
    return [(kernel, name), (kernel, name.split(", site")[0].split(", barrier")[0])]


def judged(kernel, program, mutant):
    """(what the checker did, what the explorer saw, what is wrong with the judgement)."""
    found = frozenset(finding.kind for finding in check(mutant.program))
    by_hand = "".join(expectations.BY_HAND.get(key, "") for key in keys(kernel, mutant))
    reason = expectations.reason(program, mutant)
    try:
        seen = explore(mutant.program, LIMITS[kernel]).kinds
        harmful = bool(seen)
    except TooLarge:
        seen = None
        harmful = not (reason or by_hand)
    right, why = expectations.EXPECTED[mutant.mutation, mutant.kind]
    if harmful and reason:
        return "missed", seen, f"explored {sorted(seen)}, but expected none, since {reason}"
    if harmful and not found & right:
        return "missed", seen, f"found {sorted(found)}, not {sorted(right)}, though {why}"
    if not harmful and found:
        return "missed", seen, f"found {sorted(found)}, but it is harmless: {reason or by_hand}"
    if not harmful and not (reason or by_hand):
        return "missed", seen, f"harmless, but no reason is known; {why}?"
    return ("caught" if harmful else "harmless"), seen, ""


MUTATIONS = dict.fromkeys(mutation for mutation, _ in expectations.EXPECTED)
TITLE = "mutants of the corpus: caught/harmless/MISSED, and how many the explorer judged too"
HEADER = " " * 60 + "".join(f"{m:>11s}" for m in MUTATIONS) + f"{'all':>12s}  explored"


def row(kernel, table, explored):
    """A kernel's row of the table."""
    verdicts = "caught", "harmless", "missed"
    cells = ["/".join(str(table[mutation, v]) for v in verdicts) for mutation in MUTATIONS]
    cells.append("/".join(str(sum(table[m, v] for m in MUTATIONS)) for v in verdicts))
    widths = [11] * len(MUTATIONS) + [12]
    cells = [f"{cell:>{width}s}" for cell, width in zip(cells, widths)]
    return f"{kernel:60s}" + "".join(cells) + f"{explored:10d}"


@pytest.mark.parametrize("kernel", LIMITS)
def test_mutants(kernel, record_property):
    program = KERNELS[kernel].trace()
    assert not check(program)
    table, wrong, explored = collections.Counter(), [], 0
    names, by_hand = set(), set()
    for mutant in mutants(program):
        assert mutant.name not in names
        names.add(mutant.name)
        verdict, seen, fault = judged(kernel, program, mutant)
        table[mutant.mutation, verdict] += 1
        explored += seen is not None
        by_hand.update(keys(kernel, mutant))
        if fault:
            wrong.append(f"{mutant.name}: {fault}")
    record_property(f"table: {TITLE}", [HEADER, row(kernel, table, explored)])
    assert not wrong, "\n".join(wrong)
    unused = {key for key in expectations.BY_HAND if key[0] == kernel} - by_hand
    assert not unused, unused


def test_there_are_enough_mutants_and_all_are_different():
    count = 0
    for kernel in LIMITS:
        program = KERNELS[kernel].trace()
        for mutant in mutants(program):
            assert mutant.program != program, (kernel, mutant.name)
            count += 1
    assert count >= 300


def test_every_reason_by_hand_is_of_a_kernel_here():
    assert {kernel for kernel, _ in expectations.BY_HAND} <= LIMITS.keys()


# The source.


def nothing(*args, **options):
    pass


SOURCES = [
    ("commit_smem", "fence", "by-hand/add_one", {"missing-commit"}),
    ("commit_smem", "fence", "by-hand/ring-slots=2", {"missing-commit"}),
    ("commit_smem", "fence", "contract/static_grid-grid=(4,)-plain", {"missing-commit"}),
    ("commit_smem", "fence", "emitted/specialized-slots=2-delay=0-threads=2", set()),
    ("barrier_wait", "wait", "by-hand/add_one", {"race"}),
    ("barrier_wait", "wait", "emitted/matmul", {"race"}),
    ("barrier_wait", "wait", "contract/static_grid-grid=(4,)-specialized-1", {"race"}),
    ("barrier_arrive", "arrive", "by-hand/specialized-slots=2-computes=2", {"deadlock"}),
    ("barrier_arrive", "arrive", "contract/static_grid-grid=(4,)-specialized-1", {"deadlock"}),
    ("wait_smem_to_gmem", "wait_store", "by-hand/add_one", {"lost-store"}),
    ("wait_smem_to_gmem", "wait_store", "contract/static_grid-grid=(4,)-plain", {"race"}),
    ("wgmma_wait", "wgmma_wait", "by-hand/ring-slots=2", {"race"}),
    ("wgmma_wait", "wgmma_wait", "emitted/matmul", {"race"}),
]


@pytest.mark.parametrize(("function", "kind", "kernel", "kinds"), SOURCES)
def test_a_source_with_a_function_that_does_nothing(function, kind, kernel, kinds):
    program = KERNELS[kernel].trace()
    with mock.patch.object(plgpu, function, nothing), no_memory():
        mutant = KERNELS[kernel].trace()
    for thread, ops in enumerate(program.threads):
        program = with_thread(program, thread, [op for op in ops if op.kind != kind])
    assert mutant.threads == program.threads
    assert kinds <= {finding.kind for finding in check(mutant)}
    assert bool(kinds) == bool(check(mutant))
    assert bool(explore(mutant).bad) == bool(kinds)


def waits_for_one_less(n, **options):
    """As `wgmma_wait`, but one product more may be unfinished."""
    return WGMMA_WAIT(n + 1, **options)


def arrives_twice(barrier, **options):
    ARRIVE(barrier, **options)
    ARRIVE(barrier, **options)


def copies_twice(source, target, barrier, **options):
    LOAD(source, target, barrier, **options)
    LOAD(source, target, barrier, **options)


def loads_on_the_next_barrier(a, b, a_smem, b_smem, produced, step, slot):
    """As `kernels.load`, with the barrier's index off by one."""
    here, produced = pl.ds(step * kernels.TILE, kernels.TILE), produced.at[lax.rem(slot + 1, 2)]
    plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced)
    plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced)


WGMMA_WAIT, ARRIVE, LOAD = plgpu.wgmma_wait, plgpu.barrier_arrive, plgpu.copy_gmem_to_smem
RING, THREADS = "by-hand/ring-slots=2", "by-hand/specialized-slots=2-computes=1"


@pytest.mark.parametrize(
    ("module", "name", "changed", "kernel", "kinds"),
    [
        (plgpu, "wgmma_wait", waits_for_one_less, RING, {"race"}),
        (plgpu, "wgmma_wait", waits_for_one_less, "emitted/matmul", {"race"}),
        (plgpu, "barrier_arrive", arrives_twice, THREADS, {"barrier-misuse"}),
        (plgpu, "copy_gmem_to_smem", copies_twice, RING, {"race", "barrier-misuse"}),
        (kernels, "load", loads_on_the_next_barrier, RING, {"race"}),
        (kernels, "load", loads_on_the_next_barrier, THREADS, {"race"}),
    ],
)
def test_a_source_with_a_function_that_does_something_else(module, name, changed, kernel, kinds):
    with mock.patch.object(module, name, changed), no_memory():
        mutant = KERNELS[kernel].trace()
    found = {finding.kind for finding in check(mutant)}
    assert kinds <= found, found
    with contextlib.suppress(TooLarge):
        assert kinds <= explore(mutant).kinds
