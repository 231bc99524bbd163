"""The HTML figure: whole in itself, small, safe with any text; in a browser where there is one."""

import collections
import html.parser
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

import pallascope
from pallascope.drawing.picture import LOOKS, picture
from pallascope.drawing.player import MAX_BYTES, Setting, player
from pallascope.spans import Span
from pallascope.timeline import duration
from pipelib_book.laboratory.subjects import subjects
from tests.pallascope.timelines import LANES, ring
from tests.players import packed

HOSTILE = """</script><script>alert("x")</script><!--data--><b onclick='y'>&amp;"""


def settings(slots=(2, 3), latencies=(300, 600), **options):
    return [
        Setting({"slots": s, "latency": n}, ring(s, latency=n, **options), f"bubble {s}{n}%")
        for s in slots
        for n in latencies
    ]


def payload(figure):
    (text,) = packed(str(figure))
    return json.loads(text)


def without_scripts(figure):
    return re.sub(r"<(script|style)>.*?</\1>", "", str(figure), flags=re.DOTALL)


class Elements(html.parser.HTMLParser):
    """The elements of a page, by name, and its texts."""

    def __init__(self):
        super().__init__()
        self.names, self.texts = collections.Counter(), []

    def handle_starttag(self, tag, attrs):
        self.names[tag] += 1
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.texts.append(data)


def test_it_needs_nothing_else():
    text = str(player(settings()))
    assert not re.search(r"https?:|//cdn|@import|url\(|\bimport\b|\bfetch\b|XMLHttp", text)
    assert not re.search(r"<(link|img|iframe|object|embed)\b|\b(src|href)=", text)
    assert not re.search(r"\bid=", without_scripts(text))


def test_styles_touch_only_the_figure():
    style = re.search(r"<style>(.*?)</style>", str(player(settings())), re.DOTALL)[1]
    style = re.sub(r":(?:not|is)\([^)]*\)", "", style)
    style = re.sub(r"@media [^{]*\{((?:[^{}]*\{[^}]*\})*\s*)\}", r"\1", style)
    selectors = [s for rule in re.findall(r"([^{}]+)\{", style) for s in rule.split(",")]
    bad = [s for s in selectors if not s.strip().startswith(".pipelib-player")]
    assert len(selectors) > 60
    assert bad == []
    # Colours of the page's own, but for the palette: both themes keep them readable.
    known = {LOOKS[kind].fill for kind in LOOKS} | {LOOKS[kind].label for kind in LOOKS}
    assert {*re.findall(r"#[0-9A-Fa-f]{3,6}\b", style)} <= {*known, "#777777", "#888", "#000"}


def test_scripts_leave_no_name_behind():
    (script,) = re.findall(r"<script>(.*?)</script>", str(pallascope.player(ring())), re.DOTALL)
    assert script.startswith("(async function (figure, packed) {")
    assert not re.search(r"\b(window|globalThis)\.\w+\s*=[^=]", script)


def test_the_first_setting_stands_there_without_scripts():
    drawn = picture(ring())
    text = without_scripts(pallascope.player(ring(truncated=True)))
    assert len(re.findall(r'<rect class="b \w+" x="[\d.]+%"', text)) == len(drawn.boxes)
    assert text.count('<g class="arrow') == len(drawn.arrows)
    for words in (*LANES, "matmul", "simulated on a machine of the tests", "cycles", "µs"):
        assert f">{words}<" in text
    assert "<p>Truncated: the kernel goes on after the end of this timeline.</p>" in text
    assert "<p>One of 132 blocks.</p>" in text


def test_the_script_gets_every_setting_once():
    made = settings()
    made[2] = Setting({"slots": 3, "latency": 300}, None, "deadlock", False, "thread 1 waits")
    data = payload(player(made))
    assert data["counts"] == [2, 2]
    assert [frame["at"] for frame in data["frames"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for setting, frame in zip(made, data["frames"], strict=True):
        assert (frame["outcome"], frame["ok"]) == (setting.outcome, setting.ok)
        assert frame["details"] == setting.details
        boxes = picture(setting.timeline).boxes if setting.timeline else ()
        assert len(frame["spans"]) == len(boxes)
        assert frame["svg"].count('<rect class="b ') == (len(boxes) if frame["at"] != [0, 0] else 0)
    frame = data["frames"][1]
    drawn = picture(made[1].timeline)
    for box, (start, stop, heading, text, line, cause, lane) in zip(drawn.boxes, frame["spans"]):
        assert (start, stop, lane) == (box.span.start, box.span.stop, box.span.lane)
        assert data["texts"][heading].startswith(LANES[box.span.lane])
        assert (data["texts"][text], data["texts"][line]) == (box.span.text, box.span.line)
        if box.span.cause is not None:
            assert drawn.boxes[cause].span is made[1].timeline.spans[box.span.cause]
    wait = next(i for i, box in enumerate(drawn.boxes) if box.span.kind == "wait")
    heading = data["texts"][frame["spans"][wait][2]]
    assert heading == "compute thread 0 · wait · step 0 · slot 0"


def test_the_title_is_the_shown_timeline_s_name():
    made = [Setting({"kernel": name}, ring(name=name)) for name in ("A", "B")]
    made.insert(1, Setting({"kernel": "none"}, None, "ValueError", False))
    figure = player(made)
    assert [frame["title"] for frame in payload(figure)["frames"]] == ["A", "A", "B"]
    text = without_scripts(figure)
    assert "<strong>A</strong>" in text
    assert 'aria-label="A: timeline"' in text


def test_the_steady_state_is_marked():
    text = without_scripts(pallascope.player(ring()))
    assert text.count('<g class="steady">') == 1 and ">steady state</text>" in text
    start, stop, _ = ring().interval()
    assert f"steady state from cycle {start:,.0f} to {stop:,.0f}" in text
    assert "steady state" not in without_scripts(pallascope.player(ring(steps=2)))


def test_the_legend_has_the_kinds_of_the_setting_that_is_shown():
    loads = Span(2, 0, 9, "load"), Span(0, 0, 9, "wait")
    made = [
        Setting({"n": 1}, ring(spans=loads, cycles=9.0)),
        Setting({"n": 2}, ring(spans=(*loads, Span(3, 0, 9, "wgmma")), cycles=9.0)),
    ]
    text = without_scripts(player(made))
    assert re.findall(r'<li data-kind="(\w+)"( hidden)?>', text) == [
        ("load", ""),
        ("wgmma", " hidden"),
        ("wait", ""),
    ]
    assert [frame["kinds"] for frame in payload(player(made))["frames"]] == [
        ["load", "wait"],
        ["load", "wgmma", "wait"],
    ]


def test_what_stops_for_ever_has_no_length():
    made = [
        Setting({"slots": 1}, ring(stuck=True, cycles=9000), "deadlock", False),
        Setting({"slots": 2}, ring(cycles=4000), "no finding"),
        Setting({"slots": 3}, ring(cycles=3000), "no finding"),
    ]
    frames = payload(player(made))["frames"]
    assert [frame["length"] for frame in frames] == [
        "stops at 9,000 cycles",
        "4,000 cycles, 2.28 µs",
        "3,000 cycles, 1.71 µs, 75% of the longest",
    ]
    assert [frame["share"] for frame in frames] == [0, 1, 0.75]
    assert '<p class="total">stops at 9,000 cycles</p>' in without_scripts(player(made))


def test_code_in_details_and_notes_is_shown_as_code():
    details = "It waits for `a[0]`, and `b<c>`; one ` alone\nand ` another stay."
    timeline = ring(notes=("thread 0 waits on `d`",))
    text = without_scripts(player([Setting({}, timeline, "deadlock", False, details)]))
    assert "for <code>a[0]</code>, and <code>b&lt;c&gt;</code>; one ` alone\nand ` another" in text
    assert "<p>thread 0 waits on <code>d</code></p>" in text


def test_room_for_details_only_where_there_are_some():
    made = [Setting({"slots": s}, ring(s)) for s in (2, 3)]
    assert '<div class="result" role' in without_scripts(player(made))
    made[1] = replace(made[1], details="Bound: memory.")
    assert '<div class="result roomy" role' in without_scripts(player(made))


def test_it_does_not_tell_where_it_was_made():
    here = "/some/where/ipykernel_12/345.py:7"
    timeline = ring()
    lines = [replace(span, line=f"{__file__}:{i}") for i, span in enumerate(timeline.spans)]
    timeline = replace(timeline, spans=(*lines[:-1], replace(lines[-1], line=here)))
    made = [
        Setting({"n": n}, timeline, "deadlock", False, f"It waits at {__file__}:{n}.")
        for n in (1, 2)
    ]
    figure = player(made)
    data = payload(figure)
    assert [frame["details"] for frame in data["frames"]] == [
        f"It waits at tests/pallascope/drawing/test_player.py:{n}." for n in (1, 2)
    ]
    assert {"tests/pallascope/drawing/test_player.py:0", "cell:7"} <= {*data["texts"]}
    assert not re.search(r"/\w+/(schedule|ipykernel)", "".join([str(figure), *packed(str(figure))]))


def test_sliders_are_named_and_say_their_values():
    text = without_scripts(player(settings()))
    assert text.count('type="range"') == 3  # two sliders and the time
    assert "<span>latency</span>" in text
    assert 'data-values="[&quot;300&quot;, &quot;600&quot;]"' in text
    alone = without_scripts(pallascope.player(ring()))
    assert alone.count('type="range"') == 1
    fixed = without_scripts(player(settings(slots=(2,))))
    output = r'<p><span>slots</span> <output [^>]*style="--longest:1">2</output></p>'
    assert re.search(output, fixed)


def test_controls_have_names():
    text = without_scripts(player(settings()))
    pattern = r"<button[^>]*>\w*|<input[^>]*scrub[^>]*>|<select[^>]*>|<div class=\"stage\"[^>]*>"
    found = re.findall(pattern, text)
    assert len(found) > 9
    for tag in found:
        assert "aria-label=" in tag or not tag.endswith(">"), tag


def test_only_the_outcome_and_the_operation_are_read_out_when_they_change():
    text = without_scripts(player(settings()))
    tags = re.findall(r"<[^>]+ (?:role=\"status\"|aria-live)[^>]*>|<output[^>]*>", text)
    live = [tag for tag in tags if 'aria-live="off"' not in tag]
    assert [re.search(r'class="([\w ]+)"', tag)[1] for tag in live] == ["result", "saying"]
    assert text.count("<output") == 3  # two sliders and the clock


def test_a_picture_has_a_name_or_is_hidden_from_readers_who_do_not_see_it():
    pictures = re.findall(r"<svg (?!x=)[^>]*>", without_scripts(player(settings())))
    named = [tag for tag in pictures if 'role="img"' in tag and 'aria-label="' in tag]
    hidden = [tag for tag in pictures if 'aria-hidden="true"' in tag]
    assert len(named) == 1  # the timeline; its lanes' names, the legend and the buttons are not
    assert len(hidden) == len(pictures) - 1 > len(LOOKS)


def test_text_stays_text():
    spans = (
        Span(0, 0, 100, "scope", HOSTILE, scope=HOSTILE),
        Span(0, 0, 100, "access", HOSTILE, line=HOSTILE),
    )
    timeline = ring(
        name=HOSTILE, lanes=(HOSTILE,), spans=spans, machine=HOSTILE, notes=(HOSTILE,), cycles=100
    )
    made = [Setting({HOSTILE: value}, timeline, HOSTILE, False, HOSTILE) for value in (HOSTILE, 2)]
    found = Elements()
    found.feed(str(player(made)))
    assert found.names["script"] == found.names["style"] == 1
    assert found.names["b"] == 0
    assert found.texts.count(HOSTILE) == 8
    frames = payload(player(made))["frames"]
    assert [frame["outcome"] for frame in frames] == [HOSTILE, HOSTILE]
    again = Elements()
    again.feed(frames[1]["svg"])
    assert {*again.names} == {"svg", "text", "div", "rect", "line", "g"}


def test_a_chapter_s_figure_is_under_its_limit():
    made = settings(slots=(1, 2, 3, 4), latencies=(300, 600, 900, 1200), steps=16)
    figure = player(made)
    assert len(str(figure).encode()) < MAX_BYTES == 200_000
    assert "matmul" in repr(figure)


def test_a_figure_that_would_be_larger_is_refused():
    made = settings(slots=(1, 2, 3, 4), latencies=(300, 600, 900, 1200), steps=150)
    message = (
        r"The figure has \d{3},\d{3} bytes for 2\d,\d{3} spans in 16 settings, but 200,000 are the"
        r" most for a page that loads at once: trace fewer steps with max_steps=, draw a window"
    )
    with pytest.raises(ValueError, match=message):
        player(made)
    assert player(made, steps=range(8))


def test_settings_must_fill_the_sliders():
    with pytest.raises(ValueError, match="There are 0 settings: a figure needs 1 at least"):
        player([])
    message = (
        "There are 3 settings, 3 of them different, but the sliders slots, latency have 2 x 2 = 4"
        " positions: each needs its setting, once."
    )
    with pytest.raises(ValueError, match=message):
        player(settings()[:3])
    with pytest.raises(ValueError, match=r"values for \['slots', 'latency'\], another for \[\]"):
        player([*settings()[:1], Setting({}, ring())])


def test_it_saves_a_page_of_its_own(tmp_path):
    figure = pallascope.player(ring(name="a<b"))
    figure.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>a&lt;b</title>" in page
    assert 'content="light dark"' in page
    assert str(figure) in page


# ---- In a browser --------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium, which is not on the path"
)
# What a reader does to the page's players, and what was seen of it, into `found`.
READER = """
<pre></pre><script>
addEventListener("error", (event) => document.body.append("ERROR: " + event.message));
const names = Object.keys(window).length;
setTimeout(async () => {
  const press = (node, key, shiftKey) =>
    node.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true }));
  const drag = (slider, value) => {
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
  };
  const found = {};
  %s
  document.querySelector("pre").textContent = JSON.stringify(found);
}, 500);
</script>
"""
STEPS = """
  const [one, two] = document.querySelectorAll("figure");
  const text = (name) => one.querySelector(name).textContent;
  const count = (name) => one.querySelectorAll(name).length;
  const stage = one.querySelector(".stage");
  found.ready = [one.dataset.ready, two.dataset.ready];
  press(stage, "ArrowRight");
  found.first = text(".what");
  press(stage, "ArrowRight");
  press(stage, "ArrowRight", true);
  press(stage, "ArrowRight", true);
  found.wait = text(".what") + " " + text(".sentence");
  found.why = text(".why");
  found.marked = [count(".b.chosen"), count(".b.cause"), count(".arrow.chosen")];
  const slider = one.querySelector(".sliders input");
  drag(slider, 1);
  found.moved = [text(".outcome"), text(".sliders output"), count(".stage .b")];
  found.title = [text("strong"), one.getAttribute("aria-label")];
  found.other = two.querySelectorAll(".b.chosen").length;
  drag(one.querySelector(".scrub"), 1000);
  found.end = text(".clock");
  press(stage, " ");
  found.playing = [one.classList.contains("playing"), one.querySelector(".saying").ariaLive];
  press(stage, " ");
  found.paused = [!one.classList.contains("playing"), one.querySelector(".saying").ariaLive];
  drag(slider, 2);
  found.none = [text(".outcome"), text(".details"), text(".stage"), text("strong")];
  found.code = text(".details code");
  found.leaked = Object.keys(window).length - names;
"""
WALK = """
  for (const figure of document.querySelectorAll("figure")) {
    const said = (name) => figure.querySelector(name).textContent;
    const count = said(".what"), steps = new Set();
    for (let i = 0; i < 9; i++) {
      press(figure.querySelector(".stage"), "ArrowRight");
      steps.add(said(".sentence"));
    }
    drag(figure.querySelector(".scrub"), 650);
    const filled = figure.querySelectorAll(".stage .b.scope.alone").length;
    found[said("strong")] = [count, filled, ...steps, said(".sentence")];
  }
"""


TOOLS = """
  const [one] = document.querySelectorAll("figure");
  const all = (name) => [...one.querySelectorAll(name)];
  const text = (name) => one.querySelector(name).textContent;
  const click = (name) => one.querySelector(name).click();
  const stage = one.querySelector(".stage"), slider = one.querySelector(".sliders input");
  const ticks = () => all(".stage .tick").map((tick) => tick.firstChild.textContent);
  found.few = ticks();
  press(stage, "+");
  press(stage, "+");
  found.more = ticks().length > 2 * found.few.length;
  press(stage, "-");
  press(stage, "-");
  found.again = ticks().join() === found.few.join();
  const width = (part) => one.querySelector(`${part} .time`).getBoundingClientRect().width;
  found.explained = [all(".meaning").length, one.querySelector(".meaning").hidden];
  click(".mean");
  found.explained.push(one.querySelector(".meaning").hidden);
  click('[data-do="keep"]');
  drag(slider, 1);
  found.kept = [text(".kept strong"), all(".kept .b").length, all(".stage .b").length];
  found.scale = width(".kept") / width(".stage");
  click('[data-do="keep"]');
  found.let = one.querySelector(".kept").hidden;
  const told = [], event = (detail) => new CustomEvent("pipelib-mark", { detail });
  const mark = (detail) => one.dispatchEvent(event(detail));
  document.addEventListener("pipelib-line", (event) => event.detail && told.push(event.detail));
  press(stage, "ArrowRight");
  found.line = told[0];
  mark(told[0]);
  found.same = all(".stage .b.same").length;
  mark("");
  found.same -= all(".stage .b.same").length;
  location.hash = "#player-1:0@700";
  await new Promise((done) => setTimeout(done, 300));
  found.followed = [slider.value, text(".sliders output"), text(".clock")];
  location.hash = "#player-1:9@700";
  await new Promise((done) => setTimeout(done, 300));
  found.unknown = text(".sliders output");
  press(stage, "l");
  await new Promise((done) => setTimeout(done, 300));
  found.link = [location.hash, text(".what").includes("link")];
"""


def seen_in_a_browser(tmp_path, figures, does):
    """What is in `found` after a reader has done what the script `does` says."""
    page = f"<!doctype html><meta charset=utf-8><body>{figures}{READER % does}"
    (tmp_path / "page.html").write_text(page, "utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "ERROR: " not in done.stdout.partition("</script>\n</body>")[2] + done.stderr
    return json.loads(re.search(r"<pre>(\{.*?)</pre>", done.stdout, re.DOTALL)[1])


@NEEDS_CHROMIUM
def test_a_scope_is_passed_over_and_left_blank_only_where_something_begins_within_it(tmp_path):
    spans = {
        "Init": Span(1, 0, 10, "scope", "Init", scope="Init"),
        "all steps": Span(0, 0, 90, "scope", "all steps", scope="all steps"),
        "wait produced": Span(0, 5, 20, "wait", "wait produced"),
        "load": Span(1, 10, 60, "scope", "load", scope="load"),
        "multiply": Span(0, 20, 70, "scope", "multiply", scope="multiply"),
        "wgmma": Span(0, 30, 50, "wgmma", "wgmma"),
    }
    # The names of what is drawn; then what is stepped to, and shown at cycle 65.
    walks = {
        "a profile": (["Init", "load", "multiply"], ["Init", "load", "multiply"], "multiply"),
        "nested scopes": (["all steps", "multiply"], ["multiply"], "multiply"),
        "waits beside": (
            ["wait produced", "multiply", "load"],
            ["wait produced", "load", "multiply"],
            "multiply",
        ),
        "a simulation": (["all steps", "multiply", "wgmma"], ["wgmma"], "wgmma"),
    }
    figures = [
        pallascope.player(ring(name=name, spans=tuple(spans[each] for each in drawn), cycles=100))
        for name, (drawn, _, _) in walks.items()
    ]
    assert seen_in_a_browser(tmp_path, "".join(map(str, figures)), WALK) == {
        name: [
            f"{len(steps)} operation{'s' * (len(steps) > 1)}",
            sum(spans[step].kind == "scope" for step in steps),
            *steps,
            shown,
        ]
        for name, (_, steps, shown) in walks.items()
    }


@NEEDS_CHROMIUM
def test_in_a_browser(tmp_path):
    made = [
        Setting({"slots": s}, ring(s, steps=4, name=f"ring {s}"), f"bubble {s}") for s in (2, 3)
    ]
    made.append(Setting({"slots": 4}, None, "deadlock", False, "thread 1 waits on `x[0]`, alone"))
    found = seen_in_a_browser(tmp_path, f"{player(made)}{pallascope.player(ring())}", STEPS)
    three = picture(made[1].timeline)
    assert found == {
        "ready": ["true", "true"],
        "first": "memory thread · issue, arrive · step 0 · slot 0 · 20 cycles, 0 to 20",
        "wait": "compute thread 0 · wait · step 0 · slot 0 · 260 cycles, 645 to 905"
        " waits for the tensor core  matmul.py:41",
        "why": "Goes on after: tensor core · wgmma · step 0 · slot 0, multiplies 128x64x128",
        "marked": [1, 1, 1],
        "moved": ["bubble 3", "3", len(three.boxes)],
        "title": ["ring 3", "ring 3: timeline"],
        "other": 0,
        "end": f"{three.stop:,.0f} cycles\n{1e6 * three.stop / 1.755e9:.2f} µs",
        "playing": [True, "off"],
        "paused": [True, "polite"],
        "none": [
            "deadlock",
            "thread 1 waits on x[0], alone",
            "There is no timeline to draw for this setting.",
            "ring 2",
        ],
        "code": "x[0]",
        "leaked": 0,
    }


@NEEDS_CHROMIUM
def test_its_tools_in_a_browser(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("load(a)\n")
    short, long = (
        replace(made, spans=tuple(replace(span, line=f"{source}:1") for span in made.spans))
        for made in (ring(2, steps=4), ring(3, steps=8))
    )
    made = [Setting({"slots": 2}, short, "no finding"), Setting({"slots": 3}, long, "race", False)]
    found = seen_in_a_browser(tmp_path, str(player(made)), TOOLS)
    boxes = [len(picture(each).boxes) for each in (short, long)]
    few, scale = found.pop("few"), found.pop("scale")
    assert few[0] == "0" and len(few) >= 3
    assert scale == pytest.approx(short.cycles / long.cycles, rel=0.01)
    seconds = 700 / short.clock_hz
    assert found == {
        "more": True,
        "again": True,
        "explained": [1, True, False],
        "kept": [f"slots 2 · {duration(short, 'µs')}, 75% of the longest · no finding", *boxes],
        "let": True,
        "line": "load(a)",
        "same": boxes[1],
        "followed": ["0", "2", f"700 cycles\n{1e6 * seconds:.2f} µs"],
        "unknown": "2",
        "link": ["#player-1:0@700", True],
    }


ROUND = """
  const [one, none] = document.querySelectorAll("figure");
  const button = one.querySelector('[data-do="round"]');
  const count = (name) => one.querySelectorAll(name).length;
  found.hidden = [button.hidden, none.querySelector('[data-do="round"]').hidden];
  press(one, "c");
  const said = () => [...one.querySelectorAll(".saying p")].map((node) => node.textContent);
  found.shown = [count(".b.way"), count(".ways circle"), count(".ways line")];
  found.said = said().slice(0, 2);
  press(one, "ArrowRight");
  found.stepped = said()[0];
  button.click();
  found.away = [count(".b.way"), count(".ways"), button.getAttribute("aria-pressed")];
"""


@NEEDS_CHROMIUM
def test_the_critical_cycle_in_a_browser(tmp_path):
    subject = next(each for each in subjects() if each.name == "ring")
    timeline = pallascope.simulate(subject.trace(2), pallascope.H200)
    figure = pallascope.player(timeline)
    (frame,) = payload(figure)["frames"]
    ways = frame["round"]
    found = seen_in_a_browser(tmp_path, f"{figure}{pallascope.player(ring())}", ROUND)
    assert found.pop("stepped").startswith("compute thread 0 ")
    found["said"] = [*map(html.unescape, found["said"])]
    assert found == {
        "hidden": [False, True],
        "shown": [len(ways), len(ways), len(ways) - 1],
        "said": ["One round of the critical cycle", f"Critical cycle: {timeline.critical()}."],
        "away": [0, 0, "false"],
    }


def test_a_round_goes_from_a_load_to_the_load_of_its_slot():
    subject = next(each for each in subjects() if each.name == "ring")
    timeline = pallascope.simulate(subject.trace(2), pallascope.H200)
    spans, found = timeline.spans, timeline.critical()
    ways = [spans[i] for i in found.round_in(spans, 0, timeline.cycles)]
    assert len(ways) == len(found.hops) + 1
    assert [way.kind for way in (ways[0], ways[-1])] == ["load", "load"]
    assert ways[-1].start - ways[0].start == pytest.approx(found.cycles)
    assert ways[-1].slot == ways[0].slot and ways[-1].step[0] == ways[0].step[0] + found.steps
    assert found.round_in(spans, 0, 100) == []
