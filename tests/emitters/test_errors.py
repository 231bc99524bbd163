"""Every error's type and text, piece by piece: the fact, the arithmetic, the consequence.

All are raised before a kernel runs: by the emitters themselves, or while a kernel is traced.
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


def nothing(*_):
    """A body."""


def emit(body=nothing, grid=(4,), slots=2, **options):
    return pipelib.emit_pipeline(body, grid=grid, max_concurrent_steps=slots, **options)


def specialized(body=nothing, grid=(4,), slots=2, **options):
    options = SPECIALIZED | dict(in_specs=BLOCK) | options
    emitter = pipelib.emit_pipeline_warp_specialized
    return emitter(body, grid=grid, max_concurrent_steps=slots, **options)


BOTH = pytest.mark.parametrize("emitter", [emit, specialized])


def trace(use, *shapes, threads=2):
    """Traces a kernel in which `use` gets GMEM refs of these shapes."""
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    kernel = lambda *refs: use(*refs[:-1])
    output = jax.ShapeDtypeStruct((128,), jnp.float32)
    jax.eval_shape(
        plgpu.kernel(kernel, out_type=output, num_threads=threads, thread_name="wg"), *operands
    )


def check(error, kind, *pieces):
    assert type(error.value) is kind
    text = str(error.value)
    for piece in pieces:
        assert piece in text, f"{piece!r} is not in: {text}"
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(places), f"not in this order: {pieces} in {text}"


# Zero and negative, in the first and the last axis: each is refused for itself.
@pytest.mark.parametrize("grid", [(0, 2), (2, -1)])
@BOTH
def test_a_grid_without_steps(emitter, grid):
    with pytest.raises(ValueError) as error:
        emitter(grid=grid, in_specs=())
    check(
        error, ValueError, "All elements in the grid must be strictly positive", f"grid={grid}",
        "no step would run",
    )  # fmt: skip


# A quotient that is whole, and one that is not; known now, and at run time only; no numbers at all.
@pytest.mark.parametrize(
    "size", [64 / 16, 3.5, jnp.float32(4), True, "4", None, [4], int, np.ones(1, int)], ids=repr
)
@BOTH
def test_a_grid_of_no_integer(emitter, size):
    with pytest.raises(ValueError) as error:
        emitter(grid=(2, size), in_specs=())
    check(
        error, ValueError, "grid=(2, ", "that is not an integer", "no number of steps",
        "use // instead of /",
    )  # fmt: skip


# An option, a value of another type, that type's name, and what is said of it.
COMPILED = "a kernel is compiled for it, so it must be an integer that is known before"
CALLED = "it is called while a kernel is traced: give a function"
EITHER = [
    ("body", 7, "int", CALLED), ("body", "nothing", "str", CALLED),
    ("slots", 2.5, "float", COMPILED), ("slots", 2.0, "float", COMPILED),
    ("slots", "2", "str", COMPILED), ("slots", None, "NoneType", COMPILED),
    ("slots", (2,), "tuple", COMPILED), ("slots", np.float32(2), "float32", COMPILED),
]  # fmt: skip
ONE = [
    ("memory_registers", 40.0, "float", COMPILED), ("memory_registers", "40", "str", COMPILED),
    ("num_compute_wgs", 1.0, "float", COMPILED), ("num_compute_wgs", None, "NoneType", COMPILED),
    ("memory_thread_idx", "1", "str", COMPILED), ("memory_thread_idx", 1.0, "float", COMPILED),
    ("compute_context", "", "str", CALLED), ("compute_context", 3, "int", CALLED),
    ("wg_axis", 2, "int", "the axis of the threads is named by a string"),
    ("wg_axis", ("wg",), "tuple", "the axis of the threads is named by a string"),
    ("pipeline_state", "START", "str", "a place in a chain is one of plgpu.PipelinePipeline"),
    ("pipeline_state", 1.0, "float", "a place in a chain is one of plgpu.PipelinePipeline"),
]  # fmt: skip


def check_type(emitter, option, value, kind, because):
    with pytest.raises(TypeError) as error:
        emitter(**{option: value})
    name = "max_concurrent_steps" if option == "slots" else option
    check(error, TypeError, f"{name}={value!r} has type {kind}, but {because}")


@pytest.mark.parametrize(("option", "value", "kind", "because"), EITHER)
@BOTH
def test_an_option_of_another_type(emitter, option, value, kind, because):
    check_type(emitter, option, value, kind, because)


@pytest.mark.parametrize(("option", "value", "kind", "because"), ONE)
def test_an_option_of_threads_of_another_type(option, value, kind, because):
    check_type(specialized, option, value, kind, because)


def test_slots_that_are_known_at_run_time_only():
    def use(x):
        emit(in_specs=BLOCK, slots=lax.axis_index("wg"))(x)

    with pytest.raises(TypeError) as error:
        trace(use, (64, 32))
    check(error, TypeError, "max_concurrent_steps=", "Tracer", COMPILED)


def test_a_delay_of_another_type():
    late = plgpu.BlockSpec((16, 32), lambda i: (i, 0), delay_release=0.5)
    with pytest.raises(TypeError) as error:
        emit(in_specs=[late])
    check(error, TypeError, "in_specs[0]: delay_release=0.5 has type float, but", COMPILED)


@pytest.mark.parametrize("integer", [np.int64, np.int8, jnp.int32], ids=lambda kind: kind.__name__)
def test_integers_of_other_kinds(integer):
    """NumPy's and JAX's, where they are known; a grid's may be traced, too."""
    two, one, forty = map(integer, (2, 1, 40))

    def use(x):
        emit(grid=(two, lax.axis_index("wg") + 1), slots=two, in_specs=[
            pl.BlockSpec((16, 32), lambda i, j: (i, 0))
        ])(x)  # fmt: skip
        specialized(slots=two, memory_registers=forty, num_compute_wgs=one, memory_thread_idx=one)(
            x
        )

    trace(use, (64, 32))


# An array, of which a kernel has none, and what is none.
@pytest.mark.parametrize(("value", "kind"), [(np.ones((64, 32)), "ndarray"), ([1.0], "list")])
@BOTH
def test_an_operand_that_is_no_ref(emitter, value, kind):
    specs = [BLOCK] if kind == "ndarray" else [[BLOCK]]
    with pytest.raises(TypeError) as error:
        trace(lambda x: emitter(in_specs=specs)(value), (64, 32))
    check(
        error, TypeError, "the operand of in_specs[0]",
        f"has type {kind if kind == 'ndarray' else 'float'}, but",
        "blocks are copied from and to refs of a kernel: give one",
    )  # fmt: skip


def test_threads_of_an_unknown_axis():
    with pytest.raises(ValueError) as error:
        trace(specialized(wg_axis="warpgroup"), (64, 32))
    check(
        error, ValueError, "wg_axis='warpgroup' is not an axis of this kernel",
        "no thread would know its role", "give the kernel's thread_name",
    )  # fmt: skip


# One beyond each end of 1 to 32.
@pytest.mark.parametrize("slots", [0, 33])
@BOTH
def test_slots_out_of_range(emitter, slots):
    with pytest.raises(ValueError) as error:
        emitter(slots=slots)
    check(
        error, ValueError, f"max_concurrent_steps={slots} is not 1 to 32",
        "each slot has a barrier", "at most 32 barriers",
    )  # fmt: skip


# As many as the slots, the first that is too much; and more.
@pytest.mark.parametrize(("slots", "delay"), [(1, 1), (2, 3)])
@BOTH
def test_delay_release_takes_all_slots(emitter, slots, delay):
    late = plgpu.BlockSpec((16, 32), lambda i: (i, 0), delay_release=delay)
    with pytest.raises(ValueError) as error:
        emitter(slots=slots, in_specs=[BLOCK, {"b": late}])
    check(
        error, ValueError, "in_specs[1]['b']",
        "max_concurrent_steps must be greater than delay_release",
        f"max_concurrent_steps={slots} and delay_release={delay}",
        f"{slots} - {delay} = {slots - delay} slots are free", "the next block never arrives",
    )  # fmt: skip


def _map(rank):
    return lambda i: (i,) * rank


# A spec, the type of its error and the pieces, for a spec among the inputs.
SPECS = {
    "no BlockSpec": (
        7, ValueError, ["7 is not a BlockSpec", "use pl.BlockSpec(shape, map)"],
    ),
    "pipeline_mode": (
        pl.BlockSpec((16, 32), _map(2), pipeline_mode=pl.Buffered(3)), NotImplementedError,
        ["pipeline_mode= is not supported", "all operands have equally many slots"],
    ),
    "memory space": (
        pl.BlockSpec((16, 32), _map(2), memory_space=plgpu.TMEM), ValueError,
        ["memory_space=tmem is not SMEM or GMEM", "so no copy reaches the block"],
    ),
    "index_map alone": (
        pl.BlockSpec(None, _map(2)), ValueError,
        ["an index_map but no block_shape", "the blocks that it indexes have no size"],
    ),
    "padding": (
        pl.BlockSpec((pl.Element(16, (0, 2)), 32), _map(2)), NotImplementedError,
        ["Element dim with padding not supported", "the padding (0, 2) would be ignored"],
    ),
    "dimension": (
        pl.BlockSpec((pl.BoundedSlice(16), 32), _map(2)), NotImplementedError,
        ["Unsupported block dimension type", "BoundedSlice", "size is not known", "use an int"],
    ),
    "arguments of index_map": (
        pl.BlockSpec((16, 32), lambda i, j: (i, j)), ValueError,
        ["the index_map fails for 1 grid indices", "missing 1 required positional argument"],
    ),
    "results of index_map": (
        pl.BlockSpec((16, 32), _map(3)), ValueError,
        ["the index_map returns 3 indices", "a block of 2 dimensions (16, 32)", "each needs one"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("argument", ["in_specs", "out_specs"])
@BOTH
def test_a_wrong_spec(emitter, argument, name):
    spec, kind, pieces = SPECS[name]
    with pytest.raises(kind) as error:
        emitter(**{argument: [BLOCK, spec]})
    check(error, kind, f"{argument}[1]: ", *pieces)


def _multicast(*axes):
    return plgpu.BlockSpec((16, 32), lambda i: (i, 0), collective_axes=axes)


@BOTH
def test_collective_output(emitter):
    with pytest.raises(ValueError) as error:
        emitter(out_specs=[_multicast("x")])
    check(
        error, ValueError, "out_specs[0]: ", "Output BlockSpecs cannot have collective_axes",
        "a store has one source", "('x',)",
    )  # fmt: skip


@BOTH
def test_two_collective_axes(emitter):
    with pytest.raises(ValueError) as error:
        emitter(in_specs=[_multicast("x", "y")])
    check(
        error, ValueError, "in_specs[0]: ", "Only a single collective axis supported", "('x', 'y')"
    )


def test_collective_input_without_a_memory_thread():
    with pytest.raises(NotImplementedError) as error:
        emit(in_specs=[_multicast("x")])
    check(
        error, NotImplementedError, "in_specs[0]: ", "collective_axes= is not supported",
        "no barrier tells the blocks along ('x',) that a slot is free",
    )  # fmt: skip


# Too few operands, and the wrong container.
@pytest.mark.parametrize("in_specs", [[BLOCK, (BLOCK, BLOCK)], [{"a": BLOCK}, BLOCK]])
@BOTH
def test_operands_in_another_tree(emitter, in_specs):
    use = lambda x, y: emitter(in_specs=in_specs)(x, y)
    with pytest.raises(ValueError) as error:
        trace(use, (64, 32), (64, 32))
    count = len(jax.tree.leaves(in_specs))
    check(
        error, ValueError, f"{count} in_specs and then 0 out_specs",
        "need refs of the same pytree structure", "but got 2",
    )  # fmt: skip


@BOTH
def test_outputs_in_another_tree(emitter):
    use = lambda x, y: emitter(in_specs=BLOCK, out_specs=[BLOCK, BLOCK])(x, y)
    with pytest.raises(ValueError) as error:
        trace(use, (64, 32), (64, 32))
    check(
        error, ValueError, "1 in_specs and then 2 out_specs",
        "need refs of the same pytree structure", "but got 2",
    )  # fmt: skip


@BOTH
def test_block_of_another_rank(emitter):
    with pytest.raises(ValueError) as error:
        trace(lambda x: emitter(in_specs=[BLOCK])(x), (2, 64, 32))
    check(
        error, ValueError, "in_specs[0]: ", "a block of 2 dimensions (16, 32)",
        "cannot tile an operand of 3 (2, 64, 32)", "each dimension needs one entry",
    )  # fmt: skip


# Barriers besides the 4 that tell of inputs: none, or 4 that tell of free slots.
@pytest.mark.parametrize(("emitter", "barriers"), [(emit, 4), (specialized, 8)])
def test_too_much_shared_memory(emitter, barriers):
    big = pl.BlockSpec((128, 128), lambda i: (i, 0))
    pipeline = lambda: emitter(in_specs=[big], out_specs=[pl.BlockSpec((8, 32))], slots=4)
    with pytest.raises(ValueError) as error:
        trace(lambda x, y: pipeline()(x, y), (1024, 128), (8, 32))
    check(
        error, ValueError, "The pipeline needs in_specs[0] 4 x 65,536 B + out_specs[0] 1 x 1,024 B",
        f" + {barriers} barriers x 8 B = {4 * 65536 + 1024 + 8 * barriers:,} B of shared memory",
        "a block has 232,448 B", "the kernel could not start", "Use fewer slots",
    )  # fmt: skip


def test_shared_memory_to_the_last_byte():
    operands, _ = specs.flatten([BLOCK, BLOCK], "in_specs", 1)
    smem = [plgpu.SMEM((2, 113, 1024), jnp.uint8), None]
    assert specs.check_smem(operands, smem, 128) == 232_448
    with pytest.raises(ValueError, match="= 232,456 B"):
        specs.check_smem(operands, smem, 129)


# One beyond each end of 1 to 7.
@pytest.mark.parametrize("count", [0, 8])
def test_too_many_or_no_compute_threads(count):
    with pytest.raises(ValueError) as error:
        specialized(num_compute_wgs=count)
    check(
        error, ValueError, f"num_compute_wgs={count} is not 1 to 7",
        f"{count} + 1 memory thread = {count + 1} threads of 128 lanes",
        "a block has at most 1,024 lanes",
    )  # fmt: skip


# No multiple of 8; the multiples next to each end of 24 to 256.
@pytest.mark.parametrize("registers", [41, 16, 264])
def test_registers_that_setmaxnreg_does_not_take(registers):
    with pytest.raises(ValueError) as error:
        specialized(memory_registers=registers)
    check(
        error, ValueError, f"memory_registers={registers} is not a multiple of 8 from 24 to 256",
        "setmaxnreg would not compile",
    )  # fmt: skip


# One beyond each end of 0 to 2.
@pytest.mark.parametrize("index", [-1, 3])
def test_memory_thread_out_of_range(index):
    with pytest.raises(ValueError) as error:
        specialized(num_compute_wgs=2, memory_thread_idx=index)
    check(
        error, ValueError, f"memory_thread_idx={index} is not 0 to num_compute_wgs=2",
        "nothing would be loaded",
    )  # fmt: skip


# Too few, and too many.
@pytest.mark.parametrize("threads", [2, 4])
def test_kernel_with_other_threads(threads):
    pipeline = specialized(num_compute_wgs=2)
    with pytest.raises(ValueError) as error:
        trace(pipeline, (64, 32), threads=threads)
    check(
        error, ValueError, "num_compute_wgs=2 + 1 memory thread = 3 threads",
        f"the axis 'wg' has {threads}", "released by 2 arrivals", "fewer deadlock",
        "more release it early",
    )  # fmt: skip


def test_chain_of_dynamic_length():
    def use(x):
        grid = (lax.axis_index("wg") + 1,)
        specialized(grid=grid, pipeline_state=plgpu.PipelinePipeline.START)(x)

    with pytest.raises(NotImplementedError) as error:
        trace(use, (64, 32))
    check(
        error, NotImplementedError, "not supported with dynamic grids",
        "the slot that one pipeline ends with", "is not known",
    )  # fmt: skip


def test_chain_that_ends_amid_the_slots():
    with pytest.raises(NotImplementedError) as error:
        specialized(grid=(7,), slots=3, pipeline_state=plgpu.PipelinePipeline.STEADY)
    check(
        error, NotImplementedError, "only allowed when the number of steps is divisible by",
        "max_concurrent_steps", "7 = 2 x 3 + 1", "would start in a slot with another step's blocks",
    )  # fmt: skip


def test_chain_without_memory_of_its_own():
    pipeline = specialized(pipeline_state=plgpu.PipelinePipeline.START)
    with pytest.raises(ValueError) as error:
        trace(pipeline, (64, 32))
    check(
        error, ValueError, "Pipeline state should not be set when using automatic allocation",
        "the next of the chain would find none of this one's slots", "Pass allocations=",
    )  # fmt: skip


def _calls(count, pipeline):
    for _ in range(count):
        pipeline()


def test_pipeline_not_called_in_compute_context():
    pipeline = specialized(compute_context=functools.partial(_calls, 0))
    with pytest.raises(ValueError) as error:
        trace(pipeline, (64, 32))
    check(
        error, ValueError, "Pipeline was not called in `compute_context`",
        "the memory thread waits for ever",
    )  # fmt: skip


def test_pipeline_called_twice_in_compute_context():
    pipeline = specialized(compute_context=functools.partial(_calls, 2))
    with pytest.raises(ValueError) as error:
        trace(pipeline, (64, 32))
    check(
        error, ValueError, "Cannot call pipeline more than once in `compute_context`",
        "each step is loaded once", "the second call would wait for ever",
    )  # fmt: skip


# What a body returns without `return`, and a carry of another structure.
@pytest.mark.parametrize("returned", [None, (0.0, 0.0)])
@pytest.mark.parametrize("use", [
    lambda body, x: emit(body, in_specs=BLOCK, init_carry=jnp.float32(0))(x),
    lambda body, x: specialized(body, compute_context=lambda run: run(jnp.float32(0)))(x),
])  # fmt: skip
def test_a_body_that_does_not_return_its_carry(use, returned):
    with pytest.raises(ValueError) as error:
        trace(functools.partial(use, lambda *_: returned), (64, 32))
    check(
        error, ValueError, "The body got a carry PyTreeDef(*) but returned",
        str(jax.tree.structure(returned)), "no carry for the next step",
        "It must return one like the one it took",
    )  # fmt: skip
