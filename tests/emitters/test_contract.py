"""The contract in the GPU interpreter, with race detection; `contract` has the cases."""

import pytest

from tests.emitters import contract


@pytest.mark.parametrize(("case", "emitter"), contract.pairs(contract.PIPELIB))
def test_contract(case, emitter):
    with contract.interpreted():
        case.function(emitter)


# Without race detection, which calls upstream's releases after ordinary reads a race.
@pytest.mark.parametrize(("case", "emitter"), contract.pairs(contract.UPSTREAM, stores=False))
def test_upstream_satisfies_the_contract_too(case, emitter):
    with contract.interpreted(detect_races=False):
        case.function(emitter)


@pytest.mark.parametrize("emitter", contract.PIPELIB, ids=lambda emitter: emitter.name)
def test_a_race_is_seen(emitter):
    """What the contract rests on: without `commit_smem` after ordinary reads, the suite fails."""
    with pytest.raises(Exception, match="RACE DETECTED"), contract.interpreted():
        contract.total(emitter, ordinary_reads=False)
    with contract.interpreted():
        contract.total(emitter)
