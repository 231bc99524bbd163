"""The tables of `collective_matmul`'s record."""

from pipelib_book.measured import collective


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
