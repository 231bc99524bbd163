"""Where other projects' kernels come from: their tests, at pinned versions.

JAX's tests are those of `REVISION`, the last one before 0.11.2 that could be had when they were
chosen; they run with JAX 0.11.2 and with 0.12.0.1. Sources for
Blackwell are those whose tests skip on other GPUs. tokamax's are in its wheel.
"""

import dataclasses
import importlib.util
import pathlib
import subprocess
from dataclasses import dataclass

JAX = "https://github.com/jax-ml/jax"
REVISION = "cec06d116c05f0d52adfceee3d3b730fdbcb0ce5"
BLACKWELL = "10.0"
_PARTS = "tests/pallas", "docs/pallas"


@dataclass(frozen=True)
class Source:
    """Tests of one project: `files` below the folder of a checkout, or of a package."""

    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    package: str = ""
    gpu: str = "9.0"  # its compute capability
    is_jax012: bool = False

    def root(self, checkouts: pathlib.Path) -> pathlib.Path:
        """The folder that the files are below."""
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

SOURCES = (
    {"tokamax 0.0.17": _TOKAMAX}
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
