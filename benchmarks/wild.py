"""What faults of public kernels do, in small kernels: on a Hopper GPU, and in JAX's interpreter.

    python -m benchmarks.wild                on the GPU: many copies of each at once
    python -m benchmarks.wild --interpret    on any machine, a single copy of each

These are the kernels of `pipelib_book.wild` that are for Hopper. `benchmarks.faults` says how they
run, and what is in the records, whose `blocks` is the number of copies. Some faults show seldom:
`attention-epilogue` was wrong in one record of 20 runs and not in the next. So there are more runs
here.
"""

from benchmarks import faults, suite
from pipelib_book.wild import RUN, many

SUITE = faults.suite_of("wild", {name: many(hazard) for name, hazard in RUN.items()}, runs=200)

if __name__ == "__main__":
    suite.main("wild")
