import numpy as np
import pytest

from fedprivjax.privacy import PrivacyGuarantee, gdp


def make(**changes):
    values = {
        "mu": 4.0,
        "per_machine": np.array([1.0, 2.0, 4.0]),
        "delta": 1e-5,
        "unit": "one sample of one machine",
        "relation": "replace-one",
        "trust": "none",
        "theorem": "Reshef & Levy 2025, section 4",
        "assumptions": ("each sample is used once", "increments are clipped"),
    }
    return PrivacyGuarantee(**{**values, **changes})


def test_derived_numbers_are_those_of_the_worst_machine():
    guarantee = make()
    assert guarantee.epsilon == gdp.epsilon(4.0, 1e-5)
    assert guarantee.paper_epsilon == gdp.paper_epsilon(4.0, 1e-5)
    assert guarantee.zcdp == 8.0
    assert guarantee.rdp(3.0) == 24.0
    assert guarantee.delta_at(guarantee.epsilon) == pytest.approx(1e-5, rel=1e-8)


@pytest.mark.parametrize(("mu", "private", "large"), [(1.0, True, False), (2.1, True, True), (np.inf, False, True)])
def test_marks(mu, private, large):
    guarantee = make(mu=mu, per_machine=np.array([0.5, mu]))
    assert (guarantee.private, guarantee.large) == (private, large)


def test_statement_says_everything_that_gives_the_number_its_meaning():
    text = str(make())
    for part in (
        "4-GDP",
        "one sample of one machine",
        "replace-one",
        "every message a machine sends",
        "Reshef & Levy 2025, section 4",
        "(24.38, 1e-05)",
        "ε > 10",
        f"{8 + 4 * np.sqrt(2 * np.log(1e5)):.4g}",
        "min 1, median 2, max 4",
        "each sample is used once",
        "increments are clipped",
    ):
        assert part in text
    assert "non-private" not in text
    assert "query points" in str(make(trust="server"))


def test_non_private_statement():
    text = str(make(mu=np.inf, per_machine=np.array([np.inf, np.inf])))
    assert text.startswith("non-private")
    assert "GDP" not in text.splitlines()[0]


def test_is_frozen_and_keeps_its_own_copy():
    mine = np.array([1.0, 4.0])
    guarantee = make(per_machine=mine)
    mine[0] = 9.0
    assert guarantee.per_machine[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        guarantee.per_machine[0] = 2.0
    for field in ("mu", "delta"):
        with pytest.raises(AttributeError):
            setattr(guarantee, field, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": 3.0}, r"mu must be the largest of per_machine \(4.0\), got 3.0"),
        ({"mu": np.nan}, r"mu must be the largest of per_machine \(4.0\), got nan"),
        ({"mu": 4.0, "per_machine": np.array([-1.0, 4.0])}, "mu must be at least 0, got -1.0"),
        ({"per_machine": np.array(4.0)}, r"per_machine must have shape \[machines\], got \[\]"),
        ({"delta": 0.0}, r"delta must be inside \(0, 1\), got 0.0"),
        ({"trust": "sever"}, "unknown trust 'sever', did you mean 'server'.*"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(**changes)
