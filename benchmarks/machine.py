"""Measures what the parameters of `pipelib.schedule.machine` come from, on the GPU at hand."""

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import probes
from pipelib.bench.provenance import provenance

LAUNCHES = 5


def run_probe(probe: probes.Probe) -> dict[str, Any]:
    """A probe's samples, one for each launch."""
    flush = jax.jit(lambda x: x + 1)
    big = jnp.zeros(1 << 26, jnp.float32)  # 256 MiB, several times L2
    args = [jnp.ones(probe.input, jnp.float16)] if probe.input else []
    call = jax.jit(probes.kernel(probe))
    samples = []
    for launch in range(LAUNCHES + 1):
        if probe.cold:
            big = flush(big).block_until_ready()
        result = call(*args)
        stamps = np.asarray(result[-1] if isinstance(result, (tuple, list)) else result)
        if launch:  # the first one compiles and warms up
            samples.append(probes.slopes(stamps, probe.repeats))
    columns = {key: [round(s[key], 4) for s in samples] for key in samples[0]}
    return dict(work=probe.work, repeats=probe.repeats, blocks=probe.blocks, **columns)


def nvidia_smi() -> str:
    """Clocks as the driver reports them."""
    fields = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main(path: str, words: list[str]) -> None:
    """Writes the record."""
    record: dict[str, Any] = dict(provenance=provenance(), launches=LAUNCHES, probes={})
    for probe in probes.select(probes.probes(), words):
        start = time.perf_counter()
        try:
            found = run_probe(probe)
        except Exception as error:
            print("FAILED", probe.name, type(error).__name__, str(error)[:300], flush=True)
            continue
        record["probes"][probe.name] = found
        seconds = time.perf_counter() - start
        cycles, inner = (float(np.median(found[key])) for key in ("cycles", "inner"))
        work = " ".join(f"{v / cycles:.1f} {k}/cycle" for k, v in probe.work.items())
        spread = max(found["cycles"]) - min(found["cycles"])
        clock = float(np.median(found["clock_hz"])) / 1e9
        print(f"{probe.name:50s} {cycles:10.1f} +-{spread:8.1f} inner {inner:8.1f} {work}"
              f" {clock:.3f} GHz {seconds:.1f} s", flush=True)
        pathlib.Path(path).write_text(json.dumps(record, indent=1))
    record["nvidia_smi"] = nvidia_smi()
    pathlib.Path(path).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
