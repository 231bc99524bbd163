"""Kernels that language models wrote: who sees what is wrong with them.

    python -m benchmarks.written                on the GPU: writes results/<gpu>/written.json
    python -m benchmarks.written --interpret    on any machine: a record of this version of JAX
    python -m benchmarks.written --verify       on any machine: what `pallascope.verify` says

The model. `written.json` has the tasks, a sentence each, and for each the first answer of a
language model (Claude) that had JAX's documentation of Pallas, version 0.11.1, and nothing else: it
ran nothing, and nothing was mended. Each kernel is looked at in a process of its own, which is
killed if it does not end in time. An error is the largest one, in root mean squares of what is
right; above `TOLERANCE` of the result's dtype a result is wrong. The outcome is

- `refused`: it could not be traced, lowered or compiled (`text` has the error's first line);
- `hang`, or `killed` by an error at run time;
- `wrong`, in some of the runs on the GPU or in all;
- `nothing`: all results are right.

The interpreter runs each once, with JAX's race detector, as `benchmarks.faults` says. The record of
`--verify` has the findings, each by its kind, lines and cause, and why a kernel was not checked.
"""

import functools
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from benchmarks import faults, noting, records, suite
from benchmarks.faults import Worker, first_line, tell
from benchmarks.records import RESULTS
from benchmarks.suite import SEED, Call, Fields, Part, Suite, Traced
from pallascope.bench.provenance import provenance

TASKS = pathlib.Path(__file__).with_suffix(".json")
#: Runs on the GPU; kernels that are compiled at a time; seconds for a verdict, and interpreted.
WRITTEN, RUNS, AT_ONCE, VERIFY_S, INTERPRETER_S = "written", 20, 14, 120, 60
#: The largest error of a right result, in root mean squares.
TOLERANCE = {"float32": 5e-3, "float16": 5e-2, "bfloat16": 1e-1, "int8": 5e-2, "int32": 0.0}


class Task(NamedTuple):
    """A task: its sentence, its arguments by name, what is right, and a model's answer.

    An argument is [shape, dtype, what]: integers below `what`, or numbers from 0 to 1 ("unit"), or
    normal ones if there is no `what`. `right` is an expression in jnp.
    """

    name: str
    says: str
    names: list[str]
    args: list[list[Any]]
    right: str
    source: str

    def arguments(self, seed: int) -> list[np.ndarray]:
        """Random arguments."""
        rng = np.random.default_rng([SEED, seed])
        return [np.asarray(_drawn(rng, *each)) for each in self.args]

    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The arguments' shapes and dtypes."""
        return [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype, *_ in self.args]

    def kernel(self) -> Callable[..., Any]:
        """The function that a model wrote, of a file that lines of findings are of."""
        path = pathlib.Path(tempfile.mkdtemp()) / f"{self.name}.py"
        path.write_text(self.source)
        scope: dict[str, Any] = {"__name__": self.name}
        exec(compile(self.source, path, "exec"), scope)
        return scope[self.name]

    def error(self, results: Any, args: list[np.ndarray]) -> tuple[float, bool]:
        """The largest error of a call's results, and whether they are wrong."""
        with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
            given = dict(zip(self.names, map(jnp.asarray, args)))
            right = jax.tree.leaves(eval(self.right, {"jax": jax, "jnp": jnp, **given}))
        results = jax.tree.leaves(results)
        if [each.shape for each in results] != [each.shape for each in right]:
            return np.inf, True
        errors = [_error(*pair) for pair in zip(results, right)]
        limits = [TOLERANCE[str(each.dtype)] for each in right]
        worst = float(max(errors))
        return worst, not all(error <= limit for error, limit in zip(errors, limits))


def _drawn(rng: np.random.Generator, shape: list[int], dtype: str, what: Any = None) -> Any:
    if dtype in ("float32", "float16", "bfloat16"):
        numbers = rng.random(shape) if what == "unit" else rng.standard_normal(shape)
        return numbers.astype(jnp.dtype(dtype))
    return rng.integers(0 if what else -127, what or 128, shape).astype(dtype)


def _error(result: Any, right: Any) -> float:
    result, right = np.asarray(result, np.float64), np.asarray(right, np.float64)
    error = np.abs(result - right).max() / max(np.sqrt((right**2).mean()), 1e-30)
    return float(error) if np.isfinite(error) else np.inf


@functools.cache
def tasks() -> dict[str, Task]:
    """All tasks, by name."""
    return {each["name"]: Task(**each) for each in json.loads(TASKS.read_text("utf-8"))}


# What the process of one kernel does.


def work_on_gpu(name: str) -> None:
    """Compiles the kernel; once told to, runs it."""
    task = tasks()[name]
    try:
        compiled = jax.jit(task.kernel()).lower(*task.shapes()).compile()
    except Exception as error:
        return tell(outcome="refused", text=str(error))
    tell(ready=True)
    sys.stdin.readline()
    for run in range(RUNS):
        args = task.arguments(run)
        try:
            results = jax.device_get(compiled(*map(jnp.asarray, args)))
        except Exception as error:
            return tell(outcome="killed", text=str(error))
        error, is_wrong = task.error(results, args)
        tell(error=error if error < np.inf else None, wrong=is_wrong)
    return None


def work_in_interpreter(name: str) -> None:
    """Runs the kernel once; where a race is only printed, the parent gets that too."""
    task = tasks()[name]
    plgpu.set_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True))
    args = task.arguments(0)
    try:
        _, is_wrong = task.error(jax.device_get(task.kernel()(*map(jnp.asarray, args))), args)
        tell(wrong=int(is_wrong))
    except Exception as error:
        tell(raised=str(error))


def work_on_verdict(name: str) -> None:
    """Asks `pallascope.verify`, without the compiler."""
    task = tasks()[name]
    try:
        verdict = pallascope.verify(task.kernel(), *task.shapes(), compiler=False)
    except Exception as error:
        return tell(findings=[], refusal=first_line(str(error)), is_traced=False)
    findings: dict[tuple[str, str], list[str]] = {}
    for found in verdict.findings:
        lines = [pathlib.PurePath(op.line).name for op in found.ops if op.line]
        findings[str(found.kind), _placeless(found.cause)] = lines
    said = [dict(kind=kind, cause=cause, lines=at) for (kind, cause), at in findings.items()]
    refusal = " ".join(kernel.refusal for kernel in verdict.kernels).strip()
    return tell(findings=said, refusal=_placeless(first_line(refusal)), is_traced=True)


def _placeless(text: str) -> str:
    """A text without the folders of this machine."""
    return re.sub(r"/\S*/(\w+\.py)", r"\1", text)


# What the parent makes of it.


def on_gpu(worker: Worker) -> dict[str, Any]:
    """Lets a worker run, and gathers what becomes of its kernel."""
    found: dict[str, Any] = dict(outcome="nothing", wrong=[], error=[])
    timeout_s: float = faults.READY_S
    try:
        while event := worker.next(timeout_s):
            if "ready" in event:
                print("go", file=worker.process.stdin, flush=True)
                timeout_s = faults.HANG_S
            elif "outcome" in event:
                found |= dict(outcome=event["outcome"], text=first_line(event["text"]))
            elif "error" in event:
                found["error"].append(event["error"])
                found["wrong"].append(int(event["wrong"]))
        if worker.process.wait() and "text" not in found:
            found |= dict(outcome="killed", text=worker.last_words())
    except TimeoutError:
        found |= dict(outcome="hang", text=f"no answer in {timeout_s} s")
    if found["outcome"] == "nothing" and any(found["wrong"]):
        found["outcome"] = "wrong"
    return found


def verdict_on(worker: Worker) -> dict[str, Any]:
    """What `verify` said."""
    try:
        event = next((e for e in iter(lambda: worker.next(VERIFY_S), None) if "refusal" in e), None)
    except TimeoutError:
        return dict(findings=[], refusal=f"no answer in {VERIFY_S} s", is_traced=True)
    return event or dict(findings=[], refusal=worker.last_words(), is_traced=True)


def everywhere(mode: str, gather: Callable[[Worker], dict[str, Any]], jobs: int) -> dict[str, Any]:
    """What came of each kernel, several processes at a time."""

    def one(name: str) -> tuple[str, dict[str, Any]]:
        found = gather(Worker(WRITTEN, mode, name))
        print(f"{name}: {str(found)[:160]}", flush=True)
        return name, found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, tasks()))


def put(folder: str, name: str, words: str, found: Mapping[str, Any]) -> None:
    """Writes a record that no GPU is needed for."""
    path = RESULTS / folder / name
    run = dict(command=f"python -m benchmarks.written {words}", seed=SEED, provenance=provenance())
    records.put(path, dict(part=WRITTEN, problem={}, run=run, contenders=dict(found)))
    noting.note(path)


def interpret(jobs: str = "2") -> None:
    """Runs all in the interpreter, and writes the record of this version of JAX."""
    gather = functools.partial(faults.in_interpreter, hang_s=INTERPRETER_S)
    found = everywhere("--interpret-one", gather, int(jobs))
    put("interpreter", f"written-jax-{jax.__version__}.json", "--interpret", found)


def verify(jobs: str = "2") -> None:
    """Asks for all verdicts, and writes the record."""
    put("cpu", "written.json", "--verify", everywhere("--verify-one", verdict_on, int(jobs)))


def measure(
    call: Call, part: Part, problem: Any, made: Mapping[str, Callable[..., Any]]
) -> Iterator[Fields]:
    """Runs all kernels on the GPU, in turn; several at a time are compiled."""
    names = [*made]
    for at in range(0, len(names), AT_ONCE):
        workers = {name: Worker(WRITTEN, "--gpu-one", name) for name in names[at : at + AT_ONCE]}
        for name, worker in workers.items():
            found = on_gpu(worker)
            call.say(f"{name}: {found['outcome']} {found.get('text', '')[:100]}")
            yield dict(contenders={name: found})


def traced(problem: Any, name: str, kernel: Callable[..., Any]) -> Traced:
    """What JAX traces; None of what it does not."""
    shapes = tasks()[name].shapes()
    try:
        jax.eval_shape(kernel, *shapes)
    except Exception:
        return None
    return kernel, shapes


PART = Part(
    lambda problem, groups: {name: task.kernel() for name, task in tasks().items()},
    measure, traced, apart=True,
)  # fmt: skip
SUITE = Suite(
    WRITTEN,
    {WRITTEN: PART},
    facts=dict(seed=SEED, runs=RUNS, timeout_s=faults.HANG_S),
    commands={
        "--gpu-one": work_on_gpu,
        "--interpret-one": work_in_interpreter,
        "--verify-one": work_on_verdict,
        "--interpret": interpret,
        "--verify": verify,
    },
    shares=True,
)

if __name__ == "__main__":
    suite.main(WRITTEN)
