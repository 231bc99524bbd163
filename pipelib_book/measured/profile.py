"""The recorded profile of chapter 13's ring, for readers without a GPU.

The model. `profile.json` is what JAX's in-kernel profiler wrote on the records' GPU; the clock is
that of the ring in `machine.json`. The profiled kernel has no drain, and waits for its products in
the scope "multiply".
"""

import pathlib
import statistics

from pallascope.profiling import read_profile
from pallascope.program import Program
from pallascope.timeline import Timeline
from pipelib_book.measured import results


def ring(program: Program, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> Timeline | None:
    """The measured timeline of the ring; None if there is no record.

    Args:
      program: the chapter's ring, which says what its threads are called.
    """
    paths = results.find(f"{results.GPU}/profile.json", folders)
    machines = results.read(f"{results.GPU}/machine.json", folders)
    if not paths or not machines:
        return None
    clocks = machines[0]["kernels"]["ring"]["clock_hz"]
    return read_profile(
        paths[0],
        clock_hz=statistics.median(clocks),
        threads=2,
        block=0,
        name=program.name,
        machine=machines[0]["provenance"]["gpu"],
        program=program,
    )
