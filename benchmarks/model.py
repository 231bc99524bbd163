"""Measures the kernels and configurations that the simulator's error is worked out on.

    python -m benchmarks.model              on the GPU: writes the record
    python -m benchmarks.model --resume     measures the pairs that it lacks

`benchmarks.model_pairs` says which pairs of kernel and configuration there are, and which of them
are held out; `benchmarks.model_runs` how a pair is measured, in processes.
"""

import argparse
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks import suite
from benchmarks.model_pairs import UPSTREAM, Pair, pairs
from benchmarks.model_runs import BURST_S, WARM_S, prepare
from benchmarks.suite import OTHERS, Call, Fields, Part, Suite, Traced
from pallascope.tuning.workers import UNTIMED_FLAGS, Failed, Workers
from pipelib_book.measured.attention import OTHERS as THEIRS

#: Of the GPU's memory, that all workers may take; the longest that one pair's bursts take.
GPU_SHARE, RUN_S = 0.85, 60.0


def in_turn(wanted: Iterable[Pair]) -> list[Pair]:
    """One of each family after the other, so that a record that was cut short has all of them."""
    families: dict[str, list[Pair]] = {}
    for pair in wanted:
        families.setdefault(pair.family, []).append(pair)
    return [pair for column in itertools.zip_longest(*families.values()) for pair in column if pair]


def measure(call: Call, part: Part, problem: Any, made: Mapping[str, Pair]) -> Iterator[Fields]:
    """Measures pairs, while there is time."""
    del part, problem
    some = in_turn(made.values())
    tasks = (
        functools.partial(prepare, pair.name)
        for pair in itertools.takewhile(lambda _: call.in_time(), some)
    )
    for number, result in call.pools[OTHERS].stream(tasks):
        name, shorter = some[number].name, some[number].longer_than
        if isinstance(result, Failed):
            call.say(f"{name}: {result}")
            result = dict(reason=str(result))
        elif shorter:
            result["longer_than"] = shorter
        yield dict(contenders={name: result})


def traced(problem: Any, name: str, pair: Pair) -> Traced:
    """What JAX traces for a pair of ours."""
    del problem, name
    if pair.family == UPSTREAM or pair.config.partition(",")[0] in THEIRS:
        return None
    return pair.function, pair.args


def pools(options: argparse.Namespace) -> dict[str, Workers]:
    """Processes that share the GPU's memory."""
    share = str(round(GPU_SHARE / options.jobs, 3))
    env = dict(XLA_FLAGS=UNTIMED_FLAGS, XLA_PYTHON_CLIENT_MEM_FRACTION=share)
    return {OTHERS: Workers(options.jobs, env=env, run_s=RUN_S)}


SUITE = Suite(
    "model",
    {"pairs": Part(lambda problem, groups: pairs(), measure, traced, apart=True)},
    facts=dict(warm_s=WARM_S, burst_s=BURST_S),
    processes=pools,
)

if __name__ == "__main__":
    suite.main("model")
