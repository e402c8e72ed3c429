"""Properties of privacy: the target is met, the guarantee can be saved, the adversary's view fits the trust model."""

from dataclasses import replace

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.published import published_plan
from fedprivjax.engine.transcript import Transcript, replay, transcript
from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.method.views import UNSEEN, FullView
from fedprivjax.noise import Randomised
from fedprivjax.privacy.calibration import calibrate_and_check, exceeds
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.of_protocol import privacy_of
from fedprivjax.privacy.target import Target
from fedprivjax.problem.random_keys import random_key
from fedprivjax.testing.noise import unit_noise
from fedprivjax.testing.trial import Trial, close

DELTA = 1e-5
ENCODED = 200  # encodings of each message
ROUNDING = 1e-5  # of a norm, in float32
TARGETS = Target(mu=1.0, delta=DELTA), Target(epsilon=2.0, delta=DELTA)


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
    """Check that the transcript follows the same trajectory as a run with materialised noise, and has its plan."""
    view = _view(trial)
    if view is None:
        return
    close(view.params, trial.run.params, 1e-5, "the transcript's point")
    public = published_plan(trial.start)
    np.testing.assert_array_equal(view.plan.schedule.participants, public.schedule.participants)
    np.testing.assert_array_equal(view.plan.samples, public.samples)
    assert view.queries.shape == (trial.rounds, trial.problem.dimension)


def view_fits_trust_model(trial: Trial) -> None:
    """Check that the adversary's view and the guarantee fit the trust model, and that messages have the claimed noise.

    Messages are visible with `trust="none"`, visible without their senders behind a shuffler, and hidden otherwise.
    """
    trust = privacy_of(trial.start.protocol).trust
    assert trial.start.event.terms.trust == trust, f"the guarantee must have trust {trust!r}"
    view = _view(trial)
    if view is None:
        return
    seen = view.messages
    if trust in UNSEEN:
        assert seen is None, "the view must have no messages with a trusted server"
        return
    assert seen is not None, f"the view must have messages if trust is {trust!r}"
    sent = np.asarray(replay(trial.start.arguments, trial.start.plan.size)[1][1])
    _carries_its_noise(trial, sent[0])
    if trust == "none":
        np.testing.assert_array_equal(seen, sent)
    if trust == "shuffler":
        _hides_senders(trial, sent)


def encoder_keeps_its_bound(trial: Trial) -> None:
    """Check that no encoded message is longer than `norm_bound` allows, for messages along one axis and dense ones.

    A trusted server's noise covers this bound. Messages have norm 1.
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
    noise = (sent - clean)[present]
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
