"""What faults of public kernels do, in small kernels: on a Hopper GPU, and in JAX's interpreter.

`python -m benchmarks.wild` runs those of `pipelib_book.wild` that are for Hopper, many copies of
each at once, and writes `results/<gpu>/wild.json`; with `--interpret`, on any machine and a single
copy, `results/interpreter/wild-jax-<version>.json`. `benchmarks.faults` says how, and what is in
them. In these records `blocks` is the number of copies. Some faults show seldom:
`attention-epilogue` was wrong in one record of 20 runs and not in the next. So there are more runs
here.
"""

from benchmarks import faults
from pipelib_book.wild import RUN, many

SUITE = faults.Suite(
    "wild",
    {name: many(hazard) for name, hazard in RUN.items()},
    "What faults of public kernels do, in small kernels.",
    runs=200,
)

if __name__ == "__main__":
    faults.main(SUITE)
