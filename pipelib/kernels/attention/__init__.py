"""`attention`: softmax(scale Q K^T) V, without the scores in memory.

The model. Each module has one part of it:

==================  ==============================================================================
`config`            how the work is divided, and what that takes of an SM
`arguments`         which arguments are refused
`call`              `attention` itself: it picks a configuration, and has the gradients' rules
`drop_in`           `dot_product_attention`: JAX's own arguments
`band`              which scores are seen, and so which steps a block takes
`order`             which block runs when
`choosing`          the configuration of the forward kernel, if none is given
`padding`           arrays that copies can address
`pieces`            a head in SMEM, whole, or as copies see its rows
`forward`           the forward kernel: its launch
`queries`           the parts of its compute threads
`schedules`         the steps of its compute threads, one class for each schedule
`optimistic`        the schedule whose steps make no maximum unless they must
`backward`          the kernels of the gradients: their launch
`gradients`         their compute threads, one class for each kernel
`reference`         the same in plain JAX
`decode`            `decode_attention`: a few queries of each sequence, and a cache of keys
`decode_config`     how its work is divided
`decode_kernel`     its kernel: its launch, its threads, and how parts of keys are combined
==================  ==============================================================================

Sizes. The kernels have head dimensions of 64, 128 and 256. Pallas copies pieces of 8 rows x 128
bytes, because `wgmma` reads SMEM in this layout, so both sequences must have a multiple of 8
tokens. For other sizes, copies see rows (`pieces`), of heads of up to 64, 128, 192 or 256: a head
of 80 costs as much as one of 128. Where they cannot (float8, heads that are no multiple of 8, JAX's
interpreter; gradients with heads of 129 to 192, or with heads of v of another number of pieces than
q's), the operands are filled up with zeros, and the results cut (`padding`), which copies each of
them once. For heads of more than 256 plain JAX computes the result (`reference`), and the
configuration is not used.

Gradients are made from the log-sum-exp of each row. With a head dimension of 64 or 128, one kernel
makes them, or two, if the call is to be `deterministic`; with 256, three. For larger heads plain
JAX makes them, in float32, for some queries at a time, so that it never holds all scores. Where few
heads of k would leave SMs idle, blocks share the queries of one, and their results are added up.

Scores may be capped (`soft_cap`), and each head may have a sink (`sinks`), a score more whose value
is zeros. A sink is added to the sums of a row in the end. Its gradient is plain JAX's, from the
log-sum-exp, which it is a part of.

Packed documents. With `segment_ids` a block goes only through the blocks of keys from the first to
the last that has one of its queries' documents, and masks those alone that have the end of one
(`band`).

Not covered: dropout; biases, as of ALiBi; pages of keys, but by `decode_attention`; masks that are
given as arrays; gradients of gradients of the kernels, for which JAX says "Differentiation rule for
'mpmd_map' not implemented"; forward mode (`jax.jvp`, `jax.jacfwd`), for which JAX's TypeError names
forward-mode autodiff and custom_vjp.
"""

from pipelib.kernels.attention.call import (
    attention,
    attention_kernel,
    attention_reference,
)
from pipelib.kernels.attention.choosing import default_config
from pipelib.kernels.attention.config import AttentionConfig, GradientConfig
from pipelib.kernels.attention.decode import decode_attention
from pipelib.kernels.attention.decode_config import DecodeConfig
from pipelib.kernels.attention.drop_in import dot_product_attention

__all__ = [
    "AttentionConfig",
    "DecodeConfig",
    "GradientConfig",
    "attention",
    "attention_kernel",
    "attention_reference",
    "decode_attention",
    "default_config",
    "dot_product_attention",
]
