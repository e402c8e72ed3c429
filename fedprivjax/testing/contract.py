"""The contract: properties of protocols by name, those of compiled programs, and a function that checks all of them."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

import chex
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.numbers import with_numbers
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.engine.prepare import Arguments
from fedprivjax.engine.progress import OnProgress, progress_callback
from fedprivjax.engine.simulate import execute, run_program, trajectory
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.personal_part import holds_part
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.plan.arguments import require_problem, require_protocol
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, protocol_key
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Problem
from fedprivjax.testing import privacy, releases, runs
from fedprivjax.testing.trial import (
    Trial,
    apart,
    close,
    first_noise,
    programs_after,
    usual_participation,
)


def stable_structure(trial: Trial) -> None:
    """Check that a round keeps the state's structure and dtypes, and that points have the parameters' structure."""
    problem, size = trial.problem, trial.start.plan.size

    def one_round(arguments: Arguments):
        protocol, inputs, key = arguments.protocol, jax.tree.map(lambda leaf: leaf[0], arguments.inputs), arguments.key
        state = protocol.init(problem, size, protocol_key(key))
        memory, noise_state, noise = first_noise(arguments, size)
        after, info = protocol.round(problem, state, inputs, noise, protocol_key(key, 1))
        points = protocol.output(state), seen_of(protocol).query(state), protocol.iterates(state)
        return (state, memory), (after, noise_state), points, info

    before, after, (output, query, iterates), info = jax.eval_shape(one_round, trial.start.arguments)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, before)
    for point in (output, query, *iterates.values()):
        chex.assert_trees_all_equal_shapes_and_dtypes(point, as_leaves(problem.start))
    kinds = {leaf.dtype.kind for leaf in jax.tree.leaves(before)}
    assert kinds <= set("fiubV"), f"a state must hold real numbers, integers, flags or keys, got kinds {kinds}"
    assert all(leaf.shape == () for leaf in jax.tree.leaves(info)), "info must hold scalars"


def jit_equals_eager(trial: Trial) -> None:
    """Check that two rounds give the same metrics with and without compilation.

    A difference is judged relative to the metric's largest value in a run.
    """
    with jax.disable_jit():
        values = trajectory(*_first_rounds(trial, 2, eval_every=2))[1]
    for name, value in values.items():
        largest = np.abs(_recorded(trial, name, [*range(trial.rounds)])).max()
        close(value[-1:].T.ravel(), _recorded(trial, name, [1]), 1e-4, name, largest)


def new_numbers_do_not_recompile(trial: Trial) -> None:
    """Check that other hyper-parameters, constraint radii, seeds and δ run with the same program."""
    base, problem = trial.run, trial.problem
    before = programs_after(run_program, partial(execute, trial.start))
    smaller = {name: 0.7 * value for name, value in trial.numbers.items()}
    if isinstance(problem.constraint, Ball) and Ball(0.8 * problem.constraint.radius).contains(problem.start):
        problem = replace(problem, constraint=Ball(0.8 * problem.constraint.radius))
    other = trial.ready(with_numbers(trial.start.protocol, smaller), problem, seed=Seeds(5, 6, 7), delta=1e-6)
    params = execute(other).params
    assert run_program._cache_size() <= before, "new numbers must not recompile the program"
    apart(ravel_pytree(params)[0], ravel_pytree(base.params)[0], "new numbers must change the run")


def prefix_of_a_longer_run(trial: Trial) -> None:
    """Check that a run of half the rounds, with the same noise, is the first half of the run.

    The two runs evaluate after different numbers of rounds, which must not matter.
    """
    every = trial.rounds // 4
    _, values = run_program(*_first_rounds(trial, 2 * every, every))
    for name, value in values.items():
        close(np.ravel(value.T), _recorded(trial, name, [every - 1, 2 * every - 1]), 1e-5, name)


def _first_rounds(trial: Trial, rounds: int, eval_every: int):
    """Return the program's arguments and static configuration for the first rounds of the trial's run."""
    start = trial.start
    arguments, size = start.arguments, start.static.size._replace(rounds=rounds)
    cut = jax.tree.map(lambda leaf: leaf[:rounds], (arguments.inputs, arguments.host_noise, arguments.mechanism.inputs))
    mechanism: Any = arguments.mechanism
    mechanism = replace(mechanism, inputs=cut[2])
    static = start.static._replace(size=size, eval_every=eval_every)
    return arguments._replace(inputs=cut[0], host_noise=cut[1], mechanism=mechanism), static


def _recorded(trial: Trial, name: str, at: list[int]) -> np.ndarray:
    """Return a metric of the trial's run at the evaluations `at`, concatenated over iterates."""
    return np.concatenate([metrics[name][at] for metrics in trial.run.iterates.values() if name in metrics])


ROUNDING = 1e-6  # relative


def query_is_where_gradients_are_taken(trial: Trial) -> str | None:
    """Check that the query of each of the first rounds is a point at which the round takes gradients.

    If the round takes gradients at new points, the query must be one of these, unless it did not change, as after a
    round without a machine. A protocol that does not evaluate the problem's model passes.

    Returns:
        The reason why the property does not apply, or None.
    """
    if reason := _no_gradients(trial):
        return reason
    algorithm = getattr(trial.start.protocol, "algorithm", None)
    if isinstance(algorithm, LocalAlgorithm) and holds_part(algorithm):
        return "a machine takes gradients at a model with a part of its own"
    before: list[np.ndarray] = []
    last = None
    for t, query, _, evaluations in trial.watched_rounds:
        distinct = {point.tobytes(): point for point, _ in evaluations}.values()
        asked = [point for point in distinct if np.isfinite(point).all()]
        new = [point for point in asked if not _among(point, before)]
        unchanged = last is not None and np.array_equal(query, last)
        assert not asked or _among(query, asked if unchanged else new or asked), (
            f"query must be the point at which round {t} takes gradients, and is "
            f"{min(np.abs(point - query).max() for point in asked):.3g} from the nearest"
        )
        before, last = before + new, query
    return None


def number_of_gradients_is_as_stated(trial: Trial) -> str | None:
    """Check that the first rounds take as many gradients for each use of a record as the protocol states.

    The stated number is `gradients_per_use` − `gradients_spared`. Empty places of minibatches, and of the chunks in
    which a secret cohort is computed, may take up to as many gradients. A protocol that takes no gradients of the
    problem's model passes.

    Returns:
        The reason why the property does not apply, or None.
    """
    if reason := _no_gradients(trial):
        return reason
    stated = trial.start.costs["gradients_per_use"] - costs_of(trial.start.protocol).gradients_spared
    chunk = getattr(trial.start.protocol.known, "chunk", None) or 1
    for t, _, inputs, evaluations in trial.watched_rounds:
        counted, slots = sum(number for _, number in evaluations), len(inputs.samples)
        places = np.size(inputs.samples) * ceil(slots / chunk) * chunk // slots
        uses = np.size(inputs.samples) if inputs.weights is None else np.count_nonzero(inputs.weights)
        assert not counted or stated * uses <= counted <= stated * places, (
            f"gradients_per_use less gradients_spared must be the gradients of round {t} over its {uses} "
            f"records, {counted / uses:g}, and is {stated:g}"
        )
    return None


def _no_gradients(trial: Trial) -> str | None:
    """Return the reason why a protocol's machines take no gradients, or None if they may."""
    known = getattr(trial.start.protocol, "known", None)
    return None if getattr(known, "statistic", None) is None else "its messages are another function of a record"


def _among(point: np.ndarray, others: list[np.ndarray]) -> bool:
    return any(np.abs(point - other).max() <= ROUNDING * np.abs(other).max() for other in others)


Property = Callable[[Trial], str | None]  # a text is the reason why the property does not apply

OF_RUNS: dict[str, Property] = {
    "stable structure and dtypes": stable_structure,
    "jit equals eager": jit_equals_eager,
    "new numbers do not recompile": new_numbers_do_not_recompile,
    "a prefix of a longer run": prefix_of_a_longer_run,
    "seeds determine the run": runs.seeds_determine_the_run,
    "machines relabelled": runs.machines_relabelled,
    "order within a round": runs.order_within_a_round,
    "absent machines leave no trace": runs.absent_machines_leave_no_trace,
    "the query is where gradients are taken": query_is_where_gradients_are_taken,
    "the number of gradients is as stated": number_of_gradients_is_as_stated,
    "a sweep equals a loop": runs.sweep_equals_a_loop,
    "every leaf can be swept": runs.every_leaf_can_be_swept,
}
OF_RELEASES: dict[str, Property] = {
    "no message exceeds the stated bound": releases.no_message_exceeds_its_bound,
    "machines are isolated": releases.machines_are_isolated,
    "released numbers determine the server": releases.released_numbers_determine_the_server,
}
OF_PRIVACY: dict[str, Property] = {  # not defined for a protocol that declares itself non-private
    "silent without noise": runs.silent_without_noise,
    "dropouts count as planned": runs.dropouts_count_as_planned,
    "a noise sample is shared by all configurations": runs.noise_is_shared_by_configurations,
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
    """Result of `check_protocol`, which raises an exception instead if a property fails.

    Attributes:
        protocol: name of the protocol's class.
        held: names of the properties that hold.
        skipped: names of the privacy properties that were not checked, because the protocol is non-private.
        not_applicable: text by name for each property that does not apply to the protocol: the reason.
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
    progress: bool | OnProgress | None = None,
) -> Report:
    """Test a protocol on a problem for the properties that every protocol must have.

    Args:
        protocol: a protocol with a target (`mu` or `epsilon`) or a `noise_std`, and with a step size if it has no
            default. If `noise_std` is 0 or the target is infinite, properties of privacy are skipped, unless the
            protocol guarantees privacy without added noise.
        problem: a problem with enough examples for the rounds. If the protocol does not clip, the constants of the
            problem must bound the sensitivity.
        participation: participation scheme. None is a random half of the machines (clients) in each round. The machines
            are those of the problem's partition table. Without a table, there are four machines. If the privacy object
            of the protocol fixes the number of machines, None is all of these machines in every round.
        rounds: number of rounds, rounded down to a multiple of four.
        properties: names of the properties to test, keys of `fedprivjax.testing.contract.PROPERTIES`. None is all
            properties.
        progress: True displays the progress, and False does not. None displays the progress if stderr is a terminal. A
            callable is called with two numbers: finished properties and all properties.

    Returns:
        Names of the properties that hold, that were skipped, and that do not apply.

    Raises:
        AssertionError: if a property fails.

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
    participation = usual_participation(protocol, problem) if participation is None else participation
    trial = Trial(protocol, problem, participation, rounds - rounds % 4)
    found: dict[str, str | None] = {}
    progress = sys.stderr.isatty() if progress is None else progress
    with progress_callback(progress, f"check {protocol.name}", "properties") as on_progress:
        for number, name in enumerate(names, 1):
            try:
                if trial.private or name not in OF_PRIVACY:
                    found[name] = PROPERTIES[name](trial)
            except Exception as error:
                raise AssertionError(f"{protocol.name} fails {name!r}: {error}") from error
            if on_progress is not None:
                on_progress(number, len(names))
    held = tuple(name for name, reason in found.items() if not reason)
    skipped = tuple(name for name in names if name not in found)
    return Report(protocol.name, held, skipped, {name: reason for name, reason in found.items() if reason})
