"""The matplotlib figure: every span in its place, and one SVG for all pages."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import pallascope
from tests.pallascope.timelines import LANES, ring

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib draws these figures")

from matplotlib.collections import PolyCollection  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from pallascope.drawing.picture import LOOKS, picture  # noqa: E402
from pallascope.drawing.plot import plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def words(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_each_span_is_a_box_of_its_kind_s_colour():
    timeline = ring()
    (ax,) = pallascope.plot(timeline).axes
    expected = {}
    for box in picture(timeline).boxes:
        expected.setdefault(box.span.kind, []).append((box.start, box.stop))
    patches = [c for c in ax.collections if isinstance(c, PolyCollection)]
    found = [
        sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in c.get_paths())
        for c in patches
    ]
    assert found == [sorted(expected[kind]) for kind in LOOKS]
    for kind, patch in zip(LOOKS.values(), patches, strict=True):
        fill = patch.get_facecolor()
        assert to_hex(fill[0]).upper() == kind.fill if kind.fill else len(fill) == 0
    hatched = [kind for kind, patch in zip(LOOKS, patches, strict=True) if patch.get_hatch()]
    assert hatched == ["wait"]


def test_it_says_what_it_is():
    found = words(pallascope.plot(ring(truncated=True)))
    for text in (
        "matmul", "simulated on a machine of the tests", *LANES, "cycles", "µs", "1,000", "0.57",
        "Truncated: the kernel goes on after the end of this timeline.", "One of 132 blocks.",
        *(kind.words for kind in LOOKS.values()),
    ):  # fmt: skip
        assert text in found
    measured = pallascope.plot(ring(source="measured", machine="a GPU"))
    assert "measured on a GPU" in words(measured)


def test_slots_are_written_where_there_is_room():
    assert {"0", "1", "2"} <= {*words(pallascope.plot(ring(slots=3)))}
    crowded = words(pallascope.plot(ring(slots=3, steps=300)))
    assert "body" not in crowded


def test_arrows_are_those_of_the_picture():
    timeline = ring()
    (ax,) = plot(timeline).axes
    arrows = [t.arrow_patch for t in ax.texts if getattr(t, "arrow_patch", None)]
    assert len(arrows) == len(picture(timeline).arrows) > 0


def test_the_steady_state_is_marked():
    timeline = ring()
    (ax,) = pallascope.plot(timeline).axes
    start, stop, _ = timeline.interval()
    (line,) = ax.get_lines()
    assert (min(line.get_xdata()), max(line.get_xdata())) == (start, stop)
    assert "steady state" in words(pallascope.plot(timeline))
    assert "steady state" not in words(pallascope.plot(ring(steps=2)))


def test_a_window_is_what_the_axis_shows():
    (ax,) = pallascope.plot(ring(), start=500, stop=900).axes
    assert ax.get_xlim() == (500, 900)


def test_it_draws_into_given_axes():
    figure = Figure()
    above, below = figure.subplots(2)
    assert plot(ring(), ax=above) is figure
    assert plot(ring(source="measured"), ax=below) is figure
    assert len(above.collections) == len(below.collections) == len(LOOKS)


def test_the_svg_is_one_for_light_and_dark_pages():
    hostile = """<script>alert("1")</script>'&"""
    figure = pallascope.plot(ring(name=hostile, notes=(hostile,)))
    svg = figure._repr_svg_()
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith(f"{hostile}, simulated on a machine of the tests")
    assert hostile in {node.text for node in root.iter(f"{SVG}text")}
    # No colour that one of the themes would swallow, no background, no rule for the whole page.
    fills = {kind.fill.lower() for kind in LOOKS.values() if kind.fill}
    fills |= {kind.label.lower() for kind in LOOKS.values() if kind.fill}
    assert {*re.findall(r"#[0-9a-f]{6}\b", svg)} <= {*fills, "#777777"}
    assert "currentColor" in svg
    assert root.find(f".//{SVG}style") is None
    assert "<script" not in figure._repr_html_()


def test_the_same_timeline_gives_the_same_svg():
    assert pallascope.plot(ring())._repr_svg_() == pallascope.plot(ring())._repr_svg_()


def test_a_chapter_s_figure_is_light():
    assert len(pallascope.plot(ring(steps=8))._repr_html_()) < 50_000


def test_it_saves_as_files(tmp_path):
    for kind in ("svg", "png", "pdf"):
        pallascope.plot(ring()).savefig(tmp_path / f"a.{kind}")
        assert (tmp_path / f"a.{kind}").stat().st_size > 1000


def test_the_schedule_needs_no_matplotlib_until_something_is_drawn():
    code = (
        "import sys, pallascope, pallascope.timeline, pallascope.drawing.player,"
        " pallascope.drawing.perfetto, pallascope.sliders;"
        " assert not {'matplotlib', 'ipywidgets', 'IPython'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_are_no_axes():
    with pytest.raises(TypeError, match=r"^plot takes matplotlib's Axes for ax=, not a value of"):
        pallascope.plot(ring(), ax=3)
