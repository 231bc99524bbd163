"""Measures the table of `pipelib.kernels.attention.choosing` anew: each problem by each kind.

    python -m benchmarks.choices

The model. A *kind* is one of the few configurations of attention's forward kernel that are chosen
from. Those of one problem take turns, in bursts of a few launches, and the table gets the median of
each one's own time by CUPTI (`pallascope.bench.timing`). A kind whose result is not the default's,
to the dtype's precision, ends the run: its time would say nothing. Operands are those of
`attention_problems`.

What the formula has of the table is fitted by `tests/kernels/attention/test_choosing`, which fails
if the two no longer agree.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.attention_problems import Problem, operands
from benchmarks.turns import XLA_FLAGS
from pallascope.bench import timing
from pallascope.bench.provenance import provenance
from pipelib.kernels import attention
from pipelib.kernels.attention import choosing
from pipelib.kernels.attention.band import Options, Sizes

DTYPE, ROUNDS, LAUNCHES = "bfloat16", 4, 6
#: The largest difference of two results, in root mean squares: a few roundings of bfloat16.
_APART = 0.1


class Measured(NamedTuple):
    """A problem that was measured, of as many keys as queries, in bfloat16.

    Attributes:
      batch, seq, heads, kv_heads, head_dim: its sizes.
      left, right: what a query sees, as `Options` has it.
      microseconds: the median of each kind, by its name.
    """

    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    left: int | None
    right: int | None
    microseconds: dict[str, float]

    @property
    def sizes(self) -> Sizes:
        """Its sizes, as the kernel takes them."""
        group = self.heads // self.kv_heads
        return Sizes(self.batch, self.seq, self.seq, self.heads, group, self.head_dim)

    @property
    def options(self) -> Options[None]:
        """What its queries see."""
        return Options(self.left, self.right, 1.0, None)


def problems() -> tuple[Measured, ...]:
    """The problems of the table."""
    rows = json.loads(choosing.TABLE.read_text("utf-8"))["rows"]
    return tuple(Measured(**row) for row in rows)


def measured(row: Measured) -> Measured:
    """A problem of the table with the times that its kinds have now."""
    default = choosing.default_config(row.head_dim)
    made = functools.partial(attention, causal=False, window=(row.left, row.right), scale=1.0)
    kinds = {
        kind.name: functools.partial(made, config=dataclasses.replace(default, **kind.fields))
        for kind in choosing.KINDS[row.head_dim]
    }
    problem = Problem(
        row.seq,
        row.head_dim,
        False,
        DTYPE,
        heads=row.heads,
        batch=row.batch,
        kv_heads=row.kv_heads,
    )
    args = operands(problem)[:3]
    results = {name: np.asarray(jax.jit(kind)(*args), np.float32) for name, kind in kinds.items()}
    expected = next(iter(results.values()))
    for name, result in results.items():
        off = np.abs(result - expected).max() / np.sqrt(np.mean(expected**2))
        if not off <= _APART:
            raise SystemExit(f"benchmarks.choices: {name} of {row[:7]} is off by {off} rms.")
    times = timing.measure(kinds, args, rounds=ROUNDS, burst=LAUNCHES)
    return row._replace(
        microseconds={name: round(samples.median_us, 2) for name, samples in times.items()}
    )


def text(run: Mapping[str, Any], rows: list[Measured]) -> str:
    """The table as it is stored: a line for each problem."""
    lines = ",\n".join(json.dumps(row._asdict()) for row in rows)
    return f'{{"run": {json.dumps(dict(run))},\n"rows": [\n{lines}\n]}}\n'


def main() -> None:
    """Measures every problem, and writes the table."""
    os.environ["XLA_FLAGS"] = XLA_FLAGS  # JAX reads it when it first looks for a GPU
    facts = provenance()
    if facts["gpu"] is None:
        raise SystemExit("benchmarks.choices: JAX has no GPU here: there is nothing to time.")
    samples = f"the median of {ROUNDS * LAUNCHES} launches by CUPTI, kinds in turn"
    run = {name: facts[name] for name in ("gpu", "jax")} | dict(dtype=DTYPE, samples=samples)
    rows: list[Measured] = []
    for row in problems():
        rows.append(measured(row))
        print(*rows[-1], flush=True)
    choosing.TABLE.write_text(text(run, rows), "utf-8")


if __name__ == "__main__":
    main()
