"""Maps on a data set: the order, the bound, what is kept on disk and what is computed again; mistakes in one line."""

import importlib
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedprivjax import Refusal, datasets, features, from_dataset
from fedprivjax.features import Constant, FeatureMap, GroupNorm, Pooling, Scattering, UnitNorm, mapped

RNG = np.random.default_rng(0)
SIDE = 8


def pictures(examples=5, tests=3, **options):
    x = RNG.random((examples + tests, SIDE, SIDE))
    y = np.arange(examples + tests) % 2
    held = (x[examples:], y[examples:]) if tests else ()
    return datasets.from_arrays(x[:examples], y[:examples], *held, feature_bound=float(SIDE), classes=2, **options)


@dataclass(frozen=True)
class Doubled(FeatureMap):
    """Map that counts its traces and calls, cached on disk."""

    cached: ClassVar[bool] = True
    calls: ClassVar[list] = []

    def shape(self, shape):
        return shape

    def bound(self, shape, bound):
        return 2 * bound

    def __call__(self, examples):
        self.calls.append(examples.shape)
        return 2 * examples


@dataclass(frozen=True)
class Mixing(FeatureMap):
    """Map that subtracts the batch's mean and divides by its largest number. With `kept`, cached on disk."""

    def shape(self, shape):
        return shape

    def bound(self, shape, bound):
        return 1e3

    def __call__(self, examples):
        return (1 + examples - examples.mean(axis=0, keepdims=True)) / (1 + abs(examples).max())


@dataclass(frozen=True)
class MixingConstant(Constant):
    """Subclass of one of the package's maps."""

    def __call__(self, examples):
        return super().__call__(examples - examples.mean(axis=0, keepdims=True))


@pytest.mark.parametrize("each", [Mixing(), MixingConstant()])
def test_a_custom_map_cannot_mix_examples(each):
    """Replacing one example does not change the features of all others, in training and test data."""
    data = pictures(examples=6)
    other = data.features.copy()
    other[2] = 0.0
    found, moved = (mapped(one, each).features for one in (data, replace(data, features=other)))
    changed = np.flatnonzero((found != moved).any(axis=1))
    assert set(changed) <= {2}
    alone = [mapped(replace(data, features=data.features[[i]], labels=data.labels[[i]]), each) for i in range(3)]
    np.testing.assert_array_equal(found[:3], np.vstack([one.features for one in alone]))


def test_the_packages_maps_see_whole_batches(monkeypatch):
    seen = []
    call = UnitNorm.__call__
    monkeypatch.setattr(UnitNorm, "__call__", lambda self, x: seen.append(x.shape[0]) or call(self, x))
    mapped(pictures(), UnitNorm())
    assert min(seen) > 1


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIVJAX_CACHE", str(tmp_path / "home"))
    Doubled.calls.clear()


def test_maps_are_applied_in_their_order_with_and_without_the_constant():
    data = pictures(bias=True)
    found = mapped(data, [Pooling(2), UnitNorm(), Constant(2.0)])
    pooled = data.features[:, :-1].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(found.features, np.c_[expected, np.full(5, 2.0)], rtol=1e-5)
    assert found.test_features is not None
    assert found.test_features.shape == (3, 17)
    assert (found.feature_bound, found.picture) == (pytest.approx(5**0.5), None)
    assert mapped(data, [Pooling(2), UnitNorm()]).picture == (4, 4, 1)
    assert data.features.shape == (5, 65)


def test_labels_and_partition_stay_and_facts_on_old_features_are_dropped():
    data = replace(pictures(machine_of=[0, 1, 0, 1, 0]), noise_lipschitz=3.0, optimum=np.zeros(64, np.float32))
    found = mapped(data, "unit_norm")
    for name in ("labels", "test_labels", "machine_of", "name", "classes"):
        assert getattr(found, name) is getattr(data, name)
    assert (found.noise_lipschitz, found.optimum, found.population) == (None, None, None)


def test_the_problems_constants_follow_from_the_bound():
    problem = from_dataset(mapped(pictures(), ["pooling", "unit_norm"]))
    assert problem.feature_bound == 1.0
    assert problem.lipschitz == pytest.approx(1.0)
    assert from_dataset(pictures()).lipschitz == pytest.approx(SIDE)


def test_a_bound_that_is_claimed_but_does_not_hold_is_refused():
    @dataclass(frozen=True)
    class Wrong(Doubled):
        cached = False

        def bound(self, shape, bound):
            return 0.1

    with pytest.raises(Refusal, match=r"features must have norm at most feature_bound \(0.1\)"):
        mapped(pictures(), Wrong())


def test_many_examples_are_computed_in_chunks_with_one_program(monkeypatch):
    monkeypatch.setattr(module_of_file(), "MOST_AT_ONCE", 2)
    data = pictures(5, 3)
    found = mapped(data, Doubled(), keep=False)
    np.testing.assert_array_equal(found.features, 2 * data.features)
    assert Doubled.calls == [(1, SIDE, SIDE, 1)]  # traced once, for all chunks of both parts
    monkeypatch.setattr(module_of_file(), "CHUNK_NUMBERS", 1)
    np.testing.assert_array_equal(mapped(data, Doubled(), keep=False).features, 2 * data.features)
    assert Doubled.calls[-1] == (1, SIDE, SIDE, 1)


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr(module_of_file(), "MOST_AT_ONCE", 4)
    said = []
    mapped(pictures(8, tests=0), "pooling", say=said.append)
    assert said == [f"computing features of 8 examples ({share})" for share in ("0%", "50%")]


def module_of_file():

    return importlib.import_module("fedprivjax.features.mapped")


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def written(folder):
    """Return the time of each file's last change, by name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_expensive_maps_are_computed_once_for_the_same_data_and_settings(tmp_path):
    data = pictures()
    first = mapped(data, [Doubled(), "unit_norm"], keep=tmp_path)
    assert len(files(tmp_path)) == 2  # training and test examples
    before = written(tmp_path)
    again = mapped(data, [Doubled(), "unit_norm", "constant"], keep=str(tmp_path))  # what follows is not in the key
    assert written(tmp_path) == before
    np.testing.assert_array_equal(again.features[:, :-1], first.features)
    alone = mapped(data, Doubled(), keep=tmp_path)
    assert written(tmp_path) == before
    assert isinstance(alone.features, np.memmap)
    other = mapped(replace(data, features=data.features[::-1]), Doubled(), keep=tmp_path)
    assert written(tmp_path).items() > before.items()
    np.testing.assert_array_equal(other.features, alone.features[::-1])
    assert len(files(tmp_path)) == 3


def test_features_are_cached_by_default_and_not_if_keep_is_false(tmp_path):
    mapped(pictures(), Doubled())
    assert features.cache() == tmp_path / "home" / "features"
    assert len(files(features.cache())) == 2
    mapped(pictures(), Doubled(), keep=False)
    mapped(pictures(), "pooling")  # as quick as reading
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_file_is_rewritten(tmp_path, damage):
    data = pictures(tests=0)
    expected = mapped(data, Doubled(), keep=tmp_path).features.copy()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-8] if damage is None else damage)
    np.testing.assert_array_equal(mapped(data, Doubled(), keep=tmp_path).features, expected)
    np.testing.assert_array_equal(np.load(path), expected)


def test_without_a_writable_folder_features_are_computed_in_memory(tmp_path):
    place = tmp_path / "file"
    place.write_text("no folder")
    data = pictures()
    np.testing.assert_array_equal(mapped(data, Doubled(), keep=place).features, 2 * data.features)


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedprivjax.disk_cache.os.replace", full)
    data = pictures()
    np.testing.assert_array_equal(mapped(data, Doubled(), keep=tmp_path).features, 2 * data.features)
    assert files(tmp_path) == []


def test_other_settings_are_other_files(tmp_path):
    data = pictures(tests=0)
    shapes = [mapped(data, Scattering(1, angles), keep=tmp_path).features.shape for angles in (1, 2)]
    assert shapes == [(5, 32), (5, 48)]
    assert len(files(tmp_path)) == 2


def test_flat_examples_take_a_picture_that_is_given():
    flat = datasets.from_arrays(RNG.random((4, 12)), np.arange(4) % 2, feature_bound=4.0, classes=2)
    assert mapped(flat, "pooling", picture=[2, 6]).picture == (1, 3, 1)
    assert mapped(flat, [GroupNorm()], picture=[2, 2, 3]).picture == (2, 2, 3)
    assert mapped(flat, [], picture=[2, 6]).picture == (2, 6, 1)
    assert mapped(flat, "unit_norm").feature_bound == 1.0


@pytest.mark.parametrize(
    ("maps", "options", "message"),
    [
        ("pooling", {}, "features pooling must be of pictures, got examples of 12 numbers"),
        ("pooling", {"picture": [4, 4]}, "picture must have at most 12 numbers, got [4, 4, 1]"),
        ("pooling", {"picture": [3, 4]}, "pooling size must divide the picture's sides (3×4), got 2"),
        ("pooling", {"picture": [12]}, "picture must be [height, width] or [height, width, channels], got [12]"),
        (
            "pooling",
            {"picture": [2.0, 6]},
            "picture must be [height, width] or [height, width, channels], got [2.0, 6]",
        ),
        ("pooling", {"picture": "2x6"}, "picture must be [height, width] or [height, width, channels], got '2x6'"),
        (
            ["constant", "pooling"],
            {"picture": [2, 6]},
            "features pooling must be of pictures, got examples of 13 numbers",
        ),
    ],
)
def test_settings_that_do_not_fit_the_data_are_rejected(maps, options, message):
    flat = datasets.from_arrays(RNG.random((4, 12)), np.arange(4) % 2, feature_bound=4.0, classes=2)
    with pytest.raises(Refusal) as caught:
        mapped(flat, maps, **options)
    assert str(caught.value).startswith(message)


def test_sides_other_than_the_datasets_are_rejected():
    with pytest.raises(Refusal) as caught:
        mapped(pictures(), "pooling", picture=[4, 16])
    assert str(caught.value) == "picture must be [8, 8, 1], as in the dataset, got [4, 16, 1]"


@pytest.mark.parametrize(
    "make", [lambda: datasets.stream(4, 2, test_examples=2), lambda: np.eye(3)], ids=["stream", "array"]
)
def test_only_stored_data_are_mapped(make):
    with pytest.raises(Refusal, match=r"^features must be of a stored Dataset, got "):
        mapped(make(), "unit_norm")


SCALE = 1.0


def test_features_of_a_map_that_computes_something_else_are_computed_again(monkeypatch):
    @dataclass(frozen=True)
    class Scaled(Doubled):
        def __call__(self, examples):
            return SCALE * examples

    data = pictures()
    first = mapped(data, Scaled()).features
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    np.testing.assert_allclose(mapped(data, Scaled()).features, 0.5 * first)
