"""`measured.nvlink`: the time of a step, and what a table says of it."""

from pipelib_book.measured import nvlink
from pipelib_book.measured.nvlink import OWN, RING, STREAM, Problem


def group(problem, few, many):
    names = f"{problem.steps} steps", f"{nvlink.LONGER * problem.steps} steps"
    kept = [dict(burst_microseconds=times) if times else dict(reason="") for times in (few, many)]
    return dict(problem=problem._asdict(), contenders=dict(zip(names, kept)))


def test_a_step_is_what_more_steps_add():
    stream, ring = Problem(STREAM, 2, steps=100), Problem(RING, steps=10)
    groups = [
        group(stream, [150.0, 160.0], [500.0, 350.0]),
        group(ring, [9.0], None),
        group(Problem(OWN), [1000.0], [4000.0]),
    ]
    assert nvlink.steps_us(groups) == {stream: 1.0, Problem(OWN): 1.5}
    assert (stream.sent, ring.sent, Problem(OWN).sent) == (65536, 32768, 0)
    assert [str(stream), str(Problem(OWN))] == [
        "stream, 32,768 bytes, 2 blocks",
        "own signal, 1 block",
    ]
