"""What tokamax's faults do in tokamax itself: the judge, the watching of processes, the record."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import records, tokamax_attention
from pipelib_book.measured import outcomes, results
from pipelib_book.wild import WILD
from tests.bench.stand_ins import FACTS, dry_run

(RECORD,) = results.read("nvidia-h200/tokamax.json")


def test_the_reference_is_jax_s_attention():
    q, k, v = (x.astype(jnp.float32) for x in tokamax_attention.operands(4, 2, 64))
    sees = jnp.tri(1024, dtype=bool)
    expected = jax.nn.dot_product_attention(q, k, v, mask=sees[None, None])
    found = tokamax_attention.attention(q, k, v, sees)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_row_that_sees_nothing_is_zero_and_has_a_gradient():
    q, k, v = (x[:, :8] for x in tokamax_attention.operands(2, 2, 64))
    sees = jnp.arange(8) >= jnp.arange(8)[:, None] + 4
    out, pull = jax.vjp(lambda *args: tokamax_attention.attention(*args, sees), q, k, v)
    assert not out[:, 4:].any() and out[:, :4].any(-1).all()
    assert all(np.isfinite(x.astype(jnp.float32)).all() for x in pull(out))


def test_an_error_is_relative_to_the_largest_value():
    call = tokamax_attention.Call(
        lambda x: (x, x.at[0].add(1)), lambda x: (x, x), (jnp.arange(9.0) + 2,)
    )
    assert list(tokamax_attention.errors(call, 2)) == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("code", "outcome", "text", "wrong", "errors"),
    [
        ("print(0.01); print(0.04)", "nothing", "", 0, [0.01, 0.04]),
        ("print(0.01); print(0.06); print('nan')", "wrong", "", 2, [0.01, 0.06, None]),
        ("raise ValueError('no GPU')", "killed", "ValueError: no GPU", 0, []),
        ("import time; time.sleep(600)", "hang", "no answer in 1 s", 0, []),
    ],
)
def test_what_becomes_of_a_process(code, outcome, text, wrong, errors):
    found = tokamax_attention.watched([sys.executable, "-c", code], 1 if outcome == "hang" else 300)
    assert found == dict(outcome=outcome, text=text, wrong_runs=wrong, errors=errors)


def test_a_dry_run_writes_a_record(monkeypatch, tmp_path):
    watched = lambda command, timeout_s: dict(outcome="nothing", text=" ".join(command[-2:]))
    monkeypatch.setattr(tokamax_attention, "watched", watched)
    monkeypatch.setattr(tokamax_attention.metadata, "version", lambda name: "0.0.17")
    path = dry_run(monkeypatch, tmp_path, tokamax_attention.SUITE)
    (group,) = records.read(path)
    assert path.name == "tokamax.json" and group["part"] == "cases"
    assert group["contenders"].keys() == tokamax_attention.CASES.keys()
    assert group["contenders"]["causal-start"]["faulty"]["text"] == "causal-start 1"
    assert group["run"]["provenance"] == FACTS | dict(tokamax="0.0.17")


def test_the_record_has_every_case_with_a_control_that_was_right():
    assert list(RECORD["cases"]) == list(tokamax_attention.CASES)
    assert {*RECORD["cases"]} < {*WILD} and RECORD["provenance"]["tokamax"] == "0.0.17"
    for name, found in RECORD["cases"].items():
        control, case = found["control"], tokamax_attention.CASES[name]
        assert (found["faulty"]["what"], control["what"]) == (case.faulty, case.control)
        assert control["outcome"] == "nothing" and len(control["errors"]) == RECORD["runs"]


def test_what_is_said_of_each_case(tmp_path):
    said = outcomes.in_tokamax("grouped-heads")
    assert said.startswith("tokamax 0.0.17 itself, on an NVIDIA H200. With the fault (gradients, ")
    assert "its own `k_start`): wrong in 1,000 of 1,000 runs; the largest error was 56.4%" in said
    assert "Without (one `k_start` for all heads): right in all of 1,000 runs" in said
    assert "a hang (no answer in 60 s)" in outcomes.in_tokamax("causal-start")
    assert len(outcomes.tokamax_table().splitlines()) == 2 + len(RECORD["cases"])
    with pytest.raises(FileNotFoundError, match="A record of tokamax is in none of"):
        outcomes.in_tokamax("grouped-heads", (tmp_path,))
