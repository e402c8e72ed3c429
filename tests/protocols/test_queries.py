"""The contract detects a query other than the point at which gradients are computed."""

import pytest
from cases import CASES, ROUNDS, sparing
from restating import buggy

from fedprivjax import DPMu2, LocalSGD, NoisySGD, UserAGD
from fedprivjax.testing import PROPERTIES, Trial

QUERY = "the query is where gradients are taken"


WRONG = {
    # the previous round's point, at which gradients are computed too
    "mu2-none-clipped-uniform": buggy(DPMu2, query=lambda self, state: state.server.x_previous),
    "sgd-server-clipped-last": buggy(NoisySGD, query=lambda self, state: state.server.average),
    # not the middle point
    "user-agd": buggy(UserAGD, query=lambda self, state: self.output(state)),
    # no machine starts its local steps there
    "local-disjoint": buggy(LocalSGD, query=lambda self, state: state.server.server.average),
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
    deaf = buggy(
        NoisySGD,
        round=lambda self, problem, state, inputs, noise, key: (state, {}),
        query=lambda self, state: state.server.average,
    )
    PROPERTIES[QUERY](Trial(deaf(mu=1.0, clip=1.0, step_size=0.1), case.problem, case.participation, ROUNDS))
