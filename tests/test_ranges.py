"""Each argument of each public function, with values that it does not take: what is said of them.

The model. `CALLS` has a call of each public function, class and method that is small and right. One
parameter at a time gets each of `BAD`. The call must then either answer, and in little memory,
or refuse: with an error of `REFUSALS` whose text is a sentence that names the parameter or the
function. `MUST` has what no call may answer.
"""

import functools
import inspect
import itertools
import math
import pathlib
import re
import resource
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope as ps
import pipelib
import pipelib.kernels as made
from pallascope import compiling, testing, tuning
from pipelib_book import gallery
from tests.pallascope import kernels
from tests.pallascope.kernels import like

BAD = (None, "", "x", math.nan, math.inf, -1, 0, 0.5, 10**12, (), {}, object())
REFUSALS = TypeError, ValueError, NotImplementedError, ImportError
#: Python's own errors of files, and a number of a finding that is not there, as their docs say.
OTHERS = dict(path=OSError, number=IndexError)
#: What else a function's errors call it, or its parameters.
ALSO = {
    "attention_reference": ["attention"],
    "emit_pipeline_warp_specialized": ["Pipeline state"], "matmul_space": ["matmul"],
    "Machine.wgmma_rate": ["wgmma"], "Ranked": ["configurations"], "plot": ["figure", "window"],
    "player": ["figure", "window"], "to_perfetto": ["A trace file"], "explore": ["kernel factory"],
}  # fmt: skip
#: Seconds after which a call hangs, on a machine that has other work; bytes that it may take.
HANGS, MEMORY = 300, 4 << 30
#: What public modules have and no test calls: machines; values, which functions give; no parameter.
LEFT_OUT = {
    *("B200", "H100", "H200", "Finding", "Launch", "Prediction", "Report", "Span", "Timeline"),
    *(
        "Advice",
        "Critical",
        "Verdict",
        "Outcome",
        "Results",
        "Trial",
        "Watch",
        "Compiled",
        "Loop",
        "lacking",
    ),
    *("compiled", "compiled_all"),  # they run ptxas; what the first refuses is in MUST
    "dot_product_attention",  # what it refuses, it refuses in JAX's words
}
MODULES = pipelib, made, ps, tuning, testing, compiling

X, HALF = like(256, 64), jnp.bfloat16
ONES, HEADS = np.ones((64, 128), HALF), np.ones((1, 64, 1, 64), HALF)
RAGGED = dict(lhs=ONES, rhs=ONES.T[None], group_sizes=np.array([64], np.int32))
PROGRAM, H200 = ps.trace(kernels.add_one, X), ps.H200
TIMELINE = ps.simulate(PROGRAM)
REPORT = ps.check(gallery.GALLERY["release-too-early"].program(fixed=False))


def emitted(emit):
    """A call of a kernel that adds 1 by an emitter, traced."""

    @functools.wraps(emit)
    def call(**given):
        x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
        threads = dict(num_threads=2, thread_name="thread") if "wg_axis" in given else {}
        kernel = plgpu.kernel(lambda *refs: emit(**given)(*refs), out_type=x, **threads)
        return jax.eval_shape(kernel, x)

    return call


def add_one(indices, x_smem, o_smem, *carry):
    o_smem[...] = x_smem[...] + 1.0
    return carry[0] if carry else None


def block(*shape):
    return [pl.BlockSpec(shape, lambda i: (i, 0))]


def entered(context):
    """A call that enters what the function returns."""
    return functools.wraps(context)(lambda **given: context(**given)(lambda: None)())


def traced(function):
    """The call of a kernel's function under the interpreter, which nothing runs."""
    run = lambda **given: jax.eval_shape(lambda: function(**given))
    return functools.wraps(function)(plgpu.force_gpu_interpret_mode()(run))


@functools.wraps(made.collective_matmul)
def over_devices(**given):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    call = lambda: made.collective_matmul(**given)
    traced(jax.shard_map(call, mesh=mesh, in_specs=(), out_specs=jax.P(), check_vma=False))()


def ranked(**given):
    order = tuning.Ranked(**given)
    tuning.search(lambda config: kernels.add_one, order, X, measure=0, progress=False)


EMIT = dict(body=add_one, grid=(4,), in_specs=block(16, 128), out_specs=block(16, 128))
EMITTERS = "emit_pipeline", "emit_pipeline_warp_specialized"
ROLES = dict(memory_registers=40, wg_axis="thread", num_compute_wgs=1)
KERNEL, FACTORY = dict(kernel=kernels.add_one, args=(X,)), lambda slots=1: (kernels.add_one, (X,))
SEARCH = dict(kernel_of=lambda slots: kernels.add_one, space=dict(slots=[1]), args=(X,))
BYTES = ONES.astype(jnp.float8_e4m3fn)
SCALES = dict(a_scales=np.ones((64, 1), np.float32), b_scales=np.ones((1, 1), np.float32))
#: A right call of each function, by its name: the function, and its arguments.
CALLS = {
    EMITTERS[0]: (emitted(pipelib.emit_pipeline), EMIT),
    EMITTERS[1]: (emitted(pipelib.emit_pipeline_warp_specialized), EMIT | ROLES),
    **{name: (getattr(made, name), {}) for name in made.__all__ if name.endswith("Config")},
    "target": (entered(pipelib.target), dict(compute_capability="9.0")),
    "attention": (traced(made.attention), dict(q=HEADS, k=HEADS, v=HEADS)),
    "attention_reference": (traced(made.attention_reference), dict(q=HEADS, k=HEADS, v=HEADS)),
    "attention_space": (made.attention_space, dict(head_dim=128)), "predict": (ps.predict, KERNEL),
    "advise": (ps.advise, KERNEL | dict(progress=False)),
    "collective_matmul": (over_devices, dict(lhs=ONES, rhs=ONES.T, axis_name="x")),
    "decode_attention": (traced(made.decode_attention), dict(q=HEADS[:, :1], k=HEADS, v=HEADS)),
    "matmul_space": (made.matmul_space, dict(m=64, n=64, k=64, dtype=HALF)),
    "row_space": (made.row_space, dict(shape=(64, 128), dtype=HALF)), "trace": (ps.trace, KERNEL),
    "scaled_matmul": (traced(made.scaled_matmul), dict(a=BYTES, b=BYTES) | SCALES),
    "Machine": (H200.changed, {name: getattr(H200, name) for name in H200.__dataclass_fields__}),
    "Machine.from_json": (ps.Machine.from_json, dict(text=H200.to_json())),
    "Machine.wgmma_rate": (H200.wgmma_rate, dict(dtype="bfloat16")),
    "Program.from_json": (ps.Program.from_json, dict(text=PROGRAM.to_json())),
    "Program.save": (PROGRAM.save, dict(path="program.json")), "Timeline.uses": (TIMELINE.uses, {}),
    "Program.load": (ps.Program.load, dict(path="program.json")),
    "Setting": (ps.Setting, dict(values={}, timeline=TIMELINE)),
    "check": (ps.check, dict(program=PROGRAM)), "play": (ps.play, dict(report=REPORT)),
    "explore": (ps.explore, dict(kernel_factory=FACTORY)), "Report.order_of": (REPORT.order_of, {}),
    "player": (ps.player, dict(settings=TIMELINE)), "plot": (ps.plot, dict(timeline=TIMELINE)),
    "simulate": (ps.simulate, dict(program=PROGRAM)), "watched": (entered(testing.watched), {}),
    "to_perfetto": (ps.to_perfetto, dict(timeline=TIMELINE, path="file.json")),
    "verify": (ps.verify, dict(KERNEL, compiler=False, blocks="first")),
    "Ranked": (ranked, dict(configs=[1], groups=[["rows"]], shapes=1)),
    "search": (tuning.search, dict(SEARCH, progress=False)),
    "assert_clean": (testing.assert_clean, dict(KERNEL, blocks="first")),
    "matmul": (traced(made.matmul), dict(a=ONES, b=ONES.T)),
    "rms_norm": (traced(made.rms_norm), dict(x=ONES)), "Op": (ps.Op, dict(kind="fence", thread=0)),
    "softmax": (traced(made.softmax), dict(x=ONES)), "Machine.loaded": (H200.loaded, dict(use=0.5)),
    "Timeline.critical": (TIMELINE.critical, {}),
    "Timeline.slack": (TIMELINE.slack, {}),
    "Program": (ps.Program, dict(name="one", threads=())),
    "sweep": (ps.sweep, dict(kernel_factory=FACTORY)),
    "Program.renamed": (PROGRAM.renamed, dict(name="one")),
    "ragged_dot": (traced(made.ragged_dot), RAGGED),
}  # fmt: skip
NO_BLOCKS = plgpu.kernel(lambda x, o: None, out_type=X, grid=(0,), grid_names=("i",))
FLAGS = dict(
    attention="causal deterministic return_residuals", decode_attention="return_residuals",
    matmul="transpose_a transpose_b approx_math", ragged_dot="transpose_rhs",
    matmul_space="transpose_a transpose_b", MatmulConfig="swapped", ScaledConfig="stagger",
    AttentionConfig="persistent", emit_pipeline="ordinary_reads", sweep="whole_grid",
    emit_pipeline_warp_specialized="manual_produced_barriers manual_consumed_barriers",
    explore="whole_grid", trace="whole_grid", verify="strict compiler", watched="strict",
    check="strict", assert_clean="strict", search="progress",
)  # fmt: skip
SIDES = [block(0, 128), block(-1, 128), block(16, 0), block(10**12, 128)]
GRIDS = [(0,), (-1,), (0.5,), ("x",), (None,), (10**12,), (10**6, 10**6), ()]
SIZES = range(2_000)
DIVIDED = "tile_n slots epilogue_n cluster_m compute_threads width", "block_kv slots"
#: What must be refused: functions, parameters, values.
MUST = [
    *((name, flags, ["x", None, 2, 0.5]) for name, flags in FLAGS.items()),
    (" ".join(EMITTERS), "body", [lambda i, x, o: x[...]]),
    (" ".join(EMITTERS), "in_specs out_specs", SIDES), (" ".join(EMITTERS), "grid", GRIDS),
    ("MatmulConfig CollectiveConfig ScaledConfig", DIVIDED[0], [0, -1, -64, 10**12, 0.5, None]),
    ("AttentionConfig DecodeConfig", DIVIDED[1], [0, -1, 10**12, 0.5, None]),
    ("simulate", "blocks_per_sm", [10**12, 33, 0, -1, None]),
    ("predict", "clock_hz", [-1, 0, math.nan, math.inf]),
    ("predict", "registers", [-1, 0, 10**12, 0.5]), ("predict trace verify", "kernel", [NO_BLOCKS]),
    ("verify", "blocks", [(), []]), ("search", "tolerance", [-1, math.nan, "x"]),
    ("Machine", "clock_hz", [-1, 0, math.nan, None, "x"]), ("Machine", "sms", [-1, 0, 0.5, None]),
    ("Machine", "wait_cycles", [-1, math.nan, math.inf]),
    ("Machine", "clock_at", [(), 3, (1, 2), ((0, math.nan),), (("x", 1.0),)]),
    ("play", "number", ["x", 0.5]), ("compiled", "call", ["x", 0.5, -1, 10**12]),
    ("compiled", "kernel", [None, 3]), ("sweep explore", "slots", [range(10**12), [], 3]),
    ("plot player", "steps", [range(10**12)]),
    ("search", "space", [dict(slots=range(10**12)), range(10**12), dict(a=SIZES, b=SIZES)]),
    ("target", "compute_capability", ["999999.0", "12.9", "0.0", "9"]),
]  # fmt: skip


def test_every_public_name_is_called():
    public = {name for module in MODULES for name in module.__all__}
    assert public == {name.partition(".")[0] for name in CALLS} | LEFT_OUT


@pytest.fixture(autouse=True)
def limits(tmp_path, monkeypatch):
    """A folder of its own, no ptxas; a call that hangs, or takes all memory, fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiling, "lacking", lambda: "not asked for here")
    PROGRAM.save("program.json")
    pages = int(pathlib.Path("/proc/self/statm").read_text("utf-8").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    old = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    signal.signal(signal.SIGALRM, old)


def said(call, given):
    """What a call says: the error, or None if it answers."""
    first = [name for name in ("kernel", "kernel_of", "space") if name in given]
    args = *(given[name] for name in first), *given.get("args", ())
    signal.alarm(HANGS)
    try:
        call(*args, **{name: each for name, each in given.items() if name not in (*first, "args")})
    except Exception as error:
        return error
    finally:
        signal.alarm(0)


def fault(error, name, parameter):
    """What is wrong with an error; empty if it is a sentence."""
    text, names = str(error), {parameter, *name.split("."), *ALSO.get(name, ())}
    if not isinstance(error, REFUSALS):
        return "" if isinstance(error, OTHERS.get(parameter, ())) else type(error).__name__
    if not text.endswith(".") or len(text.split()) < 6 or "Traceback" in text:
        return "no sentence"
    return "" if any(re.search(rf"\b{each}\b", text) for each in names) else "no name"


@pytest.mark.parametrize(("names", "parameters", "values"), MUST)
def test_what_must_be_refused(names, parameters, values):
    for name, parameter, value in itertools.product(names.split(), parameters.split(), values):
        call, right = (CALLS | dict(compiled=(ps.compiled, KERNEL)))[name]
        error = said(call, {**right, parameter: value})
        assert error is not None, f"{name} answers {parameter}={value!r}"
        assert not fault(error, name, parameter), f"{parameter}={value!r}: {error!r}"


@pytest.mark.parametrize("name", CALLS)
def test_what_a_parameter_does_not_take(name):
    call, right = CALLS[name]
    assert said(call, right) is None
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    found = [p.name for p in inspect.signature(call).parameters.values() if p.kind not in several]
    faults = []
    for parameter, value in itertools.product({*found, *right} - {"args"}, BAD):
        error = said(call, {**right, parameter: value})
        if wrong := fault(error, name, parameter) if error else "":
            faults.append(f"{parameter}={value!r}: {wrong}: {error}")
    assert not faults, "\n".join(faults)
