"""The contract: properties of protocols by name, and a function that checks them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.arguments import require_problem, require_protocol
from fedprivjax.plan.participation import Participation
from fedprivjax.problem.problem import Problem
from fedprivjax.testing import privacy, programs, releases, runs, sweeps
from fedprivjax.testing.trial import Trial, half_of_the_machines

Property = Callable[[Trial], str | None]  # a text is the reason why the property does not apply

OF_RUNS: dict[str, Property] = {
    "stable structure and dtypes": programs.stable_structure,
    "jit equals eager": programs.jit_equals_eager,
    "new numbers do not recompile": programs.new_numbers_do_not_recompile,
    "a prefix of a longer run": programs.prefix_of_a_longer_run,
    "seeds determine the run": runs.seeds_determine_the_run,
    "machines relabelled": runs.machines_relabelled,
    "order within a round": runs.order_within_a_round,
    "absent machines leave no trace": runs.absent_machines_leave_no_trace,
    "the query is where gradients are taken": programs.query_is_where_gradients_are_taken,
    "the number of gradients is as stated": programs.number_of_gradients_is_as_stated,
    "a sweep equals a loop": sweeps.sweep_equals_a_loop,
    "every leaf can be swept": sweeps.every_leaf_can_be_swept,
}
OF_RELEASES: dict[str, Property] = {
    "no message exceeds the stated bound": releases.no_message_exceeds_its_bound,
    "machines are isolated": releases.machines_are_isolated,
    "released numbers determine the server": releases.released_numbers_determine_the_server,
}
OF_PRIVACY: dict[str, Property] = {  # not defined for a protocol that declares itself non-private
    "silent without noise": runs.silent_without_noise,
    "dropouts count as planned": runs.dropouts_count_as_planned,
    "a noise sample is shared by all configurations": sweeps.noise_is_shared_by_configurations,
    "the noise has the stated distribution": privacy.noise_has_stated_distribution,
    "the guarantee can be saved and printed": privacy.guarantee_can_be_saved,
    "the target is met": privacy.target_is_met,
    "an encoder keeps its bound": privacy.encoder_keeps_its_bound,
    "the transcript follows the run": privacy.transcript_follows_the_run,
    "the view fits the trust model": privacy.view_fits_trust_model,
    **OF_RELEASES,
}
PROPERTIES = OF_RUNS | OF_PRIVACY


@dataclass(frozen=True, repr=False)
class Report:
    """Result of a contract without failures.

    Attributes:
        protocol: name of the protocol's class.
        held: names of the properties that hold.
        skipped: names of the privacy properties that were skipped, for a non-private protocol.
        not_applicable: reasons why other properties do not apply to the protocol, by name.
    """

    protocol: str
    held: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        every = len(self.held) + len(self.skipped) + len(self.not_applicable)
        lines = [f"{self.protocol}: {len(self.held)} of {every} properties hold"]
        lines += [f"{name!r} does not apply: {reason}" for name, reason in self.not_applicable.items()]
        if self.skipped:
            lines.append("skipped because the protocol declares itself non-private: " + ", ".join(self.skipped))
        return "\n".join(lines)

    __repr__ = __str__


def check_protocol(
    protocol,
    problem: Problem,
    participation: Participation | None = None,
    *,
    rounds: int = 12,
    properties: Iterable[str] | None = None,
) -> Report:
    """Check a protocol against the contract on a problem. A small problem takes well under a minute.

    Args:
        protocol: a protocol with a target (`mu` or `epsilon`) or a `noise_std`, and with a step size if it has no
            default. A protocol without a guarantee, and with `noise_std = 0` or an infinite target, counts as
            non-private: privacy properties are skipped.
        problem: a problem with enough examples for the rounds, and with a clip or constants that give a finite
            sensitivity.
        participation: participation scheme. None samples half of the machines per round: of four, or of those in the
            partition table.
        rounds: number of rounds, rounded down to a multiple of four.
        properties: names in `PROPERTIES`; None is all of them.

    Returns:
        The properties that hold, those that were skipped, and those that do not apply.

    Raises:
        AssertionError: a property fails. The message has its name and the reason.

    >>> import numpy as np
    >>> from fedprivjax import Ball, NoisySGD, Softmax, linear_problem
    >>> problem = linear_problem(np.eye(24), np.arange(24) % 2, Softmax(2), feature_bound=1.0, constraint=Ball(1.0))
    >>> check_protocol(NoisySGD(mu=1.0), problem, properties=["the target is met"])
    NoisySGD: 1 of 1 properties hold
    """
    names = list(PROPERTIES if properties is None else properties)
    for name in names:
        require_choice("property", name, PROPERTIES)
    require_at_least("rounds", rounds, 4)
    require_protocol(protocol)
    require_problem(problem)
    participation = half_of_the_machines(problem) if participation is None else participation
    trial = Trial(protocol, problem, participation, rounds - rounds % 4)
    held, reasons = [], {}
    for name in names:
        try:
            if not trial.private and name in OF_PRIVACY:
                continue
            if reason := PROPERTIES[name](trial):
                reasons[name] = reason
            else:
                held.append(name)
        except Exception as error:
            raise AssertionError(f"{protocol.name} fails {name!r}: {error}") from error
    skipped = tuple(name for name in names if name not in held and name not in reasons)
    return Report(protocol.name, tuple(held), skipped, reasons)
