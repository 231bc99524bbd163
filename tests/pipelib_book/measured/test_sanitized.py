"""What is said of compute-sanitizer's record."""

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
def test_the_sentence_counts_what_was_reported(recorded, found, control, words):
    cases = {"a": {"memcheck": [], "synccheck": []}, "b": {"memcheck": [], "synccheck": found}}
    record = {"provenance": {"gpu": "NVIDIA H200"}, "control": control, "cases": cases}
    said = sanitized.sentence(recorded(sanitized=record))
    assert "2 calls" in said and words in said
