"""Properties of privacy: noise of the stated distribution, a met target, a saved guarantee, an adversary's view."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.published import published_plan
from fedprivjax.engine.transcript import Transcript, replay, transcript
from fedprivjax.method.seen import adversary_of, costs_of, seen_of
from fedprivjax.noise import Randomised
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.seeds import round_keys
from fedprivjax.privacy.adversaries import NAMED, SUMMED, UNSEEN, FinalModel, ThirdParty
from fedprivjax.privacy.calibration import calibrate_and_check, exceeds
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.views import FullView
from fedprivjax.problem.random_keys import random_key
from fedprivjax.testing.trial import Trial, close, first_noise

NUMBERS = 4_000  # coordinates of a sample, each an independent path
LIMIT = 5.0  # largest error of a covariance entry, in standard errors
DELTA = 1e-5
ENCODED = 200  # encodings of each message
ROUNDING = 1e-5  # of a norm, in float32
TARGETS = Target(mu=1.0, delta=DELTA), Target(epsilon=2.0, delta=DELTA)


def noise_has_stated_distribution(trial: Trial) -> str | None:
    """Check that the noise in the aggregate and in single messages has the stated distribution.

    The aggregate's noise must have the covariance of the messages' noise. The scale of a message's noise must follow
    from its μ, or be `noise_std` if no μ is stated. Both tests must reject 2/3 and 3/2 of the scale.

    Returns:
        The reason why the property does not apply, for messages with pure differential privacy; otherwise None.
    """
    start = trial.start
    if isinstance(start.mechanism, Randomised):
        return "the noise of randomised messages is no number; an audit measures it"
    mechanisms = (start.protocol.mechanism(trial.problem, start.plan, method) for method in ("auto", trial.method))
    cheapest, written_out = (aggregated(start, mechanism, seed) for seed, mechanism in enumerate(mechanisms))
    if cheapest is None:  # the noise is inside local steps, not in the aggregate
        _follows_noise_std(trial)
        return None
    if written_out is not None:
        difference = f"got {covariance_misfit(cheapest, written_out):.1f} standard errors of difference"
        message = f"noise samplers must be equal in distribution, {difference}"
        _require_scale(lambda scale: covariance_misfit(scale * cheapest, written_out), 1.5 * LIMIT, message)
    stated, numbers = _stated_noise(trial)
    deviation, error = numbers.std(), 1 / np.sqrt(2 * numbers.size)
    message = f"noise must have the stated scale {stated:.4g}, got {deviation:.4g}. It is a standard deviation"
    _require_scale(lambda scale: abs(scale * deviation / stated - 1) / error, LIMIT, message)
    return None


def _follows_noise_std(trial: Trial) -> None:
    """Check that twice the `noise_std` gives twice the noise of a round."""
    arguments, sizes = trial.start.arguments, []
    for scale in (1, 2):
        protocol: Any = replace(arguments.protocol, noise_std=scale * arguments.protocol.noise_std)
        noise = first_noise(arguments._replace(protocol=protocol), trial.start.plan.size)[2]
        numbers = [leaf for leaf in jax.tree.leaves(noise) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        sizes.append(sum(float(jnp.linalg.norm(leaf)) for leaf in numbers))
    assert 0 < 1.99 * sizes[0] < sizes[1] < 2.01 * sizes[0], f"noise must follow noise_std, got sizes {sizes}"


def _require_scale(misfit: Callable[[float], float], limit: float, message: str) -> None:
    """Check that noise times 1 fits its stated distribution, and that noise times 2/3 or 3/2 does not."""
    assert misfit(1.0) < limit, message
    for scale in (2 / 3, 3 / 2):
        assert misfit(scale) > limit, "the noise has too few samples to reject another scale"


def covariance_misfit(path, other) -> float:
    """Return the largest difference between entries of two empirical covariances, in standard errors."""
    one, two = (z @ z.T / z.shape[1] for z in (path, other))
    variance = np.diag(two)
    error = np.sqrt(2 * (np.multiply.outer(variance, variance) + two**2) / path.shape[1])
    return float(np.max(np.abs(one - two) / error))


def aggregated(start: ReadyRun, mechanism: Any, seed: int) -> Any:
    """Return a run's noise in the aggregate with a mechanism, [rounds, numbers], or None if it has none."""
    noises = noise_path(*noise_arguments(start, mechanism, seed), start.plan.size)
    return None if noises is None else np.asarray(noises, np.float64)


def noise_arguments(start: ReadyRun, mechanism: Any, seed: int) -> tuple[Any, Any, Any, jax.Array]:
    """Return the arguments of `noise_path` before `size`, for a seed."""
    host_noise = replace(start, mechanism=mechanism).host_noise_of(start.protocol, seed, NUMBERS)
    return start.arguments.protocol, mechanism, host_noise, random_key(seed)


def noise_path(protocol: Any, mechanism: Any, host_noise: Any, key: jax.Array, size: Size) -> jax.Array | None:
    """Return the noise in the aggregate of `NUMBERS` coordinates, [rounds, numbers], or None if it has none."""
    keys = round_keys(key, np.arange(1, size.rounds + 1))
    _, drawn = mechanism.draw(mechanism.init(NUMBERS, key), mechanism.inputs, keys, NUMBERS)
    if drawn is None:
        return None

    def one_round(state, step):
        state, noise = protocol.noise(state, *step)
        return state, mechanism.aggregate(noise)

    return jax.lax.scan(one_round, protocol.rounds.noise_state(NUMBERS, size), (drawn, host_noise))[1]


def _stated_noise(trial: Trial) -> tuple[float, Any]:
    """Return the stated noise scale of one release in a single-round run, and samples of that noise.

    The scale follows from the event's μ. If no μ is stated, it is the noise of a trusted server, or of the noisiest
    message of all rounds.
    """
    start = trial.start
    sent = start.protocol.rounds.sent_noise(trial.problem, start.plan)
    if sent is not None and sent.covariance is not None:
        return float(start.protocol.noise_std), _whitened(trial, sent.covariance)
    plan = _first_round(start.plan)
    event = replace(start.protocol, adversary=None).event(trial.problem, plan)
    if event.mus is None:
        mechanism = start.protocol.mechanism(trial.problem, start.plan, trial.method)
        if privacy_of(start.protocol).trust in UNSEEN:
            stated = start.protocol.noise_std * privacy_of(start.protocol).server_noise(start.plan)
            return stated, aggregated(start, mechanism, 1)[0]
        rows = [unit_noise(start, mechanism, t) for t in range(start.plan.size.rounds)]
        if rows[0] is None:  # messages have no noise of their own: the mean of the first round's has it
            stated = start.protocol.noise_std / np.sqrt(start.plan.schedule.present[0].sum())
            return stated, aggregated(start, start.protocol.mechanism(trial.problem, start.plan, "auto"), 1)[0]
        noisiest = max((row for one in rows for row in one), key=np.std)
        return start.protocol.noise_std, start.protocol.noise_std * noisiest
    mechanism = start.protocol.mechanism(trial.problem, plan, trial.method)
    stated = event.sensitivity / event.mu
    if privacy_of(start.protocol).trust == "server":
        return stated, np.ravel(aggregated(replace(start, plan=plan), mechanism, 1))
    mus = event.mus.each[plan.schedule.participants[0]]
    worst = int(np.argmax(np.where(plan.schedule.present[0], mus, 0.0)))
    return stated, start.protocol.noise_std * unit_noise(start, mechanism, 0)[worst]


def _whitened(trial: Trial, covariance: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a first round's noise of messages along the axes of their covariance, divided by its deviations there."""
    start = trial.start
    schedule = start.plan.schedule
    present = schedule.present[0]
    rows = unit_noise(start, start.protocol.mechanism(trial.problem, start.plan, trial.method), 0)[present]
    stated = covariance(schedule.participants[0], schedule.scheduled[0])[np.ix_(present, present)]
    values, vectors = np.linalg.eigh(stated)
    noisy = values > ROUNDING * values.max()
    return float(start.protocol.noise_std) * (vectors.T @ rows)[noisy] / np.sqrt(values[noisy, None])


def unit_noise(start: ReadyRun, mechanism: Any, t: int) -> Any:
    """Return the noise of the messages in round t + 1 at `noise_std` = 1, [per_round, numbers], or None.

    Every participant's noise is that of its first message.
    """
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[t], mechanism.inputs)
    key = round_keys(random_key(1), np.arange(t + 1, t + 2))[0]
    memory = mechanism.message_memory(NUMBERS, random_key(1))
    added = mechanism.message_noise(memory, inputs, key, NUMBERS)[1]
    if added is None:
        return None
    protocol = replace(start.arguments.protocol, noise_std=np.ones((), np.float32))
    state = protocol.rounds.noise_state(NUMBERS, start.plan.size)
    noise = jax.vmap(lambda drawn: mechanism.aggregate(protocol.noise(state, drawn, None)[1]))(added)
    return np.asarray(noise, np.float64)


def _first_round(plan: Plan) -> Plan:
    schedule = plan.schedule
    of_slots = {"participants": schedule.participants, "filled": schedule.filled, "dropped": schedule.dropped}
    first = replace(schedule, **{name: None if rows is None else rows[:1] for name, rows in of_slots.items()})
    weights = None if plan.weights is None else plan.weights[:1]
    return replace(plan, schedule=first, samples=plan.samples[:1], weights=weights)


def guarantee_can_be_saved(trial: Trial) -> None:
    """Check that a run's guarantee prints its theorem, and is equal after saving and loading."""
    guarantee = trial.start.guarantee
    again = PrivacyGuarantee.from_json(guarantee.to_json())
    assert guarantee.private, "a run with noise must have a private guarantee"
    assert str(again) == str(guarantee), "a saved guarantee must print the same text"
    assert again.epsilon == guarantee.epsilon
    assert guarantee.terms.theorem in str(guarantee)


def target_is_met(trial: Trial) -> None:
    """Check that the calibrated noise meets a target μ and a target (ε, δ), and that more noise gives a smaller ε."""
    plan = trial.start.plan
    for target in TARGETS:
        calibrated, event = calibrate_and_check(trial.untargeted, trial.problem, plan, target)
        assert privacy_of(calibrated).target_is_claim or not exceeds(event, target), (
            f"the calibrated noise must meet the target {target}"
        )
        epsilon = event.epsilon(DELTA)
        assert 0 < epsilon < np.inf, f"the noise for {target} must guarantee a finite ε above 0, got {epsilon}"
        noisier = replace(calibrated, noise_std=2 * calibrated.noise_std).event(trial.problem, plan)
        assert noisier.epsilon(DELTA) < epsilon, "twice the noise must give a smaller ε"


def transcript_follows_the_run(trial: Trial) -> None:
    """Check that a transcript has the trajectory and plan of a run that samples separate noise for every message."""
    view = _view(trial)
    if view is None:
        return
    one, other = (ravel_pytree(params)[0] for params in (view.params, trial.run.params))
    close(one, other, 1e-5, "the transcript's point")
    public = published_plan(trial.start)
    np.testing.assert_array_equal(view.plan.schedule.participants, public.schedule.participants)
    np.testing.assert_array_equal(view.plan.samples, public.samples)
    seen = trial.rounds if adversary_of(trial.start.protocol).follows_rounds else 0
    assert view.queries.shape == (seen, trial.problem.dimension)


def view_fits_trust_model(trial: Trial) -> None:
    """Check that the adversary's view and the guarantee fit the trust model, and that messages have the claimed noise.

    Messages are visible with `trust="none"`, visible without their senders behind a shuffler, and hidden otherwise. An
    adversary other than the trust model's default must see what its class says.
    """
    trust = privacy_of(trial.start.protocol).trust
    assert trial.start.event.terms.trust == trust, f"the guarantee must have trust {trust!r}"
    view = _view(trial)
    if view is None:
        return
    seen = view.messages
    adversary = adversary_of(trial.start.protocol)
    if trust in UNSEEN or isinstance(adversary, ThirdParty | FinalModel):
        assert seen is None, f"the view of {adversary} must have no messages"
        return
    assert seen is not None, f"the view must have messages if trust is {trust!r}"
    sent = np.asarray(replay(trial.start.arguments, trial.start.plan.size)[1][1])
    _carries_its_noise(trial, sent[0])
    reduced = seen_of(trial.start.protocol).reduced
    if adversary.senders == NAMED:
        np.testing.assert_array_equal(seen, reduced(sent))
    elif adversary.senders == SUMMED:
        sums = reduced(sent.sum(axis=1, keepdims=True))
        assert seen.shape[0] == len(sums), f"{adversary} must see functions of every round's messages"
        if not adversary.knows_seeds:
            np.testing.assert_allclose(seen[:, :1], sums, rtol=1e-5, atol=1e-5 * np.abs(sent).max())
    else:
        _hides_senders(trial, sent)


def encoder_keeps_its_bound(trial: Trial) -> None:
    """Check that no encoded message is longer than `norm_bound` allows, for messages along one axis and dense ones.

    Before they are encoded, the messages have norm 1. A trusted server's noise is calibrated to the bound.
    """
    encoder = getattr(getattr(trial.protocol, "privacy", trial.protocol), "encoder", None)
    if encoder is None or privacy_of(trial.start.protocol).trust != "server":
        return
    dimension = costs_of(trial.protocol).message_dimension(trial.problem)
    bound, keys = float(encoder.norm_bound(1.0, dimension)), jax.random.split(random_key(0), ENCODED)
    messages = np.array(
        [np.eye(dimension)[0], np.ones(dimension), *np.random.default_rng(0).normal(size=(3, dimension))]
    )
    messages = (messages / np.linalg.norm(messages, axis=1, keepdims=True)).astype(np.float32)
    encoded = jax.vmap(jax.vmap(encoder.encode, (None, 0)), (0, None))(messages, keys)
    longest = np.linalg.norm(np.asarray(encoded, float), axis=-1).max()
    assert longest <= bound * (1 + ROUNDING), (
        f"encoded messages of norm 1 must have norm at most {bound:.4g}, got {longest:.4g}"
    )


def _hides_senders(trial: Trial, sent: np.ndarray) -> None:
    """Check that a shuffler's view is independent of the order of messages.

    The view is a set of messages, [rounds, per_round, d], or a sum, [rounds, d].
    """
    seen, queries = seen_of(trial.start.protocol), np.zeros((trial.rounds, 1))
    one, other = (seen.view(FullView(queries, messages, (), trial.seed)).messages for messages in (sent, sent[:, ::-1]))
    assert one is not None, "the view must have messages behind a shuffler"
    assert other is not None, "the view must have messages behind a shuffler"
    assert not np.array_equal(one, sent), "the order of messages must be hidden"
    if one.ndim == sent.ndim:
        one, other = np.sort(one, axis=1), np.sort(other, axis=1)
        np.testing.assert_array_equal(one, np.sort(sent, axis=1))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(one).max())


def _carries_its_noise(trial: Trial, sent: np.ndarray) -> None:
    """Check that the noise in the first round's messages, [per_round, d], has about the scale given by `noise_std`.

    The noise is the difference to the messages of the same run without noise, which starts at the same point.
    """
    start, mechanism = trial.start, trial.start.mechanism
    if isinstance(mechanism, Randomised):  # some messages are true
        return
    silent = replace(start.arguments.protocol, noise_std=np.zeros((), np.float32))
    clean = np.asarray(replay(start.arguments._replace(protocol=silent), start.plan.size)[1][1])[0]
    present = np.asarray(start.plan.schedule.present[0])
    noise = np.asarray(seen_of(start.arguments.protocol).decoded(jnp.asarray(sent - clean)[None])[0])[present]
    assert (np.abs(noise).max(axis=1) > 0).all(), "every message must have noise without a trusted server"
    unit = unit_noise(start, mechanism, 0)
    if unit is not None:  # None if the noise is inside local steps
        scaled = noise / (start.protocol.noise_std * unit.std(axis=1)[present, None])
        ratio, error = np.sqrt(np.mean(scaled**2)), 1 / np.sqrt(2 * scaled.size)
        least, most = max(0.1, 1 - 5 * error), 1 + 5 * error
        assert least < ratio < most, f"messages must have the claimed noise, got {ratio:.3g} times its scale"


def _view(trial: Trial) -> Transcript | None:
    """Return the transcript, or None if it is rejected because the noise cannot be materialised."""
    try:
        view = transcript(trial.protocol, trial.problem, trial.participation, rounds=trial.rounds, seed=trial.seed)
    except Refusal:
        if trial.method == "materialised":
            raise
        return None
    assert trial.method == "materialised", "transcript must raise Refusal if the noise cannot be materialised"
    return view
