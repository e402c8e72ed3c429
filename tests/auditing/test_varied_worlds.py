"""Audits with varying cohorts, with a quadratic canary, and with visible local steps."""

from dataclasses import replace

import numpy as np
import pytest
from audited import smaller
from faults.varied import (
    ALWAYS,
    DRIFT,
    DRIFT_UNCLIPPED,
    EVEN,
    LOCAL,
    NOISE_OF_THOSE_WHO_CAME,
    QUIET,
    QUIET_STEPS_UNSEEN,
    SERVER,
    UNEVEN,
    WALKS,
)
from restating import planted

from fedprivjax import DPMu2, Dropouts, Full, LocalSGD, NoisySGD, Refusal, StaleMomentum, Uniform
from fedprivjax.auditing import views
from fedprivjax.auditing.audit import audit
from fedprivjax.auditing.canaries import labels_of
from fedprivjax.auditing.federation import Federation
from fedprivjax.auditing.neighbouring import NotAllowed, records_used, small_federation, worlds
from fedprivjax.auditing.of_experiment import Chosen, scaled_down_audits
from fedprivjax.auditing.views import own_releases

slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def few(monkeypatch):
    smaller(monkeypatch, preparing=1024)


def refuted(protocol, federation, runs=1000, **options):
    return bool(audit(protocol, federation, runs=runs, **options).refuted)


# ---- planted faults


@pytest.mark.parametrize("name", [pytest.param("varying", marks=slow), "dropouts"])
def test_noise_by_the_realised_cohort_is_seen_if_cohorts_vary(name):
    assert refuted(planted(NoisySGD(**SERVER), NOISE_OF_THOSE_WHO_CAME), UNEVEN[name])


@slow
@pytest.mark.parametrize("name", ["varying", "dropouts"])
def test_right_noise_of_cohorts_that_vary_is_not_refuted(name):
    assert not refuted(NoisySGD(**SERVER), UNEVEN[name], runs=4000)


@slow
def test_noise_by_the_realised_cohort_is_not_seen_with_a_fixed_one():
    assert not refuted(planted(NoisySGD(**SERVER), NOISE_OF_THOSE_WHO_CAME), EVEN)


@slow
def test_a_drift_term_without_a_clip_is_seen_by_a_quadratic_canary():
    assert refuted(DRIFT_UNCLIPPED, ALWAYS)
    assert not refuted(DRIFT, ALWAYS)


@slow
def test_quiet_local_steps_are_seen():
    assert refuted(planted(LocalSGD(**LOCAL), QUIET), WALKS)


@slow
@pytest.mark.parametrize("federation", [WALKS, ALWAYS], ids=["sampled", "always"])
def test_right_local_steps_are_not_refuted(federation):
    found = audit(LocalSGD(**LOCAL), federation, runs=1000)
    assert not found.refuted
    assert found.epsilon_lower > 0


@slow
def test_a_drift_term_without_a_clip_is_not_seen_by_a_linear_canary():
    assert not refuted(DRIFT_UNCLIPPED, replace(ALWAYS, loss="linear"))


@slow
def test_quiet_local_steps_are_not_seen_in_end_points():
    assert not refuted(QUIET_STEPS_UNSEEN(**LOCAL), WALKS)


# ---- views


def test_an_empty_slot_shows_nothing_and_uses_no_record():
    federation = Federation(Dropouts(Uniform(4, 3), 0.5), rounds=6, records=6)
    start = worlds(LocalSGD(**LOCAL), federation, 0, delta=1e-5).start
    schedule = start.plan.schedule
    assert schedule.dropped.any()
    seen, columns = views._messages(start, np.arange(36.0).reshape(2, 6, 3, 1))
    np.testing.assert_array_equal(seen, np.arange(36.0).reshape(2, 6, 3)[:, schedule.present])
    assert [column.machine for column in columns] == schedule.participants[schedule.present].tolist()
    steps, of_steps = views._by_sender("local", start, np.arange(108.0).reshape(2, 6, 3, 3))
    assert steps.shape == (2, 3 * np.count_nonzero(schedule.present))
    assert own_releases((*columns, *of_steps), 0).sum() == 3 * sum(column.machine == 0 for column in columns)
    assert own_releases(tuple(columns), 0).sum() == sum(column.machine == 0 for column in columns)
    weights = views._secret_samples(start, np.random.default_rng(0), 5)[1]
    np.testing.assert_array_equal((weights > 0).any(axis=-1), np.broadcast_to(schedule.present, (5, 6, 3)))
    once = worlds(NoisySGD(mu=1.0, clip=1.0), federation, 0, delta=1e-5).start
    slots = once.plan.samples.reshape(once.plan.schedule.participants.shape)
    sent = once.plan.schedule.present & (once.plan.schedule.participants == 0)
    assert records_used(once, 0) == slots[sent].tolist()


def test_memory_of_a_chunk_counts_local_steps():
    start = worlds(LocalSGD(**LOCAL), WALKS, 0, delta=1e-5).start
    assert views.released_steps(start) == 3
    assert views.released_steps(worlds(NoisySGD(mu=1.0, clip=1.0), EVEN, 0, delta=1e-5).start) == 0


# ---- the quadratic canary


def test_a_quadratic_canary_is_clipped_alike_and_bends():
    start = worlds(DPMu2(mu=2.0, clip=0.5), Federation(Full(4), 8, 8, loss="quadratic"), 3, delta=1e-5).start
    problem = start.problem
    labels = labels_of(problem)
    assert labels[3] == -1
    size = float(problem.pool.features[0, 0])
    assert size * np.delete(labels, 3)[0] == pytest.approx(0.25)  # half of the clip
    loss = problem.model.loss
    far = float(start.protocol.step_scale * start.protocol.step_size * (1 + start.protocol.noise_std) * 8**2)
    slopes = [1 + loss.curvature * size * place for place in (-far, 0.0, far)]
    assert slopes == pytest.approx([0.75, 1.0, 1.25])
    assert problem.smoothness == pytest.approx(loss.curvature * size**2)


def test_a_quadratic_canary_needs_a_clip():
    with pytest.raises(Refusal, match=r"^loss must be 'linear' for a protocol without a clip, got 'quadratic'"):
        audit(DPMu2(mu=2.0), loss="quadratic")
    with pytest.raises(Refusal, match="unknown loss 'cubic'"):
        audit(DPMu2(mu=2.0, clip=1.0), loss="cubic")


# ---- audited participation schemes


def test_every_participation_that_a_method_allows_is_audited(monkeypatch):
    asked = []

    def watched(protocol, federation, **options):
        scheme = type(federation.participation).__name__
        asked.append((scheme, federation.loss, federation.rounds, options["runs"]))
        return scheme

    monkeypatch.setattr("fedprivjax.auditing.small_audits.audit", watched)

    def audits(protocol, **options):
        asked.clear()
        settings = {"runs": 20_000, "rounds": 12, "seed": 0, "folder": None}
        attack = scaled_down_audits(Chosen({"it": protocol}, 1e-5), **settings, **options)
        return attack("it", protocol, None), list(asked)

    dp_mu2 = DPMu2(mu=2.0, clip=1.0)
    found, ways = audits(dp_mu2)
    assert found == {"it": "Uniform", "it, varying": "Varying", "it, dropouts": "Dropouts"}
    short = ("quadratic", 4, 8000)
    assert ways == [("Uniform", "linear", 12, 20_000), ("Varying", *short), ("Dropouts", *short)]
    assert list(audits(StaleMomentum(mu=2.0, clip=1.0))[0]) == ["it", "it, varying"]
    assert audits(dp_mu2, participation=["dropouts"])[1] == [("Dropouts", "quadratic", 12, 20_000)]
    assert audits(dp_mu2, participation=["fixed"], loss="quadratic")[1] == [("Uniform", "quadratic", 12, 20_000)]
    assert {way[1] for way in audits(DPMu2(mu=2.0))[1]} == {"linear"}
    with pytest.raises(NotAllowed, match="dropouts must be left out with StaleMomentum"):
        audits(StaleMomentum(mu=2.0, clip=1.0), participation=["dropouts"])
    with pytest.raises(Refusal, match="unknown participation 'none'"):
        audits(dp_mu2, participation=["none"])


def test_small_federations_by_name():
    assert small_federation(DPMu2(mu=2.0, clip=1.0), participation="varying").participation.varies
    with pytest.raises(Refusal, match="unknown participation 'often'"):
        small_federation(DPMu2(mu=2.0, clip=1.0), participation="often")
