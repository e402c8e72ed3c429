from time import perf_counter

import numpy as np
import pytest

from fedprivjax.privacy import noise_rules
from fedprivjax.privacy.noise_rules import noise_stds
from fedprivjax.privacy.per_machine import group_identical

MANY = 10**6


@pytest.mark.parametrize("machines", [1, 7, 300])
@pytest.mark.parametrize("kinds", [(1, 1, 1), (3, 1, 2), (5, 40, 3), (1, 400, 400)])
def test_groups_are_those_of_equal_columns(machines, kinds):
    rng = np.random.default_rng(machines)
    columns = [rng.integers(0, kind, machines) * rng.normal() for kind in kinds]
    first, group = group_identical(columns)
    table = np.stack(columns)
    assert first.size == np.unique(table, axis=1).shape[1]
    np.testing.assert_array_equal(table[:, first[group]], table)
    np.testing.assert_array_equal(first, [np.flatnonzero(group == each)[0] for each in range(first.size)])


def test_one_machine_that_differs_in_one_column_is_told_apart():
    columns = [np.ones(50), np.arange(50) % 2, np.ones(50)]
    columns[2][17] = 1 + 1e-15
    first, group = group_identical(columns)
    assert first.size == 3
    assert np.flatnonzero(group == group[17]).tolist() == [17]


def test_a_column_without_a_value_is_one_group():
    assert group_identical([np.full(5, np.nan)])[0].tolist() == [0]


def seconds(function):
    times = []
    for _ in range(3):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return min(times)


@pytest.mark.slow
def test_a_million_machines_cost_less_than_sorting_them_once():
    columns = [np.full(MANY, value) for value in (1.0, 100, 10, 1e-5)]
    drawn = np.random.default_rng(0).normal(size=MANY)
    taken = seconds(lambda: group_identical(columns))
    assert taken < 0.5
    assert taken < 0.5 * seconds(lambda: np.unique(drawn, return_inverse=True))
    assert seconds(lambda: group_identical([drawn > 0, *columns])) < 4 * seconds(
        lambda: np.unique(drawn, return_inverse=True)
    )


def test_a_million_machines_noises_are_accounted_for_by_their_kinds(monkeypatch):
    asked = []

    def counted(rule, releases, **settings):
        asked.append(settings)
        return settings["lipschitz"]

    monkeypatch.setattr(noise_rules, "noise_std", counted)
    lipschitz = np.where(np.arange(MANY) % 3 == 0, 2.0, 1.0)
    found = noise_stds(
        "accountant", sampler="subset", lipschitz=lipschitz, records=1, batch=1, rounds=5, epsilon=1.0, delta=1e-5
    )
    assert len(asked) == 2
    np.testing.assert_array_equal(found, lipschitz)
