"""Splits over machines: each example at most once, sizes and classes as promised, every machine in the same lot."""

import re
from itertools import pairwise

import numpy as np
import pytest

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import by_machine, partition, table

BALANCED = np.repeat(np.arange(10), 60)
SKEWED = np.repeat(np.arange(4), [500, 40, 90, 13])


def split(labels, machines=None, seed=0, **options):
    return partition(labels, machines, seed=seed, **{"empty": "keep", **options})


CASES = {
    "shards": {"kind": "shards", "shards_per_machine": 3},
    "quantiles": {"kind": "quantiles"},
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
    if case in ("iid", "by_label"):
        assert len({part.size for part in parts}) == 1
    else:
        assert used.size == labels.size
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
    assert shares.std() > 1  # but random, not equal


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_by_label_gives_exactly_the_number_of_classes_in_equal_sizes(each):
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
def test_dirichlet_has_the_variance_of_its_distribution(alpha, machines):
    labels = np.arange(4000) // 2  # classes of two examples: P(both on one machine) = (α + 1)/(Mα + 1)
    owner = np.empty(labels.size, int)
    for machine, part in enumerate(split(labels, machines, kind="dirichlet", alpha=alpha)):
        owner[part] = machine
    together = np.mean(owner[::2] == owner[1::2])
    expected = (alpha + 1) / (machines * alpha + 1)
    tolerance = 4.5 * (expected * (1 - expected) / 2000) ** 0.5
    assert abs(together - expected) < tolerance
    assert expected - 1 / machines > 1.5 * tolerance  # an equal division would be detected


def test_dirichlet_divides_a_class_in_random_order():
    first = [split(np.zeros(100, int), 2, seed, kind="dirichlet", alpha=50.0)[0].mean() for seed in range(200)]
    # the mean index of about half of 100; unshuffled, it would be near 25
    assert abs(np.mean(first) - 49.5) < 1.0


def test_no_machine_is_favoured():
    labels = np.repeat([0, 1, 2], [200, 100, 100])  # two of four machines own class 0
    draws = [split(labels, 4, seed, kind="by_label", classes_per_machine=1) for seed in range(400)]
    shares = np.mean([[labels[part[0]] == 0 for part in parts] for parts in draws], axis=0)
    assert np.abs(shares - 0.5).max() < 4.5 * 0.5 / 400**0.5


def test_shards_are_contiguous_by_label_and_assigned_at_random():
    parts = split(BALANCED, 20, kind="shards", shards_per_machine=2)  # 40 shards of 15, four to a class
    counts = np.array([np.bincount(BALANCED[part], minlength=10) for part in parts])
    assert (counts % 15 == 0).all()
    assert (counts.sum(axis=1) == 30).all()
    assert ((counts > 0).sum(axis=1) <= 2).all()
    pairs = {tuple(np.flatnonzero(row)) for seed in range(20) for row in counts_of(seed)}
    assert len(pairs) > 40  # of the 55 that there may be


def counts_of(seed):
    parts = split(BALANCED, 20, seed, kind="shards", shards_per_machine=2)
    return np.array([np.bincount(BALANCED[part], minlength=10) for part in parts])


def test_both_shards_are_of_one_class_as_often_as_chance_has_it():
    draws = np.array([(counts_of(seed).max(axis=1) == 30).mean() for seed in range(200)])
    # the second of a machine's shards is one of 3 in 39 of the first one's class
    error = draws.std() / 200**0.5
    assert abs(draws.mean() - 3 / 39) < 4 * error
    assert error < 0.02


def test_quantiles_are_in_order_and_as_equal_as_can_be():
    values = np.random.default_rng(0).normal(size=103)
    parts = split(values, 5, kind="quantiles")
    assert [part.size for part in parts] == [21, 21, 21, 20, 20]
    for low, high in pairwise(parts):
        assert values[low].max() <= values[high].min()


def test_a_machine_for_each_value():
    towns = np.array(["b", "a", "c", "a"])
    assert [part.tolist() for part in split(towns, None, kind="by_value")] == [[1, 3], [0], [2]]
    with pytest.raises(ValueError, match=r"^machines must be 3, one for each value, got 4$"):
        split(towns, 4, kind="by_value")


def test_sizes_as_they_are_given():
    assert [part.size for part in split(BALANCED, 3, sizes=[10, 200, 7])] == [10, 200, 7]
    assert [part.size for part in split(BALANCED, 3, sizes=[0.5, 0.25, 0.25], kind="quantiles")] == [300, 150, 150]


@pytest.mark.parametrize("kind", ["iid", "quantiles"])
def test_random_sizes_have_their_distribution_and_use_everything(kind):
    logs = []
    for seed in range(40):
        drawn = split(np.arange(60_000), 20, seed, kind=kind, sizes="lognormal", spread=0.7)
        assert sum(part.size for part in drawn) == 60_000
        logs.append(np.log([part.size for part in drawn]))
    spread = np.std(logs, axis=1, ddof=1)
    assert (
        abs(np.sqrt(np.mean(spread**2)) - 0.7) < 4 * 0.7 / (2 * 19 * 40) ** 0.5
    )  # χ distribution with 40·19 degrees of freedom


def test_dirichlet_sizes_have_the_variance_of_their_distribution():
    shares = np.array(
        [[part.size for part in split(np.arange(5000), 4, seed, sizes="dirichlet", alpha=2.0)] for seed in range(300)]
    )
    assert (shares.sum(axis=1) == 5000).all()
    wanted = 0.25 * 0.75 / (4 * 2.0 + 1)
    found = np.mean((shares / 5000 - 0.25) ** 2)
    assert abs(found / wanted - 1) < 4 * (2 / 600) ** 0.5  # fourth moments below a normal's: 300 draws, 2 at least free
    assert abs(wanted / (0.25 * 0.75 / 5) - 1) > 4 * (2 / 600) ** 0.5  # alpha = 1 would be seen


def test_empty_machines_are_rejected_by_number_or_dropped():
    options = {"kind": "dirichlet", "alpha": 0.02, "machines": 12}
    kept = split(BALANCED[::20], **options)
    bare = [machine for machine, part in enumerate(kept) if not part.size]
    assert len(bare) > 1
    dropped = split(BALANCED[::20], **options, empty="drop")
    assert [part.tolist() for part in dropped] == [part.tolist() for part in kept if part.size]
    message = f"every machine must have an example, got none for machines {', '.join(map(str, bare[:5]))}"
    with pytest.raises(ValueError, match=f"^{message}"):
        split(BALANCED[::20], **options, empty="error")


def test_table_pads_and_counts():
    rows, counts = table([np.array([5, 1, 2]), np.array([], int), np.array([9])])
    assert rows.dtype == counts.dtype == np.int32
    assert rows.tolist() == [[5, 1, 2], [-1, -1, -1], [9, -1, -1]]
    assert counts.tolist() == [3, 0, 1]


def test_table_and_machines_undo_each_other():
    parts = split(BALANCED, 7, kind="dirichlet", alpha=0.5)
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
        (
            {"kind": "by_lable"},
            "unknown kind 'by_lable', did you mean 'by_label'? "
            "(known: iid, by_label, dirichlet, shards, quantiles, by_value)",
        ),
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
        ({"machines": None}, "machines must be an integer, got None"),
        ({"kind": "shards", "shards_per_machine": 0}, "shards_per_machine must be at least 1, got 0"),
        ({"kind": "shards", "shards_per_machine": 121}, "shards_per_machine must be at most 120, got 121"),
        ({"kind": "shards", "sizes": "lognormal"}, "sizes must go with kind 'iid' or 'quantiles', got kind 'shards'"),
        ({"sizes": "lognorm"}, "unknown sizes 'lognorm', did you mean 'lognormal'? (known: lognormal, dirichlet)"),
        ({"sizes": "lognormal", "spread": -1.0}, "spread must be positive, got -1.0"),
        (
            {"sizes": [1, 2]},
            "sizes must be a number that is not negative for each of 5 machines, got [1, 2]",
        ),
        ({"sizes": [200] * 5}, "sizes must add up to at most 600, the examples, got 1000"),
        ({"sizes": [0.3] * 5}, "sizes must add up to at most 1, as shares, got 1.5"),
        ({"empty": "no"}, "unknown empty 'no' (known: error, drop, keep)"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        split(BALANCED, **{"machines": 5, **options})


@pytest.mark.parametrize("kind", ["by_label", "dirichlet", "shards", "quantiles", "by_value"])
@pytest.mark.parametrize("labels", [[0.0, 1.0, np.nan, np.nan], np.array(["a", "b", None, "a"], object)], ids=str)
def test_unknown_labels_are_refused_by_kinds_that_read_them(kind, labels):
    machines = None if kind == "by_value" else 2
    options = {"alpha": 0.5} if kind == "dirichlet" else {}
    with pytest.raises(Refusal, match=f"^labels must be known for kind '{kind}', got (nan|None) at index 2$"):
        partition(labels, machines, kind=kind, **options)
    assert sum(map(len, partition(labels, 2, kind="iid"))) == 4


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"^labels must be \[examples\], got shape \(2, 2\)$"):
        split(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"^machines must be at least 3, got 2$"):
        by_machine([0, 2], 2)
