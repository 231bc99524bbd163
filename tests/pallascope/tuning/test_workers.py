"""`Workers`: results, order, and what becomes of tasks that fail, hang or die."""

import operator
import os
import signal
import time
from functools import partial

import pytest

from pallascope.tuning.workers import Failed, Workers

CPU = dict(JAX_PLATFORMS="cpu")


@pytest.fixture(scope="module")
def workers():
    with Workers(2, env=CPU, prepare_s=60, run_s=0.5) as made:
        yield made


def returns(function, *args):
    """A task whose function is `function` with these arguments first."""
    return partial(partial, function, *args)


def test_every_task_has_its_result(workers):
    tasks = [returns(operator.mul, number) for number in range(5)]
    assert dict(workers.stream(tasks, 10)) == {n: 10 * n for n in range(5)}


def test_the_others_go_on_when_one_fails_hangs_or_dies(workers):
    tasks = [
        partial(operator.truediv, 1, 0),
        returns(operator.getitem, {}),
        returns(time.sleep),
        returns(os._exit),
        *[returns(operator.add, number) for number in range(4)],
    ]
    found = dict(workers.stream(tasks, 3))
    assert [found.pop(number) for number in range(4, 8)] == [3, 4, 5, 6]
    texts = {number: str(error) for number, error in found.items()}
    assert all(isinstance(error, Failed) for error in found.values())
    assert texts == {
        0: "ZeroDivisionError: division by zero",
        1: "KeyError: 3",
        2: "no answer in 0.5 s",
        3: "its process ended with status 3: no words",
    }


def test_held_functions_run_in_turn_and_at_once(workers):
    tasks = [returns(operator.mul, number) for number in (2, 3, 5)]
    with workers.hold([*tasks, partial(operator.truediv, 1, 0)]) as held:
        assert [[run(x) for run in held[:3]] for x in (1, 10)] == [[2, 3, 5], [20, 30, 50]]
        assert str(held[3]) == "ZeroDivisionError: division by zero"
        assert workers.at_once(held, 7) == [14, 21, 35, held[3]]


def test_a_hang_ends_what_its_process_kept_and_nothing_else(workers):
    """Of two processes the first has the first and the third."""
    tasks = [returns(time.sleep), returns(operator.mul, 2), returns(operator.add, 1)]
    with workers.hold(tasks) as held:
        with pytest.raises(Failed, match=r"no answer in 0\.2 s"):
            held[0](3, run_s=0.2)
        assert held[1](4) == 8
        with pytest.raises(Failed, match="its process was ended when something else"):
            held[2](4)
        assert str(workers.at_once(held, 4)[2]).startswith("its process was ended")
    with workers.hold(tasks[1:]) as held:
        assert [run(4) for run in held] == [8, 5]


def test_what_is_held_is_dropped_in_the_end(workers):
    with workers.hold([returns(operator.mul, 2)]) as held:
        pass
    with pytest.raises(Failed, match="KeyError: 0"):
        held[0](1)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    return lambda: "goes on"


def test_an_interruption_from_the_keyboard_is_not_the_workers_to_answer(workers):
    assert dict(workers.stream([interrupted])) == {0: "goes on"}


def test_no_process_outlives_the_workers():
    with Workers(1, env=CPU) as made:
        (_, number), *_ = made.stream([returns(os.getpid)])
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
