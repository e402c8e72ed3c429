"""Views of the adversary of an audit: they show the canary as the trust model allows, and nothing else."""

from collections import Counter
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest
from audited import CHUNK, FEDERATION, SETTINGS
from cases import sparing
from scipy.stats import binom, chisquare

from fedprivjax import DPMu2, Full, NoisyMinibatchSGD, NoisySGD, Refusal, UserSGD
from fedprivjax.auditing import views
from fedprivjax.auditing.canaries import AXES
from fedprivjax.auditing.federation import Federation
from fedprivjax.auditing.neighbouring import Worlds, worlds
from fedprivjax.auditing.views import NOBODY, ViewOptions, chunk_of, different, observed

RUNS, CLIP = CHUNK, 0.3
PROTOCOLS = {
    "none": DPMu2(mu=2.0, clip=CLIP),
    "sgd": NoisySGD(mu=2.0, clip=CLIP, step_size=0.01),
    "server": DPMu2(mu=2.0, clip=CLIP, trust="server"),
    "sampled": NoisyMinibatchSGD(epsilon=4.0, clip=CLIP, batch=3, sampler="poisson"),
    "shuffler": NoisyMinibatchSGD(epsilon=1.0, clip=CLIP, batch=1, sampler="replacement", trust="shuffler"),
    "pan-private": UserSGD(epsilon=4.0, trust="pan-private"),
    "bits": UserSGD(epsilon=4.0, trust="shuffler"),
}
QUICK = ("none", "server")


class Watched(NamedTuple):
    pair: Worlds
    null: list
    other: list


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(views, "MOST", RUNS)


@cache
def watched(name):
    """Return the views of both neighbouring datasets, with equal noise."""
    records = 24 if name == "shuffler" else 12
    pair = worlds(PROTOCOLS[name], Federation(**(SETTINGS | {"records": records})), 0, delta=1e-5)
    return Watched(pair, *(observed(start, 5, 0, ViewOptions()) for start in pair.starts))


def kinds(seen):
    return Counter(column.kind for column in seen.columns)


def moved(seen):
    """Return the change of each column by the canary with equal noise, [runs, columns], along each axis."""
    return [other.values - null.values for null, other in zip(seen.null, seen.other, strict=True)]


@pytest.mark.parametrize("name", sparing(PROTOCOLS, QUICK))
def test_views_are_noise_alone_but_for_the_canarys_axis(name):
    seen = watched(name)
    along, *elsewhere = moved(seen)
    assert np.abs(along).max() > 0.01
    for axis, away in enumerate(elsewhere, start=1):
        noise = seen.null[axis].values
        spread = noise.std(axis=0)
        np.testing.assert_allclose(away, 0.0, atol=1e-5 * spread.max())
        centred = np.array([column.kind == "step" or name != "shuffler" for column in seen.null[0].columns])
        assert (np.abs(noise.mean(axis=0)) <= 5 * spread / np.sqrt(RUNS))[centred].all()
        assert (spread == 0).sum() <= 1  # if the reported point is the last query


@pytest.mark.parametrize("name", ["none", pytest.param("sgd", marks=pytest.mark.slow)])
def test_worlds_lie_on_either_side_of_noise(name):
    seen = watched(name)
    middle = (seen.null[0].values + seen.other[0].values) / 2
    assert (np.abs(middle.mean(axis=0)) <= 5 * middle.std(axis=0) / np.sqrt(RUNS)).all()
    np.testing.assert_allclose(middle.std(axis=0), seen.null[1].values.std(axis=0), rtol=0.2)


def test_an_untrusted_server_sees_every_message_and_whose_it_is():
    seen = watched("none").null[0]
    assert kinds(seen) == {"step": 9, "message": 16}
    who = [column.machine for column in seen.columns if column.kind == "message"]
    assert who == watched("none").pair.start.plan.schedule.participants.ravel().tolist()
    assert [column.round for column in seen.columns if column.kind == "message"] == np.repeat(range(1, 9), 2).tolist()


def test_a_trusted_server_shows_no_message():
    assert kinds(watched("server").null[0]) == {"step": 9}


@pytest.mark.slow
def test_the_server_steps_by_the_messages():
    """A step of SGD is the mean of its round's messages times the step size."""
    pair = worlds(PROTOCOLS["sgd"], FEDERATION, 0, delta=1e-5)
    found = observed(pair.start, 5, 0, ViewOptions())[0]
    messages = np.array([column.kind == "message" for column in found.columns])
    sums = found.values[:, messages].reshape(-1, 8, 2).sum(axis=2)
    steps = found.values[:, :8]
    np.testing.assert_allclose(steps, -0.005 * sums, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_shuffler_hides_the_order():
    seen = watched("shuffler").null[0]
    assert {column.machine for column in seen.columns} == {NOBODY}
    messages = np.array([column.kind == "message" for column in seen.columns])
    rows = seen.values[:, messages].reshape(RUNS, SETTINGS["rounds"], -1)
    assert rows.shape[2] == 2
    assert (np.diff(rows, axis=2) >= 0).all()


@pytest.mark.slow
def test_a_shuffler_of_bits_shows_a_rounds_sum():
    seen = watched("bits").null[0]
    messages = np.array([column.kind == "message" for column in seen.columns])
    assert messages.sum() == SETTINGS["rounds"]
    assert {column.machine for column in seen.columns} == {NOBODY}


@pytest.mark.slow
def test_an_intruder_sees_the_memory_and_no_message():
    found = kinds(watched("pan-private").null[0])
    assert set(found) == {"step", "memory"}
    assert found["memory"] % SETTINGS["rounds"] == 0


def test_the_views_steps_are_those_of_a_run():
    """Query points of the first run, from its key."""
    pair = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5)
    start = pair.starts[1]
    arguments = start.arguments._replace(key=jax.random.fold_in(jax.random.key(5), 0))
    _, (queries, sent, _, info, _) = views.replay(arguments, start.plan.size)
    for axis in range(AXES):
        found = observed(start, 5, 0, ViewOptions(("message_norm",)))[axis].values[0]
        np.testing.assert_allclose(found[:7], np.diff(queries[:, axis]), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found[9:25], np.asarray(sent)[..., axis].ravel(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found[25:], info["message_norm"], rtol=1e-5)


# ---- secret samples


def test_secret_samples_are_resampled_with_the_samplers_distribution():
    """The number of the canary's occurrences follows from the change of its machine's messages."""
    seen = watched("sampled")
    own = np.array([c.kind == "message" and c.machine == seen.pair.machine for c in seen.null[0].columns])
    found = moved(seen)[0][:, own]
    occurs = found > 1e-3 * found.max()
    mixture = seen.pair.start.event.mixture(seen.pair.machine)
    assert mixture.releases == own.sum()
    chance = float(mixture.chances.sum())
    assert chance == pytest.approx(3 / 12)
    low, high = binom.interval(1 - 1e-4, occurs.size, chance)
    assert low <= occurs.sum() <= high
    together = np.bincount(occurs.sum(axis=1), minlength=own.sum() + 1)
    expected = RUNS * binom.pmf(np.arange(own.sum() + 1), own.sum(), chance)
    enough = expected > 5
    assert chisquare(together[enough], expected[enough] * together[enough].sum() / expected[enough].sum()).pvalue > 1e-4
    np.testing.assert_allclose(found[occurs], np.median(found[occurs]), rtol=1e-3)  # the canary occurs at most once


@pytest.mark.parametrize("sampler", ["subset", "replacement", "poisson"])
def test_secret_samples_are_a_machines_own_and_as_many_as_a_plans(sampler):
    protocol = NoisyMinibatchSGD(epsilon=2.0, clip=CLIP, batch=3, sampler=sampler)
    start = worlds(protocol, FEDERATION, 0, delta=1e-5).start
    samples, weights = views._secret_samples(start, np.random.default_rng(3), 400)
    rows, participants = np.asarray(start.problem.partition_table.rows), start.plan.schedule.participants
    used = np.asarray(weights) > 0
    for t, j in np.ndindex(participants.shape):
        drawn = samples[:, t, j][used[:, t, j]]
        assert set(drawn.tolist()) == set(rows[participants[t, j]].tolist())
        counts = np.bincount(drawn, minlength=48)[rows[participants[t, j]]]
        assert chisquare(counts).pvalue > 1e-6
    distinct = np.array([len(set(row[kept])) for row, kept in zip(samples[:, 0, 0], used[:, 0, 0], strict=True)])
    assert {"subset": (distinct == 3).all(), "replacement": distinct.max() == 3, "poisson": distinct.max() > 3}[sampler]
    sums = weights.sum(axis=3)
    assert (sums == sums[0, 0, 0]).all() == (sampler != "poisson")
    fresh = views._secret_samples(start, np.random.default_rng(3), 400)[0]
    np.testing.assert_array_equal(fresh, samples)


def test_public_samples_are_the_plans():
    start = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5).start
    assert views._secret_samples(start, np.random.default_rng(3), 4) == (None, None)


# ---- additional published values, and programs


def test_released_scalars_and_the_schedule_are_seen_on_request():
    start = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5).start
    found = observed(start, 5, 0, ViewOptions(("clipped_share",), schedule=True))[0]
    assert kinds(found) == {"step": 9, "message": 16, "released": 8, "participant": 16}
    np.testing.assert_array_equal(found.values[0, -16:], start.plan.schedule.participants.ravel())
    with pytest.raises(Refusal, match=r"^unknown public 'clipped', did you mean 'clipped_share'"):
        observed(start, 5, 0, ViewOptions(("clipped",)))


def test_runs_follow_from_their_seed_and_number():
    start = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5).start
    first, again, later, others = (
        observed(start, seed, begin, ViewOptions())[0].values for seed, begin in ((5, 0), (5, 0), (5, 100), (6, 0))
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[100:], later[:-100])
    assert (first != others).mean() > 0.99


def test_the_schedule_is_alike_unless_it_depends_on_data():
    pair = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5)
    assert not different(pair)
    other = worlds(PROTOCOLS["none"], Federation(Full(4), 8, 12), 0, delta=1e-5)
    assert different(Worlds((pair.start, other.start), 0, 0))


def test_new_numbers_do_not_recompile():
    def run(protocol, canary):
        pair = worlds(protocol, FEDERATION, canary, delta=1e-5)
        return [observed(start, canary, 100, ViewOptions()) for start in pair.starts]

    run(PROTOCOLS["none"], 0)
    compiled = views._raw._cache_size()
    run(DPMu2(mu=0.7, clip=2.0, step_scale=0.5), 3)
    assert views._raw._cache_size() <= compiled


@pytest.mark.slow
def test_chunks_shrink_with_what_a_run_sends(monkeypatch):
    start = worlds(PROTOCOLS["none"], FEDERATION, 0, delta=1e-5).start
    one = 8 * (2 + 2) * 16
    assert chunk_of(start) == views.MOST
    for floats, runs in ((300 * one, 300), (one, views.FEWEST)):
        monkeypatch.setattr(views, "CHUNK_FLOATS", floats)
        assert chunk_of(start) == runs
    assert observed(start, 5, 0, ViewOptions())[0].values.shape == (views.FEWEST, 25)
