"""Images by name, from their original archives: Fashion-MNIST, EMNIST, CIFAR-10 and CIFAR-100."""

import gzip
import io
import tarfile
import zipfile

import numpy as np

from fedprivjax.checks.values import require_choice
from fedprivjax.datasets.data_file import DataFile
from fedprivjax.datasets.dataset import Dataset, of_images
from fedprivjax.datasets.mnist import read_idx

FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_SUMS = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
EMNIST = DataFile(
    "emnist",
    "gzip.zip",
    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    ("https://biometrics.nist.gov/cs_links/EMNIST/", "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/"),
)
SPLITS = ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")
TORONTO = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR10 = DataFile(
    "cifar10",
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    TORONTO,
)
CIFAR100 = DataFile(
    "cifar100",
    "cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    TORONTO,
)
LABELS = ("fine", "coarse")
SIDE, COLOURS = 32, 3  # of an image of CIFAR


def load_fashion_mnist() -> Dataset:
    """Load grey images of clothes, 28×28 pixels in 10 classes: 60,000 training and 10,000 test examples.

    Features are pixels/255 and a constant 1. The files are read from `$FEDPRIVJAX_DATA/fashion-mnist` or from the
    download folder (`data_file.cache()`). If they are in neither, they are downloaded.

    Raises:
        DataError: if a file is damaged.
        DataNotFound: if there is no file and no mirror responds.
    """
    files = (DataFile("fashion-mnist", name, digest, (FASHION,)) for name, digest in FASHION_SUMS.items())
    arrays = [read_idx(file.read()) for file in files]
    source = "Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, MIT licence"
    return of_images("fashion-mnist", arrays, (28, 28, 1), source, class_names=tuple(CLOTHES.split(", ")))


def load_emnist(split: str = "balanced") -> Dataset:
    """Load grey images of handwritten digits and letters, 28×28 pixels.

    The splits, with their numbers of training and test examples:

    * "balanced": 47 classes, 112,800 and 18,800
    * "byclass": 62 classes, 697,932 and 116,323
    * "bymerge": 47 classes, 697,932 and 116,323
    * "letters": 26 classes, 124,800 and 20,800
    * "digits": 10 classes, 240,000 and 40,000
    * "mnist": 10 classes, 60,000 and 10,000

    Features are pixels/255 and a constant 1. The labels of "letters" are numbered from 0. The archive gzip.zip (562 MB)
    is read from `$FEDPRIVJAX_DATA/emnist` or from the download folder (`data_file.cache()`). If it is in neither, it is
    downloaded. For a federation by writer, load FEMNIST by `from_leaf`.

    Args:
        split: name of the split. In "balanced" and "bymerge", upper and lower case of a letter are one class if they
            look alike. In "letters", upper and lower case of every letter are one class.

    Raises:
        Refusal: if the split is unknown.
        DataError: if the archive is damaged.
        DataNotFound: if there is no archive and no mirror responds.
    """
    require_choice("split", split, SPLITS)
    with zipfile.ZipFile(io.BytesIO(EMNIST.read())) as archive:
        start = f"gzip/emnist-{split}-"
        names = [
            f"{start}{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels, test_images, test_labels = (read_idx(gzip.decompress(archive.read(name))) for name in names)
        rows = [line.split() for line in archive.read(f"{start}mapping.txt").decode().splitlines() if line.strip()]
    first = int(rows[0][0])
    upright = images.swapaxes(1, 2), labels - first, test_images.swapaxes(1, 2), test_labels - first
    classes = tuple(chr(int(row[1])) for row in rows)
    source = "Cohen, Afshar, Tapson and van Schaik 2017, EMNIST; NIST Special Database 19, public domain"
    return of_images("emnist", upright, (28, 28, 1), source, class_names=classes)


def load_cifar10() -> Dataset:
    """Load colour images of 32×32 pixels in 10 classes: 50,000 training and 10,000 test examples.

    Features are pixels/255, with the three colours of a pixel side by side, and a constant 1. The archive
    cifar-10-binary.tar.gz (170 MB) is read from `$FEDPRIVJAX_DATA/cifar10` or from the download folder
    (`data_file.cache()`). If it is in neither, it is downloaded.

    Raises:
        DataError: if the archive is damaged.
        DataNotFound: if there is no archive and no mirror responds.
    """
    folder, trained = "cifar-10-batches-bin/", [f"data_batch_{k}.bin" for k in range(1, 6)]
    return _cifar(CIFAR10, folder, trained, "test_batch.bin", "batches.meta.txt", "CIFAR-10")


def load_cifar100(labels: str = "fine") -> Dataset:
    """Load colour images of 32×32 pixels in 100 or 20 classes: 50,000 training and 10,000 test examples.

    Features are pixels/255, with the three colours of a pixel side by side, and a constant 1. The archive
    cifar-100-binary.tar.gz (169 MB) is read from `$FEDPRIVJAX_DATA/cifar100` or from the download folder
    (`data_file.cache()`). If it is in neither, it is downloaded.

    Args:
        labels: "fine" for 100 classes, "coarse" for 20 classes. Each of the 20 classes joins five of the 100 classes.

    Raises:
        Refusal: if `labels` is unknown.
        DataError: if the archive is damaged.
        DataNotFound: if there is no archive and no mirror responds.
    """
    require_choice("labels", labels, LABELS)
    fine = labels == "fine"
    names = f"{labels}_label_names.txt"
    return _cifar(
        CIFAR100, "cifar-100-binary/", ["train.bin"], "test.bin", names, "CIFAR-100", numbers=2, label=int(fine)
    )


def _cifar(
    file: DataFile,
    folder: str,
    trained: list[str],
    tested: str,
    names: str,
    title: str,
    *,
    numbers: int = 1,
    label: int = 0,
) -> Dataset:
    """Return a dataset of an archive of CIFAR's binary version.

    Args:
        folder: folder in the archive.
        trained, tested: its files of training and test examples.
        names: its file of class names.
        numbers: number of labels before each image.
        label: index of the label among them.
    """
    with tarfile.open(fileobj=io.BytesIO(file.read())) as archive:

        def member(name: str) -> bytes:
            found = archive.extractfile(folder + name)
            assert found is not None
            return found.read()

        rows = [np.frombuffer(content, np.uint8) for content in (b"".join(map(member, trained)), member(tested))]
        classes = tuple(line.strip() for line in member(names).decode().splitlines() if line.strip())
    arrays = []
    for each in (row.reshape(-1, numbers + COLOURS * SIDE**2) for row in rows):
        planes = each[:, numbers:].reshape(-1, COLOURS, SIDE, SIDE)
        arrays += [np.moveaxis(planes, 1, -1), each[:, label]]
    source = f"Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images ({title}); no licence stated"
    return of_images(file.folder, arrays, (SIDE, SIDE, COLOURS), source, class_names=classes)
