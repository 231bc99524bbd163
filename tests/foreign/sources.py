"""Where other projects' kernels come from: their tests, at pinned versions.

JAX's tests are those of `REVISION`, the last one before 0.11.2 that could be had when they were
chosen; they run with JAX 0.11.2 and with 0.12.0.1. Sources for
Blackwell are those whose tests skip on other GPUs. tokamax's are in its wheel, and those of
jax-linear-attention in its source distribution.
"""

import dataclasses
import importlib.util
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass

JAX = "https://github.com/jax-ml/jax"
REVISION = "cec06d116c05f0d52adfceee3d3b730fdbcb0ce5"
BLACKWELL = "10.0"
_PARTS = "tests/pallas", "docs/pallas"


@dataclass(frozen=True)
class Source:
    """Tests of one project: `files` below the folder of a checkout, of a package, or of an `sdist`.

    `sdist` is a source distribution's name and version, `helpers` the folder of the modules that
    its tests import, and `most` how many cases of a test function are enough.
    """

    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    package: str = ""
    sdist: str = ""
    helpers: str = ""
    most: int | None = None
    gpu: str = "9.0"  # its compute capability
    is_jax012: bool = False

    def root(self, checkouts: pathlib.Path) -> pathlib.Path:
        """The folder that the files are below; an `sdist` is fetched if it is not there."""
        if self.sdist:
            return unpacked(self.sdist, checkouts.resolve())
        if not self.package:
            return (checkouts / "jax").resolve()
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            raise SystemExit(
                f"{self.package} is not installed here, so its tests cannot run: run `make"
                " test-foreign`, which makes an environment that has it."
            )
        return pathlib.Path(spec.origin).resolve().parents[1]


_OF_JAX = {
    "mosaic": Source(("tests/pallas/mosaic_gpu_test.py",), ("-k", "not TCGen05")),
    "matmul": Source(("tests/pallas/mgpu_matmul_test.py",), ("-k", "not TCGen05")),
    "attention": Source(("tests/pallas/mgpu_attention_test.py",)),
    "ragged dot": Source(("tests/pallas/mgpu_ragged_dot_test.py",), ("-k", "not TCGen05")),
    "interpreter": Source(
        (
            "tests/pallas/gpu_pallas_interpret_test.py",
            "tests/pallas/gpu_pallas_interpret_cluster_barrier_test.py",
            "tests/pallas/gpu_pallas_interpret_race_detection_test.py",
        )
    ),
    "guides": Source(
        tuple(
            f"docs/pallas/gpu/{name}.md"
            for name in ("collective_matmul", "pipelining", "quickstart", "reference")
        )
    ),
    "Blackwell": Source(
        ("tests/pallas/mosaic_gpu_test.py",),
        ("-k", "TCGen05 or dynamic_work or to_smem_gather or to_gmem_scatter"),
        gpu=BLACKWELL,
    ),
    "Blackwell, matmul": Source(
        ("tests/pallas/mgpu_matmul_test.py",), ("-k", "TCGen05"), gpu=BLACKWELL
    ),
    "Blackwell, ragged dot": Source(
        ("tests/pallas/mgpu_ragged_dot_test.py",), ("-k", "TCGen05"), gpu=BLACKWELL
    ),
    "Blackwell, guide": Source(("tests/pallas/mgpu_examples_test.py",), gpu=BLACKWELL),
    "Blackwell, interpreter": Source(
        ("tests/pallas/gpu_pallas_interpret_tcgen05_race_detection_test.py",), gpu=BLACKWELL
    ),
}
_TOKAMAX = Source(
    (
        "tokamax/_src/mosaic_gpu_test.py",
        "tokamax/_src/ops/attention/pallas_mosaic_gpu_test.py",
        "tokamax/_src/ops/gated_linear_unit/pallas_mosaic_gpu_test.py",
        "tokamax/_src/ops/ragged_dot/pallas_mosaic_gpu_common_test.py",
        "tokamax/_src/ops/ragged_dot/pallas_mosaic_gpu_test.py",
    ),
    package="tokamax",
)

_JLA = Source((), sdist="jax-linear-attention==0.1.0", helpers="tests")


def _of_jla(names: str, most: int | None) -> Source:
    files = tuple(f"tests/test_{name}.py" for name in names.split())
    return dataclasses.replace(_JLA, files=files, most=most)


# Without `mosaic_gpu_grid_limits`, one of whose tests computes 2**24 steps: too long for a CPU.
_OF_JLA = {
    "attention": _of_jla(
        "fp8_attention mosaic_gpu_attention mosaic_gpu_attention_persistent mosaic_gpu_dsa",
        most=2,
    ),
    "linear attention": _of_jla(
        "gated_delta_product mosaic_gpu_gated_delta_rule mosaic_gpu_gla mosaic_gpu_kda"
        " mosaic_gpu_mamba3 mosaic_gpu_mlstm mosaic_gpu_rwkv7 vector_gate_bwd_schedule",
        most=1,
    ),
    "convolutions": _of_jla("mosaic_gpu_short_conv mosaic_gpu_short_conv_l2norm", most=1),
    "cross entropy": _of_jla("mosaic_gpu_linear_cross_entropy_objective", most=1),
    "gates": _of_jla(
        "mosaic_gpu_gdn2 mosaic_gpu_gdn_hd256 mosaic_gpu_gdn_split mosaic_gpu_scalar_gate_docs"
        " mosaic_gpu_scalar_gate_grouped mosaic_gpu_vector_gate_fused",
        most=1,
    ),
    "latent attention": _of_jla("mosaic_gpu_dsa_topk mosaic_gpu_mla_attention", most=1),
    "Mamba": _of_jla(
        "mosaic_gpu_mamba1 mosaic_gpu_mamba3_fused mosaic_gpu_mamba3_mimo"
        " mosaic_gpu_mamba3_mimo_kernels",
        most=1,
    ),
    "products": _of_jla("mosaic_gpu_fused_gemm mosaic_gpu_linear_cross_entropy", most=1),
    "ragged dot": _of_jla("mosaic_gpu_ragged_dot mosaic_gpu_ragged_dot_fp8", most=None),
}

SOURCES = (
    {"tokamax 0.0.17": _TOKAMAX}
    | {f"jax-linear-attention 0.1.0, {name}": source for name, source in _OF_JLA.items()}
    | {f"JAX 0.11.2, {name}": source for name, source in _OF_JAX.items()}
    | {
        f"JAX 0.12.0.1, {name}": dataclasses.replace(source, is_jax012=True)
        for name, source in _OF_JAX.items()
    }
)


#: What `make test-slow` runs: kernels that come with JAX.
SAMPLE = Source(("tests/foreign/sample.py",))


def fetch(folder: pathlib.Path) -> None:
    """JAX's tests and guides, from GitHub, unless they are there."""
    if all((folder / part).is_dir() for part in _PARTS):
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for command in (
            ("init", "--quiet"),
            ("fetch", "--quiet", "--depth=1", "--filter=blob:none", JAX, REVISION),
            ("checkout", "--quiet", "FETCH_HEAD", "--", *_PARTS),
        ):
            subprocess.run(["git", *command], cwd=folder, check=True)
    except subprocess.CalledProcessError:
        raise SystemExit(
            f"{folder} lacks {' and '.join(_PARTS)} of {JAX}, and GitHub cannot be reached, so"
            f" there are no tests to run: put revision {REVISION} there."
        ) from None


def unpacked(sdist: str, folder: pathlib.Path) -> pathlib.Path:
    """A source distribution's folder in `folder`, from the package index unless it is there."""
    root = folder / sdist.replace("-", "_").replace("==", "-")
    if not root.is_dir():
        pip = sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"
        with tempfile.TemporaryDirectory() as fetched:
            done = subprocess.run([*pip, "--dest", fetched, sdist], check=False)
            if done.returncode:
                raise SystemExit(
                    f"pip could not fetch the source distribution of {sdist}, so there are no tests"
                    f" to run: connect to the network, or unpack it as {root}."
                )
            (archive,) = pathlib.Path(fetched).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
    return root
