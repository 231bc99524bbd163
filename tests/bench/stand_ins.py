"""What stands in for a GPU in the tests of suites: processes, a clock, CUPTI's times."""

import contextlib
import dataclasses

import jax

from benchmarks import noting, suite
from pallascope.bench import timing
from pallascope.tuning.workers import Failed

FACTS = dict(gpu="NVIDIA H200", jax=jax.__version__)


class Pool:
    """Stands in for `Workers`: a contender is its behaviour, `{method: result or Failed}`."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @contextlib.contextmanager
    def hold(self, tasks):
        self.log.append((self.name, "hold", *(task.args[0]["name"] for task in tasks)))
        yield [self.run_of(task.args[0]) for task in tasks]

    def run_of(self, behaviour):
        if "held" in behaviour:
            return behaviour["held"]

        def run(method, *args):
            self.log.append((behaviour["name"], method, *args))
            result = behaviour[method]
            if isinstance(result, Failed):
                raise result
            return result

        return run

    def at_once(self, held, method):
        results = []
        for run in held:
            try:
                results.append(run(method))
            except Failed as error:
                results.append(error)
        return results


class Workers(Pool):
    """`Workers` with a GPU, on which all contenders are as good."""

    def __init__(self, *_, **__):
        pass

    def stream(self, tasks):
        yield from enumerate([FACTS | dict(gpu=self.gpu)] * len(tasks))

    gpu = FACTS["gpu"]

    @contextlib.contextmanager
    def hold(self, tasks):
        yield [lambda method, *_: behaviour("x")[method] for _ in tasks]


def behaviour(name, **changed):
    good = dict(
        name=name,
        check=0.001,
        float64_error=dict(rows=[1], relative=0.002),
        burst=dict(us=[1.0, 3.0] * 20, kernels=["k"]),
        sustained=dict(us=[2.0] * 4, products=5),
    )
    return good | changed


def with_parts(made, **changed):
    """The suite with one part, of other values."""
    (name,) = changed
    return dataclasses.replace(
        made, parts={name: dataclasses.replace(made.parts[name], **changed[name])}
    )


def dry_run(monkeypatch, tmp_path, made, *words, us=None):
    """Measures a suite with made-up times; returns where the record is, which has no digests."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "")
    monkeypatch.setattr(suite, "provenance", lambda: dict(FACTS))
    times = lambda functions, args, rounds, burst: {
        name: timing.Samples(((us or {}).get(name, 8.0),) * (rounds * burst)) for name in functions
    }
    monkeypatch.setattr(timing, "measure", times)
    noted = []
    monkeypatch.setattr(noting, "note", noted.append)
    made.main([*words, "--rounds", "2", "--launches", "3", "--results", str(tmp_path)])
    return noted[-1]
