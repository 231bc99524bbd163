"""Whether a record is of the kernels as they now are: the digests of what JAX compiled for it.

    python -m benchmarks.compiled check [RECORD...]  a line for each measurement of other kernels
    python -m benchmarks.compiled stale RECORD       the same as a list of JSON
    python -m benchmarks.compiled note RECORD        gives what was just measured its digests

The model. Each contender in a record has under `compiled` the digest of what JAX traced for it
(`pallascope.bench.jaxprs`): kernels and launches, and what XLA compiles around them. The record's
suite knows its contenders (`suite`). They are traced anew, for the record's GPU, on any machine. A
measurement whose digest differs was made of another kernel and is to be made anew; nothing else
is. So a refactoring that leaves the jaxprs alone leaves the records alone.

A measurement without `compiled` is of others' kernels (cuBLAS's, cuDNN's, JAX's own, PyTorch's, the
driver's copy), which nothing here changes.

Not covered: the way in which times are taken, and records of another version of JAX than the one at
hand, which may trace the same function to another jaxpr.
"""

import argparse
import contextlib
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from benchmarks import records, suite
from benchmarks.records import KEY, RESULTS
from benchmarks.suite import Measurement
from pallascope.bench.jaxprs import digest
from pipelib.kernels.hopper import Gpu, assumed

#: In whose place a record of the interpreter, which plans kernels as a GPU does, was made.
_ANY = Gpu("NVIDIA H200", "9.0")


def measurements(path: pathlib.Path, record: dict[str, Any]) -> Iterable[Measurement]:
    """The measurements of a record; none of one in which no kernel runs."""
    found = suite.of_record(path)
    if found is None:
        return ()
    # A record without groups is one measurement, of its own name.
    return found.measurements(record.get("groups", [dict(contenders={path.stem: record})]))


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
    runs = [group["run"] for group in record.get("groups", ())] or [record]
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
        return digest(measurement.function, *measurement.args), ""
    except Exception as error:
        return None, f", which cannot be traced any more ({type(error).__name__}: {error})"


def note(path: pathlib.Path) -> None:
    """Gives digests to the measurements of a record that have none, since they were just made."""
    record = json.loads(path.read_text("utf-8"))
    with _as_measured(path):
        for measurement in measurements(path, record):
            if KEY not in measurement.kept:
                measurement.kept[KEY] = digest(measurement.function, *measurement.args)
    records.write(path, record)


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
