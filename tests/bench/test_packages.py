"""The registry's builds as `benchmarks.peers` calls them, by the packages' own signatures."""

import subprocess
import sys
import zipfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from benchmarks import attention, decode, matmul, memory_bound, peers
from benchmarks.attention_problems import Problem
from benchmarks.records import ROOT
from pipelib_book.measured.attention import BUILDS, FA3, FA3_JAX, FA3_WHEEL, FA4_WHEEL
from pipelib_book.measured.ladder import DEEPGEMM_WHEEL

FORWARD, ROWS = Problem(4096, 128, True), memory_bound.FIRST
#: Functions that tell what they were called with.
MODULES = {
    "flash_attn3_jax": dict(
        flash_mha=lambda q, k, v, softmax_scale=None, is_causal=False, window_size=0: locals(),
        flash_mha_with_kvcache=lambda q, k_cache, v_cache, k=None, v=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, rotary_cos=None, rotary_sin=None,
        softmax_scale=None, is_causal=False, window_size=0, num_splits=1: locals(),
    ),
    "fa3_fwd_interface": dict(
        flash_attn_func=lambda q, k, v, softmax_scale=None, causal=False, qv=None: locals()
    ),
    "flash_attn.cute": dict(
        flash_attn_func=lambda q, k, v, qv=None, softmax_scale=None, causal=False: (locals(), "")
    ),
    "deep_gemm": dict(bf16_gemm_nt="bf16", fp8_gemm_nt="fp8"),
    "quack.softmax_jax": dict(softmax=jax.nn.softmax),
}  # fmt: skip


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """All packages, of version 1.0, in a folder that is returned."""
    found = SimpleNamespace(version="1.0", locate_file=lambda _: tmp_path)
    monkeypatch.setattr(peers.metadata, "distribution", lambda _: found)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PEERS", raising=False)
    for name, public in MODULES.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**public))
    return tmp_path


def test_pins_have_every_package_and_names_agree():
    pins = (ROOT / "requirements-peers.txt").read_text().splitlines()
    assert {*peers.PACKAGES.values()} <= {pin.partition("==")[0] for pin in pins}
    assert {*BUILDS, DEEPGEMM_WHEEL, memory_bound.QUACK} == {FA3, *peers.PACKAGES}


def test_a_package_that_is_not_there_or_does_not_load_is_told(registry, monkeypatch):
    (registry / "more.pth").write_text("more\n")
    (registry / "more").mkdir()
    (registry / "more" / "behind.py").write_text("import a_module_that_lacks")
    with pytest.raises(ImportError, match=r"fa3-fwd 1\.0 does not load here: No module named 'a_m"):
        peers.module(FA3_WHEEL, "behind")
    monkeypatch.setattr(peers, "versions", dict)
    with pytest.raises(ImportError, match="fa3-fwd is not on Python's path, so fa3_wheel cannot"):
        peers.load(FA3_WHEEL)


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, {FA3, FA3_WHEEL, FA3_JAX, FA4_WHEEL}),
        (dict(head_dim=64, heads=32, kv_heads=8), {FA3, FA3_WHEEL, FA4_WHEEL}),
        (dict(v_head_dim=64), {FA3_WHEEL, FA4_WHEEL}),
        (dict(seq=4097, causal=False, dtype="float16"), {FA3_JAX, FA4_WHEEL}),
        (dict(dtype="float8_e4m3fn"), {FA3_WHEEL}),
        (dict(backward=True), {FA3, FA3_JAX}),
        (dict(backward=True, kv_heads=4), {FA3_JAX}),
    ],
)
def test_a_build_is_a_contender_where_it_has_a_kernel(monkeypatch, changed, names):
    monkeypatch.setattr(peers, "has", lambda name: True)
    problem = FORWARD._replace(**changed)
    made = attention.baselines(problem)
    assert made.keys() & BUILDS.keys() == names
    assert all(attention.traced(problem, name, made[name]) is None for name in names)


def test_others_have_their_builds_and_records_say_which(registry):
    assert peers.versions() == {name: f"{x} 1.0" for name, x in peers.PACKAGES.items()}
    products = matmul.SUITE.parts["untuned"].contenders(matmul.SHAPES[0], [])
    assert products[DEEPGEMM_WHEEL] == peers.DeepGemm(DEEPGEMM_WHEEL)
    built = peers.load(DEEPGEMM_WHEEL)
    assert (built.deepgemm_bf16, built.deepgemm_fp8) == ("bf16", "fp8")
    assert FA3_WHEEL in attention.SUITE.parts["narrow"].contenders(attention.NARROW[0], [])
    rows = memory_bound.contenders(ROWS, ())
    assert memory_bound._traced(ROWS, "softmax, quack", rows["softmax, quack"]) is None


def test_attention_is_asked_for_in_each_build_s_words(registry):
    words = dict(q="q", k="k", v="v", softmax_scale=1.0)
    for build in (FA3_WHEEL, FA4_WHEEL):
        found = peers.load(build).fa3_forward("q", "k", "v", True, "out", scale=1.0, lse=None)
        assert found.items() >= (words | dict(causal=True)).items()
    q = FORWARD.arrays[0]
    found = attention.baselines(FORWARD)[FA3_JAX](q, "k", "v")
    assert found == words | dict(q=q, is_causal=True, window_size=0)
    q, k, v, lengths, _ = decode.PROBLEMS[3].args
    run = decode.contenders(decode.PROBLEMS[3])[f"{FA3_JAX}, 4 splits"]
    for pages in (jnp.zeros((1, 0)), jnp.zeros((1, 2))):
        found = run(q, k, v, lengths, pages)
        assert found["page_table"] is (pages if pages.size else None) and found["is_causal"]
    assert found["num_splits"] == 4 and found["cache_seqlens"] is lengths


def test_gradients_that_would_write_past_an_array_are_refused(registry):
    def run(seq):
        problem = FORWARD._replace(seq=seq, causal=False, backward=True)
        return attention.baselines(problem)[FA3_JAX](*problem.arrays[:3])

    assert run(1500)["is_causal"] is run(8320)["is_causal"] is False
    with pytest.raises(ValueError, match=r"room for 8192 rows .* kernel writes 8240"):
        run(8192)


def test_rows_are_quack_s_or_have_a_reason(registry):
    x, run = jnp.arange(512.0).reshape(2, 256), memory_bound.kernels()["softmax, quack"]
    found = memory_bound._error_or_reason("softmax, quack", run, (x, x[0], x))
    assert found["error"]["of_norm"] < 1e-5
    lost = memory_bound._error_or_reason("softmax, quack", lambda *_: 1 / 0, (x, x[0], x))
    assert lost == dict(reason="division by zero")


def test_pieces_of_wheels_are_joined_and_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "whole", "w") as file:
        file.writestr("a.py", "")
    whole = (tmp_path / "whole").read_bytes()
    pieces = {"a.whl.part00": whole[:50], "a.whl.part01": whole[50:], "b.whl": b""}
    for name, piece in pieces.items():
        (tmp_path / name).write_bytes(piece)
    words = f"GPU_PYTHON={sys.executable}", f"PEER_WHEELS={tmp_path}", f"PEER_SITE={tmp_path}/site"
    make = ["make", "peer-site", *words]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (tmp_path / "site" / "a.py").exists()
    assert f"{tmp_path}/b.whl is not whole, so it is not measured" in done.stderr
