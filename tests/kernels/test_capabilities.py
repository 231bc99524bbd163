"""The table of what each kernel has, in the book's `api_kernels.md`: each cell is so.

The model. A row of the table is a change of a small call of each kernel (`asks`), traced as an H200
would run it, or another GPU. "yes": the jaxpr has a kernel; "JAX": it has none; "refused": the call
raises an error with the row's words.
"""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

import pipelib.kernels as made
from pipelib.kernels.hopper import Gpu, assumed
from tests.foreign.examining import primitives
from tests.kernels.collective.cases import on_devices

HALF, BRAIN, NARROW, FLOAT = jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float32
DASH, YES, JAX, REFUSED = "–", "yes", "JAX", "refused"
PAGE = pathlib.Path(__file__).parents[2].joinpath("book/api_kernels.md").read_text("utf-8")
H200, A100, B200 = Gpu("H200", "9.0"), Gpu("A100", "8.0"), Gpu("B200", "10.0")


def like(*shape, dtype=BRAIN):
    return jax.ShapeDtypeStruct(shape, dtype)


SIZES = jnp.array([64], jnp.int32)
ROWS = like(64, 128)
#: A call of each kernel: the function, and its arrays.
BASE = {
    "attention": (made.attention, (like(1, 64, 1, 64),) * 3),
    "dot_product_attention": (made.dot_product_attention, (like(1, 64, 1, 64),) * 3),
    "decode_attention": (made.decode_attention, (like(1, 1, 1, 64), *[like(1, 64, 1, 64)] * 2)),
    "matmul": (made.matmul, (like(64, 128), like(128, 64))),
    "ragged_dot": (
        lambda a, b, **options: made.ragged_dot(a, b, SIZES, **options),
        (like(64, 128), like(1, 128, 64)),
    ),
    "scaled_matmul": (
        lambda a, b, **options: made.scaled_matmul(
            a, b, jnp.ones((a.shape[0], 1)), jnp.ones((1, 1)), **options
        ),
        (like(64, 128, dtype=NARROW), like(64, 128, dtype=NARROW)),
    ),
    "collective_matmul": (on_devices(2)[0], on_devices(2)[1](128, 128, 128)),
    "rms_norm": (made.rms_norm, (ROWS,)),
    "softmax": (made.softmax, (ROWS,)),
}


def table():
    """The cells of the table, by row and column."""
    lines = re.search(r"^\| \| `attention` \|.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)[0].splitlines()
    split = lambda line: [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    _, *columns = split(lines[0])
    rows = [split(line) for line in lines[2:]]
    return {(row[0], column): word for row in rows for column, word in zip(columns, row[1:])}


CELLS = table()


# A row's change of a call: of its function, its arrays, its options, and the GPU.


def of_dtypes(*dtypes):
    def change(function, arrays, column):
        for dtype in dtypes:
            options = {}
            if column == "matmul" and dtype == NARROW:
                options, arrays = {"transpose_b": True}, (arrays[0], like(64, 128))
            cast = [like(*x.shape, dtype=dtype) for x in arrays]
            yield functools.partial(function, **options), cast

    return change


def of_sizes(function, arrays, column):
    if "attention" in column:
        arrays = [like(1, 1 if x.shape[1] == 1 else 63, 1, 63) for x in arrays]
    elif column == "collective_matmul":
        arrays = on_devices(2)[1](9, 7, 63)
    else:
        arrays = [like(*(size - 1 for size in x.shape[:-2]), 63, 63, dtype=x.dtype) for x in arrays]
        arrays = [
            like(1, 63, 63) if column == "ragged_dot" and x is arrays[1] else x for x in arrays
        ]
    yield function, arrays


def of_large_heads(function, arrays, column):
    yield function, [like(*x.shape[:3], 264) for x in arrays]


def differentiated(function, arrays, column):
    yield jax.grad(lambda *arrays: function(*arrays).astype(FLOAT).sum(), allow_int=True), arrays


def mapped(function, arrays, column):
    yield jax.vmap(function), [like(2, *x.shape, dtype=x.dtype) for x in arrays]


def forward_mode(function, arrays, column):
    yield lambda *arrays: jax.jvp(function, arrays, arrays), arrays


def with_options(**by_column):
    """Each of some options, by the column, or of all other columns."""

    def change(function, arrays, column):
        for options in by_column.get(column, by_column.get("others", ())):
            yield functools.partial(function, **options), arrays

    return change


def unchanged(function, arrays, column):
    yield function, arrays


IDS = jnp.zeros((1, 64), jnp.int32)
LENGTHS = jnp.array([9], jnp.int32)
MASKS = [{"window": 8}, {"segment_ids": IDS}]
SCALARS = [{"soft_cap": 30.0}, {"sinks": jnp.zeros(1)}]
SCORES = jnp.zeros((1, 1, 64, 64))
BIASES = [{"bias": SCORES}, {"mask": SCORES > 0}]
OF_JAX = [{"local_window_size": 8}, {"key_value_seq_lengths": LENGTHS}]
PAGES = [{"page_table": jnp.zeros((1, 2), jnp.int32), "lengths": LENGTHS}]
ADDED = [{"epilogue": lambda acc, bias: acc + bias, "operands": (jnp.zeros(64),)}]
#: Of each row: how it changes a call, the words of those that refuse it, and the GPU.
ASKS = {
    "float16, bfloat16": (of_dtypes(HALF, BRAIN), r"is b?float16, but must be float8", H200),
    "float8 (e4m3)": (of_dtypes(NARROW), r"float8_e4m3fn", H200),
    "float32": (of_dtypes(FLOAT), r"is float32", H200),
    "odd sizes": (of_sizes, r"head_dim is 63|must be multiples of", H200),
    "heads of more than 256": (of_large_heads, r"head_dim is 264, but the kernel has", H200),
    "jax.grad": (differentiated, r"has no gradient", H200),
    "jax.vmap": (mapped, r"refused by none", H200),
    "forward mode": (forward_mode, r"has no gradient|forward-mode autodiff \(jvp\)", H200),
    "windows, segments": (
        with_options(dot_product_attention=OF_JAX, others=MASKS), r"is not there, since", H200,
    ),
    "a soft cap, sinks": (with_options(others=SCALARS), r"is not there, since", H200),
    "a mask or a bias as an array": (
        with_options(matmul=ADDED, ragged_dot=BIASES[:1], scaled_matmul=BIASES[:1],
                     rms_norm=BIASES[:1], others=BIASES), r"is not there", H200,
    ),
    "pages of keys": (with_options(others=PAGES), r"page_table is not there: pages of", H200),
    "a GPU before Hopper": (unchanged, r"A100 has compute capability 8\.0, but", A100),
    "a GPU after Hopper": (unchanged, r"B200 has compute capability 10\.0, but", B200),
}  # fmt: skip


def test_the_table_has_all_kernels_and_rows():
    rows, columns = zip(*CELLS)
    assert {*rows} == {*ASKS} and {*columns} == {*BASE}
    assert {*CELLS.values()} == {YES, JAX, REFUSED, DASH}
    functions = {x for x in made.__all__ if not x.endswith(("Config", "_space", "_reference"))}
    assert {*columns} == functions


@pytest.mark.parametrize(("row", "column"), [cell for cell in CELLS if CELLS[cell] != DASH])
@pytest.mark.usefixtures("traced_anew")
def test_a_cell_is_so(row, column):
    change, words, gpu = ASKS[row]
    calls = [*change(*BASE[column], column)]
    assert calls
    for function, arrays in calls:
        with assumed(gpu), jax.numpy_dtype_promotion("standard"):
            if CELLS[row, column] == REFUSED:
                kinds = TypeError, ValueError, NotImplementedError
                with pytest.raises(kinds, match=words):
                    jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
            else:
                has_kernel = "mpmd_map" in primitives(jax.make_jaxpr(function)(*arrays))
                assert has_kernel == (CELLS[row, column] == YES)
