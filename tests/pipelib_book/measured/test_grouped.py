"""The tables of `ragged_dot`'s record."""

import json

from pipelib_book.measured import grouped


def group(distribution, weights=False, **microseconds):
    problem = {
        "rows": 1000, "k": 100, "n": 50, "groups": 4, "distribution": distribution,
        "weights": weights, "dtype": "bfloat16",
    }  # fmt: skip
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    contenders["XLA"] = contenders.get("XLA", {"reason": "it did not run"})
    return {"part": "grouped", "problem": problem, "contenders": contenders}


def test_a_table_for_each_layer_and_a_row_for_each_distribution(tmp_path):
    """2 x 1000 x 100 x 50 operations in 0.1 us are 100 TFLOP/s; JAX's fastest counts."""
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    mine = {grouped.OURS: 0.1, f"{grouped.OURS}, other tiles": 0.05}
    theirs = {f"{grouped.UPSTREAM}, {name}": us for name, us in dict(a=0.3, b=0.2).items()}
    groups = [
        group("even", **mine, **theirs, XLA=1.0), group("one", **mine),
        group("even", weights=True, **theirs),
    ]  # fmt: skip
    (folder / "grouped.json").write_text(json.dumps({"groups": groups}), "utf-8")
    (title, rows), (other, weights) = grouped.tables((tmp_path,)).items()
    assert str(title) == "1,000 rows, K = 100, N = 50, 4 groups"
    assert str(other) == "Gradients of the matrices, 1,000 rows, K = 100, N = 50, 4 groups"
    assert rows.splitlines()[2:] == ["| even | 100 | 2.00x | 10.00x |", "| one | 100 | - | - |"]
    assert weights.splitlines()[2:] == ["| even | - | - | - |"]
    first, second = grouped.summary((tmp_path,)).splitlines()[2:]
    assert first == f"| {title} | 100 | 2.00x, least 2.00x | 10.00x, least 10.00x |"
    assert second == f"| {other} | - | - | - |"


def test_without_a_record(tmp_path):
    assert grouped.tables((tmp_path,)) == {}
    assert "has no grouped products" in grouped.summary((tmp_path,))
