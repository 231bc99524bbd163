"""Which tool sees which fault: what a process says, the sources, the page's tables."""

import json
import shutil

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import records, tools_seen
from benchmarks.tools_seen import Case, Language
from pipelib_book.gallery import GALLERY
from pipelib_book.measured import tools_seen as recorded
from pipelib_book.measured.tools_seen import CUDA, GLUON, LANGUAGES, NONE, PALLAS

RECORDS = [*records.RESULTS.glob(f"*/{tools_seen.SUITE.file}")]
RACE = "========= Error: Race reported between Read access at f+0x10 in a.cu:1 and Write access"


@pytest.mark.parametrize(
    ("said", "code", "end", "reports", "says"),
    [
        ('{"runs": 3, "wrong": 0}', 0, "right", 0, ""),
        (f'{RACE}\n{RACE}\n{{"runs": 3, "wrong": 0}}\n', 0, "right", 2, RACE[10:]),
        ("========= Invalid read of size 4", None, "hang", 1, "Invalid read of size 4"),
        ("x:1: f: Assertion `Buffer has writes.` failed.", 1, "error", 1, "Buffer has writes."),
        ("", -6, "error", 0, ""),
    ],
)  # fmt: skip
def test_an_outcome_is_what_a_process_printed(said, code, end, reports, says):
    found = tools_seen.outcome(said, code)
    assert (found["end"], found["reports"], found["says"]) == (end, reports, says)


def test_an_error_says_what_cuda_said():
    found = tools_seen.outcome('{"error": "unspecified launch failure", "runs": 2}', 0)
    assert (found["end"], found["text"], found["runs"]) == (
        "error",
        "unspecified launch failure",
        2,
    )


def test_the_gallery_is_in_all_languages():
    cuda, gluon = map(tools_seen.names_of, (CUDA, GLUON))
    assert len(cuda) == len({*cuda}) and len(gluon) == len({*gluon})
    assert GALLERY.keys() - {*cuda} == {"too-much-smem"}  # nvcc compiles it
    assert GALLERY.keys() <= {*gluon}
    assert len({*cuda, *gluon, *GALLERY}) >= 24


@pytest.mark.parametrize(("version", "wrong"), [("fixed", 0), ("faulty", 1)])
def test_a_kernel_of_the_gallery_says_what_became_of_it(version, wrong, capsys):
    with plgpu.force_gpu_interpret_mode():
        tools_seen.in_pallas("never-stored", version, "1")
    assert json.loads(capsys.readouterr().out) == dict(runs=1, wrong=wrong)


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_takes_the_faults(tmp_path):
    tools_seen.built(tmp_path)
    assert (tmp_path / "faults").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_mended_twins_are_right_on_the_gpu(language, tmp_path):
    if language == CUDA:
        tools_seen.built(tmp_path)
    for name in ("never-stored", "release-too-early"):
        found = tools_seen.seen(Case(language, name), "fixed", NONE, tmp_path)
        assert (found["end"], found["runs"]) == ("right", tools_seen.RUNS)


def test_the_tables_say_what_was_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded.results, "FOLDERS", (tmp_path,))
    seen = lambda end, reports=0: dict(end=end, reports=reports, says="A race.", runs=8, wrong=2)
    case = dict(
        faulty={NONE: seen("wrong"), "racecheck": seen("wrong", 3)},
        fixed={NONE: seen("right"), "racecheck": seen("right", 1)},
    )
    run = dict(provenance=dict(gpu="NVIDIA H200"), runs=8, runs_under_a_tool=3, blocks=8)
    group = dict(
        part="faults", problem=dict(language=CUDA), run=run, versions=dict(nvcc="13.0"),
        contenders={"never-stored": case, "named-barrier": case},
    )  # fmt: skip
    path = tmp_path / "nvidia-h200" / "tools_seen.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(groups=[group])), "utf-8")
    table = recorded.Seen.read((tmp_path,))
    assert "| Never stored | not yet run | wrong in 25.0% | not yet run |" in table.runs()
    link = '<a href="#reported-never-stored-cuda-racecheck">racecheck</a>; the mended one, too'
    assert f"| Never stored | lost-store | not yet run | {link} | not yet run |" in table.reported()
    assert "| Named barrier | not in Pallas | no such kernel |" in table.reported()
    target = '<span id="reported-never-stored-cuda-racecheck"></span>Never stored'
    assert f"| {target} | CUDA C++ | racecheck | `A race.` |" in table.reports()
    assert "reported 2 of 2 faulty kernels in CUDA C++, and 2 of the mended" in table.counts()
    assert "On an NVIDIA H200, with nvcc 13.0: 8 runs of each version" in table.words()
    assert recorded.Seen.read((tmp_path / "none",)) is None


@pytest.mark.skipif(not RECORDS, reason="there is no record: make benchmark writes it on a Hopper")
def test_the_record_is_of_the_present_sources():
    for path in RECORDS:
        for group in records.read(path):
            language = group["problem"]["language"]
            assert group["sources"] == tools_seen.sources(Language(language))
            assert {*group["contenders"]} <= {*tools_seen.names_of(language)}
            for found in group["contenders"].values():
                assert {*found["fixed"]} == {*found["faulty"]} == {*Case(language, PALLAS).tools}
