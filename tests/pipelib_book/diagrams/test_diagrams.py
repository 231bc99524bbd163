"""The book's diagrams: what is said of them, how they look, and where their marks are."""

import pathlib
import re
import xml.etree.ElementTree as ET

import pytest

import pipelib_book as book
from pallascope.drawing.picture import EDGE, LOOKS
from pipelib_book.diagrams import shapes
from pipelib_book.diagrams.catalogue import CATALOGUE
from pipelib_book.diagrams.shapes import Words
from tests.pipelib_book.diagrams.layout import faults

EVERY = pytest.mark.parametrize("sketch", CATALOGUE, ids=lambda sketch: sketch.name)
PHONE_PIXELS, MAX_BYTES = 358, 20_000


def html_of(sketch):
    return book.diagram(sketch.name)._repr_html_()


def figure(sketch):
    """The figure as XML: it is well-formed, as HTML is that is taken for XML."""
    return ET.fromstring(html_of(sketch))


# Names and numbers.


def test_the_catalogue_goes_chapter_by_chapter_and_has_each_name_once():
    chapters = [sketch.chapter for sketch in CATALOGUE]
    assert chapters == sorted(chapters) and len(chapters) >= 20
    for field in ("name", "title", "caption", "alt"):
        assert len({getattr(sketch, field) for sketch in CATALOGUE}) == len(CATALOGUE)


def test_a_number_is_the_chapter_s_and_the_place_in_it():
    numbers = [book.diagram(sketch.name).number for sketch in CATALOGUE]
    assert len({*numbers}) == len(numbers)
    count = dict.fromkeys((sketch.chapter for sketch in CATALOGUE), 0)
    for sketch, number in zip(CATALOGUE, numbers, strict=True):
        count[sketch.chapter] += 1
        assert number == f"{sketch.chapter}.{count[sketch.chapter]}"


def test_an_unknown_name_is_told_the_near_ones():
    with pytest.raises(ValueError) as near:
        book.diagram("rings")
    assert str(near.value) == (
        f"None of the book's {len(CATALOGUE)} diagrams is called 'rings', so there is nothing to"
        " draw: take 'ring', 'rungs'."
    )
    with pytest.raises(ValueError) as far:
        book.diagram("q")
    assert str(far.value).endswith(f": take one of {', '.join(repr(s.name) for s in CATALOGUE)}.")


def test_what_is_no_name_is_refused():
    with pytest.raises(TypeError) as error:
        book.diagram(3)
    assert str(error.value) == (
        "diagram takes the name of a diagram, not a value of type int: give a string, such as"
        " 'ring'."
    )


# Words.


@EVERY
def test_captions_and_descriptions_are_sentences(sketch):
    assert 1 <= len(re.findall(r"[.!?](?= |$)", sketch.caption)) <= 2
    assert sketch.caption.endswith(".") and sketch.caption.count("`") % 2 == 0
    assert len(sketch.caption) <= 240
    assert sketch.alt.endswith(".") and "`" not in sketch.alt and 80 <= len(sketch.alt) <= 700
    assert sketch.title[0].isupper() and len(sketch.title) <= 60


@EVERY
def test_the_figure_has_its_words(sketch):
    root, number = figure(sketch), book.diagram(sketch.name).number
    (svg,) = root.iter("svg")
    assert svg.get("role") == "img"
    assert [child.tag for child in svg][:2] == ["title", "desc"]
    assert (svg.find("title").text, svg.find("desc").text) == (sketch.title, sketch.alt)
    said = "".join(root.find("figcaption").itertext())
    assert said == f"Figure {number}. {sketch.caption.replace('`', '')}"


@EVERY
def test_as_text_it_is_the_caption_and_the_description(sketch):
    diagram = book.diagram(sketch.name)
    caption, alt = str(diagram).split("\n\n")
    assert " ".join(caption.split()) == f"Figure {diagram.number}. {sketch.caption}"
    assert " ".join(alt.split()) == sketch.alt and repr(diagram) == str(diagram)
    assert max(map(len, str(diagram).splitlines())) <= 80


# Looks.


@EVERY
def test_a_figure_is_light_and_always_the_same(sketch):
    text = html_of(sketch)
    assert text == html_of(sketch)
    assert len(text.encode()) < MAX_BYTES


@EVERY
def test_a_figure_stands_alone(sketch):
    """It needs no other file, has no ids that another could have, and styles nothing else."""
    text = html_of(sketch)
    assert not re.search(r"<script|\bid=|url\(|https?:|@import", text)
    (css,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    selectors = re.findall(r"([^{}]+)\{", css)
    assert selectors
    assert all(selector.startswith(".pipelib-diagram svg") for selector in selectors)


@EVERY
def test_colours_are_those_of_the_players(sketch):
    text = html_of(sketch)
    palette = {EDGE} | {colour for look in LOOKS.values() for colour in look[1:] if colour}
    assert {*re.findall(r"#[0-9A-Fa-f]{3,8}\b", text)} <= palette
    declared = {*re.findall(r"(--[\w-]+):", text)}
    assert {*re.findall(r"var\((--[\w-]+)\)", text)} <= declared
    for name in ("fill", "stroke"):
        values = re.findall(rf"[\";{{]{name}[:=]\"?([^\";}}]+)", text)
        assert values and all(re.fullmatch(r"none|currentColor|var\(--[\w-]+\)", v) for v in values)
    assert "rgb" not in text


@EVERY
def test_every_class_has_a_style(sketch):
    text = html_of(sketch)
    (css,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    classes = {name for names in re.findall(r'class="([^"]*)"', text) for name in names.split()}
    assert classes - {"pipelib-diagram", "scroll"} <= {*re.findall(r"\.([\w-]+)", css)}


@EVERY
def test_text_is_large_enough_on_a_phone(sketch):
    (svg,) = figure(sketch).iter("svg")
    units = float(svg.get("viewBox").split()[2])
    least = int(re.search(r"min-width:(\d+)px", svg.get("style"))[1])
    assert shapes.TEXT * least / units >= 11
    assert least <= PHONE_PIXELS  # and no diagram of today needs to scroll there
    assert not {"width", "height"} & {*svg.keys()}


# Places.


@EVERY
def test_no_text_leaves_its_box_or_touches_anything(sketch):
    assert faults(sketch.draw()) == []


WRONG = {
    "does not fit into the sheet": shapes.text(95, 20, "too far"),
    "does not fit into its box": shapes.box(5, 5, 30, 20, "too long"),
    "overlap": shapes.text(50, 20, "one") + shapes.text(52, 26, "other"),
    "is crossed by Path": shapes.text(50, 50, "words") + shapes.arrow((50, 10), (50, 90)),
    "is crossed by Rect": shapes.text(50, 50, "words") + shapes.box(50, 10, 40, 80),
    "is painted over by": shapes.text(50, 50, "words") + shapes.box(5, 5, 90, 90),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_layout_is_found(fault):
    found = faults(shapes.drawing(100, 100, WRONG[fault]))
    assert found and any(fault in said for said in found)


def advances(name):
    """How wide a text is in a font that matplotlib brings along."""
    import matplotlib
    from fontTools.ttLib import TTFont

    path = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    font = TTFont(path)
    names, widths, em = font.getBestCmap(), font["hmtx"], font["head"].unitsPerEm
    return lambda text: sum(widths[names[ord(c)]][0] for c in text) / em * shapes.TEXT


def test_no_text_is_wider_than_it_is_taken_to_be():
    prose, bold, code = map(advances, ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"))
    texts = [
        mark for sketch in CATALOGUE for mark in sketch.draw().marks if isinstance(mark, Words)
    ]
    assert len(texts) > 300
    for mark in texts:
        parts = mark.words.split("`")
        font = bold if mark.bold else prose
        width = sum(map(font, parts[::2])) + sum(map(code, parts[1::2]))
        assert 0.8 * mark.width <= width <= mark.width, mark.words
