"""The tables of `collective_matmul`'s record."""

from pipelib_book.measured import collective


def group(devices=2, gpu="NVIDIA H200", **microseconds):
    problem = {"m": 4096, "n": 14336, "k": 4096, "devices": devices, "dtype": "bfloat16"}
    contenders = {name: {"burst_microseconds": [us, us, 9e9]} for name, us in microseconds.items()}
    contenders["failed"] = {"reason": "it did not run"}
    run = {"provenance": {"gpu": gpu}}
    return {"part": "collective", "problem": problem, "run": run, "contenders": contenders}


def test_a_table_for_each_number_of_gpus_of_a_model(recorded):
    """The longer of both alone is 90 us, of ours 100; JAX's fastest counts."""
    alone = {f"{collective.PRODUCT}, a": 95.0, f"{collective.PRODUCT}, b": 90.0}
    theirs = {f"{collective.UPSTREAM}, {name}": us for name, us in dict(a=300.0, b=200.0).items()}
    mine = {collective.OURS: 100.0, f"{collective.OURS}, other": 50.0, collective.EIGHT: 120.0}
    short = {collective.OURS: 130.0, collective.SHORT_TILES: 110.0}
    groups = [
        group(**mine, **alone, **theirs, **{collective.TRANSFER: 40.0}),
        group(8, **short, **{f"{collective.SEQUENCE}, a": 150.0}),
    ]
    recorded(collective={"groups": groups})
    named = group(gpu="NVIDIA H100 80GB HBM3", **mine)
    folders = recorded("nvidia-h100-80gb-hbm3", collective={"groups": [named]})
    (two, rows), (eight, others), (of_another, _) = collective.tables(folders)
    assert (two, eight) == ("Rows gathered on 2 H200s", "Rows gathered on 8 H200s")
    assert of_another == "Rows gathered on 2 H100s"
    assert rows.splitlines()[2:] == [
        "| 4,096 x 14,336 x 4,096 | 100 | - | 120 | - | 90 | 40 | 0.900 | 2.00x | - |"
    ]
    assert others.splitlines()[2:] == [
        "| 4,096 x 14,336 x 4,096 | 130 | - | - | 110 | - | - | - | - | 1.15x |"
    ]


def row(us, product=100.0, transfer=50.0, upstream=120.0):
    own = us, us, us, None
    return collective.Row("M x N x K", "2 H200s", *own, product, transfer, upstream, 130.0)


def test_a_summary_of_the_goal_and_of_the_other_ways():
    """A layer is a product that takes longer than its transfer; one that takes less is named."""
    found = [row(100.0), row(110.0), row(125.0), row(170.0, 60.0, 150.0, 160.0)]
    assert collective.summary(found).splitlines() == [
        "- On 2 H200s, 95% of the longer is reached by 1 of 3 layers (the others reach 0.800 or"
        " more); ours is ahead of JAX's kernel for 2, of gather then product for 3.",
        "- M x N x K on 2 H200s, where the transfer is longer: JAX's kernel takes 160 us, ours"
        " 170 us.",
    ]
    assert collective.summary([row(100.0), row(100.0)._replace(gpus="4 H100s")]).splitlines() == [
        f"- On {gpus}, 95% of the longer is reached by 1 of 1 layers; ours is ahead of"
        " JAX's kernel for 1, of gather then product for 1."
        for gpus in ("2 H200s", "4 H100s")
    ]


def test_the_record_has_layers_and_products_that_are_shorter_than_their_transfer():
    found = collective.rows()
    assert {row.is_layer for row in found} == {True, False}
    assert all(row.us and row.eight and row.upstream and row.sequence for row in found)
