"""Images by name, from small archives in the original formats, in a user's folder."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.datasets import DataError, DataNotFound, data_file, images, load

RNG = np.random.default_rng(0)
GREY, GREY_TEST = RNG.integers(256, size=(6, 28, 28)), RNG.integers(256, size=(3, 28, 28))
COLOUR, COLOUR_TEST = RNG.integers(256, size=(10, 32, 32, 3)), RNG.integers(256, size=(2, 32, 32, 3))


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with an empty cache and no mirrors."""
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    monkeypatch.setattr(data_file, "cache", lambda: tmp_path / "cache")
    return tmp_path / "own"


def put(folder, monkeypatch, constant, content):
    """Write an archive where a file is searched for, and let its checksum be the expected one."""
    file = getattr(images, constant)
    path = folder / file.folder / file.name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    monkeypatch.setattr(images, constant, replace(file, sum=digest(content)))
    return path


def tar(files):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def cifar(pictures, *labels):
    """The binary version: labels, then the red, green and blue plane of each image."""
    columns = np.stack(labels, axis=1)
    return (
        np.concatenate([columns, pictures.transpose(0, 3, 1, 2).reshape(len(pictures), -1)], axis=1)
        .astype(np.uint8)
        .tobytes()
    )


def check(data, pictures, tested):
    for features, expected in ((data.features, pictures), (data.test_features, tested)):
        shown = data.inputs(features)
        assert shown.shape == (*expected.shape, 1)[:4]
        np.testing.assert_allclose(shown * 255, expected.reshape(shown.shape), rtol=1e-6)
        assert (features[:, -1] == 1).all()


def test_fashion_mnist(folder, monkeypatch):
    arrays = GREY, np.arange(6), GREY_TEST, np.array([9, 0, 3])
    files = {name: gzip.compress(idx(array)) for name, array in zip(images.FASHION_SUMS, arrays, strict=True)}
    monkeypatch.setattr(images, "FASHION_SUMS", {name: digest(content) for name, content in files.items()})
    (folder / "fashion-mnist").mkdir(parents=True)
    for name, content in files.items():
        (folder / "fashion-mnist" / name).write_bytes(content)
    data = load("fashion-mnist")
    check(data, GREY, GREY_TEST)
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 1, 2, 3, 4, 5], [9, 0, 3])
    assert data.class_names[0] == "T-shirt/top"
    assert data.class_names[9] == "Ankle boot"


@pytest.mark.parametrize(("split", "first", "names"), [("digits", 0, "01"), ("letters", 1, "AB")])
def test_emnist_is_upright_and_numbered_from_0(folder, monkeypatch, split, first, names):
    """The archive holds transposed images. The labels of its letters begin with 1."""
    labels, tested = np.array([0, 1, 0, 1, 1, 0]), np.array([1, 1, 0])
    parts = {
        "train-images-idx3": GREY.swapaxes(1, 2),
        "train-labels-idx1": labels + first,
        "test-images-idx3": GREY_TEST.swapaxes(1, 2),
        "test-labels-idx1": tested + first,
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for part, array in parts.items():
            archive.writestr(f"gzip/emnist-{split}-{part}-ubyte.gz", gzip.compress(idx(array)))
        rows = [f"{first + k} {ord(name)}" for k, name in enumerate(names)]
        archive.writestr(f"gzip/emnist-{split}-mapping.txt", "\n".join(rows) + "\n")
    put(folder, monkeypatch, "EMNIST", made.getvalue())
    data = load("emnist", split=split)
    check(data, GREY, GREY_TEST)
    assert data.class_names == tuple(names)
    assert (data.labels.tolist(), data.test_labels.tolist()) == (labels.tolist(), tested.tolist())


def test_cifar10(folder, monkeypatch):
    labels = np.arange(10) % 3
    files = {
        f"cifar-10-batches-bin/data_batch_{k}.bin": cifar(COLOUR[2 * k - 2 : 2 * k], labels[2 * k - 2 : 2 * k])
        for k in range(1, 6)
    }
    files["cifar-10-batches-bin/test_batch.bin"] = cifar(COLOUR_TEST, np.array([2, 0]))
    files["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\nbird\ncat\n\n"
    put(folder, monkeypatch, "CIFAR10", tar(files))
    data = load("cifar10")
    check(data, COLOUR, COLOUR_TEST)
    assert (data.labels.tolist(), data.test_labels.tolist()) == (labels.tolist(), [2, 0])
    assert data.class_names == ("airplane", "bird", "cat")


@pytest.mark.parametrize(("labels", "expected"), [("fine", [0, 1, 2, 3, 4] * 2), ("coarse", [0, 1] * 5)])
def test_cifar100_has_two_labels(folder, monkeypatch, labels, expected):
    files = {
        "cifar-100-binary/train.bin": cifar(COLOUR, np.arange(10) % 2, np.arange(10) % 5),
        "cifar-100-binary/test.bin": cifar(COLOUR_TEST, np.array([1, 0]), np.array([1, 0])),
        "cifar-100-binary/fine_label_names.txt": b"a\nb\nc\nd\ne\n",
        "cifar-100-binary/coarse_label_names.txt": b"x\ny\n",
    }
    put(folder, monkeypatch, "CIFAR100", tar(files))
    data = load("cifar100", labels=labels)
    check(data, COLOUR, COLOUR_TEST)
    assert data.labels.tolist() == expected
    assert data.test_labels.tolist() == [1, 0]
    assert len(data.class_names) == max(expected) + 1


def test_a_damaged_archive_and_a_missing_one_are_named(folder, monkeypatch):
    path = put(folder, monkeypatch, "CIFAR10", tar({}))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"^{path} is damaged and must be replaced: its SHA-256 must be "):
        load("cifar10")
    monkeypatch.setattr(images, "EMNIST", replace(images.EMNIST, mirrors=("http://127.0.0.1:9/none/",)))
    missing = r"^cannot find gzip.zip: not in \$FEDPRIVJAX_DATA/emnist .* holds emnist/gzip.zip$"
    with pytest.raises(DataNotFound, match=missing):
        load("emnist")


@pytest.mark.parametrize(("name", "options"), [("emnist", {"split": "all"}), ("cifar100", {"labels": "both"})])
def test_an_unknown_part_is_refused_before_a_file_is_searched(name, options):
    with pytest.raises(Refusal, match=r"^unknown "):
        load(name, **options)
