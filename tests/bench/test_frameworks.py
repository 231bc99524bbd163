"""The row sum in four frameworks: its marks, the Pallas source, the measuring, the page's table."""

import importlib.util
import json
import re
import shutil

import jax
import pytest

import pallascope
from benchmarks import frameworks, records
from benchmarks.rowsums import pallas
from pipelib_book.measured import frameworks as recorded
from tests.emitters.contract import interpreted

SMALL = frameworks.Problem(128, 512)
SLOT_TO_ROLE = (
    "The slot:", "The copy:", "The barrier that says it has landed:", "The release:", "The role:",
)  # fmt: skip
RECORDS = [*records.RESULTS.glob(f"*/{frameworks.SUITE.file}")]
MADE, TORCH = frameworks.contenders(SMALL), frameworks.sources()


@pytest.mark.parametrize("name", ["pallas.py", "gluon.py", "cute.py", "rowsum.cu"])
def test_each_source_names_the_same_five_things_once(name):
    lines = (frameworks.FOLDER / name).read_text("utf-8").splitlines()
    comments = [line for line in lines if re.match(r"\s*(#|//) ", line)]
    assert [sum(mark in line for line in comments) for mark in SLOT_TO_ROLE] == [1] * 5
    assert len(lines) <= 80


def test_pallas_is_verified_strictly_and_lowered_for_cuda():
    assert pallascope.check(pallascope.trace(pallas.row_sums, *SMALL.args), strict=True).ok
    verdict = pallascope.verify(pallas.row_sums, *SMALL.args)
    assert verdict.ok, str(verdict)
    traced = jax.jit(pallas.row_sums).trace(*SMALL.args)
    assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("left_out", ["barrier_wait", "barrier_arrive"])
def test_pallas_without_a_synchronisation_is_found(left_out, monkeypatch):
    monkeypatch.setattr(pallas.plgpu, left_out, lambda *_: None)
    program = pallascope.trace(lambda x: pallas.row_sums(x), *SMALL.args)
    assert not pallascope.check(program).ok


@pytest.mark.parametrize("name", sorted(MADE.keys() - TORCH.keys()))
def test_contenders_of_jax_are_right(name):
    with interpreted():
        run = frameworks.prepare(MADE[name], SMALL)
        assert run("check") < 1e-5 and run("float64_error")["relative"] < 1e-6


def test_wrong_sums_are_told():
    run = frameworks.prepare(lambda x: x[:, 1:].sum(1), SMALL)
    assert run("check") > 0.01 and run("float64_error")["relative"] > 0.01


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_takes_cuda(tmp_path):
    assert frameworks.built(tmp_path).row_sums


@pytest.mark.gpu
@pytest.mark.parametrize("name", TORCH)
def test_the_others_are_right_on_the_gpu(name):
    if name == recorded.CUTE and importlib.util.find_spec("nvidia_cutlass_dsl") is None:
        pytest.skip("there is no CuTe DSL: make peers fetches it")
    assert frameworks.prepare(MADE[name], SMALL)("check") < 1e-5


def test_the_table_says_what_was_measured_and_what_was_not(tmp_path):
    assert "not been measured" in recorded.table((tmp_path,))
    timed = dict(burst_microseconds=[100.0, 125.0, 150.0], float64=dict(relative=2e-7))
    group = dict(
        problem=SMALL._asdict(), versions=dict(jax="0.11.2"),
        run=dict(provenance=dict(gpu="NVIDIA H200")),
        contenders={recorded.PALLAS: timed, recorded.CUTE: dict(reason="No module")},
    )  # fmt: skip
    path = tmp_path / "nvidia-h200" / "frameworks.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(groups=[group])), "utf-8")
    said = recorded.table((tmp_path,))
    assert "On an NVIDIA H200, 128 rows of 512 numbers in float32, with jax 0.11.2:" in said
    assert "| Pallas | 125.0 | 40.0% | 0.00 | 2e-07 |" in said
    assert "Not timed: CuTe DSL. No module" in said


@pytest.mark.skipif(not RECORDS, reason="there is no record: make benchmark writes it on a Hopper")
def test_the_record_is_of_the_present_sources():
    for path in RECORDS:
        (group,) = records.read(path)
        assert group["sources"] == TORCH and group["contenders"].keys() == MADE.keys()
