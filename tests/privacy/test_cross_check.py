"""Cross-check of every guarantee: the theorem's ε and an accountant's, for every protocol of the library."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from cases import CASES, POOL, POOL_CASES, SHARES, USER_CASES, sparing

from fedprivjax import (
    DPMu2,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    OnePass,
    ReducedTreeMomentum,
    StaleMomentum,
    TreeMomentum,
    Uniform,
    UserSGD,
    linear_problem,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.plan.samplers import Occurrences, Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.dp_accounting_backend import LOWER
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.cross_check import AGREES, BELOW, NONE, OPEN, REFUTED, STATED, entry
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms
from fedprivjax.protocols import PROTOCOLS, ReleasedMinibatchSGD

DELTA = 1e-5
TERMS = Terms("none", "a theorem")
EXACT = ("mu2", "sgd", "stale", "tree", "reduced", "user-none", "user-server", "user-pan", "user-agd-none")
QUICK = [
    "mu2-none-clipped-gap",
    "mu2-none-clipped-proportional",
    "mu2-fresh-clipped",
    "sgd-server-clipped-last",
    "stale-clipped-sequence",
    "minibatch-disjoint",
    "accelerated-one-pass",
    "local-disjoint",
    "dsgd-pairwise",
    "released-message",
    "released-local",
    "user-shuffler",
    "user-pan-private",
    "user-agd",
    "tree-server",
    "tree-none",
    "tree-by-sensitivity",
    "tree-independent",
    "reduced-server",
    "fedavg-server",
    "scaffold-record",
]


def event_of(protocol, problem, participation, **options):
    return ready(protocol, problem, participation, metrics=(), **options).event


def event(name, **changes) -> Event:
    case = CASES[name]
    options = {} if name in POOL_CASES or name in USER_CASES else {"rounds": 12}
    return event_of(case.protocol.replace(**changes), case.problem, case.participation, **options)


@pytest.mark.parametrize("name", sparing(list(CASES), QUICK))
def test_every_protocol_agrees_with_an_accountant_or_is_above_it(name):
    line = entry(event(name), DELTA)
    assert line.verdict in (AGREES, BELOW)
    assert 0 < line.epsilon < inf
    assert line.accountant_epsilon <= line.epsilon * 1.001
    if name.startswith(EXACT):
        assert line.verdict == AGREES
        assert line.accountant == "dp-accounting PLD"
        assert line.accountant_epsilon == pytest.approx(line.epsilon, rel=1e-3)


def test_the_cases_are_of_every_protocol_in_the_list():
    names = {type(CASES[name].protocol) for name in CASES}
    assert {protocol for protocol, _ in PROTOCOLS.values()} <= names
    quick = {type(CASES[name].protocol) for name in QUICK}
    assert quick == names


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.25, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("per_round", [1, 2, 4])
@pytest.mark.parametrize(
    "protocol",
    [
        *(
            DPMu2(trust=trust, clip=0.5, noise_schedule=schedule, step_size=0.1)
            for trust in ("none", "server")
            for schedule in ("uniform", "proportional", "gap")
        ),
        NoisySGD(clip=0.5, step_size=0.1),
        StaleMomentum(clip=0.5, step_size=0.1),
    ],
    ids=str,
)
def test_pool_methods_over_privacy_levels_participation_and_schedules(protocol, per_round, level):
    line = entry(event_of(replace(protocol, mu=level), POOL, Uniform(4, per_round), seed=3), DELTA)
    assert (line.verdict, line.accountant) == (AGREES, "dp-accounting PLD")
    assert line.accountant_epsilon == pytest.approx(line.epsilon, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("trust", ["none", "server"])
@pytest.mark.parametrize("factor", ["tree", "sensitivity tree", "independent"])
@pytest.mark.parametrize("sampler", ["cyclic", "reshuffled"])
def test_trees_over_privacy_levels_factors_and_orders(factor, trust, epsilon, sampler):
    protocol = TreeMomentum(epsilon=epsilon, clip=0.5, batch=4, factor=factor, trust=trust, sampler=sampler)
    line = entry(event_of(protocol, SHARES, Full(4), rounds=40), DELTA)
    assert (line.verdict, line.epsilon) == (AGREES, pytest.approx(epsilon, rel=1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("sampler", ["replacement", "subset", "poisson", "disjoint", "full"])
@pytest.mark.parametrize("per_round", [1, 3])
def test_record_methods_over_privacy_levels_samplers_and_participation(sampler, epsilon, per_round):
    protocol = NoisyMinibatchSGD(
        epsilon=epsilon, batch=None if sampler == "full" else 6, sampler=sampler, step_size=0.1
    )
    line = entry(event_of(protocol, SHARES, Uniform(4, per_round), rounds=6), DELTA)
    assert line.verdict == (BELOW if sampler in ("replacement", "subset") else AGREES)
    assert line.lower <= line.epsilon * 1.001
    assert line.valid <= line.epsilon


# ---- published rules


def of_rule(rule, epsilon, records=1238, rounds=35, delta=DELTA):
    """Lowy & Razaviyayn's experiments: one machine's noise by a rule, for 1238 records in 35 rounds."""
    features = np.zeros((1, records, 1), np.float32)
    problem = linear_problem(features, np.zeros((1, records), int), Logistic(), feature_bound=1.0)
    settings = {"batch": 443, "sampler": "replacement", "acknowledged": rule == "paper_moments", "step_size": 0.1}
    return event_of(
        ReleasedMinibatchSGD(noise_rule=rule, epsilon=epsilon, **settings), problem, Full(1), rounds=rounds, delta=delta
    )


@pytest.mark.parametrize(
    ("epsilon", "verdict"),
    sparing([(0.75, BELOW), (1.5, OPEN), (3.0, OPEN), (6.0, REFUTED), (18.0, REFUTED)], [(6.0, REFUTED)]),
)
def test_the_experiments_moments_accountant_is_refuted(epsilon, verdict):
    """At δ = 1/n², with the README's true ε."""
    line = entry(of_rule("paper_moments", epsilon, delta=1238**-2.0), 1238**-2.0)
    assert line.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert "moments accountant" in line.theorem
    assert line.verdict == verdict
    true = {0.75: 0.714, 1.5: 1.69, 3.0: 4.71, 6.0: 14.2, 18.0: 101.0}
    assert line.valid == pytest.approx(true[epsilon], rel=0.01)
    if verdict == REFUTED:
        assert (line.accountant, line.accountant_epsilon) == (STATED, line.valid)
        assert line.valid >= line.lower > 1.2 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_advanced_composition_holds_with_room(epsilon):
    line = entry(of_rule("advanced", epsilon), DELTA)
    assert (line.epsilon, line.verdict) == (pytest.approx(epsilon, rel=1e-6), BELOW)
    assert line.valid < 0.2 * epsilon


@pytest.mark.parametrize("method", [TreeMomentum, ReducedTreeMomentum])
def test_the_trees_own_counts_hold_with_room(method):
    own = {"allocation": "paper"} if method is ReducedTreeMomentum else {}
    protocol = method(epsilon=1.0, clip=0.5, batch=4, noise_rule="paper", **own)
    line = entry(event_of(protocol, SHARES, Full(4), rounds=20), DELTA)
    assert (line.epsilon, line.verdict) == (pytest.approx(1.0, rel=1e-6), BELOW)
    assert line.accountant == "dp-accounting PLD"
    assert line.valid <= line.accountant_epsilon * (1 + 1e-6) < 0.9


USERS = linear_problem(np.zeros((2000, 1, 4), np.float32), np.zeros((2000, 1), int), Logistic(), feature_bound=1.0)


@pytest.mark.parametrize(
    ("accounting", "verdicts"), [("exact", (BELOW,)), ("paper", (BELOW,)), ("gaussian-limit", (OPEN, BELOW, REFUTED))]
)
def test_claims_of_shuffled_bits(accounting, verdicts):
    protocol = UserSGD(epsilon=1.0, accounting=accounting, step_size=0.1)
    line = entry(event_of(protocol, USERS, OnePass(2000, 500)), 1e-6)
    assert line.verdict in verdicts
    if accounting == "paper":
        assert line.valid < 0.01
    elif accounting == "gaussian-limit":  # an approximation below the proved ε
        assert line.epsilon < line.valid < 1.1 * line.epsilon


# ---- faults that the cross-check detects


def gaussian(releases, exposure):
    return GaussianEvent(2.0, 2.0, Grouped.of([exposure, exposure / 2]), TERMS, lambda machine: releases)


@pytest.mark.parametrize("factor", [0.5, 0.99, 1.0, 1.01, 2.0])
def test_an_exposure_that_is_off_by_one_per_cent_is_seen(factor):
    """A theorem that counts too few releases is refuted. One that counts too many gives a larger ε."""
    line = entry(gaussian([2.0] * 4, factor), DELTA)
    assert line.verdict == (REFUTED if factor < 1 else AGREES if factor == 1 else BELOW)
    assert line.valid == pytest.approx(gdp.epsilon(min(factor, 1.0), DELTA), rel=1e-3)


def test_the_worst_machine_is_the_one_that_is_asked_about():
    asked = []

    def releases(machine):
        asked.append(machine)
        return [1.0]

    entry(GaussianEvent(2.0, 2.0, Grouped.of([0.5, 0.2, 1.0, 0.5]), TERMS, releases), DELTA)
    assert asked == [2]


def test_nothing_is_claimed_without_noise_and_nothing_is_lost_where_nothing_is_sent():
    silent = entry(GaussianEvent(0.0, 2.0, Grouped.of([1.0]), TERMS), DELTA)
    assert (silent.verdict, silent.valid, silent.results) == (NONE, inf, ())
    absent = entry(GaussianEvent(1.0, 2.0, Grouped.of([0.0]), TERMS), DELTA)
    assert (absent.epsilon, absent.valid) == (0.0, 0.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_a_delta_outside_is_refused(delta):
    with pytest.raises(ValueError, match=f"^delta must be between 0 and 1, got {delta}$"):
        entry(gaussian([1.0], 1.0), delta)


@dataclass(frozen=True)
class Often(Subset):
    """A custom sampler, under an existing name, that takes a record nine times in ten."""

    secret = coupled = True

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([0.9]))


def test_a_sampler_with_a_law_of_its_own_is_not_taken_for_the_one_that_it_inherits_from():
    found = Sampled(Often(1)).accountant_results(1.0, 100, 1, 5, delta=DELTA)
    assert [one.kind for one in found] == [LOWER]
