"""Products and attentions whose sizes are drawn by chance, so that nobody tuned for them.

The model. `problems` are products. M is log-uniform from 1 to 16384: tokens, from a single one to
a long prefill. Of N and K one half are those of a layer of a published model, as its `config.json`
has them; the other half are odd: multiples of 8, log-uniform from 64 to 16384. Of 10 of the 60
products the factors and the result divide into pieces; copies of the other 50 see rows
(`pipelib.tiles`).

`attentions` have 200 to 16384 tokens, log-uniform, in as many sequences as have no more tokens
together than the longest; 8 to 64 heads of 64 to 256, of which 1 to 8 share one of k and v; a half
are causal, and of every other one the gradients are measured.

The seed is fixed, so all runs have the same problems.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks import attention_problems
from benchmarks.products import Problem

SEED, COUNT = 0, 60
#: Of attentions: how many, tokens, and of what heads, their sizes and how many share one.
ATTENTIONS, FEWEST_TOKENS, MOST_TOKENS = 40, 200, 16384
HEADS, HEAD_DIMS, SHARED = (8, 16, 32, 64), (64, 96, 128, 256), (1, 2, 4, 8)
MOST_ROWS, FEWEST, MOST, STEP = 16384, 64, 16384, 8
#: Layers, (N, K): queries, keys and values; their way out; up and gate; down.
LAYERS = (
    # Llama 3.1, 8 billion parameters.
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
    # Llama 3.1, 70 billion.
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672),
    # Qwen2.5, 7 billion.
    (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944),
    # DeepSeek-V3: its compressed attention, and an expert.
    (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048),
)  # fmt: skip


def problems(count: int = COUNT, seed: int = SEED) -> Iterator[Problem]:
    """The products, in bfloat16, in the order in which they are drawn."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        m = round(_log_uniform(rng, 1, MOST_ROWS))
        if i % 2:
            n, k = (STEP * round(_log_uniform(rng, FEWEST, MOST) / STEP) for _ in "nk")
        else:
            n, k = LAYERS[rng.integers(len(LAYERS))]
        yield Problem(m, n, k)


def attentions(count: int = ATTENTIONS, seed: int = SEED) -> Iterator[attention_problems.Problem]:
    """The attentions, in bfloat16, in the order in which they are drawn."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        seq = round(_log_uniform(rng, FEWEST_TOKENS, MOST_TOKENS))
        batch = round(_log_uniform(rng, 1, MOST_TOKENS // seq))
        heads, head_dim, shared = (int(rng.choice(x)) for x in (HEADS, HEAD_DIMS, SHARED))
        yield attention_problems.Problem(
            seq, head_dim, bool(rng.integers(2)), backward=bool(i % 2), heads=heads, batch=batch,
            kv_heads=heads // shared if shared > 1 else None,
        )  # fmt: skip


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
