"""What the gallery's faulty kernels do: on a Hopper GPU, and in JAX's interpreter.

`python -m benchmarks.hazards` runs those of `pipelib_book.gallery`, and writes
`results/<gpu>/hazards.json`; with `--interpret`, on any machine,
`results/interpreter/hazards-jax-<version>.json`. `benchmarks.faults` says how, and what is in them.
"""

from benchmarks import faults
from pipelib_book import gallery

SUITE = faults.Suite("hazards", gallery.GALLERY, "What the gallery's faulty kernels do.")

if __name__ == "__main__":
    faults.main(SUITE)
