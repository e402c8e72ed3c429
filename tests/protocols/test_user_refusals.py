"""Invalid settings of methods on users raise Refusal, with a one-line message, before compilation."""

from dataclasses import replace

import numpy as np
import pytest
from cases import unit_rows

from fedprivjax import (
    Absolute,
    Balanced,
    Ball,
    Huber,
    OnePass,
    Refusal,
    Squared,
    UserAGD,
    UserSGD,
    linear_problem,
    transcript,
)
from fedprivjax.engine import simulate
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.transcript import replay

DELTA, USERS, PER_ROUND, FEATURES = 1e-3, 12, 4, 3
X = unit_rows(np.random.default_rng(2), USERS, FEATURES)
Y = np.random.default_rng(3).normal(size=USERS).astype(np.float32)
KNOWN = {"feature_bound": 1.0 + 1e-6, "constraint": Ball(1.0)}
OWN = linear_problem(X[:, None], Y[:, None], Huber(0.5), **KNOWN)
POOL = linear_problem(np.tile(X, (6, 1)), np.tile(Y, 6), Huber(0.5), **KNOWN)
PASS = OnePass(USERS, PER_ROUND)


@pytest.fixture
def _nothing_compiled(monkeypatch):
    before = simulate.run_program._cache_size(), replay._cache_size()
    yield
    assert simulate.run_program._cache_size() <= before[0]
    assert replay._cache_size() <= before[1]


def begin(settings, problem=POOL, participation=PASS, rounds=3, method=UserSGD, **options):
    protocol = method(**{"step_size": 0.1, **settings})
    return ready(protocol, problem, participation, rounds=rounds, delta=DELTA, **options)


WEIGHTED = replace(OWN, machine_weights=(1 / USERS,) * USERS)
KINKED = linear_problem(X, Y, Absolute(), **KNOWN)
BOUNDLESS = linear_problem(X, Y, Squared(), feature_bound=1.0 + 1e-6)
SMOOTH_SPACE = linear_problem(X, Y, Huber(0.5), feature_bound=1.0 + 1e-6)
REFUSED = [
    ({"epsilon": 1.0, "noise_std": 1.0}, {}, "epsilon or noise_std must be given, not both, got epsilon = 1.0 and"),
    ({"noise_std": 1.0, "trust": "nobody"}, {}, "unknown trust 'nobody'"),
    ({"noise_std": 1.0, "rounding": "upwards"}, {}, "unknown rounding 'upwards'"),
    ({"noise_std": 1.0, "accounting": "lax"}, {}, "unknown accounting 'lax'"),
    *(
        ({"noise_std": 1.0, "trust": "none", name: value}, {}, f"{name} must go with trust = 'shuffler', got trust")
        for name, value in {"levels": 8, "rounding": "coupled", "accounting": "paper", "honest": 0.5}.items()
    ),
    *(({"noise_std": 1.0, "honest": h}, {}, f"honest must be above 0 and at most 1, got {h}") for h in (0.0, -1, 1.5)),
    ({"noise_std": 1.0, "honest": "most"}, {}, "honest must be a number, got 'most'"),
    ({"noise_std": 1.0, "honest": float("nan")}, {}, "honest must be above 0 and at most 1, got nan"),
    ({"noise_std": 1.0, "honest": 0.1}, {}, "honest must leave at least one user in a round, got 0.1"),
    ({"noise_std": 1.0, "levels": 0}, {}, "levels must be at least 1, got 0"),
    ({"noise_std": 0.001, "levels": 2**29}, {}, "users × levels must be below 2³¹, got 4 × 536870912"),
    ({"noise_std": -1.0}, {}, "noise_std must be finite and not negative, got -1.0"),
    ({"epsilon": -1.0}, {}, "epsilon must be positive, got -1.0"),
    ({"epsilon": 1.0, "clip": 0.0}, {}, "clip must be positive, got 0.0"),
    ({}, {}, "one of epsilon, mu and noise_std must be given"),
    ({"epsilon": 1.0}, {"problem": BOUNDLESS}, "clip must be set, because the loss has no finite gradient bound"),
    ({"noise_std": 1.0}, {"problem": BOUNDLESS}, "clip must be set, because the loss has no finite gradient bound"),
    (
        {"noise_std": 1.0, "step_size": None},
        {"problem": SMOOTH_SPACE},
        "step_size must be set: its default needs a ball",
    ),
    ({"noise_std": 1.0}, {"problem": WEIGHTED}, "machine_weights must not be set"),
    ({"noise_std": 1.0}, {"noise_method": "covariance"}, "unknown noise method 'covariance'"),
    ({"noise_std": 1.0, "trust": "server"}, {"noise_method": "normal"}, "unknown noise method 'normal'"),
    ({"noise_std": 1.0}, {"rounds": 4}, "rounds must be at most 3 for one pass over the machines, got 4"),
]
AGD_REFUSED = [
    ({"noise_std": 1.0, "step_size": None}, {"problem": KINKED}, "step_size must be set, or the loss smoothed"),
    ({"noise_std": 1.0, "step_size": None}, {"problem": SMOOTH_SPACE}, "distance must be given, or a ball"),
    ({"noise_std": 1.0, "strong_convexity": -0.1}, {}, "strong_convexity must be"),
    ({"noise_std": 1.0, "spread": "wide"}, {}, "unknown spread 'wide'"),
    ({"noise_std": 1.0, "variance": 0.0}, {}, "variance must be positive, got 0.0"),
    (
        {"noise_std": 1.0, "strong_convexity": 0.1},
        {"participation": OnePass(72, 36), "rounds": 2},
        "rounds must be at least 3, one for each phase, got 2",
    ),
]
ALL_REFUSED = [(UserSGD, *one) for one in REFUSED] + [(UserAGD, *one) for one in AGD_REFUSED]


@pytest.mark.usefixtures("_nothing_compiled")
@pytest.mark.parametrize(("method", "settings", "options", "says"), ALL_REFUSED)
def test_refused_in_one_line(method, settings, options, says):
    with pytest.raises(Refusal) as refusal:
        begin(settings, method=method, **options)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("_nothing_compiled")
def test_a_cohort_larger_than_the_federation_is_refused():
    with pytest.raises(Refusal, match=r"^per_round must be at most machines \(12\), got 13$"):
        OnePass(12, 13)
    with pytest.raises(Refusal, match=r"^per_round must be at most machines \(12\), got 13$"):
        Balanced(12, 13)


@pytest.mark.usefixtures("_nothing_compiled")
def test_more_trials_than_can_be_drawn_one_by_one_are_refused_for_a_transcript():
    many = UserSGD(noise_std=20.0, step_size=0.1)
    assert begin({"noise_std": 20.0}).protocol.vector_sum.trials > 10**6
    with pytest.raises(Refusal, match=r"^trials must be at most 1e\+06 to be drawn in float32, got \d+"):
        transcript(many, POOL, PASS, rounds=3)
