"""Measures `pipelib.kernels.attention` beside JAX's own Hopper kernels, cuDNN and PyTorch.

    python -m benchmarks.attention tune       searches for our configurations, forward
    python -m benchmarks.attention forward    each problem by all contenders
    python -m benchmarks.attention ladder     every rung of `attention_ladder`
    python -m benchmarks.attention ideas      orders within a step (`benchmarks/attention_ideas.py`)
    python -m benchmarks.attention backward   gradients
    python -m benchmarks.attention narrow     float8, forward
    python -m benchmarks.attention options    a soft cap, sinks, packed documents
    python -m benchmarks.attention sizes      lengths and heads of other sizes, forward
    python -m benchmarks.attention untuned    sizes drawn by chance (`benchmarks/untuned.py`)
    python -m benchmarks.attention table      prints the record

The model. Contenders are held in processes, and run in turn (`benchmarks.processes`). What a burst
is, how errors are taken and how operations are counted stands in `attention_problems`.

JAX's kernels are given some configurations each, of which the record has all; they take float16
only, have no causal gradients, and refuse what does not fit, which is then their reason. cuDNN is
called through `jax.nn.dot_product_attention`; it has a process of its own in which XLA picks its
plan. PyTorch's back ends run where PyTorch is, FlashAttention's builds where these are
(`benchmarks/peers.py`), each in a process of its own, since CUPTI serves JAX or PyTorch.
"""

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import peers, suite, untuned
from benchmarks.attention_ideas import IDEAS
from benchmarks.attention_problems import (
    EMITTER,
    SEED,
    UPSTREAM,
    Contender,
    Problem,
    Sdpa,
    cudnn,
    not_persistent,
    prepare,
    upstream,
    widened,
)
from benchmarks.processes import InProcesses, Search, progress
from benchmarks.records import Group
from benchmarks.suite import OTHERS, Call, Part, Suite, Traced
from pallascope.tuning.measuring import OnGpu, tolerance
from pallascope.tuning.results import Found
from pallascope.tuning.searching import climb, nothing
from pallascope.tuning.workers import Run, Workers
from pipelib.kernels import attention
from pipelib.kernels.attention import default_config, forward
from pipelib.kernels.attention.band import Options, Sizes
from pipelib.kernels.attention.config import AttentionConfig, GradientConfig
from pipelib.kernels.hopper import Gpu, assumed
from pipelib_book import attention_forms
from pipelib_book.attention_forms import RungConfig
from pipelib_book.attention_ladder import RUNGS
from pipelib_book.measured import attention as measured
from pipelib_book.measured.attention import BUILDS, FA3, FA3_JAX, FA3_WHEEL, FA4_WHEEL

OURS, CUDNN, BOTH, PINGPONG = "attention", "cuDNN (XLA)", "both", "pingpong"
#: PyTorch's back ends, by the names of their contenders.
TORCH = {f"PyTorch {name}": name for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION")}
COMPILE_S, RUN_S = 90.0, 30.0
LAUNCHES = 5
#: The largest error of a right element of float8, in root mean squares: 8 of their deviations.
_NARROW_ERROR = 0.25
_HALF, _BRAIN, _NARROW = "float16", "bfloat16", "float8_e4m3fn"

_SHAPES = (16384, 128), (16384, 64), (16384, 256), (4096, 128), (1024, 128)
FORWARD = tuple(
    Problem(seq, head_dim, causal, dtype)
    for dtype in (_HALF, _BRAIN)
    for seq, head_dim in _SHAPES
    for causal in (False, True)
)
LADDER = tuple(
    Problem(16384, head_dim, causal, _HALF) for head_dim in (128, 64) for causal in (False, True)
)
TRIED = tuple(Problem(16384, 128, causal) for causal in (False, True))
BACKWARD = (
    *(
        Problem(8192, head_dim, causal, dtype, True)
        for dtype in (_HALF, _BRAIN)
        for head_dim in (128, 64, 256)
        for causal in (False, True)
    ),
    *(Problem(16384, 128, causal, _BRAIN, True) for causal in (False, True)),
    *(Problem(1500, 128, causal, _BRAIN, True, batch=4, kv_heads=4) for causal in (False, True)),
)
#: Of 8 bits, forward.
NARROW = tuple(
    Problem(seq, head_dim, causal, _NARROW)
    for seq, head_dim in ((16384, 64), (16384, 128), (16384, 256), (4096, 128))
    for causal in (False, True)
)
#: Lengths that are no multiple of 128, each beside the next one that is; sizes of heads that have
#: no tiles of their own; heads of v of another size; and heads of q that share those of k and v.
_LENGTHS = (
    *(Problem(seq, 128, batch=8) for seq in (777, 896)),
    *(Problem(seq, 128) for seq in (4097, 4224)),
)
_HEADS = (*(Problem(8192, size) for size in (80, 96, 112, 192)), Problem(8192, 192, v_head_dim=128))
_SHARED = Problem(2048, 128, True, heads=32, batch=8, kv_heads=8)
SIZES = (
    *(x._replace(causal=causal) for x in (*_LENGTHS, *_HEADS) for causal in (False, True)),
    _SHARED,
)
#: What a soft cap and sinks cost, each beside the same without; documents in a batch, and packed.
_LONG = Problem(16384, 128)
_PACKED = Problem(1024, 128, True, batch=16), Problem(16384, 128, True, documents=16)
OPTIONS = (
    *(
        asked._replace(seq=16384 >> backward, causal=causal, backward=backward)
        for backward in (False, True)
        for causal in (False, True)
        for asked in (_LONG, _LONG._replace(soft_cap=50.0), _LONG._replace(sinks=True))
    ),
    *(
        asked._replace(head_dim=head_dim, backward=backward)
        for backward in (False, True)
        for head_dim in (64, 128, 256)
        for asked in _PACKED
    ),
)
TUNE = tuple(
    Problem(seq, head_dim, causal, _HALF) for seq, head_dim in _SHAPES for causal in (False, True)
)


# Contenders.


def ours(problem: Problem, config: AttentionConfig | None) -> Contender:
    """`pipelib.kernels.attention`; of `config` None, with the configuration that it picks."""
    return functools.partial(attention, **problem.options, config=config)


def baselines(problem: Problem) -> dict[str, Any]:
    """All but ours."""
    found: dict[str, Any] = {CUDNN: functools.partial(cudnn, causal=problem.causal)}
    if problem.dtype == _HALF and not (problem.causal and problem.backward):
        found |= _upstreams(problem)
    found |= {name: Sdpa(backend, problem.causal) for name, backend in TORCH.items()}
    return found | _peers(problem)


def _strongest(problem: Problem) -> dict[str, Any]:
    """cuDNN, where JAX lets it do what is asked, and the peers that are there."""
    plain = not (problem.soft_cap or problem.sinks or problem.documents)
    found = {CUDNN: functools.partial(cudnn, causal=problem.causal)} if plain else {}
    return found | _peers(problem)


def _peers(problem: Problem) -> dict[str, Any]:
    """The builds of FlashAttention that are there, and have a kernel for this; none has sinks."""
    if problem.sinks:
        return {}
    is_8_bit, is_even = problem.dtype == _NARROW, math.ceil(problem.seq / 128) % 2 == 0
    is_plain = not is_8_bit and problem.v_head_dim is None and not problem.soft_cap
    # Its gradients have a head for each head of q.
    of_folder = not (problem.backward and problem.kv_heads) and (problem.causal or is_even)
    of_torch = not problem.backward
    kernels = {
        FA3: is_plain and of_folder and problem.head_dim in _FA3_HEADS and not problem.documents,
        FA3_WHEEL: of_torch and problem.dtype != _HALF,
        FA3_JAX: is_plain and problem.head_dim == 128,
        FA4_WHEEL: of_torch and not is_8_bit,
    }
    made: dict[str, Any] = {
        name: peers.Fa3(problem.causal, name, problem.soft_cap, problem.ends) for name in kernels
    }
    options = dict(causal=problem.causal, backward=problem.backward, ends=problem.ends)
    made[FA3_JAX] = functools.partial(peers.fa3_jax, **options)
    return {name: made[name] for name, has_it in kernels.items() if has_it and peers.has(name)}


def _upstreams(problem: Problem) -> dict[str, Any]:
    """JAX's kernels with blocks and slots that its shared memory and registers may hold."""
    found = {}
    if problem.backward:
        for q_dkv, kv_dkv, q_dq, kv_dq in _UPSTREAM_BACKWARD:
            for threads in (1, 2):
                name = f"{UPSTREAM}, {q_dkv}x{kv_dkv}, {q_dq}x{kv_dq}, {threads} threads"
                found[name] = functools.partial(
                    upstream, name=UPSTREAM, block_q=64, block_kv=64, max_concurrent_steps=2,
                    compute_wgs_bwd=threads, block_q_dkv=q_dkv, block_kv_dkv=kv_dkv,
                    block_q_dq=q_dq, block_kv_dq=kv_dq,
                )  # fmt: skip
        return found
    names = (UPSTREAM,) if problem.causal else (UPSTREAM, EMITTER)
    for name, (block_kv, slots) in itertools.product(names, _UPSTREAM_FORWARD[problem.head_dim]):
        found[f"{name}, {block_kv} keys, {slots} slots"] = functools.partial(
            upstream,
            name=name,
            block_q=64,
            block_kv=block_kv,
            max_concurrent_steps=slots,
            causal=problem.causal,
        )
    return found


#: Keys of a step and slots, by head_dim; and queries and keys of dK and dV's steps, then of dQ's.
_UPSTREAM_FORWARD = {
    64: ((256, 2), (128, 4), (128, 2)),
    128: ((128, 2), (64, 4)),
    256: ((64, 2),),
}
_UPSTREAM_BACKWARD = ((64, 64, 64, 64), (64, 64, 64, 128))
#: The sizes of a head of which a folder has FlashAttention-3: dense, an even number of 128 keys.
_FA3_HEADS = (64, 128, 256)
#: Of ours, by the size of a head: gradients in a fixed order. (The forward pass is not timed.)
_IN_ORDER = {
    64: AttentionConfig(slots=4, compute_threads=3),
    128: AttentionConfig(),
    256: AttentionConfig(block_kv=64),
}
#: Others of ours: dQ's kernel, then that of dK and dV.
_BACKWARD_CONFIGS = {
    "dQ of 64 keys by 3 threads": AttentionConfig(
        dq=GradientConfig(block=64, slots=2, compute_threads=3, memory_registers=32)
    ),
    "dQ of 64 keys": AttentionConfig(dq=GradientConfig(block=64, slots=4)),
    "dK, dV with 2 slots": AttentionConfig(dkv=GradientConfig(block=64, slots=2)),
}
#: With a head of 256: two threads leave room for one slot, unless it is dV that they make.
_BACKWARD_CONFIGS_OF_256 = {
    "dQ by 2 threads": AttentionConfig(block_kv=64, dq=GradientConfig(slots=1)),
    "dK, dV by 2 threads": AttentionConfig(block_kv=64, dkv=GradientConfig(slots=1)),
    "dK, dV by 1 thread": AttentionConfig(block_kv=64, dkv=GradientConfig(compute_threads=1)),
}


def _forward(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours as it picks, as the record's search found, and not persistent; and all others."""
    found: dict[str, Any] = {OURS: ours(problem, None)}
    like = lambda group: problem._replace(dtype=group["problem"]["dtype"]).as_json()
    for group in groups:
        if group["part"] == "tune" and group["problem"] == like(group):
            found[f"{OURS}, tuned"] = ours(problem, AttentionConfig(**group["best"]))
    if is_persistent(problem):
        found[f"{OURS}, not persistent"] = functools.partial(not_persistent, causal=problem.causal)
    return found | baselines(problem)


def is_persistent(problem: Problem) -> bool:
    """Whether the forward kernel is that `attention` picks on an H200."""
    seq, item = problem.seq, jnp.dtype(problem.dtype).itemsize
    sizes = Sizes(problem.batch, seq, seq, problem.heads, 1, problem.head_dim)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        config = default_config(problem.head_dim)
        options = Options(None, 0 if problem.causal else None, 1.0, config)
        return forward.order_of(options, sizes, item).persistent is not None


def _ladder(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """The rungs of this size of a head; with heads of 64 also those of the others, for two."""
    rungs = [rung for rung in RUNGS if rung.head_dim in (problem.head_dim, 128)]
    in_registers = {
        f"rung {rung.number} with p in registers": ours(
            problem, dataclasses.replace(rung.config, probabilities="registers")
        )
        for rung in rungs
        if rung.config.through_smem
    }
    every = {f"rung {rung.number}": ours(problem, rung.config) for rung in rungs}
    return every | in_registers | _strongest(problem)


def _ideas(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """What `attention` picks, "pingpong", "both" with p in registers, and ideas to change it."""
    found = {OURS: ours(problem, None)}
    found[PINGPONG] = ours(problem, AttentionConfig(schedule="pingpong"))
    found[BOTH] = ours(problem, RungConfig(schedule="both"))
    found |= {idea.name: ours(problem, idea.config) for idea in IDEAS}
    return found | _strongest(problem)


def _backward(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours in a fixed order, with one kernel changed, or one for all (its default); all others."""
    found: dict[str, Any] = {OURS: ours(problem, _IN_ORDER[problem.head_dim])}
    configs = _BACKWARD_CONFIGS_OF_256
    if problem.head_dim < 256:
        more = GradientConfig(block=128 * 64 // problem.head_dim)  # registers of the memory thread
        configs = _BACKWARD_CONFIGS | {
            "one kernel": AttentionConfig(fused=True),
            f"one kernel, {more.memory_registers} registers": AttentionConfig(fused=more),
        }
    for name, config in configs.items():
        found[f"{OURS}, {name}"] = ours(problem, config)
    return found | baselines(problem)


def _sizes(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours as it picks, and the strongest others."""
    return {OURS: ours(problem, None)} | _strongest(problem)


def _narrow(problem: Problem, groups: Sequence[Group]) -> dict[str, Any]:
    """Ours and a build's in float8, ours also by other schedules; ours and cuDNN's in bfloat16."""
    found: dict[str, Any] = {OURS: ours(problem, None)} | _peers(problem)
    for schedule in ("pingpong", "both", "overlap", "optimistic"):
        config = RungConfig(block_kv=128, schedule=schedule)
        found[f"{OURS}, {schedule}"] = ours(problem, config)
    wide = {f"{OURS}, bfloat16": ours(problem, None), CUDNN: baselines(problem)[CUDNN]}
    return found | {name: functools.partial(widened, contender=made) for name, made in wide.items()}


# A search.


def space(problem: Problem) -> list[AttentionConfig]:
    """All forward configurations of a grid that fit, those with most keys in SMEM first."""
    found = attention_forms.space(problem.head_dim)
    return sorted(found, key=lambda config: -config.smem_bytes(problem.head_dim))


def _prepare(config: AttentionConfig, problem: Problem) -> Run:
    """A task for a search: checks and times a configuration once."""
    run = prepare(ours(problem, config), problem)

    def measure(samples: int) -> dict[str, Any]:
        us = run("burst", samples)["us"]
        return dict(error=run("check"), us=us, most_error=most_error(problem))

    return measure


def _search(call: Call, problem: Problem) -> Found[AttentionConfig]:
    on_gpu = OnGpu(call.pools[OTHERS], functools.partial(_prepare, problem=problem), LAUNCHES)
    log = progress(problem, call.say)
    return climb(space(problem), nothing, on_gpu, limit=call.options.limit, log=log)


def as_json(config: AttentionConfig) -> dict[str, Any]:
    """A forward configuration's fields."""
    values = dataclasses.asdict(config)
    return {name: value for name, value in values.items() if name not in ("dq", "dkv")}


# How they are measured.


def pools(options: argparse.Namespace) -> dict[str, Workers]:
    """Processes: for those who need one of their own, and for all others."""
    own = [CUDNN, *TORCH, *filter(peers.has, BUILDS)]
    begin = functools.partial(
        Workers, env=dict(XLA_FLAGS=suite.XLA_FLAGS), prepare_s=COMPILE_S, run_s=RUN_S
    )
    return {name: begin(1) for name in own} | {OTHERS: begin(options.jobs)}


def most_error(problem: Problem) -> float:
    """Probabilities of float8 have 4 bits, which leaves errors of 0.03 root mean squares."""
    is_narrow = jnp.dtype(problem.dtype).itemsize == 1
    return _NARROW_ERROR if is_narrow else tolerance(problem.out.dtype)


def gradients(contender: Any, q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Any:
    """The pull-back of the result's cotangent."""
    return jax.vjp(contender, q, k, v)[1](d_out)


def traced(problem: Problem, name: str, contender: Any) -> Traced:
    """What JAX traces for ours: the forward pass, or the gradients."""
    if name.partition(",")[0] in measured.OTHERS:
        return None
    if problem.backward:
        return functools.partial(gradients, contender), (problem.out,) * 4
    return contender, (problem.out,) * 3


_ATTENTIONS: dict[str, Any] = dict(traced=traced, problem=Problem, plain=Problem.as_json)
_TUNE = Search("tune", _search, as_json, lambda plain, group: RungConfig(**plain), ours)
_part = functools.partial(
    Part, measure=InProcesses(prepare, most_error, suite.XLA_FLAGS), **_ATTENTIONS
)
SUITE = Suite(
    "attention",
    {
        "tune": Part(_TUNE.contenders, _TUNE, problems=TUNE, **_ATTENTIONS),
        "forward": _part(_forward, problems=FORWARD),
        "ladder": _part(_ladder, problems=LADDER),
        "ideas": _part(_ideas, problems=TRIED),
        "backward": _part(_backward, problems=BACKWARD),
        "narrow": _part(_narrow, problems=NARROW),
        "options": _part(_sizes, problems=OPTIONS),
        "sizes": _part(_sizes, problems=SIZES),
        "untuned": _part(_sizes, problems=(*untuned.attentions(),)),
    },
    (suite.tflops, suite.beside("{:.3f}x", *measured.OTHERS)),
    dict(
        seed=SEED,
        distribution="standard normal, q divided by sqrt(head_dim), rounded to the dtype",
    ),
    {"--limit": dict(type=int, default=60, help="configurations of one search")},
    processes=pools,
)

if __name__ == "__main__":
    suite.main("attention")
