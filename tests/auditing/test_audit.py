"""Complete audits: rejected input, interruption and repetition, and tightness."""

import json
import tracemalloc
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import pytest
from audited import FEDERATION, SETTINGS, smaller
from faults.noise import scaled
from restating import planted

from fedprivjax import DPMu2, DPZero, NoisyMessages, NoisyMinibatchSGD, NoisyMomentum, Protocol, Refusal, Uniform
from fedprivjax.auditing import audit as audits
from fedprivjax.auditing import views
from fedprivjax.auditing.audit import VERDICT, Runs, _claim, audit, score_runs
from fedprivjax.auditing.bounds import lower_bounds
from fedprivjax.auditing.canary_search import prepared
from fedprivjax.auditing.federation import Federation
from fedprivjax.auditing.neighbouring import MACHINES, worlds
from fedprivjax.auditing.scores import Counting, best_linear
from fedprivjax.auditing.views import ViewOptions, observed
from fedprivjax.method.momentum import NormalisedSteps
from fedprivjax.method.small_form import scaled_down
from fedprivjax.privacy import gdp

PROTOCOL = DPMu2(mu=2.0, clip=1.0)


@pytest.fixture(autouse=True)
def few(request, monkeypatch):
    if not any(map(request.node.get_closest_marker, ("optimised", "timed"))):
        smaller(monkeypatch, preparing=1024)


def run(protocol=PROTOCOL, federation=FEDERATION, **options):
    return audit(protocol, federation, **({"runs": 1000} | options))


@pytest.fixture(scope="module")
def finished():
    with pytest.MonkeyPatch.context() as patch:
        smaller(patch, preparing=1024)
        return run()


def forgetful(part=0.5):
    """Return DP-μ²-FL that adds this part of the noise that it claims."""
    return planted(DPMu2(mu=2.0, clip=1.0), scaled(part))


# ---- results


def test_an_audit_stays_below_its_claim(finished):
    assert not finished.refuted
    assert 0 < finished.epsilon_lower < finished.guarantee.epsilon
    assert 0.5 < finished.best.bounds.mu_lower <= 2.0
    assert finished.attained == pytest.approx(2.0, rel=0.1)
    assert finished.tightness == finished.epsilon_lower / finished.guarantee.epsilon
    assert finished.best.name == "likelihood ratio"
    assert [found.bounds.runs for found in finished.found] == [(1000, 1000)] * 4 + [(500, 500)]


def test_the_text_names_the_federation_and_the_runs_on_each_dataset(finished):
    said = str(finished)
    assert f" at δ = {finished.guarantee.delta:g} on the audit's own small federation; proved at 95%: ε ≥ " in said
    assert ", by 1000 runs on each of two datasets; not refuted" in said


def test_no_score_is_tighter_than_the_likelihood_ratio_by_much(finished):
    best = finished.best.bounds.mu_lower
    assert all(found.bounds.mu_lower < best + 0.2 for found in finished.found)


def test_a_verdicts_error_is_divided_among_all_its_bounds(finished):
    """Five scores, each with a bound on ε and one on μ."""
    assert finished.verdict == VERDICT
    assert [found.strict.level for found in finished.found] == pytest.approx([VERDICT / 10] * 5)
    assert {found.bounds.level for found in finished.found} == {0.05}
    assert all(found.strict.mu_lower < found.bounds.mu_lower for found in finished.found)


def test_an_audit_can_be_saved(finished):
    saved = json.loads(json.dumps(finished.as_mapping(), allow_nan=False))
    assert saved["claimed"]["mu"] == pytest.approx(2.0)
    assert saved["scores"]["likelihood ratio"]["mu_lower"] == finished.best.bounds.mu_lower
    assert (saved["runs"], saved["refuted_by"]) == ([1000, 1000], [])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit(finished):
    assert run().found == finished.found
    assert run(seed=1).found != finished.found


@pytest.mark.slow
def test_half_the_noise_is_refuted():
    found = run(forgetful(), runs=2000)
    assert "likelihood ratio" in found.refuted
    assert found.best.strict.mu_lower > 2.0


@pytest.mark.slow
def test_a_tenth_less_of_the_noise_is_refuted_with_many_runs():
    assert run(forgetful(0.9), runs=40_000).refuted
    assert not run(runs=40_000).refuted


# ---- refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 999}, "runs must be at least 1000, got 999"),
        ({"delta": 0.0}, "delta must be .*, got 0.0"),
        ({"delta": 1.0}, "delta must be .*, got 1.0"),
        ({"verdict": 0.0}, "verdict must be .*, got 0.0"),
        ({"verdict": 2.0}, "verdict must be .*, got 2.0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"protocol": DPMu2(noise_std=0.0, clip=1.0)}, "DPMu2 must have a finite ε to be audited, got inf"),
    ],
)
def test_bad_input_is_refused(options, said):
    with pytest.raises(Refusal, match=f"^{said}$"):
        run(**options)


def test_a_canary_below_the_sensitivity_is_refused_with_its_ratio():
    """Its gradient is shorter than the clip."""
    with pytest.raises(Refusal, match=r"^canary must achieve at least 50% of the claimed sensitivity, ") as found:
        run(federation=Federation(**SETTINGS, canary=0.3))
    reached = float(str(found.value).split("got ")[1].split("%")[0]) / 100
    assert reached == pytest.approx(0.3, abs=0.03)
    assert "Use a longer canary, or fewer rounds and machines per round, as in Federation(" in str(found.value)


@pytest.mark.slow
def test_the_federation_of_that_refusal_shows_a_canary_of_random_directions_behind_correlated_noise():
    method = Protocol(DPZero(), privacy=NoisyMessages(clip=1.0, noise="toeplitz"), mu=2.0, step_size=0.1)
    with pytest.raises(Refusal, match=r"^canary must achieve at least 50%"):
        audit(method, runs=1000)
    assert not audit(method, Federation(Uniform(4, 1), rounds=1, records=12), runs=1000).refuted


@dataclass(frozen=True)
class Smooth(Federation):
    """The problem declares a smoothness that no record has. Without a clip it enters the sensitivity."""

    def problem(self, clip, split, canary, label):
        return replace(super().problem(clip, split, canary, label), own_smoothness=1e-3)


@pytest.mark.slow
def test_a_declared_smoothness_that_no_canary_shows_is_refused():
    """DP-μ² without a clip claims G + 2LD, and the canary achieves G: 1 of 1 + 2·1e-3·2000."""
    with pytest.raises(Refusal, match=r"got \d+% \(μ = 0\.\d+ of 2\)\. Use a longer canary") as found:
        run(DPMu2(mu=2.0), Smooth(**SETTINGS))
    reached = float(str(found.value).split("got ")[1].split("%")[0]) / 100
    assert reached == pytest.approx(1 / 5, abs=0.03)


@pytest.mark.slow
def test_a_canary_that_moves_nothing_is_refused():
    with pytest.raises(Refusal, match=r"^canary must change the adversary's view, and it does not"):
        run(federation=Federation(**SETTINGS, canary=0.0))


# ---- chunks


class Stopped(Exception):
    pass


def stop_after(runs):
    def progress(done, total):
        if done >= runs:
            raise Stopped

    return progress


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of the engine for scores."""
    calls = []

    def watched(*arguments):
        calls.append(arguments)
        return observed(*arguments)

    monkeypatch.setattr("fedprivjax.auditing.audit.observed", watched)
    return calls


def test_a_stopped_audit_resumes(tmp_path, finished, counted):
    with pytest.raises(Stopped):
        run(folder=tmp_path, progress=stop_after(1))
    assert len(counted) == 2
    seen = []
    assert run(folder=tmp_path, progress=lambda *done: seen.append(done)).found == finished.found
    assert len(counted) == 4
    assert seen == [(500, 1000), (1000, 1000)]
    assert run(folder=tmp_path).found == finished.found
    assert len(counted) == 4
    assert not list(tmp_path.glob("*.part*"))
    damaged = sorted(tmp_path.glob("*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.warns(UserWarning, match=f"^chunk {damaged} is damaged: it is computed again$"):
        assert run(folder=tmp_path).found == finished.found
    assert len(counted) == 6


@pytest.mark.slow
def test_chunks_change_nothing(monkeypatch, finished):
    """With public samples, a run's noise follows from its number."""
    pair, law, options = prepared(PROTOCOL, FEDERATION, 1e-5, 0, ())
    counting = Counting(1e-5, 1000, 0.05)
    scores = best_linear(law, counting, 2.0)[:1]
    whole = score_runs(Runs(pair, options, 0), law, scores, counting)
    monkeypatch.setattr(views, "MOST", 200)
    parts = score_runs(Runs(pair, options, 0), law, scores, counting)
    for (one, numbers), (other, others) in zip(whole, parts, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(numbers, others, rtol=1e-3, atol=1e-3)


def claimed(folder, protocol=PROTOCOL, federation=FEDERATION, runs=1000, delta=1e-5, seed=0, public=()):
    """Claim a folder, as an audit does before its first run."""
    pair = worlds(protocol, federation, 0, delta=delta)
    _claim(Runs(pair, ViewOptions(public), seed, folder), Counting(delta, runs, 0.05))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"runs": 1001},
        {"delta": 1e-6},
        {"public": ("clipped_share",)},
        {"protocol": DPMu2(mu=2.0001, clip=1.0)},
        {"protocol": forgetful()},
        {"federation": Federation(**SETTINGS, canary=50.0)},
    ],
    ids=["seed", "runs", "delta", "public", "fourth digit", "another protocol", "canary"],
)
def test_another_audits_folder_is_refused(tmp_path, other):
    claimed(tmp_path)
    claimed(tmp_path)
    with pytest.raises(Refusal, match=r"^folder must be empty or of the same audit and code, got "):
        claimed(tmp_path, **other)


def test_a_folder_of_other_code_is_refused(tmp_path, monkeypatch):
    claimed(tmp_path)
    monkeypatch.setattr(audits, "code_version", lambda: "another")
    with pytest.raises(Refusal, match=r"^folder must be empty or of the same audit and code, got "):
        claimed(tmp_path)


@pytest.mark.slow
def test_memory_does_not_grow_with_runs_but_for_their_scores():
    pair, law, options = prepared(PROTOCOL, FEDERATION, 1e-5, 0, ())

    def peak(runs):
        counting = Counting(1e-5, runs, 0.05)
        scores = best_linear(law, counting, 2.0)[:1]
        tracemalloc.start()
        try:
            score_runs(Runs(pair, options, 0), law, scores, counting)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1024)
    few, many = 1024, 8192
    views_of_all = 2 * many * len(law.columns) * 8
    assert peak(many) - peak(few) < 0.5 * views_of_all


# ---- scaled-down protocols


def test_scaled_down_protocols_keep_their_guarantee_and_lose_their_sizes():
    large = NoisyMinibatchSGD(epsilon=(1.0, 2.0), clip=0.7, batch=600, sampler="poisson")
    small = scaled_down(large, MACHINES)
    assert (small.epsilon, small.batch, small.clip, small.sampler) == (1.0, 3, 0.7, "poisson")
    assert scaled_down(PROTOCOL, MACHINES) == PROTOCOL
    privacy = NoisyMomentum(clip=0.7, batch=(50, 20), trust="none", relative_privacy=(1.0, 3.0))
    pair = Protocol(NormalisedSteps(alpha=0.01), privacy=privacy, mu=1.0, step_size=0.1)
    small = scaled_down(pair, 3)
    assert (small.algorithm.alpha, small.privacy.batch, small.privacy.clip) == (0.25, 3, 0.7)
    assert small.privacy.relative_privacy == (3.0, 2.0, 1.0)


# ---- tightness and speed

DELTA, KEYS, EACH = 1e-5, 6, 50_000


def tightness(epsilon):
    """Return medians over keys of each bound's fraction of ε. The runs of all keys share one preparation."""
    mu = float(gdp.mu(epsilon, DELTA))
    pair, law, options = prepared(DPMu2(mu=mu, clip=1.0), Federation(Uniform(4, 2), 8, 12, dimension=4), DELTA, 0, ())
    score = best_linear(law, Counting(DELTA, EACH, 0.05), mu)[0]
    numbers = score_runs(Runs(pair, options, 0), law, [score], Counting(DELTA, KEYS * EACH, 0.05))[0][1]
    keys = zip(*(np.split(world, KEYS) for world in numbers), strict=True)
    bounds = [lower_bounds(*worlds, score.threshold, score.middle, DELTA) for worlds in keys]
    claimed = pair.start.guarantee.epsilon
    return np.median([(one.epsilon_lower / claimed, one.gdp_epsilon_lower / claimed) for one in bounds], axis=0)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.47), (2.0, 0.54), (4.0, 0.56)])
def test_tight_on_gaussian_protocols(epsilon, least):
    by_epsilon, by_mu = tightness(epsilon)
    assert least <= by_epsilon <= 1
    assert 0.85 <= by_mu <= 1


@pytest.mark.slow
@pytest.mark.timed
def test_a_hundred_thousand_runs_of_fifty_rounds_are_quick():
    """Takes 15 s on two idle cores. The limit allows for a busy machine."""
    begin = perf_counter()
    found = audit(PROTOCOL, Federation(Uniform(4, 2), 50, 50), runs=50_000)
    assert perf_counter() - begin < 60
    assert found.best.bounds.runs == (50_000, 50_000)
    assert not found.refuted
