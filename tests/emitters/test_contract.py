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
