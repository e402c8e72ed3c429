"""MNIST: the file format and every way of finding the files, on small stand-ins; then the real files."""

import gzip
import hashlib
import importlib
import re
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedprivjax.datasets import DataError, DataNotFound, data_file, load, load_mnist

mnist = importlib.import_module("fedprivjax.datasets.mnist")
AVAILABLE = mnist.available()
IMAGES = "train-images-idx3-ubyte"


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def payloads(monkeypatch, tmp_path):
    """Four small files of the same format with the expected checksums; no user folder, an empty cache."""
    rng = np.random.default_rng(0)
    images, tests = rng.integers(256, size=(6, 28, 28)), rng.integers(256, size=(3, 28, 28))
    arrays = (images, np.arange(6), tests, np.arange(3))
    files = {name: idx(array) for name, array in zip(mnist.SUMS, arrays, strict=True)}
    monkeypatch.setattr(mnist, "SUMS", {name: hashlib.sha256(file).hexdigest() for name, file in files.items()})
    monkeypatch.setattr(data_file, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/none/",))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("FEDPRIVJAX_DATA", raising=False)
    return files


@pytest.fixture
def mirror(monkeypatch):
    """A server on this machine: `mirror(contents...)` serves one folder per dictionary and sets the mirrors."""
    asked, folders = [], {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = folders.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format, *args):
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def serve(*contents):
        for i, files in enumerate(contents):
            folders.update({f"/{i}/{name}.gz": content for name, content in files.items()})
        monkeypatch.setattr(
            mnist, "MIRRORS", tuple(f"http://127.0.0.1:{server.server_port}/{i}/" for i in range(len(contents)))
        )
        return asked

    yield serve
    server.shutdown()
    thread.join()
    server.server_close()


def zipped(files):
    return {name: gzip.compress(file, 1) for name, file in files.items()}


def write(folder, contents, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}{suffix}").write_bytes(content)


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def scramble(content):
    return content[:10] + bytes(byte ^ 0xFF for byte in content[10:90]) + content[90:]


def cached(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def check(data, payloads):
    for features, name in [(data.features, IMAGES), (data.test_features, "t10k-images-idx3-ubyte")]:
        images = np.frombuffer(payloads[name][16:], np.uint8).reshape(-1, 784)
        np.testing.assert_allclose(features[:, :-1] * 255, images, rtol=1e-6)
        assert (features[:, -1] == 1).all()
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test_labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_own_folder_gzipped_or_not(payloads, tmp_path, monkeypatch, suffix):
    write(tmp_path / "own" / "mnist", zipped(payloads) if suffix else payloads, suffix)
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    assert mnist.available()
    check(load("mnist"), payloads)


def test_download_fills_the_cache_and_is_not_repeated(payloads, mirror, tmp_path):
    asked = mirror(zipped(payloads))
    assert not mnist.available()
    check(load_mnist(), payloads)
    assert cached(tmp_path) == sorted(f"{name}.gz" for name in payloads)
    check(load_mnist(), payloads)
    assert len(asked) == 4


def test_own_folder_without_the_files_falls_back(payloads, mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path))
    mirror(zipped(payloads))
    check(load_mnist(), payloads)


@pytest.mark.parametrize("bad", ["absent", "truncated", "other"])
def test_next_mirror_is_tried(payloads, mirror, tmp_path, bad):
    good = zipped(payloads)
    first = {
        "absent": {},
        "truncated": {name: content[:-9] for name, content in good.items()},
        "other": zipped({name: flip(payload) for name, payload in payloads.items()}),
    }[bad]
    asked = mirror(first, good)
    check(load_mnist(), payloads)
    assert asked[:2] == [f"/0/{IMAGES}.gz", f"/1/{IMAGES}.gz"]


def test_a_bad_download_is_never_left_behind(payloads, mirror, tmp_path):
    mirror({name: content[: len(content) // 2] for name, content in zipped(payloads).items()})
    with pytest.raises(DataNotFound, match=rf"^cannot find {IMAGES}\.gz: .*\(damaged file\)"):
        load_mnist()
    assert cached(tmp_path) == []


@pytest.mark.parametrize("where", ["own", "cache"])
@pytest.mark.parametrize(
    "harm", [flip, scramble, lambda content: content[:-12], lambda content: content[:100], lambda content: b""]
)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_a_damaged_file_is_named_in_one_line(payloads, tmp_path, monkeypatch, where, harm, suffix):
    folder = tmp_path / where / "mnist"
    write(folder, zipped(payloads) if suffix else payloads, suffix)
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    path = folder / f"{IMAGES}{suffix}"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        load_mnist()
    assert str(caught.value).startswith(f"{path} is damaged and must be replaced: ")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, OSError)


def test_a_missing_file_names_the_searched_places(payloads, tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"\$FEDPRIVJAX_DATA \(not set\)"):
        load_mnist()
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path / "own"))
    with pytest.raises(DataNotFound) as caught:
        load_mnist()
    assert str(caught.value) == (
        f"cannot find {IMAGES}.gz: not in $FEDPRIVJAX_DATA/mnist ({tmp_path}/own/mnist), not in the cache "
        f"({tmp_path}/cache/mnist), not at http://127.0.0.1:9/none/ (ConnectionError); "
        f"set FEDPRIVJAX_DATA to a folder that holds mnist/{IMAGES}.gz"
    )


def test_a_cache_that_cannot_be_written_is_reported(payloads, mirror, tmp_path):
    (tmp_path / "cache").write_bytes(b"a file where a folder should be")
    mirror(zipped(payloads))
    with pytest.raises(
        DataError, match=rf"^cannot write {re.escape(str(tmp_path))}.*; set FEDPRIVJAX_DATA to a folder"
    ):
        load_mnist()


def test_idx_is_read_in_row_major_order():
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    np.testing.assert_array_equal(mnist.read_idx(idx(array)), array)


@pytest.mark.mnist
@pytest.mark.skipif(not AVAILABLE, reason="MNIST is neither in $FEDPRIVJAX_DATA nor in the cache")
@pytest.mark.slow
def test_the_real_files():
    data = load_mnist()
    assert data.features.shape == (60000, 785)
    assert data.test_features.shape == (10000, 785)
    assert data.feature_bound == pytest.approx(785**0.5, rel=1e-12)
    assert np.bincount(data.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    # the published mean and standard deviation of the training pixels
    pixels = data.features[:, :-1]
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert np.sqrt(np.square(pixels).mean(dtype=np.float64) - 0.13066**2) == pytest.approx(0.3081, abs=5e-5)
    assert (data.features[:, -1] == 1).all()
