"""`tools.sphinx_styles`: which rules of a style sheet stay."""

import pytest

from tools import sphinx_styles

USED = {"a", "b", "w-1/2"}


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".a{x:1}.c{x:2}", ".a{x:1}"),
        (".a .c,.a.b,p{x:1}", ".a.b,p{x:1}"),
        ("#c{x:1}#b>p{x:1}", "#b>p{x:1}"),
        (".a:not(.c,.d:is(.e)){x:1}", ".a:not(.c,.d:is(.e)){x:1}"),
        (":is(.c,.d) p,.c{x:1}", ":is(.c,.d) p{x:1}"),
        ('.a[href$=".c"]{x:1}', '.a[href$=".c"]{x:1}'),
        (r".w-1\/2{x:1}.w-1\/3{x:1}", r".w-1\/2{x:1}"),
        ("@media print{.c{x:1}.b{x:1}}@media (width<1px){.c{x:1}}", "@media print{.b{x:1}}"),
        ("@font-face{src:url(c.ttf)}", "@font-face{src:url(c.ttf)}"),
        ("@keyframes c{from{x:1}to{x:2}}", "@keyframes c{from{x:1}to{x:2}}"),
        ('@charset "UTF-8";.a{x:1}', '@charset "UTF-8";.a{x:1}'),
        ('.a{content:"}.c{"}.c{x:1}', '.a{content:"}.c{"}'),
        ("/* .c{ */.a{x:1}", ".a{x:1}"),
        (".bs-tooltip-end{x:1}", ".bs-tooltip-end{x:1}"),
    ],
)
def test_what_stays_of_a_style_sheet(css, kept):
    assert sphinx_styles.kept(css, USED) == kept


def test_words_are_those_of_pages_and_scripts(tmp_path):
    (tmp_path / "_static").mkdir()
    page = '<p class="a b" id="c">text</p><script>list.add("d-e")</script>'
    (tmp_path / "p.html").write_text(page)
    (tmp_path / "_static" / "x.js").write_text('node.className = "f";')
    found = sphinx_styles.words(tmp_path)
    assert {"a", "b", "c", "d-e", "f"} <= found and "text" not in found
