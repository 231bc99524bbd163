"""`uncollected`: a stretch of code in which Python looks for no garbage.

The model. Python's collector looks for cycles whenever many objects have been made, and then visits
all that there are. A trace makes ops by the million and a check looks at them: hardly any of these
objects is in a cycle, and nearly all are kept. So a search finds nothing, and the searches take up
to half of the time. Not covered: cycles made in the stretch wait for the next search after it.
"""

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Turns the collector off, and on again if it was on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
