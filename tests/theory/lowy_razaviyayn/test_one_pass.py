import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

PRIVACY = {"epsilon": 0.7, "delta": 1e-6, "dimension": 15}
SIZES = {"machines": 40, "per_round": 10.0}
PROBLEM = {"diameter": 2.0, "lipschitz": 3.0, "smoothness": 0.8}


def real_batch(records, per_round):
    noise = np.sqrt(15 * np.log(1e6)) / 0.7
    return (3.0 / (0.8 * 2.0) * noise) ** 0.4 * records**0.6 / per_round**0.2


def test_rounds():
    assert lr.one_pass_rounds(records=100, batch=33) == 3
    assert lr.one_pass_rounds(records=100, batch=100) == 1
    with pytest.raises(ValueError, match=r"batch must be at most records \(100\), got 101"):
        lr.one_pass_rounds(records=100, batch=101)


def test_batch_balances_the_first_error_and_the_noise():
    records = 10**7
    batch = lr.one_pass_batch(records=records, per_round=10.0, **PRIVACY, **PROBLEM)
    assert batch == round(real_batch(records, 10.0))
    start = 0.8 * 4 * (batch / records) ** 2
    noise = 3 * 2 * np.sqrt(15 * np.log(1e6)) / (0.7 * np.sqrt(batch * records * 10))
    assert start == pytest.approx(noise, rel=1e-3)


def test_batch_stays_within_the_records():
    tiny = {**PROBLEM, "smoothness": 1e-9}
    assert lr.one_pass_batch(records=50, per_round=1, **PRIVACY, **tiny) == 50
    stiff = {**PROBLEM, "smoothness": 1e12}
    assert lr.one_pass_batch(records=50, per_round=1, **PRIVACY, **stiff) == 1


def test_the_rate_is_the_bound_at_the_unrounded_batch():
    """φ- and υ-terms agree exactly; the start and the noise are equal there, and the rate counts them once."""
    records = 20_000
    common = {"records": records, **SIZES, **PRIVACY, **PROBLEM, "deviation": 1.3, "diversity": 0.6}
    start = 0.8 * 4 * (real_batch(records, 10.0) / records) ** 2
    bound = lr.one_pass_bound(batch=real_batch(records, 10.0), **common)
    assert lr.one_pass_rate(**common) == pytest.approx(bound - start, rel=1e-12)


def test_no_batch_beats_the_chosen_one_by_much_without_diversity():
    common = {"records": 20_000, **SIZES, **PRIVACY, **PROBLEM, "deviation": 0.1}
    chosen = lr.one_pass_bound(batch=real_batch(20_000, 10.0), **common)
    others = lr.one_pass_bound(batch=np.geomspace(1, 20_000, 400), **common)
    assert others.min() <= chosen < 1.3 * others.min()
    assert others.max() > 3 * chosen


def test_diversity_costs_nothing_with_all_machines():
    common = {"records": 1000, **PRIVACY, **PROBLEM, "deviation": 0.1}
    all_machines = {"machines": 40, "per_round": 40.0}
    for function, more in ((lr.one_pass_rate, {}), (lr.one_pass_bound, {"batch": 30})):
        same = function(diversity=9.0, **common, **all_machines, **more)
        assert same == function(**common, **all_machines, **more)
        assert function(diversity=9.0, **common, **SIZES, **more) > function(**common, **SIZES, **more)


def test_strong_batch_by_hand():
    settings = {"lipschitz": 3.0, "smoothness": 8.0, "strong_convexity": 0.5, "gap": 6.0, **PRIVACY}
    private = (0.7 * 10_000) ** 2 * 10 / (9 * 15 * np.log(1e6))
    for deviation in (0.0, 1e-3, 2.0):
        precise = min(private, 10_000 * 10 / deviation**2 if deviation else np.inf)
        batch = lr.one_pass_strong_batch(records=10_000, per_round=10, deviation=deviation, **settings)
        assert batch == round(10_000 / (4 * np.log(0.5 * 6 * precise)))
    flat = lr.one_pass_strong_batch(records=100, per_round=1, deviation=1.0, **{**settings, "gap": 1e-9})
    assert flat == 100


def test_strong_rate_by_hand():
    rate = lr.one_pass_strong_rate(
        records=500,
        lipschitz=3.0,
        smoothness=8.0,
        strong_convexity=0.5,
        deviation=1.3,
        diversity=0.6,
        **SIZES,
        **PRIVACY,
    )
    private = 4 * 9 * 15 * np.log(1e6) / (0.5 * (0.7 * 500) ** 2 * 10)
    clients = 0.6 / (0.5 * 4 * 10) * (1 - 9 / 39)
    assert rate == pytest.approx(1.3**2 / (0.5 * 500 * 10) + private + clients)


def test_refuses_epsilon_beyond_the_theorem():
    settings = {"records": 100, "per_round": 2, **PRIVACY, **PROBLEM}
    most = 8 * np.log(1e6)
    lr.one_pass_batch(**{**settings, "epsilon": most})
    with pytest.raises(ValueError, match=r"epsilon must be at most 8·ln\(1/delta\) \(110.52.*\), got 111.0"):
        lr.one_pass_batch(**{**settings, "epsilon": 111.0})
