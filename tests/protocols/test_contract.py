"""Every protocol there is, in every configuration, crossed with every property of the contract."""

import pytest
from cases import CASES, ROUNDS

from fedprivjax.protocols import PROTOCOLS
from fedprivjax.testing import PROPERTIES, Trial


@pytest.fixture(scope="module", params=CASES, ids=str)
def trial(request):
    case = CASES[request.param]
    return Trial(case.protocol, case.problem, case.participation, ROUNDS)


@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name, trial):
    PROPERTIES[name](trial)


def test_every_registered_protocol_is_here():
    assert {method for method, _ in PROTOCOLS.values()} == {type(case.protocol) for case in CASES.values()}
