"""What the gallery's faulty kernels do: on a Hopper GPU, and in JAX's interpreter.

    python -m benchmarks.hazards                on the GPU: writes results/<gpu>/hazards.json
    python -m benchmarks.hazards --interpret    on any machine: a record of this version of JAX

`benchmarks.faults` says how, and what is in the records.
"""

from benchmarks import faults, suite
from pipelib_book import gallery

SUITE = faults.suite_of("hazards", gallery.GALLERY)

if __name__ == "__main__":
    suite.main("hazards")
