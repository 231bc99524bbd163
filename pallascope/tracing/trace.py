"""`trace`: from a Mosaic GPU kernel to a `Program`, on no GPU.

The algorithm. `jax.make_jaxpr` gives the kernel's jaxpr. Each jaxpr in it is compiled once, to a
list of Python closures over a list of values (`code`). This list is run once for each Pallas thread
of each block of one cluster. Scalars are Python numbers and so are exact; a tensor is OPAQUE,
without its contents. A primitive that touches memory or synchronises appends an `Op`, and so does
arithmetic on tensors, with its cost. The table in `primitives` has the function for each primitive
by its name.

Covered: `plgpu.kernel` with threads and clusters; the primitives in that table; scalars that the
kernel reads from a concrete integer argument that nothing has written, and integers that the host
computes from such arguments.

What arithmetic costs. Each primitive on tensors is one operation for each element of its result; a
reduction is one for each element of its operand. Transcendental functions are counted apart
(`pure` has the list). Primitives that move or rename elements are free: broadcasts, reshapes,
transposes, slices, layout casts (though on the device a cast may go through SMEM). Scalars are
free. This counts the jaxpr's operations, not the instructions that the compiler makes of them. The
lanes of a reduction also exchange words, whose number depends on the layout of registers: `layouts`
counts them.

What accesses of SMEM cost. The `wavefronts` of a read or a write depend on the layouts of memory
and of registers: `layouts` says how they are found.

Not covered:

- loops and predicates that depend on what tensors hold, or on `barrier_test`: refused. Of such a
  branch all ways are in the program, one after another, of which `simulate` takes one; what puts
  threads in order or writes memory is refused there (`branches`). Where only an index of memory
  depends on tensors, its region is not placed;
- `pl.pallas_call`, which JAX compiles for TPUs and by Triton only (with `plgpu.CompilerParams` it
  runs in the interpreter, and nowhere else); memory of other devices: refused without
  `whole_grid`;
- which clusters a run claims by cluster launch control (`claims` has one answer);
- a primitive that has effects and is not known: refused;
- regions of `inline_mgpu`, which are whole buffers, and regions that `views` says are not covered;
- memory of a scope that is entered again, which is new each time (its barriers are not);
- lines within JAX's and pipelib's emitters: an op of theirs has the line where they were called.

`max_steps` ends a thread where one of its loops would begin a step more than that: the program is
then a prefix of each thread, without its drain. Source: the jaxprs of JAX 0.11.2 and 0.12.0.1, and
for clusters the lowering of `ClusterBarrier` and of collective copies in their
`jax.experimental.mosaic.gpu`.
"""

import dataclasses
from collections.abc import Callable
from numbers import Integral
from typing import Any

from pallascope.arguments import expect, expect_flags
from pallascope.garbage import uncollected
from pallascope.program import Program
from pallascope.tracing import primitives
from pallascope.tracing.code import Codes
from pallascope.tracing.host import Host, host_of, kernels_of, one_of
from pallascope.tracing.kernel import (
    arguments,
    has_auto_barriers,
    infers_tiles,
    kernel_info,
    kernel_scope,
    mesh_of,
    reserved,
    starts_early,
)
from pallascope.tracing.names import named
from pallascope.tracing.source import line_of_function, own_function
from pallascope.tracing.state import Call, Cluster

#: How many clusters a traced one claims by default: enough to come to each slot of a ring again.
CLAIMS = 4


def trace(
    kernel: Callable[..., object],
    *args: object,
    block: int | tuple[int, ...] | None = None,
    max_steps: int | None = None,
    call: int | None = None,
    whole_grid: bool = False,
    claims: int | None = None,
    **others: Any,
) -> Program:
    """What each Pallas thread of one cluster of a Mosaic GPU kernel does, in order.

    Args:
      kernel: a function that calls one `plgpu.kernel`, or that kernel.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run. Control flow may
        depend on integers in arrays, which a ShapeDtypeStruct does not have.
      block: the index on each axis of the grid, or a number if it has one axis; by default zeros.
        All blocks of its cluster are traced; indices on the cluster's axes may follow, but only
        zeros.
      max_steps: no loop runs for more steps. A thread ends there, and the program is `truncated`.
      call: which kernel, from 0, if the function calls several.
      whole_grid: trace all blocks of the grid in one program; and all devices, if the function
        calls the kernel within `jax.shard_map`, whose mesh may be a `jax.sharding.AbstractMesh`.
        For blocks and devices that wait for each other by semaphores.
      claims: how many other clusters of the grid this one claims, at most, if the kernel schedules
        its blocks dynamically (`try_cluster_cancel`). By default 4; 0 if `block` is given, so that
        programs of several blocks can be compared; always 0 with `whole_grid`.
      **others: refused; bind the function's own keywords to it with `functools.partial`.

    Raises:
      TypeError: `kernel` is not a function; `block`, `max_steps` or `call` is not an integer or
        integers; other keywords.
      ValueError: no kernel or several, a grid without blocks, no arguments where it takes some, a
        block outside the grid, a loop or a predicate that depends on tensors, or a branch that does
        and in which threads are put in order or memory is written.
      NotImplementedError: a kernel for a TPU or Triton; a primitive that has effects and is not
        known.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> for op in program.threads[0][2:5]:
      ...     print(program.describe(dataclasses.replace(op, line=None)))
      load reads x[0:2, 0, 0:128] writes x_smem[0, 0:2, 0, 0:128]
          on produced[0] #0 step 0
      wait on produced[0] #0 step 0
      read reads x_smem[0, 0, 0, 0:128] step 0
    """
    if others:
        bound = ", ".join(f"{name}=..." for name in others)
        raise TypeError(
            "trace takes block=, max_steps=, call= and claims=, and hands no keywords on, so"
            f" {bound} would be lost: trace functools.partial(function, {bound})."
        )
    expect_integers("trace", max_steps=max_steps, call=call, claims=claims)
    expect_flags("trace", whole_grid=whole_grid)
    if claims is not None and claims < 0:
        raise ValueError(f"{claims=} is less than 0: give 0 for a cluster that claims no other.")
    called = one_of(kernels_of(kernel, args, "trace"), call, "a program is that of one")
    if whole_grid and block is not None:
        raise ValueError(
            f"{whole_grid=} traces all blocks, and {block=} asks for one: leave one of the two out."
        )
    most = (CLAIMS if block is None else 0) if claims is None else claims
    return Tracer(called).program(block, max_steps, whole_grid, most)


def expect_integers(asker: str, *, max_steps: object = None, **others: object) -> None:
    """Raises a TypeError or ValueError unless each is None or an integer, and steps are some."""
    for name, value in dict(max_steps=max_steps, **others).items():
        if value is not None:
            expect(asker, value, Integral, f"an integer for {name}=", "give one, or leave it out")
    if isinstance(max_steps, Integral) and int(max_steps) < 1:
        raise ValueError(f"{max_steps=} is less than 1: no step would be traced, so ask for one.")


class Tracer:
    """A kernel that a function calls, compiled once to be traced at several blocks.

    Attributes:
      called: its call.
      name: what it is called.
      line: "file:line" of where it is defined; None if that is not known.
      grid: the blocks, or clusters, along each axis.
    """

    def __init__(self, called: Call) -> None:
        eqn = called.eqn
        self.called, self._mesh, (jaxpr, *_) = called, mesh_of(eqn.params), eqn.params["jaxprs"]
        scope, info = kernel_scope(jaxpr), kernel_info(jaxpr)
        self._own = scope and own_function(scope)
        self._code = Codes(primitives.of_kernel, infers_tiles(eqn), self._own).compile(jaxpr)
        self.name = called.name
        self._starts_early, self._auto_barriers = starts_early(jaxpr), has_auto_barriers(eqn)
        self.line = line_of_function(info)
        self.grid: tuple[int, ...] = tuple(self._mesh.grid)
        if 0 in self.grid:
            raise ValueError(
                f"The kernel {self.name} has grid={self.grid}, so it has 0 blocks and no thread"
                " does anything: give each axis a size of 1 or more."
            )

    def program(
        self,
        block: int | tuple[int, ...] | None = None,
        max_steps: int | None = None,
        whole_grid: bool = False,
        claims: int = 0,
    ) -> Program:
        """The program that `trace` returns for these options."""
        called = self.called
        memory = reserved(called.eqn)
        cluster = Cluster(
            self.name,
            self._mesh,
            block,
            memory,
            called.devices,
            whole_grid,
            self._auto_barriers,
            claims,
        )
        operands = arguments(cluster, called, self._code.invars, self._own)
        with uncollected():
            program = named(cluster.program(self._code, operands, max_steps))
        return dataclasses.replace(program, starts_early=self._starts_early)


def tracers(
    kernel: Callable[..., object], args: tuple[object, ...], asker: str, call: int | None = None
) -> list[Tracer]:
    """All kernels that a function calls, in order, or the one that `call` says; at least one.

    `asker` is the function that errors name.
    """
    return hosted(kernel, args, asker, call)[0]


def hosted(
    kernel: Callable[..., object], args: tuple[object, ...], asker: str, call: int | None = None
) -> tuple[list[Tracer], Host]:
    """The `tracers` of a function; its host, which knows what XLA runs around the kernels."""
    host = host_of(kernel, args, asker)
    if not (found := host.calls):
        raise ValueError(
            f"{asker}: the function calls no Mosaic GPU kernel, so there is nothing to look at:"
            " pass one that calls plgpu.kernel(...); or, if it calls one on a GPU only, as"
            ' pipelib\'s own do for some shapes, ask within `with pipelib.target("9.0"):`.'
        )
    chosen = found if call is None else [one_of(found, call, f"call= of {asker} is one of them")]
    return list(map(Tracer, chosen)), host
