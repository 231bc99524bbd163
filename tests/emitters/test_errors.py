"""Every error's type and text, piece by piece: the fact, the arithmetic, the consequence.

The model. A *refusal* is a call of an emitter, the type of the error that it raises, and pieces of
the error's text in their order. All are raised before a kernel runs: by the emitters themselves, or
while a kernel is traced.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib import specs

BLOCK = pl.BlockSpec((16, 32), lambda i: (i, 0))
SPECIALIZED = dict(memory_registers=40, wg_axis="wg", num_compute_wgs=1)
START, STEADY = plgpu.PipelinePipeline.START, plgpu.PipelinePipeline.STEADY


def nothing(*_):
    """A body."""


def plain(body=nothing, grid=(4,), slots=2, **options):
    return pipelib.emit_pipeline(body, grid=grid, max_concurrent_steps=slots, **options)


def specialized(body=nothing, grid=(4,), slots=2, **options):
    options = SPECIALIZED | dict(in_specs=BLOCK) | options
    emitter = pipelib.emit_pipeline_warp_specialized
    return emitter(body, grid=grid, max_concurrent_steps=slots, **options)


def trace(use, *shapes, threads=2):
    """Traces a kernel in which `use` gets GMEM refs of these shapes."""
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes or [(64, 32)]]
    kernel = lambda *refs: use(*refs[:-1])
    output = jax.ShapeDtypeStruct((128,), jnp.float32)
    jax.eval_shape(
        plgpu.kernel(kernel, out_type=output, num_threads=threads, thread_name="wg"), *operands
    )


REFUSALS = []
PLAIN, THREADS, BOTH = (plain,), (specialized,), (plain, specialized)


def refused(emitters, call, kind, *pieces):
    """Registers a call as a refusal of each of these emitters."""
    for emitter in emitters:
        bound = functools.partial(call, emitter)
        name = f"{emitter.__name__}, {', '.join(pieces[:2])}"
        REFUSALS.append(pytest.param(bound, kind, pieces, id=name))


def options_of(**options):
    """A call with these options."""
    return lambda emit: emit(**options)


# Grids. Zero and negative, in the first and the last axis: each is refused for itself.
for grid in ((0, 2), (2, -1)):
    fact = "All elements in the grid must be strictly positive"
    call = options_of(grid=grid, in_specs=())
    refused(BOTH, call, ValueError, fact, f"grid={grid}", "no step would run")

# A quotient that is whole, and one that is not; known now, and at run time only; no numbers at all.
for size in (64 / 16, 3.5, jnp.float32(4), True, "4", None, [4], int, np.ones(1, int)):
    call = options_of(grid=(2, size), in_specs=())
    facts = "grid=(2, ", "that is not an integer"
    refused(BOTH, call, ValueError, *facts, "no number of steps", "use // instead of /")

# An option, values of another type, and what is said of it.
COMPILED = "a kernel is compiled for it, so it must be an integer that is known before"
CALLED = "it is called while a kernel is traced: give a function"
NAMED = "the axis of the threads is named by a string"
IN_A_CHAIN = "a place in a chain is one of plgpu.PipelinePipeline"
OTHER_TYPES = [
    (BOTH, "body", [7, "nothing"], CALLED),
    (BOTH, "slots", [2.5, 2.0, "2", None, (2,), np.float32(2)], COMPILED),
    (THREADS, "memory_registers", [40.0, "40"], COMPILED),
    (THREADS, "num_compute_wgs", [1.0, None], COMPILED),
    (THREADS, "memory_thread_idx", ["1", 1.0], COMPILED),
    (THREADS, "compute_context", ["", 3], CALLED),
    (THREADS, "wg_axis", [2, ("wg",)], NAMED),
    (THREADS, "pipeline_state", ["START", 1.0], IN_A_CHAIN),
]
for emitters, option, values, because in OTHER_TYPES:
    name = "max_concurrent_steps" if option == "slots" else option
    for value in values:
        fact = f"{name}={value!r} has type {type(value).__name__}, but {because}"
        refused(emitters, options_of(**{option: value}), TypeError, fact)

refused(
    PLAIN,
    lambda emit: trace(lambda x: emit(in_specs=BLOCK, slots=lax.axis_index("wg"))(x)),
    TypeError,
    *("max_concurrent_steps=", "Tracer", COMPILED),
)


def late(delay):
    """A BlockSpec that is released later."""
    return plgpu.BlockSpec((16, 32), lambda i: (i, 0), delay_release=delay)


fact = "in_specs[0]: delay_release=0.5 has type float, but"
refused(PLAIN, options_of(in_specs=[late(0.5)]), TypeError, fact, COMPILED)

# An array, of which a kernel has none, and what is none.
for value, kind, spec in ((np.ones((64, 32)), "ndarray", BLOCK), ([1.0], "float", [BLOCK])):
    refused(
        BOTH,
        lambda emit, value=value, spec=spec: trace(lambda x: emit(in_specs=[spec])(value)),
        TypeError,
        "the operand of in_specs[0]",
        f"has type {kind}, but",
        "blocks are copied from and to refs of a kernel: give one",
    )

# Ranges: one beyond each end of 1 to 32, of 1 to 7, of 0 to 2; of the multiples of 8 from 24 to
# 256, and what is none. Of delays, as many as the slots, the first that is too much; and more.
for slots in (0, 33):
    fact = f"max_concurrent_steps={slots} is not 1 to 32"
    because = "each slot has a barrier", "at most 32 barriers"
    refused(BOTH, options_of(slots=slots), ValueError, fact, *because)
for count in (0, 8):
    arithmetic = f"{count} + 1 memory thread = {count + 1} threads of 128 lanes"
    fact = f"num_compute_wgs={count} is not 1 to 7", arithmetic, "a block has at most 1,024 lanes"
    refused(THREADS, options_of(num_compute_wgs=count), ValueError, *fact)
for index in (-1, 3):
    call = options_of(num_compute_wgs=2, memory_thread_idx=index)
    fact = f"memory_thread_idx={index} is not 0 to num_compute_wgs=2"
    refused(THREADS, call, ValueError, fact, "nothing would be loaded")
for registers in (41, 16, 264):
    fact = f"memory_registers={registers} is not a multiple of 8 from 24 to 256"
    call = options_of(memory_registers=registers)
    refused(THREADS, call, ValueError, fact, "setmaxnreg would not compile")
for slots, delay in ((1, 1), (2, 3)):
    refused(
        BOTH,
        options_of(slots=slots, in_specs=[BLOCK, {"b": late(delay)}]),
        ValueError,
        "in_specs[1]['b']",
        "max_concurrent_steps must be greater than delay_release",
        f"max_concurrent_steps={slots} and delay_release={delay}",
        f"{slots} - {delay} = {slots - delay} slots are free",
        "the next block never arrives",
    )


# BlockSpecs.


def by(rank):
    return lambda i: (i,) * rank


def multicast(*axes):
    return plgpu.BlockSpec((16, 32), lambda i: (i, 0), collective_axes=axes)


#: A spec, the type of its error, and the pieces.
SPECS = [
    (7, ValueError, "7 is not a BlockSpec", "use pl.BlockSpec(shape, map)"),
    (
        pl.BlockSpec((16, 32), by(2), pipeline_mode=pl.Buffered(3)),
        NotImplementedError,
        *("pipeline_mode= is not supported", "all operands have equally many slots"),
    ),
    (
        pl.BlockSpec((16, 32), by(2), memory_space=plgpu.TMEM),
        ValueError,
        *("memory_space=tmem is not SMEM or GMEM", "so no copy reaches the block"),
    ),
    (
        pl.BlockSpec(None, by(2)),
        ValueError,
        *("an index_map but no block_shape", "the blocks that it indexes have no size"),
    ),
    (
        pl.BlockSpec((pl.Element(16, (0, 2)), 32), by(2)),
        NotImplementedError,
        *("Element dim with padding not supported", "the padding (0, 2) would be ignored"),
    ),
    (
        pl.BlockSpec((pl.BoundedSlice(16), 32), by(2)),
        NotImplementedError,
        *("Unsupported block dimension type", "BoundedSlice", "size is not known", "use an int"),
    ),
    (
        pl.BlockSpec((16, 32), lambda i, j: (i, j)),
        ValueError,
        *("the index_map fails for 1 grid indices", "missing 1 required positional argument"),
    ),
    (
        pl.BlockSpec((16, 32), by(3)),
        ValueError,
        *("the index_map returns 3 indices", "a block of 2 dimensions (16, 32)", "each needs one"),
    ),
]
for argument in ("in_specs", "out_specs"):
    for spec, kind, *pieces in SPECS:
        refused(BOTH, options_of(**{argument: [BLOCK, spec]}), kind, f"{argument}[1]: ", *pieces)

fact = "Output BlockSpecs cannot have collective_axes", "a store has one source", "('x',)"
refused(BOTH, options_of(out_specs=[multicast("x")]), ValueError, "out_specs[0]: ", *fact)
fact = "in_specs[0]: ", "Only a single collective axis supported", "('x', 'y')"
refused(BOTH, options_of(in_specs=[multicast("x", "y")]), ValueError, *fact)
fact = "collective_axes= is not supported", "no barrier tells the blocks along ('x',) that a slot"
refused(PLAIN, options_of(in_specs=[multicast("x")]), NotImplementedError, "in_specs[0]: ", *fact)


# Operands.

SAME = "need refs of the same pytree structure", "but got 2"
# Too few operands, the wrong container; and too few outputs.
for in_specs, out_specs, fact in (
    ([BLOCK, (BLOCK, BLOCK)], (), "3 in_specs and then 0 out_specs"),
    ([{"a": BLOCK}, BLOCK], (), "2 in_specs and then 0 out_specs"),
    (BLOCK, [BLOCK, BLOCK], "1 in_specs and then 2 out_specs"),
):
    options = dict(in_specs=in_specs, out_specs=out_specs)
    call = lambda emit, options=options: trace(emit(**options), (64, 32), (64, 32))
    refused(BOTH, call, ValueError, fact, *SAME)

refused(
    BOTH,
    lambda emit: trace(lambda x: emit(in_specs=[BLOCK])(x), (2, 64, 32)),
    ValueError,
    *("in_specs[0]: ", "a block of 2 dimensions (16, 32)"),
    *("cannot tile an operand of 3 (2, 64, 32)", "each dimension needs one entry"),
)

# Barriers besides the 4 that tell of inputs: none, or 4 that tell of free slots.
BIG = [pl.BlockSpec((128, 128), lambda i: (i, 0))]
for emitters, barriers in ((PLAIN, 4), (THREADS, 8)):
    refused(
        emitters,
        lambda emit: trace(
            lambda x, y: emit(in_specs=BIG, out_specs=[pl.BlockSpec((8, 32))], slots=4)(x, y),
            *((1024, 128), (8, 32)),
        ),
        ValueError,
        "The pipeline needs in_specs[0] 4 x 65,536 B + out_specs[0] 1 x 1,024 B",
        f" + {barriers} barriers x 8 B = {4 * 65536 + 1024 + 8 * barriers:,} B of shared memory",
        *("a block has 232,448 B", "the kernel could not start", "Use fewer slots"),
    )


# Threads and chains.

refused(
    THREADS,
    lambda emit: trace(emit(wg_axis="warpgroup")),
    ValueError,
    *("wg_axis='warpgroup' is not an axis of this kernel", "no thread would know its role"),
    "give the kernel's thread_name",
)
for threads in (2, 4):  # too few, and too many
    refused(
        THREADS,
        lambda emit, threads=threads: trace(emit(num_compute_wgs=2), threads=threads),
        ValueError,
        "num_compute_wgs=2 + 1 memory thread = 3 threads",
        f"the axis 'wg' has {threads}",
        *("released by 2 arrivals", "fewer deadlock", "more release it early"),
    )
refused(
    THREADS,
    lambda emit: trace(lambda x: emit(grid=(lax.axis_index("wg") + 1,), pipeline_state=START)(x)),
    NotImplementedError,
    *("not supported with dynamic grids", "the slot that one pipeline ends with", "is not known"),
)
refused(
    THREADS,
    options_of(grid=(7,), slots=3, pipeline_state=STEADY),
    NotImplementedError,
    *("only allowed when the number of steps is divisible by", "max_concurrent_steps"),
    *("7 = 2 x 3 + 1", "would start in a slot with another step's blocks"),
)
refused(
    THREADS,
    lambda emit: trace(emit(pipeline_state=START)),
    ValueError,
    "Pipeline state should not be set when using automatic allocation",
    *("the next of the chain would find none of this one's slots", "Pass allocations="),
)


def calling(count):
    """A call whose `compute_context` runs the pipeline so many times."""
    context = lambda pipeline: [pipeline() for _ in range(count)] and None
    return lambda emit: trace(emit(compute_context=context))


fact = "Pipeline was not called in `compute_context`", "the memory thread waits for ever"
refused(THREADS, calling(0), ValueError, *fact)
fact = "Cannot call pipeline more than once in `compute_context`", "each step is loaded once"
refused(THREADS, calling(2), ValueError, *fact, "the second call would wait for ever")

# What a body returns without `return`, and a carry of another structure.
for returned in (None, (0.0, 0.0)):
    body, zero = (lambda *_, returned=returned: returned), jnp.float32(0)
    for emitters, option in (
        (PLAIN, dict(init_carry=zero)),
        (THREADS, dict(compute_context=lambda pipeline, zero=zero: pipeline(zero))),
    ):
        options = dict(body=body, in_specs=BLOCK) | option
        refused(
            emitters,
            lambda emit, options=options: trace(lambda x: emit(**options)(x)),
            ValueError,
            "The body got a carry PyTreeDef(*) but returned",
            str(jax.tree.structure(returned)),
            *("no carry for the next step", "It must return one like the one it took"),
        )


@pytest.mark.parametrize(("call", "kind", "pieces"), REFUSALS)
def test_what_is_refused_is_told_in_order(call, kind, pieces):
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind
    rest = str(error.value)
    for piece in pieces:
        _, found, rest = rest.partition(piece)
        assert found, f"{piece!r} is not in its place in: {error.value}"


@pytest.mark.parametrize("integer", [np.int64, np.int8, jnp.int32], ids=lambda kind: kind.__name__)
def test_integers_of_other_kinds(integer):
    """NumPy's and JAX's, where they are known; a grid's may be traced, too."""
    two, one, forty = map(integer, (2, 1, 40))
    of_threads = dict(memory_registers=forty, num_compute_wgs=one, memory_thread_idx=one)

    def use(x):
        in_specs = [pl.BlockSpec((16, 32), lambda i, j: (i, 0))]
        plain(grid=(two, lax.axis_index("wg") + 1), slots=two, in_specs=in_specs)(x)
        specialized(slots=two, **of_threads)(x)

    trace(use)


def test_shared_memory_to_the_last_byte():
    operands, _ = specs.flatten([BLOCK, BLOCK], "in_specs", 1)
    smem = [plgpu.SMEM((2, 113, 1024), jnp.uint8), None]
    assert specs.check_smem(operands, smem, 128) == 232_448
    with pytest.raises(ValueError, match="= 232,456 B"):
        specs.check_smem(operands, smem, 129)
