"""`Workers`: processes that compile at the same time, and run on the GPU in turn; or `Here`.

The model. A search spends most of its time compiling. Mosaic GPU's lowering is Python, so threads
would wait for one another; processes do not. A *task* is a function without arguments, which
`pickle` sends by its name. A worker calls it (it compiles), and keeps the function that it returns.
That function is `run` later (it uses the GPU). The process that owns the workers runs one function
at a time and waits for it, so that never two use the GPU, and functions of several workers can be
run in turn.

A worker that dies, or does not answer in time (a barrier that nobody completes), is ended. The
functions that it kept are lost: that task has `Failed`, the others go on, and a new process takes
the worker's place.

`Here` runs the same tasks in this process. `pickle` need not send them, so they may be closures, as
those of a notebook are. They run one after another. What a task raises is its `Failed`, and the
others go on. A kernel that hangs, hangs this process: a search runs none that the checker found a
deadlock in.

Not covered: other programs that use the same GPU; a GPU that stays unusable after a failure.
"""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, Protocol, cast

from pallascope.failing import in_words

#: What a task returns; a worker keeps it, and runs it when it is asked.
type Run[R] = Callable[..., R]
#: What a worker calls first.
type Task[R] = Callable[[], Run[R]]

#: Seconds. Longer than any kernel here takes to compile while all cores do so; longer than any run.
PREPARE_S, RUN_S = 120.0, 20.0
#: For XLA's products: it launches kernels one by one, not as graphs, so that each can be timed, and
#: takes them from cuBLAS. With `UNTIMED_FLAGS` it takes the one that cuBLAS proposes, untimed.
XLA_FLAGS = "--xla_gpu_enable_command_buffer= --xla_gpu_enable_triton_gemm=false"
UNTIMED_FLAGS = f"{XLA_FLAGS} --xla_gpu_autotune_level=0"


class Failed(Exception):
    """A task or a run had an error, no answer in time, or ended its process; says which."""


class Executor(Protocol):
    """What runs tasks: the processes of `Workers`, or this one (`Here`)."""

    def stream[R](
        self, tasks: Iterable[Task[R]], *args: object
    ) -> Iterator[tuple[int, "R | Failed"]]:
        """Yields the number of each task and what its function returned, or `Failed`."""
        ...

    def hold[R](
        self, tasks: Sequence[Task[R]]
    ) -> contextlib.AbstractContextManager[Sequence["Run[R] | Failed"]]:
        """A context with the functions of all tasks, or their `Failed`."""
        ...


class Here:
    """What a measurer asks for runs; `Workers` has the same methods."""

    def stream[R](
        self, tasks: Iterable[Task[R]], *args: object
    ) -> Iterator[tuple[int, "R | Failed"]]:
        """Yields the number of each task and what its function returned for `args`, or `Failed`."""
        for number, task in enumerate(tasks):
            yield number, _tried(lambda: task()(*args))

    @contextlib.contextmanager
    def hold[R](self, tasks: Sequence[Task[R]]) -> Generator[list[Run[R] | Failed]]:
        """A context with the functions of all tasks, or their `Failed`."""
        yield [_tried(lambda: _failing(task())) for task in tasks]


def _tried[R](function: Callable[[], R]) -> R | Failed:
    """What a function returns, or its error as a `Failed`."""
    try:
        return function()
    except Exception as error:
        return Failed(in_words(error))


def _failing[R](run: Run[R]) -> Run[R]:
    """The same function, whose errors are `Failed`."""

    def failing(*args: object) -> R:
        try:
            return run(*args)
        except Exception as error:
            raise Failed(in_words(error)) from error

    return failing


class Workers:
    """A number of processes with JAX each; a context manager that ends them.

    Args:
      count: how many.
      env: environment variables for them, beside this process's.
      prepare_s, run_s: seconds after which a task, or a run of its function, counts as hung.
    """

    def __init__(
        self,
        count: int,
        *,
        env: dict[str, str] | None = None,
        prepare_s: float = PREPARE_S,
        run_s: float = RUN_S,
    ) -> None:
        self.prepare_s, self.run_s = prepare_s, run_s
        self._processes = [_Process(env or {}) for _ in range(count)]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()

    def stream[R](
        self, tasks: Iterable[Task[R]], *args: object
    ) -> Iterator[tuple[int, "R | Failed"]]:
        """Yields the number of each task and what its function returned for `args`, or `Failed`.

        They come in the order in which they are done. A task begins when a worker is free.
        """
        waiting = enumerate(tasks)
        busy: dict[_Process, int] = {}
        idle = collections.deque(self._processes)
        while True:
            while idle and (task := next(waiting, None)) is not None:
                number, make = task
                busy[idle[0]] = number
                idle.popleft().send("prepare", self.prepare_s, 0, make)
            if not busy:
                return
            for process in _answered(list(busy)):
                number = busy.pop(process)
                try:
                    process.receive()
                    result = process.ask("run", self.run_s, 0, args)
                except Failed as error:
                    result = error
                idle.append(process)
                yield number, result

    @contextlib.contextmanager
    def hold[R](self, tasks: Sequence[Task[R]]) -> Generator[list["Held[R] | Failed"]]:
        """A context with the functions of all tasks, or their `Failed`.

        A call of a function raises `Failed` if it fails; `run_s=` is the limit of that call.
        """
        count = len(self._processes)
        held = cast("list[Held[R] | Failed]", [None] * len(tasks))  # each is set below
        for first in range(0, len(tasks), count):
            batch = dict(zip(self._processes, range(first, len(tasks))))
            for process, number in batch.items():
                process.send("prepare", self.prepare_s, number, tasks[number])
            while batch:
                for process in _answered(list(batch)):
                    number = batch.pop(process)
                    with _noting(held, number):
                        process.receive()
                        held[number] = Held[R](process, number, self.run_s)
        try:
            yield held
        finally:
            for process in self._processes:
                if process.runs(process.starts):
                    with contextlib.suppress(Failed):
                        process.ask("drop", self.run_s, None, None)

    def at_once[R](self, held: Sequence["Held[R] | Failed"], *args: object) -> list["R | Failed"]:
        """Runs all functions of `hold` at the same time: what they return, or `Failed`.

        Not for timing. Functions of one process run one after the other.
        """
        waiting = {i: run for i, run in enumerate(held) if not isinstance(run, Failed)}
        found = cast("list[R | Failed]", list(held))  # those that wait are set below
        while waiting:
            # The first function of each process that has one.
            batch = {waiting[number].process: number for number in reversed(waiting)}
            sent: list[int] = []
            for number in batch.values():
                with _noting(found, number):
                    waiting[number].send(self.prepare_s, *args)
                    sent.append(number)
            for number in sent:
                with _noting(found, number):
                    found[number] = waiting[number].process.receive()
            for number in batch.values():
                del waiting[number]
        return found


def search_workers(jobs: int | None = None) -> Workers:
    """Processes for a search; by default one less than the CPUs."""
    return Workers(jobs or max(1, (os.cpu_count() or 2) - 1), env=dict(XLA_FLAGS=UNTIMED_FLAGS))


class Held[R]:
    """A function that a worker keeps, as long as this process of the worker lives."""

    def __init__(self, process: "_Process", number: int, run_s: float) -> None:
        self.process, self._number, self._run_s = process, number, run_s
        self._starts = process.starts

    def __call__(self, *args: object, run_s: float | None = None) -> R:
        """Runs it and waits for the answer."""
        self.send(run_s or self._run_s, *args)
        return self.process.receive()

    def send(self, limit_s: float, *args: object) -> None:
        """Begins to run it; `Failed` if it is lost."""
        if not self.process.runs(self._starts):
            raise Failed("its process was ended when something else that it kept did not answer")
        self.process.send("run", limit_s, self._number, args)


class _Process:
    """This side of one worker: it is sent one request at a time, and answers each."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env, self.starts = env, 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Starts the process, with a pipe and a file for what it says."""
        self.starts += 1
        self._pipe, other = connection.Pipe()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
        # Otherwise the first process takes three quarters of the GPU's memory.
        env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **self._env, "PYTHONPATH": path}
        handle = other.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import answer; answer({handle})"],
            env=os.environ | env,
            pass_fds=[handle],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )
        other.close()
        return process

    def runs(self, starts: int) -> bool:
        """Whether it still is the process of this start, with what it kept."""
        return self._process is not None and self.starts == starts

    def fileno(self) -> int:
        """Of the pipe, on which an answer arrives."""
        return self._pipe.fileno()

    def send(self, what: str, limit_s: float, *args: object) -> None:
        """Sends a request, to be answered in so many seconds."""
        if self._process is None:
            self._process = self._start()
        self._limit_s, self.deadline = limit_s, time.monotonic() + limit_s
        with contextlib.suppress(BrokenPipeError):  # `receive` says that it died
            self._pipe.send((what, *args))

    def receive(self) -> Any:
        """The answer; `Failed`, and the process ended if it hangs, if there is none."""
        try:
            if not self._pipe.poll(max(0.0, self.deadline - time.monotonic())):
                self.end()
                raise Failed(f"no answer in {self._limit_s:g} s")
            is_good, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise Failed(self._last_words()) from None
        if not is_good:
            raise Failed(answer)
        return answer

    def ask(self, what: str, limit_s: float, *args: object) -> Any:
        """Sends a request and waits for the answer."""
        self.send(what, limit_s, *args)
        return self.receive()

    def end(self) -> None:
        """Ends the process, whatever it does; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._errors.close()
            self._process = None

    def _last_words(self) -> str:
        """Why the process, which has ended, sent no answer: its last line."""
        status = self._process.wait() if self._process is not None else None
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        self.end()
        return f"its process ended with status {status}: {(lines or ['no words'])[-1]}"


@contextlib.contextmanager
def _noting[R](found: list[R | Failed], number: int) -> Generator[None]:
    """A failure of what is done here is the result of this number."""
    try:
        yield
    except Failed as error:
        found[number] = error


def _answered(processes: list[_Process]) -> list[_Process]:
    """Those that have answered, or should have by now: at least one."""
    first = min(process.deadline for process in processes)
    # `wait` takes what has a `fileno`, and declares less.
    waited_for = cast("list[connection.Connection]", processes)
    ready = connection.wait(waited_for, max(0.0, first - time.monotonic()))
    return cast("list[_Process]", ready) or [
        process for process in processes if process.deadline == first
    ]


def answer(handle: int) -> None:
    """The worker's side: answers requests until the other side is gone.

    An interruption from the keyboard reaches all processes; the other side decides what it ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = connection.Connection(handle)
    kept: dict[int, Run[object]] = {}
    with contextlib.suppress(EOFError):
        while True:
            what, number, argument = pipe.recv()
            try:
                pipe.send((True, _do(kept, what, number, argument)))
            except Exception as error:
                pipe.send((False, in_words(error)))


def _do(kept: dict[int, Run[object]], what: str, number: int, argument: Any) -> object:
    """Does what a request says: "prepare", "run" or "drop"; returns its answer."""
    if what == "prepare":
        kept[number] = argument()
    elif what == "drop":
        kept.clear()
    else:
        return kept[number](*argument)
    return None
