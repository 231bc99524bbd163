"""The kernels whose mutants are judged, and how many mutants each has.

A `Case` is a kernel that is clean. There are three sorts:

- Of the **corpus**, kernels as people write them. Most mutants have more states than can be visited
  in a second, so `limit` says how many are, and `expectations` says of each mutant that does no
  harm why.
- Of one **construct** each, so small that the explorer visits all states of each mutant.
- Of **lanes**, kernels without automatic barriers: the explorer judges a program in which each of a
  thread's lanes is a thread (`lanes_apart`).
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pallascope
import pipelib
from pallascope import Program
from tests.emitters import before_hopper
from tests.pallascope import blackwell, corpus, kernels
from tests.pallascope.checking.explorer import LIMIT
from tests.pallascope.checking.mutations import Mutant, mutants
from tests.pallascope.constructs import (
    clusters,
    device_code,
    devices,
    lanes,
    launches,
    reductions,
    small,
    warps,
)
from tests.pallascope.kernels import like


class Case(NamedTuple):
    """A kernel, by `name`, whose mutants are made, checked, explored and played.

    `mutants` is how many there are, at least. They are judged in shares, of which each has every
    nth mutant; `explored` is how many of each share's the explorer judges, at least. A share takes
    no more than about three seconds.

    Args:
      ops: the kinds of ops of which some mutants do harm.
      limit: the most states of a mutant that are visited; 0 if none is explored, since each has
        more than can be.
      words: what the cause of a finding of some mutants says, whose order then shows it.
      not_followed: the mutations after which the checker says that it does not follow a semaphore.
    """

    name: str
    trace: Callable[[], Program]
    mutants: int
    explored: tuple[int, ...]
    ops: frozenset[str] = frozenset()
    limit: int = LIMIT
    words: str = ""
    not_followed: tuple[str, ...] = ()


@functools.cache
def program_of(case: Case) -> Program:
    """The kernel's program."""
    return case.trace()


@functools.cache
def mutants_of(case: Case) -> tuple[Mutant, ...]:
    """All mutants of the kernel's program."""
    return tuple(mutants(program_of(case)))


def share_of(case: Case, share: int) -> tuple[Mutant, ...]:
    """The mutants of one share."""
    return tuple(itertools.islice(mutants_of(case), share, None, len(case.explored)))


_CORPUS = {kernel.name: kernel for kernel in corpus.clean()}


def _of_corpus(name: str, limit: int, mutants: int, *explored: int) -> Case:
    return Case(name, _CORPUS[name].trace, mutants, explored, limit=limit)


CORPUS = [
    _of_corpus("contract/static_grid-grid=(4,)-plain", 3000, 24, 24),
    _of_corpus("contract/static_grid-grid=(4,)-specialized-1", 3000, 55, 55),
    _of_corpus("contract/static_grid-grid=(4,)-specialized-2", 1500, 103, 41, 43),
    _of_corpus("contract/revisited_output-slots=2-plain", 3000, 24, 24),
    _of_corpus("contract/multicast_input-specialized-1", 0, 118, 0),
    _of_corpus("contract/static_grid-grid=(4,)-upstream-specialized-1", 3000, 55, 55),
    _of_corpus("by-hand/add_one", 3000, 16, 16),
    _of_corpus("by-hand/ring-slots=2", 3000, 32, 32),
    _of_corpus("by-hand/specialized-slots=2-computes=1", 3000, 64, 63),
    _of_corpus("by-hand/specialized-slots=2-computes=2", 4000, 99, 47, 47),
    _of_corpus("emitted/matmul", 3000, 19, 19),
    _of_corpus("emitted/specialized-slots=2-delay=0-threads=2", 3000, 72, 70),
    _of_corpus("emitted/specialized-slots=2-delay=1-threads=1", 3000, 46, 46),
    _of_corpus("jax/attention-block_kv=128", 1000, 180, 5, 4),
    _of_corpus("jax/attention_with_pipeline_emitter", 1000, 156, 8, 10),
    _of_corpus("jax/matmul-tile_n=128-grid_minor_dim=M-grid_tile_width=2", 1000, 129, 3, 5),
]


def _earlier(kernel, *args) -> Program:
    """The program of a kernel on a GPU before Hopper."""
    with pipelib.target("8.0"):
        return pallascope.trace(kernel, *args)


def _pipelined(case) -> Program:
    """The program of a pipeline there."""
    return _earlier(case.kernel(), *(like(*x.shape, dtype=x.dtype) for x in case.arguments))


def _construct(
    name: str, trace: Callable[[], Program], ops: str, mutants: int, *explored: int, **more
) -> Case:
    return Case(name, trace, mutants, explored or (mutants,), frozenset(ops.split()), **more)


def _blackwell(name: str, ops: str, mutants: int, *explored: int) -> Case:
    return _construct(f"blackwell: {name}", blackwell.PROGRAMS[name], ops, mutants, *explored)


_traced = functools.partial(functools.partial, pallascope.trace)
CONSTRUCTS = [
    _construct(
        "cp.async",
        lambda: _pipelined(before_hopper.with_delays((0,), 2, steps=4)),
        "wait_cp_async",
        5,
    ),
    _construct(
        "cp.async, delays",
        lambda: _pipelined(before_hopper.with_delays((0, 1), 3, steps=5)),
        "wait_cp_async",
        5,
    ),
    _construct(
        "cp.async, an output that steps build up",
        lambda: _pipelined(before_hopper.built_up(rows=2)),
        "wait_cp_async",
        5,
    ),
    _construct(
        "cp.async, two threads",
        lambda: _earlier(small.handed_on(), like(2, 256)),
        "wait_cp_async arrive wait",
        28,
    ),
    _construct("warps", _traced(warps.loader(), warps.X), "meet", 44),
    _construct(
        "warps, whose thread waits for their stores",
        _traced(warps.loader("the thread waits for the store"), warps.X),
        "wait_store",
        44,
    ),
    _construct("named barrier", _traced(device_code.handed_over()), "arrive wait barrier", 19),
    _construct(
        "named barrier of a thread and a warp",
        _traced(device_code.given_back(160), device_code.ROW),
        "arrive wait barrier",
        61,
    ),
    _construct("named barrier of all threads", _traced(device_code.met_by_all()), "meet", 12),
    _construct(
        "registers",
        _traced(lambda x: kernels.specialized(x, 1, 0, 2), like(128, 64)),
        "registers",
        63,
    ),
    _construct("scope that a loop enters again", lambda: small.entered_again(1), "wait load", 8),
    _construct(
        "shared scope that a loop enters again",
        lambda: small.entered_again(2),
        "scope_begin wait",
        14,
    ),
    _construct("semaphores of devices", devices.exchanged, "signal await", 46),
    _construct(
        "semaphores of devices, kept",
        lambda: devices.exchanged(keeps=True),
        "signal await",
        46,
    ),
    _construct("semaphores of devices, of all at once", devices.summed_up, "signal await", 80),
    _construct(
        "semaphores of blocks",
        lambda: devices.in_turns(3),
        "signal await",
        28,
        27,
        not_followed=("kept",),
    ),
    _construct(
        "semaphores that one block takes off",
        devices.taken_off,
        "signal await",
        46,
        35,
        not_followed=(
            "without",
            "lowered",
            "elsewhere",
            "later",
            "earlier",
            "kept",
            "raised",
            "twice",
            "kept",
            "raised",
            "twice",
        ),
    ),
    _construct(
        "dependent launch",
        _traced(launches.copied([launches.WAIT], [], [launches.SIGNAL]), launches.X),
        "grid_wait",
        18,
        words="while the kernel before may",
    ),
    _construct(
        "dependent launch, all threads wait",
        lambda: launches.early(launches.specialized()),
        "grid_wait",
        22,
        words="while the kernel before may",
    ),
    _construct(
        "dependent launch, one thread waits",
        lambda: launches.early(launches.specialized([0])),
        "grid_wait",
        19,
        words="while the kernel before may",
    ),
    _construct(
        "scratch of reductions",
        _traced(reductions.reduced(reductions.to_a_number, in_turn=True), reductions.X),
        "arrive wait",
        29,
        words="reduces an array across its warps",
    ),
    _construct("additions in a cluster", lambda: clusters.of_two("add"), "load arrive", 37),
    _construct("additions of threads", small.added, "write arrive wait", 19),
    _blackwell("one slot", "tcgen05_commit wait", 30),
    _blackwell("a ring", "tcgen05_commit wait load", 45),
    _blackwell(
        "three threads", "tcgen05_commit wait load wait_load_tmem arrive", 87, *[8] * 3, *[7] * 9
    ),
    _blackwell("three threads, one step", "tcgen05_commit wait_load_tmem", 86, 29, 29, 28),
    _blackwell("a pair of blocks", "tcgen05_commit wait load", 68),
    _blackwell("two products in a row", "wait_load_tmem wait_store_tmem tcgen05_commit", 53),
    _blackwell("two products in a row, apart", "wait_store_tmem tcgen05_commit", 53),
    _blackwell("tiles taken over", "load arrive wait", 103, 52, 51),
    _blackwell("tiles taken over by a pair", "load arrive wait", 96, 48, 48),
    _blackwell("scales", "tcgen05_commit wait", 30),
]


def _of_lanes(name: str, kernel: Callable[..., object], mutants: int) -> Case:
    words = "the lanes do not meet"
    return Case(name, _traced(kernel, lanes.X), mutants, (mutants,), words=words)


LANES = [
    _of_lanes("write and read, commit", lanes.passed(lanes.commit), 4),
    _of_lanes("write and read, barrier", lanes.passed(lanes.arrive_and_wait), 9),
    _of_lanes("read and load, commit", lanes.refilled(lanes.commit), 13),
    _of_lanes("read and load, barrier", lanes.refilled(lanes.arrive_and_wait), 19),
]
