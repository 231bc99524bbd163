"""The gallery of hazards: what is right is right, what is wrong is found, and what was recorded."""

import jax.numpy as jnp
import numpy as np
import pytest

import pipelib_book as book
from benchmarks import faults
from pallascope import check
from pallascope.report import FindingKind
from pipelib_book import gallery
from pipelib_book.measured import results
from tests.emitters import contract
from tests.pipelib_book.workers import RIGHT, Told
from tools import sphinx_pages

GALLERY = gallery.GALLERY
EVERY = pytest.mark.parametrize("hazard", GALLERY.values(), ids=GALLERY)
VERSIONS = "0.11.2", "0.12.0.1"
(GPU,) = results.read("nvidia-h200/hazards.json")
INTERPRETERS = results.read("interpreter/hazards-jax-*.json")


def test_there_is_a_hazard_of_each_kind():
    assert len(GALLERY) >= 14
    # An index outside of its array is not among them yet: it has to be seen on a GPU first. Nor is
    # what only several blocks show, as a hazard is one block; nor what no trace shows, as a kernel
    # that JAX does not lower.
    others = {"out-of-bounds", "mixed-tile", "unwritten-output", "not-lowered"}
    assert {hazard.kind for hazard in GALLERY.values()} == set(FindingKind) - others
    for field in ("title", "summary", "remedy"):
        assert len({getattr(hazard, field) for hazard in GALLERY.values()}) == len(GALLERY)


@EVERY
def test_an_entry_is_complete_and_short(hazard):
    assert hazard.name == hazard.kernel.__name__.replace("_", "-")
    for sentence in (hazard.summary, hazard.remedy):
        assert sentence.endswith(".") and "\n" not in sentence
    source = hazard.source()
    assert source.startswith(f"def {hazard.kernel.__name__}(") and hazard.summary not in source
    assert 2 <= source.count("fixed") <= 3  # in the signature, and at the fault
    assert len(source.splitlines()) <= 40


@EVERY
def test_the_checker_finds_the_fault(hazard):
    report = check(hazard.program(fixed=False))
    assert hazard.kind in {finding.kind for finding in report}
    ops = [op for finding in report for op in finding.ops]
    assert all(op.line.startswith("pipelib_book/gallery.py:") for op in ops)


def test_a_report_names_the_step_of_the_outer_loop_first():
    report = str(check(GALLERY["wrong-slot"].program(fixed=False)))
    assert ", thread 0, step 1, 0\n" in report and ", thread 0, step 0, 1\n" not in report


@EVERY
def test_the_checker_finds_nothing_once_it_is_mended(hazard):
    report = check(hazard.program(fixed=True))
    assert report.ok, str(report)


@EVERY
def test_the_mended_kernel_is_right(hazard):
    args = hazard.arguments(np.random.default_rng(1), 1)
    with contract.interpreted():
        result = np.asarray(hazard.kernel(*map(jnp.asarray, args), fixed=True))
    np.testing.assert_array_equal(result, hazard.reference(*args), strict=True)


# The records.


@pytest.mark.parametrize("record", [GPU, *INTERPRETERS], ids=["gpu", *VERSIONS])
def test_a_record_has_every_hazard(record):
    assert list(record["hazards"]) == list(GALLERY)


def test_the_gpu_record_is_of_a_hopper_gpu():
    assert GPU["provenance"]["compute_capability"].startswith("9.")


@pytest.mark.parametrize("name", GALLERY)
def test_the_mended_kernel_was_right_on_the_gpu(name):
    fixed = GPU["hazards"][name]["fixed"]
    assert fixed["outcome"] == "nothing"
    assert fixed["wrong"] == fixed["error"] == [0] * GPU["runs"]


@pytest.mark.parametrize("name", GALLERY)
def test_the_faulty_kernel_s_outcome_is_that_of_its_runs(name):
    faulty = GPU["hazards"][name]["faulty"]
    if faulty["outcome"] in ("nothing", "wrong"):
        assert len(faulty["wrong"]) == len(faulty["error"]) == GPU["runs"]
        assert (faulty["outcome"] == "wrong") == any(faulty["wrong"])
    else:
        assert faulty["outcome"] in ("hang", "killed", "refused") and faulty["text"]


def test_most_hazards_were_reproduced_on_the_gpu():
    seen = [found["faulty"]["outcome"] for found in GPU["hazards"].values()]
    assert sum(outcome in ("wrong", "hang", "killed") for outcome in seen) >= 10


@pytest.mark.parametrize("record", INTERPRETERS, ids=VERSIONS)
def test_the_interpreter_s_record(record):
    for found in record["hazards"].values():
        assert found["end"] in ("right", "wrong", "hang", "raised")
        assert found["race"] is None or found["race"].count(" by `") == 2
    assert record["provenance"]["gpu"] is None


def test_the_benchmark_counts_what_differs():
    expected = np.zeros((2, 3), np.float32)
    assert faults.compare(expected, expected) == {"wrong": 0, "error": 0.0}
    assert faults.compare(expected + 2, expected) == {"wrong": 6, "error": 2.0}
    actual = expected.copy()
    actual[0, 0] = np.nan
    assert faults.compare(actual, expected) == {"wrong": 1, "error": None}


WRONG = dict(version="faulty", wrong=3, error=None)
KILLED = dict(version="faulty", outcome="killed", text="\n  CUDA error \n more")


@pytest.mark.parametrize(
    ("worker", "fixed", "faulty", "text"),
    [
        (Told(RIGHT), "nothing", "nothing", None),
        (Told([*RIGHT, WRONG]), "nothing", "wrong", None),
        (Told([*RIGHT, WRONG], hangs=True), "nothing", "hang", "no answer in 10 s"),
        (Told([*RIGHT, KILLED], status=-6), "nothing", "killed", "CUDA error"),
        (Told(RIGHT, status=-11, words="status -11"), "nothing", "killed", "status -11"),
        (Told(RIGHT[:3], hangs=True), "hang", "nothing", "no answer in 10 s"),
    ],
)
def test_the_benchmark_names_outcomes(worker, fixed, faulty, text):
    found = faults.on_gpu(worker)
    assert (found["fixed"]["outcome"], found["faulty"]["outcome"]) == (fixed, faulty)
    assert text in (found["faulty"].get("text"), found["fixed"].get("text"))


def test_the_benchmark_reads_what_the_interpreter_says(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("x[...] = 1\ncopy(x)\n")
    race = f"RACE DETECTED\n read of a[(0, 1)] from w, {source}:2:8 (f)\n clock\n write of b, "
    printed = {"printed": f"{race}{source}:1:0\n"}
    worker = Told([printed, {"wrong": 0, "error": 0.0}])
    words = dict(race="read by `copy(x)` and write by `x[...] = 1`", end="right", text="")
    assert faults.in_interpreter(worker) == words
    assert faults.in_interpreter(Told([], hangs=True)) == dict(
        race=None, end="hang", text="no end in 40 s"
    )
    assert faults.in_interpreter(Told([{"raised": "Trace\nValueError: no"}])) == dict(
        race=None, end="raised", text="ValueError: no"
    )


# Its page.

PAGE = (faults.ROOT / "book" / "gallery.md").read_text()


@EVERY
def test_the_page_shows_it_under_its_title(hazard):
    _, heading, section = PAGE.partition(f"\n### {hazard.title}\n")
    assert heading
    made = f"<!-- made from the code: hazard {hazard.name} -->\n"
    assert made in section.partition("\n##")[0]
    assert hazard.summary in _filled(made)


def test_the_page_shows_the_parts_that_kernels_share():
    made = _filled("<!-- made from the code: gallery Ring load_all -->\n")
    assert made.startswith("````python\nclass Ring(") and "def load_all(" in made


def _filled(line):
    source = [line]
    sphinx_pages.fill_in(None, "book/gallery", source)
    return source[0]


def test_a_report_is_shown_in_lines_without_a_machine_s_paths(capsys):
    long = "race: " + "word " * 30
    lines = [long, f"  --> {faults.ROOT}/pipelib_book/gallery.py:3"]
    lines.append("  --> /a/ipykernel_12/34.py:5")
    lines.append("      " + "x" * 90)
    book.show_report(Said("\n".join(lines)))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == shown[-1].replace("text", "") + "text"
    assert all(len(line) <= 72 for line in shown[1:-2])
    assert shown[4:-1] == ["  --> pipelib_book/gallery.py:3", "  --> cell:5", lines[-1]]


class Said:
    """A report of these words."""

    def __init__(self, words):
        self.words = words

    def __len__(self):
        return 1

    def __str__(self):
        return self.words
