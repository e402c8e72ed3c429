"""Insurance charges: the file and its faults, the cut, the split and the standardisation on small files."""

import importlib
import re

import numpy as np
import pytest

from fedprivjax.datasets import DataError, DataNotFound, by_machine, load

insurance = importlib.import_module("fedprivjax.datasets.insurance")
HEADER = "age,sex,bmi,children,smoker,region,charges"
REGIONS = ("northeast", "northwest", "southeast", "southwest")


def lines(rows, seed=0):
    """Return synthetic records with distinct charges in random order."""
    rng = np.random.default_rng(seed)
    charges = rng.permutation(rows) * 100 + 1000.5
    return [
        f"{rng.integers(18, 65)},{rng.choice(['female', 'male'])},{rng.uniform(15, 50):.3f},{rng.integers(6)},"
        f"{rng.choice(['yes', 'no'])},{rng.choice(REGIONS)},{charge}"
        for charge in charges
    ]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Function `write(records, header)` that writes a file and returns its path; no user folder, an empty cache."""
    monkeypatch.setattr(insurance, "cache", lambda: tmp_path / "cache")
    monkeypatch.delenv("FEDPRIVJAX_DATA", raising=False)

    def make(records, header=HEADER, name="some.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, *records]) + "\n", encoding="utf-8")
        return str(path)

    return make


def machines_of(data):
    """Return each machine's training records with charges. Its test records have neighbouring charges."""
    whole = np.c_[data.features, data.labels]
    return [whole[part] for part in by_machine(data.machine_of)]


def test_words_become_their_rank_and_a_constant_comes_first(write):
    path = insurance.Path(write(["19,female,27.9,0,yes,southwest,16884.924", "33,male,22.705,3,no,northeast,21984.5"]))
    assert insurance.read_insurance(path).tolist() == [
        [1, 19, 0, 27.9, 0, 1, 3, 16884.924],
        [1, 33, 1, 22.705, 3, 0, 0, 21984.5],
    ]


def test_columns_are_found_by_name(write):
    header = "charges,region,smoker,children,bmi,sex,age"
    path = insurance.Path(write(["5,northwest,no,1,20,male,40"], "\ufeff" + header))
    assert insurance.read_insurance(path).tolist() == [[1, 40, 1, 20, 1, 0, 1, 5]]


@pytest.mark.parametrize(("machines", "rows", "sizes"), [(1, 20, [16]), (3, 31, [8, 8, 7]), (4, 40, [8, 8, 8, 8])])
def test_cut_by_charges_and_a_fifth_held_out(write, machines, rows, sizes):
    data = load("insurance", machines=machines, path=write(lines(rows)))
    assert np.bincount(data.machine_of).tolist() == sizes
    each = -(-rows // machines)
    held_out = [-(-min(each, rows - each * i) // 5) for i in range(machines)]
    tested = np.split(data.test_labels, np.cumsum(held_out)[:-1])
    for i, (train, test) in enumerate(zip(machines_of(data), tested, strict=True)):
        ranks = (np.sort(np.r_[train[:, -1], test]) - 1000.5) / 100
        np.testing.assert_array_equal(ranks, np.arange(each * i, min(each * (i + 1), rows)))


def test_standardised_by_the_machines_own_training_records(write):
    path = write(lines(60))
    data = load("insurance", machines=2, trial=4, path=path)
    raw = {row[-1]: row for row in insurance.read_insurance(insurance.Path(path))}
    for part in by_machine(data.machine_of):
        train = np.array([raw[float(charge)] for charge in data.labels[part]])
        places = slice(None, 6) if part[0] == 0 else slice(6, None)
        test = np.array([raw[float(charge)] for charge in data.test_labels[places]])
        for column in (1, 3):
            mean, deviation = train[:, column].mean(), train[:, column].std(ddof=1)
            found = data.features[part, column], data.test_features[places, column]
            np.testing.assert_allclose(found[0], (train[:, column] - mean) / deviation, atol=1e-6)
            np.testing.assert_allclose(found[1], (test[:, column] - mean) / deviation, atol=1e-6)
        for column in (0, 2, 4, 5, 6):
            np.testing.assert_array_equal(data.features[part, column], train[:, column])
            np.testing.assert_array_equal(data.test_features[places, column], test[:, column])


def test_bound_is_attained_in_training_and_holds_in_testing(write):
    """One of eight training records differs. Test records are 100 standard deviations out, on either side."""
    train, test = np.zeros((8, 8)), np.zeros((2, 8))
    train[0, [1, 3]], test[:, [1, 3]] = 1.0, [[100.0, -100.0], [0.5, 1.0]]
    most = 7 / np.sqrt(8)
    trained, tested = insurance._standardised(train, test, 0)
    np.testing.assert_allclose(trained[0, [1, 3]], most, rtol=1e-12)
    np.testing.assert_allclose(tested[0, [1, 3]], [most, -most], rtol=1e-12)
    np.testing.assert_allclose(tested[1, [1, 3]], [(0.5 - 1 / 8) * np.sqrt(8), most], rtol=1e-12)
    data = load("insurance", machines=1, path=write(lines(10)))
    assert data.feature_bound == pytest.approx(np.sqrt(1 + 2 * most**2 + 20**2 + 1 + 1 + 3**2), rel=1e-12)
    assert data.label_bound == 1e5


def test_trials_are_reproducible_and_differ(write):
    path = write(lines(100))
    one, same, other = (load("insurance", trial=trial, path=path) for trial in (1, 1, 2))
    np.testing.assert_array_equal(one.features, same.features)
    np.testing.assert_array_equal(one.test_labels, same.test_labels)
    assert set(one.test_labels.tolist()) != set(other.test_labels.tolist())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("x,male,20,0,no,northeast,5", "line 3: age must be a number, got 'x'"),
        ("30,male,,0,no,northeast,5", "line 3: bmi must be a number, got ''"),
        ("30,male,20,0,no", "line 3: region must be one of northeast, northwest, southeast, southwest, got ''"),
        ("30,man,20,0,no,northeast,5", "line 3: sex must be one of female, male, got 'man'"),
        ("30,male,20,21,no,northeast,5", "line 3: children must be from 0 to 20, got 21"),
        ("30,male,20,0,no,northeast,100001", "line 3: charges must be from 0 to 100000, got 100001"),
        ("30,male,20,0,no,northeast,-1", "line 3: charges must be from 0 to 100000, got -1"),
        ("30,male,nan,0,no,northeast,5", "line 3: bmi must be from 0 to 300, got nan"),
        ("30,male,20,0,no,northeast,5,6", "line 3 must have as many values as the header, got more"),
    ],
)
def test_a_malformed_record_is_named_in_one_line(write, record, message):
    path = write([*lines(1), record, *lines(20)])
    with pytest.raises(DataError, match=f"^{re.escape(f'{path} {message}')}$"):
        load("insurance", path=path)


def test_a_malformed_file_is_named_in_one_line(write, tmp_path):
    path = write([], "age,sex,bmi,children,smoker,charge")
    message = f"{path} must have the columns {HEADER.replace(',', ', ')}; missing: region, charges"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        load("insurance", path=path)
    with pytest.raises(DataError, match=r"must hold at least 1 records, got 0$"):
        load("insurance", path=write([]))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=rf"^{re.escape(str(binary))} must be a text file of comma-separated values: "):
        load("insurance", path=str(binary))


def test_found_in_the_users_folder_then_in_the_cache(write, tmp_path, monkeypatch):
    monkeypatch.setattr(insurance, "ROWS", 30)
    assert not insurance.available()
    write(lines(30), name="cache/insurance.csv")
    assert insurance.available()
    cached = load("insurance")
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    np.testing.assert_array_equal(load("insurance").features, cached.features)
    write(lines(30, seed=1), name="own/insurance.csv")
    assert (load("insurance").features != cached.features).any()
    write(lines(29), name="own/insurance.csv")
    with pytest.raises(DataError, match=r"own/insurance\.csv must hold 30 records, got 29$"):
        load("insurance")


def test_a_missing_file_names_the_searched_places_and_the_source(write, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    with pytest.raises(DataNotFound) as caught:
        load("insurance")
    assert str(caught.value) == (
        f"cannot find insurance.csv: not at {tmp_path}/own/insurance.csv, nor at {tmp_path}/cache/insurance.csv; get "
        "insurance.csv from Kaggle (Medical cost personal datasets) or from "
        "github.com/stedy/Machine-Learning-with-R-datasets, and set FEDPRIVJAX_DATA to the folder that holds it, or "
        "give its path"
    )
    with pytest.raises(DataNotFound, match=r"^cannot find insurance\.csv: not at nowhere\.csv; get "):
        load("insurance", path="nowhere.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machines": 0}, "machines must be at least 1, got 0"),
        ({"trial": -1}, "trial must be at least 0, got -1"),
        ({"machines": 2.5}, "insurance option machines must be an integer, got 2.5"),
        (
            {"machines": 9},
            "machines must be so few that each has at least 3 of 20 records in groups of ⌈20/machines⌉, got 9",
        ),
    ],
)
def test_refusals(write, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load("insurance", path=write(lines(20)), **options)


def test_a_machine_of_one_age_is_refused(write):
    path = write([f"40,male,{20 + i},0,no,northeast,{i}" for i in range(10)])
    message = "machines must be fewer: age is the same in all 8 training records of machine 0"
    with pytest.raises(ValueError, match=f"^{message}$"):
        load("insurance", machines=1, path=path)


@pytest.mark.skipif(not insurance.available(), reason="insurance.csv is neither in $FEDPRIVJAX_DATA nor in the cache")
@pytest.mark.parametrize(("machines", "last"), [(3, 356), (5, 212), (10, 105)])
def test_the_real_file(machines, last):
    data = load("insurance", machines=machines)
    assert (data.features.shape, data.test_features.shape, data.classes) == ((1068, 7), (270, 7), None)
    assert np.bincount(data.machine_of)[-1] == last
    # the largest charge, and the mean of all
    charges = np.r_[data.labels, data.test_labels]
    assert charges.max() == pytest.approx(63770.428, rel=1e-6)
    assert charges.mean(dtype=np.float64) == pytest.approx(13270.4223, abs=1e-3)
    # no test record is anywhere near where it would be moved
    assert np.abs(data.test_features[:, [1, 3]]).max() < 0.6 * insurance._largest_deviation(last)
    assert np.linalg.norm(data.features, axis=1).max() < data.feature_bound / 3
