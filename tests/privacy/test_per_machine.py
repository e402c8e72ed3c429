import numpy as np
import pytest

from fedprivjax.privacy.per_machine import Grouped

RNG = np.random.default_rng(0)
EACH = {
    "one": np.array([3.5]),
    "alike": np.full(7, 2.0),
    "two groups": np.array([2.0, 1.0, 2.0, 2.0]),
    "even": np.array([4.0, 1.0, 3.0, 2.0]),
    "zeros": np.array([0.0, 1.0, 0.0]),
    "infinite": np.array([np.inf, 1.0, np.inf, 2.0]),
    "many": RNG.integers(0, 9, 200).astype(float),
}


@pytest.mark.parametrize("name", EACH)
def test_each_machine_has_its_own_number(name):
    each, grouped = EACH[name], Grouped.of(EACH[name])
    np.testing.assert_array_equal(grouped.each, each)
    np.testing.assert_array_equal(grouped.values, np.unique(each))
    np.testing.assert_array_equal(grouped.counts, np.unique(each, return_counts=True)[1])
    assert grouped.machines == each.size
    assert (grouped.max, grouped.min) == (each.max(), each.min())


@pytest.mark.parametrize("name", EACH)
def test_the_median_is_over_machines_not_over_groups(name):
    with np.errstate(invalid="ignore"):
        assert Grouped.of(EACH[name]).median == np.median(EACH[name])
    assert Grouped.of([1.0, 1.0, 1.0, 5.0, 9.0]).median == 1.0  # over groups it is 5


def test_another_number_for_each_group():
    grouped = Grouped.of(EACH["two groups"])
    seen = []
    doubled = grouped.map(lambda values: seen.append(values.size) or 2 * values)
    np.testing.assert_array_equal(doubled.each, 2 * EACH["two groups"])
    assert seen == [2]  # once per group, not per machine
    np.testing.assert_array_equal(grouped.each, EACH["two groups"])


def test_values_after_a_map_need_not_be_in_order_or_distinct():
    turned = Grouped.of(EACH["many"]).map(lambda values: (values - 4) ** 2)
    expected = (EACH["many"] - 4) ** 2
    np.testing.assert_array_equal(turned.each, expected)
    assert (turned.median, turned.max, turned.min) == (np.median(expected), 16.0, 0.0)


@pytest.mark.parametrize("name", EACH)
def test_as_text_every_machine_keeps_its_number(name):
    back = Grouped.from_mapping(Grouped.of(EACH[name]).as_mapping())
    np.testing.assert_array_equal(back.each, EACH[name])
    assert (back.machines, back.max, back.min) == (EACH[name].size, EACH[name].max(), EACH[name].min())


def test_numbers_cannot_be_written_over():
    with pytest.raises(ValueError, match="read-only"):
        Grouped.of([1.0, 2.0]).each[0] = 5.0


def test_a_million_machines_that_are_alike_are_one_number():
    grouped = Grouped.of(np.full(10**6, 1.5))
    assert (grouped.values.size, grouped.machines, grouped.median) == (1, 10**6, 1.5)
