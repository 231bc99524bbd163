"""`compiled`: the kernel that a function calls, compiled; `compiled_all`: each of several."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

from pallascope.compiling.assembling import assembled
from pallascope.compiling.lowering import natively, ptx
from pallascope.compiling.machine_code import Body, counted, disassembled, reached
from pallascope.compiling.result import Compiled, Loop
from pallascope.launches import Called
from pallascope.tracing.host import apart, kernels_of, one_of
from pallascope.tracing.kernel import kernel_info
from pallascope.tracing.source import function_name
from pallascope.tracing.state import Call
from pallascope.tracing.trace import expect_integers


def compiled(kernel: Callable[..., object], *args: object, call: int | None = None) -> Compiled:
    """What ptxas and the machine code say of a kernel, on no GPU.

    The kernel is compiled for Hopper, or for the GPU of `pipelib.target`.
    It takes two to four seconds, in processes of its own. It needs JAX's CUDA plugin, ptxas and
    nvdisasm: `pallascope.compiling.lacking()` says what of these is missing.

    Args:
      kernel: a function that calls one `plgpu.kernel`, or that kernel, as in `pallascope.trace`.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
      call: which kernel, from 0, if the function calls several.

    Raises:
      TypeError: `kernel` is not a function.
      ValueError: no kernel or several; or JAX or ptxas does not compile the kernel, in their words.
      ImportError: JAX's CUDA plugin is not installed, or is of another version than JAX.
      FileNotFoundError: ptxas or nvdisasm is not installed.
      NotImplementedError: a kernel of `pl.pallas_call`.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> found = pallascope.compiled(matmul, x, x)
      >>> found.registers, found.spill_stores, found.serialized
      (168, 0, ())
    """
    expect_integers("compiled", call=call)
    return compiled_call(one_of(_kernels(kernel, args), call, "one is compiled"))


def compiled_all(kernel: Callable[..., object], *args: object) -> Iterator[Compiled]:
    """The same of each kernel that a function calls, in order; at least one.

    Example:
      >>> q = jax.ShapeDtypeStruct((1, 512, 1, 64), jnp.bfloat16)
      >>> total = lambda *qkv: attention(*qkv).astype(jnp.float32).sum()
      >>> [found.kernel for found in compiled_all(jax.grad(total), q, q, q)]
      ['attention', 'attention_dq', 'attention_dkv']
    """
    calls = _kernels(kernel, args)
    if not calls:
        one_of(calls, None, "one is compiled")  # raises
    yield from map(compiled_call, calls)


def _kernels(kernel: Callable[..., object], args: tuple[object, ...]) -> list[Call]:
    """The kernels that a function calls on a GPU, by the names of their functions."""
    with natively():
        found = kernels_of(kernel, args, "compiled")
    return [call._replace(name=name) for call, name in zip(found, apart(map(_name, found)))]


def _name(call: Call) -> str:
    name: str | None = call.eqn.params["name"]
    if name in (None, "anonymous"):
        return function_name(kernel_info(call.eqn.params["jaxprs"][0])) or "a kernel"
    return name


def compiled_call(call: Call) -> Compiled:
    """The same of a kernel's call: takes it through all rooms."""
    text = ptx(launched(call), call.name, call.devices)
    code, report, version = assembled(text, call.name)
    sass = disassembled(code)
    instructions, loops = reached(sass)
    return Compiled(
        kernel=call.name,
        ptxas=version,
        **dataclasses.asdict(report),
        instructions=counted(instructions),
        loops=tuple(map(_loop, loops)),
        ptx=text,
        sass=sass,
    )


def launched(call: Call) -> Called:
    """The launch of a call, by the types of its operands."""
    avals = tuple(operand.aval for operand in call.eqn.invars)
    return Called(call.eqn.params, avals, (None,) * len(avals)).natively()


def _loop(body: Body) -> Loop:
    lines = Counter(each.line for each in body.instructions if each.line)
    most = max(lines, key=lines.__getitem__, default=None)
    return Loop(body.start, most, counted(body.instructions))
