"""`pipelib_book.measured.accounts`: its table, and what it says where nothing was measured."""

import pytest

from pipelib_book.measured import accounts

ACCOUNT = dict(
    seconds=1e-3,
    cycles=1.75e6,
    tensor_percent=75.0,
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
    assert rows[0].startswith("| ours | 1.000 | 1.750 | 75.0% | 5 | 0 | 100 | 201 |")
    assert rows[0].endswith("| 1,506 |") and rows[1] == "| theirs | no kernel |"
    assert len(accounts.table(found).splitlines()) == 5


def test_a_column_for_each(group):
    """But for what was not made; a row for each number."""
    found = group(a=ACCOUNT, b=dict(reason="no kernel"), c=ACCOUNT)
    rows = accounts.beside(found, dict(a="ours", b="theirs", c="both")).splitlines()
    assert rows[0] == "|  | ours | both |" and rows[2] == "| ms | 1.000 | 1.000 |"
    assert rows[-1] == "| all | 1,506 | 1,506 |" and len(rows) == 2 + 4 + len(accounts.PARTS) + 1


def test_a_part_that_a_loop_lacks_is_empty(group):
    parts = {name: ACCOUNT["parts"][name] for name in accounts.PARTS[:4]}
    found = group(a=ACCOUNT | dict(parts=parts))
    assert accounts.table(found).splitlines()[-1].endswith("| 301 |  |  | 602 |")
