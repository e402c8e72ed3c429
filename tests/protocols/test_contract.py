"""All protocols, in all configurations, against every property of the contract."""

from itertools import product

import jax
import pytest
from cases import CASES, EAGER, REPRESENTATIVES, ROUNDS

from fedprivjax.protocols import PROTOCOLS, ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.testing import PROPERTIES, Trial
from fedprivjax.testing.contract import OF_RELEASES

QUICK = ("stable structure and dtypes", "the guarantee can be saved and printed")  # no compiling
ABSENT = ("absent machines leave no trace", "dropouts count as planned")  # for one of each method
DEAR = (EAGER, "every leaf can be swept")  # a program an operation; every value on an axis accounted for
NOISE = ("the noise has the stated distribution", "the target is met")
WHOLE = ("mu2-none-clipped-uniform", "fedavg-server")  # gradients, local work
COUNTED = "the number of gradients is as stated"
SHORT = {  # of the other methods: most have the privacy objects of these; test_user_sensitivity.py bounds the bits of
    # user-shuffler
    **dict.fromkeys(set(REPRESENTATIVES) - set(WHOLE), NOISE),
    "reduced-server": ("the target is met",),
    "user-shuffler": (*NOISE, "the view fits the trust model", COUNTED),
}
QUERY = "the query is where gradients are taken"
ASKING = ("user-agd",)
BOUND, ISOLATED, REPLAYED = OF_RELEASES
LOOP = "a sweep equals a loop"  # others are held by default among the tests of sweeps
SERVED = ("sgd-server-clipped-adam", "minibatch-momentum", "local-adam")  # with an optimiser at the server
SWEPT = (
    *REPRESENTATIVES,
    SERVED[0],
    "released-message",
    "released-local",
    "minibatch-replacement",
)  # tested for expensive properties
OF_PROGRAMS = (  # what follows from a case's program: another schedule of the noise's scales is none
    *(*DEAR, LOOP, QUERY, "new numbers do not recompile", "a prefix of a longer run", "seeds determine the run"),
    *("order within a round", "a noise sample is shared by all configurations", COUNTED),
    *(ISOLATED, REPLAYED),
)


def quick(case, name):
    """True if a pair is tested by default: most properties for two methods, and for all the quick ones and noise."""
    if name in (ABSENT[0], *DEAR, LOOP):
        return False
    if name == QUERY:
        return case in ASKING
    if name in OF_RELEASES:
        return case in (REPRESENTATIVES if name == REPLAYED else (*WHOLE, "scaffold-record"))
    return case in REPRESENTATIVES and (name in QUICK or name in SHORT.get(case, PROPERTIES))


def own_program():
    """The first case of every program, by the protocol as it is traced."""
    first = {}
    for name, case in CASES.items():
        first.setdefault((jax.tree.structure(case.protocol.traced), id(case.problem), str(case.participation)), name)
    return {*first.values(), *REPRESENTATIVES}


def left_out():
    """Pairs that another case represents: of the same program, or of the same method if it is expensive."""
    of_programs = product(set(CASES) - own_program(), OF_PROGRAMS)
    dear = product(set(CASES) - set(SWEPT), (*DEAR, LOOP))
    return {*of_programs, *dear, *product(set(CASES) - set(REPRESENTATIVES), ABSENT)}


def pairs():
    """Every pair, slow where it is not quick; what follows from a program once for each program."""
    others = left_out()
    for case, name in product(CASES, PROPERTIES):
        if (case, name) in others:
            continue
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
    """Methods of released code are exempt."""
    methods = {method for method, _ in PROTOCOLS.values()} - {ReleasedMinibatchSGD, ReleasedLocalSGD}
    assert {type(CASES[name].protocol) for name in REPRESENTATIVES} == methods


def test_every_property_is_held_against_all():
    """No pair is omitted, quick or slow, unless another case has the same program or method."""
    others = {f"{case}-{name}" for case, name in left_out()}
    assert {param.id for param in pairs()} == {f"{case}-{name}" for case in CASES for name in PROPERTIES} - others
    assert {type(CASES[name].protocol) for name in own_program()} == {type(case.protocol) for case in CASES.values()}
    assert set(QUICK) < set(PROPERTIES)
