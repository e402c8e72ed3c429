"""MNIST, from a user's folder, the cache, or a download, and verified by checksums."""

import gzip
import hashlib
import io
import os
import struct
import zlib
from math import sqrt
from pathlib import Path

import numpy as np
import pooch

from fedprivjax.atomic_write import write_atomically
from fedprivjax.datasets.arrays import with_constant
from fedprivjax.datasets.dataset import DataError, DataNotFound, Dataset

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)

# SHA-256 of the uncompressed files, since the gzip wrappers differ between mirrors
SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def load_mnist() -> Dataset:
    """Load handwritten digits of 28×28 pixels: 60,000 training and 10,000 test examples.

    Features are pixels/255 and a constant 1, so their norm is at most √785 for every image. The IDX files, gzipped or
    not, are searched for in `$FEDPRIVJAX_DATA/mnist` and in the cache, then downloaded into the cache.

    Raises:
        DataError: if a file is truncated, or its payload has another SHA-256.
        DataNotFound: if there is no file and no mirror responds.
    """
    images, labels, test_images, test_labels = (read_idx(_payload(name)) for name in SUMS)
    features = with_constant(images, 255.0)
    return Dataset(
        features=features,
        labels=labels.astype(np.int32),
        test_features=with_constant(test_images, 255.0),
        test_labels=test_labels.astype(np.int32),
        feature_bound=sqrt(features.shape[1]),
        classes=10,
        name="mnist",
        picture=(28, 28, 1),
        source="LeCun, Cortes and Burges, The MNIST database of handwritten digits, CC BY-SA 3.0",
    )


def available() -> bool:
    """Return True if all four files are found without the network."""
    return all(_local(name) is not None for name in SUMS)


def cache() -> Path:
    """Return the folder of downloads."""
    return Path(pooch.os_cache("fedprivjax")) / "mnist"


def read_idx(payload: bytes) -> np.ndarray:
    """Return an array of unsigned bytes from the IDX format, of an uncompressed file that is known to be valid.

    The format is two zero bytes, the type, the number of axes, their sizes, and the values.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [7, 9]
    """
    axes = payload[3]
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * axes).reshape(struct.unpack_from(f">{axes}I", payload, 4))


def _folders() -> list[Path]:
    folder = os.environ.get("FEDPRIVJAX_DATA")
    return ([Path(folder) / "mnist"] if folder else []) + [cache()]


def _local(name: str) -> Path | None:
    paths = [folder / file for folder in _folders() for file in (f"{name}.gz", name)]
    return next((path for path in paths if path.is_file()), None)


def _payload(name: str) -> bytes:
    path = _local(name)
    if path is None:
        return _download(name)
    try:
        return _verified(path.read_bytes(), name, str(path))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _verified(content: bytes, name: str, origin: str) -> bytes:
    """Return the uncompressed payload. Raise DataError unless its checksum is correct."""
    try:
        payload = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{origin} is damaged and must be replaced: {str(error).rstrip('.')}") from error
    digest = hashlib.sha256(payload).hexdigest()
    if digest != SUMS[name]:
        raise DataError(
            f"{origin} is damaged and must be replaced: its payload's SHA-256 must be {SUMS[name]}, got {digest}"
        )
    return payload


def _download(name: str) -> bytes:
    failures = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        content = io.BytesIO()
        try:
            pooch.HTTPDownloader()(url, content, None)
            payload = _verified(content.getvalue(), name, url)
        except DataError:
            failures.append(f"{mirror} (damaged file)")
        except OSError as error:  # base class of the exceptions of requests
            failures.append(f"{mirror} ({type(error).__name__})")
        else:
            _store(cache() / f"{name}.gz", content.getvalue())
            return payload
    folder = os.environ.get("FEDPRIVJAX_DATA")
    mine = f"$FEDPRIVJAX_DATA/mnist ({Path(folder) / 'mnist'})" if folder else "$FEDPRIVJAX_DATA (not set)"
    raise DataNotFound(
        f"cannot find {name}.gz: not in {mine}, not in the cache ({cache()}), not at {', '.join(failures)}; "
        f"set FEDPRIVJAX_DATA to a folder that holds mnist/{name}.gz"
    )


def _store(path: Path, content: bytes) -> None:
    """Write a download. Raise DataError if it cannot be written."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}; set FEDPRIVJAX_DATA to a folder with mnist/"
        ) from error
