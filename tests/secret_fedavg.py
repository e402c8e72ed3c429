"""Custom DP-FedAvg for secret participation, whose event claims no amplification: every machine in every round."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_fedavg import UNIT, ClippedUpdates, Composed
from flax import struct

from fedprivjax import Assumption, Grouped, Participation, Terms
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy import gdp


@dataclass(frozen=True)
class Claimed(Composed):
    """Gaussian sums of clipped updates, with an ε that includes the amplification by `participation`, or none."""

    participation: Participation | None = None


@dataclass(frozen=True)
class HandWritten(Composed):
    """The planted fault: an event of R rounds amplified by q = 0.1, whatever the schedule; `participation` is unset."""

    def epsilons(self, delta):
        mu = 0.1 * np.sqrt(self.rounds.max()) * self.sensitivity / self.noise_std  # roughly
        return Grouped.of(np.full(self.rounds.size, gdp.epsilon(mu, delta)))

    def dp_event(self):
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

        once = PoissonSampledDpEvent(0.1, GaussianDpEvent(self.noise_std / self.sensitivity))
        return SelfComposedDpEvent(once, int(self.rounds.max()))


@struct.dataclass(kw_only=True)
class SecretUpdates(ClippedUpdates):
    """Clipped updates, whose event names the plan's secret scheme, or `claims` if it is given."""

    claims: Participation | None = struct.field(pytree_node=False, default=None)
    work: Any = struct.field(pytree_node=False, default=Subset(3))

    def event(self, facts, noise_std):
        plan = facts.plan
        scheme = plan.schedule.secret if self.claims is None else self.claims
        everyone = np.full(plan.size.machines, plan.size.rounds)
        return Claimed(noise_std, self.moved(plan), everyone, Terms("server", "composition", unit=UNIT), scheme)


@struct.dataclass(kw_only=True)
class PublicUpdates(SecretUpdates):
    """Clipped updates whose event is for public schedules."""

    def event(self, facts, noise_std):
        return ClippedUpdates.event(self, facts, noise_std)


@struct.dataclass(kw_only=True)
class StillPublic(SecretUpdates):
    """Planted: an event for secret participation that states the assumptions of a public schedule."""

    def event(self, facts, noise_std):
        event = super().event(facts, noise_std)
        return replace(event, terms=replace(event.terms, assumptions=(Assumption("public participation"),)))


@struct.dataclass(kw_only=True)
class HandWrittenUpdates(ClippedUpdates):
    """Clipped updates with the planted event."""

    def event(self, facts, noise_std):
        event = super().event(facts, noise_std)
        return HandWritten(event.noise_std, event.sensitivity, event.rounds, replace(event.terms, assumptions=()))
