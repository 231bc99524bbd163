"""The reference's pages hold to the chapters and to the code."""

import re

from tools import notebooks, plgpu_names

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


# Index of plgpu.


def test_every_name_of_plgpu_is_used_by_a_chapter_or_on_one_list():
    assert plgpu_names.misplaced() == []


def test_a_name_in_the_wrong_place_is_found(monkeypatch):
    lists = {"some": ("wgmma", "no_such_name", "TMEM"), "more": ("TMEM",)}
    monkeypatch.setattr(plgpu_names, "TO_COME", lists)
    monkeypatch.setattr(plgpu_names, "OTHERS", {})
    wrong = plgpu_names.misplaced()
    assert "wgmma is used by a chapter: take it off the lists." in wrong
    assert "plgpu has no no_such_name: take it off the lists." in wrong
    assert "no chapter uses remote_ref: put it on one of the lists." in wrong
    assert "TMEM is listed twice." in wrong


def test_the_index_leads_to_where_chapters_use_and_explain_a_name():
    found = plgpu_names.uses()
    assert all(
        name in found for text in chapter_texts().values() for name in CELL_NAMES.findall(text)
    )
    places = [(use.chapter, use.heading) for use in found["barrier_arrive"]]
    assert places[0] == ("03_warp_specialization", "Two kinds of thread")
    assert plgpu_names.explained("set_max_registers").heading == "Registers, moved"
    assert plgpu_names.explained("SMEM").heading == "Three memories"
    link = "[Three memories](02_buffering.ipynb#three-memories)"
    assert f"\n`SMEM`\n: **Buffering: {link}**\n" in plgpu_names.index()


# What cells of a chapter have, as opposed to its text: an indented or assigned use.
CELL_NAMES = re.compile(r"^ +plgpu\.(\w+)\(", re.MULTILINE)
