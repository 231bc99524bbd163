"""`OnGpu`: measures configurations of a product, and says what came of each.

The model. A worker process first looks for faults in a contender (`pallascope.check`): one with a
finding is never run. It compiles the contender, launches it and compares its result, and then times
it (`products`). Each configuration becomes a `Row`: its times and its error, or the reason why it
does not count.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

from pallascope.tuning.looking import fault
from pallascope.tuning.products import Contender, Measured, Problem, tolerance
from pallascope.tuning.rows import Config, Row, Work
from pallascope.tuning.workers import Failed, Run, Task, Workers
from pipelib.kernels.matmul import MatmulConfig, matmul

#: For XLA's products: it launches kernels one by one, not as graphs, so that each can be timed, and
#: takes them from cuBLAS. With `UNTIMED_FLAGS` it takes the one that cuBLAS proposes, untimed.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_enable_triton_gemm=false"
UNTIMED_FLAGS = f"{XLA_FLAGS} --xla_gpu_autotune_level=0"


def search_workers(jobs: int | None = None) -> Workers:
    """Processes for a search; by default one less than the CPUs."""
    return Workers(jobs or max(1, (os.cpu_count() or 2) - 1), env=dict(XLA_FLAGS=UNTIMED_FLAGS))


#: The error and the times of a run, `error` and `us`; or why there are none.
_Result = dict[str, Any] | Failed


class Executor(Protocol):
    """What runs tasks: the processes of `Workers`, or this one (`Here`)."""

    def stream(self, tasks: Iterable[Task], *args: Any) -> Iterator[tuple[int, Any]]:
        """Yields the number of each task and what its function returned, or `Failed`."""
        ...

    def hold(
        self, tasks: Sequence[Task]
    ) -> contextlib.AbstractContextManager[Sequence[Run | Failed]]:
        """A context with the functions of all tasks, or their `Failed`."""
        ...


class OnGpu[P: Work | None, C: Config]:
    """Measures contenders.

    Args:
      workers: what runs them.
      problem: the product; a subclass that changes `_task` takes other work.
      contender: makes the function of `(a, b)` from a configuration; `pickle` sends it.
      samples: launches of each configuration; in turn, five times as many.
      is_checked: whether contenders with a finding are not run.
    """

    def __init__(
        self,
        workers: Executor,
        problem: P,
        contender: Callable[[C], Callable[..., Any]],
        samples: int = 10,
        is_checked: bool = True,
    ) -> None:
        self._workers, self._problem = workers, problem
        self._contender, self._samples, self._is_checked = contender, samples, is_checked

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Rows, in the order in which they are done."""
        tasks = map(self._task, configs)
        for number, result in self._workers.stream(tasks, self._samples):
            yield self._row(configs[number], [result])

    def in_turn(self, configs: Sequence[C]) -> list[Row[C]]:
        """Rows of samples that were taken in turn."""
        found: dict[C, list[_Result]] = {config: [] for config in configs}
        with self._workers.hold(list(map(self._task, configs))) as held:
            for _, (config, run) in itertools.product(range(5), zip(configs, held)):
                try:
                    result = run if isinstance(run, Failed) else run(self._samples)
                except Failed as error:
                    result = error
                found[config].append(result)
        return [self._row(config, results) for config, results in found.items()]

    def _task(self, config: C) -> Task:
        """The task of a worker for a configuration; its function takes a number of samples."""
        look = self._is_checked
        return functools.partial(_prepare, self._contender, config, cast(Work, self._problem), look)

    def _most_error(self, runs: Sequence[dict[str, Any]]) -> float:
        """The largest error that a right result has."""
        del runs
        return tolerance(cast(Work, self._problem).out.dtype)

    def _row(self, config: C, results: Sequence[_Result]) -> Row[C]:
        """The row of a configuration, from what its worker answered."""
        runs: list[dict[str, Any]] = []
        for result in results:
            if isinstance(result, Failed):
                return Row(config, reason=str(result))
            runs.append(result)
        us = tuple(us for run in runs for us in run["us"])
        error, most = max(run["error"] for run in runs), self._most_error(runs)
        wrong = f"wrong: an element is off by {error:.3g} root mean squares, over {most:.3g}"
        return Row(config, us, error, "" if error <= most else wrong)


def _prepare(
    contender: Callable[[Any], Contender], config: object, problem: Work, is_checked: bool
) -> Callable[[int], dict[str, Any]]:
    """Compiles a contender, in a worker; returns a function that compares and times it.

    Raises:
      ValueError: the contender has a finding.
    """
    function, product = contender(config), cast(Problem, problem)
    if is_checked and (found := fault(function, *product.factors)):
        raise ValueError(f"it has a finding, so it is not run: {found}")
    measured = Measured(function, product)
    return lambda samples: dict(error=measured.check(), us=measured.burst(samples)["us"])


def ours(problem: Problem, config: MatmulConfig | None) -> Contender:
    """`matmul` of a problem, as a contender."""
    transposed = dict(transpose_a=problem.transpose_a, transpose_b=problem.transpose_b)
    return functools.partial(matmul, config=config, out_dtype=problem.out.dtype, **transposed)
