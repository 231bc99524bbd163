"""Stands in for a process that runs a hazard's two versions."""

from benchmarks import faults


class Told:
    """A worker that tells these events, then ends, or hangs."""

    def __init__(self, events, hangs=False, status=0, words=""):
        self.events, self.hangs = [{"ready": True}, *events], hangs
        self.process, self.words, self.stdin = self, words, None
        self.wait = lambda: status

    def next(self, timeout_s):
        if self.events:
            return self.events.pop(0)
        if self.hangs:
            raise TimeoutError
        return None

    def last_words(self):
        return self.words


RIGHT = [dict(version="fixed", wrong=0, error=0.0)] * faults.RUNS
