"""The contract detects a query other than the point at which gradients are computed."""

import pytest
from cases import CASES, ROUNDS, sparing
from flax import struct
from restating import states

from fedprivjax import DPMu2, LocalSGD, NoisySGD, UserAGD
from fedprivjax.testing import PROPERTIES, Trial

QUERY = "the query is where gradients are taken"


@states("event")
@struct.dataclass
class OldPoint(DPMu2):
    """Queries the previous round's point, at which gradients are computed too."""

    def query(self, state):
        return state.server.x_previous


@states("event")
@struct.dataclass
class Average(NoisySGD):
    """Queried at the average."""

    def query(self, state):
        return state.server.average


@states("event")
@struct.dataclass
class Output(UserAGD):
    """Queried at the output, not at the middle point."""

    def query(self, state):
        return self.output(state)


@states("event")
@struct.dataclass
class WalkedAverage(LocalSGD):
    """Queries a point at which no machine starts its local steps."""

    def query(self, state):
        return state.server.server.average


WRONG = {
    "mu2-none-clipped-uniform": OldPoint,
    "sgd-server-clipped-last": Average,
    "user-agd": Output,
    "local-disjoint": WalkedAverage,
}


@pytest.mark.parametrize("name", sparing(list(WRONG), ["sgd-server-clipped-last", "mu2-none-clipped-uniform"]))
def test_a_wrong_query_fails(name):
    case = CASES[name]
    settings = {key: value for key, value in vars(case.protocol).items() if value is not None}
    trial = Trial(WRONG[name](**settings), case.problem, case.participation, ROUNDS)
    with pytest.raises(AssertionError, match=r"^query must be the point at which round \d takes gradients"):
        PROPERTIES[QUERY](trial)


def test_a_method_that_asks_no_model_has_nothing_to_show():
    case = CASES["sgd-server-clipped-last"]

    @states("event")
    @struct.dataclass
    class Deaf(NoisySGD):
        def round(self, problem, state, inputs, noise, key):
            return state, {}

        def query(self, state):
            return state.server.average

    PROPERTIES[QUERY](Trial(Deaf(mu=1.0, clip=1.0, step_size=0.1), case.problem, case.participation, ROUNDS))
