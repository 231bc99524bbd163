"""Measures the kernels and configurations that the simulator's error is worked out on.

`python -m benchmarks.model` on the GPU writes `results/<gpu>/model.json`; a pair that the record
has is not measured again. `benchmarks.model_pairs` says which pairs of kernel and configuration
there are, and which of them are held out; `benchmarks.model_runs` how a pair is measured.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterable
from typing import Any

import jax

from benchmarks import noting
from benchmarks.model_pairs import Pair, pairs
from benchmarks.model_runs import BURST_S, WARM_S, prepare
from pipelib.bench.provenance import provenance
from pipelib.tuning.on_gpu import UNTIMED_FLAGS
from pipelib.tuning.workers import Failed, Workers

#: Of the GPU's memory, that all workers may take; the longest that one pair's bursts take.
GPU_SHARE, RUN_S = 0.85, 60.0
RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def in_turn(wanted: Iterable[Pair]) -> list[Pair]:
    """One of each family after the other, so that a record that was cut short has all of them."""
    families: dict[str, list[Pair]] = {}
    for pair in wanted:
        families.setdefault(pair.family, []).append(pair)
    return [pair for column in itertools.zip_longest(*families.values()) for pair in column if pair]


def measure(seconds: float) -> None:
    """Measures every pair that the record lacks, for so long, and writes the record."""
    device = jax.devices()[0].device_kind.lower().replace(" ", "-")
    path = RESULTS / device / "model.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text("utf-8"))["pairs"] if path.exists() else {}
    names = [pair.name for pair in in_turn(p for p in pairs().values() if p.name not in found)]
    stop = time.monotonic() + seconds
    tasks = (
        functools.partial(prepare, name)
        for name in itertools.takewhile(lambda _: time.monotonic() < stop, names)
    )
    count = max(1, (os.cpu_count() or 2) - 1)
    share = str(round(GPU_SHARE / count, 3))
    env = dict(XLA_FLAGS=UNTIMED_FLAGS, XLA_PYTHON_CLIENT_MEM_FRACTION=share)
    with Workers(count, env=env, run_s=RUN_S) as workers:
        for number, result in workers.stream(tasks):
            is_good = not isinstance(result, Failed)
            found[names[number]] = result if is_good else dict(reason=str(result))
            if is_good and (shorter := pairs()[names[number]].longer_than):
                result["longer_than"] = shorter
            if not is_good:
                print(f"{names[number]}: {result}", flush=True)
    in_order = {name: found[name] for name in pairs() if name in found}
    save(path, warm_s=WARM_S, burst_s=BURST_S, pairs=in_order)
    noting.note(path)
    print(f"{len(found)} of {len(pairs())} pairs are in the record.")


def save(path: pathlib.Path, **fields: Any) -> None:
    """Writes the record that the script of this name has made, with its command and provenance."""
    command = " ".join([f"python -m benchmarks.{path.stem}", *sys.argv[1:]])
    path.write_text(text(dict(command=command, provenance=provenance(), **fields)), "utf-8")


def text(record: dict[str, Any]) -> str:
    """A record as JSON; of its last field, which is an object, each name on a line of its own."""
    *head, (last, found) = record.items()
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    start = json.dumps(dict(head), indent=1)[:-2]
    return f'{start},\n "{last}": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def main() -> None:
    """Measures."""
    # The workers use the GPU; this process only asks for its name.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=480, help="no new pair after so long")
    measure(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
