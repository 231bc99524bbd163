"""Broken kernels, whose source is changed: what is found is what their mutants' judges foresee.

A kernel traced with a synchronising function that does nothing is the same program as the mutant
that has all its ops taken away.
"""

import contextlib
from unittest import mock

import jax
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope import check
from tests.pallascope import corpus, kernels
from tests.pallascope.checking.explorer import TooLarge, explore
from tests.pallascope.strategies import with_thread

KERNELS = {kernel.name: kernel for kernel in corpus.clean()}


@contextlib.contextmanager
def no_memory():
    """JAX keeps the jaxpr of a function that it has seen: none from before, none for after."""
    jax.clear_caches()
    yield
    jax.clear_caches()


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
