"""Rounds of machines with local work."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Public, planned_algorithm
from fedprivjax.method.known_work import KnownWork, read
from fedprivjax.method.linear import is_plain, points_of
from fedprivjax.method.local_rounds import chunk_of
from fedprivjax.method.personal_part import has_personal_part, holds_part, require_covered
from fedprivjax.method.round import require_one_gradient
from fedprivjax.method.seen import of_one_message
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.method.work_privacy import WorkFacts
from fedprivjax.method.work_program import WorkProgram
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.server_factors import round_factor
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key


@dataclass(frozen=True, eq=False)
class WorkRounds(WorkProgram):
    """Rounds of machines with local work, whose server reads the mean of their messages."""

    def read_once(self, problem: Problem, plan: Plan) -> Any:
        algorithm, public = self.algorithm, Public.of(problem, plan.size.machines)
        require_decorated(algorithm)
        algorithm.check(public)
        planned, unit = planned_algorithm(algorithm, plan.size.rounds), self.privacy.unit
        first, stateful, reads_planned = read(planned, public, private=unit is not None)
        bound = problem.lipschitz if is_plain(first) else inf
        known = KnownWork(
            bound if self.privacy.clip is None and bound < inf else None,
            float(plan.schedule.divisor) if self.privacy.reads_cohort_size else None,
            None,
            planned.own(Public.of(problem, 1, random_key(0))) if holds_part(planned) else None,
            None if planned is algorithm else planned,
            len(points_of(first)),
            is_plain(first),
            stateful,
            problem.weights is not None,
            unit == "machine" and isinstance(self.privacy.work, LocalEpochs) and reads_planned,
        )
        dimension = replace(self.protocol, known=known).rounds.message_dimension(problem)
        known = replace(known, encoded=self.privacy.encoded_norm(dimension))
        return replace(self.protocol, known=known)

    def prepared(self, problem: Problem, plan: Plan, target: Target) -> Any:
        if self.privacy.unit is None and not target.non_private:
            raise Refusal(f"unit must be 'record' or 'machine' for a private run, got None with {target}. Set unit")
        self.protocol.theory.require_step(self.protocol)
        ready = super().prepared(problem, plan, target)
        require_one_gradient(problem, self.protocol.name, plain=ready.known.plain)
        return ready

    def fitted(self, problem: Problem, plan: Plan) -> Any:
        classes, all_records = self.local.fitted(problem, plan)
        fitted = {"slot_classes": classes, "all_records": all_records, "chunk": chunk_of(plan.schedule)}
        fitted["versions"] = None if plan.schedule.late is None else plan.schedule.late.versions
        return replace(self.protocol, known=replace(self._known, **fitted))

    def of_noise(self, problem: Problem, plan: Plan, noise_std: float, target: Target) -> dict[str, Any]:
        return self.privacy.of_noise(self.facts(problem, plan), noise_std)

    def check_method(self, method: str) -> None:
        self.privacy.check_method(method, float(self.protocol.noise_std))

    def mechanism(self, problem: Problem, plan: Plan, method: str) -> Mechanism:
        self.check_method(method)
        return super().mechanism(problem, plan, method)

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        return self.privacy.host_noise(plan, dimension, seed, float(self.protocol.noise_std))

    def reduced(self, messages: Any) -> Any:
        return self.privacy.reduced(messages)

    def decoded(self, messages: Any) -> Any:
        return self.privacy.decoded(messages)

    def message_dimension(self, problem: Problem) -> int:
        """Number of numbers in a message: those of `leave`, a bit with an adaptive clip, and padding."""
        leaves = jax.tree.leaves(self._message_form(problem))
        dimension = sum(int(np.prod(leaf.shape)) for leaf in leaves) + self.privacy.adaptive
        return self.privacy.message_dimension(dimension)

    def message_bits(self, problem: Problem) -> float:
        return self.privacy.message_bits(self.message_dimension(problem))

    def costs(self, problem: Problem) -> dict[str, float]:
        expected = self._known.expected
        besides = 0.0 if expected is None else self.privacy.protocol_bits(float(expected))
        gradients = self._known.gradients + has_personal_part(self.planned)
        return of_one_message(self.message_bits(problem) + besides, gradients)

    def run_costs(self, problem: Problem, plan: Plan) -> dict[str, float]:
        return self.local.run_costs(problem, plan)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return self.local.vectors_in_memory(problem, size, rows)

    def facts(self, problem: Problem, plan: Plan) -> WorkFacts:
        stateful = self._known_for(problem, plan).stateful or has_personal_part(self.planned)
        return WorkFacts(problem, plan, stateful, self.message_dimension(problem), self.machine_epsilon)

    def _known_for(self, problem: Problem, plan: Plan) -> KnownWork:
        """Return what was read of the algorithm, or read it for a protocol that is not calibrated."""
        known = self.protocol.known
        return self.read_once(problem, plan).known if known is None else known

    def event(self, problem: Problem, plan: Plan) -> Event:
        known, noise_std = self._known_for(problem, plan), self.protocol.noise_std
        if self.privacy.unit == "record" and self.privacy.clip is None and not known.plain:
            raise Refusal(
                f"clip must be set with unit = 'record', because a local step's message is a combination of gradients, "
                f"whose norm the Lipschitz constant does not bound, got None. Set clip in {type(self.privacy).__name__}"
            )
        if noise_std and known.limit is not None:
            require_clip("lipschitz", float(known.limit))
        event = self.privacy.event(self.facts(problem, plan), float(noise_std))
        require_covered(self.planned, self.privacy)
        held = self.privacy.unit == "machine" and holds_part(self.planned)
        apart = held or (self.privacy.unit is not None and has_personal_part(self.planned))
        assumed = {
            "personal parts": apart,
            "public steps": known.public_steps,
            "public work": self.privacy.unit is not None and getattr(self.privacy.work, "unequal", False),
            "late answers": plan.schedule.late is not None,
        }
        for name in (name for name, needed in assumed.items() if needed):
            event = event.assuming(Assumption(name))
        return event

    def check_late(self, problem: Problem, plan: Plan) -> None:
        self.privacy.check_late(self.protocol.name)
        if self.protocol.adversary is not None:
            raise Refusal(f"adversary must be left out with late answers, got {self.protocol.adversary}")
        if self.facts(problem, plan).stateful:
            raise Refusal(
                f"participation must be synchronous for {self.protocol.name}, whose machines keep a state, got late "
                f"answers. Use FedAvg, or another scheme than Buffered"
            )

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal if the guarantee does not cover the problem or the plan."""
        self.privacy.check(problem)
        factor = round_factor(self.privacy.noise)
        if factor is not None:
            factor.check(plan.schedule, self.message_dimension(problem))

    @property
    def gradient_clip(self) -> Any:
        private, protocol = self.privacy, self.protocol
        if private.unit != "machine" or private.update_clip is None:
            return private.clip
        step = 1.0
        if protocol.step_size is not None:
            step = float(np.max(protocol.step_size)) * float(np.max(protocol.step_scale))
        bound = private.update_clip.start if private.adaptive else private.update_clip
        return float(np.max(bound)) / step
