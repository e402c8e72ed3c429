"""Privacy curves, attack metrics and group privacy, compared with closed forms and sums."""

import numpy as np
import pytest
from cases import sparing
from scipy.stats import norm

from fedprivjax.privacy import PrivacyGuarantee, gdp
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.attack_metrics import advantage, smallest_mu, trade_off, true_positive_rate
from fedprivjax.privacy.curve import AccountedCurve, Curve, GaussianCurve, GroupCurve, ListedCurve, spread
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import RECORD, Terms

DELTA = 1e-5
TERMS = Terms("none", "a theorem", unit=RECORD)
SAMPLED = {"sampler": "subset", "batch": 10, "records": 100, "rounds": 20}


def sampled(delta):
    return sampled_epsilon(2.0, SampledReleases(delta=delta, **SAMPLED))


def accounted(mu):
    """The accounted curve of a Gaussian mechanism, without its μ."""
    return AccountedCurve(GaussianCurve(mu).epsilon)


def of_gdp(*mus, **changes):
    return PrivacyGuarantee(**{"delta": DELTA, "terms": TERMS, "mus": Grouped.of(mus), **changes})


def of_epsilon(*epsilons, **changes):
    return of_gdp(mus=None, epsilons=Grouped.of(epsilons), **changes)


class Sampler:
    """An event of one machine with an ε at every δ."""

    epsilon = staticmethod(sampled)
    proved = True


# ---- curves


@pytest.mark.parametrize("mu", sparing([0.1, 1.0, 4.0], [1.0]))
def test_an_accounted_curve_inverts_itself_from_above(mu):
    for epsilon in (0.5 * mu, mu, 3 * mu):
        exact = gdp.delta(epsilon, mu)
        assert exact <= accounted(mu).delta(epsilon) * (1 + 1e-12) < exact * 1.001 + 1e-11


def test_the_stated_epsilon_is_on_the_curve():
    guarantee = of_epsilon(0.1, sampled(DELTA), event=Sampler)
    assert guarantee.epsilon_at(DELTA) == guarantee.epsilon == sampled(DELTA)
    assert guarantee.epsilon_at(1e-7) == sampled(1e-7) > guarantee.epsilon > guarantee.epsilon_at(1e-3)
    assert guarantee.delta_at(guarantee.epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert of_gdp(1.0, 3.0).epsilon_at(1e-7) == gdp.epsilon(3.0, 1e-7)


def test_what_was_read_from_a_file_is_known_at_its_delta_and_above():
    guarantee = PrivacyGuarantee.from_json(of_epsilon(0.1, 2.0, event=Sampler, accounting="so").to_json())
    assert guarantee.accounting == "so"
    assert guarantee.epsilon_at(DELTA) == guarantee.epsilon_at(1e-3) == 2.0
    assert guarantee.delta_at(2.0) == guarantee.delta_at(5.0) == DELTA
    with pytest.raises(ValueError, match=r"^delta must be at least 1e-05, the one at which this guarantee"):
        guarantee.epsilon_at(1e-6)
    read = PrivacyGuarantee.from_json(of_gdp(2.0).to_json())
    assert read.epsilon_at(1e-9) == gdp.epsilon(2.0, 1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.9])
def test_a_listed_point_at_a_smaller_epsilon(epsilon):
    """The pair of three outcomes that attains every (ε, δ) pair's region: δ, then randomised response."""
    stated, delta = 2.0, 1e-3
    share = (1 - delta) / (1 + np.exp(stated))
    one = np.array([delta, (1 - delta) - share, share, 0.0])
    other = one[::-1]
    exact = np.maximum(one - np.exp(epsilon) * other, 0).sum()
    assert ListedCurve(stated, delta).delta(epsilon) == pytest.approx(exact, rel=1e-12)


# ---- attack metrics


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
def test_gains_of_gdp_are_those_of_the_best_threshold(mu):
    threshold = norm.isf(0.01)
    assert of_gdp(0.01, mu).true_positive_rate(0.01) == pytest.approx(norm.sf(threshold - mu), rel=1e-12)
    thresholds = np.linspace(-4, 8, 100_001)
    best = np.max(norm.sf(thresholds - mu) - norm.sf(thresholds))
    assert of_gdp(mu).advantage == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
def test_gains_from_points_are_bounds_that_come_near(mu):
    exact, ours = GaussianCurve(mu), accounted(mu)
    assert advantage(exact) <= advantage(ours) < 1.1 * advantage(exact)
    for rate in (0.01, 0.001):
        least = true_positive_rate(exact, rate)
        assert least <= true_positive_rate(ours, rate) < 1.25 * least


def test_gains_of_one_point_are_those_of_its_region():
    """The advantage is `(e^ε − 1 + 2δ)/(e^ε + 1)`, the trade-off function has two lines."""
    curve = ListedCurve(1.0, 0.01)
    assert advantage(curve) == pytest.approx((np.e - 1 + 0.02) / (np.e + 1))
    assert true_positive_rate(curve, 0.001) == pytest.approx(0.01 + np.e * 0.001)
    assert true_positive_rate(curve, 0.9) == pytest.approx(1 - (1 - 0.01 - 0.9) / np.e)
    assert advantage(ListedCurve(np.inf, 0.01)) == true_positive_rate(ListedCurve(np.inf, 0.01), 0.5) == 1.0


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
def test_the_least_mu_of_a_gaussian_is_its_own(mu):
    found = smallest_mu(accounted(mu))
    assert mu <= found.mu < 1.02 * mu
    assert 0 <= found.regret < 0.02
    assert smallest_mu(GaussianCurve(mu)) == (mu, 0.0, 1e-9)


@pytest.mark.slow
def test_the_least_mu_is_above_the_curve_everywhere_and_no_smaller_one_is():
    curve = AccountedCurve(sampled)
    mu, regret, floor = smallest_mu(curve)
    deltas = np.geomspace(floor, 0.2, 60)
    ours = np.array([curve.epsilon(delta) for delta in deltas])
    assert (ours <= gdp.epsilon(mu, deltas)).all()
    assert (ours > gdp.epsilon(0.97 * mu, deltas)).any()
    rates = np.linspace(0.001, 0.999, 999)
    given = trade_off(ours, deltas, rates) - norm.cdf(norm.isf(rates) - mu)
    assert given.min() > -1e-9  # a curve of fewer points, nowhere below
    assert 0.95 * given.max() < regret < 1.01 * given.max()


# ---- groups, relations, users


@pytest.mark.parametrize("members", [1, 2, 5])
def test_group_privacy_of_gaussians_by_numbers(members):
    """The sum of n records in [0, 1] with noise σ: k replaced records move it by k, which is N(0, 1) and N(k/σ, 1)."""
    sigma, epsilon = 2.0, 1.3
    x = np.linspace(-60, 60, 600_001)
    one, other = norm.pdf(x, 0, sigma), norm.pdf(x, members, sigma)
    exact = np.maximum(other - np.exp(epsilon) * one, 0).sum() * (x[1] - x[0])
    group = of_gdp(1 / sigma).for_group(members)
    assert group.delta_at(epsilon) == pytest.approx(exact, rel=1e-4)
    assert group.delta == DELTA
    of_point = of_epsilon(gdp.epsilon(1 / sigma, DELTA)).for_group(members)
    assert of_point.epsilon >= group.epsilon_at(of_point.delta) * (1 - 1e-9)


@pytest.mark.parametrize("members", [2, 3])
def test_the_group_of_a_point_and_of_a_curve(members):
    epsilon, delta = 0.7, 1e-6
    group = of_epsilon(0.1, epsilon, delta=delta).for_group(members)
    grown = delta * np.expm1(members * epsilon) / np.expm1(epsilon)
    assert (group.epsilon, group.delta) == (pytest.approx(members * epsilon), pytest.approx(grown))
    assert group.per_machine.tolist() == pytest.approx([members * 0.1, members * epsilon])
    assert group.epsilon_at(2 * grown) == pytest.approx(members * epsilon)
    curve: Curve = GroupCurve(accounted(0.5), members)  # a curve without μ: above the exact kμ at the same δ
    for asked in (1e-7, 1e-3):
        found = curve.epsilon(asked)
        assert gdp.epsilon(members * 0.5, asked) <= found < 3 * gdp.epsilon(members * 0.5, asked)
    assert spread(0.0, delta, members) == members * delta


@pytest.mark.parametrize("delta", [1e-5, 3e-6, 0.01])  # for some δ, the exponential of the logarithm is smaller
@pytest.mark.parametrize("members", [1, 2, 3])
def test_the_group_of_a_point_is_known_at_its_own_delta(delta, members):
    group = of_epsilon(0.5, delta=delta).for_group(members)
    assert group.epsilon_at(group.delta) == group.epsilon == members * 0.5
    assert group.delta_at(group.epsilon) == group.delta
    assert group.delta <= group.delta_at(group.epsilon / 2) <= 1
    assert group.advantage == pytest.approx((np.expm1(group.epsilon) + 2 * group.delta) / (np.exp(group.epsilon) + 1))
    mu, _, floor = group.smallest_mu()
    assert gdp.epsilon(mu, group.delta) >= group.epsilon * (1 - 1e-9)
    assert floor == pytest.approx(group.delta)


def test_from_add_or_remove_to_replace_one():
    from_one = of_gdp(1.0, 2.0, terms=Terms("server", "a theorem", unit=RECORD, relation=ADD_OR_REMOVE))
    replaced = from_one.for_relation(REPLACE_ONE)
    assert (replaced.mu, replaced.relation, replaced.unit) == (4.0, REPLACE_ONE, RECORD)
    assert from_one.for_relation(ADD_OR_REMOVE) is from_one
    assert "replace-one" in str(replaced)


def test_from_a_record_to_a_user():
    user = of_gdp(0.5).for_user(4)
    assert user.mu == 2.0
    assert user.unit == "one user, who holds at most 4 records of one machine"
    assert "group privacy, 4 changes" in user.paragraph()


def test_what_is_only_claimed_stays_a_claim_in_groups_and_files():
    claimed = of_epsilon(0.5, proved=False)
    for guarantee in (claimed, claimed.for_group(2), claimed.for_user(3)):
        assert guarantee.paragraph().startswith("The mechanism is claimed, without a proof, to be")
        assert not PrivacyGuarantee.from_json(guarantee.to_json()).proved
    assert PrivacyGuarantee.from_json(of_epsilon(0.5).to_json()).proved


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: of_gdp(1.0).epsilon_at(0.0), "delta must be between 0 and 1, got 0.0"),
        (lambda: of_gdp(1.0).epsilon_at(1.0), "delta must be between 0 and 1, got 1.0"),
        (lambda: of_epsilon(1.0, event=Sampler).epsilon_at(-1), "delta must be between 0 and 1, got -1"),
        (lambda: of_gdp(1.0).delta_at(-0.5), "epsilon must be at least 0, got -0.5"),
        (lambda: of_epsilon(1.0).delta_at(float("nan")), "epsilon must be at least 0, got nan"),
        (lambda: of_gdp(1.0).true_positive_rate(0.0), "false_positive_rate must be between 0 and 1, got 0.0"),
        (lambda: of_gdp(1.0).smallest_mu(0.7), "floor must be between 0 and 0.5, got 0.7"),
        (lambda: of_gdp(1.0).for_group(0), "size must be at least 1, got 0"),
        (lambda: of_gdp(1.0).for_group(1.5), "size must be an integer, got 1.5"),
        (
            lambda: of_epsilon(5.0).for_group(4),
            "size must be at most 3, for a δ below 1 at ε = 5, got 4",
        ),
        (lambda: of_epsilon(5.0).for_user(9), "records must be at most 3, for a δ below 1 at ε = 5, got 9"),
        (
            lambda: of_epsilon(20.0, terms=Terms("none", "a theorem", relation=ADD_OR_REMOVE)).for_relation(
                REPLACE_ONE
            ),
            "relation must stay 'add-or-remove-one': ε = 20 and δ = .* give no bound for 'replace-one'",
        ),
        (
            lambda: of_gdp(1.0).for_relation(ADD_OR_REMOVE),
            "relation must stay 'replace-one', which does not give 'add-or-remove-one'",
        ),
        (lambda: of_gdp(1.0).for_relation("replace"), "unknown relation 'replace', did you mean 'replace-one'.*"),
        (
            lambda: of_gdp(1.0).for_user(2).for_user(2),
            "unit must be 'one record of one machine' .*, got 'one user, .*",
        ),
        (lambda: of_epsilon(1.0).dp_event(), "mu must be positive and finite, or the event available, .*"),
        (lambda: Terms("none", "a theorem", relation="replace"), "unknown relation 'replace', did you mean .*"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()


# ---- prose


def test_a_paragraph_has_all_required_fields():
    text = of_epsilon(0.3, sampled(DELTA), event=Sampler, accounting="by an accountant").paragraph()
    for part in (
        f"(ε, δ) = ({up(sampled(DELTA), 4)}, 1e-05)",
        "one record of one machine (replace-one)",
        "Trust model: none",
        "every message a machine sends",
        "a theorem; accounting: by an accountant",
        "false-positive rate 1%",
        "No μ is proved",
        "hyper-parameters, data preparation and metrics of private data are not covered",
        "pseudo-random generator",
    ):
        assert part in text, part
    assert "\n" not in text
    assert "1-GDP" in of_gdp(1.0).paragraph()
    assert of_gdp(np.inf).paragraph().startswith("Nothing is guaranteed")


def test_paragraphs_never_state_a_stronger_guarantee():
    for mu in (0.5, 1.0, 2.0, 4.0):
        stated = of_gdp(mu).paragraph()
        assert float(stated.split("(ε, δ) = (")[1].split(",")[0]) >= gdp.epsilon(mu, DELTA)
        assert float(stated.split("an advantage of at most ")[1].split(",")[0]) >= of_gdp(mu).advantage


def test_a_paragraph_of_a_saved_guarantee_says_that_its_curve_is_missing():
    known = of_epsilon(sampled(DELTA), event=Sampler)
    saved = PrivacyGuarantee.from_json(known.to_json())
    assert known.advantage < saved.advantage
    assert "By (ε, δ) alone, an attacker who knows all else has an advantage" in saved.paragraph()
    assert "which `fedprivjax privacy` prints, may be far smaller" in saved.paragraph()
    for complete in (known, of_gdp(1.0), PrivacyGuarantee.from_json(of_gdp(1.0).to_json())):
        assert "δ) alone" not in complete.paragraph()


def test_a_paragraph_of_a_claim_says_so():
    class Claimed(Sampler):
        proved = False

    claimed = of_epsilon(sampled(DELTA), event=Claimed, proved=False)
    assert "claimed, without a proof, to be (ε, δ)" in claimed.paragraph()
    assert "claimed" not in of_epsilon(sampled(DELTA), event=Sampler).paragraph()
