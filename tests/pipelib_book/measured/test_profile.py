"""`pipelib_book.measured.profile`: the recorded profile of chapter 13's ring."""

from pallascope.program import Program
from pallascope.timeline import Source
from pipelib_book.measured import profile

PROGRAM = Program("The ring", threads=((), ()))


def test_the_record_has_both_threads_of_the_ring():
    found = profile.ring(PROGRAM)
    assert found is not None and found.source is Source.MEASURED
    assert len(found.lanes) == 2 and found.name == "The ring" and "H200" in found.machine
    assert {"multiply", "load", "wait consumed"} <= {span.scope for span in found.spans}
