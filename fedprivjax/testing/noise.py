"""Properties of the noise: every way of producing it has one law, and that law has the scale that is stated."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import round_keys
from fedprivjax.testing.trial import Trial

NUMBERS = 4_000  # coordinates of a draw, each an independent path
LIMIT = 5.0  # standard errors that the worst entry of a covariance may be off by


def noise_has_its_law(trial: Trial) -> None:
    """The aggregate's noise has the covariance of what machines add, and a first message the noise that its μ says;
    both laws refuse 2/3 and 3/2 of the scale."""
    drawn = _paths(trial, "auto"), _paths(trial, trial.method)
    if all(path is not None for path in drawn):
        _one_law(*drawn)
    stated, numbers = _stated_noise(trial)
    if stated is not None:
        _of_scale(numbers, stated)


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


def _paths(trial: Trial, method: str):
    """What the protocol makes of a mechanism's draws, as it stands in the aggregate, [rounds, numbers]; None where no
    aggregate carries it."""
    start = trial.start
    return _aggregated(start, start.protocol.mechanism(trial.problem, start.plan, method), 11 + len(method))


def _aggregated(start, mechanism, seed: int):
    key = jax.random.key(seed)
    protocol, keys = start.arguments.protocol, round_keys(key, np.arange(1, start.plan.size.rounds + 1))
    _, drawn = mechanism.draw(mechanism.init(NUMBERS, key), mechanism.inputs, keys, NUMBERS)
    tape = start.tape

    def one_round(state, step):
        state, noise = protocol.noise(state, *step)
        return state, mechanism.aggregate(noise)

    noises = jax.lax.scan(one_round, protocol.noise_state(NUMBERS), (drawn, tape))[1]
    return None if noises is None else np.asarray(noises, np.float64)


def _stated_noise(trial: Trial):
    """The noise of one release that the event's μ speaks of, where a single round is all there is, and that noise as it
    is drawn; (None, None) where no μ is stated."""
    start = trial.start
    plan = _first_round(start.plan)
    event = start.protocol.event(trial.problem, plan)
    if event.mus is None:
        return None, None
    mechanism = start.protocol.mechanism(trial.problem, plan, trial.method)
    single = replace(start, plan=plan, mechanism=mechanism)
    if start.protocol.trust == "server":
        return event.sensitivity / event.mu, np.ravel(_aggregated(single, mechanism, 1))
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], mechanism.inputs)
    keys = round_keys(jax.random.key(1), np.arange(1, 2))
    _, added = mechanism.message_noise(mechanism.message_memory(NUMBERS), first, keys[0], NUMBERS)
    worst = int(np.argmax(event.mus.each[plan.schedule.participants[0]]))
    return event.sensitivity / event.mu, start.protocol.noise_std * np.asarray(added, np.float64)[worst]


def _first_round(plan: Plan) -> Plan:
    schedule = plan.schedule
    filled = None if schedule.filled is None else schedule.filled[:1]
    weights = None if plan.weights is None else plan.weights[:1]
    first = replace(schedule, participants=schedule.participants[:1], filled=filled)
    return replace(plan, schedule=first, samples=plan.samples[:1], weights=weights)
