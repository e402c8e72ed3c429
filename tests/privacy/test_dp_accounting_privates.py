"""Private attributes of dp-accounting: each exists and has the meaning assumed in `dp_accounting_backend`."""

import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf, SparsePLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_laplace_mechanism,
    from_randomized_response,
)

import fedprivjax
from fedprivjax.privacy.accountants import dp_accounting_backend
from fedprivjax.privacy.accountants.dp_accounting_backend import CHECKED_VERSION, symmetric_grid

SPACING, LOWEST, INFINITE = 0.5, -1, 0.125
PROBABILITIES = [0.25, 0.375, 0.25]  # probabilities of the losses -0.5, 0 and 0.5
PMF = {
    "_discretization": SPACING,
    "_lower_loss": LOWEST,
    "_probs": PROBABILITIES,
    "_infinity_mass": INFINITE,
    "_pessimistic_estimate": True,
}
LOSS = ("_pmf_remove", "_symmetric")
HINT = (
    f"dp-accounting {version('dp-accounting')} is not as {CHECKED_VERSION} was: adapt "
    "fedprivjax/privacy/accountants/dp_accounting_backend.py and its CHECKED_VERSION"
)


def pmf(kind=DensePLDPmf, pessimistic=True):
    if kind is DensePLDPmf:
        return DensePLDPmf(SPACING, LOWEST, np.array(PROBABILITIES), INFINITE, pessimistic)
    return SparsePLDPmf(dict(enumerate(PROBABILITIES, LOWEST)), SPACING, INFINITE, pessimistic)


@pytest.mark.parametrize("name", PMF)
def test_a_grid_has_the_attribute(name):
    assert hasattr(pmf(), name), f"DensePLDPmf.{name} is missing. {HINT}"
    np.testing.assert_array_equal(getattr(pmf(), name), PMF[name], f"DensePLDPmf.{name} has another meaning. {HINT}")


@pytest.mark.parametrize("name", LOSS)
def test_a_loss_distribution_has_the_attribute(name):
    assert hasattr(PrivacyLossDistribution(pmf()), name), f"PrivacyLossDistribution.{name} is missing. {HINT}"


def test_a_distribution_of_one_grid_is_symmetric_and_one_of_two_is_not():
    one, two = pmf(), pmf()
    assert PrivacyLossDistribution(one)._symmetric is True, HINT
    assert PrivacyLossDistribution(one)._pmf_remove is one, HINT
    assert PrivacyLossDistribution(one, two)._symmetric is False, HINT
    assert PrivacyLossDistribution(one, two)._pmf_remove is one, HINT


@pytest.mark.parametrize("kind", [DensePLDPmf, SparsePLDPmf])
def test_the_grid_gives_the_library_s_own_delta(kind):
    """δ(ε) = P(∞) + Σ_{l > ε} p(l)·(1 − e^{ε−l}), from the attributes and from the public method."""
    loss = PrivacyLossDistribution(pmf(kind))
    grid = symmetric_grid(loss)
    assert grid is not None
    losses = grid.spacing * (grid.lowest + np.arange(grid.probabilities.size))
    np.testing.assert_allclose(losses, [-0.5, 0.0, 0.5])
    for epsilon in (-1.0, -0.25, 0.0, 0.3, 0.7):
        gain = np.maximum(0.0, -np.expm1(epsilon - losses))
        delta = grid.infinite + grid.probabilities @ gain
        assert delta == pytest.approx(loss.get_delta_for_epsilon(epsilon)), HINT


def test_without_one_pessimistic_grid_there_is_none():
    assert symmetric_grid(PrivacyLossDistribution(pmf(), pmf())) is None
    assert symmetric_grid(PrivacyLossDistribution(pmf(pessimistic=False))) is None


def test_distributions_of_mechanisms_have_one_grid():
    for loss in (from_laplace_mechanism(1.0), from_randomized_response(0.5, 2)):
        grid = symmetric_grid(loss)
        assert grid is not None, HINT
        assert grid.probabilities.sum() + grid.infinite == pytest.approx(1.0), HINT


def test_no_other_file_reads_these_attributes():
    package = Path(fedprivjax.__file__).parent
    read = re.compile(rf"(?<!self)\.(?:{'|'.join([*LOSS, *PMF])})\b")
    found = {path for path in package.rglob("*.py") if read.search(path.read_text(encoding="utf-8"))}
    assert found == {Path(dp_accounting_backend.__file__)}
