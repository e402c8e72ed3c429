"""Datasets of clients: files of LEAF and of TensorFlow Federated, and columns such as those of Hugging Face."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.bounded_read import MIB, Unreadable, json_value, text_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.datasets.dataset import DataError, DataNotFound, Dataset, from_arrays
from fedprivjax.datasets.sequences import CHARACTERS, encode, from_sequences
from fedprivjax.datasets.user_table import split_rows

LEAF_BYTES = 4096 * MIB  # largest JSON file: a hundred writers of FEMNIST are a few hundred MiB
TWEET = 4  # place of the text in a row of Sent140: number, date, query, user, text, and since LEAF's split its part
SIDE = 28  # of FEMNIST's images, which LEAF writes in one row
GROUP = "examples"  # of TensorFlow Federated's files
FIELDS = {"pixels": "label", "image": "label", "snippets": None, "tokens": None}  # arrays of a client, and their labels
Clients = int | Sequence[str] | None


class Rows(NamedTuple):
    """Rows of a federation: client of each row, features or texts, and labels, or None to predict the next token."""

    clients: np.ndarray
    features: np.ndarray
    labels: np.ndarray | None

    def at(self, rows: np.ndarray) -> "Rows":
        """Return these rows."""
        return Rows(self.clients[rows], self.features[rows], None if self.labels is None else self.labels[rows])


def from_leaf(
    folder: str | Path,
    *,
    clients: Clients = None,
    classes: int | None = None,
    vocabulary: str | Sequence[str] = CHARACTERS,
    length: int = 80,
) -> Dataset:
    """Load a dataset partitioned by client from files of LEAF, such as FEMNIST, Shakespeare or Sent140.

    LEAF's users become machines.

    The L2 norm of an example of p numbers must be at most √p. An example of 784 numbers is taken as an image of 28×28
    pixels. `encode` converts texts, and labels that are characters, to tokens.

    Args:
        folder: folder with the subfolders `train` and `test` of JSON files, as LEAF's `preprocess.sh -t sample` writes
            them.
        clients: users to read: a list of names, or n for the first n users in the files. None reads all users.
        classes: number of classes. None is the largest label in the data plus one. If `classes` is None, results state
            that the number of classes is not private.
        vocabulary: public characters as one text, or a list of words. The default is the 80 characters of LEAF's
            dataset of Shakespeare's plays.
        length: number of tokens per text.

    Raises:
        DataNotFound: if there are no JSON files in `train` or `test`.
        DataError: if a file does not have LEAF's format, or if a folder or file is a link.
    """
    train = _rows(_leaf(Path(folder) / "train", _wanted(clients)))
    test = _rows(_leaf(Path(folder) / "test", train.clients.tolist()))
    return _dataset("leaf", train, test, clients, classes, vocabulary, length)


def from_tff(
    file: str | Path,
    *,
    test: str | Path | None = None,
    clients: Clients = None,
    classes: int | None = None,
    vocabulary: str | Sequence[str] = CHARACTERS,
    length: int = 80,
) -> Dataset:
    """Load a dataset partitioned by client from HDF5 files of TensorFlow Federated.

    The files may hold EMNIST, CIFAR-100, Shakespeare or Stack Overflow. Every client becomes a machine.

    `encode` converts snippets of Shakespeare and sentences of Stack Overflow to tokens. The model predicts each token
    from the tokens before it. A record is a snippet or a sentence. Pixels that are stored as bytes, 0 … 255, are
    divided by 255.

    Args:
        file: file such as fed_emnist_train.h5.
        test: file of the held-out examples, or None. Held-out examples of clients without training examples are left
            out.
        clients: clients to read: a list of names, or n for the first n names in sorted order. None reads all clients.
        classes: number of classes. None is the largest label in the data plus one. If `classes` is None, results state
            that the number of classes is not private.
        vocabulary: public characters as one text, or a list of words. The default is the 80 characters of LEAF's
            dataset of Shakespeare's plays.
        length: number of tokens per text.

    Raises:
        DataNotFound: if there is no such file.
        DataError: if the file does not have TensorFlow Federated's format.
    """
    train = _rows(_tff(Path(file), _wanted(clients)))
    held = None if test is None else _rows(_tff(Path(test), train.clients.tolist()))
    return _dataset("tff", train, held, clients, classes, vocabulary, length)


def from_huggingface(
    dataset: Any,
    *,
    client: str,
    features: str,
    label: str | None = None,
    test: Any = None,
    clients: Sequence[str] | None = None,
    classes: int | None = None,
    vocabulary: str | Sequence[str] = CHARACTERS,
    length: int = 80,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return a dataset partitioned by client, from columns such as the columns of a Hugging Face `Dataset`.

    Args:
        dataset: object that maps names to columns. A column has a number, an array, an image or a text for each row.
        client: column with the client of each row. Every client becomes a machine. Machines are in the sorted order of
            the clients' names.
        features: column from which the label is predicted. Bytes, 0 … 255, are divided by 255. The L2 norm of an
            example of p numbers must be at most √p.
        label: column to predict, or None for the next token of a text. `encode` converts texts to tokens.
        test: held-out rows with the same columns, or None to hold out `test_fraction` of each client's rows.
        clients: names of the clients to use, or None for all.
        classes: number of classes. None is the largest label in the data plus one. If `classes` is None, results state
            that the number of classes is not private.
        vocabulary: public characters as one text, or a list of words. The default is the 80 characters of LEAF's
            dataset of Shakespeare's plays.
        length: number of tokens per text.
        test_fraction: fraction of each client's rows that is held out for testing, if `test` is None.
        seed: seed of the choice of held-out rows.

    >>> columns = {"image": np.zeros((4, 2, 2)), "character": [0, 1, 1, 0], "writer_id": ["a", "b", "a", "b"]}
    >>> data = from_huggingface(columns, client="writer_id", features="image", label="character", test_fraction=0.0)
    >>> data.machine_of.tolist(), data.machine_names, data.picture
    ([0, 1, 0, 1], ('a', 'b'), (2, 2, 1))
    """

    def rows(given: Any) -> Rows:
        names = [client, features, *filter(None, [label])]
        for name in names:
            require_choice("column", name, list(getattr(given, "column_names", given)))
        owner, *columns = (_stacked(name, given[name]) for name in names)
        of = Rows(owner.astype(str), columns[0], columns[1] if label else None)
        return of if clients is None else of.at(np.isin(of.clients, list(map(str, clients))))

    train, held = rows(dataset), None if test is None else rows(test)
    if held is None:
        kept, rest = split_rows(
            len(train.clients), np.unique(train.clients, return_inverse=True)[1], test_fraction, seed
        )
        train, held = train.at(kept), train.at(rest) if len(rest) else None
    return _dataset("columns", train, held, clients, classes, vocabulary, length)


def _wanted(clients: Clients) -> Clients:
    """Return the clients to read. Raise Refusal for a number below 1."""
    if isinstance(clients, int):
        require_at_least("clients", clients, 1)
    return clients


def _leaf(folder: Path, wanted: Clients) -> Iterable[tuple[str, Any, Any]]:
    """Return the name, features and labels of each wanted user in the JSON files of a folder."""
    files = sorted(file for file in folder.glob("*.json") if file.is_file())
    if not files:
        remedy = "Give the folder in which LEAF's preprocess.sh -t sample wrote train and test"
        raise DataNotFound(f"no JSON files in {folder.resolve()}. {remedy}")
    link = next((one for one in (folder, *files) if one.is_symlink()), None)
    if link is not None:
        raise DataError(f"{link.name} must not be a link, got one to {link.readlink()}. Copy what it names")

    def users() -> Iterator[tuple[str, Any, Any]]:
        for file in files:
            try:
                content = json_value(text_of(file, LEAF_BYTES))
                found = [(user, *(content["user_data"][user][key] for key in "xy")) for user in content["users"]]
                if not all(isinstance(each, list) for _, *lists in found for each in lists):
                    raise TypeError("x and y must be lists")
                if content.get("num_samples") not in (None, [len(y) for _, _, y in found]):
                    raise TypeError("num_samples must be the number of labels of each user")
            except (Unreadable, LookupError, TypeError) as error:
                wanted = "must be a JSON file of LEAF, with users, user_data, and x and y of each user"
                raise DataError(f"{file.name} {wanted}: {error}") from None
            for user, x, y in found:
                tweets = bool(x) and all(isinstance(row, list) and len(row) > TWEET for row in x)
                tweets = tweets and isinstance(x[0][TWEET], str)
                yield user, [row[TWEET] for row in x] if tweets else x, y

    if wanted is None or isinstance(wanted, int):
        return islice(users(), wanted)
    known = set(wanted)
    return (each for each in users() if each[0] in known)


def _tff(path: Path, wanted: Clients) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, features and labels of each wanted client in an HDF5 file."""
    import h5py

    from fedprivjax.hdf5_limits import require_bounded

    if not path.is_file():
        raise DataNotFound(f"no data file {path.name!r} in {path.parent.resolve()}. Check the name")
    try:
        require_bounded(path, only={GROUP.encode(): {}})
        with h5py.File(path, "r") as root:
            known: Any = root[GROUP]
            names = sorted(known if wanted is None or isinstance(wanted, int) else set(known) & set(wanted))
        names = names[: wanted if isinstance(wanted, int) else None]
        require_bounded(path, only={GROUP.encode(): {name.encode(): None for name in names}})
    except Unreadable as error:
        raise DataError(
            f"{path.name} must be a file of TensorFlow Federated, with a group {GROUP!r}: {error}"
        ) from None
    with h5py.File(path, "r") as root:
        for name in names:
            group: Any = root[GROUP][name]  # pyright: ignore[reportIndexIssue]
            members: Any = group.items() if isinstance(group, h5py.Group) else ()
            stored = {field: each for field, each in members if isinstance(each, h5py.Dataset) and each.shape}
            used = next(
                (field for field, label in FIELDS.items() if field in stored and (label or field) in stored), ""
            )
            if not used:
                raise DataError(
                    f"{path.name}: client {name!r} must have pixels or image with label, snippets or tokens"
                )
            target = FIELDS[used]
            yield name, stored[used][()], None if target is None else stored[target][()]


def _rows(found: Iterable[tuple[str, Any, Any]]) -> Rows:
    """Return the rows of all clients together."""
    parts, seen = [], set()
    for name, own, targets in found:
        if name in seen:
            raise DataError(
                f"client {name!r} must be listed once, got it twice, which would double its records. Remove the JSON "
                f"files of another sample or split from the folder"
            )
        seen.add(name)
        if len(own):
            one, label = (None if each is None else _stacked(f"client {name!r}", each) for each in (own, targets))
            if label is not None and len(label) != len(own):
                raise DataError(f"client {name!r} must have one label per example, got {len(label)} for {len(own)}")
            parts.append(([name] * len(own), one, label))
    if not parts:
        raise Refusal("clients must have examples, got none. Check their names, and that test has the same clients")
    try:
        return Rows(*(None if each[0] is None else np.concatenate(each) for each in zip(*parts, strict=True)))  # pyright: ignore
    except ValueError as error:
        raise DataError(f"clients must have examples of one form: {error}") from None


def _stacked(name: str, values: Any) -> np.ndarray:
    """Return numbers as an array [rows, …], and texts as objects [rows]."""
    values = values if isinstance(values, np.ndarray) else list(values)
    if len(values) and all(isinstance(each, str | bytes) for each in values):
        return np.array([each if isinstance(each, str) else each.decode("utf-8", "replace") for each in values], object)
    try:
        found = values if isinstance(values, np.ndarray) else np.stack([np.asarray(each) for each in values])
    except ValueError:
        raise DataError(f"{name} must have rows of one shape, got several") from None
    if found.dtype.kind not in "fiub":
        raise DataError(f"{name} must have numbers or texts, got {found.dtype}")
    return found.astype(np.float32) if found.dtype == np.float64 else found


def _dataset(
    name: str,
    train: Rows,
    test: Rows | None,
    wanted: Clients,
    classes: int | None,
    vocabulary: str | Sequence[str],
    length: int,
) -> Dataset:
    """Return the dataset of a federation, whose machines are the clients with training rows, in sorted order."""
    machines = np.unique(train.clients)
    named = [] if wanted is None or isinstance(wanted, int) else [str(each) for each in wanted]
    bare = sorted(set(named) - set(machines.tolist()))
    if bare:
        raise Refusal(f"clients must have a row each, got none of {', '.join(map(repr, bare[:5]))}. Leave them out")
    parts = [train] if test is None else [train, test.at(np.isin(test.clients, machines))]
    guessed = classes is None and train.labels is not None and train.labels.dtype.kind in "iub"
    if guessed:
        classes = 1 + max(int(each.labels.max(initial=1)) for each in parts if each.labels is not None)
    elif train.labels is not None and train.labels.dtype.kind == "O":
        parts = [each._replace(labels=encode(np.asarray(each.labels).tolist(), vocabulary, 1)[:, 0]) for each in parts]
        classes = len(vocabulary) + 1
    owners = [np.searchsorted(machines, each.clients) for each in parts]
    options: dict[str, Any] = {"name": name, "classes": classes}
    options |= dict(zip(("machine_of", "test_machine_of"), owners, strict=False))
    if train.features.dtype.kind == "O":
        pairs: list[Any] = [
            each for rows in parts for each in (encode(rows.features.tolist(), vocabulary, length), rows.labels)
        ]
        made = from_sequences(*pairs, tokens=len(vocabulary) + 1, length=length, **options)
    else:
        pairs = [each for rows in parts for each in (_numbers(rows.features), rows.labels)]
        made = from_arrays(*pairs, feature_bound=sqrt(prod(pairs[0].shape[1:])), bias=True, **options)
    return replace(
        made,
        source=f"a federation given by the user ({name})",
        machine_names=tuple(machines.tolist()),
        machines_from="" if named else "the machines, which are the clients in the data",
        not_covered=("the number of classes is that in the data",) if guessed else (),
    )


def _numbers(features: np.ndarray) -> np.ndarray:
    """Return features with bytes divided by 255, in the shape of images if they are FEMNIST's."""
    if features.ndim < 3:
        features = features.reshape(len(features), *((SIDE, SIDE) if features[0].size == SIDE**2 else (-1,)))
    return features / np.float32(255) if features.dtype == np.uint8 else features
