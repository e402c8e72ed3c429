from math import inf, nan

import numpy as np
import pytest

from fedprivjax import Refusal, Target
from fedprivjax.privacy import gdp

REFUSALS = {
    "none": ({}, r"^one of epsilon, mu and noise_std must be given, got none\. Set"),
    "delta alone": ({"delta": 1e-5}, r"^one of epsilon, mu and noise_std must be given"),
    "two": (
        {"mu": 1.0, "epsilon": 2.0},
        r"^mu or epsilon must be given, not both, got mu = 1\.0 and epsilon = 2\.0\. Leave one out: mu is a GDP ",
    ),
    "noise too": ({"epsilon": 1.0, "noise_std": 0.0}, r"^epsilon or noise_std must be given, not both"),
    "mu": ({"mu": 0.0}, r"^mu must be positive, got 0\.0$"),
    "mu NaN": ({"mu": nan}, r"^mu must be positive, got nan$"),
    "epsilon": ({"epsilon": -1.0}, r"^epsilon must be positive, got -1\.0$"),
    "one of them": ({"epsilon": (1.0, 0.0)}, r"^epsilon must be positive, got 0\.0$"),
    "noise": ({"noise_std": -0.1}, r"^noise_std must be finite and not negative, got -0\.1$"),
    "infinite noise": ({"noise_std": inf}, r"^noise_std must be finite and not negative, got inf$"),
    "NaN noise": ({"noise_std": nan}, r"^noise_std must be finite and not negative, got nan$"),
    "no number": ({"noise_std": "much"}, r"^noise_std must be"),
    "delta": ({"mu": 1.0, "delta": 0.0}, r"^delta must be"),
    "large delta": ({"mu": 1.0, "delta": 1.0}, r"^delta must be"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    settings, message = REFUSALS[name]
    with pytest.raises(Refusal, match=message):
        Target(**settings)


@pytest.mark.parametrize("settings", [{"mu": inf}, {"epsilon": inf}, {"epsilon": (inf, inf)}, {"noise_std": 0.0}])
def test_without_noise(settings):
    target = Target(**settings, delta=1e-5)
    assert target.non_private
    assert target.largest_mu == target.worst_epsilon == inf


@pytest.mark.parametrize("settings", [{"mu": 2.0}, {"epsilon": 3.0}, {"epsilon": (inf, 1.0)}, {"noise_std": 0.1}])
def test_with_noise(settings):
    assert not Target(**settings, delta=1e-5).non_private


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_mu_and_epsilon_are_one_target(mu, delta):
    by_mu = Target(mu=mu, delta=delta)
    epsilon = float(gdp.epsilon(mu, delta))
    by_epsilon = Target(epsilon=epsilon, delta=delta)
    assert by_mu.worst_epsilon == by_epsilon.worst_epsilon == epsilon
    assert by_mu.largest_mu == mu
    assert by_epsilon.largest_mu == pytest.approx(mu, rel=1e-6)


def test_of_several_epsilons_the_worst_is_allowed_and_the_least_is_kept():
    target = Target(epsilon=(2.0, 1.0, 4.0), delta=1e-5)
    assert target.worst_epsilon == 4.0
    assert target.largest_mu == pytest.approx(float(gdp.mu(1.0, 1e-5)))
    assert Target(epsilon=np.array([2.0, 1.0]), delta=1e-5).worst_epsilon == 2.0


def test_a_given_noise_asks_for_nothing():
    target = Target(noise_std=3.0)
    assert target.worst_epsilon == target.largest_mu == inf


@pytest.mark.parametrize("ask", [lambda t: t.stated_delta, lambda t: t.largest_mu])
def test_epsilon_needs_a_delta(ask):
    with pytest.raises(Refusal, match=r"^delta must be given with epsilon$"):
        ask(Target(epsilon=1.0))
    assert ask(Target(epsilon=1.0, delta=1e-5)) > 0


def test_in_words():
    targets = [Target(mu=0.5), Target(epsilon=(1.0, 2.0), delta=1e-5), Target(noise_std=0.25)]
    assert list(map(str, targets)) == ["μ = 0.5", "ε from 1 to 2 at δ = 1e-05", "noise_std = 0.25"]
    assert str(Target(epsilon=(2.0, 2.0), delta=1e-5)) == "ε = 2 at δ = 1e-05"
    assert str(Target(epsilon=1.0)) == "ε = 1"
