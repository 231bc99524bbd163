"""Mosaic GPU's primitives."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, overload

from jax import Array
from jax._src.pallas.mosaic_gpu.core import SomeLayout
from jax._src.pallas.primitives import DeviceId
from jax._src.state.types import AbstractRef, TransformedRef
from jax.experimental.mosaic.gpu import MultimemReductionOp, TMAReductionOp
from jax.experimental.mosaic.gpu.launch_context import CopyPartition, OOBFillMode
from jax.typing import ArrayLike, DTypeLike

def __getattr__(name: str) -> Any: ...

type _Axes = Hashable | tuple[Hashable, ...]
type _Ref = AbstractRef | TransformedRef
type _Source = Array | _Ref

# Copies.

def copy_gmem_to_smem(
    src: _Ref,
    dst: _Ref,
    barrier: _Ref | None = None,
    *,
    collective_axes: _Axes | None = None,
    leader_tracked: CopyPartition | None = None,
    oob_mode: OOBFillMode | None = None,
    predicate: ArrayLike | None = None,
) -> None: ...
def copy_smem_to_gmem(
    src: _Ref,
    dst: _Ref,
    predicate: ArrayLike | None = None,
    *,
    commit_group: bool = True,
    reduction_op: TMAReductionOp | None = None,
) -> None: ...
def async_prefetch(
    ref: _Ref,
    *,
    collective_axes: _Axes | None = None,
    leader_tracked: CopyPartition | None = None,
    predicate: ArrayLike | None = None,
) -> None: ...
def async_store_smem(
    src: Array,
    ref: _Ref,
    barrier: _Ref,
    *,
    cluster_idx: ArrayLike,
    cluster_dim: Hashable,
    optimized: bool = True,
    atomic: Literal["add", "max", "min", "and", "or", "xor"] | None = None,
) -> None: ...
def wait_gmem_to_smem(n: int) -> None: ...
def wait_smem_to_gmem(n: int, wait_read_only: bool = False) -> None: ...
def commit_smem() -> None: ...
def commit_smem_to_gmem_group() -> None: ...
def load(
    src: _Ref, idx: Any = ..., *, layout: SomeLayout | None = None, optimized: bool = True
) -> Array: ...

# Barriers and semaphores.

def barrier_arrive(barrier: _Ref, *, predicate: ArrayLike | None = None) -> None: ...
def barrier_wait(barrier: _Ref) -> None: ...
def barrier_test(barrier: _Ref) -> Array: ...
def semaphore_signal(
    semaphore: _Ref,
    inc: ArrayLike = 1,
    *,
    device_id: DeviceId | None = None,
    memory_scope: Literal["sys", "gpu"] = "sys",
) -> None: ...
def semaphore_wait(
    semaphore: _Ref,
    value: ArrayLike = 1,
    *,
    decrement: bool = True,
    memory_scope: Literal["sys", "gpu"] = "sys",
) -> None: ...
def semaphore_signal_multicast(
    semaphore: _Ref, value: ArrayLike = 1, *, collective_axes: _Axes
) -> None: ...

class SemaphoreSignal:
    def __init__(self, ref: _Ref, *, inc: ArrayLike = 1, device_id: Any = None) -> None: ...

def semaphore_signal_parallel(*signals: SemaphoreSignal) -> None: ...

# The tensor core.

def wgmma(acc: Any, a: _Source, b: _Ref) -> None: ...
def wgmma_wait(n: int) -> None: ...
def wgmma_accumulator_load(acc: Any, *, wait_n: int | None = 0) -> Array: ...
def mma(acc: Array, a: Array, b: Array, /) -> Array: ...
def tcgen05_mma(
    acc: _Ref,
    a: _Ref,
    b: _Ref,
    barrier: _Ref | None = None,
    *,
    a_scale: _Ref | None = None,
    b_scale: _Ref | None = None,
    a_sparse_metadata: _Ref | None = None,
    accumulate: ArrayLike = True,
    collective_axis: str | None = None,
) -> None: ...
def tcgen05_commit_arrive(barrier: _Ref, collective_axis: str | None = None) -> None: ...
@overload
def async_load_tmem(
    src: _Ref, *, layout: SomeLayout | None = ..., reduce: None = None
) -> Array: ...
@overload
def async_load_tmem(
    src: _Ref,
    *,
    layout: SomeLayout | None = ...,
    reduce: Literal["max", "min", "absmax", "absmin"],
) -> tuple[Array, Array]: ...
def async_store_tmem(ref: _Ref, value: Array) -> None: ...
def wait_load_tmem() -> None: ...
def commit_tmem() -> None: ...

# Others.

class ShapeDtypeStruct:
    shape: tuple[int, ...]
    dtype: DTypeLike
    layout: SomeLayout
    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, layout: SomeLayout) -> None: ...

def set_max_registers(n: int, *, action: Literal["increase", "decrease"]) -> None: ...
def broadcasted_iota(
    dtype: DTypeLike, shape: Sequence[int], dimension: int, *, layout: SomeLayout | None = None
) -> Array: ...
def inline_mgpu(
    *, arg_types: Any = (), return_type: Any = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def print_layout(fmt: str, x: ArrayLike | _Ref) -> None: ...
def multimem_load_reduce(
    ref: _Ref, *, collective_axes: _Axes, reduction_op: MultimemReductionOp
) -> Array: ...
def multimem_store(source: Array, ref: _Ref, collective_axes: _Axes) -> None: ...
def try_cluster_cancel(result_ref: _Ref, barrier: _Ref, *, collective_axes: _Axes = ()) -> None: ...
def query_cluster_cancel(
    result_ref: _Ref, grid_names: Sequence[Hashable]
) -> tuple[tuple[Array, ...], Array]: ...
def griddepcontrol_wait() -> None: ...
def griddepcontrol_launch_dependents() -> None: ...
