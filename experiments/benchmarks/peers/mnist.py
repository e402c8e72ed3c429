"""MNIST from its IDX files, for scripts that import no library but NumPy."""

import gzip
import os
from pathlib import Path

import numpy as np

PIXELS = 28 * 28


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels/255 and a constant 1, float32 [examples, 785], and labels, int32 [examples].

    Args:
        part: "train" or "t10k"; read from the folder `mnist` of `$FEDPRIVJAX_DATA`.
    """
    pixels = _values(f"{part}-images-idx3-ubyte", header=16).reshape(-1, PIXELS)
    features = np.ones((len(pixels), PIXELS + 1), np.float32)
    np.divide(pixels, 255, out=features[:, :PIXELS], casting="same_kind")
    return features, _values(f"{part}-labels-idx1-ubyte", header=8).astype(np.int32)


def _values(name: str, header: int) -> np.ndarray:
    folder = os.environ.get("FEDPRIVJAX_DATA")
    if not folder:
        raise SystemExit(f"FEDPRIVJAX_DATA must name a folder that holds mnist/{name}.gz, got nothing")
    path = Path(folder) / "mnist" / f"{name}.gz"
    if not path.is_file():
        raise SystemExit(f"FEDPRIVJAX_DATA must name a folder that holds mnist/{name}.gz, got {folder}")
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)
