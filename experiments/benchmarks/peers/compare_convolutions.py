"""FedAvg of a convolutional network in fedprivjax and FedJAX: CPU seconds of a round, a round of each in turn.

The network is that of `targets/convolutions.py`, the records are random. fedprivjax writes the records and the first
weights to a file, so that both must reach the same weights. `--python PATH` is FedJAX's interpreter.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from compare_fedavg import OURS, Library, weights

PEER = "fedjax"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="local steps of a machine in a round, of 20 records each")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that are not timed")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    if not 0 <= given.warm_up < given.rounds:
        raise SystemExit(f"warm-up must lie in 0..{given.rounds - 1}, got {given.warm_up}")
    with tempfile.TemporaryDirectory() as folder:
        names = ("folder", "machines", "steps", "rounds")
        arguments = [f"--{name}={(vars(given) | {'folder': folder})[name]}" for name in names]
        pythons = {OURS: sys.executable, PEER: given.python}
        libraries = [Library(name, python, arguments, "convolutions") for name, python in pythons.items()]
        for _ in range(given.rounds):
            for library in libraries:
                library.take_turn()
        versions = [library.answer()["version"] for library in libraries]
        start, *ends = (weights(Path(folder) / f"{name}.npz") for name in ("job", OURS, PEER))
    ours, theirs = (np.array(library.seconds[given.warm_up :]) for library in libraries)
    print(f"{given.machines} machines × {given.steps} steps of 20, median of {ours.size} rounds in turn, CPU seconds:")
    medians = zip(("fedprivjax", "FedJAX"), versions, map(np.median, (ours, theirs)), strict=True)
    print(*(f"{name} {of} {found:.3f}," for name, of, found in medians), f"ratio {np.median(ours / theirs):.3f}")
    print(f"distance of the weights / distance moved: {distance(*ends) / distance(start, ends[0]):.1e}")


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other))


if __name__ == "__main__":
    main()
