"""Kernels that a language model wrote: how they are judged, and that the records are of them."""

import json

import numpy as np
import pytest

from benchmarks import records, written
from pipelib_book.measured.written import who_saw_what


def recorded(path):
    found = {}
    for group in records.read(records.RESULTS / path):
        found |= group["contenders"]
    return found


def test_there_are_a_hundred_tasks_each_a_sentence_with_an_answer():
    tasks = written.tasks()
    assert len(tasks) >= 100
    for name, task in tasks.items():
        assert task.says.endswith(".") and f"def {name}(" in task.source
        assert len(task.names) == len(task.args)


@pytest.mark.parametrize(
    "path", ["nvidia-h200/written.json", "cpu/written.json",
             "interpreter/written-jax-0.11.2.json", "interpreter/written-jax-0.12.0.1.json"],
)  # fmt: skip
def test_a_record_has_every_kernel(path):
    assert recorded(path).keys() == written.tasks().keys()


@pytest.mark.parametrize("name", ["row_sum", "transpose_bf16", "total_sum"])
def test_a_verdict_is_as_recorded(name, capsys):
    written.work_on_verdict(name)
    said = json.loads(capsys.readouterr().out)
    kept = recorded("cpu/written.json")[name]
    kinds = lambda found: [each["kind"] for each in found["findings"]]
    assert kinds(said) == kinds(kept) and bool(said["refusal"]) == bool(kept["refusal"])


def test_a_wrong_result_is_told_from_a_right_one():
    task = written.tasks()["row_sum"]
    (x,) = args = task.arguments(0)
    right = x.sum(1)
    assert not task.error(right, args)[1]
    off = right.copy()
    off[7] += 1.0
    assert task.error(off, args)[1]
    assert task.error(np.where(right > 0, right, np.nan), args)[1]
    assert task.error(right[:-1], args) == (np.inf, True)


class Told:
    """A worker that tells these events."""

    def __init__(self, *events, status=0):
        self.events, self.status, self.process = [*events, None], status, self
        self.stdin = None

    def next(self, timeout_s):
        event = self.events.pop(0)
        if event == "hang":
            raise TimeoutError
        return event

    def wait(self):
        return self.status

    def last_words(self):
        return f"exit status {self.status}"


@pytest.mark.parametrize(
    ("events", "status", "outcome"),
    [
        ([dict(error=0.0, wrong=False)], 0, "nothing"),
        ([dict(error=0.0, wrong=False), dict(error=2.0, wrong=True)], 0, "wrong"),
        ([dict(outcome="refused", text="no")], 0, "refused"),
        ([dict(error=0.0, wrong=False), "hang"], 0, "hang"),
        ([dict(error=0.0, wrong=False)], 1, "killed"),
    ],
)
def test_what_becomes_of_a_kernel_on_the_gpu(events, status, outcome):
    assert written.on_gpu(Told(*events, status=status))["outcome"] == outcome


def test_the_table_counts_each_kernel_once_in_a_row():
    lines = who_saw_what().splitlines()[2:]
    assert len(lines) == 4
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert sum(int(cell or 0) for cell in cells) == len(written.tasks())


def test_without_records_it_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="use a checkout of the repository"):
        who_saw_what((tmp_path,))
