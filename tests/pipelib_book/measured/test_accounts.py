"""`pipelib_book.measured.accounts`: its table, and what it says where nothing was measured."""

import pytest

from pipelib_book.measured import accounts

ACCOUNT = dict(
    seconds=1e-3,
    cycles=1.75e6,
    active_cycles=1.4e6,
    tensor_percent=75.0,
    exponentials_percent=40.0,
    issue_percent=37.5,
    to_sms_bytes_per_second=5e12,
    instructions=5e6,
    parts={part: dict(cycles=100.4 * i) for i, part in enumerate(accounts.PARTS)},
)


@pytest.fixture
def group(recorded):
    """The group of a record with these contenders."""

    def read(**contenders):
        found = dict(part="accounts", problem=dict(causal=False), contenders=contenders)
        return accounts.group(False, recorded(accounts=dict(groups=[found])))

    return read


def test_a_row_for_each_that_is_wanted(group):
    found = group(a=ACCOUNT, b=dict(reason="no kernel"), c=ACCOUNT)
    head, _, *rows = accounts.table(found, dict(a="ours", b="theirs", lost="lost")).splitlines()
    assert "| softmax |" in head and len(rows) == 2
    launch = "| ours | 1.000 | 1.750 | 80.0% | 75.0% | 40.0% | 37.5% | 5.00 | 5 |"
    assert rows[0].startswith(f"{launch} 0 | 100 | 201 |")
    assert rows[0].endswith("| 1,506 |") and rows[1] == "| theirs | no kernel |"
    assert len(accounts.table(found).splitlines()) == 5


def test_a_launch_has_a_column_for_each_problem(group):
    """But for what was not made; a row for each number."""
    groups = dict(dense=group(a=ACCOUNT, b=dict(reason="no kernel")), causal=None)
    rows = accounts.launches(groups, dict(a="ours", b="theirs")).splitlines()
    assert rows[0] == "|  | ours, dense |" and rows[2] == "| ms | 1.000 |"
    assert accounts.launches(dict(causal=None), dict(a="ours")).startswith("(The record")


def test_the_factors_make_the_speed(group):
    slow = ACCOUNT | dict(seconds=2e-3, cycles=2.8e6, active_cycles=1.4e6, tensor_percent=60.0)
    groups = dict(dense=group(a=ACCOUNT, b=slow), causal=group(a=ACCOUNT))
    head, _, *rows = accounts.factors(groups, "a", "b").splitlines()
    found = [float(row.split("|")[2].strip(" x")) for row in rows]
    assert head == "|  | dense |" and found == [1.25, 1.6, 1.25, 0.8, 2.0]


def test_a_step_has_a_column_for_each(group):
    found = group(a=ACCOUNT, b=dict(reason="no kernel"), c=ACCOUNT)
    rows = accounts.steps(found, dict(a="ours", b="theirs", c="both")).splitlines()
    assert rows[0] == "|  | ours | both |" and rows[2] == "| turn | 0 | 0 |"
    assert rows[-1] == "| all | 1,506 | 1,506 |" and len(rows) == 2 + len(accounts.PARTS) + 1


def test_a_clock_for_each(group):
    found = group(a=ACCOUNT, b=dict(reason="no kernel"))
    assert accounts.clocks(found) == [("a", pytest.approx(0.6), pytest.approx(1.75e9))]


def test_a_part_that_a_loop_lacks_is_empty(group):
    parts = {name: ACCOUNT["parts"][name] for name in accounts.PARTS[:4]}
    found = group(a=ACCOUNT | dict(parts=parts))
    assert accounts.table(found).splitlines()[-1].endswith("| 301 |  |  | 602 |")


def test_a_row_for_each_state_of_a_warp(group):
    """The longest first; what has no words is "other", and what is short has no row."""
    stalls = dict(selected=30.0, wait=60.0, no_inst=9.5, mio=0.5)
    found = group(a=ACCOUNT | dict(parts=dict(rest=dict(cycles=100.0, stalls=stalls))))
    rows = accounts.stalls(found, "a", "rest").splitlines()[2:]
    assert [row.split(" | ")[1:] for row in rows] == [
        ["60", "60% |"],
        ["30", "30% |"],
        ["10", "10% |"],
    ]
    assert rows[-1].startswith("| other")
    assert accounts.stalls(found, "b", "rest").startswith("(The record")
