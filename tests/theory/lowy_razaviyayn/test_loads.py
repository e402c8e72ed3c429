import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr


def test_the_noise_of_advanced_composition():
    """The constant 256 follows from composition over rounds, subsampling and the Gaussian mechanism; K cancels."""
    lipschitz, records, epsilon, delta, rounds = 3.0, 500, 2.0, 1e-6, 40
    for batch in (60, 500):
        round_epsilon = epsilon / (2 * np.sqrt(2 * rounds * np.log(2 / delta)))
        round_delta = delta / (2 * rounds)
        before_sampling = records * round_epsilon / (2 * batch)
        assert before_sampling <= 1
        sensitivity = 2 * lipschitz / batch
        variance = 2 * sensitivity**2 * np.log(1.25 / round_delta) / before_sampling**2
        load = lr.privacy_load(records=records, epsilon=epsilon, delta=delta, rounds=rounds, lipschitz=lipschitz)
        assert variance == pytest.approx(256 * rounds * load, rel=1e-12)
        xi = lr.equivalent_load(noise_std=np.sqrt(variance), lipschitz=lipschitz, rounds=rounds)
        assert xi == pytest.approx(load / lipschitz**2)


def test_bare_load_is_the_load_without_logarithms():
    load = lr.privacy_load(records=100, epsilon=0.5, delta=1e-5, rounds=7)
    logs = np.log(2.5 * 7 / 1e-5) * np.log(2 / 1e-5)
    assert load == pytest.approx(logs * lr.bare_load(records=100, epsilon=0.5))


def test_no_privacy_has_no_load():
    np.testing.assert_array_equal(lr.bare_load(records=10, epsilon=[0.1, np.inf]) == 0, [False, True])
    assert lr.privacy_load(records=10, epsilon=np.inf, delta=1e-5, rounds=3) == 0


def test_refusals():
    arguments = {"records": 100, "epsilon": 1.0, "delta": 1e-5, "rounds": 10}
    most = 2 * np.log(2e5)
    lr.privacy_load(**{**arguments, "epsilon": most})
    with pytest.raises(ValueError, match=r"epsilon must be at most 2·ln\(2/delta\) \(24.4121\), got 24.5"):
        lr.privacy_load(**{**arguments, "epsilon": [1.0, 24.5]})
    with pytest.raises(ValueError, match="epsilon must be positive, got 0"):
        lr.privacy_load(**{**arguments, "epsilon": 0})
    with pytest.raises(ValueError, match="delta must be between 0 and 1, got 1"):
        lr.privacy_load(**{**arguments, "delta": 1})
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        lr.privacy_load(**{**arguments, "rounds": 0})
    with pytest.raises(ValueError, match="records must be a number, got 'many'"):
        lr.bare_load(records="many", epsilon=1.0)
