"""Whether a record is of the kernels as they now are: the digests of what JAX compiled for it.

    python -m benchmarks.compiled check [RECORD...]  a line for each measurement of other kernels
    python -m benchmarks.compiled stale RECORD       the same as a list of JSON
    python -m benchmarks.compiled note RECORD        gives what was just measured its digests

The model. Each measurement in a record (a contender of a group, a final row of a search, a row, a
probe, a version of a hazard) holds under `compiled` the digest of what JAX traced for it
(`pipelib.bench.jaxprs`): kernels and launches, and what XLA compiles around them. This module finds
the measurements of a record and traces them anew, for the record's GPU, on any machine. A
measurement whose digest differs was made of another kernel and is to be made anew; nothing else
is. So a refactoring that leaves the jaxprs alone leaves the records alone.

A measurement without `compiled` is of others' kernels (cuBLAS's, cuDNN's, JAX's own, PyTorch's, the
driver's copy), which nothing here changes.

Not covered: the way in which times are taken, and records of another version of JAX than the one at
hand, which may trace the same function to another jaxpr.
"""

import argparse
import contextlib
import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import (
    accounts,
    attention,
    collective,
    contenders,
    decode,
    faults,
    grouped,
    hazards,
    idle,
    kernels,
    loads,
    machine,
    memory_bound,
    model,
    model_pairs,
    nvlink,
    probes,
    probing,
    sanitized,
    searched,
    starts,
    wild,
)
from benchmarks.attentions import Problem as Attention
from pipelib.bench.jaxprs import digest
from pipelib.bench.provenance import PACKAGE
from pipelib.kernels import AttentionConfig, MatmulConfig
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.tuning.on_gpu import ours
from pipelib.tuning.products import Problem
from pipelib.tuning.record import write_lines
from pipelib_book.measured.attention import OTHERS

RESULTS = PACKAGE.parent / "benchmarks" / "results"
KEY = "compiled"
#: Whose kernels are not ours, by the beginnings of their names.
_OTHERS = frozenset(
    {
        *OTHERS,
        *contenders.BASELINES,
        contenders.UPSTREAM,
        contenders.DEEPGEMM,
        grouped.UPSTREAM,
        collective.UPSTREAM,
    }
)
#: In whose place a record of the interpreter, which plans kernels as a GPU does, was made.
_ANY = Gpu("NVIDIA H200", "9.0")


class Measurement(NamedTuple):
    """One thing that was measured: its name, what the record says of it, how to trace it."""

    name: str
    kept: dict[str, Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def digest(self) -> str:
        """What JAX traces now."""
        return digest(self.function, *self.args)


# The measurements of each record.


def _matmul(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(Problem, group)
        if group["part"] == "upstream":
            continue
        made = contenders.PLANS[group["part"]].contenders(problem, record["groups"])
        yield from _contenders(group, problem, made, problem.factors)


def _tune(record: dict[str, Any]) -> Iterator[Measurement]:
    for search in record["searches"]:
        problem = _problem(Problem, search)
        digests = search.setdefault(KEY, [None] * len(search["finals"]))
        for i, (values, *_) in enumerate(search["finals"]):
            config = MatmulConfig(**dict(zip(search["fields"], values, strict=True)))
            name = f"tune {problem} {config}"
            yield Measurement(name, _InList(digests, i), ours(problem, config), problem.factors)


def _attention(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(Attention, group)
        args = (problem.out,) * (4 if problem.backward else 3)
        if group["part"] == "tune":
            best = attention.ours(problem, AttentionConfig(**group["best"]))
            yield Measurement(f"tune {problem}", group, best, args)
            continue
        made = attention.PARTS[group["part"]].contenders(problem, record["groups"])
        if problem.backward:
            made = {name: functools.partial(_gradients, each) for name, each in made.items()}
        yield from _contenders(group, problem, made, args)


def _accounts(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(Attention, group)
        made = accounts.PLAN.contenders(problem, [])
        yield from _contenders(group, problem, made, (problem.out,) * 3)


def _decode(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(decode.Problem, group)
        yield from _contenders(group, problem, decode.contenders(problem), problem.args)


def _grouped(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(grouped.Problem, group)
        yield from _contenders(group, problem, grouped.contenders(problem), problem.args)


def _collective(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(collective.Problem, group)
        yield from _contenders(group, problem, collective.contenders(problem), problem.args)


def _nvlink(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        problem = _problem(nvlink.Problem, group)
        args = (nvlink.like(problem),)
        yield from _contenders(group, problem, nvlink.contenders(problem), args)


def _sanitized(record: dict[str, Any]) -> Iterator[Measurement]:
    for name, (function, args) in sanitized.cases().items():
        yield Measurement(name, record["cases"][name], function, args)


def _memory_bound(record: dict[str, Any]) -> Iterator[Measurement]:
    for row in record["rows"]:
        shape, dtype = (row["rows"], row["length"]), row["dtype"]
        case = _cases(shape, dtype).get((row["kernel"], row["variant"]))
        if case is None:  # the driver's copy
            continue
        x, weight = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape[1:], dtype)
        words = jax.ShapeDtypeStruct((row["bytes"] // 8 // 1024, 1024), jnp.float32)
        name = f"{row['kernel']}, {row['variant']}, {shape} {dtype}"
        yield Measurement(name, row, case.function, (x, weight, words))
    x = jax.ShapeDtypeStruct(memory_bound.MAIN, memory_bound.MAIN_DTYPE)
    for point in record["curve"]:
        ring = functools.partial(memory_bound.ring_copy, point["slots"], point["step_bytes"])
        name = f"copy, {point['slots']} slots of {point['step_bytes']} bytes"
        yield Measurement(name, point, ring, (x,))


def _machine(record: dict[str, Any]) -> Iterator[Measurement]:
    for case in kernels.cases():
        yield Measurement(case.name, record["kernels"][case.name], case.build(True), case.inputs)
    for probe in probes.probes():
        if probe.name in record["probes"]:  # `benchmarks.machine add` measures those that lack
            kept = record["probes"][probe.name]
            yield Measurement(probe.name, kept, probing.kernel(probe), probing.inputs(probe))


def _model(record: dict[str, Any]) -> Iterator[Measurement]:
    for name, kept in record["pairs"].items():
        pair = model_pairs.pairs()[name]
        if "reason" not in kept and pair.family != model_pairs.UPSTREAM and _is_ours(pair.config):
            yield Measurement(name, kept, pair.function, pair.args)


def _loads(record: dict[str, Any]) -> Iterator[Measurement]:
    for name, probe, _ in loads.loads():
        yield Measurement(name, record["loads"][name], probing.kernel(probe), probing.inputs(probe))


def _idle(record: dict[str, Any]) -> Iterator[Measurement]:
    for load in idle.loads():
        kept, probe = record["idle"][load.name], load.probe
        yield Measurement(load.name, kept, probing.kernel(probe), probing.inputs(probe))


def _starts(record: dict[str, Any]) -> Iterator[Measurement]:
    for start in starts.starts():
        yield Measurement(start.name, record["starts"][start.name], starts.kernel(start), ())


def _profile(record: dict[str, Any]) -> Iterator[Measurement]:
    make, args, options = machine.profiled()
    yield Measurement("the ring by hand", record, make(**options, profile_dir="."), tuple(args))


def _search(record: dict[str, Any]) -> Iterator[Measurement]:
    for group in record["groups"]:
        this = searched.case(group["part"])
        for name, kept in group.get("in_turn", {}).items():
            words = f"{group['part']}, the best of {name}"
            yield Measurement(words, kept, this.kernel(kept["config"]), this.args)


def _faulty(suite: faults.Suite, record: dict[str, Any]) -> Iterator[Measurement]:
    for name, found in record["hazards"].items():
        hazard = suite.hazards[name]
        args = hazard.arguments(np.random.default_rng(faults.SEED), record["blocks"])
        for version in ("fixed", "faulty") if "faulty" in found else ("faulty",):
            kernel = functools.partial(hazard.kernel, fixed=version == "fixed")
            kept = found.get(version, found)
            yield Measurement(f"{name}, {version}", kept, kernel, tuple(args))


_RECORDS = {
    "matmul": _matmul, "tune": _tune, "attention": _attention, "memory_bound": _memory_bound,
    "machine": _machine, "model": _model, "loads": _loads, "idle": _idle, "starts": _starts,
    "profile": _profile, "search": _search, "accounts": _accounts, "decode": _decode,
    "grouped": _grouped, "collective": _collective, "nvlink": _nvlink, "sanitized": _sanitized,
    **{suite.name: functools.partial(_faulty, suite) for suite in (hazards.SUITE, wild.SUITE)},
}  # fmt: skip


class _InList(dict):
    """One of a list of digests, as what holds a single one has it."""

    def __init__(self, digests: list[str | None], index: int):
        super().__init__({KEY: digests[index]} if digests[index] else {})
        self._digests, self._index = digests, index

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self._digests[self._index] = value


def _problem(kind: Any, group: dict[str, Any]) -> Any:
    known = {name: value for name, value in group["problem"].items() if name in kind._fields}
    return kind(**known)


def _contenders(
    group: dict[str, Any], problem: Any, made: dict[str, Any], args: tuple[Any, ...]
) -> Iterator[Measurement]:
    """Those of a group that are ours and that ran."""
    for name, kept in group["contenders"].items():
        if "reason" not in kept and _is_ours(name):
            yield Measurement(f"{group['part']} {problem}, {name}", kept, made[name], args)


def _is_ours(name: str) -> bool:
    return name.partition(",")[0] not in _OTHERS


def _gradients(contender: Any, q: Any, k: Any, v: Any, d_out: Any) -> Any:
    return jax.vjp(contender, q, k, v)[1](d_out)


@functools.cache
def _cases(shape: tuple[int, int], dtype: str) -> dict[tuple[str, str], memory_bound.Case]:
    """All that is measured of a shape, by kernel and variant."""
    cases = [*memory_bound.copies(shape)] if dtype == memory_bound.MAIN_DTYPE else []
    cases += [*memory_bound.kernels(weight=True), *memory_bound.others(shape, dtype)]
    if (shape, dtype) == (memory_bound.MAIN, memory_bound.MAIN_DTYPE):
        cases += memory_bound.tried(shape)
    return {(case.kernel, case.variant): case for case in cases}


# What is of other kernels.


def measurements(path: pathlib.Path, record: dict[str, Any]) -> Iterable[Measurement]:
    """The measurements of a record; none of one in which no kernel runs."""
    find = _RECORDS.get(path.stem.partition("-jax-")[0])
    return find(record) if find else ()


def gpu_of(path: pathlib.Path) -> Gpu:
    """The GPU of a record, by the name of its folder."""
    maker, _, model = path.parent.name.partition("-")
    return _ANY._replace(device_kind=f"NVIDIA {model.upper()}") if maker == "nvidia" else _ANY


@contextlib.contextmanager
def _as_measured(path: pathlib.Path) -> Iterator[None]:
    """Tracing meanwhile is for the record's GPU, with JAX's own rules of promotion."""
    with assumed(gpu_of(path)), jax.numpy_dtype_promotion("standard"):
        yield


def jax_versions(path: pathlib.Path) -> set[str]:
    """The versions of JAX that a record's runs were made with."""
    record = json.loads(path.read_text("utf-8"))
    runs = [part["run"] for part in record.get("groups", record.get("searches", ()))] or [record]
    return {run["provenance"]["jax"] for run in runs}


def stale(path: pathlib.Path) -> list[str]:
    """The names of a record's measurements that were made of other kernels, with the reason.

    All are, if the record was made with another version of JAX, whose kernels may be others.
    """
    record = json.loads(path.read_text("utf-8"))
    if others := jax_versions(path) - {jax.__version__}:
        why = f", which was measured with JAX {', '.join(sorted(others))}"
        return [measurement.name + why for measurement in measurements(path, record)]
    with _as_measured(path):
        found = ((m, _digest_or_reason(m)) for m in measurements(path, record))
        return [m.name + why for m, (now, why) in found if m.kept.get(KEY) != now]


def _digest_or_reason(measurement: Measurement) -> tuple[str | None, str]:
    """The digest; or None, and why there is none: what can no longer be traced is stale too."""
    try:
        return measurement.digest(), ""
    except Exception as error:
        return None, f", which cannot be traced any more ({type(error).__name__}: {error})"


def note(path: pathlib.Path) -> None:
    """Gives digests to the measurements of a record that have none, since they were just made."""
    record = json.loads(path.read_text("utf-8"))
    with _as_measured(path):
        for measurement in measurements(path, record):
            if KEY not in measurement.kept:
                measurement.kept[KEY] = measurement.digest()
    write(path, record)


def write(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Writes a record in the layout that its benchmark gives it."""
    match path.stem.partition("-jax-")[0]:
        case (
            "matmul" | "attention" | "search" | "accounts" | "decode" | "grouped" | "collective"
            | "nvlink"
        ):  # fmt: skip
            write_lines(path, "groups", record["groups"])
        case "tune":
            write_lines(path, "searches", record["searches"])
        case "hazards" | "wild":
            path.write_text(faults.text(record), "utf-8")
        case "model" | "loads" | "idle" | "starts":
            path.write_text(model.text(record), "utf-8")
        case "profile":
            path.write_text(json.dumps(record) + "\n", "utf-8")
        case _:
            path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def main() -> None:
    """Runs one command; `check` exits with 1 if anything is stale."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["check", "stale", "note"])
    parser.add_argument("records", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    paths = options.records or sorted(RESULTS.glob("*/*.json"))
    if options.command == "note":
        for path in paths:
            note(path)
        return
    if not options.records:
        paths = [path for path in paths if jax_versions(path) <= {jax.__version__}]
    found = {path: stale(path) for path in paths}
    if options.command == "stale":
        print(json.dumps([name for names in found.values() for name in names]))
        return
    for path, names in found.items():
        for name in names:
            print(f"{path.parent.name}/{path.name}: {name}")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
