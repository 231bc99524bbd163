"""The book's parts, its front page, and what pages say of themselves."""

import json
import re

import nbformat
import pytest

from tools import door, execution, notebooks, parts, sphinx_door

# ---- Parts ---------------------------------------------------------------------------------------


def test_the_toc_has_every_chapter_once_in_the_order_of_their_numbers():
    found = [chapter for part in parts.parts() for chapter in part.chapters]
    assert [chapter.number for chapter in found] == [*range(1, len(found) + 1)]
    files = [(execution.ROOT / chapter.page).with_suffix(".md") for chapter in found]
    assert files == notebooks.chapters()
    assert "" not in {part.caption for part in parts.parts()}


def test_how_to_read_comes_before_the_first_chapter():
    text = parts.TOC.read_text()
    assert text.index("how_to_read.md") < text.index("01_introduction")


@pytest.fixture
def toc(tmp_path):
    (tmp_path / "1_a.md").write_text("# A long heading\n\nfew words\n")
    (tmp_path / "how.md").write_text("# How\n")
    toc = tmp_path / "_toc.yml"
    toc.write_text(
        "parts:\n- chapters: [{file: how.md}]\n"
        "- {caption: One, chapters: [{file: 1_a.ipynb, title: Short}]}\n"
    )
    return toc


def test_a_part_has_the_chapters_of_its_entry(toc, monkeypatch):
    monkeypatch.setattr(parts, "minutes", lambda md: len(md.stem))
    (part,) = parts.parts(toc)
    assert part == ("One", (("1_a", 1, "Short", 3),)) and part.minutes == 3
    toc.write_text(toc.read_text().replace(", title: Short", ""))
    parts.parts.cache_clear()
    assert parts.parts(toc)[0].chapters[0].title == "A long heading"


def test_a_chapter_that_is_not_there_is_said():
    assert parts.named("buffering").page == "book/03_buffering"
    with pytest.raises(LookupError) as refusal:
        parts.named("blackwell")
    assert str(refusal.value) == (
        "_toc.yml has no chapter NN_blackwell, but the front page leads to it: name another one in"
        " tools/door.py."
    )


CELL = "```{{code-cell}} ipython3\n{}\n```\n\n"
HEAD = "---\nkernelspec: {name: python3, display_name: Python}\n---\n\n"


def minutes(tmp_path, text):
    md = tmp_path / "1_a.md"
    md.write_text(HEAD + CELL.format("import sys\n" * 400) + text)  # the cell that sets up
    return parts.minutes(md)


def test_reading_takes_a_minute_for_so_many_words_or_lines(tmp_path):
    assert minutes(tmp_path, "word " * 5 * parts.WORDS) == 5
    assert minutes(tmp_path, "word " * 6 * parts.WORDS) == 10
    assert minutes(tmp_path, CELL.format("x = 1\n\n" * 8 * parts.LINES)) == 10


def test_what_is_folded_away_and_exercises_take_no_time(tmp_path):
    words, lines = "word " * 900, "x = 1\n" * 200
    folded = f":::{{dropdown}} Answer\n{words}\n:::\n\n"
    hint = f":::{{admonition}} Hint\n:class: dropdown\n{words}\n:::\n\n"
    tags = "hide-cell", "hide-input"
    cells = "".join(CELL.format(f":tags: [{tag}]\n\n{lines}") for tag in tags)
    exercises = f"## Exercises\n\n{words}\n\n{CELL.format(lines)}"
    assert minutes(tmp_path, f"one word\n\n{folded}{hint}{cells}{exercises}") == parts.STEP
    assert minutes(tmp_path, folded.replace("{dropdown}", "{note}")) > parts.STEP
    assert minutes(tmp_path, exercises.replace("Exercises", "Examples")) > parts.STEP


MARKDOWN = {"text/markdown": "word " * 6 * parts.WORDS}
REPORT = {"text/markdown": "```text\n" + "a b c\n" * 6 * parts.LINES + "```"}
FIGURE = {"text/html": "<svg></svg>", "text/plain": "Figure"}


@pytest.mark.parametrize(
    ("data", "times", "told"),
    [(MARKDOWN, 0, 5), (MARKDOWN, 1, 10), (REPORT, 1, 10), (FIGURE, 9, 5), (FIGURE, 11, 10)],
)
def test_what_a_cell_has_put_out_takes_time(tmp_path, data, times, told):
    md = tmp_path / "1_a.md"
    md.write_text(HEAD + CELL.format("import sys") + CELL.format("show()"))
    notebook = notebooks.read_source(md)
    notebook.cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data)] * times
    notebooks.write_published(notebook, md.with_suffix(".ipynb"))
    assert parts.minutes(md) == told


def test_no_early_chapter_takes_more_than_forty_minutes():
    early = [each for part in parts.parts()[:2] for each in part.chapters]
    assert len(early) == 6 and [each for each in early if each.minutes > 40] == []


@pytest.mark.parametrize(
    ("minutes", "words"), [(0, "0 min"), (45, "45 min"), (60, "1 h"), (80, "1 h 20 min")]
)
def test_minutes_in_words(minutes, words):
    assert parts.duration(minutes) == words


# ---- The front page ------------------------------------------------------------------------------


def test_more_slots_keep_the_tensor_core_busier_and_take_less_time():
    settings = door.settings()
    assert [dict(setting.values) for setting in settings] == [{"slots": n} for n in door.SLOTS]
    cycles = [setting.timeline.cycles for setting in settings]
    assert cycles == sorted(cycles, reverse=True) and all(setting.ok for setting in settings)


def test_a_kernel_with_a_finding_does_not_come_onto_the_front_page():
    bad = door.settings()[0]
    bad = type(bad)({"slots": 9}, None, "deadlock", ok=False, details="Both wait.")
    with pytest.raises(ValueError, match=r"with \{'slots': 9\} came to 'deadlock', .*Both wait\."):
        door._in_a_word(bad)


def test_a_number_of_the_front_page_follows_its_record(monkeypatch):
    before = door.numbers()
    assert re.search(r"^\d+% → \d+%$", before, re.MULTILINE)
    monkeypatch.setattr(door.model, "mean_error", lambda rows: 0.123)
    after = door.numbers()
    changed = [new for old, new in zip(before.split("\n"), after.split("\n")) if old != new]
    assert changed == ["12.3%"]


# ---- What pages say ------------------------------------------------------------------------------


def test_a_description_has_whole_sentences_as_far_as_there_is_room():
    first, second = "A first one, e.g. this.", "Then another."
    assert sphinx_door.beginning(f"{first} {second}") == f"{first} {second}"
    long = "So " + "long " * 40 + "a sentence."
    assert sphinx_door.beginning(f"{first} {long} {second}") == first
    assert sphinx_door.beginning(f"{long} {second}") == long


def test_tags_are_safe_and_leave_out_what_is_not_known():
    found = sphinx_door.tags('A "b" & <c>', "", "u", "p", "B")
    assert '<meta property="og:title" content="A &quot;b&quot; &amp; &lt;c&gt;" />' in found
    assert "description" not in found


def test_the_schemas_lie_where_they_say(tmp_path):
    sphinx_door.serve_schemas(tmp_path)
    found = {path.name: json.loads(path.read_text("utf-8")) for path in tmp_path.iterdir()}
    assert {*found} == {f"{name}.schema.json" for name in ("advise", "report", "compile", "tune")}
    (home,) = re.findall(r" baseurl: (\S+)", (execution.ROOT / "_config.yml").read_text())
    assert [schema["$id"] for schema in found.values()] == [home + name for name in found]
