"""The reference's pages hold to the chapters and to the code."""

import re

from tools import notebooks

BOOK = notebooks.BOOK


def chapter_texts():
    return {md.name: md.read_text("utf-8") for md in notebooks.chapters()}


# Bibliography.


def test_the_bibliography_has_what_chapters_cite_and_nothing_else():
    entries = re.findall(r"^@\w+\{([\w-]+),$", (BOOK / "references.bib").read_text(), re.MULTILINE)
    cites = re.findall(r"\{cite\}`([\w,-]+)`", "".join(chapter_texts().values()))
    cited = {key for cite in cites for key in cite.split(",")}
    assert cited == {*entries} and len(entries) == len({*entries})


# Glossary.


def terms():
    """The words of the glossary, with what is said of each."""
    text = (BOOK / "glossary.md").read_text("utf-8")
    body = re.search(r"^:::\{glossary\}\n(.*?)^:::", text, re.MULTILINE | re.DOTALL)[1]
    return dict(re.findall(r"^(\S.*)\n((?:  .*\n)+)", body, re.MULTILINE))


def test_the_glossary_is_in_order_and_each_word_leads_to_a_chapter():
    words = [*terms()]
    assert words == sorted(words, key=str.lower) and len(words) > 40
    for word, said in terms().items():
        assert re.search(r"\]\(\d\d_\w+\.ipynb", re.sub(r"\s+", "", said)), word


def test_the_glossary_has_the_book_s_main_words():
    some = {"step", "slot", "phase", "produced barrier", "consumed barrier", "memory thread"}
    some |= {"compute thread", "Pallas thread", "copies in flight", "prologue", "steady state"}
    assert some | {"drain", "bubble"} <= {*terms()}
