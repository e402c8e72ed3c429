"""One run: the whole protocol as one jitted scan over pure state."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.values import require_at_least, require_between, require_choice
from fedprivjax.engine.iterates import OUTPUT, by_iterate, evaluate, iterate_names
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import Recordable, check_metrics, default_metrics
from fedprivjax.noise import METHODS, PerStep, Silent
from fedprivjax.plan.participation import Participation, Size
from fedprivjax.plan.plan import Plan, Seeds, as_seeds, draw_plan
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.guarantee import PrivacyGuarantee, RecordGuarantee
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs
from fedprivjax.protocols.loops import scan_in_chunks

BLOCK = 64  # rounds whose noise is drawn together


class Recipe(NamedTuple):
    """What fixes a run's program beside the shapes of its inputs: hashable, static."""

    size: Size
    record: tuple[Metric, ...]
    every: int


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        rounds: rounds done at each record, int [records].
        metrics: each recorded metric of the reported point (and of the rounds), float32 [records].
        iterates: the same by iterate: "output", which is `metrics`, and the protocol's others, such as "last".
        params: the reported point.
        guarantee: what the run's privacy is.
        protocol: the calibrated protocol that ran.
        plan: the schedule and samples that were used.
    """

    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    iterates: dict[str, dict[str, np.ndarray]]
    params: Any
    guarantee: PrivacyGuarantee | RecordGuarantee
    protocol: Any
    plan: Plan

    @property
    def diverged(self) -> bool:
        """Whether any parameter or metric is not finite."""
        leaves = jax.tree.leaves((self.params, self.iterates))
        return not all(np.isfinite(leaf).all() for leaf in leaves)


def simulate(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    record: Sequence[Recordable] | None = None,
    every: int | None = None,
    delta: float = 1e-5,
    order: str = "shuffled",
    noise_method: str = "auto",
) -> Run:
    """Run one protocol on one problem.

    Args:
        protocol: with a `mu` (or `noise_std`) of its own; a step left None is the theory's.
        participation: `Full`, `Uniform`, `Balanced` or `Given`.
        rounds: T; None uses as many rounds as there are samples for.
        seed: one integer, or `Seeds` for separate streams.
        record: names in `metrics.METRICS`, `Metric` objects of one's own, or callables `(problem, Snapshot) -> scalar`;
            None records what there is.
        every: rounds between records; None records about 20 times. The last round is always recorded.
        delta: δ at which the guarantee states ε.
        order: of the samples, see `plan.ORDERS`.
        noise_method: how the noise is produced, see `fedprivjax.noise.METHODS`; every way has the same law.

    Raises:
        ValueError: settings that cannot be run, before anything is compiled.

    >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> run = simulate(DPMu2(mu=8.0, clip=1.6), problem, Full(20), seed=1, every=71)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.7), round(run.guarantee.epsilon, 1)
    (True, 65.3)
    """
    require_between("delta", delta, 0, 1)
    require_choice("noise method", noise_method, METHODS)
    seeds = as_seeds(seed)
    sampling = getattr(protocol, "sampling", None)
    plan = draw_plan(problem, participation, rounds, seeds, order=order, sampling=sampling)
    recipe = make_recipe(problem, plan, record, every)
    ready = calibrate(protocol, problem, plan, delta=delta)
    guarantee = ready.event(problem, plan).guarantee(ready.noise_std, delta)
    source = Silent() if ready.noise_std == 0 else ready.noise(problem, plan, noise_method)
    key = jax.random.key(seeds.noise)
    params, values = _run(as_leaves(ready), problem.traced, source, round_inputs(plan), key, recipe)
    iterates = by_iterate(recipe.record, iterate_names(ready, problem, plan.size), values)
    return Run(record_rounds(recipe), iterates[OUTPUT], iterates, params, guarantee, ready, plan)


def make_recipe(problem: Problem, plan: Plan, record, every: int | None) -> Recipe:
    """Check what is to be recorded and how often."""
    every = max(1, ceil(plan.size.rounds / 20)) if every is None else every
    require_at_least("every", every, 1)
    record = check_metrics(problem, default_metrics(problem) if record is None else record)
    return Recipe(plan.size, record, min(every, plan.size.rounds))


def record_rounds(recipe: Recipe) -> np.ndarray:
    """Rounds done at each record, int [records]."""
    rounds = np.arange(recipe.every, recipe.size.rounds + 1, recipe.every)
    return rounds if rounds[-1] == recipe.size.rounds else np.append(rounds, recipe.size.rounds)


def round_inputs(plan: Plan) -> RoundInputs:
    """The scan's inputs, leaves [rounds, ...], as host arrays."""
    schedule = plan.schedule
    numbers = np.arange(1, plan.size.rounds + 1, dtype=np.int32)
    always = RoundInputs(numbers, plan.samples, schedule.participants, schedule.counts)
    if plan.weights is None:
        return always
    return always._replace(weights=plan.weights, present=schedule.present.astype(np.float32))


def trajectory(protocol, problem: Problem, source, inputs: RoundInputs, key, recipe: Recipe):
    """The pure function behind every run: (reported parameters, metrics [records] or [records, iterates])."""
    dimension = problem.dimension
    vectors = not isinstance(source, Silent | PerStep)
    block = ceil(recipe.every / ceil(recipe.every / BLOCK))

    def one_round(state, step):
        inputs, noise = step
        return protocol.round(problem, state, inputs, noise), None

    def one_block(carry, some):
        state, noise_state, _ = carry
        inputs, noise_inputs = some
        keys = jax.vmap(lambda t: jax.random.fold_in(key, t))(inputs.round)
        noise_state, noise = source.block(noise_state, noise_inputs, keys, dimension)
        state, _ = jax.lax.scan(one_round, state, (inputs, noise))
        return (state, noise_state, noise[-1] if vectors else None), ()

    def one_segment(carry, some):
        carry, _ = scan_in_chunks(one_block, carry, some, block)
        state, _, noise = carry
        return carry, evaluate(protocol, problem, state, noise, recipe.record)

    carry = (
        protocol.init(problem, recipe.size),
        source.init(dimension, key),
        jnp.zeros(dimension) if vectors else None,
    )
    (state, _, _), metrics = scan_in_chunks(one_segment, carry, (inputs, source.inputs), recipe.every)
    return protocol.output(state), metrics


def as_leaves(protocol):
    """Python numbers as float32 arrays, so that another number is not another program; nothing that is the host's."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), getattr(protocol, "traced", protocol))


@partial(jax.jit, static_argnames="recipe")
def _run(protocol, problem, source, inputs, key, recipe):
    return trajectory(protocol, problem, source, inputs, key, recipe)
