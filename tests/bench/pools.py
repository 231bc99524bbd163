"""Stands in for processes that measure contenders."""

import contextlib

from pallascope.tuning.rows import Row
from pallascope.tuning.workers import Failed


class Pool:
    """Stands in for `Workers`: a contender is its behaviour, `{method: result or Failed}`."""

    def __init__(self, log, name):
        self.log, self.name = log, name

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


def behaviour(name, **changed):
    good = dict(
        name=name, check=0.01, float64_error=dict(rows=[1], relative=0.002),
        burst=dict(us=[1.0, 3.0], kernels=["k"]), sustained=dict(us=[2.0] * 4, products=5),
    )  # fmt: skip
    return good | changed


PROVENANCE = dict(
    gpu="NVIDIA H200", driver="1", cuda="12", jax="0", jaxlib="0", python="3", git_commit=None,
    utc="2026-11-21T18:00:00+00:00", code_digest="0",
)  # fmt: skip


class Measurer:
    """Stands in for `OnGpu`: the same time for every configuration."""

    def each(self, configs):
        for config in configs:
            yield Row(config, (1.0, 2.0), 0.0)

    def in_turn(self, configs):
        return list(self.each(configs))


class Workers:
    """Stands in for `Workers`: all that `prepare` makes is as good."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @contextlib.contextmanager
    def hold(self, tasks):
        yield [lambda method, *_: behaviour("x")[method] for _ in tasks]

    def at_once(self, held, method):
        return [run(method) for run in held]
