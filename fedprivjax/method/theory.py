"""What a method's theory says: default steps, error bounds, planned uses, and the sizes that it chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Self, TypeVar

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.planning.uses import Bound, PlannedRun, Use, missing
from fedprivjax.method.server_step import optimizer_of_step, scaled_step
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem

Choice = TypeVar("Choice", bound=Callable)


@dataclass(frozen=True)
class TheoryChoices:
    """Functions that compute what a method's theory chooses for one problem; None if it chooses nothing.

    Attributes:
        per_round: `(machines, target) -> number`, the number of machines in each round of one pass over all machines.
        cohorts: `(machines, target) -> numbers`, the number of machines in each round of one pass in phases.
        rounds: `(machines, target) -> number`, the number of rounds if all machines take part in each.
        smoothing: `(machines, target, once) -> number`, the strength of the envelopes of a non-smooth loss. `once` is
            True if every machine takes part once, and False if it takes part in every round. The result is None if the
            method needs no envelopes.
        min_rounds: `() -> number`, the smallest number of rounds of a run.
    """

    per_round: Callable[[int, Target], int] | None = None
    cohorts: Callable[[int, Target], tuple[int, ...]] | None = None
    rounds: Callable[[int, Target], int] | None = None
    smoothing: Callable[[int, Target, bool], float | None] | None = None
    min_rounds: Callable[[], int] | None = None


@dataclass(frozen=True)
class Theory:
    """What theory states about a method: its default step size, its error bound, and similar facts.

    Attributes:
        step: `(protocol, problem, plan, target) -> number`, the default size of plain gradient steps, for a protocol
            whose noise is known. It returns inf if a constant is missing. If `step` is None, no theory gives a step
            size, and users must set it.
        norm: `(protocol, problem, plan) -> B`, bound B on the root mean square norm of the noisy gradient in a plain
            step. It gives a default step size for other optimisers, such as Adam. If `norm` is None, other optimisers
            have no default.
        bound: `(protocol, run) -> Bound`, the error bound of a calibrated protocol's planned run with plain steps.
        uses: `(class) -> tuple of Use`, the ways of using the protocol's class that `fedprivjax plan` compares.
        not_planned: text that gives the reason why `fedprivjax plan` does not compare the method. It is used if `uses`
            returns an empty tuple.
        choices: `(protocol, problem) -> TheoryChoices`, functions that compute sizes and constants, such as the number
            of rounds.
        equivalent: `(protocol, machines) -> protocol`, one representative of all protocols whose runs have the same
            distribution for this number of machines.
    """

    step: Callable[[Any, Problem, Plan, Target], float] | None = None
    norm: Callable[[Any, Problem, Plan], float] | None = None
    bound: Callable[[Any, PlannedRun], Bound] = lambda protocol, run: missing("no theorem is stated for it")
    uses: Callable[[type], tuple[Use, ...]] = lambda method: ()
    not_planned: str = "it states no use to be planned"
    choices: Callable[[Any, Problem], TheoryChoices] = lambda protocol, problem: TheoryChoices()
    equivalent: Callable[[Any, int], Any] = lambda protocol, machines: protocol

    def of(self, algorithm: type, *privacy: type) -> Self:
        """Register this theory for pairs of an algorithm and a privacy object, and return it.

        Protocols of such a pair then use its functions, which may read only the algorithm, the privacy object and the
        noise.

        Args:
            algorithm: class of the algorithm.
            *privacy: classes of privacy objects.
        """
        THEORIES.update({(algorithm, one): self for one in privacy})
        return self

    def default_step(self, protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
        """Return the default step size of a protocol whose noise is known, or inf if a constant is missing.

        * For plain gradient steps, it is η, the result of this theory's function `step`.
        * If the protocol has an optax transformation with its own learning rate, such as `optax.adam(0.1)`, it is 1.
        * For another optimiser, such as `optax.adam`, take a run whose gradients are all equal, with the norm that this
          theory's function `norm` returns. The default is the step size with which the optimiser moves as far in this
          run as plain steps of size η.

        Args:
            protocol: protocol whose noise is known, and which needs a default step size.
            problem: the optimisation problem.
            plan: plan of the run.
            target: privacy target.

        Raises:
            Refusal: if the theory is for plain steps alone and the protocol has another optimiser.
        """
        name, optimizer = optimizer_of_step(protocol)
        if optimizer is not None and optimizer.own_step:
            return 1.0
        assert self.step is not None
        if optimizer is None:
            return self.step(protocol, problem, plan, target)
        if self.norm is None:
            raise Refusal(
                f"step_size must be given for {protocol.name} with {name} = {optimizer}, because its default is for "
                f"plain steps, got none. Set it"
            )
        plain = self.step(protocol, problem, plan, target)
        return scaled_step(optimizer, plain, problem, plan.size.rounds, self.norm(protocol, problem, plan))

    def error_bound(self, protocol: Any, run: PlannedRun) -> Bound:
        """Return the error bound of a planned run, or a `Bound` without terms if none is known.

        If the protocol has an optimiser of server or local steps, no bound is known, because theorems are for plain
        gradient steps. The attribute `theorem` of the result then states this reason.

        Args:
            protocol: calibrated protocol of the run.
            run: the run that is planned.
        """
        parts = (getattr(getattr(protocol, "algorithm", None), name, None) for name in ("server", "local"))
        other = next((one for one in parts if one is not None), None)
        return self.bound(protocol, run) if other is None else missing(f"its bound is for plain steps, not for {other}")

    def require_step(self, protocol: Any) -> None:
        """Raise Refusal if a protocol's step size is missing or given twice.

        It is missing if `step_size` is None and no theory gives a default. It is given twice if `step_size` is set, and
        the optimiser has its own learning rate.
        """
        name, optimizer = optimizer_of_step(protocol)
        own = optimizer is not None and optimizer.own_step
        if own and protocol.step_size not in (None, 1):
            raise Refusal(
                f"step_size must be left out with a {name} that has its own step, got {protocol.step_size}. Give a "
                f"factory, such as optax.adam, or multiply the steps by step_scale"
            )
        if self.step is None and protocol.step_size is None and not own:
            raise Refusal(f"step_size must be given for {protocol.name}, which has no default step, got none. Set it")


THEORIES: dict[tuple[type, type], Theory] = {}  # by the classes of an algorithm and its privacy object


def theory_of(algorithm: Any, privacy: Any) -> Theory:
    """Return the theory of a pair, which the file of the algorithm states; by default nothing is known."""
    return THEORIES.get((type(algorithm), type(privacy)), Theory())


def require_choice_of(choice: Choice | None, name: str, method: str) -> Choice:
    """Return a function of `TheoryChoices`. Raise Refusal if the theory does not choose that size.

    >>> require_choice_of(TheoryChoices().rounds, "rounds", "NoisySGD")
    Traceback (most recent call last):
    fedprivjax.Refusal: rounds must be given for NoisySGD, whose theory chooses none
    """
    if choice is None:
        raise Refusal(f"{name} must be given for {method}, whose theory chooses none")
    return choice


def step_of(noisy: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the given step of a protocol with known noise, or its default."""
    noisy.theory.require_step(noisy)
    if noisy.step_size is None:
        step = noisy.theory.default_step(noisy, problem, plan, target)
    else:
        step = float(noisy.step_size)
    if not 0 < step < inf:
        raise Refusal(
            "step_size must be set: its default needs a ball, a declared distance or a network's start other than "
            "0, and a clip, or a finite mu, or a smoothness constant"
        )
    return step
