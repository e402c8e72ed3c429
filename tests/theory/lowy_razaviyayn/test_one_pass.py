import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr


def problem_of(records, per_round=10.0, **settings):
    sizes = {"records": records, "per_round": per_round, "dimension": 15}
    known = {"epsilon": 0.7, "delta": 1e-6, "smoothness": 0.8, "diameter": 2.0, "lipschitz": 3.0}
    return lr.OnePassConstants(**known | sizes | settings)


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
    batch = lr.one_pass_batch(problem_of(records))
    assert batch == round(real_batch(records, 10.0))
    start = 0.8 * 4 * (batch / records) ** 2
    noise = 3 * 2 * np.sqrt(15 * np.log(1e6)) / (0.7 * np.sqrt(batch * records * 10))
    assert start == pytest.approx(noise, rel=1e-3)


def test_batch_stays_within_the_records():
    assert lr.one_pass_batch(problem_of(50, 1, smoothness=1e-9)) == 50
    assert lr.one_pass_batch(problem_of(50, 1, smoothness=1e12)) == 1


def test_the_rate_is_the_bound_at_the_unrounded_batch():
    """The φ- and υ-terms are equal. The start and the noise are equal at this batch, and the rate counts them once."""
    records = 20_000
    problem = problem_of(records, machines=40, deviation=1.3, diversity=0.6)
    start = 0.8 * 4 * (real_batch(records, 10.0) / records) ** 2
    bound = lr.one_pass_bound(problem, batch=real_batch(records, 10.0))
    assert lr.one_pass_rate(problem) == pytest.approx(bound - start, rel=1e-12)


def test_no_batch_beats_the_chosen_one_by_much_without_diversity():
    problem = problem_of(20_000, machines=40, deviation=0.1)
    chosen = lr.one_pass_bound(problem, batch=real_batch(20_000, 10.0))
    others = lr.one_pass_bound(problem, batch=np.geomspace(1, 20_000, 400))
    assert others.min() <= chosen < 1.3 * others.min()
    assert others.max() > 3 * chosen


def test_diversity_costs_nothing_with_all_machines():
    some, everyone = ([problem_of(1000, m, machines=40, diversity=v) for v in (9.0, 0.0)] for m in (10.0, 40.0))
    for function, more in ((lr.one_pass_rate, {}), (lr.one_pass_bound, {"batch": 30})):
        assert function(everyone[0], **more) == function(everyone[1], **more)
        assert function(some[0], **more) > function(some[1], **more)
        assert function(everyone[0], **more) == function(problem_of(1000, 40.0), **more)


def test_strong_batch_by_hand():
    settings = {"strong_convexity": 0.5, "gap": 6.0}
    private = (0.7 * 10_000) ** 2 * 10 / (9 * 15 * np.log(1e6))
    for deviation in (0.0, 1e-3, 2.0):
        precise = min(private, 10_000 * 10 / deviation**2 if deviation else np.inf)
        batch = lr.one_pass_strong_batch(problem_of(10_000, smoothness=8.0, deviation=deviation), **settings)
        assert batch == round(10_000 / (4 * np.log(0.5 * 6 * precise)))
    flat = lr.one_pass_strong_batch(problem_of(100, 1, smoothness=8.0, deviation=1.0), strong_convexity=0.5, gap=1e-9)
    assert flat == 100


def test_strong_rate_by_hand():
    problem = problem_of(500, smoothness=8.0, deviation=1.3, diversity=0.6, machines=40)
    rate = lr.one_pass_strong_rate(problem, strong_convexity=0.5)
    private = 4 * 9 * 15 * np.log(1e6) / (0.5 * (0.7 * 500) ** 2 * 10)
    clients = 0.6 / (0.5 * 4 * 10) * (1 - 9 / 39)
    assert rate == pytest.approx(1.3**2 / (0.5 * 500 * 10) + private + clients)


def test_refuses_epsilon_beyond_the_theorem():
    lr.one_pass_batch(problem_of(100, 2, epsilon=8 * np.log(1e6)))
    with pytest.raises(ValueError, match=r"epsilon must be at most 8·ln\(1/delta\) \(110.52.*\), got 111.0"):
        problem_of(100, 2, epsilon=111.0)
