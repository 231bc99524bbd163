"""The table of `decode_attention`'s record."""

import json

import pytest

from pipelib_book.measured import decode


def group(page, **microseconds):
    problem = {
        "batch": 4, "q_seq": 2, "page": page, "keys": 1000, "heads": 8, "kv_heads": 2,
        "head_dim": 125, "dtype": "bfloat16",
    }  # fmt: skip
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    return {"part": "decode", "problem": problem, "contenders": contenders}


def table(tmp_path, *groups):
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    (folder / "decode.json").write_text(json.dumps({"groups": groups}), "utf-8")
    return decode.table((tmp_path,))


def test_a_row_for_each_problem_without_pages(tmp_path):
    """2 x 4 x 1000 x 2 x 125 x 2 bytes in 2 us are 2 TB/s."""
    alone = {decode.OURS: 2.0, decode.CUDNN: 3.0, decode.COPY: 1.0}
    found = table(tmp_path, group(None, **alone), group(64, **{decode.OURS: 5.0}))
    *_, row = found.splitlines()
    assert row == "| 4 | 2 | 2 | 5 | 2.00 | 0.50x | 1.50x |"
    assert len(found.splitlines()) == 3


def test_what_was_not_measured(tmp_path):
    found = table(tmp_path, group(None, **{decode.OURS: 2.0}))
    assert found.splitlines()[-1] == "| 4 | 2 | 2 | - | 2.00 | - | - |"


@pytest.mark.parametrize(
    "words", ["(The record of decoding has no part `decode`: `make benchmark`"]
)
def test_without_a_record(tmp_path, words):
    assert decode.table((tmp_path,)).startswith(words)
