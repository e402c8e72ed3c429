"""The job of `compare_convolutions.py`: its arguments, its file and its turns, for scripts of both libraries."""

import argparse
import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import fedavg_job
import numpy as np

BATCH, STEP_SIZE, CHANNELS, HIDDEN, CLASSES = 20, 0.05, (32, 64), 300, 10
LAYERS = ("Conv_0", "Conv_1", "Dense_1", "Dense_0")  # names in flax, which numbers the outer call first


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("machines", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def turns(given: argparse.Namespace) -> fedavg_job.Turns:
    """Return turns of one round each, timed in CPU seconds."""
    return fedavg_job.Turns(given.rounds, clock=time.process_time)


def save(given: argparse.Namespace, name: str, weights: Sequence[np.ndarray], **arrays: np.ndarray) -> None:
    """Save kernel and bias of each layer in turn, and further arrays."""
    np.savez(given.folder / f"{name}.npz", *weights, **arrays)


def report(given: argparse.Namespace, library: str, weights: Sequence[np.ndarray]) -> None:
    """Save the weights that a library reaches, and print its version."""
    save(given, library, weights)
    print(json.dumps({"version": version(library)}), flush=True)
