"""Chapters show their diagrams by one call each, in the order of the catalogue."""

import re

import pytest

from pipelib_book.diagrams.catalogue import CATALOGUE
from tools import notebooks

CHAPTERS = {int(md.name[:2]): md for md in notebooks.chapters()}


def shown_in(chapter):
    """The names of the diagrams that a chapter's text calls, in order."""
    return re.findall(r"^book\.diagram\(\s*[\"']([^\"']*)[\"']\s*\)", chapter, re.MULTILINE)


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_chapter_shows_its_diagrams_in_the_catalogue_s_order(number):
    """All of them, once: else a number is missing on the page. A chapter may have none so far."""
    shown = shown_in(CHAPTERS[number].read_text("utf-8"))
    mine = [sketch.name for sketch in CATALOGUE if sketch.chapter == number]
    assert shown in ([], mine)


def test_each_diagram_s_chapter_exists():
    assert {sketch.chapter for sketch in CATALOGUE} <= {*CHAPTERS}


def test_calls_are_found_in_a_chapter():
    text = 'text\n\nbook.diagram("ring")\n\nbook.diagram(\n    "slots"\n)\n'
    assert shown_in(text) == ["ring", "slots"]
