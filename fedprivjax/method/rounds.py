"""Rounds of a protocol: computation of machines and server, composed of its algorithm and its privacy object."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Calls
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.calibration import solved_noise
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.views import SentNoise
from fedprivjax.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Rounds:
    """Base class of the rounds of protocols, one class for what the server reads: means, growing sums, or local work.

    They compute all members of a protocol that do not follow from its settings. Optional members are those of
    `fedprivjax.method.seen`.

    Attributes:
        protocol: the settings, with `algorithm` and `privacy`.
    """

    protocol: Any

    @cached_property
    def algorithm(self) -> Any:
        return self.protocol.algorithm

    @cached_property
    def privacy(self) -> Any:
        return self.protocol.privacy

    @property
    def planned(self) -> Any:
        """The planned algorithm, if it plans anything."""
        known = self.protocol.known
        return self.algorithm if known is None or known.algorithm is None else known.algorithm

    @property
    def step(self) -> Any:
        return self.protocol.step_scale * self.protocol.step_size

    @property
    def machine_epsilon(self) -> tuple[float, ...] | None:
        """Target of each machine if they differ, else None."""
        epsilon = self.protocol.epsilon
        return tuple(np.ravel(epsilon).tolist()) if np.ndim(epsilon) else None

    @property
    def call(self) -> Calls:
        """Calls of the planned algorithm's functions, isolated if they are part of a guarantee."""
        return Calls(self.planned, isolated=True)

    # ---- traced

    def output(self, state: Any) -> Any:
        return self.call("point", self.server_of(state))

    def iterates(self, state: Any) -> dict[str, Any]:
        return self.call("iterates", self.server_of(state))

    def personal(self, state: Any, machine: Any) -> Any:
        """Return the parameters of a machine's model. Default: the reported ones."""
        return self.output(state)

    def server_of(self, state: Any) -> Any:
        """Return the state of the algorithm's server."""
        return state.server

    # ---- on the host

    def facts(self, problem: Problem, plan: Plan) -> Any:
        """Return the facts of a run that the privacy object reads."""
        raise NotImplementedError

    def prepared(self, problem: Problem, plan: Plan, target: Target) -> Any:
        """Return the protocol with what is known of its algorithm and plan before its noise."""
        settings = self.privacy.targeted(target, self.protocol.epsilon, plan.size.machines)
        ready = self.protocol.with_settings(settings).rounds.read_once(problem, plan)
        return ready.rounds.fitted(problem, plan)

    def read_once(self, problem: Problem, plan: Plan) -> Any:
        """Return the protocol with what is read once of its algorithm, as `known`."""
        raise NotImplementedError

    def fitted(self, problem: Problem, plan: Plan) -> Any:
        """Return the protocol, whose algorithm is read, with what follows from the plan."""
        raise NotImplementedError

    def check_late(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal unless answers may start from earlier versions of the server's state. Default: always."""
        raise Refusal(
            f"participation must be synchronous for {self.protocol.name}, got late answers. Use FedAvg, or another "
            f"scheme than Buffered"
        )

    def of_noise(self, problem: Problem, plan: Plan, noise_std: float, target: Target) -> dict[str, Any]:
        """Return settings that follow from the noise, by name."""
        return {}

    def of_step(self, problem: Problem, plan: Plan) -> Any:
        """Return the protocol with what follows from its noise and its step."""
        return self.protocol

    def target_delta(self, problem: Problem, target: Target) -> Any:
        """Return δ of the target ε, as in `OfPrivacy`."""
        return self.privacy.target_delta(problem, target, self.machine_epsilon)

    def mechanism(self, problem: Problem, plan: Plan, method: str) -> Mechanism:
        return self.privacy.mechanism(self.facts(problem, plan), method)

    def sent_noise(self, problem: Problem, plan: Plan) -> SentNoise | None:
        """Return the noise of the messages, as `Privacy.sent_noise`."""
        return self.privacy.sent_noise(self.facts(problem, plan))

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Return the noise for a target by the privacy object's rule.

        Default: the smallest noise with which the event meets the target on this plan.
        """
        found = self.privacy.needed_noise(self.facts(problem, plan), target)
        return solved_noise(self.protocol, problem, plan, target) if found is None else found
