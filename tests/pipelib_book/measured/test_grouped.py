"""The tables of `ragged_dot`'s record."""

from pipelib_book.measured import grouped


def group(distribution, weights=False, **microseconds):
    problem = dict(rows=1000, k=100, n=50, groups=4, weights=weights, dtype="bfloat16")
    problem["distribution"] = distribution
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    contenders["XLA"] = contenders.get("XLA", {"reason": "it did not run"})
    return {"part": "grouped", "problem": problem, "contenders": contenders}


def test_a_table_for_each_layer_and_a_row_for_each_distribution(recorded):
    """2 x 1000 x 100 x 50 operations in 0.1 us are 100 TFLOP/s; JAX's fastest counts."""
    mine = {grouped.OURS: 0.1, f"{grouped.OURS}, other tiles": 0.05}
    theirs = {f"{grouped.UPSTREAM}, {name}": us for name, us in dict(a=0.3, b=0.2).items()}
    groups = [group("even", **mine, **theirs, XLA=1.0), group("one", **mine)]
    groups.append(group("even", weights=True, **theirs))
    folders = recorded(grouped={"groups": groups})
    (title, rows), (other, weights) = grouped.tables(folders).items()
    assert str(title) == "1,000 rows, K = 100, N = 50, 4 groups"
    assert str(other) == "Gradients of the matrices, 1,000 rows, K = 100, N = 50, 4 groups"
    assert rows.splitlines()[2:] == ["| even | 100 | 2.00x | 10.00x |", "| one | 100 | - | - |"]
    assert weights.splitlines()[2:] == ["| even | - | - | - |"]
    first, second = grouped.summary(folders).splitlines()[2:]
    assert first == f"| {title} | 100 | 2.00x, least 2.00x | 10.00x, least 10.00x |"
    assert second == f"| {other} | - | - | - |"
