"""An attention to be measured: its arrays, its error, its times.

The model. `Problem` is what is asked for, and a *contender* a function of `(q, k, v)` that does it
in JAX, or one that does it with PyTorch's tensors: `Sdpa`, or `peers.Fa3`. Of a backward problem,
the gradients of q, k and v are measured: the pull-back, without the forward pass that it needs.

Samples. Times are those of a launch's kernels by CUPTI, added up. (In records of before PyTorch's
profiler was asked, PyTorch's are by CUDA events, whose name stands in place of the kernels': they
count the gap between two launches as well.)

Errors. Some rows of the first and the last head are compared with float64: queries of the result
and of dQ, keys of dK and dV. Everything else must be finite.

Operands are normal random numbers, [batch, seq, heads, head_dim]; q is divided by the square root
of head_dim and then rounded, and no contender scales the scores: JAX's kernels do not. Not covered:
caches; a launch finds the operands in L2 as far as they fit, as it does for all of these.
"""

import collections
import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu

from benchmarks import in_torch, peers
from pallascope.bench.cupti import Kernel, kernel_times
from pipelib.kernels import attention
from pipelib.kernels.attention import default_config

UPSTREAM, EMITTER = "attention_mgpu", "emitter"
SEED, SAMPLED, CHUNK = 0, 32, 1024

Contender = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Problem(NamedTuple):
    """Attention of `seq` queries to as many keys; the dtype by name.

    Attributes:
      kv_heads: heads of k and v; None: as many as of q.
      v_head_dim: the size of a head of v and of the result; None: that of q and k.
      soft_cap: of the scores.
      sinks: whether each head has a sink.
      documents: how many documents of equal lengths a sequence is packed of.
    """

    seq: int
    head_dim: int
    causal: bool = False
    dtype: str = "bfloat16"
    backward: bool = False
    heads: int = 16
    batch: int = 1
    kv_heads: int | None = None
    v_head_dim: int | None = None
    soft_cap: float | None = None
    sinks: bool | None = None
    documents: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def flops(self) -> int:
        """Multiplications and additions of 2 products, or of the 5 that gradients need at least.

        Half of them if causal, as is usual.
        """
        of_v = self.out.shape[-1]
        columns = 3 * self.head_dim + 2 * of_v if self.backward else self.head_dim + of_v
        every = 2 * self.batch * self.heads * self.seq**2 // (self.documents or 1) * columns
        return every // 2 if self.causal else every

    @property
    def arrays(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What q, k, v and the result's cotangent are."""
        of_v = self.v_head_dim or self.head_dim
        kv_heads = self.kv_heads or self.heads
        sizes = (
            (self.heads, self.head_dim),
            (kv_heads, self.head_dim),
            (kv_heads, of_v),
            (self.heads, of_v),
        )
        like = lambda size: jax.ShapeDtypeStruct((self.batch, self.seq, *size), self.dtype)
        return tuple(map(like, sizes))

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """What the result is."""
        return self.arrays[-1]

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results: the output, or the gradients."""
        return ("dq", "dk", "dv") if self.backward else ("out",)

    def __str__(self) -> str:
        kind = ("dense", "causal")[self.causal] + (" backward" if self.backward else "")
        heads = f"{self.heads}:{self.kv_heads}" if self.kv_heads else f"{self.heads}"
        sizes = f"{self.head_dim}:{self.v_head_dim}" if self.v_head_dim else f"{self.head_dim}"
        kind += f" soft cap {self.soft_cap:g}" if self.soft_cap else ""
        kind += " sinks" if self.sinks else ""
        kind += f" of {self.documents} documents" if self.documents else ""
        return f"{self.batch}x{self.seq}x{heads}x{sizes} {self.dtype} {kind}"

    @property
    def options(self) -> dict[str, Any]:
        """What `attention` is asked for beside the arrays. (NumPy's: who asks may have no GPU.)"""
        found: dict[str, Any] = dict(causal=self.causal, scale=1.0)
        if self.soft_cap:
            found["soft_cap"] = self.soft_cap
        if self.sinks:
            found["sinks"] = np.linspace(-2.0, 2.0, self.heads, dtype=np.float32)
        if self.ends:
            found["cu_seqlens"] = np.array(self.ends, np.int32)
        return found

    @property
    def ends(self) -> tuple[int, ...] | None:
        """Where documents begin and end, from 0 on; None if there is one."""
        if (count := self.documents) is None:
            return None
        return tuple(i * self.seq // count for i in range(count + 1))


class Sdpa(NamedTuple):
    """PyTorch's `scaled_dot_product_attention` by one of its back ends, a name of `SDPBackend`."""

    backend: str
    causal: bool


def not_persistent(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    """Ours as it picks, but a block does not go on to other queries."""
    config = dataclasses.replace(default_config(q.shape[-1]), persistent=False)
    return attention(q, k, v, causal=causal, scale=1.0, config=config)


def widened(q: jax.Array, k: jax.Array, v: jax.Array, *, contender: Contender) -> jax.Array:
    """A contender of arrays in bfloat16; the casts are timed, too: long for few tokens."""
    return contender(*(x.astype(jnp.bfloat16) for x in (q, k, v)))


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    """cuDNN's, through JAX."""
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, scale=1.0, implementation="cudnn"
    )


def upstream(q: jax.Array, k: jax.Array, v: jax.Array, *, name: str, **config: Any) -> jax.Array:
    """JAX's kernel, or its version with an emitter."""
    functions = {
        UPSTREAM: attention_mgpu.attention,
        EMITTER: attention_mgpu.attention_with_pipeline_emitter,
    }
    return functions[name](q, k, v, attention_mgpu.TuningConfig(**config))


def prepare(contender: Any, problem: Problem) -> Callable[..., Any]:
    """A task for `Workers`: a function of the name of a method of `Measured` and its arguments."""
    kinds = {Sdpa: InSdpa, peers.Fa3: InFa3}
    measured = kinds.get(type(contender), InJax)(contender, problem)
    return lambda method, *args: getattr(measured, method)(*args)


class Measured:
    """A contender that can be run; `launch` returns what it made, in the order of `results`."""

    def __init__(self, problem: Problem):
        self.problem = problem

    def launch(self) -> Any:
        """Starts it once."""
        raise NotImplementedError

    def numpy(self, results: Any) -> list[np.ndarray]:
        """Results as [batch, seq, heads, head_dim]."""
        raise NotImplementedError

    def burst(self, launches: int) -> dict[str, Any]:
        """Microseconds of so many launches, and the median of each kernel."""
        raise NotImplementedError

    @functools.cached_property
    def _errors(self) -> dict[str, dict[str, float]]:
        """Of each result, sampled: the largest error, and the relative error.

        An element's is in root mean squares, or relative if it is larger: of a causal attention,
        the first keys get gradients of many of them, whose last bits are many hundredths.
        """
        found = self.numpy(self.launch())
        rows = np.random.default_rng(SEED).permutation(self.problem.seq)[:SAMPLED]
        heads = sorted({0, self.problem.heads - 1})
        expected = [exact(self.problem, head, np.sort(rows)) for head in heads]
        errors = {}
        for i, name in enumerate(self.problem.results):
            if not np.isfinite(found[i].astype(np.float32)).all():
                errors[name] = dict(largest=np.inf, relative=np.inf)
                continue
            shared = self.problem.heads // found[i].shape[2]
            mine = np.stack([found[i][0][np.sort(rows), head // shared] for head in heads])
            other = np.stack([x[i] for x in expected])
            off, norm = mine.astype(np.float64) - other, np.linalg.norm(other)
            scale = np.maximum(norm / np.sqrt(other.size), np.abs(other))
            errors[name] = dict(
                largest=float((np.abs(off) / scale).max()),
                relative=float(np.linalg.norm(off) / norm),
            )
        return errors

    def check(self) -> float:
        """The largest error of a sampled element, in root mean squares; infinite if one is."""
        return max(error["largest"] for error in self._errors.values())

    def float64_error(self) -> dict[str, Any]:
        """The relative errors, by norms, of the sampled rows."""
        relative = {name: error["relative"] for name, error in self._errors.items()}
        return dict(rows=SAMPLED, relative=max(relative.values()), each=relative)


class InJax(Measured):
    """A function of JAX arrays, compiled."""

    def __init__(self, contender: Contender, problem: Problem):
        super().__init__(problem)
        if problem.backward:
            # Compiled by running it: the pull-back is a value of the forward pass.
            self._run = jax.jit(lambda pull, d_out: pull(d_out))
            forward = jax.jit(lambda *arrays: jax.vjp(contender, *arrays)[1])
            *arrays, d_out = operands(problem)
            self._arguments = forward(*arrays), d_out
            jax.block_until_ready(self.launch())
        else:
            self._run = jax.jit(contender).lower(*problem.arrays[:3]).compile()

    @functools.cached_property
    def _arguments(self) -> Any:
        return operands(self.problem)[:3]

    def launch(self) -> Any:
        """Starts it once."""
        found = self._run(*self._arguments)
        return found if self.problem.backward else (found,)

    def numpy(self, results: Any) -> list[np.ndarray]:
        """Results as they are."""
        return [np.asarray(x) for x in results]

    def burst(self, launches: int) -> dict[str, Any]:
        """By CUPTI."""
        # It would trace any function but a compiled one, and time what is left of it.
        return _in_words(kernel_times(self._run, *self._arguments, calls=launches))


class InTorch(Measured):
    """With PyTorch's tensors, which is imported here and nowhere else.

    Raises:
      ImportError: there is no PyTorch.
    """

    def __init__(self, problem: Problem):
        super().__init__(problem)
        import torch

        self._torch, dtype = torch, getattr(torch, problem.dtype)
        arrays = (np.asarray(x, np.float32) for x in operands(problem))
        self._tensors = tuple(torch.tensor(x).cuda().to(dtype) for x in arrays)

    def _begin(self) -> None:
        """Makes sure that it runs at all."""
        self.launch()
        self._torch.cuda.synchronize()

    def burst(self, launches: int) -> dict[str, Any]:
        """By CUPTI."""
        return _in_words(in_torch.kernel_times(self.launch, launches))


class InSdpa(InTorch):
    """`scaled_dot_product_attention`, which takes [batch, heads, seq, head_dim]: views."""

    def __init__(self, contender: Sdpa, problem: Problem):
        super().__init__(problem)
        self._contender = contender
        self._q, self._k, self._v, self._d_out = (x.transpose(1, 2) for x in self._tensors)
        if problem.backward:
            for x in (self._q, self._k, self._v):
                x.requires_grad_()
            self._out = self._forward()
        self._begin()

    def _forward(self) -> Any:
        attention = self._torch.nn.attention
        with attention.sdpa_kernel(getattr(attention.SDPBackend, self._contender.backend)):
            return self._torch.nn.functional.scaled_dot_product_attention(
                self._q, self._k, self._v, is_causal=self._contender.causal, scale=1.0
            )

    def launch(self) -> Any:
        """Starts it once."""
        if not self.problem.backward:
            with self._torch.no_grad():
                return (self._forward(),)
        return self._torch.autograd.grad(
            self._out, (self._q, self._k, self._v), self._d_out, retain_graph=True
        )

    def numpy(self, results: Any) -> list[np.ndarray]:
        """Results with the axes in our order."""
        return [x.detach().transpose(1, 2).float().cpu().numpy() for x in results]


class InFa3(InTorch):
    """FlashAttention; what it writes to is made once, not in each launch."""

    def __init__(self, contender: peers.Fa3, problem: Problem):
        super().__init__(problem)
        built, causal = peers.load(contender.build), contender.causal
        q, k, v, d_out = self._tensors
        out = self._torch.empty_like(q)
        options = {} if contender.soft_cap is None else dict(soft_cap=contender.soft_cap)
        if (ends := contender.ends) is not None:
            there = self._torch.tensor(ends, dtype=self._torch.int32, device=q.device)
            options |= dict(ends=there, longest=peers.longest(ends))
        forward = functools.partial(built.fa3_forward, q, k, v, causal, out, scale=1.0, **options)
        self._launch = lambda: (forward(lse=None),)
        if problem.backward:
            shape = problem.batch, problem.heads, problem.seq
            lse = self._torch.empty(shape, dtype=self._torch.float32, device=q.device)
            forward(lse=lse)
            work = built.fa3_backward_workspace(q, causal)
            self._launch = functools.partial(
                built.fa3_backward, d_out, q, k, v, out, lse, causal, work, scale=1.0
            )
        self._begin()

    def launch(self) -> Any:
        """Starts it once."""
        return self._launch()

    def numpy(self, results: Any) -> list[np.ndarray]:
        """Results, whose axes are in our order."""
        return [x.float().cpu().numpy() for x in results]


def _in_words(runs: Sequence[Sequence[Kernel]]) -> dict[str, Any]:
    """What a record has of launches: microseconds of each, and the median of each kernel."""
    kernels = collections.defaultdict(list)
    for name, ms in (kernel for run in runs for kernel in run):
        kernels[name].append(1e3 * ms)
    return dict(
        us=[1e3 * sum(ms for _, ms in run) for run in runs],
        kernels={name: round(statistics.median(us), 3) for name, us in kernels.items()},
    )


def operands(problem: Problem) -> list[jax.Array]:
    """q, k, v and the result's cotangent."""
    keys = jax.random.split(jax.random.key(SEED), 4)
    deviations = problem.head_dim**-0.5, 1.0, 1.0, 1.0
    return [_draw(*each) for each in zip(problem.arrays, keys, deviations)]


@functools.partial(jax.jit, static_argnums=0)
def _draw(like: jax.ShapeDtypeStruct, key: jax.Array, deviation: float) -> jax.Array:
    """Normal random numbers, rounded to the dtype."""
    return (deviation * jax.random.normal(key, like.shape, jnp.float32)).astype(like.dtype)


def exact(problem: Problem, head: int, rows: np.ndarray) -> list[np.ndarray]:
    """Some rows of each result of one head of the first batch, in float64, [rows, head_dim].

    Gradients of k and v are sums over all heads that share these with the one.
    """
    shared = problem.heads // (problem.kv_heads or problem.heads)
    group = range(head // shared * shared, (head // shared + 1) * shared)
    own = {each: _exact(problem, each, rows) for each in (group if problem.backward else (head,))}
    return [own[head][0], *(np.sum(each, 0) for each in [*zip(*own.values())][1:])]


def _exact(problem: Problem, head: int, rows: np.ndarray) -> list[np.ndarray]:
    """The same, where no other head shares its k and v."""
    q, k, v, d_out = (
        np.asarray(x[0, :, head * x.shape[2] // problem.heads]).astype(np.float64)
        for x in operands(problem)
    )

    cap, keys = problem.soft_cap, np.arange(problem.seq)
    sink = problem.options["sinks"][head] if problem.sinks else -np.inf
    document = keys * (problem.documents or 1) // problem.seq

    def probabilities(queries):
        scores = q[queries] @ k.T
        scores = cap * np.tanh(scores / cap) if cap else scores
        if problem.causal:
            scores[keys > queries[:, None]] = -np.inf
        scores[document != document[queries][:, None]] = -np.inf
        most = np.maximum(scores.max(1, keepdims=True), sink)
        p = np.exp(scores - most)
        return p / (p.sum(1, keepdims=True) + np.exp(sink - most))

    def d_scores(p, queries):
        delta = (d_out[queries] * (p @ v)).sum(1, keepdims=True)
        found = p * (d_out[queries] @ v.T - delta)
        return found * (1.0 - np.tanh(q[queries] @ k.T / cap) ** 2) if cap else found

    p = probabilities(rows)
    if not problem.backward:
        return [p @ v]
    d_k, d_v = np.zeros((2, len(rows), problem.head_dim))
    for first in range(0, problem.seq, CHUNK):
        queries = np.arange(first, min(first + CHUNK, problem.seq))
        some = probabilities(queries)
        d_k += d_scores(some, queries)[:, rows].T @ q[queries]
        d_v += some[:, rows].T @ d_out[queries]
    return [d_scores(p, rows) @ k, d_k, d_v]
