"""What is said of compute-sanitizer's record."""

import json

import pytest

from pipelib_book.measured import sanitized


@pytest.mark.parametrize(
    ("found", "control", "words"),
    [
        ([], ["Invalid read"], "memcheck reported no faults and synccheck reported no"),
        (["Barrier"], ["Invalid read"], "memcheck reported no faults and synccheck reported 1"),
        ([], [], "as a control, was not reported"),
    ],
)
def test_the_sentence_counts_what_was_reported(tmp_path, found, control, words):
    (folder := tmp_path / "nvidia-h200").mkdir()
    cases = {"a": {"memcheck": [], "synccheck": []}, "b": {"memcheck": [], "synccheck": found}}
    record = {"provenance": {"gpu": "NVIDIA H200"}, "control": control, "cases": cases}
    (folder / "sanitized.json").write_text(json.dumps(record), "utf-8")
    said = sanitized.sentence((tmp_path,))
    assert "2 calls" in said
    assert words in said


def test_without_a_record(tmp_path):
    assert "has no run under compute-sanitizer" in sanitized.sentence((tmp_path,))
