"""`relative_paths`: what is a path, and what a reader calls it."""

import pathlib

import pytest

from pallascope.drawing.paths import relative_paths

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"{ROOT}/pipelib/ring.py:3", "pipelib/ring.py:3"),
        (
            f"  --> {__file__}:3, thread 0",
            "  --> tests/pallascope/drawing/test_paths.py:3, thread 0",
        ),
        ("read at /a/ipykernel_12/345.py:7.", "read at cell:7."),
        ("(/some/where/kernel.py:8)", "(kernel.py:8)"),
        ('["/a/b.py:1","/a/c.py:2"]', '["b.py:1","c.py:2"]'),
    ],
)
def test_a_file_is_named_as_a_reader_has_it(text, read):
    assert relative_paths(text) == read
    assert relative_paths(read) == read


@pytest.mark.parametrize(
    "text",
    [
        "pipelib/ring.py:8",
        "https://x.org/a/b.py",
        "a / pipelib / b.py",
        "16 bytes/cycle, <b>bold</b>.py",
        "/some/where/some.json",
        "/a/kernel.pyc",
    ],
)
def test_what_is_no_file_of_python_stays(text):
    assert relative_paths(text) == text
