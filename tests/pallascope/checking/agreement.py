"""`agree`: what is held of the checker's report and the explorer's outcome of one program.

What agreement is to be expected, and why no more:

- A clean verdict of one is a clean verdict of the other, always.
- One finds a deadlock or a misused barrier if and only if the other finds one of the two: where
  phases are not what they are meant to be, each judge sees its own part of what may follow.
- Else both find a race, or neither does. If not, they find the same kinds.
- What the checker points at is bad: the very ops of each finding are among those that the explorer
  saw go wrong. Not asked of a misused barrier, where the ops that tell of it are a choice, nor
  where one is misused or threads are stuck and the rest is a guess, nor of a result that is lost:
  beside a race the explorer does not look for it, and of several writes any may be blamed.
- Where threads ask for more registers in all than there are, the checker says so, without a run.
  For the explorer this is a deadlock.

The checker counts one fault once, and is silent of the others that follow from a race: so it need
not point at all that the explorer saw.
"""

from hypothesis import HealthCheck, settings

from pallascope import check
from tests.pallascope.checking.explorer import explore

BARRIERS = {"deadlock", "barrier-misuse"}
TOO_MANY = "who asks last waits for ever"  # registers
quick = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def agree(program, report=None, outcome=None):
    """Raises unless the two judges agree as the module says; else the kinds that the checker found.

    What the checker says of too many registers is a deadlock here. A report and an outcome that
    are there already may be given.
    """
    report = check(program) if report is None else report
    outcome = explore(program) if outcome is None else outcome
    kinds, found = outcome.kinds, frozenset(map(_kind, report))
    verdicts = f"explored {sorted(kinds)}, checked {sorted(found)} of\n{program}\n{report}"
    assert bool(kinds) == bool(found), verdicts
    assert bool(kinds & BARRIERS) == bool(found & BARRIERS), verdicts
    if not kinds & BARRIERS:
        assert ("race" in kinds) == ("race" in found), verdicts
        assert "race" in kinds or kinds == found, verdicts
    bad = {
        (kind, frozenset(program.threads[thread][index].line for thread, index in places))
        for kind, places in outcome.bad
    }
    for finding in report:
        if _is_to_be_seen(finding, kinds | found):
            assert (finding.kind, frozenset(op.line for op in finding.ops)) in bad, verdicts
    return found


def _kind(finding):
    return "deadlock" if TOO_MANY in finding.cause else str(finding.kind)


def _is_to_be_seen(finding, kinds):
    if _kind(finding) == "deadlock":
        return bool(finding.ops) and "barrier-misuse" not in kinds
    is_lost_write = finding.kind == "lost-store" and finding.ops[-1].kind == "write"
    return not kinds & BARRIERS and not is_lost_write
