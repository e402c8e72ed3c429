"""Tables of one's own: every number, label and machine as stated, public bounds held, each mistake in one line."""

import re

import jax
import numpy as np
import pandas as pd
import pytest

from fedprivjax import Ball, Full, Logistic, NoisySGD, Refusal, Softmax, Squared, from_dataset, simulate
from fedprivjax.datasets import DataError, DataNotFound, from_frame, load, read_table
from fedprivjax.datasets.user_table import description
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import LOSSES
from fedprivjax.protocols import PROTOCOLS

pytestmark = pytest.mark.filterwarnings("ignore:.* lie outside ")  # of tests that clip values on purpose
AWKWARD = (
    '\ufeffclinic,age, income,smoker,"town, region",outcome\r\n'
    '"St. Mary\'s, North",34,1e4,yes,"east, inner",ill\r\n'
    '"B ""old""",18,0,no,north,well\r\n'
    '"St. Mary\'s, North",,50000,no,n/a,well\r\n'
    "Ånäs,120,25000,yes,north,ill\r\n"
    '"St. Mary\'s, North",59,100000,no,north,well\r\n'
)
OPTIONS = {
    "target": "outcome",
    "client": "clinic",
    "bounds": {"age": [18, 100], "income": [0, 50_000]},
    "categories": {"town, region": ["north", "east, inner", "unknown"], "smoker": ["no", "yes"]},
    "fill": {"age": 59, "town, region": "unknown"},
    "test_fraction": 0,
}


@pytest.fixture
def awkward(tmp_path):
    path = tmp_path / "awkward.csv"
    path.write_text(AWKWARD, encoding="utf-8", newline="")
    return path


def frame(**columns):
    """A frame of four rows."""
    return pd.DataFrame({"x": [0.0, 10.0, 5.0, 20.0], "who": list("abab"), "y": ["n", "p", "p", "n"]} | columns)


def bounded(table, target="y", **options):
    return from_frame(table, target, **{"client": "who", "bounds": {"x": [0, 20]}, "test_fraction": 0, **options})


def said(call):
    """Return the message of a Refusal."""
    with pytest.raises(Refusal) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_number_of_an_awkward_file(awkward):
    data = read_table(awkward, **OPTIONS)
    age = [(34 - 59) / 41, -1, 0, 1, 0]  # 120 is clipped to 100, a missing value is 59
    income = [-0.6, -1, 1, 0, 1]  # 100000 is clipped to 50000
    smoker = [[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]]
    region = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]
    wanted = np.column_stack([age, income, smoker, region, np.ones(5)])
    np.testing.assert_allclose(data.features, wanted, rtol=1e-6)
    assert data.labels.tolist() == [0, 1, 1, 0, 1]
    assert data.class_names == ("ill", "well")
    assert data.machine_names == ('B "old"', "St. Mary's, North", "Ånäs")
    assert data.machine_of.tolist() == [1, 0, 1, 2, 1]
    assert data.feature_bound == pytest.approx(5**0.5)  # four columns of norm at most 1, and the constant
    assert data.not_covered == ("classes of 'outcome' are those in the data",)
    assert read_table(awkward, **OPTIONS, classes=["well", "ill"]).labels.tolist() == [1, 0, 0, 1, 0]
    assert read_table(awkward, **OPTIONS, classes=["well", "ill"]).not_covered == ()


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_other_files_give_what_a_frame_gives(tmp_path, kind):
    table = frame(x=[1.5, 2.5, -1.0, 30.0])
    path = tmp_path / f"table.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    else:
        np.savez(path, x=table["x"], who=table["who"].to_numpy(str), y=table["y"].to_numpy(str))
    options = {"client": "who", "bounds": {"x": [0, 20]}, "test_fraction": 0.5, "seed": 3}
    read, made = read_table(path, "y", **options), bounded(table, test_fraction=0.5, seed=3)
    for name in ("features", "labels", "test_features", "test_labels", "machine_of"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))


def test_an_archives_images_keep_their_shape_and_bounds_hold_for_each_number(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3) * 10
    np.savez(tmp_path / "images.npz", images=images, digit=[3, 7, 7, 3])
    data = read_table(tmp_path / "images.npz", "digit", bounds={"images": [0, 255]}, test_fraction=0)
    assert data.picture == (2, 3, 1)
    np.testing.assert_allclose(data.inputs(data.features)[..., 0], images / 127.5 - 1, rtol=1e-5, atol=1e-6)
    assert (data.labels.tolist(), data.class_names) == ([0, 1, 1, 0], ("3", "7"))


def test_statistics_are_of_the_training_rows_and_marked():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(50, 9, 300), "z": rng.normal(size=300), "y": rng.normal(size=300)})
    data = from_frame(table, "y", standardise="statistics", bounds={"z": [-1, 1]}, bias=False, feature_bound=9.0)
    assert abs(data.features[:, 0].mean()) < 1e-5
    assert abs(data.features[:, 0].std() - 1) < 1e-5
    assert abs(data.test_features[:, 0].mean()) > 1e-3  # not their own statistics
    assert data.not_covered == ("'x' is standardised by its mean and variance",)
    problem = from_dataset(data, constraint=Ball(1.0))
    run = simulate(NoisySGD(mu=1.0, clip=1.0), problem, Full(3), rounds=2)
    assert run.non_private_data == data.not_covered


def test_longer_rows_are_shortened_to_the_bound_and_no_others():
    data = bounded(frame(z=[3.0, 0.0, 0.0, 4.0]), features=["x", "z"], bounds={}, feature_bound=5.0, bias=False)
    norms = np.linalg.norm(data.features, axis=1)
    np.testing.assert_allclose(norms, [3, 5, 5, 5], rtol=1e-6)
    np.testing.assert_allclose(data.features[3], np.array([20, 4]) * 5 / 416**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "options", "classes"),
    [
        ([1, 2, 2, 1], {}, ("1", "2")),
        ([-1.0, 1.0, 1.0, -1.0], {}, ("-1", "1")),
        ([10, 9, 9, 10], {}, ("9", "10")),  # by size, not by the alphabet
        ([True, False, True, False], {}, ("False", "True")),
        ([0.5, 1.5, 2.0, 3.0], {}, ()),
        ([1, 2, 2, 1], {"task": "regression"}, ()),
        ([0, 1, 1, 0], {"classes": [0, 1, 2]}, ("0", "1", "2")),
    ],
)
def test_the_kind_of_the_target_decides_the_task(values, options, classes):
    data = bounded(frame(y=values), **options)
    assert data.class_names == classes
    assert data.classes == (len(classes) or None)
    if not classes:
        np.testing.assert_allclose(data.labels, values)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1,200", "31,050", "2,000,000", "990,001"], "numbers"),
        (["1,200", "31,050", "2,000,000", "many"], "numbers"),
        (["2024-01-31", "2023-12-01", "2024-02-29", "2020-01-01"], "dates"),
        (["31/01/2024", "1/12/2023", "29/02/2024", "unknown"], "dates"),
        (["3 May 2024", "4 June 2024", "1 July 2023", "1 May 2023"], "dates"),
        (["Jan 3, 2024", "Feb 4, 2024", "Mar 5, 2024", "Apr 6, 2024"], "dates"),
        (["2024-01-31 12:30:00", "2023-12-01 07:00:00", "2024-02-29 08:15:00", "2020-01-01 23:59:59"], "dates"),
        (["12:30", "07:00", "23:15", "08:08"], "dates"),
    ],
)
def test_texts_that_are_numbers_or_dates_are_not_taken_for_words(texts, kind):
    line = said(lambda: bounded(frame(x=texts), bounds={}))
    remedy = "Leave it out of features" if kind == "dates" else "Load the table with a custom function"
    start = f"column 'x' must hold numbers or words, got {kind} as text, such as {texts[0]!r}. {remedy}, "
    assert line.startswith(start)
    assert line.endswith(", or give its categories")
    with_categories = bounded(frame(x=texts), bounds={}, categories={"x": texts})
    np.testing.assert_array_equal(with_categories.features[:, :4], np.eye(4))


def test_texts_of_a_target_are_classes_if_they_are_words_or_declared():
    days = ["2024-01-31", "2023-12-01", "2024-02-29", "2020-01-01"]
    line = said(lambda: bounded(frame(y=days)))
    assert line.startswith("column 'y' must hold numbers or words, got dates as text, such as '2024-01-31'. ")
    assert line.endswith(", or give its classes")
    for declared in ({"classes": days}, {"task": "classification"}):
        assert sorted(bounded(frame(y=days), **declared).class_names) == sorted(days)
    names = pd.DataFrame({"y": [f"person {row}" for row in range(101)], "x": 1.0})
    line = said(lambda: bounded(names, client=None))
    assert line.startswith("column 'y' must hold numbers or at most 100 different texts, got 101: ")


@pytest.mark.parametrize(
    "texts",
    [
        ["north", "south", "a, b", "north"],
        ["Jan", "Feb", "May", "Sun"],
        ["18-30", "31-50", "51-70", "10-12"],
        ["<5", "5+", "A1", "B 12"],
        ["1,200", "31,050", "none", "few"],
    ],
)
def test_words_with_digits_in_them_stay_words(texts):
    assert bounded(frame(x=texts), bounds={}).not_covered[0] == "categories of 'x' are those in the data"


def test_a_separator_among_numbers_is_refused_with_a_way_forward():
    line = said(lambda: bounded(frame(x=["1,200", "999", "31,050", "7"])))
    assert line == (
        "column 'x' must hold numbers, got '1,200' (row 1 of the data). "
        'Load the table with a custom function, dataset = "module:load"'
    )


def test_many_different_whole_numbers_are_numbers():
    table = pd.DataFrame({"x": np.linspace(0, 1, 21), "y": np.arange(21)})
    assert from_frame(table, "y", bounds={"x": [0, 1]}).classes is None
    assert from_frame(table[:20], "y", bounds={"x": [0, 1]}).classes == 20


def test_values_outside_of_bounds_are_warned_of_by_column():
    wide = {f"c{i}": [1.0, 2.0, 3.0, 4.0] for i in range(11)}
    with pytest.warns(UserWarning, match="lie outside") as caught:
        bounded(frame(y=[0.0, 7.5, 12.0, 5.0]), bounds={"x": [0, 3], "y": [0, 10]})
    assert [str(each.message) for each in caught] == [
        "x: 75% of 4 rows lie outside [0, 3] and are moved to it. No guarantee covers this count",
        "y: 25% of 4 rows lie outside [0, 10] and are moved to it. No guarantee covers this count",
    ]
    with pytest.warns(UserWarning, match="lie outside|1 more columns have values outside") as caught:
        bounded(frame(**wide), features=list(wide), bounds={name: [0, 1] for name in wide})
    assert len(caught) == 11


def test_a_share_near_one_is_a_percentage():
    table = pd.DataFrame({"x": [0.5] + [2.0] * 199, "y": [0, 1] * 100})
    with pytest.warns(UserWarning, match=r"^x: 99\.5% of 200 rows"):
        from_frame(table, "y", bounds={"x": [0, 1]}, test_fraction=0)
    with pytest.warns(UserWarning, match=r"^x: 100% of 199 rows"):
        from_frame(table[1:], "y", bounds={"x": [0, 1]}, test_fraction=0)


def test_a_targets_bounds_scale_it_and_bound_the_loss():
    with pytest.warns(UserWarning, match=r"^y: 25% of 4 rows lie outside \[0, 10\]"):
        data = bounded(frame(y=[0.0, 7.5, 12.0, 5.0]), bounds={"x": [0, 20], "y": [0, 10]})
    assert (data.labels.tolist(), data.label_bound) == ([-1, 0.5, 1, 0], 1.0)


def test_a_large_target_without_bounds_is_warned_of():
    large = frame(y=[100.5, 3000.0, 2.5, 1.5])
    with pytest.warns(UserWarning, match=r'used in its own units.* Set bounds = \{ "y" = \[low, high\] \} to scale it'):
        data = bounded(large)
    np.testing.assert_allclose(data.labels, large["y"])
    bounded(large, bounds={"x": (0, 1), "y": (0, 5000)})  # no warning


def test_every_client_holds_out_the_same_fraction_and_keeps_a_row():
    sizes = [1, 2, 3, 40, 100]
    who = np.repeat(list("abcde"), sizes)
    table = pd.DataFrame({"x": np.arange(146.0), "who": who, "y": np.arange(146) % 2})
    held = []
    for seed in (0, 1):
        data = from_frame(table, "y", client="who", bounds={"x": [0, 145]}, test_fraction=0.25, seed=seed)
        left = np.bincount(data.machine_of, minlength=5)
        assert (left >= np.maximum(1, 0.75 * np.array(sizes) - 1)).all()
        assert (left <= 0.75 * np.array(sizes) + 1).all()
        both = np.concatenate([data.features, data.test_features])[:, 0]
        assert np.unique(both).size == 146
        held.append(np.sort(data.test_features[:, 0]).tolist())
    assert held[0] != held[1]


def test_a_second_file_is_the_test_set(tmp_path):
    frame().to_csv(tmp_path / "train.csv", index=False)
    frame(x=[20, 20, 0, 0]).drop(columns="who").to_csv(tmp_path / "test.csv", index=False)
    options = {"client": "who", "bounds": {"x": [0, 20]}, "test": tmp_path / "test.csv", "bias": False}
    data = read_table(tmp_path / "train.csv", "y", **options)
    assert data.features.ravel().tolist() == [-1, 0, -0.5, 1]
    assert data.test_features.ravel().tolist() == [1, 1, -1, -1]


def test_listed_clients_are_machines_in_that_order():
    assert bounded(frame(), clients=["b", "a"]).machine_of.tolist() == [1, 0, 1, 0]
    dropped = bounded(frame(), clients=["c", "b", "d", "a"], empty="drop")
    assert (dropped.machine_of.tolist(), dropped.machine_names) == ([1, 0, 1, 0], ("b", "a"))
    assert bounded(frame(who=[10, 9, 9, 10])).machine_names == ("9", "10")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"bounds": {"xx": [0, 1]}}, "unknown column in bounds 'xx', did you mean 'x'?"),
        ({}, {"client": "whom"}, "unknown column 'whom', did you mean 'who'?"),
        ({}, {"features": ["x", "y"]}, "features must be without the target and the client, got 'y'"),
        ({"x": ["1", "2", "3", "n.a."]}, {}, "column 'x' must hold numbers, got 'n.a.' (row 4 of the data)"),
        ({"x": [1, np.inf, 2, 3]}, {}, "column 'x' must be finite, got inf (row 2 of the data)"),
        ({"x": [1.0 + 1j] * 4}, {}, "column 'x' must hold real numbers, got (1+1j). Use its real part"),
        ({"x": pd.to_datetime(["2020-01-01"] * 4)}, {}, "column 'x' must hold numbers, got dates, such as 2020-01-01"),
        (
            {"x": [1, None, None, 3]},
            {},
            "column 'x' must have a value in every row, got 2 missing (first in row 2 of the data): "
            'fill = { "x" = … } puts a public value there',
        ),
        (
            {"who": ["a", None, "a", "b"]},
            {},
            "column 'who' must have a value in every row, got 1 missing (first in row 2 of the data): "
            "leave that row out of the table",
        ),
        (
            {"y": ["n", None, None, "n"]},
            {},
            "column 'y' must have a value in every row, got 2 missing (first in row 2 of the data): "
            "leave those rows out of the table",
        ),
        ({}, {"fill": {"x": "none"}}, "fill of 'x' must be a number, as the column, got 'none'"),
        (
            {},
            {"bounds": {}},
            "bounds of 'x' must be given. Set public limits, such as bounds = { \"x\" = [low, high] }",
        ),
        ({}, {"bounds": {"x": [5, 5]}}, "bounds of 'x' must be two numbers [low, high] with low < high, got [5, 5]"),
        ({}, {"classes": ["n", "q"]}, "column 'y' must be one of n, q, got 'p' (row 2 of the data)"),
        ({}, {"clients": ["a"]}, "column 'who' must be one of a, got 'b' (row 2 of the data)"),
        (
            {},
            {"clients": ["a", "b", "c"]},
            "clients must have a row each, got none of 'c': empty = \"drop\" leaves them",
        ),
        ({}, {"categories": {"x": [0, 5, 10]}}, "column 'x' must be one of 0, 5, 10, got '20' (row 4 of the data)"),
        ({"y": ["n"] * 4}, {}, "target 'y' must have at least two classes, got 'n' in every row. Choose"),
        (
            {"y": [0, 1, 2.5, 1]},
            {"task": "classification"},
            "column 'y' must hold classes, whole numbers or texts, got 2.5",
        ),
        ({}, {"task": "regression"}, "column 'y' must hold numbers, got 'n' (row 1 of the data)"),
        ({}, {"test_fraction": 1.0}, "test_fraction must be at least 0 and below 1, got 1.0"),
        (
            {},
            {"bond": {}},
            "unknown option of a table 'bond', did you mean 'bounds'? (known: test, target, features, client, clients, "
            "task, classes, bounds, standardise, categories, fill, test_fraction, seed, feature_bound, bias, empty)",
        ),
        ({}, {"clients": "who"}, "clients must be a list of their names, got 'who': client is the column's key"),
        ({}, {"standardise": "mean"}, "unknown standardise 'mean' (known: statistics)"),
        ({}, {"features": "x"}, "features must be a list and not empty, got 'x'"),
    ],
)
def test_invalid_values_are_rejected_by_column_and_row(columns, options, message):
    assert said(lambda: bounded(frame(**columns), **options)).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv must have a line of column names and rows, got an empty file"),
        ("a.csv", b"x,y\n", "a.csv must have at least one row, got none"),
        ("a.csv", b"x,y,x\n1,2,3\n", "a.csv must have columns of different names, got 'x' twice"),
        ("a.csv", b"x,y\n1,\xff\n", "a.csv must be a CSV file in UTF-8: "),
        ("a.csv", b"x,y\n1,2\n1,2,3\n", "a.csv must be a CSV file in UTF-8: "),
        ("a.parquet", b"no", "a.parquet must be a Parquet file: "),
        ("a.npz", b"no", "a.npz must be an archive of plain arrays, as np.savez writes it: "),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        read_table(tmp_path / name, "y", bounds={"x": [0, 1]})


@pytest.mark.parametrize("cell", ["9" * 400, f"-{'9' * 5000}", "1e400"])
def test_numbers_beyond_those_of_a_computer_are_refused(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"x,y\n0.5,1\n{cell},0\n", encoding="utf-8")
    line = said(lambda: read_table(tmp_path / "a.csv", "y", bounds={"x": [0, 1]}))
    assert "x" in line
    assert "\n" not in line
    assert len(line) < 400


def test_missing_files_and_files_that_do_not_match(tmp_path):
    missing = rf"^no data file 'absent\.csv' in {tmp_path}"
    with pytest.raises(DataNotFound, match=rf"{missing}\. Check the name, or give the file's full path$"):
        read_table(tmp_path / "absent.csv", "y")
    (tmp_path / "absence.csv").touch()
    with pytest.raises(DataNotFound, match=rf"{missing}, did you mean 'absence\.csv'\?$"):
        read_table(tmp_path / "absent.csv", "y")
    np.savez(tmp_path / "two.npz", x=np.ones(3), y=np.ones(4))
    with pytest.raises(DataError, match=r"^two\.npz must have arrays of one length, got x 3, y 4$"):
        read_table(tmp_path / "two.npz", "y")
    assert said(lambda: read_table(tmp_path / "two.npz")) == "target must be given: the column that is predicted"
    assert said(lambda: from_frame([1], "y")) == "frame must be a pandas DataFrame, got list"  # pyright: ignore


def test_parquet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert said(lambda: read_table(tmp_path / "a.parquet", "y")) == (
        "a.parquet needs pyarrow: pip install 'fedprivjax[parquet]'"
    )


LOCAL_WORK = {"unit": "record", "epsilon": 2.0, "clip": 0.5, "batch": 2, "local_epochs": 1}
SETTINGS = {
    "dp_mu2": {"mu": 1.0, "clip": 0.5},
    "noisy_sgd": {"mu": 1.0, "clip": 0.5},
    "stale_momentum": {"mu": 1.0, "clip": 0.5},
    "fedavg": LOCAL_WORK,
    "scaffold": LOCAL_WORK,
    "user_sgd": {"epsilon": 2.0},
    "user_agd": {"epsilon": 2.0},
    "tree_momentum": {"epsilon": 2.0, "clip": 0.5, "batch": 1},
    "reduced_tree_momentum": {"epsilon": 2.0, "clip": 0.5, "batch": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_method_takes_clients_of_unequal_sizes(name):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(-1, 1, 37), "who": np.repeat(list("abc"), [5, 12, 20])})
    table["y"] = np.where(table["x"] > 0, "high", "low")
    data = from_frame(table, "y", client="who", bounds={"x": [-1, 1]})
    problem = from_dataset(data, constraint=Ball(2.0))
    sizes = np.bincount(data.machine_of)
    assert np.unique(sizes).size == 3
    settings = SETTINGS.get(name, {"epsilon": 2.0, "clip": 0.5, "batch": 2})
    rounds = sizes.max() if "tree" in name else 3
    run = simulate(PROTOCOLS[name][0](step_size=0.1, **settings), problem, Full(3), rounds=int(rounds))
    assert not run.diverged
    assert run.guarantee.epsilon_at(1e-5) <= (4.4 if "mu" in settings else 2.001)  # 1-GDP is ε = 4.38
    owner = np.full(data.labels.size, -1)
    for machine, row in enumerate(problem.partition_table.rows):
        owner[row[row >= 0]] = machine
    np.testing.assert_array_equal(owner, data.machine_of)


@pytest.mark.parametrize(
    ("values", "named", "losses"),
    [
        ("no yes", "2 classes (no, yes)", "'logistic', 'hinge' or 'softmax'"),
        ("no yes maybe", "3 classes (maybe, no, yes)", "'softmax'"),
        ("no yes maybe never", "4 classes (maybe, never, no, …)", "'softmax'"),
    ],
)
def test_a_loss_of_numbers_is_refused_on_named_classes(values, named, losses):
    labels = values.split()
    data = from_frame(pd.DataFrame({"x": np.linspace(0, 1, len(labels)), "y": labels}), "y", bounds={"x": [0, 1]})
    with pytest.raises(Refusal) as refused:
        from_dataset(data, Squared(2.0))
    wanted = f"loss must be one that classifies, for labels are {named}, got Squared. "
    assert str(refused.value) == wanted + f"Set loss = {losses}, or classifies = True in a custom loss"
    assert from_dataset(data).model.loss.classifies


def test_a_refused_loss_of_two_classes_is_told_every_loss_that_classifies():
    data = from_frame(pd.DataFrame({"x": [0.0, 1.0], "y": ["no", "yes"]}), "y", bounds={"x": [0, 1]})
    with pytest.raises(Refusal) as refused:
        from_dataset(data, Squared(2.0))
    named = re.findall("'(.*?)'", str(refused.value))
    assert sorted(named) == sorted(name for name, kind in LOSSES.items() if kind is Softmax or kind.classifies is True)


def test_a_custom_loss_that_classifies_takes_the_classes_of_its_label_range():
    class Tempered(Logistic):
        def label_range(self):
            return (-np.inf, np.inf)

    class OneScore(LinearLoss):
        classifies = True

        def value(self, score, label):
            return jax.nn.softplus(-(2 * label - 1) * score)

    frame = pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.4], "y": ["no", "yes", "may be", "no"]})
    data = from_frame(frame, "y", bounds={"x": [0, 1]})
    assert isinstance(from_dataset(data, Tempered()).model.loss, Tempered)
    with pytest.raises(Refusal, match=r"^loss must take the 3 classes of 'y', got OneScore, which takes 2\."):
        from_dataset(data, OneScore())
    two = from_frame(frame[frame["y"] != "may be"], "y", bounds={"x": [0, 1]})
    problem = from_dataset(two, OneScore(), lipschitz=2.0)
    assert problem.model.correct(problem.start, problem.take(0, 0)) == 1.0


def test_a_frame_given_as_a_path_names_from_frame():
    with pytest.raises(Refusal, match=r"^path must be a file, got a DataFrame. Use from_frame\(frame, target\)"):
        read_table(pd.DataFrame({"x": [1.0], "y": [2.0]}), "y")  # pyright: ignore[reportArgumentType]


def test_a_description_names_classes_and_machines():
    frame = pd.DataFrame({"x": np.zeros(60), "who": np.repeat(np.arange(30), 2), "y": ["no", "yes"] * 30})
    data = from_frame(frame, "y", client="who", bounds={"x": [0, 1]}, test_fraction=0.5)
    line = description(data)
    assert line.startswith(
        "frame: 30 training and 30 test rows; 30 machines: 0 = '0', 1 = '1', 2 = '2', …, 29 = '29'; "
    )
    assert line.endswith("classes: 0 = 'no', 1 = 'yes'")
    assert description(load("digits")) == ""
