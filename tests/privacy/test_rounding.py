"""Printed privacy parameters are rounded up, and targets that are met exactly are printed as they are."""

import pytest

from fedprivjax.layout.wording import epsilon_text
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import down, up
from fedprivjax.privacy.terms import Terms

TERMS = Terms("none", "a theorem")


def test_every_text_of_a_guarantee_rounds_mu_up():
    one = PrivacyGuarantee(1e-5, TERMS, mus=Grouped.of([0.50001, 1.04306]))
    assert one.headline == "1.044-GDP"
    assert "μ min 0.5001, median 0.7716, max 1.044" in str(one)
    assert "1.044-GDP" in one.paragraph()
    assert repr(one) == str(one)


def test_epsilon_rounds_up():
    assert PrivacyGuarantee(1e-5, TERMS, epsilons=Grouped.of([4.0012])).headline == "(4.002, 1e-05)-DP"
    assert epsilon_text(4.001) == "4.01"


@pytest.mark.parametrize("target", [4.0, 0.1, 0.3, 12.0, 1 / 3])
def test_a_target_that_is_met_exactly_is_printed_as_it_is(target):
    assert up(target, 4) == up(target * (1 + 5e-7), 4)
    assert float(up(target, 4)) >= target * (1 - 1e-12)
    assert up(4.0, 4) == "4"
    assert up(0.1 + 0.2, 3) == "0.3"


def test_lower_bounds_round_down_and_tiny_values_are_printed():
    assert [down(value, 3) for value in (1.99679, 2.0, 0.0, 12345.0)] == ["1.99", "2", "0", "1.23e+04"]
    assert "1e-160-GDP" in str(PrivacyGuarantee(1e-6, TERMS, mus=Grouped.of([1e-160])))
