"""A pytest plugin that records and examines the kernels of other projects' tests.

    pytest -p tests.foreign.collecting --foreign-out FOLDER their_test.py

Each test appends one line of JSON to a file in FOLDER: its outcome, and a row for each kernel that
it launched and that no earlier test of this process had launched (`examining.examine`). Whether the
test passes does not matter: results of kernels are zeros. Markers that skip are taken off; a test
ends after `SECONDS`.
"""

import json
import os
import pathlib
import re

import pytest

SECONDS = int(os.environ.get("FOREIGN_TEST_SECONDS", "20"))


def pytest_addoption(parser):
    parser.addoption("--foreign-out", type=pathlib.Path, required=True, help="folder of results")
    parser.addoption("--foreign-gpu", default="9.0", help="the GPU's compute capability (9.0)")
    parser.addoption("--foreign-most", type=int, help="no more cases of one test function")


def pytest_configure(config):
    os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports JAX
    from tests.foreign import stand_in

    stand_in.install(stand_in.GPUS[config.getoption("foreign_gpu")])
    config.pluginmanager.register(Collector(config))


class Collector:
    """Sees each test begin and end."""

    def __init__(self, config):
        from tests.foreign import examining, guides, recording, stand_in

        self.examining, self.guides, self.stand_in = examining, guides, stand_in
        self.most = config.getoption("foreign_most")
        self.gpu = config.getoption("foreign_gpu")
        folder = config.getoption("foreign_out")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl"
        self.path.write_text("")
        self.seen = set()
        self.outcome, self.why = "", ""
        self._context = recording.recording()
        self.recorder = self._context.__enter__()

    def pytest_unconfigure(self):
        self._context.__exit__(None, None, None)

    def pytest_collect_file(self, file_path, parent):
        if file_path.suffix == ".md":
            return self.guides.Guide.from_parent(parent, path=file_path)
        return None

    def pytest_collection_modifyitems(self, items):
        for item in items:
            for node in item.listchain():
                node.own_markers = [m for m in node.own_markers if not m.name.startswith("skip")]
        if self.most:
            items[:] = spread(items, self.most)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        is_interpreted = "interpret" in item.path.name
        self.stand_in.believe(self.stand_in.CPU if is_interpreted else self.stand_in.GPU)
        self.recorder.clear()
        result = yield
        rows = [row for launch in self.recorder.drain() if (row := self._row(launch))]
        line = {"test": item.nodeid, "outcome": self.outcome, "why": self.why, "rows": rows}
        with self.path.open("a") as file:
            print(json.dumps(line), file=file)
        return result

    def _row(self, launch):
        digest = self.examining.digest(launch)
        if digest in self.seen:
            return None
        self.seen.add(digest)
        return {"digest": digest, **self.examining.examine(launch, self.gpu)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        with self.examining.limited(SECONDS):
            return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcome = report.outcome
            self.why = str(report.longrepr)[-300:] if report.outcome != "passed" else ""


def spread(items, most):
    """At most so many cases of each test function, from its first to its last."""
    groups = {}
    for item in items:
        function = re.sub(r"[\d_]*\d$|\[.*", "", item.nodeid)
        groups.setdefault(function, []).append(item)
    return [
        group[i * len(group) // min(most, len(group))]
        for group in groups.values()
        for i in range(min(most, len(group)))
    ]
