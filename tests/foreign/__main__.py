"""Traces and checks the kernels of other projects, and writes what was found.

    python -m tests.foreign --checkouts FOLDER [--jax012 PYTHON] [SOURCE ...]

The sources are in `sources`. Each is run by pytest, with the plugin of `collecting`, in the
environment that it names; what they give is summed up in `results.json` beside this file
(`table`). A source that is not named keeps the results that it has there. FOLDER has JAX's tests at
`sources.REVISION`, and is filled from GitHub if it lacks them; the other projects' tests come from
the package index.
"""

import argparse
import json
import pathlib
import sys

from tests.foreign import sources, table
from tests.foreign.running import run

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = pathlib.Path(__file__).with_name("results.json")


def main() -> None:
    """Runs the sources that are named, or all."""
    parser = argparse.ArgumentParser("python -m tests.foreign")
    parser.add_argument("sources", nargs="*", choices=[[], *sources.SOURCES], metavar="SOURCE")
    parser.add_argument("--checkouts", type=pathlib.Path, default=ROOT / ".foreign")
    parser.add_argument("--jax012", type=pathlib.Path, default=ROOT / ".venv-jax012/bin/python")
    parser.add_argument("--most", type=int, default=8, help="cases of one test function (8)")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--again", action="store_true", help="only sum up what was collected")
    options = parser.parse_args()
    sources.fetch(options.checkouts / "jax")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.sources or sources.SOURCES:
        source = sources.SOURCES[name]
        python = options.jax012 if source.is_jax012 else pathlib.Path(sys.executable)
        root = source.root(options.checkouts)
        out = options.checkouts / "out" / name
        print(f"== {name}", flush=True)
        if not options.again:
            run(python.absolute(), root, source, out, options.most, options.workers)
        results[name] = table.sum_up(out, root, source)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(table.line(results[name]), flush=True)


if __name__ == "__main__":
    main()
