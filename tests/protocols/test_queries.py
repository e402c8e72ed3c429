"""The contract detects a query other than the point at which gradients are computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ROUNDS, sparing
from jax.flatten_util import ravel_pytree
from restating import buggy

from fedprivjax import DPMu2, LocalSGD, NoisySGD, UserAGD
from fedprivjax.testing import PROPERTIES, Trial
from fedprivjax.testing.trial import Watched

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


@pytest.mark.parametrize("name", sparing(list(WRONG), ["sgd-server-clipped-last"]))
def test_a_wrong_query_fails(name):
    case = CASES[name]
    settings = {key: value for key, value in vars(case.protocol).items() if value is not None}
    trial = Trial(WRONG[name](**settings), case.problem, case.participation, ROUNDS)
    with pytest.raises(AssertionError, match=r"^query must be the point at which round \d takes gradients"):
        PROPERTIES[QUERY](trial)


@pytest.mark.parametrize(
    "points", [pytest.param(None, marks=pytest.mark.slow), 0], ids=["one point", "a point an example"]
)
def test_callbacks_are_not_unrolled_over_examples(points):
    """Unrolled callbacks of thousands of records compile for minutes."""
    problem = CASES["sgd-server-clipped-last"].problem
    watched, number = Watched(problem.model), problem.examples
    at = problem.start if points is None else jax.tree.map(lambda leaf: jnp.stack([leaf] * number), problem.start)
    losses = jax.vmap(watched.value, (points, 0))
    assert str(jax.make_jaxpr(losses)(at, problem.pool)).count("callback[") == 1
    jax.block_until_ready(losses(at, problem.pool))
    jax.effects_barrier()
    assert len(watched.evaluations) == number > 50


@pytest.mark.slow
def test_evaluations_are_recorded_where_a_loss_is_differentiated():
    problem = CASES["sgd-server-clipped-last"].problem
    watched, example = Watched(problem.model), jax.tree.map(lambda leaf: leaf[0], problem.pool)
    jax.block_until_ready(jax.grad(watched.value)(problem.start, example))
    jax.effects_barrier()
    ((point, number),) = watched.evaluations
    assert number == 0
    assert np.array_equal(point, ravel_pytree(problem.start)[0])


def test_a_method_that_asks_no_model_has_nothing_to_show():
    case = CASES["sgd-server-clipped-last"]
    deaf = buggy(
        NoisySGD,
        round=lambda self, problem, state, inputs, noise, key: (state, {}),
        query=lambda self, state: state.server.average,
    )
    PROPERTIES[QUERY](Trial(deaf(mu=1.0, clip=1.0, step_size=0.1), case.problem, case.participation, ROUNDS))
