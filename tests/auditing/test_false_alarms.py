"""Hundred thousands of runs of correct protocols, split into 200 audits: bounds fail at most at their level."""

from math import ceil

import numpy as np
import pytest
from faults.federations import SMALL, TARGET

from fedprivjax import DPMu2, NoisySGD
from fedprivjax.auditing.audit import LEVEL, OTHER, VERDICT
from fedprivjax.auditing.bounds import lower_bounds
from fedprivjax.auditing.canary_search import prepared
from fedprivjax.auditing.scores import Counting, fixed_scores
from fedprivjax.auditing.views import chunk_of, observed

AUDITS, RUNS, DELTA = 200, 3_000, 1e-5
PROTOCOLS = {
    "noisy SGD": NoisySGD(**TARGET),
    "cancelled noise": DPMu2(**TARGET),
    "trusted server": DPMu2(trust="server", **TARGET),
}


def drawn_scores(start, seed, options, scores):
    """Return scores of one dataset, [scores, audits, runs]."""
    size = chunk_of(start)
    begins = range(0, ceil(AUDITS * RUNS / size) * size, size)
    parts = [observed(start, seed, begin, options)[0].values for begin in begins]
    numbers = [np.concatenate([score.function(part) for part in parts]) for score in scores]
    return np.array([one[: AUDITS * RUNS].reshape(AUDITS, RUNS) for one in numbers])


def bounds(score, both, level):
    """Return the bounds of every audit."""
    return [lower_bounds(*pair, score.threshold, score.middle, DELTA, level) for pair in zip(*both, strict=True)]


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_more_false_alarms_than_the_level_allows(name):
    pair, law, options = prepared(PROTOCOLS[name], SMALL, DELTA, seed=5, public=())
    claim = pair.start.guarantee
    scores = fixed_scores(law, Counting(DELTA, RUNS, LEVEL), claim.mu)
    worlds = [drawn_scores(start, 5 + world * OTHER, options, scores) for world, start in enumerate(pair.starts)]
    found = {
        score.name: bounds(score, both, LEVEL) for score, both in zip(scores, zip(*worlds, strict=True), strict=True)
    }
    for each in found.values():
        assert sum(one.epsilon_lower > claim.epsilon for one in each) <= 18
        assert sum(one.mu_lower > claim.mu for one in each) <= 4
    for score, both in zip(scores, zip(*worlds, strict=True), strict=True):
        verdicts = bounds(score, both, VERDICT / len(scores))
        assert not any(one.epsilon_lower > claim.epsilon or one.mu_lower > claim.mu for one in verdicts)
    assert np.median([one.mu_lower for one in found["likelihood ratio"]]) > 0.9 * claim.mu  # no trivial bound
