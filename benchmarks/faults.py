"""Runs kernels that have a fault, and the same kernels without: on a Hopper GPU, or interpreted.

The model. `suite_of` makes the suite of some hazards. On the GPU each hazard has a process of its
own. It compiles both versions, then runs the fixed and the faulty one on fresh
random arguments and compares each result, exactly, with the reference. The processes are started
together, to save time, and run in turn. One that does not answer in time is killed: it hangs.
In the record of `python -m benchmarks.NAME` the outcome of a version is one of

- `nothing` seen: all results are right;
- `wrong` numbers, in some of the runs or in all;
- `hang`: no answer in time;
- `killed` by an error at run time, `refused` by the compiler: `text` has the error's first line.

In the interpreter (`--interpret`, on any machine) each faulty kernel runs once, for one block, with
JAX's race detector: `results/interpreter/NAME-jax-<version>.json`. There `race` says which two
accesses it reported first, if any, and `end` how the run ended: with a `right` or a `wrong` result,
in a `hang`, or `raised` an error.
"""

import functools
import json
import linecache
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import noting, records
from benchmarks.records import RESULTS, ROOT, Group
from benchmarks.suite import SEED, Call, Fields, Part, Suite
from pallascope.bench.provenance import provenance
from pipelib_book.gallery import Hazard

#: The part of a record of faulty kernels.
HAZARDS = "hazards"
RUNS, BLOCKS = 20, 256
#: A run takes well under a second on the GPU, and seconds in the interpreter.
READY_S, HANG_S, INTERPRETER_HANG_S = 300, 10, 40
_ACCESS = re.compile(r"(read|write) of .*, (\S+\.py):(\d+)")


# One hazard: what its process does.


def tell(**event: Any) -> None:
    """One line of JSON to the parent."""
    print(json.dumps(event), flush=True)


def compare(actual: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """How many elements differ, and by how much; the error is None if one is not finite."""
    error = float(np.abs(actual - expected).max())
    return {"wrong": int((actual != expected).sum()), "error": error if error < np.inf else None}


def work_on_gpu(hazard: Hazard, runs: int) -> None:
    """Compiles both versions; once told to, runs each so many times."""
    compiled = {}
    shapes = hazard.arguments(np.random.default_rng(SEED), BLOCKS)
    for version in ("fixed", "faulty"):
        call = functools.partial(hazard.kernel, fixed=version == "fixed")
        try:
            compiled[version] = jax.jit(call).lower(*shapes).compile()
        except Exception as error:
            tell(version=version, outcome="refused", text=str(error))
    tell(ready=True)
    sys.stdin.readline()
    for number, (version, kernel) in enumerate(compiled.items()):
        for run in range(runs):
            args = hazard.arguments(np.random.default_rng([SEED, number, run]), BLOCKS)
            try:
                result = np.asarray(kernel(*map(jnp.asarray, args)))
            except Exception as error:
                return tell(version=version, outcome="killed", text=str(error))
            tell(version=version, **compare(result, hazard.reference(*args)))


def work_in_interpreter(hazard: Hazard) -> None:
    """Runs the faulty version once; where a race is only printed, the parent gets that too."""
    args = hazard.arguments(np.random.default_rng(SEED), 1)
    plgpu.set_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True))
    try:
        result = np.asarray(hazard.kernel(*map(jnp.asarray, args), fixed=False))
        tell(**compare(result, hazard.reference(*args)))
    except Exception as error:
        tell(raised=str(error))


# All of them: what the parent does.


class Worker:
    """A process for one hazard, and the events that it tells, as they come."""

    def __init__(self, module: str, mode: str, name: str):
        env = os.environ | dict(XLA_PYTHON_CLIENT_PREALLOCATE="false", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", f"benchmarks.{module}", mode, name]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: queue.Queue = queue.Queue()
        self.errors: list[str] = []
        self.readers = [threading.Thread(target=f, daemon=True) for f in (self._read, self._drain)]
        for reader in self.readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.events.put(json.loads(line) if line.startswith("{") else {"printed": line})
        self.events.put(None)

    def _drain(self) -> None:
        self.errors += self.process.stderr or ()

    def next(self, timeout_s: float) -> dict | None:
        """The next event, None after the last; TimeoutError, the process killed, if it hangs."""
        try:
            return self.events.get(timeout=timeout_s)
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            raise TimeoutError from None

    def last_words(self) -> str:
        """The exit status, and the last line that an ended process wrote to stderr."""
        status = self.process.wait()
        self.readers[1].join()
        return f"exit status {status}: {(self.errors or ['']).pop().strip()}"


def first_line(text: str) -> str:
    """The first line that says something, without this machine's paths."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return line.strip().replace(f"{ROOT}/", "")


def on_gpu(worker: Worker, runs: int = RUNS) -> dict[str, Any]:
    """Lets a worker run, and gathers what becomes of each version; so many runs are due."""
    results: dict[str, dict[str, Any]] = {
        version: dict(outcome="nothing", wrong=[], error=[]) for version in ("fixed", "faulty")
    }
    timeout_s = READY_S
    try:
        while event := worker.next(timeout_s):
            if "ready" in event:
                print("go", file=worker.process.stdin, flush=True)
                timeout_s = HANG_S
                continue
            result = results[event["version"]]
            if "outcome" in event:
                result.update(outcome=event["outcome"], text=first_line(event["text"]))
                continue
            result["wrong"].append(event["wrong"])
            result["error"].append(event["error"])
            if event["wrong"]:
                result["outcome"] = "wrong"
        unfinished = worker.process.wait() and dict(outcome="killed", text=worker.last_words())
    except TimeoutError:
        unfinished = dict(outcome="hang", text=f"no answer in {timeout_s} s")
    if unfinished and not any("text" in result for result in results.values()):
        results["fixed" if len(results["fixed"]["wrong"]) < runs else "faulty"].update(unfinished)
    return results


def in_interpreter(worker: Worker, hang_s: float = INTERPRETER_HANG_S) -> dict[str, Any]:
    """What the interpreter and its race detector make of a faulty kernel, in so many seconds."""
    said, result = [], {}
    try:
        while event := worker.next(hang_s):
            said.append(event.get("printed") or event.get("raised", ""))
            if "raised" in event:
                result = dict(end="raised", text=event["raised"].strip().splitlines()[-1].strip())
            elif "wrong" in event:
                result = dict(end="wrong" if event["wrong"] else "right", text="")
        result = result or dict(end="raised", text=worker.last_words())
    except TimeoutError:
        result = dict(end="hang", text=f"no end in {hang_s} s")
    _, is_race, race = "".join(said).partition("RACE DETECTED")
    accesses = [
        f"{verb} by `{linecache.getline(file, int(line)).strip()}`"
        for verb, file, line in _ACCESS.findall(race)[:2]
    ]
    result["text"] = "" if is_race and result["end"] == "raised" else first_line(result["text"])
    return {"race": " and ".join(accesses) if is_race else None, **result}


# Suites.


class _Versions(Part):
    """Hazards, of each of which two versions have a digest; the interpreter runs one."""

    def recorded(
        self, group: Group, groups: Sequence[Group]
    ) -> Iterator[tuple[str, dict[str, Any], Any]]:
        """The versions of the hazards of a group."""
        hazards, copies = self.contenders(self.of_group(group), groups), group["run"]["blocks"]
        for name, found in group["contenders"].items():
            args = hazards[name].arguments(np.random.default_rng(SEED), copies)
            for version in ("fixed", "faulty") if "faulty" in found else ("faulty",):
                kernel = functools.partial(hazards[name].kernel, fixed=version == "fixed")
                yield f"{name}, {version}", found.get(version, found), (kernel, tuple(args))


def suite_of(name: str, hazards: Mapping[str, Hazard], runs: int = RUNS) -> Suite:
    """The suite of some hazards, each version of which runs so often on a GPU.

    Args:
      name: that of a module of `benchmarks`, and of the records.
    """

    def measure(
        call: Call, part: Part, problem: Any, made: Mapping[str, Hazard]
    ) -> Iterator[Fields]:
        workers = {each: Worker(name, "--gpu-one", each) for each in made}
        for each, worker in workers.items():
            found = on_gpu(worker, runs)
            call.say(f"{each}: { {version: found[version]['outcome'] for version in found} }")
            yield dict(contenders={each: found})

    part = _Versions(
        lambda problem, groups: hazards,
        measure,
        lambda problem, each, traced: traced,
        apart=True,
    )
    return Suite(
        name,
        {HAZARDS: part},
        facts=dict(seed=SEED, runs=runs, blocks=BLOCKS, timeout_s=HANG_S),
        commands={
            "--gpu-one": lambda each: work_on_gpu(hazards[each], runs),
            "--interpret-one": lambda each: work_in_interpreter(hazards[each]),
            "--interpret": lambda: interpret(name, hazards),
        },
        shares=True,
    )


def interpret(name: str, hazards: Mapping[str, Hazard]) -> None:
    """Runs all in the interpreter, and writes the record of this version of JAX."""
    found = {}
    for each in hazards:
        found[each] = in_interpreter(Worker(name, "--interpret-one", each))
        print(f"{each}: {found[each]}", flush=True)
    path = RESULTS / f"interpreter/{name}-jax-{jax.__version__}.json"
    run = dict(command=f"python -m benchmarks.{name} --interpret", seed=SEED, blocks=1)
    run |= dict(timeout_s=INTERPRETER_HANG_S, provenance=provenance())
    records.put(path, dict(part=HAZARDS, problem={}, run=run, contenders=found))
    noting.note(path)
