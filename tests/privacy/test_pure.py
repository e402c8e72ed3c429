"""Pure events: exact composition against all outcomes and dp-accounting, refusals, and the limits of many messages."""

from decimal import Decimal, localcontext
from itertools import product
from math import comb, exp, inf, prod

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from fedprivjax import Grouped, PureEvent, Refusal, Terms
from fedprivjax.privacy.pure import composed_epsilon

TERMS = Terms("none", "randomised response")
SETTINGS = [(0.1, 100), (0.5, 20), (1.0, 3), (3.0, 5), (0.05, 200)]


@pytest.mark.parametrize(("level", "count", "delta"), [(1.0, 1, 1e-3), (0.3, 6, 1e-2), (2.0, 4, 1e-5), (0.05, 8, 0.01)])
def test_epsilon_is_that_of_all_outcomes_of_randomised_responses(level, count, delta):
    true = 1 / (1 + exp(-level))

    def outcomes(bit):
        return np.array(
            [prod(true if one == bit else 1 - true for one in row) for row in product((0, 1), repeat=count)]
        )

    def beyond(epsilon):
        return np.maximum(outcomes(0) - np.exp(epsilon) * outcomes(1), 0).sum() - delta

    exact = 0.0 if beyond(0.0) <= 0 else brentq(beyond, 0, count * level, xtol=1e-12)
    assert composed_epsilon(level, count, delta) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(("level", "count"), SETTINGS)
def test_epsilon_agrees_with_dp_accounting(level, count):
    event = PureEvent(1 / level, Grouped.of([count, 1, 0]), TERMS)
    (other,) = event.accountant_results(1e-5)
    assert event.epsilon(1e-5) == pytest.approx(other.epsilon, rel=1e-2)
    assert event.epsilon(1e-5) <= other.epsilon * (1 + 1e-6)
    assert event.epsilon(1e-5) <= count * level


@pytest.mark.parametrize(("level", "count", "delta"), [(1.0, 3000, 1e-5), (0.01, 20_000, 1e-10)])
def test_many_messages_compose_exactly(level, count, delta):
    """δ at the found ε is the target, with the losses (k − 2m)·ε₀ of randomised responses."""
    found = composed_epsilon(level, count, delta)
    lies = np.arange(count + 1)
    losses = (count - 2 * lies) * level
    chances = binom.pmf(lies, count, 1 / (1 + exp(level)))
    achieved = chances @ -np.expm1(np.minimum(found - losses, 0))
    assert achieved == pytest.approx(delta, rel=1e-6)
    assert found < 0.7 * count * level


def delta_of(level, count, epsilon):
    """Return δ at ε of randomised responses, with 60 digits."""
    with localcontext(prec=60):
        lie = 1 / (1 + Decimal(level).exp())
        factor = Decimal(epsilon).exp()
        each = (
            comb(count, m) * ((1 - lie) ** (count - m) * lie**m - factor * lie ** (count - m) * (1 - lie) ** m)
            for m in range(count + 1)
        )
        return sum((one for one in each if one > 0), Decimal(0))


@pytest.mark.parametrize(("level", "count", "lies"), [(2.0, 121, 29), (1.5, 200, 60), (3.0, 60, 9)])
@pytest.mark.parametrize("below", [1e-9, 1e-6, 1e-3, 0.3])
def test_epsilon_is_never_below_the_exact_one(level, count, lies, below):
    """Where δ is slightly less than the probability of some number of lies, rounding has the largest effect."""
    delta = float(binom.cdf(lies, count, 1 / (1 + exp(level)))) * (1 - below)
    found = composed_epsilon(level, count, delta)
    assert delta_of(level, count, found) <= Decimal(delta)
    assert delta_of(level, count, found - 1e-2 * min(1.0, 1e-7 / below)) > Decimal(delta)


def test_a_planted_level_or_count_is_found():
    (other,) = PureEvent(2.0, Grouped.of([20]), TERMS).accountant_results(1e-5)
    for level, count in ((1.0, 20), (0.25, 20), (0.5, 10), (0.5, 40)):
        assert composed_epsilon(level, count, 1e-5) != pytest.approx(other.epsilon, rel=0.1)


def test_without_delta_composition_is_basic():
    assert composed_epsilon(0.4, 7, 0.0) == pytest.approx(2.8)
    assert composed_epsilon(60.0, 4, 1e-5) == pytest.approx(240, rel=1e-3)
    assert composed_epsilon(inf, 2, 1e-5) == inf
    assert composed_epsilon(inf, 0, 1e-5) == 0


def test_an_event_without_noise_or_messages():
    assert PureEvent(0.0, Grouped.of([1, 0]), TERMS).epsilons(1e-5).each.tolist() == [inf, 0]
    for event in (PureEvent(0.0, Grouped.of([1]), TERMS), PureEvent(1.0, Grouped.of([0]), TERMS)):
        assert event.accountant_results(1e-5) == ()
        with pytest.raises(Refusal, match="event must have noise and at least one release"):
            event.dp_event()


def test_the_dp_accounting_event_composes_to_the_same_epsilon():
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    event = PureEvent(2.0, Grouped.of([12]), TERMS)
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event.dp_event())
    assert accountant.get_epsilon(1e-5) == pytest.approx(event.epsilon(1e-5), rel=1e-2)
