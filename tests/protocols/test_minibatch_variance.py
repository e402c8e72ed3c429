"""Exact mean squared error of a round's noisy mean: sampling of records and machines, and noise."""

import numpy as np
import pytest
from cases import sparing

from fedprivjax.plan.participation import Uniform, Varying
from fedprivjax.plan.plan import draw_minibatches
from fedprivjax.plan.samplers import as_sampler
from fedprivjax.theory.lowy_razaviyayn import aggregate_variance

MACHINES, DIMENSION, ROUNDS = 5, 3, 24_000
RECORDS = np.array([12, 12, 24, 24, 36])
BATCH = RECORDS // 3  # equal K_i/n_i, required by the identity
RNG = np.random.default_rng(5)
ROWS = np.full((MACHINES, RECORDS.max()), -1)
for machine, count in enumerate(RECORDS):
    ROWS[machine, :count] = RECORDS[:machine].sum() + np.arange(count)
GRADIENTS = RNG.normal(size=(RECORDS.sum(), DIMENSION)) + np.repeat(
    RNG.normal(size=(MACHINES, DIMENSION)), RECORDS, axis=0
)
OWN = np.array([GRADIENTS[rows[rows >= 0]].mean(axis=0) for rows in ROWS])
SPREAD = np.array(
    [np.mean(np.sum((GRADIENTS[rows[rows >= 0]] - own) ** 2, axis=1)) for rows, own in zip(ROWS, OWN, strict=True)]
)
STD = np.linspace(0.1, 0.4, MACHINES)  # of each machine's noise
COHORTS = {
    "fixed": Uniform(MACHINES, 3),
    "varying": Varying(MACHINES, (0.2, 0.3, 0.5)),
    "all": Uniform(MACHINES, MACHINES),
}
SAMPLERS = ["replacement", "subset", "poisson", "disjoint", "full"]


def draws(sampler, participation):
    """Plans enough for `ROUNDS` rounds; in one pass a plan has only three."""
    own = as_sampler(sampler, BATCH)
    rng = np.random.default_rng([1, SAMPLERS.index(sampler)])
    rounds = 3 if sampler == "disjoint" else ROUNDS // 3 if sampler == "full" else ROUNDS
    for _ in range(ROUNDS // 6 if sampler == "disjoint" else 1):
        schedule = participation.draw(rounds, rng)
        yield schedule, draw_minibatches(own, ROWS, schedule, rng), rng


def squared_errors(sampler, participation):
    found = []
    for schedule, batches, rng in draws(sampler, participation):
        noise = STD[schedule.participants][..., None] * rng.normal(size=(*schedule.participants.shape, DIMENSION))
        messages = np.einsum("rmk,rmkd->rmd", batches.weights, GRADIENTS[batches.samples]) + noise
        present = schedule.present[..., None]
        mean = np.sum(present * messages, axis=1) / present.sum(axis=1)
        found.append(np.sum((mean - OWN.mean(axis=0)) ** 2, axis=1))
    return np.concatenate(found)


def pmf_of(participation):
    if isinstance(participation, Varying):
        return [*participation.sizes, *[0.0] * (MACHINES - len(participation.sizes))]
    return np.eye(MACHINES)[participation.per_round - 1]


def expected(sampler, participation, **changes):
    batch = RECORDS if sampler == "full" else BATCH
    settings = {"sampler": sampler, "gradients": OWN, "spread": SPREAD, "records": RECORDS, "batch": batch}
    return aggregate_variance(**{**settings, "noise_std": STD, "pmf": pmf_of(participation), **changes})


@pytest.mark.parametrize("cohort", sparing(COHORTS, ["varying"]))
@pytest.mark.parametrize("sampler", sparing(SAMPLERS, ["poisson", "full"]))
def test_the_identity(sampler, cohort):
    errors, total = squared_errors(sampler, COHORTS[cohort]), expected(sampler, COHORTS[cohort]).total
    standard_error = errors.std() / np.sqrt(errors.size) / total
    assert standard_error < 0.015
    assert abs(errors.mean() / total - 1) < 4 * standard_error


def test_the_identity_tells_samplers_cohorts_and_noise_apart():
    """Every wrong variant of the formula differs by more than the Monte Carlo error."""
    right = expected("subset", COHORTS["fixed"])
    others = [expected(sampler, COHORTS["fixed"]).total for sampler in ("replacement", "poisson")]
    others += [expected("subset", COHORTS["all"]).total, right.total - right.clients]
    others += [expected("subset", COHORTS["fixed"], noise_std=STD * scale).total for scale in (2 / 3, 3 / 2)]
    for wrong in others:
        assert abs(wrong / right.total - 1) > 6 * 0.008


def test_full_batches_leave_the_machines_drawn_and_the_noise():
    found = expected("full", COHORTS["fixed"])
    assert found.sampling == 0
    assert found.clients > 0
    assert expected("full", COHORTS["all"]).clients == 0
