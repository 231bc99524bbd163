"""`Here`: runs tasks in this process, where `Workers` runs them in others.

The model. A task is a function without arguments that compiles, and returns the function that runs.
`pickle` need not send it, so it may be a closure, as those of a notebook are. Tasks run one after
another. What a task raises is its `Failed`, and the others go on.

Not covered: a kernel that hangs, which hangs this process. A search runs none that the checker
found a deadlock in.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from pallascope.tuning.workers import Failed, Run, Task, in_words


class Here:
    """What a measurer asks for runs; `Workers` has the same methods."""

    def stream(self, tasks: Iterable[Task], *args: Any) -> Iterator[tuple[int, Any]]:
        """Yields the number of each task and what its function returned for `args`, or `Failed`."""
        for number, task in enumerate(tasks):
            yield number, _tried(lambda: task()(*args))

    @contextlib.contextmanager
    def hold(self, tasks: Sequence[Task]) -> Generator[list[Run | Failed]]:
        """A context with the functions of all tasks, or their `Failed`."""
        yield [_tried(lambda: _failing(task())) for task in tasks]


def _tried(function: Callable[[], Any]) -> Any:
    """What a function returns, or its error as a `Failed`."""
    try:
        return function()
    except Exception as error:
        return Failed(in_words(error))


def _failing(run: Run) -> Run:
    """The same function, whose errors are `Failed`."""

    def failing(*args: Any) -> Any:
        try:
            return run(*args)
        except Exception as error:
            raise Failed(in_words(error)) from error

    return failing
