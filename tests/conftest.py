"""How the tests run: on the CPU, strictly; or on a Hopper GPU, recorded.

An ordinary run keeps JAX on the CPU and skips what is marked `gpu`. What is marked
`compiler` runs where `pallascope.compiled` does: `make test-slow` makes .venv-compile for it. With
`--budget SECONDS`, as in `make test`, a test that takes longer fails (`tests.budget`). A GPU run
(`make test-gpu`, or `-m gpu`) leaves JAX its default device. With
`--gpu-record FILE` the run's counts, machine and versions are written to FILE;
the committed one is printed at the end of every ordinary run.
"""

import gc
import json
import os
import pathlib
import time

import pytest

from tests import budget

ROOT = pathlib.Path(__file__).parents[1]
GPU_RECORD = pathlib.Path(__file__).with_name("gpu_record.json")


def pytest_addoption(parser):
    parser.addoption(
        "--gpu-record",
        metavar="FILE",
        type=pathlib.Path,
        help="write what a GPU run found to FILE",
    )
    parser.addoption(
        "--budget",
        metavar="SECONDS",
        type=float,
        help="fail a test that takes more CPU time and is not marked slow",
    )


def pytest_configure(config):
    # Before anything imports JAX.
    os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
    # Some CI asks all commands for colours, which are in no text that tests compare.
    os.environ.pop("FORCE_COLOR", None)
    # Each thread of an interpreted kernel holds one of XLA's, which are as many as cores.
    os.environ.setdefault("NPROC", "8")
    # Programs and jaxprs are many objects without cycles: by default, to look for some among them
    # takes a tenth of the checker's tests.
    gc.set_threshold(50_000)
    config.pluginmanager.register(budget.Budget(config.getoption("budget")))
    if folders := sorted(ROOT.glob(".venv-compile/lib/python*/site-packages")):
        os.environ.setdefault("PALLASCOPE_CUDA", str(folders[0]))
    if not is_gpu_run(config):
        os.environ["JAX_PLATFORMS"] = "cpu"
        return
    # Several processes share the GPU (`make test-gpu`).
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if config.getoption("gpu_record") and not on_hopper():
        pytest.exit(
            "--gpu-record needs a Hopper GPU, and JAX finds none here: run"
            " `make test-gpu` on an H100 or H200.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def is_gpu_run(config):
    return bool(config.getoption("gpu_record") or config.getoption("markexpr") == "gpu")


def on_hopper():
    from pallascope.bench import provenance

    return provenance.on_hopper()


def pytest_collection_modifyitems(config, items):
    skip_without_compiler([item for item in items if item.get_closest_marker("compiler")])
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if not is_gpu_run(config):
        reason = "needs a Hopper GPU: `make test-gpu` runs it on one"
    elif not on_hopper():
        reason = "needs a Hopper GPU, and JAX finds none here"
    else:
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))


def skip_without_compiler(items):
    if not items:
        return
    from pallascope.compiling import lacking

    if reason := lacking():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def traced_anew():
    """For tests that change what kernels do: JAX keeps the jaxpr of a function that it has seen."""
    import jax

    jax.clear_caches()
    yield
    jax.clear_caches()


def pytest_sessionstart(session):
    session.config.stash[START] = time.monotonic()


START = pytest.StashKey[float]()


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    write_tables(terminalreporter)
    finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if config.getoption("gpu_record"):
        if finished:
            write_record(terminalreporter, config)
        else:
            terminalreporter.write_line("Not recorded: the run did not finish.")
    elif not is_gpu_run(config):
        terminalreporter.section("last GPU run of the tests")
        terminalreporter.write_line(describe_record())


def write_tables(reporter):
    """The lines that tests gave with `record_property("table: TITLE", lines)`, under each title."""
    tables = {}
    for outcome in ("passed", "failed"):
        for report in reporter.getreports(outcome):
            for name, lines in getattr(report, "user_properties", ()):
                if report.when == "call" and name.startswith("table: "):
                    tables.setdefault(name.removeprefix("table: "), []).extend(lines)
    for title, lines in sorted(tables.items()):
        reporter.section(title)
        for line in sorted(set(lines)):
            reporter.write_line(line)


def write_record(reporter, config):
    from pallascope.bench import provenance

    counts = {
        kind: len(reporter.getreports(kind))
        for kind in ("passed", "failed", "error", "skipped", "xfailed")
    }
    seconds = round(time.monotonic() - config.stash[START], 1)
    record = {**counts, "seconds": seconds, **provenance.provenance()}
    path = config.getoption("gpu_record")
    path.write_text(json.dumps(record, indent=2) + "\n")
    reporter.write_line(f"Recorded in {path}.")


def describe_record(path=GPU_RECORD):
    """The committed record in a line, and whether it is of this code."""
    from pallascope.bench import provenance

    if not path.exists():
        return "There is none: run `make test-gpu` on an H100 or H200."
    record = json.loads(path.read_text())
    line = (
        "{passed} passed, {failed} failed, {error} errors, {skipped} skipped,"
        " {seconds} s, on {gpu} (driver {driver}, CUDA {cuda}), JAX {jax},"
        " Python {python}, {utc}"
    ).format(**record)
    if record["code_digest"] != provenance.code_digest():
        line += "\nStale: pipelib's code has changed since. Run `make test-gpu` on an H100 or H200."
    return line
