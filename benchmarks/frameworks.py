"""Measures one pipeline written in Pallas, Gluon, the CuTe DSL and CUDA C++, on one GPU.

    python -m benchmarks.frameworks          each source that runs here
    python -m benchmarks.frameworks table    prints the record

The model. The pipeline is the sum of each row of a matrix, by a memory thread and a ring of two
slots (`rowsums`). Beside it are XLA's own sum, and XLA's copy of half of the matrix, which moves as
many bytes as a sum reads. Samples are those of `processes`: CUPTI times the kernels, so that
neither JAX's nor PyTorch's launches count.

CUPTI serves JAX or PyTorch in a process, so each contender of PyTorch's has a process of its own.
All see the memory that JAX has made (DLPack). What is not installed, does not compile or is wrong
has its reason in the record. A group's `sources` has a digest of each source that JAX does not
trace, its `versions` the compilers.
"""

import argparse
import ctypes
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import in_torch, peers, suite
from benchmarks.processes import InProcesses
from benchmarks.records import ROOT, Group
from benchmarks.rowsums import pallas
from benchmarks.suite import OTHERS, SEED, Call, Fields, Part, Suite
from benchmarks.turns import float64, off
from pallascope.bench.cupti import Kernel
from pallascope.bench.provenance import code_digest
from pallascope.tuning import measuring
from pallascope.tuning.measuring import Args, Reference
from pallascope.tuning.workers import XLA_FLAGS, Workers
from pipelib_book.measured.frameworks import COPY, CUDA, CUTE, GLUON, PALLAS, XLA

FOLDER = ROOT / "benchmarks" / "rowsums"
#: Rows that are compared with float64.
SAMPLED = 64


class Problem(NamedTuple):
    """A matrix of rows: two blocks of 64 rows for each multiprocessor of an H100 or H200."""

    rows: int = 2 * 132 * 64
    length: int = 8192
    dtype: str = "float32"

    @property
    def args(self) -> tuple[jax.ShapeDtypeStruct]:
        """The type of the matrix."""
        return (jax.ShapeDtypeStruct((self.rows, self.length), self.dtype),)

    @property
    def bytes(self) -> int:
        """Of the matrix."""
        return self.rows * self.length * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.rows} x {self.length} {self.dtype}"


# Contenders: functions of JAX's, or `InTorch`.


class InTorch(NamedTuple):
    """A contender of PyTorch's: its source, and what makes it, a function's name here.

    That function returns one of a matrix on the GPU, which launches a kernel.
    """

    source: str
    make: str


def total(x: Any) -> Any:
    """The sum of each row."""
    return x.sum(1)


def copied(x: Any) -> Any:
    """A copy of half of the rows, that XLA does not leave out."""
    return x[: len(x) // 2] + 1


def _gluon() -> Callable[[Any], Any]:
    from benchmarks.rowsums import gluon

    return gluon.row_sums


def _cute() -> Callable[[Any], Any]:
    peers.open_folder("nvidia-cutlass-dsl")
    import torch
    from cutlass import cute as dsl
    from cutlass.cute.runtime import from_dlpack

    from benchmarks.rowsums import cute

    compiled = list[Any]()

    def run(x: Any) -> Any:
        sums = torch.empty(len(x), dtype=x.dtype, device=x.device)
        args = [from_dlpack(each, assumed_align=16) for each in (x, sums)]
        if not compiled:
            compiled.append(dsl.compile(cute.row_sums, *args))
        compiled[0](*args)
        return sums

    return run


def built(folder: pathlib.Path) -> ctypes.CDLL:
    """CUDA C++'s source as a library in a folder.

    Raises:
      FileNotFoundError, CalledProcessError: there is no nvcc, or it refuses the source.
    """
    library = str(folder / "rowsum.so")
    options = "-arch=sm_90a", "-O3", "-std=c++17", "--shared", "-Xcompiler", "-fPIC"
    subprocess.run(["nvcc", *options, "-o", library, str(FOLDER / "rowsum.cu")], check=True)
    return ctypes.CDLL(library)


def _cuda() -> Callable[[Any], Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        library = built(pathlib.Path(folder))

    def run(x: Any) -> Any:
        sums = torch.empty(len(x), dtype=x.dtype, device=x.device)
        words = (x.data_ptr(), sums.data_ptr(), *x.shape, torch.cuda.current_stream().cuda_stream)
        if error := library.row_sums(*map(ctypes.c_uint64, words)):
            raise RuntimeError(f"CUDA refuses the launch by its error {error}.")
        return sums

    return run


def contenders(problem: Problem, groups: Sequence[Group] = ()) -> dict[str, Any]:
    """All, by name."""
    del problem, groups
    ours = {PALLAS: pallas.row_sums, XLA: total, COPY: copied}
    return ours | {
        GLUON: InTorch("gluon.py", "_gluon"),
        CUTE: InTorch("cute.py", "_cute"),
        CUDA: InTorch("rowsum.cu", "_cuda"),
    }


# Measuring.


class Measured(measuring.Measured):
    """A contender of JAX's, with the methods that `InProcesses` asks for."""

    def __init__(self, contender: Any, problem: Problem) -> None:
        self._exact = copied if contender is copied else total
        super().__init__(contender, problem.args, Reference(self._exact))

    def float64_error(self) -> dict[str, Any]:
        """The error of the first rows against float64, by norms."""
        (x,) = self._sets[0]
        exact = self._exact(float64(x[:SAMPLED]))
        found = float64(self._compiled(self._sets)[0][: len(exact)])
        return dict(rows=len(exact), relative=off(found, exact))


class MeasuredInTorch(Measured):
    """A contender of PyTorch's, of the same memory."""

    def _compile(self, contender: InTorch) -> Callable[[list[Args]], list[jax.Array]]:
        import torch

        self._torch, self._function = torch, globals()[contender.make]()

        def run(sets: list[Args]) -> list[jax.Array]:
            out = [self._function(torch.from_dlpack(x)) for (x,) in sets]
            torch.cuda.synchronize()
            return [jnp.from_dlpack(each) for each in out]

        return run

    def _result_of(self, function: Any) -> Any:
        return jax.eval_shape(self._exact, *self._args)

    def _kernel_times(self, rounds: int) -> list[list[Kernel]]:
        inputs = [self._torch.from_dlpack(x) for (x,) in self._sets]
        return in_torch.kernel_times(lambda: [*map(self._function, inputs)], rounds)


def prepare(contender: Any, problem: Problem) -> Callable[..., Any]:
    """A task for `Workers`, as `products.prepare`."""
    kind = MeasuredInTorch if isinstance(contender, InTorch) else Measured
    measured = kind(contender, problem)
    return lambda method, *args: getattr(measured, method)(*args)


def pools(options: argparse.Namespace) -> dict[str, Workers]:
    """A process for each contender of PyTorch's, and one for all of JAX's."""
    del options
    return {name: Workers(1, env=dict(XLA_FLAGS=XLA_FLAGS)) for name in (*sources(), OTHERS)}


def sources() -> dict[str, str]:
    """A digest of each source that JAX does not trace."""
    made = contenders(Problem()).items()
    return {n: code_digest(FOLDER / x.source) for n, x in made if isinstance(x, InTorch)}


def versions() -> dict[str, str]:
    """The versions of what compiles the sources, as far as it is here."""
    here = {each.name: each.version for each in metadata.distributions()}
    if nvcc := shutil.which("nvcc"):
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
        here["nvcc"] = said.partition("release ")[2].partition(",")[0]
    names = "jax", "torch", "triton", "nvidia-cutlass-dsl", "nvcc"
    return {name: here[name] for name in names if name in here}


_IN_PROCESSES = InProcesses(prepare, lambda problem: measuring.tolerance(problem.dtype), XLA_FLAGS)


def measure(call: Call, part: Part, problem: Problem, made: Mapping[str, Any]) -> Iterator[Fields]:
    """As `InProcesses`, with versions and digests."""
    for fields in _IN_PROCESSES(call, part, problem, made):
        yield dict(fields, versions=versions(), sources=sources())


_TRACED = suite.kinds((GLUON, CUTE, CUDA), lambda problem: problem.args)
SUITE = Suite(
    "frameworks",
    {"frameworks": Part(contenders, measure, _TRACED, (Problem(),), Problem)},
    (suite.tb_per_second, suite.beside("{:.3f} of a copy", COPY.partition(",")[0])),
    dict(seed=SEED, distribution="standard normal"),
    processes=pools,
)

if __name__ == "__main__":
    suite.main("frameworks")
