"""Federations from files of LEAF and TensorFlow Federated, and from columns: numbers, clients, labels, refusals."""

import json

import h5py
import numpy as np
import pytest

from fedprivjax import LSTM, FedAvg, Full, Refusal, experiment, from_dataset, simulate
from fedprivjax.cli import outcome
from fedprivjax.datasets import (
    DataError,
    DataNotFound,
    encode,
    from_huggingface,
    from_leaf,
    from_tff,
    may_share,
)
from fedprivjax.datasets.sequences import CHARACTERS
from fedprivjax.experiment import jobs as listed

RNG = np.random.default_rng(0)


def write_leaf(folder, train, test):
    """Write users' rows {user: (x, y)} as LEAF does, the first user in a file of its own."""
    for part, users in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        names = list(users)
        for index, own in enumerate((names[:1], names[1:])):
            data = {user: {"x": users[user][0], "y": users[user][1]} for user in own}
            content = {"users": own, "num_samples": [len(users[user][1]) for user in own]}
            extra = {"dropped": {"x": [], "y": []}}  # LEAF keeps users of one example here, and not among the users
            path = folder / part / f"all_data_{index}_niid_0_keep_0_{part}_9.json"
            path.write_text(json.dumps({**content, "user_data": data | extra}))
    return folder


def write_tff(path, clients):
    """Write clients' arrays {client: {name: values}} as TensorFlow Federated does."""
    with h5py.File(path, "w") as root:
        for client, arrays in clients.items():
            for name, values in arrays.items():
                kind = {"dtype": h5py.string_dtype()} if np.ndim(values) and isinstance(values[0], str) else {}
                root.create_dataset(f"examples/{client}/{name}", data=values, **kind)
    return path


def images(count):
    return RNG.random((count, 28, 28)).astype(np.float32)


def said(call):
    """Return the message of a Refusal."""
    with pytest.raises(Refusal) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def writers():
    """Images and labels of three writers, for training and for testing."""
    sizes = {"f2_b": (3, 1), "f1_a": (2, 2), "f3_c": (4, 1)}
    parts = [{name: (images(n[k]), RNG.integers(0, 5, n[k])) for name, n in sizes.items()} for k in (0, 1)]
    parts[0]["f2_b"][1][0] = 61  # the last of FEMNIST's classes
    return parts


def check_writers(data, writers):
    """Check a dataset against the writers' arrays."""
    assert data.machine_names == ("f1_a", "f2_b", "f3_c")
    assert (data.picture, data.classes, data.feature_bound) == ((28, 28, 1), 62, pytest.approx(785**0.5))
    tests = (data.test_features, data.test_labels, data.test_machine_of)
    rows = ((data.features, data.labels, data.machine_of), tests)
    for (features, labels, owner), part in zip(rows, writers, strict=True):
        for machine, name in enumerate(data.machine_names):
            own = owner == machine
            np.testing.assert_allclose(data.inputs(features)[own][..., 0], part[name][0], rtol=1e-6)
            assert labels[own].tolist() == part[name][1].tolist()


def test_every_image_and_client_of_leafs_and_tffs_files_and_of_columns(tmp_path, writers):
    train, test = writers
    lists = [{name: (x.reshape(len(x), -1).tolist(), y.tolist()) for name, (x, y) in part.items()} for part in writers]
    data = from_leaf(write_leaf(tmp_path, *lists))
    check_writers(data, writers)
    assert data.not_covered == ("the number of classes is that in the data",)
    assert data.machines_from == "the machines, which are the clients in the data"
    arrays = [{name: {"pixels": x, "label": y} for name, (x, y) in part.items()} for part in writers]
    held = {**arrays[1], "never trained": {"pixels": images(1), "label": [0]}}
    paths = write_tff(tmp_path / "train.h5", arrays[0]), write_tff(tmp_path / "test.h5", held)
    data = from_tff(paths[0], test=paths[1], classes=62, clients=[*train])
    check_writers(data, writers)
    assert (data.not_covered, data.machines_from) == ((), "")

    class Columns:
        """The part of `datasets.Dataset` of Hugging Face that is used: names of columns, and columns by name."""

        column_names = ("image", "writer_id", "character")

        def __init__(self, part):
            self.of = {"image": [], "writer_id": [], "character": []}
            for name, (x, y) in part.items():
                self.of["image"] += list(x)
                self.of["writer_id"] += [name] * len(x)
                self.of["character"] += y.tolist()

        def __getitem__(self, name):
            return iter(self.of[name])  # columns may be lazy

    names = {"client": "writer_id", "features": "image", "label": "character"}
    check_writers(from_huggingface(Columns(train), test=Columns(test), **names), writers)


def test_bytes_are_divided_by_255_and_rows_are_held_out_for_every_client():
    pixels = RNG.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)
    columns = {"image": pixels, "writer": np.arange(40) % 4, "label": np.arange(40) % 3}
    data = from_huggingface(columns, client="writer", features="image", label="label", classes=3, test_fraction=0.2)
    assert np.bincount(data.machine_of).tolist() == [8, 8, 8, 8]
    assert np.bincount(data.test_machine_of).tolist() == [2, 2, 2, 2]
    rows = np.concatenate([data.inputs(data.features), data.inputs(data.test_features)])
    found = {tuple(np.round(255 * row).astype(int).ravel()) for row in rows}
    assert found == {tuple(row.ravel()) for row in pixels.astype(int)}
    few = from_huggingface(columns, client="writer", features="image", label="label", clients=["2"], test_fraction=0)
    assert (few.machine_names, len(few.labels), few.test_labels) == (("2",), 10, None)


def test_leafs_texts_have_its_tokens(tmp_path):
    text = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to su"
    assert (len(text), len(CHARACTERS)) == (80, 80)
    plays = {"HAMLET": ([text, text[1:] + "u"], ["u", "ß"]), "OPHELIA": ([text[:9] + "é" + text[10:]], ["}"])}
    data = from_leaf(write_leaf(tmp_path / "plays", plays, {"HAMLET": ([text], ["u"]), "OPHELIA": ([text], ["u"])}))
    wanted = [[CHARACTERS.find(each) for each in row] for row in plays["HAMLET"][0]]  # as LEAF's word_to_indices
    assert data.features[:2].tolist() == wanted
    assert data.features[2, 9] == 80  # LEAF has −1 for unknown characters
    assert data.labels.tolist() == [CHARACTERS.find("u"), 80, 79]
    assert (data.classes, data.padding, data.not_covered) == (81, 81, ())
    tweets = [["1467810672", "Mon Apr 06", "NO_QUERY", "ann", "so sad"], ["2", "Tue", "NO_QUERY", "ann", "great"]]
    tweeted = {"ann": (tweets, [0, 1]), "bob": (tweets[1:], [1])}
    split = {user: ([[*row, "training"] for row in x], y) for user, (x, y) in tweeted.items()}  # as LEAF's splits write
    data = from_leaf(write_leaf(tmp_path / "tweets", split, tweeted), vocabulary=["sad", "so"], length=3, classes=2)
    assert data.features.tolist() == [[1, 0, 3], [2, 3, 3], [2, 3, 3]]
    assert data.labels.tolist() == [0, 1, 1]


def test_texts_of_tff_have_the_next_tokens_as_labels(tmp_path):
    plays = {"HAMLET": {"snippets": ["abc", "b"]}, "OPHELIA": {"snippets": ["cabac"]}}
    path = write_tff(tmp_path / "shakespeare_train.h5", plays)
    data = from_tff(path, vocabulary="abc", length=4)
    assert data.features.tolist() == [[4, 0, 1, 2], [4, 1, 4, 4], [4, 2, 0, 1]]
    assert data.labels.tolist() == [[0, 1, 2, -1], [1, -1, -1, -1], [2, 0, 1, 0]]
    posts = {"7": {"tokens": ["how to sort", "use sort"], "title": ["sort", "sort"], "score": [3, 4]}}
    path = write_tff(tmp_path / "stackoverflow_train.h5", posts)
    data = from_tff(path, vocabulary=["sort", "to", "use"], length=3)
    assert data.labels.tolist() == [[3, 1, 0], [2, 0, -1]]


def test_only_the_clients_that_are_asked_for_are_read(tmp_path, writers):
    arrays = {name: {"pixels": x, "label": y} for name, (x, y) in writers[0].items()}
    path = write_tff(tmp_path / "train.h5", arrays)
    assert from_tff(path, clients=2).machine_names == ("f1_a", "f2_b")
    assert from_tff(path, clients=["f3_c"]).machine_names == ("f3_c",)
    lists = [{name: (x.reshape(len(x), -1).tolist(), y.tolist()) for name, (x, y) in part.items()} for part in writers]
    folder = write_leaf(tmp_path, *lists)
    assert from_leaf(folder, clients=1).machine_names == ("f2_b",)  # in the order of the files
    assert "got none of 'f9_z'" in said(lambda: from_leaf(folder, clients=["f1_a", "f9_z"]))
    (folder / "train" / "z.json").write_text("damaged")
    assert from_leaf(folder, clients=3).machine_names == ("f1_a", "f2_b", "f3_c")


def test_files_that_declare_too_much_or_lead_elsewhere_are_refused(tmp_path):
    def damaged(change):
        path = write_tff(tmp_path / "train.h5", {"a": {"pixels": images(2), "label": [0, 1]}})
        with h5py.File(path, "a") as root:
            change(root)
        return said(lambda: from_tff(path))

    other = write_tff(tmp_path / "other.h5", {"b": {"pixels": images(1), "label": [1]}})
    link = h5py.ExternalLink(other, "examples/b")
    assert "a link to another object or file" in damaged(lambda root: root["examples"].__setitem__("b", link))

    def everything(root):
        del root["examples"]
        root["examples"] = h5py.ExternalLink(other, "examples")

    assert "a link to another object or file" in damaged(everything)
    huge = {"shape": (10**9, 784), "dtype": "f4", "chunks": (1, 784)}
    assert "declares more than" in damaged(lambda root: root.create_dataset("examples/b/pixels", **huge))
    assert "'examples'" in damaged(lambda root: root.move("examples", "others"))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text("[" * 10**5)
    assert "nested more than 100 deep" in said(lambda: from_leaf(tmp_path))


TEXT = {"a": (["ab"], ["a"])}
LABELLED = {"a": ([[0.0, 1.0]], [0]), "b": ([[1.0, 0.0]], [1])}


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        ({**LABELLED, "b": ([[1.0]], [1, 0])}, LABELLED, {}, "client 'b' must have one label per example, got 2 for 1"),
        ({**LABELLED, "b": ([[1.0], [1.0, 2.0]], [1, 0])}, LABELLED, {}, "must have rows of one shape"),
        ({**LABELLED, "b": ([[1.0]], [1])}, LABELLED, {}, "clients must have examples of one form"),
        (LABELLED, {"c": LABELLED["a"], "d": LABELLED["a"]}, {}, "clients must have examples, got none"),
        (LABELLED, LABELLED, {"classes": 1}, "classes must be at least 2, got 1"),
        (LABELLED, LABELLED, {"clients": 0}, "clients must be at least 1, got 0"),
        (LABELLED, LABELLED, {"clients": -1}, "clients must be at least 1, got -1"),
        ({"a": ({"0": [1.0]}, [1])}, LABELLED, {}, "x and y must be lists"),
        ({"a": ([[]], [1])}, LABELLED, {}, "must"),
        ({**LABELLED, "b": ([[9.0, 0.0]], [1])}, LABELLED, {}, "features must have norm at most feature_bound"),
        (TEXT, TEXT, {"vocabulary": "aba"}, "vocabulary must have different entries"),
    ],
)
def test_each_mistake_is_one_line(tmp_path, train, test, options, message):
    assert message in said(lambda: from_leaf(write_leaf(tmp_path, train, test), **options))


@pytest.mark.parametrize("name", ["all_data_1_niid_0_keep_0_train_9.json", "all_data_0_niid_1_keep_0_train_8.json"])
def test_a_user_in_two_files_is_refused_because_records_would_count_twice(tmp_path, name):
    """Files of another sample or split may lie in the same folder."""
    folder = write_leaf(tmp_path, LABELLED, LABELLED) / "train"
    (folder / name).write_bytes((folder / "all_data_0_niid_0_keep_0_train_9.json").read_bytes())
    assert "client 'a' must be listed once, got it twice" in said(lambda: from_leaf(tmp_path))


def test_missing_files_columns_and_arrays_are_one_line(tmp_path):
    with pytest.raises(DataNotFound, match=r"no JSON files in .*train. Give the folder in which LEAF"):
        from_leaf(tmp_path)
    with pytest.raises(DataNotFound, match=r"no data file 'train.h5'"):
        from_tff(tmp_path / "train.h5")
    path = write_tff(tmp_path / "train.h5", {"a": {"pixels": images(2), "digit": [0, 1]}})
    assert "train.h5: client 'a' must have pixels or image with label" in said(lambda: from_tff(path))
    path = write_tff(tmp_path / "train.h5", {"a": {"pixels": np.float32(1), "label": [0, 1]}})
    assert "train.h5: client 'a' must have pixels or image with label" in said(lambda: from_tff(path))
    columns = {"x": np.ones((2, 1)), "who": ["a", None]}
    assert "must have numbers or texts" in said(lambda: from_huggingface(columns, client="who", features="x"))
    path.write_bytes(b"not HDF5")
    with pytest.raises(DataError, match=r"train.h5 must be a file of TensorFlow Federated"):
        from_tff(path)
    columns = {"train": [1], "test": [2]}
    message = said(lambda: from_huggingface(columns, client="writer_id", features="image"))
    assert "unknown column 'writer_id'" in message


@pytest.mark.slow
def test_an_experiment_file_names_a_federation(tmp_path):
    users = {name: (["abcab", "cabca"], ["c", "b"]) for name in ("ann", "bob", "eve")}
    write_leaf(tmp_path / "plays", users, users)
    (tmp_path / "plays.toml").write_text(
        """
        title = "Plays"
        [problem]
        dataset = "leaf"
        options = { folder = "plays", vocabulary = "abc", length = 5 }
        model = { kind = "lstm", hidden = [4], embedding = 2 }
        [participation]
        kind = "full"
        rounds = 2
        [[protocol]]
        name = "fedavg"
        local_steps = 1
        batch = 2
        step_size = 0.1
        """
    )
    found = experiment.load(tmp_path / "plays.toml")
    assert found.problem.options["folder"] == str(tmp_path / "plays")
    (job,) = listed.jobs(found)
    problem = job.prepare().first.problem
    assert problem.model.function.network == LSTM((4,), 2, scores=4, tokens=5, each=False)
    assert problem.partition_table.names == ("ann", "bob", "eve")
    assert outcome._partition_plot(found) is not None
    write_tff(tmp_path / "plays.h5", {name: {"snippets": x} for name, (x, _) in users.items()})
    made = (
        (tmp_path / "plays.toml")
        .read_text()
        .replace('"leaf"', '"tff"')
        .replace('folder = "plays"', 'file = "plays.h5"')
    )
    (tmp_path / "other.toml").write_text(made)
    assert outcome._partition_plot(experiment.load(tmp_path / "other.toml")) is None  # labels of tokens
    missing = (tmp_path / "plays.toml").read_text().replace('"plays"', '"play"')
    (tmp_path / "other.toml").write_text(missing)
    found = said(lambda: experiment.load(tmp_path / "other.toml"))
    assert "problem.options.folder must be a file or a folder, got 'play'" in found
    (tmp_path / "other.toml").write_text(missing.replace('"play"', "3"))
    assert "leaf option folder must be a path, got 3" in said(lambda: experiment.load(tmp_path / "other.toml"))


def test_files_may_hold_the_records_of_any_other_data():
    assert may_share("leaf", "mnist")
    assert may_share("tff", "leaf")
    assert not may_share("clusters", "tff")


@pytest.mark.slow
def test_a_federation_of_characters_trains(tmp_path):
    users = {name: (["abcab", "cabca"], ["c", "b"]) for name in ("ann", "bob")}
    data = from_leaf(write_leaf(tmp_path, users, users), vocabulary="abc", length=5)
    problem = from_dataset(data, network=LSTM((4,), embedding=2))
    run = simulate(FedAvg(local_steps=2, batch=2, step_size=1.0), problem, Full(2), rounds=20, seed=0)
    assert run.metrics["test_accuracy"][-1] == 1.0
    assert run.predict(encode(["abcab", "cabca"], "abc", 5)).tolist() == [2, 1]


def test_numbers_of_samples_that_disagree_and_links_are_refused(tmp_path):
    users = {"a": ([[0.5]], [1]), "b": ([[0.1], [0.2]], [0, 1])}
    file = sorted((write_leaf(tmp_path / "leaf", users, users) / "test").iterdir())[1]
    whole = file.read_text()
    file.write_text(whole.replace('"num_samples": [2]', '"num_samples": [3]'))
    assert "num_samples must be the number of labels of each user" in said(lambda: from_leaf(tmp_path / "leaf"))
    file.unlink()
    (tmp_path / "elsewhere.json").write_text(whole)
    file.symlink_to(tmp_path / "elsewhere.json")
    assert f"{file.name} must not be a link, got one to" in said(lambda: from_leaf(tmp_path / "leaf"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train").symlink_to(tmp_path / "leaf" / "train")
    assert "train must not be a link" in said(lambda: from_leaf(tmp_path / "other"))
