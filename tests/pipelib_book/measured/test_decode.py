"""The table of `decode_attention`'s record."""

import pytest

from pipelib_book.measured import decode


def group(page, microseconds):
    problem = dict(batch=4, q_seq=2, page=page, keys=1000, heads=8, kv_heads=2, head_dim=125)
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    return dict(part="decode", problem=problem | dict(dtype="bfloat16"), contenders=contenders)


@pytest.mark.parametrize(
    ("alone", "row"),
    [
        # 2 x 4 x 1000 x 2 x 125 x 2 bytes in 2 us are 2 TB/s.
        (
            {decode.OURS: 2.0, decode.CUDNN: 3.0, decode.COPY: 1.0},
            "| 4 | 2 | 2 | 5 | 2.00 | 0.50x | 1.50x |",
        ),
        ({decode.OURS: 2.0}, "| 4 | 2 | 2 | - | 2.00 | - | - |"),
    ],
    ids=["measured", "not measured"],
)
def test_a_row_for_each_problem_without_pages(recorded, alone, row):
    groups = [group(None, alone)] + [group(64, {decode.OURS: 5.0})] * (len(alone) > 1)
    found = decode.table(recorded(decode=dict(groups=groups)))
    assert found.splitlines()[2:] == [row]
