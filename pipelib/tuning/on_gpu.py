"""`OnGpu`: measures configurations of a kernel in worker processes, and says what came of each.

The model. A worker compiles and checks a contender, and then launches it (`products`). Each
configuration becomes a `Row`: its times and its error, or the reason why it does not count.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from pipelib.kernels.matmul import MatmulConfig, matmul
from pipelib.tuning.products import Contender, Measured, Problem, tolerance
from pipelib.tuning.rows import Config, Row, Work
from pipelib.tuning.workers import Failed, Task, Workers

#: For XLA's products: it launches kernels one by one, not as graphs, so that each can be timed, and
#: takes them from cuBLAS. With `UNTIMED_FLAGS` it takes the one that cuBLAS proposes, untimed.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_enable_triton_gemm=false"
UNTIMED_FLAGS = f"{XLA_FLAGS} --xla_gpu_autotune_level=0"


def search_workers(jobs: int | None = None) -> Workers:
    """Processes for a search; by default one less than the CPUs."""
    return Workers(jobs or max(1, (os.cpu_count() or 2) - 1), env=dict(XLA_FLAGS=UNTIMED_FLAGS))


#: The error and the times of a run, `error` and `us`; or why there are none.
_Result = dict[str, Any] | Failed


class OnGpu[P: Work, C: Config]:
    """Measures contenders in worker processes.

    Args:
      workers: the processes.
      problem: the product; a subclass that changes `_task` takes other work.
      contender: makes the function of `(a, b)` from a configuration; `pickle` sends it.
      samples: launches of each configuration; in turn, five times as many.
    """

    def __init__(
        self,
        workers: Workers,
        problem: P,
        contender: Callable[[C], Callable[..., Any]],
        samples: int = 10,
    ) -> None:
        self._workers, self._problem = workers, problem
        self._contender, self._samples = contender, samples

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
        return functools.partial(_prepare, self._contender, config, self._problem)

    def _row(self, config: C, results: Sequence[_Result]) -> Row[C]:
        """The row of a configuration, from what its worker answered."""
        runs: list[dict[str, Any]] = []
        for result in results:
            if isinstance(result, Failed):
                return Row(config, reason=str(result))
            runs.append(result)
        us = tuple(us for run in runs for us in run["us"])
        error, most = max(run["error"] for run in runs), tolerance(self._problem.out.dtype)
        wrong = f"wrong: an element is off by {error:.3g} root mean squares, over {most:.3g}"
        return Row(config, us, error, "" if error <= most else wrong)


def _prepare(
    contender: Callable[[Any], Contender], config: object, problem: Work
) -> Callable[[int], dict[str, Any]]:
    """Compiles a contender, in a worker; returns a function that checks and times it."""
    measured = Measured(contender(config), cast(Problem, problem))
    return lambda samples: dict(error=measured.check(), us=measured.burst(samples)["us"])


def ours(problem: Problem, config: MatmulConfig | None) -> Contender:
    """`matmul` of a problem, as a contender."""
    transposed = dict(transpose_a=problem.transpose_a, transpose_b=problem.transpose_b)
    return functools.partial(matmul, config=config, out_dtype=problem.out.dtype, **transposed)
