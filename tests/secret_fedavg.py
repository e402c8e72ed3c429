"""Custom DP-FedAvg for secret participation, whose event claims no amplification: every machine in every round."""

from dataclasses import dataclass, replace

import numpy as np
from dp_fedavg import UNIT, Composed, DPFedAvg
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


@struct.dataclass
class SecretFedAvg(DPFedAvg):
    """DP-FedAvg whose event names the plan's secret scheme, or `claims` if it is given."""

    claims: Participation | None = struct.field(pytree_node=False, default=None)

    @property
    def minibatches(self):
        return Subset(self.batch)

    def round(self, problem, state, inputs, noise, key):
        state, info = super().round(problem, state, inputs, noise, key)
        return state, info | {"cohort": inputs.cohort * 1.0}

    def event(self, problem, plan):
        scheme = plan.schedule.secret if self.claims is None else self.claims
        moved = 2 * float(self.clip) / plan.schedule.divisor
        everyone = np.full(plan.size.machines, plan.size.rounds)
        return Claimed(float(self.noise_std), moved, everyone, Terms("server", "composition", unit=UNIT), scheme)


@struct.dataclass
class PublicFedAvg(SecretFedAvg):
    """DP-FedAvg whose event is for public schedules."""

    def event(self, problem, plan):
        return DPFedAvg.event(self, problem, plan)


@struct.dataclass
class StillPublic(SecretFedAvg):
    """Planted: an event for secret participation that states the assumptions of a public schedule."""

    def event(self, problem, plan):
        event = super().event(problem, plan)
        return replace(event, terms=replace(event.terms, assumptions=(Assumption("public participation"),)))


@struct.dataclass
class HandWrittenFedAvg(DPFedAvg):
    """DP-FedAvg with the planted event."""

    def event(self, problem, plan):
        event = super().event(problem, plan)
        return HandWritten(event.noise_std, event.sensitivity, event.rounds, replace(event.terms, assumptions=()))
