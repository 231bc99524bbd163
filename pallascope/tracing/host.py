"""`host_of`: the Mosaic GPU kernels that a function calls, in order, and what XLA runs around them;
`kernels_of` has the kernels alone, `one_of` picks one.

JAX traces the function, and its jaxpr is run as a host would run it, on what is known of the
arguments. Nothing else is run. Both errors name the function of pipelib that the caller called.
Here a call gets the name that every report, figure and table has: `apart` numbers equal ones.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import jax

from pallascope.arguments import wrong_type
from pallascope.tracing import primitives
from pallascope.tracing.around import Fusion, fusions
from pallascope.tracing.code import Codes, value_of
from pallascope.tracing.jaxprs import Jaxpr
from pallascope.tracing.kernel import kernel_info
from pallascope.tracing.names import operands
from pallascope.tracing.source import UNKNOWN, function_name, kernel_name, line_of_function
from pallascope.tracing.state import Call, Thread


class Host(NamedTuple):
    """What a function runs on a GPU: the kernels that it `calls`; its jaxpr."""

    calls: list[Call]
    jaxpr: Jaxpr

    def fusions(self) -> list[Fusion]:
        """The kernels that XLA makes around those."""
        return fusions(self.jaxpr)


def kernels_of(function: Callable[..., object], args: tuple[object, ...], asker: str) -> list[Call]:
    """The kernels that the function calls."""
    return host_of(function, args, asker).calls


def host_of(function: Callable[..., object], args: tuple[object, ...], asker: str) -> Host:
    """The kernels that the function calls, and those around them."""
    remedy = "give one that calls plgpu.kernel(...), and its arguments after it"
    if not callable(function):
        raise wrong_type(asker, function, "a function", remedy)
    _expect_of_jax(function, args, asker)
    try:
        closed = cast(Any, jax.make_jaxpr)(function)(*args)
    except TypeError as error:
        if args or "argument" not in str(error):
            raise
        try:
            expected = f" (it takes {', '.join(inspect.signature(function).parameters)})"
        except ValueError:
            expected = ""
        raise ValueError(
            f"The kernel was given no arguments{expected}, and without them it fails: {error}."
            " Give arrays or jax.ShapeDtypeStructs after it."
        ) from error
    host = Thread(0, 0, None, None)
    code = Codes(primitives.of_host).compile(closed)
    code.run(host, [value_of(leaf) for leaf in jax.tree.leaves(args)])
    called, asked = operands(closed), function_name(closed.jaxpr.debug_info)
    params = [call.eqn.params for call in host.kernels]
    names = [kernel_name(each["name"], kernel_info(each["jaxprs"][0]), asked) for each in params]
    calls = [
        call._replace(names=called.get(id(call.eqn), ()), name=name)
        for call, name in zip(host.kernels, apart(names))
    ]
    return Host(calls, closed)


def apart(names: Iterable[str]) -> list[str]:
    """The names, of which the second equal one ends with " (2)", and so on.

    Example:
      >>> apart(["copy", "sum", "copy"])
      ['copy', 'sum', 'copy (2)']
    """
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found


def _expect_of_jax(function: Any, args: tuple[object, ...], asker: str) -> None:
    """Refuses what `plgpu.as_torch_kernel` returns: it compiles, and takes torch's tensors."""
    written = getattr(getattr(function, "__code__", None), "co_qualname", "")
    if not written.startswith("as_torch_kernel."):
        return
    try:
        calls = kernels_of(function.__wrapped__, args, asker)
    except Exception:  # of torch's tensors, JAX makes no jaxpr: then the line is not known
        calls = []
    jaxprs = [call.eqn.params["jaxprs"][0] for call in calls]
    lines = [line_of_function(kernel_info(jaxpr) or jaxpr.debug_info) for jaxpr in jaxprs]
    raise NotImplementedError(
        f"{next(filter(None, lines), UNKNOWN)}: plgpu.as_torch_kernel makes a function of torch's"
        " tensors, which JAX does not trace, so its kernel would not be seen: give the function"
        " that it was made of, and jax.ShapeDtypeStructs for the tensors."
    )


def one_of(kernels: list[Call], call: int | None, why: str) -> Call:
    """The kernel that the caller means; `why` says why there has to be one only."""
    if len(kernels) == 1 if call is None else 0 <= call < len(kernels):
        return kernels[call or 0]
    remedy = "pass a function that calls plgpu.kernel(...)"
    if kernels:
        remedy = f"say which with call=0 to call={len(kernels) - 1}"
    asked = f", and {call=} is not one of them" if call is not None else ""
    raise ValueError(
        f"The function calls {len(kernels)} Mosaic GPU kernels, but {why}{asked}: {remedy}."
    )
