"""Every protocol there is, in every configuration, crossed with every property of the contract."""

from itertools import product

import pytest
from cases import CASES, PROGRAMS, ROUNDS

from fedprivjax.protocols import PROTOCOLS
from fedprivjax.testing import PROPERTIES, Trial

SWEEPS = ("a sweep equals a loop", "every leaf can be swept")  # the longest to compile: of one case of each program


def pairs():
    for case, name in product(CASES, PROPERTIES):
        marks = [pytest.mark.slow] if name in SWEEPS and case not in PROGRAMS else []
        yield pytest.param(case, name, marks=marks, id=f"{case}-{name}")


@pytest.fixture(scope="module")
def trial(request):
    case = CASES[request.param]
    return Trial(case.protocol, case.problem, case.participation, ROUNDS)


@pytest.mark.parametrize(("trial", "name"), list(pairs()), indirect=["trial"])
def test_property(name, trial):
    PROPERTIES[name](trial)


def test_every_registered_protocol_is_here():
    assert {method for method, _ in PROTOCOLS.values()} == {type(case.protocol) for case in CASES.values()}
