"""`attention` of sizes that no copy of pieces can address: problems, and its cases."""

import functools

from pipelib.kernels import AttentionConfig, attention
from tests.kernels.attention.cases import BRAIN, HALF, check_close, exact, operands
from tests.kernels.contract import CHECKED, ON_GPU, Call, case

#: Queries, keys, heads of q and of k, the size of q's heads, of v's, and options.
PROBLEMS = {
    "777 tokens": ((777, 777, 4, 2, 128, 128), {"causal": True}),
    "heads of 80": ((520, 1001, 2, 2, 80, 80), {}),
    "heads of 192, values of 128": ((1000, 1000, 2, 1, 192, 128), {"causal": True}),
    "heads of 96": ((129, 2047, 2, 1, 96, 96), {"window": (300, 100)}),
    "heads of 192": ((777, 1031, 2, 1, 192, 192), {}),
    "heads of 20": ((200, 1031, 2, 1, 20, 20), {}),
}


def arrays_of(queries, keys, heads, kv_heads, head_dim, values, dtype=HALF):
    q, k, _ = operands(queries, keys, heads, kv_heads, head_dim, dtype)
    _, _, v = operands(queries, keys, heads, kv_heads, values, dtype)
    return q, k, v


# What every kernel is asked.


@case("attention, any size", CHECKED, causal=[False, True])
def heads_of_80(causal):
    call = functools.partial(attention, causal=causal, config=AttentionConfig())
    return Call(call, arrays_of(777, 777, 2, 1, 80, 80), is_hopper=False)


@case("attention, any size", ON_GPU, problem=PROBLEMS, dtype={"float16": HALF, "bfloat16": BRAIN})
def default(problem, dtype):
    sizes, options = problem
    arrays = arrays_of(*sizes, dtype)
    call = functools.partial(attention, return_residuals=True, **options)
    return Call(call, arrays, lambda found: check_close(found, exact(*arrays, **options), dtype))
