"""`Ref`, `Accumulator`, `Int` and others: types of what JAX leaves without one, for annotations.

The model. JAX annotates its functions with the abstract values of refs (`AbstractRef`). A kernel
gets tracers of these values. A tracer has the methods of its abstract value, and `ref.at[...]`
gives another kind of ref that the same functions take. No public class of JAX describes this. So
a type checker is told here, once, that a `Ref` is an abstract value with the methods of a tracer.

Pytrees are `Tree`, which is `Any`. The structure of a pytree is a `TreeDef`.

When a program runs, `Ref` and `Accumulator` are `Any`, and nothing is checked.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

#: An int32 scalar: known when the kernel is traced, or only when it runs.
Int = int | jax.Array
#: A bool scalar: known when the kernel is traced, or only when it runs.
Bool = bool | jax.Array
#: What an array or a ref is indexed by along one axis.
Index = Int | pl.Slice | slice
#: A pytree. Its leaves are what the place that names it says.
Tree = Any
#: What has a shape and a dtype. Checks look at nothing else of an array.
Shaped = jax.Array | jax.ShapeDtypeStruct
#: A dtype, as arrays have it.
Dtype = np.dtype[Any]
#: What `pl.run_scoped` and `plgpu.kernel` allocate for each ref that they pass on; in pytrees.
Allocation = pl.MemoryRef | plgpu.Barrier | plgpu.ClusterBarrier


class TreeDef(Protocol):
    """The structure of a pytree, which JAX's extension module declares without a type."""

    def unflatten(self, leaves: Iterable[Any], /) -> Tree:
        """The pytree of this structure with these leaves."""
        ...


def flatten(tree: Tree) -> tuple[list[Any], TreeDef]:
    """The leaves and the structure of a pytree."""
    return cast("tuple[list[Any], TreeDef]", jax.tree.flatten(tree))


def flatten_with_path(tree: Tree) -> tuple[list[tuple[tuple[Any, ...], Any]], TreeDef]:
    """The leaves of a pytree, each with its path, and the structure."""
    return cast(
        "tuple[list[tuple[tuple[Any, ...], Any]], TreeDef]",
        jax.tree_util.tree_flatten_with_path(tree),  # pyright: ignore[reportUnknownMemberType]
    )


def structure(tree: Tree) -> TreeDef:
    """The structure of a pytree."""
    return cast(TreeDef, jax.tree.structure(tree))


if TYPE_CHECKING:
    from jax.ref import AbstractRef

    class _At:
        def __getitem__(self, index: Any) -> "Ref": ...

    class Ref(AbstractRef):
        """Memory of the GPU (GMEM, SMEM), a part of it, or barriers, in a kernel."""

        # JAX declares these two by descriptors of its own, which type checkers do not see through.
        @property
        def at(self) -> _At:  # pyright: ignore[reportIncompatibleVariableOverride]
            """What gives a part of the memory when it is indexed."""
            ...

        def transpose(  # pyright: ignore[reportIncompatibleVariableOverride]
            self, permutation: tuple[int, ...]
        ) -> "Ref":
            """The memory with its axes in another order."""
            ...

        @property
        def shape(self) -> tuple[int, ...]:
            """The sizes of the axes."""
            ...

        @property
        def size(self) -> int:
            """The number of elements."""
            ...

        @property
        def dtype(self) -> Dtype:
            """The dtype of the elements."""
            ...

        def __getitem__(self, index: Any) -> jax.Array: ...
        def __setitem__(self, index: Any, value: jax.typing.ArrayLike) -> None: ...

    class Accumulator(Any):  # JAX has no public name for the abstract value that `wgmma` takes
        """The float32 accumulator of a `wgmma`, in registers."""

        @property
        def shape(self) -> tuple[int, ...]:
            """Its rows and columns."""
            ...

        def __getitem__(self, index: Any) -> jax.Array: ...
        def __setitem__(self, index: Any, value: jax.typing.ArrayLike) -> None: ...

else:
    Ref = Accumulator = Any

#: The body of a pipeline. It takes a step's grid indices, refs in the trees of the specs, and the
#: carry if there is one, and returns the next carry.
Body = Callable[..., Any]
