"""`tools.sphinx_site`: formulas and corrections, on small made-up pages."""

import json
import re

import pytest

import pallascope
from tests.pallascope import build
from tools import sphinx_site


def corrected(page):
    for wrong, right in sphinx_site.CORRECTIONS:
        page = re.sub(wrong, right, page, flags=re.DOTALL)
    return page


def test_a_formula_becomes_mathml():
    found = sphinx_site.mathml(r"\sum_{k} a_{i,k}")
    assert found.startswith('<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert "<msub><mi>a</mi>" in found


def test_aligned_formulas_stand_in_columns():
    found = sphinx_site.mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}", "block")
    assert found.count("<mtr>") == 2 and "&<" not in found


@pytest.mark.parametrize(
    ("formula", "unknown"), [(r"\frobnicate x", r"'\\frobnicate'"), ("a & b", "'&'")]
)
def test_a_formula_that_would_show_as_source_is_refused(formula, unknown):
    with pytest.raises(ValueError) as refusal:
        sphinx_site.mathml(formula)
    assert str(refusal.value) == (
        f"The formula {formula!r} has {unknown}, which latex2mathml leaves as it is: write it"
        " with other commands."
    )


@pytest.mark.parametrize(
    ("page", "after"),
    [
        ('<script src="a.js"></script>', '<script defer src="a.js"></script>'),
        ('<script src="a.js" defer></script>', '<script src="a.js" defer></script>'),
        ('<script src="a.js" async></script>', '<script src="a.js" async></script>'),
        ("<script>let a = 1</script>", "<script>let a = 1</script>"),
        (
            '<span class="sig-paren">(</span> <dl><dd>x</dd></dl>)<dl><dd>y</dd></dl>',
            '<span class="sig-paren">(</span><span class="sig-line" style="display: block;'
            ' padding-left: 2em">x</span>)<dl><dd>y</dd></dl>',
        ),
        ('<div role="list" class="citation-list">', '<div class="citation-list">'),
        ('<i class="fab fa-x"></i>', '<i aria-hidden="true" class="fab fa-x"></i>'),
        ('<i style="width:1%"></i>', '<i style="width:1%"></i>'),
        (
            '<details class="admonition hide above-input">\n'
            '<summary aria-label="Toggle hidden content">\n'
            '<p class="collapsed admonition-title">Show code cell content</p>'
            '<p class="expanded admonition-title">Hide code cell content</p>\n</summary>\n<div>',
            '<details class="fold"><summary>Solution</summary>\n<div>',
        ),
        (
            '<details class="admonition hide above-input"><summary>'
            "<p>Show code cell source</p></summary><pre>",
            '<details class="fold quiet"><summary>Code</summary><pre tabindex="0">',
        ),
        ("<title>A &#8212; A</title>", "<title>A</title>"),
        ("<title>B &#8212; A</title>", "<title>B &#8212; A</title>"),
        (
            '<td class="text-right"><p>719 ± 0.8% (87.3%)</p></td>',
            '<td class="text-right number"><p>719 ± 0.8% (87.3%)</p></td>',
        ),
        (
            '<td class="text-right"><p>2.9e-04</p></td>',
            '<td class="text-right number"><p>2.9e-04</p></td>',
        ),
        ('<td class="text-right"><p>slow</p></td>', '<td class="text-right"><p>slow</p></td>'),
        ("<td><p>64 x 64</p></td>", '<td class="number"><p>64 x 64</p></td>'),
        ("<td><p>4,096 x 64</p></td>", '<td class="number"><p>4,096 x 64</p></td>'),
        ("<td><p>64 x a</p></td>", "<td><p>64 x a</p></td>"),
        ('<div role="list" class="menu">', '<div role="list" class="menu">'),
    ],
)
def test_what_is_corrected(page, after):
    assert corrected(page) == after


def test_a_style_that_all_players_bring_stands_once():
    page = "<style>a {}</style><p>1</p><style>b {}</style><style>a {}</style>"
    assert sphinx_site.without_twins(page) == "<style>a {}</style><p>1</p><style>b {}</style>"


def test_a_script_that_all_players_bring_stands_once():
    script = "async function (figure, packed) {\n  (a)(b);\n}"
    call = '(document.currentScript.closest("figure"),"{}")'
    players = [f"<script>({script}){call.format(data)}</script>" for data in ("one", "two")]
    state = json.dumps(players[0])  # as the state of a widget has it
    page = sphinx_site.without_twins(state + "<p>1</p>".join(players))
    name = "pipelibPlayer0"
    assert page == (
        f"{state}<script>var {name}={script};{name}{call.format('one')}</script><p>1</p>"
        f"<script>{name}{call.format('two')}</script>"
    )


def test_a_page_of_real_players_has_their_script_once():
    page = (
        str(pallascope.player(pallascope.simulate(build.program([build.read(0)]), pallascope.H200)))
        * 3
    )
    assert page.count("async function (figure, packed)") == 3
    once = sphinx_site.without_twins(page)
    assert once.count("async function (figure, packed)") == 1
    assert len(re.findall(r"pipelibPlayer\d+\(document.currentScript", once)) == 3
