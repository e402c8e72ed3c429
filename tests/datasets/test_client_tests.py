"""Clients of held-out examples: where datasets and problems know them, and where they are refused."""

import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax import Refusal, datasets
from fedprivjax.engine.fingerprint import data_fingerprint

X, Y = np.eye(4, dtype=np.float32), [0, 1, 0, 1]


def small(**options):
    given = {"feature_bound": 1.0, "classes": 2, "machine_of": [0, 0, 1, 1]} | options
    return datasets.from_arrays(X, Y, X[:3], Y[:3], **given)


def table(tmp_path, name="people.csv", clients="vuwuvwuvvw", **options):
    path = tmp_path / name
    rows = "".join(f"{index / 10},{'ab'[index % 2]},{client}\n" for index, client in enumerate(clients))
    path.write_text("x,y,who\n" + rows)
    return path


def test_held_out_rows_of_a_table_keep_their_client(tmp_path):
    data = datasets.read_table(table(tmp_path, clients="vuwuvw" * 10), "y", client="who", bounds={"x": [0, 10]})
    values = data.test_features[:, 0] * 5 + 5  # the bounds are mapped to −1 … 1
    rows = np.rint(values * 10).astype(int)
    assert [data.machine_names[client] for client in data.test_machine_of] == [("vuwuvw" * 10)[row] for row in rows]
    assert len(rows) == 12


def test_a_second_file_gives_clients_if_all_are_known(tmp_path):
    options = {"client": "who", "bounds": {"x": [0, 1]}}
    path = table(tmp_path)
    found = datasets.read_table(path, "y", test=table(tmp_path, "test.csv", "wvw"), **options)
    assert found.test_machine_of.tolist() == [2, 1, 2]
    others = table(tmp_path, "others.csv", "wvz")
    assert datasets.read_table(path, "y", test=others, **options).test_machine_of is None


def test_a_problem_has_the_clients_of_its_dataset_only_with_their_partition():
    data = small(test_machine_of=[1, 0, 1])
    assert fpj.from_dataset(data).test_clients.counts.tolist() == [1, 2]
    other = datasets.table([np.array([0, 2]), np.array([1, 3])])[0]
    assert fpj.from_dataset(data, partition_table=other).test_clients is None
    given = fpj.from_dataset(data, partition_table=other, test_machine_of=[0, 0, 0])
    assert given.test_clients.counts.tolist() == [3, 0]
    assert fpj.from_dataset(small()).test_clients is None


def test_a_network_and_a_custom_loss_have_them_too():
    data = small(test_machine_of=[1, 0, 1])
    assert fpj.from_dataset(data, network=fpj.MLP((2,))).test_clients.of.tolist() == [1, 0, 1]
    loss = lambda w, x: np.sum((w - x) ** 2)  # noqa: E731
    made = fpj.general_problem(loss, X, np.zeros(4), test=X[:2], test_machine_of=[2, 0])
    assert made.test_clients.counts.tolist() == [1, 0, 1]


def test_checksums_of_data_tell_clients_apart():
    one, other = (fpj.from_dataset(small(test_machine_of=of)) for of in ([0, 0, 1], [0, 1, 1]))
    assert data_fingerprint(one) != data_fingerprint(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_machine_of": [0, 1]}, r"test_machine_of must be whole numbers of shape \(3,\), .* got int32 of shape"),
        ({"test_machine_of": [0, 1, -1]}, "test_machine_of must not be negative, got -1"),
        ({"test_machine_of": [0, 1, 0.5]}, "test_machine_of must be whole numbers below"),
        (
            {"test_machine_of": [0, 1, 0], "machine_of": None},
            "must go with machine_of and a test set, got no",
        ),
    ],
)
def test_clients_that_do_not_fit_are_refused(options, message):
    with pytest.raises(Refusal, match=message):
        small(**options)


def test_a_client_without_a_machine_is_refused():
    with pytest.raises(Refusal, match="test_machine_of must be at most 1, for 2 machines, got 5"):
        fpj.from_dataset(small(test_machine_of=[0, 1, 5]))
    with pytest.raises(Refusal, match="test_machine_of must go with a test set"):
        fpj.linear_problem(X, np.zeros(4), fpj.Squared(), test_machine_of=[0])
