"""Runs kernels that have a fault, and the same kernels without: on a Hopper GPU, or interpreted.

The model. A `Suite` names a module of `benchmarks` and its hazards. On the GPU each hazard has a
process of its own. It compiles both versions, then runs the fixed and the faulty one on fresh
random arguments and compares each result, exactly, with the reference. The processes are started
together, to save time, and run in turn. One that does not answer in time is killed: it hangs.
`python -m benchmarks.NAME` writes `results/<gpu>/NAME.json`, where the outcome of a version is one
of

- `nothing` seen: all results are right;
- `wrong` numbers, in some of the runs or in all;
- `hang`: no answer in time;
- `killed` by an error at run time, `refused` by the compiler: `text` has the error's first line.

In the interpreter (`--interpret`, on any machine) each faulty kernel runs once, for one block, with
JAX's race detector: `results/interpreter/NAME-jax-<version>.json`. There `race` says which two
accesses it reported first, if any, and `end` how the run ended: with a `right` or a `wrong` result,
in a `hang`, or `raised` an error.
"""

import argparse
import functools
import json
import linecache
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import noting
from pipelib.bench import provenance
from pipelib_book.gallery import Hazard

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RUNS, BLOCKS, SEED = 20, 256, 0
#: A run takes well under a second on the GPU, and seconds in the interpreter.
READY_S, HANG_S, INTERPRETER_HANG_S = 300, 10, 40
_ACCESS = re.compile(r"(read|write) of .*, (\S+\.py):(\d+)")


class Suite(NamedTuple):
    """Hazards that are run together.

    Attributes:
      name: that of a module of `benchmarks` which calls `main`, and of the records.
      hazards: by name.
      what: what the records have, in a sentence.
      runs: of each version on a GPU.
    """

    name: str
    hazards: Mapping[str, Hazard]
    what: str
    runs: int = RUNS

    @property
    def module(self) -> str:
        """What Python runs."""
        return f"benchmarks.{self.name}"


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

    def __init__(self, suite: Suite, mode: str, name: str):
        env = os.environ | dict(XLA_PYTHON_CLIENT_PREALLOCATE="false", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", suite.module, mode, name]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
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


def in_interpreter(worker: Worker) -> dict[str, Any]:
    """What the interpreter and its race detector make of a faulty kernel."""
    said, result = [], {}
    try:
        while event := worker.next(INTERPRETER_HANG_S):
            said.append(event.get("printed") or event.get("raised", ""))
            if "raised" in event:
                result = dict(end="raised", text=event["raised"].strip().splitlines()[-1].strip())
            elif "wrong" in event:
                result = dict(end="wrong" if event["wrong"] else "right", text="")
        result = result or dict(end="raised", text=worker.last_words())
    except TimeoutError:
        result = dict(end="hang", text=f"no end in {INTERPRETER_HANG_S} s")
    _, is_race, race = "".join(said).partition("RACE DETECTED")
    accesses = [
        f"{verb} by `{linecache.getline(file, int(line)).strip()}`"
        for verb, file, line in _ACCESS.findall(race)[:2]
    ]
    result["text"] = "" if is_race and result["end"] == "raised" else first_line(result["text"])
    return {"race": " and ".join(accesses) if is_race else None, **result}


def record(suite: Suite, folder: str, found: dict[str, Any], **settings: Any) -> None:
    """Writes a record."""
    path = RESULTS / folder
    command = " ".join(["python", "-m", suite.module, *sys.argv[1:]])
    head = dict(command=command, **settings, provenance=provenance.provenance())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(head | dict(hazards=found)), "utf-8")
    noting.note(path)


def text(record: dict[str, Any]) -> str:
    """A record as JSON, a hazard on a line."""
    head = {key: value for key, value in record.items() if key != "hazards"}
    found = record["hazards"].items()
    hazards = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in found)
    return f'{json.dumps(head, indent=1)[:-2]},\n "hazards": {{\n{hazards}\n }}\n}}\n'


def main(suite: Suite) -> None:
    """Runs one mode."""
    parser = argparse.ArgumentParser(description=suite.what)
    parser.add_argument("--interpret", action="store_true", help="in JAX's interpreter")
    parser.add_argument("--gpu-one", metavar="NAME", help="(one process's part)")
    parser.add_argument("--interpret-one", metavar="NAME", help="(one process's part)")
    options = parser.parse_args()
    if options.gpu_one:
        return work_on_gpu(suite.hazards[options.gpu_one], suite.runs)
    if options.interpret_one:
        return work_in_interpreter(suite.hazards[options.interpret_one])
    found, start = {}, time.monotonic()

    def note(name: str, result: dict) -> None:
        found[name] = result
        brief = result if options.interpret else {v: result[v]["outcome"] for v in result}
        print(f"{time.monotonic() - start:6.1f} s  {name}: {brief}", flush=True)

    if options.interpret:
        for name in suite.hazards:
            note(name, in_interpreter(Worker(suite, "--interpret-one", name)))
        path = f"interpreter/{suite.name}-jax-{jax.__version__}.json"
        return record(suite, path, found, seed=SEED, blocks=1, timeout_s=INTERPRETER_HANG_S)
    workers = {name: Worker(suite, "--gpu-one", name) for name in suite.hazards}
    for name, worker in workers.items():
        note(name, on_gpu(worker, suite.runs))
    device = jax.devices()[0].device_kind.lower().replace(" ", "-")
    settings = dict(seed=SEED, runs=suite.runs, blocks=BLOCKS, timeout_s=HANG_S)
    record(suite, f"{device}/{suite.name}.json", found, **settings)
