"""Splits over machines: each example at most once, sizes and classes as promised, every machine in the same lot."""

import re

import numpy as np
import pytest

from fedprivjax.datasets import by_machine, partition, table

BALANCED = np.repeat(np.arange(10), 60)
SKEWED = np.repeat(np.arange(4), [500, 40, 90, 13])


def split(labels, machines, seed=0, **options):
    return partition(labels, machines, rng=np.random.default_rng(seed), **options)


CASES = {
    "iid": {"kind": "iid"},
    "by_label": {"kind": "by_label", "classes_per_machine": 2},
    "dirichlet": {"kind": "dirichlet", "alpha": 0.3},
}


@pytest.mark.parametrize("labels", [BALANCED, SKEWED], ids=["balanced", "skewed"])
@pytest.mark.parametrize("machines", [1, 7, 20])
@pytest.mark.parametrize("case", CASES)
def test_each_example_at_most_once_and_the_rng_decides(case, machines, labels):
    parts = split(labels, machines, **CASES[case])
    used = np.concatenate(parts)
    assert len(parts) == machines
    assert np.unique(used).size == used.size
    assert used.min() >= 0
    assert used.max() < labels.size
    if case != "dirichlet":
        assert len({part.size for part in parts}) == 1
    again, other = (np.concatenate(split(labels, machines, seed, **CASES[case])) for seed in (0, 1))
    np.testing.assert_array_equal(used, again)
    assert not np.array_equal(used, other)


@pytest.mark.parametrize(("machines", "each"), [(7, 85), (600, 1), (1, 600)])
def test_iid_drops_the_remainder_only(machines, each):
    assert [part.size for part in split(BALANCED, machines)] == [each] * machines


def test_iid_mixes_classes():
    shares = np.array([np.bincount(BALANCED[part], minlength=10) for part in split(BALANCED, 4)])
    assert shares.min() >= 5  # mean 15, standard deviation 3.2 in each cell
    assert shares.max() <= 27
    assert shares.std() > 1  # but drawn, not dealt evenly


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_by_label_gives_exactly_so_many_classes_in_equal_shares(each):
    parts = split(BALANCED, 20, kind="by_label", classes_per_machine=each)
    for part in parts:
        counts = np.bincount(BALANCED[part], minlength=10)
        assert sorted(counts[counts > 0]) == [30 // each] * each
    assert sum(part.size for part in parts) == 600


def test_by_label_pairs_classes_in_many_ways():
    pairs = {tuple(np.unique(BALANCED[part])) for part in split(BALANCED, 50, kind="by_label")}
    assert len(pairs) > 15


def test_by_label_takes_the_largest_size_that_unequal_classes_allow():
    parts = split(SKEWED, 5, kind="by_label", classes_per_machine=1)
    # class 0 alone gives five shards of 100; of 101 there would be four
    assert [part.size for part in parts] == [100] * 5
    shared = split(SKEWED, 5, kind="by_label", classes_per_machine=2)
    # every machine takes a shard of class 0, the second comes of the others: 90 // 22 + 40 // 22 = 5
    assert [part.size for part in shared] == [44] * 5
    assert all(np.unique(SKEWED[part]).size == 2 for part in shared)


def test_dirichlet_uses_everything_and_alpha_sets_the_skew():
    def largest_share(alpha):
        parts = split(BALANCED, 6, kind="dirichlet", alpha=alpha)
        assert sum(part.size for part in parts) == BALANCED.size
        counts = np.array([np.bincount(BALANCED[part], minlength=10) for part in parts])
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    assert largest_share(0.05) > 0.75
    assert 0.17 < largest_share(1000.0) < 0.30  # 1/6 and the multinomial's spread


@pytest.mark.parametrize(("alpha", "machines"), [(0.5, 4), (2.0, 3)])
def test_dirichlet_has_the_variance_of_its_law(alpha, machines):
    labels = np.arange(4000) // 2  # classes of two examples: P(both on one machine) = (α + 1)/(Mα + 1)
    owner = np.empty(labels.size, int)
    for machine, part in enumerate(split(labels, machines, kind="dirichlet", alpha=alpha)):
        owner[part] = machine
    together = np.mean(owner[::2] == owner[1::2])
    expected = (alpha + 1) / (machines * alpha + 1)
    tolerance = 4.5 * (expected * (1 - expected) / 2000) ** 0.5
    assert abs(together - expected) < tolerance
    assert expected - 1 / machines > 1.5 * tolerance  # an even deal would be seen


def test_dirichlet_deals_a_class_in_random_order():
    first = [split(np.zeros(100, int), 2, seed, kind="dirichlet", alpha=50.0)[0].mean() for seed in range(200)]
    # the mean index of about half of 100; unshuffled, it would be near 25
    assert abs(np.mean(first) - 49.5) < 1.0


def test_no_machine_is_favoured():
    labels = np.repeat([0, 1, 2], [200, 100, 100])  # two of four machines own class 0
    draws = [split(labels, 4, seed, kind="by_label", classes_per_machine=1) for seed in range(400)]
    shares = np.mean([[labels[part[0]] == 0 for part in parts] for parts in draws], axis=0)
    assert np.abs(shares - 0.5).max() < 4.5 * 0.5 / 400**0.5


def test_table_pads_and_counts():
    rows, counts = table([np.array([5, 1, 2]), np.array([], int), np.array([9])])
    assert rows.dtype == counts.dtype == np.int32
    assert rows.tolist() == [[5, 1, 2], [-1, -1, -1], [9, -1, -1]]
    assert counts.tolist() == [3, 0, 1]


def test_table_and_machines_undo_each_other():
    parts = split(BALANCED, 7, kind="dirichlet")
    rows, counts = table(parts)
    owner = np.empty(BALANCED.size, np.int32)
    for machine in range(7):
        owner[rows[machine, : counts[machine]]] = machine
    for part, found in zip(parts, by_machine(owner, 7), strict=True):
        np.testing.assert_array_equal(np.sort(part), found)
    assert [part.size for part in by_machine([0, 2], 4)] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "by_lable"}, "unknown kind 'by_lable', did you mean 'by_label'? (known: iid, by_label, dirichlet)"),
        ({"machines": 0}, "machines must be at least 1, got 0"),
        ({"machines": 601}, "machines must be at most examples (600), got 601"),
        ({"kind": "by_label", "classes_per_machine": 0}, "classes_per_machine must be at least 1, got 0"),
        (
            {"kind": "by_label", "classes_per_machine": 11},
            "classes_per_machine must be at most the number of classes (10), got 11",
        ),
        (
            {"kind": "by_label", "machines": 301},
            "labels must have 602 examples to share out by label, got 600",
        ),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha must be positive, got 0.0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        split(BALANCED, **{"machines": 5, **options})


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"^labels must be \[examples\], got shape \(2, 2\)$"):
        split(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"^machines must be at least 3, got 2$"):
        by_machine([0, 2], 2)
