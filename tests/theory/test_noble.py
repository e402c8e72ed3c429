"""The published ε of DP-SCAFFOLD: the authors' number, and a pair of datasets for which it is too small."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

import fedprivjax as fpj
from fedprivjax.theory.noble import published_epsilon

PUBLISHED = {"machines": 100, "rounds": 100, "steps": 50, "machine_rate": 0.2, "record_rate": 0.2, "delta": 2.5e-6}


def test_it_is_the_authors_number():
    """Printed by their get_epsilon_bound.py: 8.1937."""
    assert published_epsilon(60.0, **PUBLISHED) == pytest.approx(8.1937, abs=1e-4)


@pytest.mark.parametrize(("rate", "mu"), [(0.05, 0.5), (0.1, 1.0), (0.2, 1.0)])
def test_machines_in_turn_do_not_hide_that_one_took_part(rate, mu):
    """One round, one step on all records. A machine whose data are far from the others' is seen to take part.

    The density of the server's view is that of `rate` · N(0 or μ, 1), beside the part without the machine, which is
    far away and equal for both datasets.
    """
    delta = 1e-5
    one_round = {"machines": 100, "rounds": 1, "steps": 1, "machine_rate": rate, "record_rate": 1.0, "delta": delta}
    claimed = published_epsilon(1 / (mu * np.sqrt(100 * rate)), **one_round)

    def exceeded(epsilon):
        def gap(x):
            return rate * max(norm.pdf(x, mu) - np.exp(epsilon) * norm.pdf(x), 0.0)

        begin = epsilon / mu + mu / 2  # where the ratio of the densities is e^ε
        return quad(gap, begin, begin + 12, epsabs=1e-14)[0] - delta

    attained = brentq(exceeded, 0, 20)
    assert attained > 1.05 * claimed
    if (rate, mu) == (0.1, 1.0):
        assert (claimed, attained) == pytest.approx((2.967, 3.804), abs=1e-3)


def test_scaffold_states_a_valid_epsilon_for_the_same_run():
    table = np.arange(400_000).reshape(100, 4000)
    problem = fpj.linear_problem(
        np.zeros((400_000, 1), np.float32),
        np.zeros(400_000),
        fpj.Squared(),
        partition_table=table,
        constraint=fpj.Ball(1.0),
        feature_bound=1.0,
    )
    work = {"local_steps": 50, "batch": 800, "sampler": "subset", "step_size": 0.1}
    method = fpj.Scaffold(unit="record", clip=1.0, noise_std=60.0 * 2 / 800, **work)
    run = fpj.ready(method, problem, fpj.Balanced(machines=100, per_round=20), rounds=100, delta=2.5e-6)
    assert run.guarantee.epsilon == pytest.approx(0.3995, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"machine_rate": 0.0}, "machine_rate must be"), ({"steps": 0}, "steps must be"), ({"delta": 1.0}, "delta must")],
)
def test_numbers_out_of_range_are_refused(change, said):
    with pytest.raises(fpj.Refusal, match=rf"^{said}"):
        published_epsilon(60.0, **{**PUBLISHED, **change})
