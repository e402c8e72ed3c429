"""Every protocol there is, in every configuration, crossed with every property of the contract."""

from itertools import product

import pytest
from cases import CASES, REPRESENTATIVES, ROUNDS

from fedprivjax.protocols import PROTOCOLS, ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.testing import PROPERTIES, Trial

QUICK = ("stable structure and dtypes", "the guarantee can be saved and printed")  # no compiling: held for all
DEAR = ("jit equals eager", "every leaf can be swept")  # a program an operation; every value on an axis accounted for
SHORT = {  # of methods that others of the same family stand for
    "reduced-server": ("a draw is shared by all members", "the target is met", "the transcript is the run")
}
SWEPT = ("mu2-none-clipped-uniform", "minibatch-full", "accelerated-plain", "user-shuffler")  # and swept by default


def quick(case, name):
    """Whether a pair is held by default: the quick properties for all, most others for the representatives."""
    if name in DEAR or (name == "a sweep equals a loop" and case not in SWEPT):
        return False
    return name in QUICK or (case in REPRESENTATIVES and name in SHORT.get(case, PROPERTIES))


def pairs():
    """Every pair, slow where it is not quick."""
    for case, name in product(CASES, PROPERTIES):
        marks = [] if quick(case, name) else [pytest.mark.slow]
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


def test_every_protocol_has_a_representative():
    """But for what only runs released code."""
    methods = {method for method, _ in PROTOCOLS.values()} - {ReleasedMinibatchSGD, ReleasedLocalSGD}
    assert {type(CASES[name].protocol) for name in REPRESENTATIVES} == methods


def test_every_property_is_held_against_all():
    """Quick or slow, no pair is left out."""
    assert {param.id for param in pairs()} == {f"{case}-{name}" for case in CASES for name in PROPERTIES}
    assert set(QUICK) < set(PROPERTIES)
