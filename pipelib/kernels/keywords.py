"""Names that other libraries have for a kernel's arguments: refused in a sentence that says ours.

The model. A table has for each name, or for several with spaces between them, how the error goes on
after it: what to call it here, or why it is not there and what to use. The names are those of JAX,
tokamax, PyTorch, flash_attn and transformers. For others, Python's TypeError names our nearest.
"""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

_SCORES = {
    "query key value k_cache v_cache": "is one of q, k and v here.",
    "softmax_scale sm_scale": "is called scale here.",
    "return_lse return_softmax_lse return_attn_probs return_residual": "is called return_residuals"
        " here, the natural log-sum-exp, float32 [batch, heads, q_seq]; no probabilities are kept.",
    "dropout dropout_p dropout_rate": "is not there, since the kernel draws no random numbers:"
        " leave it out where it is 0, and else compute in plain JAX.",
    "enable_gqa pack_gqa": "is not needed: k and v may have fewer heads than q.",
}  # fmt: skip
ATTENTION = _SCORES | {
    "is_causal": "is called causal here, aligned at the top left as in JAX and PyTorch, where"
        " flash_attn aligns the last query with the last key.",
    "window_size": "is called window here, (left, right) too, but None is unbounded, not -1, and"
        " both count from key i for query i, where flash_attn aligns the last of both.",
    "local_window_size": "is called window here, with the same (left, right), or one for both.",
    "sliding_window": "is called window here, where (n - 1, 0) are n keys, a query's own the last.",
    "bias attn_bias mask attn_mask attention_mask": "is not there, since the kernel has only"
        " causal, window and segment_ids (which hide padding, too): give it to"
        " pipelib.kernels.dot_product_attention, where JAX's own function computes then.",
    "alibi_slopes": "is not there: give -slopes * |i - j| as the bias of"
        " pipelib.kernels.dot_product_attention, where JAX's own function computes then.",
    "softcap logits_soft_cap logits_softcap": "is called soft_cap here.",
    "sink s_aux attention_sink": "is called sinks here.",
    "cu_seqlens_q cu_seqlens_k": "is one of cu_seqlens here, one array, or a pair of q's and k's,"
        " with q[None], k[None] and v[None]; causal and window count from the first token of all.",
    "max_seqlen_q max_seqlen_k": "is not needed: arrays have their lengths as shapes.",
    "query_seq_lengths key_value_seq_lengths seqused_q seqused_k": "is not there: call"
        " pipelib.kernels.dot_product_attention, which makes segment_ids of lengths.",
    "block_table block_tables page_table": "is not there: pages of keys are for decoding, by"
        " pipelib.kernels.decode_attention.",
    "q_descale k_descale v_descale": "is not there: q's and k's, one number each, are factors of"
        " scale here, and v's multiplies the result.",
}  # fmt: skip
DECODE = _SCORES | {
    "causal is_causal": "is not there, since it is always so, aligned at the last key as in"
        " flash_attn: query i of a sequence of L keys sees keys up to L - q_seq + i.",
    "window window_size local_window_size sliding_window softcap soft_cap sinks segment_ids bias"
    " mask attn_mask alibi_slopes": "is not there, since the kernel knows only lengths: compute it"
        " by jax.nn.dot_product_attention, with a mask or a bias, or in plain JAX.",
    "cache_seqlens seq_lens context_lens key_value_seq_lengths": "is called lengths here, integers"
        " [batch], and counts the new keys, too.",
    "block_table block_tables": "is called page_table here, integers [batch, pages_per_sequence].",
    "num_splits": "is a field of config here: config=DecodeConfig(splits=...).",
}  # fmt: skip
PRODUCT = {
    "preferred_element_type dtype": "is called out_dtype here.",
    "precision": "is not there, since products are always added up in float32.",
}
_FACTORS = {"x lhs input": "is called a here.", "y rhs other": "is called b here."}
MATMUL = PRODUCT | _FACTORS | {
    "transpose_lhs": "is called transpose_a here.", "transpose_rhs": "is called transpose_b here.",
    "dimension_numbers": "is not there: a is [M, K] and b [K, N], or else use transpose_a and"
        " transpose_b, and jax.vmap for batches.",
    "bias residual": "is one of the epilogue's operands here, as in epilogue=lambda acc, bias: acc"
        " + bias, operands=(bias,).",
    "activation": "is the epilogue here, as in epilogue=jnp.tanh.",
    "scale_a scale_b": "is not there: scales of blocks are for pipelib.kernels.scaled_matmul, and"
        " one of a row, a column or the whole is one of the epilogue's operands.",
}  # fmt: skip
RAGGED = PRODUCT | {
    "offs": "is not there: give the groups' sizes, group_sizes=jnp.diff(offs, prepend=0).",
    "activation bias": "is not there: apply it to the result.",
}
SCALED_PRODUCT = PRODUCT | _FACTORS | {
    "scale_a lhs_scales": "is called a_scales here, factors for each 128 numbers of a row.",
    "scale_b rhs_scales": "is called b_scales here, factors for each 128 x 128 numbers.",
    "bias": "is not there: add it to the result.",
}  # fmt: skip
_ROWS = {
    "axis dim normalized_shape": "is not there, since rows lie along the last axis: jnp.moveaxis.",
    "dtype": "is not there: it computes in float32 and gives x's dtype, so cast x, or the result.",
    "input": "is called x here.",
}
SOFTMAX = _ROWS | {"where": "is not there: give -inf for these elements."}
RMS_NORM = _ROWS | {
    "epsilon": "is called eps here.", "scale gamma": "is called weight here.",
    "bias": "is not there: add it to the result.",
}  # fmt: skip


def knows[F: Callable[..., Any]](table: dict[str, str]) -> Callable[[F], F]:
    """A decorator: the function refuses the names of a table, in its sentences, with TypeError."""
    sentences = {name: text for names, text in table.items() for name in names.split()}

    def decorated(function: F) -> F:
        ours = inspect.signature(function).parameters

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            for name in options.keys() - ours.keys():
                if name in sentences:
                    raise TypeError(f"{function.__name__}: {name} {sentences[name]}")
                for near in difflib.get_close_matches(name, ours, 1):
                    unexpected = f"got an unexpected keyword argument {name!r}"
                    raise TypeError(f"{function.__name__}() {unexpected}. Did you mean {near!r}?")
            return function(*args, **options)

        return cast(F, called)

    return decorated
