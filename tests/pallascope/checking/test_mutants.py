"""Every mutant that can go wrong is found, with the right kind, and no other; an order shows it.

Each mutant of each kernel of `broken` is made once, checked once, explored once if it is not too
large, and asked everything:

- `agree`: the checker and the explorer say the same. Of lanes, each is a thread to the explorer.
- `expectations`: a mutant that does harm has a finding of a kind that is foreseen. One that the
  explorer did not judge does harm, unless a reason is known why it does none. Of the corpus, each
  mutant that does no harm has such a reason.
- `orders`: each order of ops that a finding has shows its fault, and none is shorter.

A table of what was found is printed at the end of the run.
"""

import collections

import pytest

from pallascope import check
from tests.pallascope.checking import broken, expectations
from tests.pallascope.checking.agreement import BARRIERS, agree
from tests.pallascope.checking.broken import CONSTRUCTS, CORPUS, LANES, mutants_of, program_of
from tests.pallascope.checking.explorer import TooLarge, explore
from tests.pallascope.checking.lanes_apart import apart
from tests.pallascope.checking.orders import LIMIT, judge, shown

CASES = CORPUS + CONSTRUCTS + LANES
SHARES = [(case, share) for case in CASES for share in range(len(case.explored))]
# The explorer lets an answer land in all blocks of a cluster at once, but each has its own copy.
AT_ONCE = "blackwell: tiles taken over by a pair", "wait try_cancel_barrier@"

MUTATIONS = dict.fromkeys(mutation for mutation, _ in expectations.EXPECTED)
TITLE = "mutants of the corpus: caught/harmless/MISSED, and how many the explorer judged too"
HEADER = " " * 60 + "".join(f"{m:>11s}" for m in MUTATIONS) + f"{'all':>12s}  explored"


def row(kernel, table, explored):
    """A kernel's row of the table."""
    verdicts = "caught", "harmless", "missed"
    cells = ["/".join(str(table[mutation, v]) for v in verdicts) for mutation in MUTATIONS]
    cells.append("/".join(str(sum(table[m, v] for m in MUTATIONS)) for v in verdicts))
    widths = [11] * len(MUTATIONS) + [12]
    cells = [f"{cell:>{width}s}" for cell, width in zip(cells, widths)]
    return f"{kernel:60s}" + "".join(cells) + f"{explored:10d}"


def label(case, share):
    """What a share is called: by its kernel, and its number if there are several."""
    shares = len(case.explored)
    return f"{case.name}, {share + 1} of {shares}" if shares > 1 else case.name


def explored(case, program):
    """What the explorer saw; None if there are more states than are visited."""
    if not case.limit:
        return None
    try:
        return explore(apart(program).program if case in LANES else program, case.limit)
    except TooLarge:
        return None


def judged(case, mutant, report, outcome):
    """Whether it does harm and is found, or does none and is not; raises if neither is so."""
    found = frozenset(str(finding.kind) for finding in report)
    if case.name == AT_ONCE[0] and AT_ONCE[1] in mutant.name and mutant.mutation != "twice":
        assert not outcome.kinds - found - {"uninitialized-read"}
    elif case in LANES:
        lanes_agree(found, outcome.kinds)
    elif outcome is not None:
        agree(mutant.program, report, outcome)
    reason = reasons(case, mutant) if case in CORPUS else "" if found else "the explorer says so"
    is_harmful = not reason if outcome is None else bool(found)
    right, why = expectations.expected(mutant)
    right = right | expectations.RACE if case in LANES else right  # they meet at fences
    if not is_harmful:
        assert not found, f"found {sorted(found)}, but it is harmless: {reason}"
        assert reason, f"harmless, but no reason is known; {why}?"
        return "harmless"
    assert case not in CORPUS or not expectations.reason(program_of(case), mutant), reason
    assert found & right, f"found {sorted(found)}, not {sorted(right)}, though {why}"
    return "caught"


def orders_shown(case, mutant, report):
    """How many findings with the words of the case there are; raises unless each order shows one.

    An order of a kernel as people write them has more states than can be visited, so how short it
    could be is not asked.
    """
    limit = 0 if case in CORPUS else LIMIT
    if case.words:
        return shown(mutant.program, case.words, report, limit)
    judge(mutant.program, report, limit)
    return 0


def lanes_agree(found, kinds):
    """Raises unless the checker found what the explorer saw of a program of lanes."""
    assert found <= kinds and bool(found) == bool(kinds), (found, kinds)
    if not found & BARRIERS:
        assert ("race" in found) == ("race" in kinds), (found, kinds)


def reasons(case, mutant):
    """Why a mutant of the corpus does no harm; empty if it is expected to."""
    by_hand = "".join(expectations.BY_HAND.get(key, "") for key in keys(case, mutant))
    return expectations.reason(program_of(case), mutant) or by_hand


def keys(case, mutant):
    """By what a reason by hand may name a mutant: without its line, and without its site."""
    name = mutant.name.split(" [")[0]
    return [(case.name, name), (case.name, name.split(", site")[0].split(", barrier")[0])]


@pytest.mark.parametrize(("case", "share"), SHARES, ids=[label(*share) for share in SHARES])
def test_every_mutant_that_does_harm_is_found_and_no_other(case, share, record_property):
    table, wrong, not_followed = collections.Counter(), [], []
    seen = shows = 0
    assert not check(program_of(case))
    for mutant in broken.share_of(case, share):
        report, outcome = check(mutant.program), explored(case, mutant.program)
        shows += orders_shown(case, mutant, report)
        if any("semaphores order nothing here" in note for note in report.notes):
            assert report or not outcome.bad, mutant.name
            not_followed.append(mutant.mutation)
            continue
        seen += outcome is not None
        try:
            verdict = judged(case, mutant, report, outcome)
        except AssertionError as error:
            verdict = "missed"
            wrong.append(f"{mutant.name}: {error}")
        table[mutant.mutation, verdict] += 1
    record_property(f"table: {TITLE}", [HEADER, row(label(case, share), table, seen)])
    assert not wrong, "\n".join(wrong)
    assert seen >= case.explored[share], seen
    assert tuple(not_followed) == case.not_followed
    assert bool(shows) == bool(case.words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_there_are_as_many_mutants_as_ever_and_all_are_different(case):
    """Some of each kind that the case names do harm: what a share says of each, its report says."""
    mutants, program = mutants_of(case), program_of(case)
    assert len(mutants) >= case.mutants, len(mutants)
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all(mutant.program != program for mutant in mutants)
    for kind in case.ops:
        assert any(check(mutant.program) for mutant in mutants if mutant.kind == kind), kind


def test_no_mutant_is_lost():
    """The floor: lower it for a kernel that is taken away, and for nothing else."""
    assert sum(case.mutants for case in CASES) >= 2586
    assert sum(sum(case.explored) for case in CASES) >= 1999


def test_every_reason_by_hand_is_of_a_mutant():
    known = {key for case in CORPUS for mutant in mutants_of(case) for key in keys(case, mutant)}
    assert expectations.BY_HAND.keys() <= known, expectations.BY_HAND.keys() - known
