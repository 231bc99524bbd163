"""No number in prose that a measurement gave: such numbers are outputs of cells.

The model. A *claim* is a number with a unit of time, rate, frequency or power, a percentage, or a
ratio of two times or speeds ("1.3x", "twice as fast", "a third slower"), in the text between the
code cells of a chapter, or of a page beside them. A claim may stand

- where its paragraph cites a source;
- where it is what an exercise asks: "1.4 times as fast" if a cell of the chapter grades `by=1.4`;
- in `ALLOWED`, with the reason why no measurement gave it.

Not covered: numbers of other units (bytes, registers: a GPU's manual has them), claims without a
number ("much faster"), and what stands as code in the text.
"""

import re

import pytest

from tools import notebooks

COUNTS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|"
    "fifty|hundred|thousand"
)
NUMBER = rf"(?:(?<![\w.])\d[\d,.]*|\b(?:{COUNTS})\b)"
UNIT = (
    r"(?:(?:[µunm]s|s|(?:micro|nano|milli)?seconds?|(?:clock\s)?cycles?|clocks"
    r"|[kMGT]i?B/s|[kMGTP]?FLOP/s|[kMG]?Hz|k?W|watts?|percent"
    r"|(?:[kMGT]i?B|bytes|FLOP|operations)\s(?:a|per)\s(?:second|cycle|clock))\b|%)"
)
TIMES = rf"(?:\b(?:twice|half)|\ba\s(?:third|quarter|fifth|sixth|tenth)|{NUMBER}\s+times)"
COMPARED = (
    r"(?:as\s+(?:fast|slow|long|quick|quickly|much\s+time)|faster|slower|quicker"
    r"|the\s+(?:speed|time))"
)
CLAIM = re.compile(
    rf"{NUMBER}[\s-]?{UNIT}|{TIMES}\s+{COMPARED}\b|(?<![\w.])\d[\d.]*x\b"
    rf"|\bfactor\s+of\s+{NUMBER}",
    re.IGNORECASE,
)

# By page: each other claim that stands without a source, and why.
ALLOWED = {
    "01_introduction": {
        "half the time": "arithmetic: the longer of two equal times, over their sum",
        "twice the speed": "the same",
    },
    "02_memory_wall": {
        "factor of 2": "arithmetic: two equal times over the longer of them",
    },
    "15_attention": {
        "twice as long": "arithmetic: steps of 128 keys beside steps of 64",
    },
    "17_your_own_kernel": {"ten times as long": "arithmetic: a product of ten times the K"},
}


def claims(text):
    """The claims of a text in Markdown, each in one line."""
    plain = re.sub(r"`[^`\n]*`(?!\w)|\$[^$]*\$", "", re.sub(r"\{cite\}`[^`]*`", "{cite}", text))
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.)\s)", plain)
    found = (match for item in items if "{cite}" not in item for match in CLAIM.finditer(item))
    return [" ".join(match[0].split()).rstrip(".,") for match in found]


def asked(code):
    """The claims that are what some cells' grades ask for."""
    factors = {float(factor) for factor in re.findall(r"\bby=([\d.]+)", code)}
    words = {f"{factor:g} times as fast" for factor in factors}
    return words | ({"twice as fast"} if 2.0 in factors else set())


def unfounded(page, text, code=""):
    """The claims of a page that nothing here lets stand."""
    return {*claims(text)} - asked(code) - {*ALLOWED.get(page, {})}


PAGES = sorted(notebooks.BOOK.glob("*.md"))


def text_and_code(md):
    """What stands between the code cells of a chapter, and in them; all of another page."""
    if md not in notebooks.chapters():
        return md.read_text("utf-8"), ""
    notebook = notebooks.read_source(md)
    texts = [cell.source for cell in notebook.cells if cell.cell_type != "code"]
    return "\n\n".join(texts), "\n".join(notebooks.code(notebook))


@pytest.mark.parametrize("md", PAGES, ids=lambda md: md.stem)
def test_prose_has_no_number_that_a_measurement_gave(md):
    assert unfounded(md.stem, *text_and_code(md)) == set()


def test_what_is_allowed_is_there():
    texts = {md.stem: text_and_code(md)[0] for md in PAGES}
    for page, words in ALLOWED.items():
        assert {*words} <= {*claims(texts[page])}, page


def test_a_factor_may_be_what_an_exercise_asks():
    text, code = "Make it 1.4 times as fast, then twice as fast.", "grade(run, x, by=1.4)"
    assert unfounded("any", text, code) == {"twice as fast"}
    assert unfounded("any", text, f"{code}\ngrade(run, x, by=2.0)") == set()
    assert unfounded("any", "Then it took 1.4 us.", code) == {"1.4 us"}


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("The kernel takes 12.5 µs on the GPU.", ["12.5 µs"]),
        ("A copy takes about 600 cycles, and\n900 ns with contention.", ["600 cycles", "900 ns"]),
        ("It runs at 3.9 TB/s, or 620 TFLOP/s.", ["3.9 TB/s", "620 TFLOP/s"]),
        ("Under 1,755 MHz and 690 W.", ["1,755 MHz", "690 W"]),
        ("It reaches 93.4% of cuBLAS's rate, or 93 percent.", ["93.4%", "93 percent"]),
        ("Two slots are 1.7x one, 1.31 times as fast.", ["1.7x", "1.31 times as fast"]),
        (
            "It is twice as\nfast, a third slower, ten times faster.",
            ["twice as fast", "a third slower", "ten times faster"],
        ),
        ("Half the time goes into waiting; a factor of 1.8.", ["Half the time", "factor of 1.8"]),
        ("| rung 3 | 512 us |", ["512 us"]),
        ("Five microseconds later it ends.", ["Five microseconds"]),
        ("64 bytes per cycle, 2 bytes a clock", ["64 bytes per cycle", "2 bytes a clock"]),
    ],
)
def test_a_claim_is_found(sentence, found):
    assert claims(sentence) == found


@pytest.mark.parametrize(
    "sentence",
    [
        "A tile of 128 x 64 has 16 KiB, in 2 slots, of 132 multiprocessors.",
        "It takes `600 cycles` there, and $k = 5 s$ here.",
        "HBM3e delivers 4.8 TB/s {cite}`nvidia-h200`.",
        "`book.compare` runs the kernels 100 times each, 4 times more often than needed.",
        "In JAX 0.11.2 a warp is 32 lanes, and sm_90 has 4 warps a group.",
    ],
)
def test_other_numbers_may_stand(sentence):
    assert claims(sentence) == []


def test_a_source_speaks_for_its_own_paragraph_only():
    assert claims("4.8 TB/s {cite}`nvidia-h200`.\n\nWe got 4.1 TB/s.") == ["4.1 TB/s"]
    assert claims("- 4.8 TB/s {cite}`nvidia-h200`\n- 4.1 TB/s") == ["4.1 TB/s"]
