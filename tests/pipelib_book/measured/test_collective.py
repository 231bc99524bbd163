"""The tables of `collective_matmul`'s record."""

import json

from pipelib_book.measured import collective


def group(devices=2, **microseconds):
    problem = {"m": 4096, "n": 14336, "k": 4096, "devices": devices, "dtype": "bfloat16"}
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    contenders["failed"] = {"reason": "it did not run"}
    return {"part": "collective", "problem": problem, "contenders": contenders}


def test_a_table_for_each_number_of_devices(tmp_path):
    """The longer of both alone is 90 us, of ours 100; JAX's fastest counts."""
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    alone = {f"{collective.PRODUCT}, a": 95.0, f"{collective.PRODUCT}, b": 90.0}
    theirs = {f"{collective.UPSTREAM}, {name}": us for name, us in dict(a=300.0, b=200.0).items()}
    mine = {collective.OURS: 100.0, f"{collective.OURS}, other": 50.0}
    groups = [
        group(**mine, **alone, **theirs, **{collective.TRANSFER: 40.0}),
        group(8, **mine, **{f"{collective.SEQUENCE}, a": 150.0}),
    ]
    (folder / "collective.json").write_text(json.dumps({"groups": groups}), "utf-8")
    (two, rows), (eight, others) = collective.tables((tmp_path,))
    assert (two, eight) == ("Rows gathered on 2 GPUs", "Rows gathered on 8 GPUs")
    assert rows.splitlines()[2:] == [
        "| 4,096 x 14,336 x 4,096 | 100 | 90 | 40 | 0.90 | 2.00x | - |"
    ]
    assert others.splitlines()[2:] == ["| 4,096 x 14,336 x 4,096 | 100 | - | - | - | - | 1.50x |"]


def test_without_a_record(tmp_path):
    assert list(collective.tables((tmp_path,))) == []
