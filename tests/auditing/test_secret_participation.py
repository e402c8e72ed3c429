"""Audits under secret participation: every run has a schedule of its own, which the adversary does not see."""

from dataclasses import dataclass

import numpy as np
import pytest
from dp_fedavg import dp_fedavg
from flax import struct
from frequencies import within
from secret_fedavg import UNIT, SecretUpdates

from fedprivjax import Event, FedAvg, Federation, Grouped, Participation, PoissonCohorts, Terms, audit
from fedprivjax.auditing import canary_search, views
from fedprivjax.auditing.neighbouring import NotAllowed, small_federation, worlds

ROUNDS = 2
HALF = PoissonCohorts(4, 0.5)


@dataclass(frozen=True)
class Sampled(Event):
    """ε of Poisson-subsampled Gaussian releases for a replaced machine, by dp-accounting."""

    multiplier: float
    rate: float
    sensitivity: float
    terms: Terms
    participation: Participation | None

    def epsilons(self, delta):
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.privacy_accountant import NeighboringRelation

        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE, 1e-3)
        once = PoissonSampledDpEvent(self.rate, GaussianDpEvent(self.multiplier))
        return Grouped.of([accountant.compose(SelfComposedDpEvent(once, ROUNDS)).get_epsilon(delta)] * 4)


@struct.dataclass(kw_only=True)
class Amplified(SecretUpdates):
    """Clipped updates whose event claims amplification by `rate`, which is not the plan's if it is planted."""

    rate: float = struct.field(pytree_node=False, default=0.5)

    def event(self, facts, noise_std):
        schedule = facts.plan.schedule
        multiplier, terms = (
            noise_std * schedule.divisor / float(self.update_clip),
            Terms("server", "dp-accounting", unit=UNIT),
        )
        return Sampled(multiplier, self.rate, self.moved(facts.plan), terms, schedule.secret)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(canary_search, "PREPARING", 1000)
    monkeypatch.setattr(views, "MOST", 1000)


def audited(protocol, scheme=HALF):
    return audit(protocol, Federation(scheme, ROUNDS, 3, dimension=4), runs=2000, delta=1e-3)


@pytest.mark.slow
def test_an_amplified_guarantee_is_not_refuted_and_nearly_reached(quick):
    """Noise of half the clip: an update is plainly seen if its machine takes part."""
    holds = audited(dp_fedavg(Amplified, noise_std=0.125))
    assert holds.refuted == ()
    assert max(one.bounds.epsilon_lower for one in holds.found) > 0.25 * holds.guarantee.epsilon


@pytest.mark.slow
def test_a_guarantee_amplified_by_a_smaller_rate_than_the_schemes_is_refuted(quick):
    """Planted: q = 0.01 claimed, and machines take part with q = 0.5."""
    assert audited(dp_fedavg(Amplified, noise_std=0.125, rate=0.01)).refuted


def test_every_run_has_a_schedule_of_its_own():
    pair = worlds(dp_fedavg(Amplified, noise_std=0.125), Federation(HALF, ROUNDS, 3, dimension=4), None, delta=1e-3)
    drawn = views._secrets(pair.start, np.random.default_rng(1), 2000)
    present, machine = drawn["present"] > 0, drawn["machine"]
    for one in range(4):
        takes_part = (present & (machine == one)).any(axis=2).astype(float)
        assert within(takes_part, 0.5)
        assert within(takes_part[:, 0] * takes_part[:, 1], 0.25)
    rows = pair.start.problem.partition_table.rows
    used = drawn["weights"] > 0
    owners = np.where(used, drawn["samples"] // rows.shape[1], -1)
    assert (owners[present] == machine[present][:, None])[used[present]].all()
    assert not used[~present].any()
    second = present[:, 1] & (drawn["participation"][:, 1] == 2)
    both = [(present[:, 0] & (machine[:, 0] == machine[:, 1, [slot]])).any(axis=1) for slot in range(4)]
    np.testing.assert_array_equal(second, present[:, 1] & np.stack(both, axis=1))


def test_a_small_federation_with_secret_participation():
    assert small_federation(dp_fedavg(SecretUpdates, noise_std=1.0), participation="secret").participation == HALF
    with pytest.raises(NotAllowed, match="must be 'server' under secret participation"):
        small_federation(FedAvg(local_epochs=1, step_size=0.1, clip=1.0, noise_std=1.0), participation="secret")
