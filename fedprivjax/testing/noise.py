"""Properties of the noise: every way of producing it has one law, and that law has the scale that is stated."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.views import UNSEEN
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import round_keys
from fedprivjax.testing.trial import Trial

NUMBERS = 4_000  # coordinates of a draw, each an independent path
LIMIT = 5.0  # standard errors that the worst entry of a covariance may be off by


def noise_has_its_law(trial: Trial) -> None:
    """The aggregate's noise has the covariance of what machines add, and a message the noise that its μ says, or
    `noise_std` where no μ is stated; both laws refuse 2/3 and 3/2 of the scale."""
    cheapest, written_out = (_paths(trial, method, seed) for seed, method in enumerate(("auto", trial.method)))
    if cheapest is None:  # noise inside of machines' own steps, which no sum carries
        _follows_noise_std(trial)
        return
    if written_out is not None:
        _one_law(cheapest, written_out)
    stated, numbers = _stated_noise(trial)
    _of_scale(numbers, stated)


def _follows_noise_std(trial: Trial) -> None:
    """What a round gets for twice the `noise_std` is twice as large."""
    start = trial.start
    keys = round_keys(start.key, np.arange(1, 2))
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:1], start.mechanism.inputs)
    dimension = trial.problem.dimension
    drawn = start.mechanism.draw(start.mechanism.init(dimension, start.key), first, keys, dimension)[1]
    drawn = jax.tree.map(lambda leaf: leaf[0], drawn)
    sizes = []
    for scale in (1, 2):
        protocol = replace(start.protocol, noise_std=scale * start.protocol.noise_std)
        noise = protocol.noise(protocol.noise_state(dimension, start.plan.size), drawn, None)[1]
        numbers = [leaf for leaf in jax.tree.leaves(noise) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        sizes.append(sum(float(jnp.linalg.norm(leaf)) for leaf in numbers))
    assert 0 < 1.99 * sizes[0] < sizes[1] < 2.01 * sizes[0], f"noise must follow noise_std, got sizes {sizes}"


def _one_law(path, other) -> None:
    """Two samples of noise over rounds, [rounds, numbers], have one covariance, and not at another scale."""
    assert _misfit(path, other) < 1.5 * LIMIT, f"the ways to draw the noise differ by {_misfit(path, other):.1f} errors"
    for scale in (2 / 3, 3 / 2):
        assert _misfit(scale * path, other) > 1.5 * LIMIT, "the law of the noise cannot be told from another scale"


def _of_scale(numbers, stated: float) -> None:
    """Independent normals have the stated standard deviation, and not another."""
    error = 1 / np.sqrt(2 * numbers.size)
    off = abs(numbers.std() / stated - 1) / error
    assert off < LIMIT, f"noise must have the stated scale {stated:.4g}, got {numbers.std():.4g}"
    for scale in (2 / 3, 3 / 2):
        assert abs(scale * numbers.std() / stated - 1) / error > LIMIT, "too few numbers to tell the scale"


def _misfit(path, other) -> float:
    """How far the worst entries of two empirical covariances are apart, in standard errors."""
    one, two = (z @ z.T / z.shape[1] for z in (path, other))
    variance = np.diag(two)
    error = np.sqrt(2 * (np.multiply.outer(variance, variance) + two**2) / path.shape[1])
    return float(np.max(np.abs(one - two) / error))


def _paths(trial: Trial, method: str, seed: int) -> Any:
    """What the protocol makes of a mechanism's draws, as it stands in the aggregate, [rounds, numbers]; None where no
    aggregate carries it."""
    start = trial.start
    return aggregated(start, start.protocol.mechanism(trial.problem, start.plan, method), seed)


def aggregated(start: ReadyRun, mechanism: Any, seed: int) -> Any:
    """What a run's protocol makes of a mechanism's draws, as it stands in the aggregate, [rounds, numbers], or None."""
    key = jax.random.key(seed)
    protocol, keys = start.arguments.protocol, round_keys(key, np.arange(1, start.plan.size.rounds + 1))
    _, drawn = mechanism.draw(mechanism.init(NUMBERS, key), mechanism.inputs, keys, NUMBERS)
    tape = replace(start, mechanism=mechanism).tape_of(start.protocol, seed, NUMBERS)

    def one_round(state, step):
        state, noise = protocol.noise(state, *step)
        return state, mechanism.aggregate(noise)

    noises = jax.lax.scan(one_round, protocol.noise_state(NUMBERS, start.plan.size), (drawn, tape))[1]
    return None if noises is None else np.asarray(noises, np.float64)


def _stated_noise(trial: Trial) -> tuple[float, Any]:
    """The noise of one release that the event's μ speaks of, where a single round is all there is, and that noise as it
    is drawn. If no μ is stated: a trusted server's, or that of the noisiest message of all."""
    start = trial.start
    plan = _first_round(start.plan)
    event = start.protocol.event(trial.problem, plan)
    if event.mus is None:
        mechanism = start.protocol.mechanism(trial.problem, start.plan, trial.method)
        if start.protocol.trust in UNSEEN:
            stated = start.protocol.noise_std * start.protocol.server_noise(start.plan)
            return stated, aggregated(start, mechanism, 1)[0]
        rows = [unit_noise(start, mechanism, t) for t in range(start.plan.size.rounds)]
        if rows[0] is None:  # nothing is written out: the aggregate's, of a first round in which machines are alike
            return _mean_of(start, start.protocol.mechanism(trial.problem, start.plan, "auto"))
        noisiest = max((row for one in rows for row in one), key=np.std)
        return start.protocol.noise_std, start.protocol.noise_std * noisiest
    mechanism = start.protocol.mechanism(trial.problem, plan, trial.method)
    stated = event.sensitivity / event.mu
    if start.protocol.trust == "server":
        return stated, np.ravel(aggregated(replace(start, plan=plan), mechanism, 1))
    mus = event.mus.each[plan.schedule.participants[0]]
    worst = int(np.argmax(np.where(plan.schedule.present[0], mus, 0.0)))
    return stated, start.protocol.noise_std * unit_noise(start, mechanism, 0)[worst]


def _mean_of(start: ReadyRun, mechanism: Any) -> tuple[float, Any]:
    """The noise that a mean of a first round's messages has where each has `noise_std`, and as it is drawn."""
    messages = start.plan.schedule.present[0].sum()
    return start.protocol.noise_std / np.sqrt(messages), aggregated(start, mechanism, 1)[0]


def unit_noise(start: ReadyRun, mechanism: Any, t: int) -> Any:
    """What participants of round t + 1, were it their first, add to their messages at `noise_std` = 1, [per_round,
    numbers], or None."""
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[t], mechanism.inputs)
    key = round_keys(jax.random.key(1), np.arange(t + 1, t + 2))[0]
    memory = mechanism.message_memory(NUMBERS, jax.random.key(1))
    added = mechanism.message_noise(memory, inputs, key, NUMBERS)[1]
    if added is None:
        return None
    protocol = replace(start.arguments.protocol, noise_std=np.ones((), np.float32))
    state = protocol.noise_state(NUMBERS, start.plan.size)
    noise = jax.vmap(lambda drawn: mechanism.aggregate(protocol.noise(state, drawn, None)[1]))(added)
    return np.asarray(noise, np.float64)


def _first_round(plan: Plan) -> Plan:
    schedule = plan.schedule
    of_slots = {"participants": schedule.participants, "filled": schedule.filled, "dropped": schedule.dropped}
    first = replace(schedule, **{name: None if rows is None else rows[:1] for name, rows in of_slots.items()})
    weights = None if plan.weights is None else plan.weights[:1]
    return replace(plan, schedule=first, samples=plan.samples[:1], weights=weights)
